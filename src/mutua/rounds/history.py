"""The history of a run: one row per number, and which of them are reported."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import ClassVar, NamedTuple

import numpy as np

from mutua.federation.plan import Selection
from mutua.learning.metrics import Metrics
from mutua.support.row_log import Log
from mutua.support.text import some

Key = tuple[str, str, str, str]
EVERY_ROUND = ("accuracy", "loss", "opted_in", "wdp", "cdp", "acc")


class Row(NamedTuple):
    """`client` is a client's id or "global", for the global on the common test set."""

    round: int
    client: str
    model: str
    split: str
    metric: str
    value: float | None


class _Index(NamedTuple):
    """The positions of all rows, grouped by key, and the keys of each client."""

    size: int
    places: np.ndarray
    starts: np.ndarray
    clients: dict[str, list[int]]

    @staticmethod
    def of_columns(which: Sequence[int], keys: Sequence[tuple[str, ...]]) -> _Index:
        number = np.asarray(which)
        number = np.where(number < 0, ~number, number)  # `Log` marks None in this way
        places = np.argsort(number, kind="stable")
        clients: dict[str, list[int]] = {}
        for key, (client, *_) in enumerate(keys):
            clients.setdefault(client, []).append(key)
        return _Index(len(number), places, np.searchsorted(number[places], np.arange(len(keys) + 1)), clients)

    def of(self, key: int) -> list[int]:
        found: list[int] = self.places[self.starts[key] : self.starts[key + 1]].tolist()
        return found


