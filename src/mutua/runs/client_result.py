"""One client after a run: its numbers, its state, and the model it serves with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mutua.engines.alone import benefit, train_alone
from mutua.errors import InputError
from mutua.federation.client import Client
from mutua.federation.message import Message
from mutua.federation.module_pool import Modules
from mutua.federation.plan import Plan
from mutua.federation.store import State, Store
from mutua.learning import metrics
from mutua.learning.benefit import Benefit
from mutua.learning.evaluation import predictions
from mutua.methods.base import Job
from mutua.methods.participant import Participant
from mutua.methods.promises import promised
from mutua.models import Architecture
from mutua.models.composite import COMPOSITE, Composite
from mutua.rounds.history import History
from mutua.rounds.participation import Attendance
from mutua.runs.finished_run import FinishedClient
from mutua.runs.predictor import Predictor
from mutua.support.processes import one_thread


@dataclass(frozen=True, repr=False)
class ClientResult(FinishedClient):
    """One client after a run: its numbers, what it keeps, and the model it serves with."""

    client: Client
    job: Job
    store: Store
    brief: Message | None
    history: History
    attendance: Attendance = field(default_factory=Attendance)

    @property
    def id(self) -> str:
        """The client's id."""
        return self.client.id

    @property
    def plan(self) -> Plan:
        """The plan of its run."""
        return self.job.plan

    @property
    def kind(self) -> str:
        """The kind of its task."""
        return self.client.aim.kind

    @property
    def test_samples(self) -> int:
        """How many test samples of its own it has."""
        return len(self.client.test)

    @property
    def model_title(self) -> str:
        """The design that it serves with, by name."""
        return self.architecture.title

    @property
    def state(self) -> State:
        """What it keeps for itself: groups of named arrays."""
        return self.store.state

    @property
    def architecture(self) -> Architecture:
        """The design it serves with: its own if it has a personal model, otherwise the global's."""
        own = "personal" in self.state or self.job.global_model is None
        return self.client.model if own else self.job.global_architecture

    @property
    def serves(self) -> str:
        """What it serves with, in words: a design, or how several models are combined."""
        spec = self.made_of
        if spec["name"] != COMPOSITE:
            return self.architecture.title
        return f"{spec['rule']['name']} of {', '.join(spec['parts'])}"

    @property
    def predictor(self) -> Predictor:
        """The model it serves with, ready for raw inputs."""
        return Predictor(self.serving(Modules(torch.device("cpu"))), self.client.train.take([]), self.client.aim)

    def serving(self, modules: Modules) -> nn.Module:
        """The model it serves with, in one of these modules; valid until another client's is asked for."""
        return self.job.method.predictor(self._participant(modules), self.brief).eval()

    @property
    def trained(self) -> bool:
        """Whether what it serves with was trained: by itself, or by others if it is the global alone."""
        return self.attendance.trained or not self.store.keeps or not self.job.plan.rounds

    @property
    def serves_since(self) -> int:
        """The first round that evaluated the kind of model that it serves with now."""
        last, first = self.job.plan.rounds, self.attendance.first
        if self.job.method.made_at_end and not self.attendance.unfinished:
            return last
        return min(last, max(1, first or 1) if self.store.keeps else 1)

    @property
    def made_of(self) -> dict[str, Any]:
        """What it serves with, as the model's card describes it."""
        modules = Modules(torch.device("cpu"))
        served, method = self.serving(modules), self.job.method
        return served.spec if isinstance(served, Composite) else method.made_of(self._participant(modules))

    def _participant(self, modules: Modules) -> Participant:
        return Participant(self.job, self.client, dict(self.state), self.job.plan.rounds + 1, modules)

    def benefit(self, alone: ClientResult | None = None, noun: str = "samples") -> Benefit:
        """Is it better off for having joined? Its models on its own test samples, beside the one trained alone.

        That one is in its store where the method keeps it (`no-regret`). Otherwise it is that of `alone`, this
        client in a run of `independent` with the same plan and seed; without it, it is trained now.
        """
        if not len(self.client.test):
            raise InputError(f"client {self.id}: no test samples, so no model can be judged")
        if not self.job.method.shares:
            raise InputError(f"client {self.id}: {self.job.method.name} shares nothing, so nobody has joined")
        if not self.evaluated:
            raise InputError(f"client {self.id}: its last evaluation failed, so there is no model to judge")
        if alone is not None and (alone.job.method.shares or alone.id != self.id):
            raise InputError(f"alone: {alone!r}; give client {self.id} of a run of independent")
        modules = Modules(torch.device("cpu"))
        if self.keeps_alone:
            without = {"personal": self.state["personal"]}
        elif alone is not None:
            without = alone.state
        else:
            with one_thread():
                without = train_alone(self.job, self.client, range(1, self.job.plan.rounds + 1), modules)
        return benefit(self.job, self.client, self.state, self.brief, without, modules, noun)

    @property
    def keeps_alone(self) -> bool:
        """Whether its store has what it would have alone."""
        method = self.job.method
        return promised(type(method), "keeps_alone") and not method.breaks("keeps_alone")

    def confusion(self, model: nn.Module | None = None) -> np.ndarray:
        """The predictor's confusion matrix on its own test data: rows are true classes, columns predicted."""
        return metrics.confusion_matrix(self._tested(model), self.client.test.y)

    def right(self, model: nn.Module | None = None) -> str:
        """A 1 for every test sample on which the predictor is right and a 0 for every other, in their order."""
        hits = self._tested(model).argmax(1) == self.client.test.y
        return "".join("1" if hit else "0" for hit in hits.tolist())

    def by_domain(self, hits: str | None = None) -> dict[str, tuple[int, int]]:
        """Where the test samples are of several domains: of each how many are right, and how many there are.

        `hits` are those of `right`, where they are known already.
        """
        hits = self.right() if hits is None else hits
        test = self.client.test
        if test.domain is None or len(found := test.domain.unique().tolist()) < 2:
            return {}
        of = {d: [hit for hit, k in zip(hits, test.domain.tolist(), strict=True) if k == d] for d in found}
        return {test.domains[d]: (marks.count("1"), len(marks)) for d, marks in of.items()}

    def confusion_cells(self, model: nn.Module | None = None) -> list[list[int]]:
        """The same without its zeros: true class, predicted class, count."""
        return metrics.confusion_counts(self._tested(model), self.client.test.y)

    def _tested(self, model: nn.Module | None) -> Tensor:
        return predictions(model or self.predictor.model, self.client.test, self.client.task)

    def summary(self) -> dict[str, Any]:
        """The client's part of a run's JSON."""
        selection = self.job.plan.selection
        return {
            "id": self.id,
            "model": self.architecture.label,
            "width": self.architecture.width,
            "samples": len(self.client.train),
            "opted_out": self.client.opted_out,
            "test_samples": len(self.client.test),
            self.history.headline.metric: {
                model: self.score(model, selection) for model in ("predictor", "global")
            },
            "interval": {model: self.interval(model, selection) for model in ("predictor", "global")},
            "trained": self.trained,
            "serves_since": self.serves_since,
            "participation": self.attendance.summary(),
        }
