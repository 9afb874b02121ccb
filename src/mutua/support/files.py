"""Files that are whole or not there: written aside, synced, renamed; and folders that one run has at a time."""

from __future__ import annotations

import json
import math
import os
import stat
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from mutua.errors import InputError

ASIDE = ".aside"
"""How the name of a file ends that is not whole yet; what a killed run leaves of them is swept up."""


class Together:
    """Files that appear together when all of them are safe on the disk."""

    def __init__(self) -> None:
        self.paths: dict[Path, None] = {}
        self.folders: dict[Path, None] = {}

    def write(self, path: Path, *data: bytes | memoryview | str) -> None:
        """Write a file aside; the folders above it are made."""
        if path.parent not in self.folders:
            new = [folder for folder in path.parents if not folder.exists()]
            self.folders |= dict.fromkeys([path.parent, *(folder.parent for folder in new)])
            path.parent.mkdir(parents=True, exist_ok=True)
        self.paths[path] = None
        with _aside(path).open("wb") as file:
            for piece in data:
                file.write(piece.encode() if isinstance(piece, str) else piece)

    def settle(self) -> None:
        """Sync all, rename all, sync their folders. Asked of many files at once, a disk is much quicker."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(sync, map(_aside, self.paths)))
            for path in self.paths:
                _aside(path).replace(path)
            list(pool.map(sync, self.folders))

    def drop(self) -> None:
        """Give back the room of what has not been renamed."""
        for path in self.paths:
            with suppress(OSError):
                _aside(path).unlink(missing_ok=True)


@contextmanager
def together() -> Iterator[Together]:
    """Files written in here replace older ones at the end, or none does."""
    made = Together()
    try:
        yield made
        made.settle()
    finally:
        made.drop()


def write(path: Path, data: bytes | str) -> None:
    """Write one file whole."""
    with together() as files:
        files.write(path, data)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _aside(path: Path) -> Path:
    return path.with_name(path.name + ASIDE)


def to_json(value: Any, indent: int | None = 2) -> str:
    """JSON as any reader takes it: a number that is not finite is null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def reason(error: Exception) -> str:
    """What went wrong, in a line."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(said.split()) or type(error).__name__


def plain(folder: Path) -> None:
    """Refuse a run's folder that has more in it than files and folders of its own: a link may lead anywhere.

    A file of two names is a link too: what is written or cut here would be so wherever the other name is.
    """
    for at, folders, names in os.walk(folder):
        for path in (Path(at, name) for name in [*folders, *names]):
            try:
                found = path.lstat()
            except FileNotFoundError:  # a run that is at work has renamed or removed it
                continue
            if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                raise InputError(f"RUN: {path} is a hard link; copy the folder (cp -r), and use the copy")
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                raise InputError(f"RUN: {path} is a link or a device; a run's folder holds files and folders only")


def size(folder: Path) -> int:
    """What the files in it take, together."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a run that is at work has renamed or removed it
                total += Path(at, name).lstat().st_size
    return total


class Lock:
    """A folder for one run at a time. The kernel keeps the lock: it ends with the process, however that ends."""

    def __init__(self, folder: Path, field: str) -> None:
        import fcntl

        try:
            self._file = (folder / "lock").open("a+", encoding="ascii")
            for left in reversed(range(20)):
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not left:
                        raise
                    time.sleep(0.01)  # perhaps somebody is only looking whether it is in use
            with suppress(OSError):  # on a full disk nobody learns who it is
                self._file.truncate(0)
                self._file.write(str(os.getpid()))
                self._file.flush()
        except BlockingIOError:
            self._file.seek(0)
            who = self._file.read(20) or "unknown"
            raise InputError(
                f"{field}: {folder} is in use by another run (process {who}); wait for it or stop it"
            ) from None
        except OSError as error:
            raise InputError(f"{field}: cannot write to {folder}: {error.strerror}") from None
        _locks.add(self)

    def free(self) -> None:
        """Let others have the folder."""
        self._file.close()


_locks: WeakSet[Lock] = WeakSet()
# A worker process must not go on holding the lock of a run that is dead.
os.register_at_fork(after_in_child=lambda: deque(map(Lock.free, _locks), maxlen=0))


def in_use(folder: Path) -> bool:
    """Whether a run is at work in the folder."""
    import fcntl

    try:
        with (folder / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
