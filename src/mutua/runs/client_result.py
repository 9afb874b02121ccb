"""One client after a run: its numbers, its state, and the model it serves with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mutua.federation.client import Client
from mutua.federation.message import Message
from mutua.federation.module_pool import Modules
from mutua.federation.plan import Selection
from mutua.federation.store import State, Store
from mutua.learning import intervals, metrics
from mutua.learning.evaluation import predictions
from mutua.methods.base import Job
from mutua.methods.participant import Participant
from mutua.models import Architecture
from mutua.rounds.history import History
from mutua.rounds.participation import Attendance
from mutua.runs.predictor import Predictor
from mutua.support.text import several


@dataclass(frozen=True, repr=False)
class ClientResult:
    """One client after a run: its numbers, what it keeps, and the model it serves with."""

    client: Client
    job: Job
    store: Store
    brief: Message | None
    history: History
    attendance: Attendance = field(default_factory=Attendance)

    def __repr__(self) -> str:
        of, tested = self.history.headline, several(len(self.client.test), "own test sample")
        ends = self.interval()
        between = "" if ends is None else f" ({of.shown(ends[0])} to {of.shown(ends[1])})"
        scored = f"{of.name} {of.shown(self.score())}{of.unit}{between} on {tested}"
        never = "" if self.trained else ", never trained"
        return f"ClientResult({self.id}: {self.architecture.title}, {scored}{never})"

    @property
    def id(self) -> str:
        """The client's id."""
        return self.client.id

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
    def predictor(self) -> Predictor:
        """The model it serves with, ready for raw inputs."""
        return Predictor(self.serving(Modules(torch.device("cpu"))), self.client.train.take([]), self.client.aim)

    def serving(self, modules: Modules) -> nn.Module:
        """The model it serves with, in one of these modules; valid until another client's is asked for."""
        return self.job.method.predictor(self._participant(modules), self.brief).eval()

    @property
    def evaluated(self) -> bool:
        """Whether its last evaluation succeeded: otherwise there is no model to serve with."""
        return self.history.evaluated(self.id, "predictor") == self.job.plan.rounds

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
        return self.job.method.made_of(self._participant(Modules(torch.device("cpu"))))

    def _participant(self, modules: Modules) -> Participant:
        return Participant(self.job, self.client, dict(self.state), self.job.plan.rounds + 1, modules)

    def score(self, model: str = "predictor", selection: Selection = "last") -> float | None:
        """Its task's headline metric on its own test data: accuracy, unless the task has another."""
        return self.measured(self.history.headline.metric, model, selection)

    def interval(self, model: str = "predictor", selection: Selection = "last") -> tuple[float, float] | None:
        """The 95 % interval of `score`, for so few test samples: exact of an accuracy, else as the task says.

        None for the mean of several evaluations, and where there is no number.
        """
        metric = self.history.headline.metric
        if metric == "accuracy" and self.client.aim.kind == "classification":
            return intervals.of_share(self.score(model, selection), len(self.client.test))
        low, high = (self.measured(f"{metric}_{end}", model, selection) for end in ("low", "high"))
        return None if low is None or high is None else (low, high)

    def accuracy(self, model: str = "predictor", selection: Selection = "last") -> float | None:
        """Accuracy on its own test data: of the model that it has now, or of another selection."""
        return self.measured("accuracy", model, selection)

    def measured(self, metric: str, model: str, selection: Selection) -> float | None:
        """A number of this selection on its own test data; None if there was no last evaluation to select."""
        if selection == "last" and not self.evaluated:
            return None
        return self.history.selected(selection, self.id, model, "test", metric)

    def confusion(self, model: nn.Module | None = None) -> np.ndarray:
        """The predictor's confusion matrix on its own test data: rows are true classes, columns predicted."""
        return metrics.confusion_matrix(self._tested(model), self.client.test.y)

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
