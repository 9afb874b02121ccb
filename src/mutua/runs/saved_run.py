"""A run's folder, loaded in Python: what `run` gave, as far as a folder holds it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mutua.errors import InputError
from mutua.federation.client import Client
from mutua.federation.federation import Federation
from mutua.federation.ledger import Ledger
from mutua.federation.plan import Plan
from mutua.federation.store import State
from mutua.learning.benefit import Benefit
from mutua.methods.base import How, Job, Method
from mutua.models import Architecture, names
from mutua.models.composite import COMPOSITE
from mutua.recipe.recipe import Recipe
from mutua.rounds.history import History
from mutua.rounds.participation import Attendance, Participation
from mutua.rounds.preparation import Prepared, prepare
from mutua.rounds.privacy_guarantee import Guarantee
from mutua.runs.finished_run import FinishedClient, FinishedRun, not_in_it
from mutua.runs.folder import RunFolder
from mutua.runs.newcomer import Joined, join
from mutua.runs.predictor import Predictor
from mutua.runs.saved_models import SavedModel
from mutua.runs.saving import benefits
from mutua.support import safe_reading
from mutua.support.configuration import PathLike, local_path
from mutua.support.files import reason
from mutua.support.folders import new_folder
from mutua.support.tensor_files import Tensors
from mutua.support.text import of_width


def load_run(path: PathLike, data_dir: PathLike | None = None) -> SavedRun:
    """A finished run's folder, with the attributes of what `mutua.run` gave: numbers, models, what crossed.

    The data are not in the folder. What needs them (`federation`, `client.client`) makes them again from the run's
    recipe, with `data_dir` for data sets by name.
    """
    return SavedRun(RunFolder.open(local_path(path, "RUN")), data_dir)


@dataclass(frozen=True, repr=False, eq=False)
class SavedClient(FinishedClient):
    """A client of a saved run: its numbers, what it keeps, and the model it serves with."""

    run: SavedRun
    told: dict[str, Any]
    """Its part of the run's summary."""

    @property
    def id(self) -> str:
        """The client's id."""
        return str(self.told["id"])

    @property
    def history(self) -> History:
        """What was measured in its run."""
        return self.run.history

    @property
    def plan(self) -> Plan:
        """The plan of its run."""
        return self.run.plan

    @property
    def job(self) -> Job:
        """What all clients of its run knew."""
        return self.run.job

    @property
    def client(self) -> Client:
        """Its data, made again from the run's recipe."""
        return next(client for client in self.run.federation.clients if client.id == self.id)

    @property
    def kind(self) -> str:
        """The kind of its task."""
        return str((self.run.summary().get("task") or {}).get("kind", "classification"))

    @property
    def test_samples(self) -> int:
        """How many test samples of its own it has."""
        return int(self.told["test_samples"])

    @property
    def trained(self) -> bool:
        """Whether what it serves with was trained: by itself, or by others if it is the global alone."""
        return bool(self.told.get("trained", True))

    @property
    def serves_since(self) -> int:
        """The first round that evaluated the kind of model that it serves with now."""
        return int(self.told.get("serves_since", 1))

    @property
    def attendance(self) -> Attendance:
        """Its part in the run, round by round."""
        return self.run.participation.of(self.id)

    @property
    def model_title(self) -> str:
        """The design that it serves with, by name."""
        return of_width(str(self.told["model"]), float(self.told.get("width", 1)))

    @property
    def saved(self) -> SavedModel:
        """The model that it serves with, as it lies in the folder."""
        return self.run.folder.client(self.id, "client")

    @property
    def made_of(self) -> dict[str, Any]:
        """What it serves with, as the model's card describes it."""
        return self.saved.card.architecture

    @property
    def serves(self) -> str:
        """What it serves with, in words: a design, or how several models are combined."""
        spec = self.made_of
        if spec.get("name") != COMPOSITE:
            return self.model_title
        return f"{spec['rule']['name']} of {', '.join(spec['parts'])}"

    @property
    def architecture(self) -> Architecture:
        """The design it serves with: its own if it has a personal model, otherwise the global's."""
        name, saved = str(self.told["model"]), self.saved
        own = saved.card.architecture.get("name") == COMPOSITE
        return Architecture.of({"name": name, "width": self.told.get("width", 1)}) if own else saved.architecture

    @property
    def state(self) -> State:
        """The models that it keeps for itself, by name; what else its method kept is not saved."""
        files = sorted(self.run.folder.clients()[self.id].glob("*.safetensors"))
        try:
            return {file.stem: safe_reading.read_arrays(file) for file in files if file.stem != "predictor"}
        except safe_reading.Unreadable as error:
            raise InputError(f"RUN: {self.run.path} cannot be read ({reason(error)}); it is damaged") from None

    @property
    def predictor(self) -> Predictor:
        """The model it serves with, ready for raw inputs."""
        return self.run.predictor(self.id)

    @property
    def keeps_alone(self) -> bool:
        """Whether the folder says what it would have alone."""
        return self.id in benefits(self.run.path)

    def benefit(self) -> Benefit:
        """Whether it is better off for having joined, as its run has found out."""
        return self.run.benefit(self.id)

    def confusion(self) -> np.ndarray:
        """The predictor's confusion matrix on its own test data: rows are true classes, columns predicted."""
        told = self._tested()
        number = len(told["classes"])
        made = np.zeros((number, number), int)
        for true, predicted, count in told["cells"]:
            made[true, predicted] = count
        return made

    def confusion_cells(self) -> list[list[int]]:
        """The same without its zeros: true class, predicted class, count."""
        return [list(map(int, cell)) for cell in self._tested()["cells"]]

    def right(self) -> str:
        """A 1 for every test sample on which the predictor is right and a 0 for every other, in their order."""
        return str(self._tested()["right"])

    def by_domain(self) -> dict[str, tuple[int, int]]:
        """Where the test samples are of several domains: of each how many are right, and how many there are."""
        domains = self._tested().get("domains", {})
        return {str(name): (int(hits), int(number)) for name, (hits, number) in domains.items()}

    def _tested(self) -> dict[str, Any]:
        file = self.run.folder.clients()[self.id] / "confusion.json"
        try:
            return dict(safe_reading.from_json(safe_reading.read_text(file)))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"RUN: {file} cannot be read ({reason(error)}); runs of classes have it") from None

    def summary(self) -> dict[str, Any]:
        """The client's part of a run's JSON."""
        return self.told


