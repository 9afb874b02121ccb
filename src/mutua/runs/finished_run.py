"""What a finished run and its clients say of themselves, in memory (`Result`) or in a folder (`SavedRun`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mutua.errors import InputError, suggest
from mutua.federation.plan import Selection
from mutua.learning import intervals
from mutua.rounds.participation import left_out
from mutua.runs.summary import notebook_page, reported, sheet
from mutua.support.text import Sheet, several

if TYPE_CHECKING:
    from mutua.federation.ledger import Ledger
    from mutua.federation.plan import Plan
    from mutua.methods.base import Method
    from mutua.rounds.history import History
    from mutua.runs.predictor import Predictor


class FinishedClient:
    """A client after a run: its numbers, of its history."""

    if TYPE_CHECKING:  # a dataclass that inherits a property takes it for the default of its field

        @property
        def id(self) -> str:
            """Its id."""

        @property
        def history(self) -> History:
            """What was measured."""

        @property
        def plan(self) -> Plan:
            """The plan of the run."""

        @property
        def trained(self) -> bool:
            """Whether what it serves with was trained."""

        @property
        def serves(self) -> str:
            """What it serves with, in words."""

        @property
        def model_title(self) -> str:
            """The design that it serves with, by name."""

        @property
        def kind(self) -> str:
            """The kind of its task."""

        @property
        def test_samples(self) -> int:
            """How many test samples of its own it has."""

    def __repr__(self) -> str:
        of, tested = self.history.headline, several(self.test_samples, "own test sample")
        ends = self.interval()
        between = "" if ends is None else f" ({of.shown(ends[0])} to {of.shown(ends[1])})"
        scored = f"{of.name} {of.shown(self.score())}{of.unit}{between} on {tested}"
        never = "" if self.trained else ", never trained"
        what = self.serves if self.evaluated else self.model_title
        return f"{type(self).__name__}({self.id}: {what}, {scored}{never})"

    @property
    def evaluated(self) -> bool:
        """Whether its last evaluation succeeded: otherwise there is no model to serve with."""
        return self.history.evaluated(self.id, "predictor") == self.plan.rounds

    def score(self, model: str = "predictor", selection: Selection = "last") -> float | None:
        """Its task's headline metric on its own test data: accuracy, unless the task has another."""
        return self.measured(self.history.headline.metric, model, selection)

    def interval(self, model: str = "predictor", selection: Selection = "last") -> tuple[float, float] | None:
        """The 95 % interval of `score`, for so few test samples: exact of an accuracy, else as the task says.

        None for the mean of several evaluations, and where there is no number.
        """
        metric = self.history.headline.metric
        if metric == "accuracy" and self.kind == "classification":
            return intervals.of_share(self.score(model, selection), self.test_samples)
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


C = TypeVar("C", bound=FinishedClient)


class FinishedRun(Generic[C]):
    """A finished run: what it prints, its clients by id, and means over them."""

    if TYPE_CHECKING:

        @property
        def history(self) -> History:
            """What was measured."""

        @property
        def ledger(self) -> Ledger:
            """What crossed."""

        @property
        def clients(self) -> Sequence[C]:
            """All clients."""

        @property
        def method(self) -> Method:
            """Its method."""

        @property
        def plan(self) -> Plan:
            """The plan of the run."""

        def summary(self) -> dict[str, Any]:
            """Its numbers."""

        def global_predictor(self) -> Predictor:
            """The global, ready for raw inputs."""

    @property
    def _sheet(self) -> Sheet:
        return sheet(self.summary(), self.ledger, self.left_out())

    def __repr__(self) -> str:
        return str(self._sheet)

    def _repr_html_(self) -> str:
        return notebook_page(self._sheet, self.history)

    def __getitem__(self, client_id: str) -> C:
        for client in self.clients:
            if client.id == client_id:
                return client
        raise not_in_it(client_id, [client.id for client in self.clients])

    def mean_accuracy(self, model: str = "predictor", selection: Selection = "last") -> float | None:
        """Unweighted mean over clients of accuracy on their own test data, without clients that never trained."""
        return mean_of_known([client.accuracy(model, selection) for client in self.counted(model)])

    def mean_score(self, model: str = "predictor", selection: Selection = "last") -> float | None:
        """The same of the task's headline metric: accuracy, unless the task has another."""
        return mean_of_known([client.score(model, selection) for client in self.counted(model)])

    def counted(self, model: str = "predictor") -> list[C]:
        """The clients whose numbers count in means: all, but for predictors that were never trained."""
        return [client for client in self.clients if model != "predictor" or client.trained]

    def left_out(self) -> list[str]:
        """A line for each client that something went wrong with or that never trained: rounds and reasons."""
        return left_out(self._client_summaries())

    def _client_summaries(self) -> Sequence[Mapping[str, Any]]:
        return list(self.summary()["clients"])

    def report(self) -> dict[str, Any]:
        """What `mutua run --json` prints: people script against these keys; `selection` is there if not `last`."""
        return reported(self.summary())


def not_in_it(client_id: object, known: Sequence[str]) -> InputError:
    """Says that a run has no such client, and which it has."""
    return InputError(f"client: {client_id!r} is not in it; {suggest(client_id, known)}")


def mean_of_known(values: Sequence[float | None], weights: Sequence[int] | None = None) -> float | None:
    """The mean of the values that are known; None if none is."""
    known = [(v, w) for v, w in zip(values, weights or [1] * len(values), strict=True) if v is not None]
    return fmean([v for v, _ in known], [w for _, w in known]) if known else None
