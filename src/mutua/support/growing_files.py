"""Files that grow: tables of rows, which can go back to where a checkpoint found them, and the log of events.

A line that a killed run or a full disk left incomplete is detected, reported and ignored.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from pydantic import Field

from mutua.support import safe_reading
from mutua.support.configuration import Spec
from mutua.support.files import to_json
from mutua.support.text import csv_text

MAX_LINE_BYTES = 2**20
SCHEMA = 1
"""The version of the events' fields: it rises when one changes its meaning or goes, not when one is added."""


R = TypeVar("R", bound=tuple[Any, ...])


class TableEnd(Spec):
    """Where a table ended: after how many bytes and rows, and the checksum of all up to there."""

    bytes: int = Field(ge=0)
    rows: int = Field(ge=0)
    sha256: str


class GrowingTable(Generic[R]):
    """A CSV file that grows and can go back to an earlier end; `row` makes a row of the cells of a line."""

    def __init__(self, path: Path, fields: Sequence[str], row: Callable[..., R]) -> None:
        self.path, self.fields, self._make = path, fields, row
        self._size, self._rows, self._sum = 0, -1, hashlib.sha256()

    def begin(self) -> None:
        """Begin again: a line of column names and no row."""
        self.path.touch()
        self._size, self._rows, self._sum = 0, -1, hashlib.sha256()
        self._append([self.fields])

    def extend(self, rows: Sequence[R]) -> None:
        """Given all rows, write those that are not in the file yet."""
        self._append(rows[self._rows :])

    def _append(self, rows: Sequence[Sequence[Any]]) -> None:
        data = csv_text(rows).encode()
        with self.path.open("r+b") as file:
            file.truncate(self._size)  # what an interrupted write may have left
            file.seek(self._size)
            file.write(data)
        checksum = self._sum.copy()
        checksum.update(data)
        # In one assignment: a second Ctrl-C, which does not wait, may come between any two calls.
        self._size, self._rows, self._sum = self._size + len(data), self._rows + len(rows), checksum

    @property
    def end(self) -> TableEnd:
        """Where the file ends now."""
        return TableEnd(bytes=self._size, rows=self._rows, sha256=self._sum.hexdigest())

    def rows_until(self, end: TableEnd) -> Iterator[R]:
        """The rows up to this end; ValueError after the last if the file has changed."""
        if self.path.stat().st_size < end.bytes:
            raise ValueError(f"{self.path.name} is shorter than it was")
        checksum = hashlib.sha256()

        def lines(file: BinaryIO) -> Iterator[str]:
            left = end.bytes
            while line := file.readline(min(left, MAX_LINE_BYTES)):
                left -= len(line)
                checksum.update(line)
                yield line.decode()

        rows = 0
        with self.path.open("rb") as file, suppress(ValueError, TypeError, csv.Error):
            cells = csv.reader(lines(file))
            next(cells, None)
            for found in cells:
                yield self._make(*found)
                rows += 1
        if checksum.hexdigest() != end.sha256 or rows != end.rows:
            raise ValueError(f"{self.path.name} is not what it was")

    def first(self, number: int) -> Iterator[R]:
        """The first rows, which this very process has written."""
        with self.path.open(encoding="utf-8", newline="") as file:
            cells = csv.reader(file)
            next(cells)
            for found in islice(cells, number):
                yield self._make(*found)

    def rows(self) -> Iterator[R]:
        """All rows, without an incomplete last line; none if there is no file; ValueError if a line is damaged."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            lines = iter(lambda: file.readline(MAX_LINE_BYTES), b"")
            try:
                cells = csv.reader(line.decode() for line in lines if line.endswith(b"\n"))
                if next(cells, None) not in (None, list(self.fields)):
                    raise ValueError("its first line does not name the columns")
                for found in cells:
                    yield self._make(*found)
            except (TypeError, ValueError, csv.Error) as error:
                raise ValueError(f"{self.path.name}: a line is damaged ({error})") from None

    def go_back(self, end: TableEnd | None) -> None:
        """Go back to this end, None being the very beginning; the rows after it stay in the file until `cut`."""
        self._size, self._rows, self._sum = 0, -1, hashlib.sha256()
        if end is not None:
            with self.path.open("rb") as file:
                self._sum.update(file.read(end.bytes))
            self._size, self._rows = end.bytes, end.rows

    def cut(self) -> None:
        """Remove the rows after the end that the table went back to: they are made again."""
        if self._rows < 0:
            self.begin()
        else:
            os.truncate(self.path, self._size)


class EventLog:
    """events.jsonl: one line per event, never changed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, event: str, **facts: Any) -> None:
        """Add what happened, and when."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(to_json({"event": event, "time": now, **facts}, indent=None) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All complete lines, or the last of very many."""
        return _parsed(self._tail().split(b"\n"))

    def mend(self) -> bool:
        """Remove an incomplete last line; whether there was one."""
        *lines, rest = self._tail().split(b"\n")
        if (
            lines and not rest and not _parsed(lines[-1:])
        ):  # it has its length, but its bytes never came to the disk
            rest = lines[-1] + b"\n"
        if rest:
            os.truncate(self.path, self.path.stat().st_size - len(rest))
        return bool(rest)

    def _tail(self) -> bytes:
        if not self.path.exists():
            return b""
        with self.path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - safe_reading.MAX_TEXT_BYTES))
            return file.read()


def ends_incomplete(path: Path) -> bool:
    """Whether the last line has no line break."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        return file.read() not in (b"", b"\n")


def _parsed(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    found = []
    for line in lines:
        try:
            event = safe_reading.from_json(line)
        except safe_reading.Unreadable:
            continue
        if isinstance(event, dict):
            found.append(event)
    return found