class SavedRun(FinishedRun[SavedClient]):
    """A finished run, read from its folder. Models of your own must be trusted first, with `mutua.trust`."""

    def __init__(self, folder: RunFolder, data_dir: PathLike | None = None) -> None:
        self.folder, self._data_dir = folder, data_dir

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.folder.path

    @cached_property
    def _summary(self) -> dict[str, Any]:
        return self.folder.record.summary

    def summary(self) -> dict[str, Any]:
        """The numbers of the run, as `Result.summary` gave them."""
        return self._summary

    @cached_property
    def _rows(self) -> tuple[History, Ledger]:
        return self.folder.finished_rows()

    @property
    def history(self) -> History:
        """What was measured."""
        return self._rows[0]

    @property
    def ledger(self) -> Ledger:
        """What crossed."""
        return self._rows[1]

    @cached_property
    def participation(self) -> Participation:
        """Who was asked in which round, and what came of it."""
        return self.folder.participation()

    @property
    def method(self) -> Method:
        """Its method."""
        return self.folder.method

    @cached_property
    def plan(self) -> Plan:
        """How long, how fast and with which seed."""
        return self.folder.plan

    @property
    def seconds(self) -> float:
        """How long it took."""
        return float(self._summary["seconds"])

    @property
    def recipe(self) -> Recipe:
        """Its recipe, if it was made from one."""
        return self.folder.recipe

    @cached_property
    def _prepared(self) -> Prepared:
        return prepare(self.method, self.recipe.federation(self._data_dir), self.plan)

    @property
    def federation(self) -> Federation:
        """The clients with their data, made again from its recipe."""
        return self._prepared.federation

    @property
    def job(self) -> Job:
        """What server and clients of the run all knew."""
        return self._prepared.job

    @cached_property
    def clients(self) -> list[SavedClient]:
        """All clients of the run, in the order of their ids there."""
        return [SavedClient(self, told) for told in self._summary["clients"]]

    @property
    def newcomers(self) -> list[str]:
        """The ids of those that joined later; `predictor` gives their models."""
        return [client for client, place in self.folder.clients().items() if place.parent.name == "newcomers"]

    @property
    def guarantee(self) -> Guarantee | None:
        """The differential privacy of what left the clients; None if none was asked for."""
        told = self._summary.get("privacy")
        return None if told is None else Guarantee.of(told)

    @property
    def shared(self) -> dict[str, Tensors]:
        """All weights that are shared, by the names of their files: the global and, of several, all."""
        return {} if self.global_state is None else {"weights": self.global_state, **self.offered}

    @property
    def global_state(self) -> Tensors | None:
        """The weights of the global, or of its shared part; None if the method has none."""
        return self.folder.shared().weights if (self.path / "global").is_dir() else None

    @property
    def offered(self) -> dict[str, Tensors]:
        """Of several globals all: a newcomer takes the one that fits it."""
        return self.folder.shared().offered if (self.path / "global").is_dir() else {}

    def predictor(self, client: str, model: Any = None) -> Predictor:
        """The model that a client or a newcomer serves with, ready for raw inputs.

        `model` is the class, factory or `nn.Module` that it was, if that was an object in Python.
        """
        saved = self.folder.client(client, "client")
        name = str(saved.card.architecture.get("name"))
        if model is None and name not in ("mixture", COMPOSITE, *names()) and ":" not in name:
            raise InputError(
                f"client {client}: its model {name} was an object in Python; give it again: "
                f"run.predictor({client!r}, model={name})"
            )
        return saved.predictor(model)

    def benefit(self, client: str) -> Benefit:
        """Whether a client is better off for having joined, as its run has found out."""
        known = list(self.folder.clients())
        if client not in known:
            raise not_in_it(client, known)
        if (found := benefits(self.path).get(client)) is None:
            raise InputError(
                f"client {client}: its run did not keep what it would have alone, as no-regret does; compare with "
                "method independent, or ask the result in Python: result[client].benefit()"
            )
        return found

    def global_predictor(self, model: Any = None) -> Predictor:
        """The global, ready for raw inputs, if it is a whole model."""
        saved = self.folder.shared()
        if saved.card.share != "all":
            raise InputError(f"RUN: the global of {self.path} is partial and predicts nothing alone")
        return saved.predictor(model)

    def join(self, data: PathLike, *, how: How = "mutual", name: str = "newcomer", **more: Any) -> Joined:
        """Let a newcomer with data in a file or folder build its own model from what the run shares."""
        return join(self.folder, data, how=how, name=name, **more)

    def extend(self, rounds: int, **_: Any) -> SavedRun:
        """A saved run becomes longer in its folder, by the command that this error names."""
        raise InputError(
            f"extend: a saved run goes on in its folder: mutua run --resume {self.path} --rounds {rounds}"
        )

    def save(self, path: PathLike) -> Path:
        """Copy its folder."""
        place = new_folder(path, field="path")
        shutil.copytree(self.path, place, symlinks=True, dirs_exist_ok=True)
        return place
