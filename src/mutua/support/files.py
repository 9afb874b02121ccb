"""Atomic files: written aside, synced, then renamed, so that a file is complete or not there."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ASIDE = ".aside"
"""How the name of an unfinished file ends; those that a killed run leaves are removed later."""
_CHARACTERS = "A-Za-z0-9._+-"
FILE_NAME = rf"[A-Za-z0-9][{_CHARACTERS}]*"
"""A pattern for ids and names that also name a file or a folder: they are safe on any system."""


class AtomicFiles:
    """Files that appear together, once all of them are safe on the disk."""

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

    def commit(self) -> None:
        """Sync all, rename all, sync their folders. Many files at once are much quicker on a disk."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(sync, map(_aside, self.paths)))
            for path in self.paths:
                _aside(path).replace(path)
            list(pool.map(sync, self.folders))

    def discard(self) -> None:
        """Remove what has not been renamed."""
        for path in self.paths:
            with suppress(OSError):
                _aside(path).unlink(missing_ok=True)


@contextmanager
def atomic_files() -> Iterator[AtomicFiles]:
    """Files written in here replace older ones at the end: all of them, or none."""
    made = AtomicFiles()
    try:
        yield made
        made.commit()
    finally:
        made.discard()


def write_file(path: Path, data: bytes | str) -> None:
    """Write one file atomically."""
    with atomic_files() as files:
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
    """JSON that every reader accepts: a number that is not finite becomes null."""
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
    """What went wrong, in one line."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(said.split()) or type(error).__name__


def cannot_write(path: str | os.PathLike[str], error: Exception) -> str:
    """Says that nothing can be written there, and why."""
    return f"cannot write to {path}: {reason(error)}"


def as_file_name(text: str) -> str:
    """The text as a file name may be: other characters become '-'. Empty if nothing is left."""
    return re.sub(f"[^{_CHARACTERS}]", "-", text).lstrip("._+-")
