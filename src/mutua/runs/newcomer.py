"""A newcomer: a client that comes after training and makes a model of its own of what is shared."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mutua.data.partitions import IID
from mutua.data.sources import Source
from mutua.data.splits import Split, split_and_deal
from mutua.errors import InputError
from mutua.federation import Client, Federation
from mutua.learning.evaluation import measure
from mutua.message import Message, Tensors, weights
from mutua.methods import Independent
from mutua.methods.base import How
from mutua.models import Architecture
from mutua.participant import EarlyStopping, Job, Modules, Participant
from mutua.plan import Plan
from mutua.runs.folder import RunFolder, SavedModel, model_card, write_model


@dataclass(frozen=True)
class Joined:
    """What joining gave, on the newcomer's own test data, beside what it could have done alone."""

    client: Client
    how: How
    accuracy: dict[str, float | None]
    folder: Path

    def summary(self) -> dict[str, Any]:
        """What `mutua join --json` prints."""
        return {
            "client": self.client.id,
            "how": self.how,
            "samples": {split: len(getattr(self.client, split)) for split in ("train", "val", "test")},
            "accuracy": self.accuracy,
            "folder": str(self.folder),
        }


def join(
    run: RunFolder,
    source: Source,
    *,
    how: How,
    model: Any = None,
    name: str = "newcomer",
    seed: int = 0,
    out: Path | None = None,
) -> Joined:
    """Let a newcomer use, fine-tune or mutually adapt a run's global on its own data; the run stays as it is."""
    shared = run.shared()
    architecture = shared.architecture
    client = _client(name, source, shared, model, seed)
    Federation((client,), architecture).check(needs_global=True)
    method, plan = run.method, run.plan.model_copy(update={"seed": seed})
    brief = Message(**{"global": weights(shared.weights)})
    modules = Modules(torch.device("cpu"))
    round = plan.rounds + 1

    newcomer = Participant(Job(method, plan, architecture), client, {}, round, modules)
    accuracy = {"global": _accuracy(newcomer.fork(brief), client)} if architecture.share == "all" else {}
    method.personalise(newcomer, brief, how)
    predictor = method.predictor(newcomer, brief)
    kept = {key: value.detach().clone() for key, value in predictor.state_dict().items()}
    accuracy["predictor"] = _accuracy(predictor, client)
    accuracy["alone"] = _accuracy(_alone(plan, client, modules), client)

    folder = out or run.path / "newcomers" / name
    _save(folder, client, kept, own="personal" in newcomer.state, architecture=architecture)
    joined = Joined(client, how, accuracy, folder)
    (folder / "join.json").write_text(json.dumps(joined.summary(), indent=2) + "\n")
    return joined


def _client(name: str, source: Source, shared: SavedModel, model: Any, seed: int) -> Client:
    architecture, template = shared.architecture, shared.template
    train = replace(source.train, preprocess=template.preprocess)
    shared.expects(train)
    test = source.test and replace(source.test, preprocess=template.preprocess)
    dealt = split_and_deal(train, test, IID(clients=1), Split(), seed=seed).clients[0]
    own = Architecture.of(model) if model is not None else architecture.model_copy(update={"share": "all"})
    client = Client(name, dealt.train, dealt.val, dealt.test, own)
    return client.relabelled(template.classes) if architecture.share == "all" else client


def _alone(plan: Plan, client: Client, modules: Modules) -> nn.Module:
    """The same model trained on the same data without the federation."""
    method = Independent()
    alone = Participant(Job(method, plan, None), client, {}, plan.rounds + 1, modules)
    method.start(alone)
    model = alone.model("personal")
    alone.fit(method.objective, {"personal": model}, until=EarlyStopping(watch="personal"))
    return model


def _accuracy(model: nn.Module, client: Client) -> float | None:
    return measure(model, client.test, client.task)["accuracy"]


def _save(folder: Path, client: Client, kept: Tensors, *, own: bool, architecture: Architecture) -> None:
    try:
        write_model(
            folder,
            {"predictor": kept},
            model_card(client.model if own else architecture, client.train)
            | {"client": client.id, "weights": "predictor.safetensors"},
        )
    except OSError as error:
        raise InputError(f"--out: cannot write to {folder}: {error.strerror}") from None
