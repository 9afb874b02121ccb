"""The kinds of task that clients can have, as a recipe's `task:` or Python's `task=` describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from mutua.data.samples import Samples
from mutua.data.targets import TaskKind, task_kind
from mutua.errors import InputError, suggest
from mutua.learning.headline import Headline
from mutua.learning.task_behaviour import LabelTask, Task, ValueTask, balanced_weights
from mutua.support.configuration import Spec, checked

_Positive = Annotated[FiniteFloat, Field(gt=0)]
_Share = Annotated[FiniteFloat, Field(gt=0, le=1)]


class _Weighted(Spec):
    """What tasks with classes or labels have in common."""

    class_weights: Literal["balanced"] | dict[str, _Positive] | None = None
    specificity: _Share = 0.9

    def _check_names(self, names: Sequence[str], what: str) -> None:
        """Refuse weights of classes that there are not."""
        if isinstance(self.class_weights, dict):
            strange = [name for name in self.class_weights if name not in names]
            if strange:
                raise InputError(f"task.class_weights: '{strange[0]}' is not among the {what} {', '.join(names)}")


class Classification(_Weighted):
    """One class per sample. Of two classes one is positive: the last, unless `positive` names it."""

    kind: Literal["classification"] = "classification"
    positive: str | None = None
    headline: Literal["accuracy", "balanced_accuracy", "macro_f1", "auroc", "loss"] = "accuracy"

    def of(self, samples: Samples) -> Task:
        """The task of a client that has these samples to learn from."""
        classes, weights = samples.classes, None
        if self.class_weights == "balanced":
            weights = tuple(balanced_weights(samples.counts()))
        elif self.class_weights is not None:
            weights = tuple(self.class_weights.get(name, 1.0) for name in classes)
        return Task(classes, Headline(self.headline), weights, self.positive, self.specificity)

    def check(self, classes: Sequence[str]) -> None:
        """Refuse what does not fit these classes, which are those of all clients together."""
        self._check_names(classes, "classes")
        if self.positive is not None and (len(classes) != 2 or self.positive not in classes):
            raise InputError(
                f"task.positive: '{self.positive}'; it must be one of two classes; "
                f"{suggest(self.positive, classes)}"
            )


class MultiLabel(_Weighted):
    """Several labels at once: any number of them is true of a sample."""

    kind: Literal["multi-label"] = "multi-label"
    headline: Literal["accuracy", "balanced_accuracy", "macro_f1", "auroc", "average_precision", "loss"] = "auroc"

    def of(self, samples: Samples) -> LabelTask:
        """The task of a client that has these samples to learn from."""
        weights = None
        if self.class_weights == "balanced":
            there, n = samples.counts(), len(samples)
            weights = tuple(tuple(balanced_weights([n - k, k])) for k in there.tolist())
        elif self.class_weights is not None:
            weights = tuple((1.0, self.class_weights.get(name, 1.0)) for name in samples.classes)
        return LabelTask(
            samples.classes, Headline(self.headline), specificity=self.specificity, label_weights=weights
        )

    def check(self, classes: Sequence[str]) -> None:
        """Refuse what does not fit these labels."""
        self._check_names(classes, "labels")


class Regression(Spec):
    """One value per sample, or several. `mean` and `std` are declared numbers that values are scaled by."""

    kind: Literal["regression"] = "regression"
    loss: Literal["squared", "huber"] = "squared"
    delta: _Positive = 1.0
    mean: FiniteFloat | tuple[FiniteFloat, ...] = 0.0
    std: _Positive | tuple[_Positive, ...] = 1.0
    headline: Literal["rmse", "mae", "r2", "loss"] = "rmse"

    @model_validator(mode="after")
    def _delta_of_huber(self) -> Self:
        if self.loss != "huber" and self.delta != 1.0:
            raise ValueError("delta is of loss: huber; set that, or leave delta out")
        return self

    def of(self, samples: Samples) -> ValueTask:
        """The task of a client that has these samples to learn from."""
        count = len(samples.classes)
        mean, std = (one if isinstance(one, tuple) else (one,) * count for one in (self.mean, self.std))
        delta = self.delta if self.loss == "huber" else None
        return ValueTask(samples.classes, Headline(self.headline), mean=mean, std=std, delta=delta)

    def check(self, classes: Sequence[str]) -> None:
        """Refuse what does not fit these values."""
        for field in ("mean", "std"):
            given = getattr(self, field)
            if isinstance(given, tuple) and len(given) != len(classes):
                raise InputError(
                    f"task.{field}: {len(given)} numbers for {len(classes)} values; give one, or one for each"
                )


CLASSIFICATION = Classification()
Aim = Classification | MultiLabel | Regression
TaskSection = Annotated[Aim, Field(discriminator="kind")]
"""A recipe's `task:`."""
_KINDS: dict[TaskKind, type[Aim]] = {
    "classification": Classification,
    "multi-label": MultiLabel,
    "regression": Regression,
}


def aim_of(given: Any, field: str = "task") -> Aim:
    """A task as somebody gave it: by the name of its kind, with options, or as an object; None classifies."""
    if given is None:
        return CLASSIFICATION
    if isinstance(given, Aim):
        return given
    if isinstance(given, str):
        return _plain(task_kind(given, field))
    if isinstance(given, Mapping):
        kind = task_kind(given.get("kind", "classification"), f"{field}.kind")
        return checked(_KINDS[kind], {**given, "kind": kind}, at=field)
    raise InputError(f"{field}: {given!r}; give 'regression', or mutua.tasks.Regression(loss='huber')")


@cache
def _plain(kind: TaskKind) -> Aim:
    """The task of this kind with default options: one object, however many clients have it."""
    return _KINDS[kind]()


def plain(aim: Aim) -> bool:
    """Whether it is what every federation learns that says nothing about its task."""
    return aim == CLASSIFICATION


def settings(aim: Aim) -> dict[str, Any]:
    """It as a recipe writes it: what differs from its kind's defaults, and the headline."""
    return {"kind": aim.kind, **aim.model_dump(mode="json", exclude_defaults=True), "headline": aim.headline}
