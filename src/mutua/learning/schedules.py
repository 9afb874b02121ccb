"""Numbers that change over rounds.

In a recipe: `0.5`, `[0.9, 0.5]` or `{schedule: linear, start: 0.3, end: 0.9}`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Tag

from mutua.errors import InputError, suggest
from mutua.support.configuration import Spec


def _number(given: Any) -> float:
    """The finite number that a recipe gives; YAML reads `1e-3` as text and `yes` as a truth value."""
    try:
        number = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{given!r} is not a finite number")
    return number


Number = Annotated[float, BeforeValidator(_number)]


def _some(values: tuple[float, ...]) -> tuple[float, ...]:
    if not values:
        raise ValueError("an empty list; give at least one number")
    return values


class _OverRounds(Spec):
    """A number that changes over rounds, and so is none to calculate with."""

    def _no_number(self, *_: object) -> Any:
        raise InputError(
            "a schedule is not a number; in an objective write hp.NAME for self.NAME, else client.numbers.NAME"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_number
    __pow__ = __rpow__ = __neg__ = __lt__ = __le__ = __gt__ = __ge__ = _no_number


class Linear(_OverRounds):
    """A straight line from `start` in round 1 to `end` in the last round."""

    schedule: Literal["linear"] = "linear"
    start: Number
    end: Number


class Cosine(_OverRounds):
    """Half a cosine wave from `start` in round 1 to `end` in the last round: flat at both ends."""

    schedule: Literal["cosine"] = "cosine"
    start: Number
    end: Number


class Listed(_OverRounds):
    """One value per round; after the last one it stays."""

    schedule: Literal["list"] = "list"
    values: Annotated[tuple[Number, ...], AfterValidator(_some)]


WORDS = ["linear", "cosine", "list"]


def _read(given: Any) -> Any:
    """The number, model or mapping with a known word that the union below can take."""
    if isinstance(given, list | tuple):
        return {"schedule": "list", "values": given}
    if isinstance(given, Linear | Cosine | Listed):
        return given
    if not isinstance(given, dict):
        try:
            return _number(given)
        except ValueError as error:
            way_out = f"give a number, a list of numbers or {{schedule: {' | '.join(WORDS)}, ...}}"
            raise ValueError(f"{error}; {way_out}") from None
    word = given.get("schedule", "")
    if word not in WORDS:
        raise ValueError(f"schedule: {word!r} is unknown; {suggest(str(word), WORDS)}")
    return given


def _tag(given: Any) -> str:
    if isinstance(given, dict):
        return str(given["schedule"])
    return str(getattr(given, "schedule", "number"))


Schedule = Annotated[
    Annotated[Number, Tag("number")]
    | Annotated[Linear, Tag("linear")]
    | Annotated[Cosine, Tag("cosine")]
    | Annotated[Listed, Tag("list")],
    Discriminator(_tag),
    BeforeValidator(_read),
]


def within(low: float, high: float) -> AfterValidator:
    """For a field: `Annotated[Schedule, within(0, 1)]` keeps all values in [low, high]."""

    def check(schedule: Schedule) -> Schedule:
        for number in _extremes(schedule):
            if not low <= number <= high:
                raise ValueError(f"{number:g} is out of range; give a value from {low:g} to {high:g}")
        return schedule

    return AfterValidator(check)


def _extremes(schedule: Schedule) -> tuple[float, ...]:
    """Numbers that include the smallest and the largest value of the schedule."""
    if isinstance(schedule, Linear | Cosine):
        return schedule.start, schedule.end
    return schedule.values if isinstance(schedule, Listed) else (schedule,)


def value(schedule: Schedule, round: int, rounds: int) -> float:
    """The schedule's number in this round, of 1 to `rounds`; beyond them the first or last value holds."""
    if isinstance(schedule, Listed):
        return schedule.values[min(max(round, 1), len(schedule.values)) - 1]
    if not isinstance(schedule, Linear | Cosine):
        return float(schedule)
    if round >= rounds > 1:
        return schedule.end  # exactly, which start + (end − start) need not be
    part = max(round - 1, 0) / (rounds - 1) if rounds > 1 else 0.0
    if isinstance(schedule, Cosine):
        part = (1 - math.cos(math.pi * part)) / 2
    return schedule.start + (schedule.end - schedule.start) * part


def early_alpha_late_beta() -> tuple[Schedule, Schedule]:
    """FML's (α, β) as its papers advise: a larger α early, a larger β late."""
    return Linear(start=0.7, end=0.3), Linear(start=0.3, end=0.7)


NAMED_SCHEDULES = {"early-alpha-late-beta": early_alpha_late_beta}
