"""Files below the watched folder, as they may be opened: whoever wrote the folder may have put anything there.

A link may lead anywhere, and a pipe may never end: neither is opened, at any level below the folder that the user
named. Every name is opened in the folder above it that is already open, so nothing can be swapped in between.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from mutua.support.safe_reading import Unreadable, from_json

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
MAX_NAME = 255


def open_inside(root: Path, parts: Sequence[str]) -> BinaryIO:
    """Open the file at these names below `root`, for reading; an OSError or `Unreadable` says why not."""
    if not parts or any(not _plain(name) for name in parts):
        raise Unreadable("it is not below the watched folder")
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in parts[:-1]:
            deeper = os.open(name, _FOLDER, dir_fd=at)
            os.close(at)
            at = deeper
        number = os.open(parts[-1], _FILE, dir_fd=at)
    finally:
        os.close(at)
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(number)
        raise Unreadable("it is a link, a pipe or a device, not a file")
    return os.fdopen(number, "rb", buffering=0)


def read_inside(root: Path, parts: Sequence[str], most: int) -> bytes:
    """The bytes of such a file, if it has at most so many."""
    with open_inside(root, parts) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise Unreadable(f"it has more than {most} bytes")
        return os.pread(file.fileno(), most, 0)


def json_inside(root: Path, parts: Sequence[str], most: int) -> dict[str, Any]:
    """The JSON object in such a file; an empty one if there is none that can be read."""
    try:
        found = from_json(read_inside(root, parts, most))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _plain(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name and len(name) <= MAX_NAME
