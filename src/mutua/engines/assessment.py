"""How good a client's models are on its own data: the clients' side of an evaluation."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mutua.data.samples import Samples, concatenate
from mutua.engines.work import Staged, as_fault
from mutua.federation.client import Client
from mutua.federation.module_pool import Modules, weights_of
from mutua.federation.store import copied
from mutua.learning.evaluation import measure
from mutua.methods.base import Job
from mutua.methods.checks import check_evaluated, check_predictor
from mutua.methods.participant import Participant
from mutua.support.tensor_files import Tensors


class Assessment(NamedTuple):
    """How good a client's models are, and the global's probabilities on its test samples."""

    metrics: Mapping[tuple[str, str], Mapping[str, float | None]]
    seen: Tensor | None


Names = tuple[tuple[tuple[str, str], tuple[str, ...]], ...]
"""Of each (model, split) which metrics there are."""


class Measured(Mapping[tuple[str, str], dict[str, float | None]]):
    """Metrics by (model, split), with a tenth of the memory: `known` has the names that clients have in common."""

    __slots__ = ("_missing", "_names", "_values")

    def __init__(
        self, metrics: Mapping[tuple[str, str], Mapping[str, float | None]], known: dict[Names, Names]
    ) -> None:
        names = tuple((of, tuple(values)) for of, values in metrics.items())
        found = [value for values in metrics.values() for value in values.values()]
        self._names = known.setdefault(names, names)
        self._values = array("d", [0.0 if value is None else value for value in found])
        self._missing = frozenset(i for i, value in enumerate(found) if value is None)  # a value may be NaN

    def __getitem__(self, of: tuple[str, str]) -> dict[str, float | None]:
        start = 0
        for one, metrics in self._names:
            if one == of:
                places = range(start, start + len(metrics))
                found = [None if i in self._missing else self._values[i] for i in places]
                return dict(zip(metrics, found, strict=True))
            start += len(metrics)
        raise KeyError(of)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return (of for of, _ in self._names)

    def __len__(self) -> int:
        return len(self._names)


def assess(
    job: Job,
    client: Client,
    round: int,
    staged: Staged,
    modules: Modules,
    others: Mapping[str, Samples] | None = None,
) -> Assessment:
    """Metrics of the client's predictor, the global and what else the method names, by (model, split).

    Where a client keeps samples out, validation metrics also give the headline metric on its opted-in samples
    alone, by which the global is selected.

    With the samples of the `others` by split, which only the observer of a simulation has, also FedH2L's three:
    the headline metric within the own domain (wdp), across the others' (cdp) and over all (acc).
    What is staged stays as it is: an evaluation leaves no trace in a store.
    """
    brief, state = staged.brief, copied(staged.state)
    with as_fault(client, round):
        participant = Participant(job, client, state, round + 1, modules)
        found: dict[tuple[str, str], dict[str, float | None]] = {}
        splits = {"val": client.val, "test": client.test}
        headline = client.task.headline.metric

        def judge(name: str, model: nn.Module) -> dict[str, Tensor]:
            said = {split: participant.predict(model, samples) for split, samples in splits.items()}
            found.update({(name, split): client.task.metrics(said[split], splits[split].y) for split in splits})
            if round >= job.plan.rounds:  # the last evaluation, which is what reports are about
                found[name, "test"] |= client.task.intervals(said["test"], client.test.y)
            if (shown := client.shown("val")) is not None:
                mine = client.task.metrics(said["val"][shown], client.val.y[shown])
                found[name, "val"]["opted_in"] = mine[headline]
            return said

        seen: Tensor | None = None
        beside = check_evaluated(job.method.evaluated(participant, brief))
        for name, model in beside.items():
            said = judge(name, model)
            seen = said["test"] if name == "global" else seen
        judged = {name: weights_of(model) for name, model in beside.items()}
        before = copied(state)
        predictor = check_predictor(job.method.predictor(participant, brief))
        participant.finite(before, None)
        # The same module may hold other weights by now.
        same = next((n for n, model in beside.items() if model is predictor and _holds(model, judged[n])), None)
        if same is None:
            judge("predictor", predictor)
        else:
            found |= {("predictor", split): found[same, split] for split in splits}
        for split, theirs in (others or {}).items():
            own = found["predictor", split]
            cross = measure(predictor, theirs, client.task, modules.device)[headline]
            if headline == "accuracy":
                parts = [(own["accuracy"], len(splits[split])), (cross, len(theirs))]
                known = [(value, n) for value, n in parts if value is not None]
                over_all = sum(value * n for value, n in known) / sum(n for _, n in known) if known else None
            else:  # of others the whole is not the mean of its parts
                whole = concatenate([splits[split], theirs])
                over_all = measure(predictor, whole, client.task, modules.device)[headline]
            found["predictor", split] = own | {"wdp": own[headline], "cdp": cross, "acc": over_all}
    return Assessment(found, seen)


def _holds(model: nn.Module, weights: Tensors) -> bool:
    return all(torch.equal(array, weights[name]) for name, array in weights_of(model).items())
