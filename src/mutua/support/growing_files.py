"""Files that grow: tables of rows, which can go back to where a checkpoint found them, and the events.

A line that a killed run or a full disk tore is detected, said and stepped over.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from pydantic import Field

from mutua.support import safe_reading
from mutua.support.configuration import Spec
from mutua.support.files import to_json

LINE = 2**20
"""No line is longer, in bytes."""
SCHEMA = 1
"""The version of the events' fields: it rises when one changes its meaning or goes, not when one is added."""


R = TypeVar("R")


class Mark(Spec):
    """The beginning of a file: how long it is, how many rows it has, and its checksum."""

    bytes: int = Field(ge=0)
    rows: int = Field(ge=0)
    sha256: str


class Table:
    """A CSV file that only grows, unless it goes back to a mark."""

    def __init__(self, path: Path, fields: Sequence[str]) -> None:
        self.path, self.fields = path, fields
        self._size, self._rows, self._sum = 0, -1, hashlib.sha256()

    def begin(self) -> None:
        """Begin anew: a line of names and no row."""
        self.path.touch()
        self._size, self._rows, self._sum = 0, -1, hashlib.sha256()
        self._append([self.fields])

    def extend(self, rows: Sequence[NamedTuple]) -> None:
        """Write those of all rows that are not yet there."""
        self._append(rows[self._rows :])

    def _append(self, rows: Sequence[Sequence[Any]]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        data = text.getvalue().encode()
        with self.path.open("r+b") as file:
            file.truncate(self._size)  # what an interrupted write may have left
            file.seek(self._size)
            file.write(data)
        checksum = self._sum.copy()
        checksum.update(data)
        # Together: a second Ctrl-C, which does not wait, may come between any two calls.
        self._size, self._rows, self._sum = self._size + len(data), self._rows + len(rows), checksum

    @property
    def mark(self) -> Mark:
        """Where the file ends now."""
        return Mark(bytes=self._size, rows=self._rows, sha256=self._sum.hexdigest())

    def read(self, mark: Mark, row: Callable[..., R]) -> Iterator[R]:
        """What `row` makes of the rows up to the mark; ValueError at the end if the file is not what it was."""
        if self.path.stat().st_size < mark.bytes:
            raise ValueError(f"{self.path.name} is shorter than it was")
        checksum = hashlib.sha256()

        def lines(file: BinaryIO) -> Iterator[str]:
            left = mark.bytes
            while line := file.readline(min(left, LINE)):
                left -= len(line)
                checksum.update(line)
                yield line.decode()

        rows = 0
        with self.path.open("rb") as file, suppress(ValueError, TypeError, csv.Error):
            cells = csv.reader(lines(file))
            next(cells, None)
            for found in cells:
                yield row(*found)
                rows += 1
        if checksum.hexdigest() != mark.sha256 or rows != mark.rows:
            raise ValueError(f"{self.path.name} is not what it was")

    def first(self, number: int, row: Callable[..., R]) -> Iterator[R]:
        """What `row` makes of the first rows, which this very process has written."""
        with self.path.open(encoding="utf-8", newline="") as file:
            cells = csv.reader(file)
            next(cells)
            for found in islice(cells, number):
                yield row(*found)

    def whole(self, row: Callable[..., R]) -> Iterator[R]:
        """What `row` makes of every whole line, none where there is no file; ValueError where one is damaged."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            lines = iter(lambda: file.readline(LINE), b"")
            try:
                cells = csv.reader(line.decode() for line in lines if line.endswith(b"\n"))
                if next(cells, None) not in (None, list(self.fields)):
                    raise ValueError("its first line does not name the columns")
                for found in cells:
                    yield row(*found)
            except (TypeError, ValueError, csv.Error) as error:
                raise ValueError(f"{self.path.name}: a line is damaged ({error})") from None

    def back(self, mark: Mark | None) -> None:
        """Go back to the mark, None being before everything; what comes after it stays until `cut`."""
        self._size, self._rows, self._sum = 0, -1, hashlib.sha256()
        if mark is not None:
            with self.path.open("rb") as file:
                self._sum.update(file.read(mark.bytes))
            self._size, self._rows = mark.bytes, mark.rows

    def cut(self) -> None:
        """Cut off what comes after here: it is made again."""
        if self._rows < 0:
            self.begin()
        else:
            os.truncate(self.path, self._size)


class Events:
    """events.jsonl: one line an event, never changed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, event: str, **facts: Any) -> None:
        """Write down what happened, and when."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(to_json({"event": event, "time": now, **facts}, indent=None) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All whole lines, or the last of very many."""
        return _parsed(self._tail().split(b"\n"))

    def mend(self) -> bool:
        """Cut off a torn last line; whether there was one."""
        *lines, rest = self._tail().split(b"\n")
        if lines and not rest and not _parsed(lines[-1:]):  # whole in length, but its bytes never came to the disk
            rest = lines[-1] + b"\n"
        if rest:
            os.truncate(self.path, self.path.stat().st_size - len(rest))
        return bool(rest)

    def _tail(self) -> bytes:
        if not self.path.exists():
            return b""
        with self.path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - safe_reading.TEXT))
            return file.read()


def torn(path: Path) -> bool:
    """Whether the last line has no end."""
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
