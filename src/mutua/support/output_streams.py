"""Standard output and error that survive the end of their readers."""

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


class _SurvivingFile(io.FileIO):
    """A file that accepts every write; what can no longer be written is dropped."""

    def __init__(self, number: int, lost: list[OSError]) -> None:
        super().__init__(number, "w", closefd=False)
        self._lost = lost

    def write(self, data: Any) -> int:
        try:
            while (written := super().write(data)) is None:  # somebody has made it non-blocking
                select.select([], [self], [])
            return written
        except OSError as error:
            if error.errno not in GONE:
                self._lost.append(error)
            # For all who have it open: other threads, later processes, libraries.
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            return memoryview(data).nbytes


@contextmanager
def surviving_output() -> Iterator[list[OSError]]:
    """Inside, no failing output can stop the work; the list gets the errors, but not those of missing readers.

    Output is for people. A run has everything in its folder and continues without them.
    """
    # Started without stdin or stdout: else the first file of a run would take their place.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    before, lost = (sys.stdout, sys.stderr), list[OSError]()
    made = [_surviving(stream, number, lost) for number, stream in enumerate(before, 1)]
    sys.stdout, sys.stderr = made
    try:
        yield lost
    finally:
        for stream in made:
            stream.flush()
        sys.stdout, sys.stderr = before


def _surviving(stream: Any, number: int, lost: list[OSError]) -> Any:
    """A stream that survives, in place of this one; where there is none, one for the file of this number."""
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(_SurvivingFile(number, lost)), "utf-8", "backslashreplace")
    try:
        raw = _SurvivingFile(stream.fileno(), lost)
    except (OSError, ValueError, AttributeError):  # not a real file: in a test or a notebook
        return stream
    stream.flush()
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffered, stream.encoding, stream.errors, line_buffering=stream.line_buffering or raw.isatty()
    )
