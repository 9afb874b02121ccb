"""Standard output and error that outlive whoever reads them."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

GONE = (errno.EPIPE, errno.EIO)
"""Nobody reads any more: `| head` has seen enough, or the terminal was closed."""


class _Enduring(io.FileIO):
    """A file that takes whatever is written to it; what cannot go out any more is dropped."""

    def __init__(self, number: int, lost: list[OSError]) -> None:
        super().__init__(number, "w", closefd=False)
        self._lost = lost

    def write(self, data: Any) -> int:
        try:
            while (written := super().write(data)) is None:  # somebody has set it not to wait
                select.select([], [self], [])
            return written
        except OSError as error:
            if error.errno not in GONE:
                self._lost.append(error)
            # From now on for everybody who has it: other threads, processes to come, libraries.
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            return memoryview(data).nbytes


@contextmanager
def enduring() -> Iterator[list[OSError]]:
    """In here nothing that is printed can stop the work; the list says what could not be, but for want of readers.

    Output is for people. A run has everything in its folder and goes on without them.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # started without: a run's file would take its place
        pass
    os.close(number)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    before, lost = (sys.stdout, sys.stderr), list[OSError]()
    made = [_enduring(stream, number, lost) for number, stream in enumerate(before, 1)]
    sys.stdout, sys.stderr = made
    try:
        yield lost
    finally:
        for stream in made:
            stream.flush()
        sys.stdout, sys.stderr = before


def _enduring(stream: Any, number: int, lost: list[OSError]) -> Any:
    """The stream of this number, or what was put in its place; none where there was no such file."""
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(_Enduring(number, lost)), "utf-8", "backslashreplace")
    try:
        raw = _Enduring(stream.fileno(), lost)
    except (OSError, ValueError, AttributeError):  # not a file of the system's: a test's, a notebook's
        return stream
    stream.flush()
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffered, stream.encoding, stream.errors, line_buffering=stream.line_buffering or raw.isatty()
    )
