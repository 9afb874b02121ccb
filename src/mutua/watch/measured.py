"""What history.csv holds, as far as the page shows it: numbers on test data and the terms of the objective.

A number of every client in a round is a row of 4-byte floats, so a thousand clients and five hundred rounds take
two megabytes a curve. Of a run with more numbers than `MOST_NUMBERS` only every second round is kept, or every
fourth.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mutua.watch.happened import MAX_CLIENTS

MOST_NUMBERS = 12_000_000
MOST_SERIES = 64
MOST_KEYS = 500_000
POINTS = 600
"""How many points a curve on the page has."""
_MISSING = float("nan")
TERMS = "train", "objective"


class SeriesKey(NamedTuple):
    """What a series is of."""

    model: str
    split: str
    metric: str


class Band(NamedTuple):
    """What the clients of a round have: the mean, and how far they spread."""

    mean: float
    low: float
    tenth: float
    ninetieth: float
    high: float


class Series:
    """One number of every client, by round."""

    def __init__(self) -> None:
        self.rows: dict[int, array[float]] = {}
        self.newest = array("f")
        self._newest_rounds = array("q")
        self._bands: dict[int, Band | None] = {}

    def add(self, round: int, client: int, value: float, kept: bool) -> int:
        """Add a number; how much room it takes."""
        if client >= len(self.newest):
            more = client + 1 - len(self.newest)
            self.newest.extend([_MISSING] * more)
            self._newest_rounds.extend([-1] * more)
        if round >= self._newest_rounds[client]:
            self.newest[client], self._newest_rounds[client] = value, round
        if not kept:
            return 0
        row = self.rows.get(round)
        grown = 0
        if row is None:
            row = self.rows[round] = array("f", [_MISSING]) * len(self.newest)
            grown = len(row)
        elif client >= len(row):
            grown = client + 1 - len(row)
            row.extend([_MISSING] * grown)
        row[client] = value
        self._bands.pop(round, None)
        return grown

    def band(self, round: int) -> Band | None:
        """The mean and the spread over clients in a round."""
        if round not in self._bands:
            row = np.frombuffer(self.rows[round], dtype=np.float32)
            known = row[~np.isnan(row)].astype(np.float64)
            ends = np.quantile(known, (0, 0.1, 0.9, 1)).tolist() if len(known) else []
            self._bands[round] = Band(float(known.mean()), *ends) if ends else None
        return self._bands[round]

    def of(self, client: int, rounds: Sequence[int]) -> list[float | None]:
        """One client's numbers in these rounds."""
        found = (self.rows[round] for round in rounds)
        return [None if client >= len(row) else five_digits(row[client]) for row in found]

    def last(self, client: int) -> float | None:
        """A client's newest number."""
        return five_digits(self.newest[client]) if client < len(self.newest) else None


class MeasuredRun:
    """The numbers of a run, taken in block by block in any order."""

    def __init__(self, clients: Sequence[str] = (), most: int = MOST_NUMBERS) -> None:
        self._most = most
        self.series: dict[SeriesKey, Series] = {}
        self.common: dict[str, dict[int, float]] = {}
        """By metric, the global's curve on the common test set."""
        self.stride = 1
        """Only every so-manieth round is kept."""
        self.damaged = self.unknown = 0
        self._numbers: dict[str, int] = {}
        self.ids: list[str] = []
        self._room = 0
        self._known: dict[bytes, tuple[Series | dict[int, float], int] | None] = {}
        for client in clients[:MAX_CLIENTS]:
            self.number(client)

    def number(self, client: str) -> int | None:
        """A client's place in every row; None if there are too many clients."""
        found = self._numbers.get(client)
        if found is None and len(self.ids) < MAX_CLIENTS:
            found = self._numbers[client] = len(self.ids)
            self.ids.append(client)
        return found

    def take(self, block: bytes, _: int, __: bool) -> None:
        """Take in whole lines."""
        known, last, round, kept = self._known, b"", -1, True
        for text in block.split(b"\n"):
            told, _sep, rest = text.partition(b",")
            key, _sep, value = rest.rpartition(b",")
            try:
                at = known[key]
            except KeyError:
                at = self._meet(key)
            if at is None:
                continue
            if told != last:
                if not told.isdigit() or len(told) > 9:
                    self.damaged += 1
                    continue
                last, round = told, int(told)
                kept = round % self.stride == 0
            try:
                found = float(value) if value else _MISSING
            except ValueError:
                self.damaged += 1
                continue
            if not -1e12 < found < 1e12:  # so NaN too
                found = _MISSING
            of, client = at
            if isinstance(of, dict):
                if kept and len(of) < MOST_NUMBERS // MOST_SERIES and found == found:
                    of[round] = found
                continue
            self._room += of.add(round, client, found, kept)
            if self._room > self._most:
                self._thin()
                kept = round % self.stride == 0

    def _meet(self, key: bytes) -> tuple[Series | dict[int, float], int] | None:
        """Where the numbers of a new key go: client, model, split, metric."""
        found = self._place(key)
        if len(self._known) < MOST_KEYS:
            self._known[key] = found
        return found

    def _place(self, key: bytes) -> tuple[Series | dict[int, float], int] | None:
        try:
            client, model, split, metric = next(csv.reader([key.decode()]))
        except (ValueError, StopIteration, csv.Error):
            self.damaged += key not in (b"", b"client,model,split,metric")
            return None
        if (split, metric) != TERMS and split != "test":
            return None
        if client == "global":
            if model != "global" or (len(self.common) >= MOST_SERIES and metric not in self.common):
                return None
            return self.common.setdefault(metric, {}), 0
        of = SeriesKey(model, split, metric)
        if of not in self.series and len(self.series) >= MOST_SERIES:
            return None
        number = self.number(client)
        if number is None:
            self.unknown += 1
            return None
        return self.series.setdefault(of, Series()), number

    def _thin(self) -> None:
        """Forget every second round."""
        self.stride *= 2
        self._room = 0
        for one in self.series.values():
            one.rows = {round: row for round, row in one.rows.items() if round % self.stride == 0}
            self._room += sum(map(len, one.rows.values()))
        for curve in self.common.values():
            for round in [round for round in curve if round % self.stride]:
                del curve[round]
        if self._room > self._most // 2 and self.stride < 2**31:
            self._thin()

    @property
    def metrics(self) -> list[str]:
        """What was measured in more than one round, first what was measured most often."""
        found: dict[str, int] = {}
        for key, one in self.series.items():
            if key.split == "test":
                found[key.metric] = max(found.get(key.metric, 0), len(one.rows))
        for metric, curve in self.common.items():
            found[metric] = max(found.get(metric, 0), len(curve))
        often = [metric for metric, rounds in found.items() if rounds > 1]
        return often or list(found)

    def models(self, metric: str) -> list[str]:
        """The clients' models that were measured by this."""
        return [key.model for key in self.series if key.split == "test" and key.metric == metric]

    @property
    def terms(self) -> list[str]:
        """The terms of the objective."""
        return [key.model for key in self.series if (key.split, key.metric) == TERMS]


def five_digits(value: float) -> float | None:
    """A number as the page gets it: five digits, and nothing where it is missing."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def few_rounds(rounds: Sequence[int], most: int = POINTS) -> list[int]:
    """At most about so many rounds, evenly, with the first and the last."""
    step = -(-len(rounds) // most)
    return [*rounds[:-1:step], rounds[-1]] if step > 1 else list(rounds)
