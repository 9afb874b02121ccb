"""How good a client's models are on its own data: the clients' side of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn

from mutua.data.samples import Samples
from mutua.engines.work import Staged, as_fault
from mutua.federation.client import Client
from mutua.federation.module_pool import Modules
from mutua.federation.store import copied
from mutua.learning.evaluation import measure
from mutua.methods.base import Job
from mutua.methods.checks import check_predictor
from mutua.methods.participant import Participant


class Assessment(NamedTuple):
    """How good a client's models are, and the global's probabilities on its test samples."""

    metrics: dict[tuple[str, str], dict[str, float | None]]
    seen: Tensor | None


def assess(
    job: Job,
    client: Client,
    round: int,
    staged: Staged,
    modules: Modules,
    others: Mapping[str, Samples] | None = None,
) -> Assessment:
    """Metrics of the client's predictor and of the global on its own data, by (model, split).

    Where a client keeps samples out, validation metrics also give the accuracy on its opted-in samples alone,
    by which the global is selected.

    With the samples of the `others` by split, which only the observer of a simulation has, also FedH2L's three:
    accuracy within the own domain (wdp), across the others' (cdp) and over all (acc).
    What is staged stays as it is: an evaluation leaves no trace in a store.
    """
    brief, state = staged.brief, copied(staged.state)
    with as_fault(client, round):
        participant = Participant(job, client, state, round + 1, modules)
        found: dict[tuple[str, str], dict[str, float | None]] = {}
        splits = {"val": client.val, "test": client.test}

        def judge(name: str, model: nn.Module) -> dict[str, Tensor]:
            said = {split: participant.predict(model, samples) for split, samples in splits.items()}
            found.update({(name, split): client.task.metrics(said[split], splits[split].y) for split in splits})
            if (shown := client.shown("val")) is not None:
                mine = client.task.metrics(said["val"][shown], client.val.y[shown])
                found[name, "val"]["opted_in"] = mine["accuracy"]
            return said

        seen: Tensor | None = None
        meme = participant.fork(brief) if brief is not None and "global" in brief else None
        if meme is not None:
            seen = judge("global", meme)["test"]
        before = copied(state)
        predictor = check_predictor(job.method.predictor(participant, brief))
        participant.finite(before, None)
        if predictor is meme:
            found |= {("predictor", split): found["global", split] for split in splits}
        else:
            judge("predictor", predictor)
        for split, theirs in (others or {}).items():
            own = found["predictor", split]
            cross = measure(predictor, theirs, client.task, modules.device)["accuracy"]
            parts = [(own["accuracy"], len(splits[split])), (cross, len(theirs))]
            known = [(value, n) for value, n in parts if value is not None]
            over_all = sum(value * n for value, n in known) / sum(n for _, n in known) if known else None
            found["predictor", split] = own | {"wdp": own["accuracy"], "cdp": cross, "acc": over_all}
    return Assessment(found, seen)
