"""What a run gives: history, ledger, the global and a predictor for every client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from mutua.data.samples import Samples, fitting
from mutua.errors import InputError
from mutua.federation.client import Client, build
from mutua.federation.federation import Federation
from mutua.federation.ledger import Ledger
from mutua.federation.message import Message
from mutua.federation.module_pool import Modules
from mutua.federation.plan import SELECTIONS, Selection
from mutua.federation.store import State
from mutua.learning import metrics
from mutua.learning.evaluation import probabilities
from mutua.learning.task import Task
from mutua.methods.base import Job
from mutua.methods.participant import Participant
from mutua.models import Architecture
from mutua.rounds.history import History
from mutua.rounds.participation import Attendance, Participation, left_out
from mutua.runs.guarantee import Guarantee, guarantee
from mutua.support.configuration import PathLike, whole_number
from mutua.support.tensor_files import Tensors
from mutua.support.text import Sheet, of_width, percent, several, size, some

if TYPE_CHECKING:
    from mutua.recipe.recipe import Recipe

REPORTED = ("method", "seed", "rounds", "global", "clients", "bytes", "privacy", "seconds")


@dataclass(frozen=True, repr=False)
class Predictor:
    """A trained model with the preprocessing and class names that belong to it."""

    model: nn.Module
    samples: Samples
    """A template without samples: classes, preprocessing and the shape of an input."""

    def __repr__(self) -> str:
        weights = sum(p.numel() for p in self.model.parameters())
        return f"Predictor({_kind(self.samples.x)} to {some(self.classes)}; {weights:,} parameters)"

    @property
    def classes(self) -> tuple[str, ...]:
        """What the columns of a prediction stand for."""
        return self.samples.classes

    def __call__(self, x: Any) -> Tensor:
        """Class probabilities (N, classes) for inputs as the client stores them (bytes for images)."""
        template = self.samples
        given = Samples.of(
            x,
            torch.zeros(len(x)),
            classes=template.classes,
            preprocess=template.preprocess,
            name="x",
            **fitting(np.shape(x), template.x.shape[1:]),
        )
        expect(template, given, "x")
        return probabilities(self.model, given, Task(template.classes))

    def labels(self, x: Any) -> list[str]:
        """The most probable class of each input, by name."""
        return [self.classes[i] for i in self(x).argmax(1).tolist()]


@dataclass(frozen=True, repr=False)
class ClientResult:
    """One client after a run: its numbers, what it keeps, and the model it serves with."""

    client: Client
    job: Job
    state: State
    brief: Message | None
    history: History
    attendance: Attendance = field(default_factory=Attendance)

    def __repr__(self) -> str:
        scored = f"accuracy {percent(self.accuracy())} % on {several(len(self.client.test), 'own test sample')}"
        never = "" if self.trained else ", never trained"
        return f"ClientResult({self.id}: {self.architecture.title}, {scored}{never})"

    @property
    def id(self) -> str:
        """The client's id."""
        return self.client.id

    @property
    def architecture(self) -> Architecture:
        """What it serves with: its own design where it has a personal model, else the global's."""
        return self.client.model if "personal" in self.state else self.job.global_architecture

    @property
    def predictor(self) -> Predictor:
        """The model it serves with, ready for raw inputs."""
        return Predictor(self.serving(Modules(torch.device("cpu"))), self.client.train.take([]))

    def serving(self, modules: Modules) -> nn.Module:
        """The model it serves with, in one of these modules: it is so until another client's is asked for."""
        return self.job.method.predictor(self._participant(modules), self.brief).eval()

    @property
    def evaluated(self) -> bool:
        """Whether its last evaluation came about: else there is no model that it could be served with."""
        return self.history.evaluated(self.id, "predictor") == self.job.plan.rounds

    @property
    def trained(self) -> bool:
        """Whether what it serves with was trained: by itself, or by others where it is the global alone."""
        return self.attendance.trained or not self.state or not self.job.plan.rounds

    @property
    def serves_since(self) -> int:
        """The first round whose evaluations are of the kind of model that it serves with now."""
        last, first = self.job.plan.rounds, self.attendance.first
        if self.job.method.made_at_end and not self.attendance.unfinished:
            return last
        return min(last, max(1, first or 1) if self.state else 1)

    @property
    def made_of(self) -> dict[str, Any]:
        """What it serves with, as a model's card says it."""
        return self.job.method.made_of(self._participant(Modules(torch.device("cpu"))))

    def _participant(self, modules: Modules) -> Participant:
        return Participant(self.job, self.client, dict(self.state), self.job.plan.rounds + 1, modules)

    def accuracy(self, model: str = "predictor", selection: Selection = "last") -> float | None:
        """Accuracy on its own test data: of the model that it has now, or of another selection."""
        return self.measured("accuracy", model, selection)

    def measured(self, metric: str, model: str, selection: Selection) -> float | None:
        """A number of this selection on its own test data; None where there was no last evaluation to select."""
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
        return probabilities(model or self.predictor.model, self.client.test, self.client.task)

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
            "accuracy": {model: self.accuracy(model, selection) for model in ("predictor", "global")},
            "trained": self.trained,
            "serves_since": self.serves_since,
            "participation": self.attendance.summary(),
        }


