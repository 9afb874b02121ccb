"""The history of a run: one row per number, and which of them are reported."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import ClassVar, NamedTuple

import numpy as np

from mutua.errors import InputError, suggest
from mutua.federation.plan import Selection
from mutua.learning.headline import ACCURACY, METRICS, Headline
from mutua.learning.metrics import Metrics
from mutua.support.row_log import Log
from mutua.support.text import some

Key = tuple[str, str, str, str]
USUAL_MODELS = ("predictor", "global", "personal", "meme")
EVERY_ROUND = ("loss", "opted_in", "wdp", "cdp", "acc")
"""What is measured after every evaluation, beside the task's headline metric."""


class Row(NamedTuple):
    """`client` is a client's id or "global", for the global on the common test set."""

    round: int
    client: str
    model: str
    split: str
    metric: str
    value: float | None


class _Index(NamedTuple):
    """The positions of all rows, grouped by client and by what the row is of."""

    places: np.ndarray
    groups: np.ndarray
    """The group of each of these places: the client's number and, within it, that of the rest."""
    rests: int

    @staticmethod
    def of_columns(whose: Sequence[int], which: Sequence[int], rests: int) -> _Index:
        rest = np.asarray(which, np.int64)
        rest = np.where(rest < 0, ~rest, rest)  # `Log` marks None in this way
        group = np.asarray(whose, np.int64) * rests + rest
        places = np.argsort(group, kind="stable")
        return _Index(places, group[places], rests)

    def of(self, client: int, rest: int) -> list[int]:
        group = client * self.rests + rest
        start, end = np.searchsorted(self.groups, [group, group + 1])
        found: list[int] = self.places[start:end].tolist()
        return found


_NEVER = -(2**31)
"""In place of a round: there is no such row."""


class _Newest:
    """By client's number, the newest value of one metric and its round: 12 bytes per client."""

    def __init__(self) -> None:
        self._rounds, self._values = array("i"), array("d")

    def set(self, client: int, round: int, value: float | None) -> None:
        if (missing := client + 1 - len(self._rounds)) > 0:
            self._rounds.extend([_NEVER] * missing)
            self._values.extend([0.0] * missing)
        # A value may be NaN, so None is told by the sign of the round.
        self._rounds[client], self._values[client] = (~round, 0.0) if value is None else (round, value)

    def get(self, client: int) -> tuple[int, float | None] | None:
        round = self._rounds[client] if client < len(self._rounds) else _NEVER
        if round == _NEVER:
            return None
        return (round, self._values[client]) if round >= 0 else (~round, None)


