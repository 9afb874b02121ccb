"""Rows that are only added to: what history, ledger and participation are made of.

In memory they are columns, 12 to 20 bytes per row: a round, a number for the client, one for the rest that repeats
(model, metric and so on) and, where rows have one, a value. So clients and what is known of each are there once,
and not once per client. When a file holds the rows, the oldest need not stay in memory at all.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from sys import intern
from typing import Any, ClassVar, TypeVar, overload

from mutua.support.data_frames import pandas_frame, polars_frame

R = TypeVar("R", bound=tuple[Any, ...])

ROWS_IN_MEMORY = 2**16
"""This many rows stay in memory although a file holds them: a small run is never read back."""


class Log(Sequence[R]):
    """Rows in the order in which they were added: round, client, what repeats; if `valued`, a number or None."""

    kind: ClassVar[Callable[..., Any]]
    valued: ClassVar[bool] = False

    def __init__(self) -> None:
        self._client_numbers: dict[str, int] = {}
        self._clients: list[str] = []
        self._rest_numbers: dict[tuple[Any, ...], int] = {}
        self._rests: list[tuple[Any, ...]] = []
        self._rounds, self._whose, self._which, self._values = array("i"), array("i"), array("i"), array("d")
        self._away = 0
        self._read: Callable[[], Iterable[R]] = tuple

    def extend(self, rows: Iterable[R]) -> None:
        """Add rows."""
        for row in rows:
            self._append(row)

    def _append(self, row: R) -> None:
        rest = row[2:-1] if self.valued else row[2:]
        whose = self._client_numbers.get(row[1])
        if whose is None:
            # A name may come from a file or another process; the three logs of a run have one copy of it.
            client = intern(row[1])
            whose = self._client_numbers[client] = len(self._clients)
            self._clients.append(client)
        number = self._rest_numbers.get(rest)
        if number is None:
            number = self._rest_numbers[rest] = len(self._rests)
            self._rests.append(rest)
        if self.valued:
            # A value may be NaN, so None is told by the sign of its neighbour.
            self._values.append(0.0 if row[-1] is None else row[-1])
            self._which.append(~number if row[-1] is None else number)
        else:
            self._which.append(number)
        self._rounds.append(row[0])
        self._whose.append(whose)

    def __len__(self) -> int:
        return self._away + len(self._rounds)

    def __iter__(self) -> Iterator[R]:
        return self._from(0)

    def _from(self, start: int) -> Iterator[R]:
        """The rows from this one on."""
        if start < self._away:
            yield from islice(self._read(), start, self._away)
        for i in range(max(0, start - self._away), len(self._rounds)):
            yield self._row(i)

    def _row(self, i: int) -> R:
        number = self._which[i]
        client, rest = self._clients[self._whose[i]], self._rests[number if number >= 0 else ~number]
        if not self.valued:
            return self.kind(self._rounds[i], client, *rest)  # type: ignore[no-any-return]
        value = self._values[i] if number >= 0 else None
        return self.kind(self._rounds[i], client, *rest, value)  # type: ignore[no-any-return]

    @overload
    def __getitem__(self, at: int) -> R: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[R]: ...
    def __getitem__(self, at: int | slice) -> R | Sequence[R]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                return list(self)[at]
            return list(islice(self._from(start), max(0, stop - start)))
        place = range(len(self))[at]
        return self._row(place - self._away) if place >= self._away else next(self._from(place))

    def to_pandas(self) -> Any:
        """A pandas DataFrame, with a row for each row."""
        return pandas_frame(self, self._fields)

    def to_polars(self) -> Any:
        """A polars DataFrame, with a row for each row; a missing value is null."""
        return polars_frame(self, self._fields)

    @property
    def _fields(self) -> list[str]:
        return list(self.kind._fields)  # type: ignore[attr-defined]

    def read_from_file(self, upto: int, read: Callable[[], Iterable[R]]) -> None:
        """`read` gives the rows before `upto` again: if they are many, drop them from memory and use it."""
        if upto - self._away > ROWS_IN_MEMORY:
            gone = upto - self._away
            for column in (self._rounds, self._whose, self._which, self._values):
                del column[:gone]
            self._away, self._read = upto, read


class LogPrefix(Sequence[R]):
    """The first rows of a log; the log may grow."""

    def __init__(self, log: Log[R]) -> None:
        self.log, self._length = log, len(log)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[R]:
        return islice(self.log, self._length)

    @overload
    def __getitem__(self, at: int) -> R: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[R]: ...
    def __getitem__(self, at: int | slice) -> R | Sequence[R]:
        if isinstance(at, slice):
            start, stop, step = at.indices(self._length)
            return self.log[start:stop:step] if start < stop else []
        return self.log[range(self._length)[at]]

    def read_from_file(self, read: Callable[[], Iterable[R]]) -> None:
        """`read` gives these rows again; they need not stay in memory."""
        self.log.read_from_file(self._length, read)
