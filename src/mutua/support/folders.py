"""Folders: new ones, those that one run at a time may use, and what must not be in them."""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from weakref import WeakSet

from safetensors import SafetensorError

from mutua.errors import InputError, RunError
from mutua.support.configuration import PathLike, local_path
from mutua.support.files import cannot_write


def new_folder(path: PathLike, but: Callable[[Path], bool] = lambda _: False, field: str = "--out") -> Path:
    """Make a folder, or take one that is empty `but` for such files; refuse any other, so that nothing is lost."""
    path = local_path(path, field)
    try:
        if path.is_dir() and not all(map(but, path.iterdir())):
            raise InputError(f"{field}: {path} is there already and not empty; name another or remove it")
        if path.exists() and not path.is_dir():
            raise InputError(f"{field}: {path} is a file; name a folder")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise no_place(path, error, field) from None
    return path


def dated_folder(name: str, end: str = "", under: PathLike = "runs") -> Path:
    """Make a folder runs/NAME-DATE; if two begin in the same second, the second gets a number."""
    path = local_path(under, "--out") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}{end}"
    numbered = (path.with_name(f"{path.name}-{n}") for n in count(2))
    place = path
    while True:
        try:
            place.mkdir(parents=True)
            return place
        except OSError as error:
            if not place.exists():
                raise no_place(place, error) from None
            place = next(numbered)  # another process may have made it just now


@contextmanager
def fill_folder(path: PathLike) -> Iterator[Path]:
    """Make a new folder and fill it; if it stays empty, it is removed with the folders above that it needed."""
    above = [folder for folder in local_path(path, "--out").parents if not folder.exists()]
    made = new_folder(path)
    try:
        yield made
    except (OSError, SafetensorError) as error:
        raise RunError(cannot_write(made, error)) from None
    finally:
        with suppress(OSError):
            for folder in (made, *above):
                folder.rmdir()  # this only removes an empty one


def no_place(path: Path, error: OSError, field: str = "--out") -> InputError:
    """Says that this folder cannot be used, and why."""
    return InputError(f"{field}: {cannot_write(path, error)}; name another place")


def refuse_links(folder: Path) -> None:
    """Refuse a run's folder that holds anything but files and folders of its own: a link may lead anywhere.

    A file with two names is a link too: whatever is written here would change the other as well.
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


def folder_bytes(folder: Path) -> int:
    """How many bytes all files in it take."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a run that is at work has renamed or removed it
                total += Path(at, name).lstat().st_size
    return total


class FolderLock:
    """One run at a time uses a folder. The kernel keeps the lock: it ends with the process, however that ends."""

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
                    time.sleep(0.01)  # perhaps somebody is only checking whether it is in use
            with suppress(OSError):  # on a full disk the holder stays unknown
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
            raise InputError(f"{field}: {cannot_write(folder, error)}") from None
        _locks.add(self)

    def release(self) -> None:
        """Release the lock."""
        self._file.close()


_locks: WeakSet[FolderLock] = WeakSet()
# A worker process must not go on holding the lock of a run that is dead.
os.register_at_fork(after_in_child=lambda: deque(map(FolderLock.release, _locks), maxlen=0))


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