class History(Log[Row]):
    """Rows in the order in which they were measured."""

    kind: ClassVar[type[Row]] = Row
    valued: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._newest: dict[Key, tuple[int, float | None]] = {}
        self._evaluated: dict[tuple[str, str], int] = {}
        self._common: dict[int, float] = {}
        self._means: dict[tuple[str, str, str], dict[int, tuple[float, int]]] = {}
        self._judged: dict[str, dict[int, float]] = {}
        self._judging: dict[str, tuple[int, dict[str, float | None]]] = {}
        self._first, self._since = 1, dict[str, int]()
        self._untrained: Collection[str] = ()
        self._tables: dict[str, tuple[int, dict[Key, float | None]]] = {}
        self._index: _Index | None = None

    @property
    def rows(self) -> list[Row]:
        """All rows, oldest first."""
        return list(self)

    def __repr__(self) -> str:
        if not self:
            return "History(no rows yet)"
        models, metrics = (some(list(dict.fromkeys(key[i] for key in self._repeated))) for i in (1, 3))
        rounds = f"rounds {self[0].round} to {self[-1].round}"
        return f"History({len(self):,} rows, {rounds}; models {models}; metrics {metrics})"

    def add(self, round: int, client: str, model: str, split: str, metric: str, value: float | None) -> None:
        """Add one number."""
        self._append(Row(round, client, model, split, metric, value))

    def _append(self, row: Row) -> None:
        # Numbers that are needed after every round or for every client are kept up to date: no row is read again.
        super()._append(row)
        round, client, model, split, metric, value = row
        self._newest[client, model, split, metric] = round, value
        if split != "train":
            self._evaluated[client, model] = round
        if split == "val" and client != "global" and metric in ("accuracy", "opted_in"):
            self._judge(row)
        if value is None:
            return
        if client != "global":
            sums = self._means.setdefault((model, split, metric), {})
            total, number = sums.get(round, (0.0, 0))
            sums[round] = total + value, number + 1
        elif (model, split, metric) == ("global", "test", "accuracy"):
            self._common[round] = value

    def _judge(self, row: Row) -> None:
        at, values = self._judging.get(row.model, (-1, {}))
        if at != row.round:
            self._judged[row.model] = self._validation(row.model)
            values = {}
            self._judging[row.model] = row.round, values
        if row.metric == "opted_in" or row.client not in values:
            values[row.client] = row.value

    def _validation(self, model: str) -> dict[int, float]:
        known = self._judged.get(model, {})
        round, values = self._judging.get(model, (-1, {}))
        if found := [value for value in values.values() if value is not None]:
            known[round] = fmean(found)
        else:
            known.pop(round, None)
        return known

    def validation(self, model: str, round: int) -> float | None:
        """A model's mean accuracy over clients' validation data in a round, by which shared models are selected.

        If a client keeps samples out of the federation, only its other samples count (`opted_in`), if it has any.
        """
        return self._validation(model).get(round)

    def measured(self, round: int, client: str, model: str, split: str, metrics: Metrics, last: bool) -> None:
        """Add an evaluation: accuracy and loss every time, every metric after the last round."""
        for metric, value in metrics.items():
            if last or metric in EVERY_ROUND:
                self.add(round, client, model, split, metric, value)

    def select(self, **wanted: object) -> list[Row]:
        """The rows whose fields have these values: `select(client="global", metric="accuracy")`."""
        found: Iterable[Row] = self
        if not self._away:
            index = self._indexed()
            fields = {name: value for name, value in wanted.items() if name in Row._fields[1:5]}
            all_keys = range(len(self._repeated))
            keys = index.clients.get(str(fields["client"]), []) if "client" in fields else all_keys
            mine = [key for key in keys if _has(Row._make((0, *self._repeated[key], None)), fields)]
            found = map(self._row, sorted(place for key in mine for place in index.of(key)))
        return [row for row in found if _has(row, wanted)]

    def _indexed(self) -> _Index:
        """Where to find the rows of every key."""
        if self._index is None or self._index.size != len(self._which):
            self._index = _Index.of_columns(self._which, self._repeated)
        return self._index

    def last(self, client: str, model: str, split: str, metric: str) -> float | None:
        """The newest value of this number."""
        return self._newest.get((client, model, split, metric), (0, None))[1]

    def evaluated(self, client: str, model: str) -> int | None:
        """The round of its newest evaluation."""
        return self._evaluated.get((client, model))

    def serves_since(self, rounds: int, clients: Mapping[str, int]) -> None:
        """Say from which round on each client serves with its predictor, in a run of so many rounds.

        Earlier evaluations are not selected: they are of untrained models, or of the global if a client's own
        model was made after the last round.
        """
        self._first, self._since = min(1, rounds), dict(clients)
        self._tables.clear()

    def leave_out(self, untrained: Collection[str]) -> None:
        """Say whose own models have not trained yet: they are out of the newest mean, as out of a result's."""
        self._untrained = untrained

    def selected(self, selection: Selection, client: str, model: str, split: str, metric: str) -> float | None:
        """This number in the evaluation, or the mean over the evaluations, that the selection names."""
        if selection == "last":
            return self.last(client, model, split, metric)
        size, table = self._tables.get(selection, (-1, {}))
        if size != len(self):
            table = self._table(selection)
            self._tables[selection] = len(self), table
        return table.get((client, model, split, metric))

    def _table(self, selection: Selection) -> dict[Key, float | None]:
        """All numbers of a selection, computed in one pass; `selected` looks them up."""
        best = self.best_rounds() if selection == "best" else {}
        found: dict[Key, list[float | None]] = {}
        for row in self:
            if selection == "best":
                counts = row.round == best.get((row.client, row.model))
            else:
                counts = row.round >= self._from_round(row.client, row.model)
            if counts:
                mine = found.setdefault(row[1:5], [])
                mine.append(row.value)
                del mine[:-5]
        known = {key: [value for value in values if value is not None] for key, values in found.items()}
        return {key: fmean(values) if values else None for key, values in known.items()}

    def best_rounds(self) -> dict[tuple[str, str], int]:
        """By client and model, the first round in which it is best on validation data.

        A client's model is judged by `acc`, over all domains, if clients have domains, and otherwise by accuracy
        on its own data. The global is judged by its mean accuracy over clients, on opted-in samples only.
        """
        found: dict[tuple[str, str], dict[str, tuple[float, int]]] = {}
        for round, client, model, split, metric, value in self:
            judged = split == "val" and metric in ("acc", "accuracy") and client != "global"
            if judged and value is not None and round >= self._from_round(client, model):
                mine = found.setdefault((client, model), {})
                if metric not in mine or value > mine[metric][0]:
                    mine[metric] = value, round
        best = {of: mine.get("acc", mine.get("accuracy", (0.0, 0)))[1] for of, mine in found.items()}
        shared = [point for point in self._validation("global").items() if point[0] >= self._first]
        return best | ({("global", "global"): max(shared, key=lambda point: point[1])[0]} if shared else {})

    def _from_round(self, client: str, model: str) -> int:
        return self._since.get(client, self._first) if model == "predictor" else self._first

    def curve(self, model: str, split: str = "test", metric: str = "accuracy") -> list[tuple[int, float]]:
        """By round, the unweighted mean over clients."""
        sums = self._means.get((model, split, metric), {})
        return [(round, total / number) for round, (total, number) in sorted(sums.items())]

    def served_curve(self) -> list[tuple[int, float]]:
        """The predictors' curve; only its end if all predictors were made after the last round."""
        since = min(self._since.values(), default=0)
        return [point for point in self.curve("predictor") if since <= 1 or point[0] >= since]

    def mean(self, round: int, model: str, split: str, metric: str) -> float | None:
        """The point of a curve in this round."""
        total, number = self._means.get((model, split, metric), {}).get(round, (0.0, 0))
        return total / number if number else None

    def global_curve(self) -> list[tuple[int, float]]:
        """By round, the accuracy of the global on the common test set."""
        return sorted(self._common.items())

    def newest(self, model: str) -> tuple[int, float] | None:
        """The last point of `curve`, or of `global_curve` for the global; it is needed after every round.

        Predictors that have not trained yet are left out of it, unless none has.
        """
        if model == "global":
            return next(reversed(self._common.items()), None)
        round = next(reversed(self._means.get((model, "test", "accuracy"), {})), None)
        if round is None:
            return None
        total, number = self._means[model, "test", "accuracy"][round]
        if model == "predictor" and self._untrained:
            newest = (self._newest.get((client, model, "test", "accuracy")) for client in self._untrained)
            out = [point[1] for point in newest if point and point[0] == round and point[1] is not None]
            if len(out) < number:
                total, number = total - sum(out), number - len(out)
        return round, total / number


def _has(row: Row, wanted: Mapping[str, object]) -> bool:
    return all(getattr(row, name) == value for name, value in wanted.items())
