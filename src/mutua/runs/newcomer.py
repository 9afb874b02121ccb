"""A newcomer: a client that joins after training and builds a model of its own from what is shared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mutua.data import sources
from mutua.data.partitions import IID
from mutua.data.samples import Samples
from mutua.data.splits import Split, split_and_deal
from mutua.data.tabular_reading import read_labelled
from mutua.data.tabular_sources import KINDS
from mutua.engines.alone import served_by, train_alone_until
from mutua.errors import InputError
from mutua.federation.client import Client
from mutua.federation.federation import Federation
from mutua.federation.message import Message, weights
from mutua.federation.model_checks import check_models
from mutua.federation.module_pool import Modules
from mutua.learning.evaluation import measure
from mutua.methods.base import How, Job
from mutua.methods.participant import Participant
from mutua.models import Architecture
from mutua.models.composite import Composite
from mutua.runs.folder import RunFolder
from mutua.runs.predictor import expect
from mutua.runs.saved_models import ModelCard, SavedModel, StoredJson, put_model, read_json, scored
from mutua.support.configuration import PathLike, local_path
from mutua.support.files import atomic_files, to_json
from mutua.support.folders import fill_folder
from mutua.support.processes import one_thread

HOWS: tuple[How, ...] = ("global", "finetune", "mutual")


@dataclass(frozen=True)
class Joined:
    """What joining gave on the newcomer's own test data, and what training alone would have given."""

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
    data: PathLike,
    *,
    how: How,
    model: Any = None,
    name: str = "newcomer",
    seed: int = 0,
    out: PathLike | None = None,
) -> Joined:
    """Let a newcomer use, fine-tune or mutually adapt a run's global on its own data; the run stays as it is."""
    shared = run.shared()
    if name.casefold() in map(str.casefold, run.clients()):
        raise InputError(f"--name: '{name}' is in {run.path} already; give the newcomer a name of its own")
    _complete(shared, how)
    if model is not None and how != "mutual":
        raise InputError(
            f"--model: only a newcomer that joins by --how mutual has a model of its own; by '{how}' it takes the "
            "global's: leave --model out"
        )
    client = _client(name, local_path(data, "--data"), shared, model, seed)
    return join_client(run, client, how=how, seed=seed, out=out or run.path / "newcomers" / name)


def join_client(run: RunFolder, client: Client, *, how: How, seed: int, out: PathLike) -> Joined:
    """The same for a client whose data is already loaded."""
    shared, method = run.shared(), run.method
    architecture = _complete(shared, how)
    check_models(Federation((client,), architecture), needs_global=True)
    plan = run.plan.model_copy(update={"seed": seed})
    brief = Message(
        **{name: weights(arrays) for name, arrays in {"global": shared.weights, **shared.offered}.items()}
    )
    modules = Modules(torch.device("cpu"))
    job = Job(method, plan, architecture)
    newcomer = Participant(job, client, {}, plan.rounds + 1, modules)

    with fill_folder(out) as folder, one_thread():
        accuracy = {"global": _accuracy(newcomer.fork(brief), client)} if architecture.share == "all" else {}
        method.personalise(newcomer, brief, how)
        predictor = served_by(method, newcomer, brief)
        kept = {key: value.detach().clone() for key, value in predictor.state_dict().items()}
        accuracy["predictor"] = _accuracy(predictor, client)
        alone = train_alone_until(job, client, modules, method.stopping("personal"))
        accuracy["alone"] = _accuracy(alone.model("personal"), client)

        made_of = predictor.spec if isinstance(predictor, Composite) else method.made_of(newcomer)
        told = scored(client.aim, accuracy["predictor"])
        card = ModelCard.of(made_of, client.train, weights="predictor.safetensors", client=client.id, **told)
        joined = Joined(client, how, accuracy, folder)
        with atomic_files() as files:
            put_model(files, folder, {"predictor": kept}, card)
            files.write(folder / "join.json", to_json(joined.summary()) + "\n")
    return joined


class JoinRecord(StoredJson):
    """What is read from join.json: how a newcomer joined, and its accuracies."""

    how: How
    accuracy: dict[str, float | None]


def read_joined(folder: PathLike) -> JoinRecord:
    """Read join.json in a newcomer's folder."""
    return read_json(local_path(folder, "RUN") / "join.json", JoinRecord)


def without_last(federation: Federation) -> tuple[Federation, Client]:
    """The federation without its last client, and that client."""
    *others, last = federation.clients
    return replace(federation, clients=tuple(others)), last


def _complete(shared: SavedModel, how: How) -> Architecture:
    if how == "global" and shared.architecture.share != "all":
        raise InputError(
            "--how: 'global', but the run's global is partial and predicts nothing alone; use 'finetune'"
        )
    return shared.architecture


def _client(name: str, data: Path, shared: SavedModel, model: Any, seed: int) -> Client:
    architecture, template = shared.architecture, shared.template
    train, test = _samples(data, shared)
    dealt = split_and_deal(train, test, IID(clients=1), Split(), seed=seed).clients[0]
    own = Architecture.of(model) if model is not None else architecture.model_copy(update={"share": "all"})
    client = Client(name, dealt.train, dealt.val, dealt.test, own, aim=shared.card.aim)
    if architecture.share != "all":
        return client
    try:
        return client.relabelled(template.classes)
    except InputError as error:
        raise InputError(
            f"--data: {error}; name the classes as the run does, or join a run that shares a body only"
        ) from None


def _samples(data: Path, shared: SavedModel) -> tuple[Samples, Samples | None]:
    """The newcomer's training samples and, if the file has them, test samples, preprocessed as in the run."""
    if shared.template.model_input.kind in KINDS:
        try:
            return read_labelled(data, shared.template).samples, None
        except InputError as error:
            raise InputError(f"--data: {error}") from None
    try:
        source = sources.load(
            "folder" if data.is_dir() else "arrays",
            path=data,
            image_size=shared.image_size if data.is_dir() else None,
            fits=shared.card.input,
            kind=shared.card.aim.kind,
        )
    except InputError as error:
        raise InputError(f"--data: {error}") from None
    train = replace(source.train, preprocess=shared.card.preprocess)
    expect(shared.template, train, "--data")
    return train, source.test and replace(source.test, preprocess=shared.card.preprocess)


def _accuracy(model: nn.Module, client: Client) -> float | None:
    return measure(model, client.test, client.task)[client.task.headline.metric]
