"""The history of a run: one row a number."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

Metrics = Mapping[str, float | None]
EVERY_ROUND = ("accuracy", "loss", "wdp", "cdp", "acc")


class Row(NamedTuple):
    """`client` is a client's id or "global", for the global on the common test set."""

    round: int
    client: str
    model: str
    split: str
    metric: str
    value: float | None


class History:
    """Rows in the order in which they were measured."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, round: int, client: str, model: str, split: str, metric: str, value: float | None) -> None:
        """Add one number."""
        self.rows.append(Row(round, client, model, split, metric, value))

    def measured(self, round: int, client: str, model: str, split: str, metrics: Metrics, last: bool) -> None:
        """Add an evaluation: accuracy and loss every time, every metric after the last round."""
        for metric, value in metrics.items():
            if last or metric in EVERY_ROUND:
                self.add(round, client, model, split, metric, value)

    def select(self, **wanted: object) -> list[Row]:
        """The rows whose fields have these values: `select(client="global", metric="accuracy")`."""
        return [row for row in self if all(getattr(row, name) == value for name, value in wanted.items())]

    def last(self, client: str, model: str, split: str, metric: str) -> float | None:
        """The newest value of this number."""
        rows = self.select(client=client, model=model, split=split, metric=metric)
        return rows[-1].value if rows else None

    def curve(self, model: str, split: str = "test", metric: str = "accuracy") -> list[tuple[int, float]]:
        """By round, the unweighted mean over clients."""
        by_round: dict[int, list[float]] = {}
        for row in self.select(model=model, split=split, metric=metric):
            if row.client != "global" and row.value is not None:
                by_round.setdefault(row.round, []).append(row.value)
        return [(round, sum(values) / len(values)) for round, values in sorted(by_round.items())]

    def write(self, path: Path) -> None:
        """The history as a tidy CSV file; an empty value is one that has no meaning."""
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Row._fields)
            writer.writerows(self.rows)
