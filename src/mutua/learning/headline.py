"""The one metric by which a task's models are shown, selected and compared, and which way is better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from mutua.support.text import percent, spread

_NAMES = {
    "auroc": "AUROC",
    "balanced_accuracy": "balanced accuracy",
    "average_precision": "average precision",
    "sensitivity": "sensitivity",
    "macro_f1": "macro F1",
    "exact_match": "exact match",
    "ece": "ECE",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
}
METRICS = ("accuracy", *_NAMES, "loss")
"""All that may be a headline."""
_LOWER_IS_BETTER = ("loss", "ece", "rmse", "mae")
_PLAIN = ("loss", "rmse", "mae", "r2")
"""Metrics that are not shares, and so are not printed in percent."""
_Of = TypeVar("_Of")


@dataclass(frozen=True)
class Headline:
    """A metric, as it is called, printed and compared."""

    metric: str = "accuracy"

    @staticmethod
    def of(summary: Mapping[str, Any] | None) -> Headline:
        """That of a run's summary, or of a recipe's section `task`: accuracy where they do not say."""
        told = (summary or {}).get("task") or {}
        return Headline(str(told.get("headline", "accuracy")))

    @property
    def name(self) -> str:
        """As people call it."""
        return _NAMES.get(self.metric, self.metric.replace("_", " "))

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller number is the better one."""
        return self.metric in _LOWER_IS_BETTER

    @property
    def in_percent(self) -> bool:
        """Whether it is a share, which is printed as a percentage."""
        return self.metric not in _PLAIN

    @property
    def title(self) -> str:
        """For the head of a table: "accuracy in %", "RMSE (lower is better)"."""
        return f"{self.name} in %" if self.in_percent else f"{self.name}{self.direction}"

    @property
    def heading(self) -> str:
        """The same at the beginning of a sentence."""
        return self.title[0].upper() + self.title[1:]

    @property
    def name_first(self) -> str:
        """Its name at the beginning of a sentence."""
        return self.name[0].upper() + self.name[1:]

    @property
    def direction(self) -> str:
        """What to know where the smaller number is better."""
        return " (lower is better)" if self.lower_is_better else ""

    @property
    def unit(self) -> str:
        """What stands behind a number in a sentence."""
        return " %" if self.in_percent else ""

    @property
    def scale(self) -> float:
        """What a number is multiplied by where it is printed."""
        return 100.0 if self.in_percent else 1.0

    def shown(self, value: float | None) -> str:
        """A number as people read it, without its unit."""
        if value is None or self.in_percent:
            return percent(value)
        return f"{value:.4g}"

    def spread(self, found: Mapping[str, Any], sign: bool = False) -> str:
        """Mean ± standard deviation as people read them."""
        return spread(found, sign, share=self.in_percent)

    def gain(self, own: float, other: float) -> float:
        """By how much `own` is better than `other`; below 0 where it is worse."""
        return other - own if self.lower_is_better else own - other

    def better(self, own: float, other: float) -> bool:
        """Whether `own` is better than `other`."""
        return self.gain(own, other) > 0

    def best(self, found: Iterable[tuple[_Of, float]]) -> _Of:
        """The first of those with the best number."""
        points = list(found)
        chosen = min if self.lower_is_better else max
        return chosen(points, key=lambda point: point[1])[0]

    def worst(self, values: Iterable[float]) -> float:
        """The worst number."""
        return max(values) if self.lower_is_better else min(values)


ACCURACY = Headline()
