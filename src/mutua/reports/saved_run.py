"""A run's folder, opened in Python."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from mutua.errors import InputError
from mutua.federation.ledger import Ledger
from mutua.federation.plan import Plan
from mutua.learning.benefit import Benefit
from mutua.methods.base import How, Method
from mutua.models import names
from mutua.models.composite import COMPOSITE
from mutua.recipe.recipe import Recipe
from mutua.reports.writing import report
from mutua.rounds.history import History
from mutua.rounds.participation import Participation, left_out
from mutua.runs.folder import RunFolder
from mutua.runs.newcomer import Joined, join
from mutua.runs.predictor import Predictor
from mutua.runs.saving import benefits
from mutua.runs.summary import notebook_page, sheet
from mutua.studies.measures import RunNumbers
from mutua.support.configuration import PathLike, local_path
from mutua.support.text import Sheet, some


def open_run(path: PathLike) -> SavedRun:
    """A finished run's folder: its numbers, its models and what left the clients."""
    place = local_path(path, "RUN")
    return SavedRun(RunFolder.open(place))


class SavedRun:
    """A finished run, read from its folder. Models of your own must be trusted first, with `mutua.trust`."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._numbers = RunNumbers(folder.path)

    def __repr__(self) -> str:
        return str(self._sheet)

    def _repr_html_(self) -> str:
        return notebook_page(self._sheet, self.history)

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
        """Its recipe, if it was made from one."""
        return self.folder.recipe

    @property
    def clients(self) -> list[str]:
        """The ids of all clients and newcomers that have a model."""
        return list(self.folder.clients())

    def predictor(self, client: str, model: Any = None) -> Predictor:
        """The model that a client serves with, ready for raw inputs.

        `model` is the class, factory or `nn.Module` that it was, if that was an object in Python.
        """
        saved = self.folder.client(client, "client")
        name = str(saved.card.architecture.get("name"))
        if model is None and name not in ("mixture", COMPOSITE, *names()) and ":" not in name:
            raise InputError(f"client {client}: its model {name} was an object in Python; give it again as model=")
        return saved.predictor(model)

    def benefit(self, client: str) -> Benefit:
        """Whether a client is better off for having joined, as its run has found out."""
        known = self.clients
        if client not in known:
            raise InputError(f"client: {client!r} is not in it; there are {some(known)}")
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

    def report(self, html: PathLike | None = None, **more: Any) -> list[Path]:
        """Write a report on it, as `mutua.report` does."""
        return report(self, html, **more)
