"""How the page is told of metrics, curves and outcomes."""

from __future__ import annotations

from typing import Any

from mutua.learning.headline import Headline
from mutua.watch.happened import Measurement, RoundPicture
from mutua.watch.measured import few_rounds, five_digits


def outcome(picture: RoundPicture | None, client: str) -> str:
    """What a client does in the newest round."""
    if picture is None:
        return ""
    if client in picture.refused:
        return "refused" if client in picture.answered else "failed"
    if picture.merged is not None and client in picture.merged:
        return "merged"
    if client in picture.answered:
        return "answered"
    return "asked" if client in picture.asked else ""


def metric_of(headline: Headline) -> dict[str, Any]:
    """A metric, as the page prints it."""
    return {
        "key": headline.metric[:80],
        "name": headline.name[:80],
        "percent": headline.in_percent,
        "lower": headline.lower_is_better,
    }


def line_of(key: str, name: str, curve: dict[int, float]) -> dict[str, Any]:
    """A curve."""
    rounds = few_rounds(sorted(curve))
    return {"key": key, "name": name, "rounds": rounds, "values": [five_digits(curve[round]) for round in rounds]}


def known_values(ended: dict[int, Measurement], what: str) -> dict[int, float]:
    """By round, one of the means that the ends of rounds tell."""
    found = {round: getattr(told, what) for round, told in ended.items()}
    return {round: value for round, value in found.items() if value is not None}


def finite(value: object) -> float | None:
    """The number, if it is one that can be shown."""
    return five_digits(float(value)) if isinstance(value, int | float) and abs(value) < 1e12 else None
