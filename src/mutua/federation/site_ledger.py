"""A site's own ledger: what it sent, line by line, each entry chained to the one before by its checksum.

One JSON object per line, in one spelling only, so that a changed byte anywhere is found. An entry is on the disk
before its bytes are sent.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from mutua.errors import InputError, RunError

FIRST = "0" * 64
"""What the first entry has for the checksum of the entry before."""
LONGEST_LINE = 2**21
FIELDS = ("entry", "time", "run", "verb", "round", "bytes", "sha256", "parts", "told", "before", "hash")


class SentEntry(NamedTuple):
    """One answer of the site."""

    entry: int
    time: str
    run: str
    verb: str
    round: int
    bytes: int
    """How many bytes of data: the message as one safetensors file, or numbers as JSON."""
    sha256: str
    """Of those bytes."""
    parts: Mapping[str, int]
    """Bytes by what they are, such as {"weights: meme": 246824}."""
    told: str
    """The header that went with them, as it was sent."""
    before: str
    hash: str


class Chain(NamedTuple):
    """What verifying has found: how many entries are good, and what is wrong with the first that is not."""

    good: int
    bytes: int
    wrong: str | None
    last: str


class SiteLedger:
    """A ledger in a file: it is read once, and grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = check_chain(path)
        if found.wrong is not None:
            raise RunError(f"{path}: {found.wrong}; keep the file and begin another: move it aside")
        self._number, self._before = found.good, found.last
        self.sent: dict[str, int] = {}
        """Bytes by run."""
        self._rounds: dict[tuple[str, int], dict[str, int]] = {}
        """By run and round, the bytes of each body that was sent, by its checksum."""
        for entry in entries(path):
            self._count(entry)
        _cut_incomplete(path)

    def sent_besides(self, run: str, round: int, body: bytes) -> int:
        """Bytes that have left in a round; this body, sent again because it got lost, is not counted twice."""
        held = self._rounds.get((run, round), {})
        return sum(held.values()) - held.get(hashlib.sha256(body).hexdigest(), 0)

    def _count(self, entry: SentEntry) -> None:
        self.sent[entry.run] = self.sent.get(entry.run, 0) + entry.bytes
        self._rounds.setdefault((entry.run, entry.round), {})[entry.sha256] = entry.bytes

    def add(self, run: str, verb: str, round: int, body: bytes, parts: Mapping[str, int], told: str) -> SentEntry:
        """Write down what is about to be sent; when this returns, it is on the disk."""
        about: dict[str, Any] = {
            "entry": self._number + 1,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "run": run,
            "verb": verb,
            "round": round,
            "bytes": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
            "parts": dict(parts),
            "told": told,
            "before": self._before,
        }
        about["hash"] = _hash(about)
        new = not self.path.exists()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, _spelt(about) + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        self._number, self._before = about["entry"], about["hash"]
        made = SentEntry(**about)
        self._count(made)
        return made


def entries(path: Path) -> Iterator[SentEntry]:
    """All entries, as they are in the file; a ledger that is not there has none."""
    for _, line in _lines(path):
        if (found := entry_in(line)) is not None:
            yield found


def entry_in(line: bytes) -> SentEntry | None:
    """The entry in a line of the file; None if it is no entry."""
    found = _parsed(line)
    return None if found is None else SentEntry(**found)


def check_chain(path: Path) -> Chain:
    """Whether every entry is as it was written, and follows the one before."""
    good, size, before = 0, 0, FIRST
    for number, line in _lines(path):
        if not line.endswith(b"\n"):  # nothing of it was sent
            break
        found = _parsed(line)
        if found is None or _spelt(found) != line[:-1]:
            return Chain(
                good, size, f"line {number}: it has been changed: it is no entry as mutua writes it", before
            )
        if found["hash"] != _hash(found):
            return Chain(good, size, f"line {number}: it has been changed: its checksum is another", before)
        if found["entry"] != good + 1 or found["before"] != before:
            wrong = f"line {number}: it does not follow the line before: an entry was removed, added or moved"
            return Chain(good, size, wrong, before)
        good, size, before = good + 1, size + found["bytes"], found["hash"]
    return Chain(good, size, None, before)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            yield from enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), 1)
    except OSError as error:
        raise InputError(f"FOLDER: {path} cannot be read ({error.strerror})") from None


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    kinds = {int: ("entry", "round", "bytes"), dict: ("parts",), str: ("time", "run", "verb", "sha256", "told")}
    if not isinstance(found, dict) or tuple(found) != FIELDS:
        return None
    good = all(type(found[name]) is kind for kind, names in kinds.items() for name in names)
    return found if good else None


def _spelt(about: Mapping[str, Any]) -> bytes:
    return json.dumps(about, separators=(",", ":"), allow_nan=False).encode()


def _hash(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(_spelt({name: value for name, value in about.items() if name != "hash"})).hexdigest()


def _cut_incomplete(path: Path) -> None:
    """Remove a last line that a crash has left half written: nothing of it was sent."""
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)