class History(Log[Row]):
    """Rows in the order in which they were measured."""

    kind: ClassVar[type[Row]] = Row
    valued: ClassVar[bool] = True

    def __init__(self, headline: Headline = ACCURACY) -> None:
        super().__init__()
        self.headline = headline
        self._newest_rows: list[_Newest] = []
        """By number of the rest."""
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
        models, metrics = (some(list(dict.fromkeys(rest[i] for rest in self._rests))) for i in (0, 2))
        rounds = f"rounds {self[0].round} to {self[-1].round}"
        return f"History({len(self):,} rows, {rounds}; models {models}; metrics {metrics})"

    def add(self, round: int, client: str, model: str, split: str, metric: str, value: float | None) -> None:
        """Add one number."""
        self._append(Row(round, client, model, split, metric, value))

    def _append(self, row: Row) -> None:
        # Numbers that are needed after every round or for every client are kept up to date: no row is read again.
        super()._append(row)
        round, client, model, split, metric, value = row
        number = self._which[-1] if value is not None else ~self._which[-1]
        if number == len(self._newest_rows):
            self._newest_rows.append(_Newest())
        self._newest_rows[number].set(self._whose[-1], round, value)
        if split == "val" and client != "global" and metric in (self.headline.metric, "opted_in"):
            self._judge(row)
        if value is None:
            return
        if client != "global":
            sums = self._means.setdefault((model, split, metric), {})
            total, number = sums.get(round, (0.0, 0))
            sums[round] = total + value, number + 1
        elif (model, split, metric) == ("global", "test", self.headline.metric):
            self._common[round] = value

    def _newest(self, client: str, model: str, split: str, metric: str) -> tuple[int, float | None] | None:
        """The round and the value of the newest row."""
        whose, number = self._client_numbers.get(client), self._rest_numbers.get((model, split, metric))
        return None if whose is None or number is None else self._newest_rows[number].get(whose)

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
        """A model's mean over clients' validation data in a round, by which shared models are selected.

        It is the mean of the headline metric, accuracy unless the task has another.

        If a client keeps samples out of the federation, only its other samples count (`opted_in`), if it has any.
        """
        return self._validation(model).get(round)

    def measured(self, round: int, client: str, model: str, split: str, metrics: Metrics, last: bool) -> None:
        """Add an evaluation: the headline and the loss every time, every metric after the last round."""
        for metric, value in metrics.items():
            if last or metric == self.headline.metric or metric in EVERY_ROUND:
                self.add(round, client, model, split, metric, value)

    def select(self, **wanted: object) -> list[Row]:
        """The rows whose fields have these values: `select(client="global", metric="accuracy")`."""
        found: Iterable[Row] = self
        if not self._away:
            fields = {name: value for name, value in wanted.items() if name in Row._fields[1:5]}
            client = fields.pop("client", None)
            known = range(len(self._clients))
            whose = known if client is None else [n for n in known if self._clients[n] == client]
            rests = [n for n, rest in enumerate(self._rests) if _has(Row._make((0, "", *rest, None)), fields)]
            index = self._indexed()
            found = map(self._row, sorted(place for who in whose for n in rests for place in index.of(who, n)))
        return [row for row in found if _has(row, wanted)]

    def _indexed(self) -> _Index:
        """Where to find the rows of every client and metric."""
        if (
            self._index is None
            or len(self._index.places) != len(self._which)
            or self._index.rests != len(self._rests)
        ):
            self._index = _Index.of_columns(self._whose, self._which, len(self._rests))
        return self._index

    def last(self, client: str, model: str, split: str, metric: str) -> float | None:
        """The newest value of this number."""
        point = self._newest(client, model, split, metric)
        return None if point is None else point[1]

    def evaluated(self, client: str, model: str) -> int | None:
        """The round of its newest evaluation."""
        rests = (rest for rest in self._rests if rest[0] == model and rest[1] != "train")
        points = (self._newest(client, *rest) for rest in rests)
        return max((point[0] for point in points if point is not None), default=None)

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

        A client's model is judged by `acc`, over all domains, if clients have domains, and otherwise by the
        headline metric on its own data. The global is judged by its mean over clients, on opted-in samples only.
        """
        own, better = self.headline.metric, self.headline.better
        found: dict[tuple[str, str], dict[str, tuple[float, int]]] = {}
        for round, client, model, split, metric, value in self:
            judged = split == "val" and metric in ("acc", own) and client != "global"
            if judged and value is not None and round >= self._from_round(client, model):
                mine = found.setdefault((client, model), {})
                if metric not in mine or better(value, mine[metric][0]):
                    mine[metric] = value, round
        best = {of: mine.get("acc", mine.get(own, (0.0, 0)))[1] for of, mine in found.items()}
        shared = [point for point in self._validation("global").items() if point[0] >= self._first]
        return best | ({("global", "global"): self.headline.best(shared)} if shared else {})

    def _from_round(self, client: str, model: str) -> int:
        return self._since.get(client, self._first) if model == "predictor" else self._first

    def curve(
        self,
        model: str,
        split: str = "test",
        metric: str | None = None,
        *,
        without: Collection[str] | None = None,
    ) -> list[tuple[int, float]]:
        """By round, the unweighted mean over clients; of the headline metric, unless another is named.

        It is `without` these clients or, of predictors, without those that have not trained, unless none has.
        """
        self._check_names(model=model, metric=metric)
        metric = metric or self.headline.metric
        sums = dict(self._means.get((model, split, metric), {}))
        out = without if without is not None else self._untrained if model == "predictor" else ()
        gone: dict[int, list[float]] = {}
        for client in out:
            for row in self.select(client=client, model=model, split=split, metric=metric):
                if row.value is not None:
                    gone.setdefault(row.round, []).append(row.value)
        for round, values in gone.items():
            total, number = sums[round]
            if len(values) < number:
                sums[round] = total - sum(values), number - len(values)
        return [(round, total / number) for round, (total, number) in sorted(sums.items())]

    def _check_names(self, **given: str | None) -> None:
        """Refuse a name of which there is no row, unless it is one of the usual: a typing error has no curve."""
        usual = {"model": USUAL_MODELS, "metric": (*METRICS, *EVERY_ROUND)}
        for field, name in given.items():
            known = [*usual[field], *(row[Row._fields.index(field) - 2] for row in self._rests)]
            if name is not None and name not in known:
                raise InputError(
                    f"{field}: {name!r} is not in this history; {suggest(name, dict.fromkeys(known))}"
                )

    def served_curve(self, without: Collection[str] | None = None) -> list[tuple[int, float]]:
        """The predictors' curve; only its end if all predictors were made after the last round."""
        since = min(self._since.values(), default=0)
        return [point for point in self.curve("predictor", without=without) if since <= 1 or point[0] >= since]

    def global_curve(self) -> list[tuple[int, float]]:
        """By round, the global's headline metric on the common test set."""
        return sorted(self._common.items())

    def newest(self, model: str) -> tuple[int, float] | None:
        """The last point of `curve`, or of `global_curve` for the global; it is needed after every round.

        Predictors that have not trained yet are left out of it, unless none has.
        """
        if model == "global":
            return next(reversed(self._common.items()), None)
        metric = self.headline.metric
        round = next(reversed(self._means.get((model, "test", metric), {})), None)
        if round is None:
            return None
        total, number = self._means[model, "test", metric][round]
        if model == "predictor" and self._untrained:
            newest = (self._newest(client, model, "test", metric) for client in self._untrained)
            out = [point[1] for point in newest if point and point[0] == round and point[1] is not None]
            if len(out) < number:
                total, number = total - sum(out), number - len(out)
        return round, total / number


def _has(row: Row, wanted: Mapping[str, object]) -> bool:
    return all(getattr(row, name) == value for name, value in wanted.items())
