"""The history of a run: one row a number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Literal, NamedTuple

Metrics = Mapping[str, float | None]
EVERY_ROUND = ("accuracy", "loss", "opted_in", "wdp", "cdp", "acc")

Selection = Literal["last", "last5", "best"]
SELECTIONS: dict[Selection, str] = {
    "last": "after the last round",
    "last5": "over the last 5 evaluations",
    "best": "when best on validation",
}
"""Which evaluation a reported number is of. There is none that looks at test data."""


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
        self._newest: dict[tuple[str, str, str, str], Row] = {}

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, round: int, client: str, model: str, split: str, metric: str, value: float | None) -> None:
        """Add one number."""
        self.extend([Row(round, client, model, split, metric, value)])

    def extend(self, rows: Iterable[Row]) -> None:
        """Add rows that were measured before."""
        for row in rows:
            self.rows.append(row)
            if row.value is not None:
                self._newest[row[1:5]] = row

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
        return self.selected("last", client, model, split, metric)

    def selected(self, selection: Selection, client: str, model: str, split: str, metric: str) -> float | None:
        """This number in the evaluation, or the mean over the evaluations, that the selection names."""
        rows = self.select(client=client, model=model, split=split, metric=metric)
        if selection == "best":
            best = self.best_round(client, model)
            rows = [row for row in rows if row.round == best]
        else:
            rows = rows[-5 if selection == "last5" else -1 :]
        values = [row.value for row in rows if row.value is not None]
        return fmean(values) if values else None

    def best_round(self, client: str, model: str) -> int | None:
        """The first round in which this model is best on validation data; None where there is none.

        Judged by a client's `acc`, over all domains, where clients have domains, else by accuracy on its own
        data; the global by its mean accuracy over clients, on opted-in samples alone.
        """
        if client == "global":
            found = list(validation(self, model).items())
        else:
            rows = self.select(client=client, model=model, split="val", metric="acc")
            rows = rows or self.select(client=client, model=model, split="val", metric="accuracy")
            found = [(row.round, row.value) for row in rows if row.value is not None]
        return max(found, key=lambda point: point[1])[0] if found else None

    def curve(self, model: str, split: str = "test", metric: str = "accuracy") -> list[tuple[int, float]]:
        """By round, the unweighted mean over clients."""
        by_round: dict[int, list[float]] = {}
        for row in self.select(model=model, split=split, metric=metric):
            if row.client != "global" and row.value is not None:
                by_round.setdefault(row.round, []).append(row.value)
        return [(round, sum(values) / len(values)) for round, values in sorted(by_round.items())]

    def global_curve(self) -> list[tuple[int, float]]:
        """By round, the accuracy of the global on the common test set."""
        rows = self.select(client="global", model="global", split="test", metric="accuracy")
        return [(row.round, row.value) for row in rows if row.value is not None]

    def newest(self, model: str) -> tuple[int, float] | None:
        """The last point of `curve` or, of the global, of `global_curve`: what is asked after every round."""
        kind, common = (model, "test", "accuracy"), model == "global"
        found = [row for key, row in self._newest.items() if key[1:] == kind and (key[0] == "global") == common]
        if not found:
            return None
        last = max(row.round for row in found)
        values = [row.value for row in found if row.round == last and row.value is not None]
        return last, sum(values) / len(values)


def validation(rows: Iterable[Row], model: str) -> dict[int, float]:
    """By round, a model's mean accuracy over clients' validation data: what selects anything that is shared.

    Of a client that keeps samples out of the federation, only the others count (`opted_in`), if it has any.
    """
    found: dict[int, dict[str, float | None]] = {}
    for row in rows:
        if (row.model, row.split) == (model, "val") and row.client != "global":
            values = found.setdefault(row.round, {})
            if row.metric == "opted_in" or (row.metric == "accuracy" and row.client not in values):
                values[row.client] = row.value
    known = {at: [value for value in values.values() if value is not None] for at, values in found.items()}
    return {at: fmean(values) for at, values in sorted(known.items()) if values}
