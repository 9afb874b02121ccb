"""Stopping a run: only if the kernel says that a process of this machine holds the lock of the run's folder.

The number in a lock file proves nothing: whoever wrote the folder chose it. So the process is taken hold of first
(its number may be given to another at any time), then asked for the lock, and only then sent a signal.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from mutua.errors import InputError
from mutua.watch.inside import open_inside

_FLOCK = re.compile(r"^lock:\s+\d+:\s+FLOCK\s+ADVISORY\s+WRITE\s", re.MULTILINE)


def can_stop(root: Path, parts: Sequence[str]) -> bool:
    """Whether a process of this machine is at work in the run's folder and may be sent a signal by us."""
    with suppress(InputError), _holder(root, parts) as process, suppress(OSError):
        signal.pidfd_send_signal(process, 0)
        return True
    return False


def stop(root: Path, parts: Sequence[str]) -> None:
    """Ask the run to save itself and to stop."""
    with _holder(root, parts) as process:
        try:
            signal.pidfd_send_signal(process, signal.SIGTERM)
        except OSError as error:
            raise InputError(f"RUN: its process cannot be stopped: {error.strerror}") from None


@contextmanager
def _holder(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """The process that holds the lock of a run's folder, by a number that cannot become another's."""
    if not hasattr(os, "pidfd_open"):
        raise InputError("RUN: runs can be stopped from the page on Linux only; press Ctrl-C where it runs")
    nobody = InputError("RUN: no process of this machine is at work in its folder")
    try:
        with open_inside(root, (*parts, "lock")) as lock:
            number, told = int(os.pread(lock.fileno(), 20, 0)), os.fstat(lock.fileno())
            if number <= 1 or number == os.getpid():
                raise nobody
            process = os.pidfd_open(number)
    except (OSError, ValueError, OverflowError):
        raise nobody from None
    try:
        if not _holds(number, (told.st_dev, told.st_ino)):
            raise nobody
        yield process
    finally:
        os.close(process)


def _holds(number: int, file: tuple[int, int]) -> bool:
    """Whether a process has this very file open and locked, as the kernel says."""
    place = Path("/proc", str(number))
    with suppress(OSError):
        for opened in (place / "fd").iterdir():
            with suppress(OSError):
                found = opened.stat()
                ours = (found.st_dev, found.st_ino) == file
                if ours and _FLOCK.search((place / "fdinfo" / opened.name).read_text()):
                    return True
    return False
