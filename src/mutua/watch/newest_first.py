"""Reading a growing file of lines a piece at a time: what is newest first, then what came before, and what comes.

So a page shows where a run stands at once, however long its files are. The memory that this takes is that of one
piece. A file that was cut, as a resumed run cuts its tables, is read again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import BinaryIO

PIECE = 2**19
"""Bytes that are read at once; a longer line is skipped."""
MOST = 2**31
"""Of a longer file only the end is read."""
_REMEMBERED = 64
"""The bytes before the end that are read again, to know whether the file is still the same."""


class NewestFirst:
    """Gives the lines of a file to `take`: a block of whole lines, its offset, and whether they are older ones."""

    def __init__(
        self,
        opened: Callable[[], BinaryIO],
        take: Callable[[bytes, int, bool], None],
        forget: Callable[[], None],
        piece: int = PIECE,
    ) -> None:
        self._open, self._take, self._forget, self._piece = opened, take, forget, piece
        self._low = self._high = 0
        """The lines between are read."""
        self._size = -1
        self._file = (0, 0)
        self._end = b""
        self._within_long_line = False
        self._ahead = False
        """Whether there may be new lines that are not read yet."""
        self.cut_off = False
        """Whether the file is too long to be read from its beginning."""

    @property
    def left(self) -> int:
        """How many bytes of older lines are not read yet."""
        return self._low

    @property
    def size(self) -> int:
        """How long the file is."""
        return max(self._size, 0)

    def step(self) -> bool:
        """Read one piece, if there is any; whether there was."""
        try:
            file = self._open()
        except (OSError, ValueError):
            return self._again() if self._size > 0 else False
        with file:
            number = file.fileno()
            found = os.fstat(number)
            if self._size >= 0 and (
                (found.st_dev, found.st_ino) != self._file
                or found.st_size < self._high
                or (found.st_size != self._size and self._changed(number))
            ):
                return self._again()
            self._file = found.st_dev, found.st_ino
            if self._size < 0:
                self._size = found.st_size
                return self._begin(number)
            if found.st_size != self._size:
                self._size, self._ahead = found.st_size, True
            if self._ahead:
                return self._onward(number)
            return self._back(number) if self._low else False

    def _again(self) -> bool:
        self._low = self._high = 0
        self._size, self._end = -1, b""
        self._within_long_line = self._ahead = self.cut_off = False
        self._forget()
        return True

    def _changed(self, number: int) -> bool:
        """Whether what was read is no longer there: only its end is compared."""
        return os.pread(number, len(self._end), self._high - len(self._end)) != self._end

    def _begin(self, number: int) -> bool:
        start = max(0, self._size - self._piece)
        data = os.pread(number, self._piece, start)
        last = data.rfind(b"\n") + 1
        self._high = self._low = start + last
        if last:
            self._low = start + min(last, self._first(number, data, start))
            if self._low < self._high:
                self._take(data[self._low - start : last], self._low, False)
        elif start:
            self._within_long_line, self._high, self._low = True, start + len(data), start
        self._remember(number)
        self._stop_at_most()
        return True

    def _onward(self, number: int) -> bool:
        data = os.pread(number, self._piece, self._high)
        self._ahead = len(data) == self._piece
        start = 0
        if self._within_long_line:
            start = data.find(b"\n") + 1
            self._within_long_line = not start
        last = data.rfind(b"\n") + 1
        if self._within_long_line or (not last and len(data) == self._piece):
            self._within_long_line, last = True, len(data)
        elif last > start:
            self._take(data[start:last], self._high + start, False)
        self._high += last
        self._remember(number)
        return last > 0

    def _back(self, number: int) -> bool:
        start = max(0, self._low - self._piece)
        data = os.pread(number, self._low - start, start)
        # What follows the last line break is the head of a line that is too long.
        first, last = self._first(number, data, start), data.rfind(b"\n") + 1
        if first < last:
            self._take(data[first:last], start + first, True)
        self._low = start + first if first < len(data) else start
        self._stop_at_most()
        return True

    def _first(self, number: int, data: bytes, start: int) -> int:
        """Where the first whole line begins."""
        if start == 0 or os.pread(number, 1, start - 1) == b"\n":
            return 0
        return data.find(b"\n") + 1 or len(data)

    def _remember(self, number: int) -> None:
        length = min(_REMEMBERED, self._high)
        self._end = os.pread(number, length, self._high - length)

    def _stop_at_most(self) -> None:
        if self._low and self._high - self._low >= MOST:
            self._low, self.cut_off = 0, True
