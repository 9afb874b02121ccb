"""Runs in Python: a result saved as a run's folder, and a run's folder opened."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

import mutua
from mutua.data.sources import PYTHON
from mutua.errors import InputError
from mutua.federation.federation import Federation
from mutua.federation.ledger import Ledger
from mutua.federation.plan import Plan
from mutua.methods import base
from mutua.methods.base import How, Method
from mutua.models import Architecture, names
from mutua.recipe.recipe import Recipe
from mutua.rounds.history import History
from mutua.rounds.participation import Participation, left_out
from mutua.runs.folder import RunFolder
from mutua.runs.newcomer import Joined, join
from mutua.runs.result import Predictor, Result, sheet
from mutua.studies.measures import RunNumbers
from mutua.support.configuration import PathLike, local_path
from mutua.support.text import Sheet

HEAD = "# Saved from Python, where the data were objects: this file describes the run and cannot repeat it.\n"


def save_run(result: Result, path: PathLike, recipe: Recipe | None = None) -> Path:
    """Save a result as a run's folder, new or empty; `recipe` is the one that made it, if any."""
    if not isinstance(result, Result):
        raise InputError(f"result: a {type(result).__name__}; give what mutua.run returned")
    job = result.job
    if recipe is not None and (recipe.method, recipe.seed) != (job.method, job.plan.seed):
        raise InputError(f"recipe: {recipe.name} has another method or seed; give the one that made this result")
    text = _described(result, local_path(path, "path").name) if recipe is None else recipe.dump()
    folder = RunFolder.create("run", job.plan.seed, path, field="path")
    folder.keep(result, text)
    return folder.path


def open_run(path: PathLike) -> SavedRun:
    """A finished run's folder: its numbers, its models and what left the clients."""
    place = local_path(path, "RUN")
    return SavedRun(RunFolder.open(place))


class SavedRun:
    """A finished run, as its folder tells it. Models of your own must be trusted first, by `mutua.trust`."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._numbers = RunNumbers(folder.path)

    def __repr__(self) -> str:
        return str(self._sheet)

    def _repr_html_(self) -> str:
        return self._sheet.html()

    @property
    def _sheet(self) -> Sheet:
        return sheet(self.summary, self.ledger, left_out(self.summary["clients"]))

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.folder.path

    @property
    def summary(self) -> dict[str, Any]:
        """The numbers of the run, as `Result.summary` gave them."""
        return self._numbers.summary

    @property
    def history(self) -> History:
        """What was measured."""
        return self._numbers.history

    @property
    def ledger(self) -> Ledger:
        """What crossed."""
        return self._numbers.ledger

    @cached_property
    def participation(self) -> Participation:
        """Who was asked in which round, and what came of it."""
        return self.folder.participation()

    @property
    def method(self) -> Method:
        """Its method."""
        return self.folder.method

    @property
    def plan(self) -> Plan:
        """How long, how fast and with which seed."""
        return self.folder.plan

    @property
    def recipe(self) -> Recipe:
        """Its recipe, where it was made by one."""
        return self.folder.recipe

    @property
    def clients(self) -> list[str]:
        """The ids of those who have a model, newcomers too."""
        return list(self.folder.clients())

    def predictor(self, client: str, model: Any = None) -> Predictor:
        """The model that a client serves with, ready for raw inputs.

        `model` is the class, factory or `nn.Module` that it was, where that was an object in Python.
        """
        saved = self.folder.client(client, "client")
        name = str(saved.card.architecture.get("name"))
        if model is None and name not in ("mixture", *names()) and ":" not in name:
            raise InputError(f"client {client}: its model {name} was an object in Python; give it again as model=")
        return saved.predictor(model)

    def global_predictor(self, model: Any = None) -> Predictor:
        """The global, ready for raw inputs, where it is a whole model."""
        saved = self.folder.shared()
        if saved.card.share != "all":
            raise InputError(f"RUN: the global of {self.path} is partial and predicts nothing alone")
        return saved.predictor(model)

    def join(self, data: PathLike, *, how: How = "mutual", name: str = "newcomer", **more: Any) -> Joined:
        """Let a newcomer with data in a file or folder make a model of its own of what the run shares."""
        return join(self.folder, data, how=how, name=name, **more)

    def report(self, html: PathLike | None = None, **more: Any) -> list[Path]:
        """Write a report on it, as `mutua.report` does."""
        return mutua.report(self, html, **more)


def _described(result: Result, name: str) -> str:
    """What is known of a run whose data was objects, as YAML in the form of a recipe."""
    job, federation = result.job, result.federation
    data = {"name": PYTHON + _digest(federation)}
    tree = {
        "name": re.sub(r"[^A-Za-z0-9._+-]", "-", name).lstrip("._+-")[:80] or "run",
        "clients": [{"id": c.id, "data": dict(data), "model": _model(c.model)} for c in federation.clients],
        "models": {} if job.global_model is None else {"global": _model(job.global_model)},
        "method": base.section_of(job.method),
        **job.plan.model_dump(mode="json", exclude_none=True),
    }
    return HEAD + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def _model(architecture: Architecture) -> dict[str, Any]:
    more = {"share": architecture.share, "init": architecture.init and str(architecture.init)}
    return {**architecture.spec(), **{key: value for key, value in more.items() if value not in (None, "all")}}


def _digest(federation: Federation) -> str:
    """Two runs have the same only if their clients have the same data."""
    found = hashlib.sha256()
    for client in sorted(federation.clients, key=lambda client: client.id):
        for samples in (client.train, client.val, client.test):
            found.update(repr((client.id, samples.classes, tuple(samples.x.shape), samples.x.dtype)).encode())
            found.update(samples.x.contiguous().numpy().data)
            found.update(samples.y.contiguous().numpy().data)
    return found.hexdigest()[:16]
