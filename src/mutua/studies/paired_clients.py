"""On which test samples clients are right: by domain, and who is worse than in another run, beyond chance."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from mutua.support import safe_reading

A_POINT = 0.01


def right(run: Path) -> dict[str, np.ndarray]:
    """By client, on which of its test samples the predictor of a finished run is right, in their order."""
    found = {}
    for file in sorted(run.glob("clients/*/confusion.json")):
        told = safe_reading.from_json(safe_reading.read_text(file)).get("right")
        if isinstance(told, str):
            found[file.parent.name] = np.frombuffer(told.encode(), np.uint8) == ord("1")
    return found


def by_domain(run: Path) -> dict[str, float]:
    """The accuracy on each domain of one client that has test samples of several, as all data in one place has."""
    files = list(run.glob("clients/*/confusion.json"))
    told = safe_reading.from_json(safe_reading.read_text(files[0])) if len(files) == 1 else {}
    return {name: right / number for name, (right, number) in told.get("domains", {}).items()}


def below(own: Path, other: Path) -> float | None:
    """The share of clients whose accuracy is lower in the first run than in the other.

    By more than one standard error of the paired difference over the same test samples, and by more than a point.
    """
    mine, theirs = right(own), right(other)
    worse = []
    for client in mine.keys() & theirs.keys():
        if len(mine[client]) == len(theirs[client]) > 1:
            difference = mine[client].astype(float) - theirs[client]
            error = difference.std(ddof=1) / np.sqrt(len(difference))
            worse.append(bool(difference.mean() < -max(error, A_POINT)))
    return float(np.mean(worse)) if worse else None


def worst_tenth(values: Collection[float], lower_is_better: bool = False) -> float:
    """The mean over the worst tenth of the clients, at least one."""
    ranked = sorted(values, reverse=lower_is_better)
    return float(np.mean(ranked[: max(1, len(ranked) // 10)]))