@dataclass(frozen=True, repr=False)
class Result:
    """A finished run."""

    job: Job
    federation: Federation
    history: History
    ledger: Ledger
    global_state: Tensors | None
    clients: list[ClientResult]
    seconds: float
    participation: Participation = field(default_factory=Participation)
    longer: Callable[..., Result] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        since = {client.id: client.serves_since for client in self.clients}
        self.history.serves_since(self.job.plan.rounds, since)

    @property
    def _sheet(self) -> Sheet:
        return sheet(self.summary(), self.ledger, self.left_out())

    def __repr__(self) -> str:
        return str(self._sheet)

    def _repr_html_(self) -> str:
        return self._sheet.html()

    def extend(self, rounds: int, **given: Any) -> Result:
        """The result of the same run with so many rounds in all; only what is new is run.

        It equals, to the last byte, a run that was planned so long; where a schedule over all rounds or a budget
        would have made that another run, it is refused. `given` may be `callbacks` and `progress`, as for `run`.
        """
        if self.longer is None:
            raise InputError("extend: where this run stood is not known; use 'mutua run --resume DIR --rounds N'")
        whole_number(rounds, "rounds")
        return self.longer(rounds, **given)

    def __getitem__(self, client_id: str) -> ClientResult:
        for client in self.clients:
            if client.id == client_id:
                return client
        known = some([client.id for client in self.clients])
        raise InputError(f"client: {client_id!r} is not in it; there are {known}")

    def global_predictor(self) -> Predictor:
        """The global, ready for raw inputs, where it is a whole model."""
        shared, first = self.job.global_model, self.clients[0].client
        if self.global_state is None or shared is None or shared.share != "all":
            raise InputError(
                f"global: method {self.job.method.name} has no global that predicts alone in this run"
            )
        module = build(shared, first, seed=0)
        module.load_state_dict(self.global_state)
        return Predictor(module.eval(), first.train.take([]))

    def mean_accuracy(self, model: str = "predictor", selection: Selection = "last") -> float | None:
        """Unweighted mean over clients of accuracy on their own test data; who never trained is left out."""
        return _mean([client.accuracy(model, selection) for client in self.counted(model)])

    def counted(self, model: str = "predictor") -> list[ClientResult]:
        """The clients whose numbers count in means: all, but for predictors that were never trained."""
        return [client for client in self.clients if model != "predictor" or client.trained]

    def left_out(self) -> list[str]:
        """A line for each client that something went wrong with or that never trained: rounds and reasons."""
        return left_out([client.summary() for client in self.clients])

    def _domains(self) -> dict[str, float | None] | None:
        """FedH2L's metrics, mean over clients, where clients have domains."""
        if all(client.client.domain is None for client in self.clients):
            return None

        def value(client: ClientResult, metric: str) -> float | None:
            return client.measured(metric, "predictor", self.job.plan.selection)

        return {metric: _mean([value(c, metric) for c in self.counted()]) for metric in ("wdp", "cdp", "acc")}

    @cached_property
    def guarantee(self) -> Guarantee | None:
        """The differential privacy of what left the clients; None where none was asked for."""
        return guarantee(self.job, self.federation.clients, self.ledger, self.participation)

    def save(self, path: PathLike, recipe: Recipe | None = None) -> Path:
        """Save it as a run's folder: for `mutua.open_run`, and for the command line's report, predict and join.

        `recipe` is the one that made it, if any: with it the folder says how to repeat the run.
        """
        import mutua

        return mutua.save_run(self, path, recipe)

    def report(self) -> dict[str, Any]:
        """What `mutua run --json` prints: people script against these keys; `selection` is there if not `last`."""
        return reported(self.summary())

    def summary(self) -> dict[str, Any]:
        """The numbers of a run. Accuracies are on test data, of the evaluation that the plan selects."""
        plan, selection = self.job.plan, self.job.plan.selection
        sizes = {c.id: len(c.client.test) for c in self.clients}
        return {
            "method": self.job.method.name,
            "seed": plan.seed,
            "rounds": plan.rounds,
            "selection": selection,
            "global": {
                metric: self.history.selected(selection, "global", "global", "test", metric)
                for metric in ("accuracy", "loss")
            },
            "clients": [client.summary() for client in self.clients],
            "mean": {
                model: {
                    "accuracy": self.mean_accuracy(model, selection),
                    "accuracy_by_samples": _mean(
                        [client.accuracy(model, selection) for client in self.counted(model)],
                        [sizes[client.id] for client in self.counted(model)],
                    ),
                }
                for model in ("predictor", "global")
            },
            "domains": self._domains(),
            "bytes": {"up": self.ledger.bytes("up"), "down": self.ledger.bytes("down")},
            "privacy": None if self.guarantee is None else self.guarantee.summary(),
            "seconds": round(self.seconds, 3),
        }


def sheet(summary: Mapping[str, Any], ledger: Ledger, left_out: Sequence[str]) -> Sheet:
    """A run in a few lines, from its summary and what crossed: what `print` shows."""
    models = ("predictor", "global")
    rows = [
        (
            c["id"],
            of_width(c["model"], c.get("width", 1)),
            f"{c['samples']:,}",
            *(percent(c["accuracy"][model]) for model in models),
            size(ledger.bytes("up", c["id"])),
        )
        for c in summary["clients"]
    ]
    means = [percent(summary["mean"][model]["accuracy"]) for model in models]
    remarks = [f"accuracy in % on each client's own test data {SELECTIONS[summary['selection']]}"]
    if (common := summary["global"]["accuracy"]) is not None:
        remarks += [f"the global on the common test set: {percent(common)} %"]
    kinds = [f"{kind} ({name})" for kind, name in (label.split(": ", 1) for label in ledger.kinds("up"))]
    remarks += [f"left the clients: {some(kinds) or 'nothing'}"]
    remarks += left_out[:3]
    if len(left_out) > 3:
        remarks += [f"... and {len(left_out) - 3} more clients of which something went wrong"]
    title = f"{summary['method']}: {several(len(rows), 'client')}, {several(summary['rounds'], 'round')}"
    heads = ("client", "model", "samples", "predictor", "global", "sent")
    sums = [("mean", "", "", *means, size(summary["bytes"]["up"]))]
    return Sheet(f"{title}, seed {summary['seed']}", heads, rows, sums, remarks, left=2)


def reported(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Of a run's summary, what `--json` prints."""
    asked = () if summary.get("selection", "last") == "last" else ("selection",)
    return {key: summary.get(key) for key in (*REPORTED, *asked)}


def expect(template: Samples, given: Samples, name: str) -> None:
    """Refuse inputs of another shape or type than a model was trained on."""
    if (given.x.shape[1:], given.x.dtype) != (template.x.shape[1:], template.x.dtype):
        raise InputError(f"{name}: samples are {_kind(given.x)}; the model takes {_kind(template.x)}")


def _kind(x: Tensor) -> str:
    """The shape and type of a sample in words."""
    return f"{tuple(x.shape[1:])} {'bytes (0 to 255)' if x.dtype == torch.uint8 else 'floating numbers'}"


def _mean(values: list[float | None], weights: list[int] | None = None) -> float | None:
    known = [(v, w) for v, w in zip(values, weights or [1] * len(values), strict=True) if v is not None]
    return fmean([v for v, _ in known], [w for _, w in known]) if known else None
