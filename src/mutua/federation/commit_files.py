"""Stores on disk: clients' commits as files in a folder or behind a URL, read only while they are needed.

PLACE/clients/ID/ROUND-CHECKSUM.safetensors    what a client kept after its work of that round, and its reply

A file is written aside and renamed, and never changed: work repeated with another result gets another file. It is
not synced here, since a run goes on from its newest checkpoint, which syncs the files that it names.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from mutua.errors import InputError, RunError
from mutua.federation.message import Message
from mutua.federation.saved_state import DamagedState, decode_state, encode_state, terms_as_text
from mutua.federation.store import Commit, Committed, State
from mutua.support.files import ASIDE, reason
from mutua.support.tensor_files import Pieces

SUFFIX = ".safetensors"


class FileFacts(NamedTuple):
    """What a checkpoint must know of a file: its name, its length and its checksum."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FiledCommit:
    """A commit whose arrays are in a file; they are read when somebody asks for them."""

    round: int
    terms: dict[str, float]
    keeps: bool
    replied: bool
    client: str
    facts: FileFacts
    files: CommitFiles

    @property
    def state(self) -> State:
        """What the client kept."""
        return self.files.read(self.client, self.facts.name)[0]

    @property
    def reply(self) -> Message | None:
        """What the client sent."""
        return self.files.read(self.client, self.facts.name)[1] if self.replied else None


class ClientFiles(NamedTuple):
    """Where one client's store writes."""

    files: CommitFiles
    client: str

    def write(self, commit: Commit) -> FiledCommit:
        """Write a commit into a file of its own."""
        return self.files.write(self.client, commit)


class CommitFiles:
    """The files of all clients' commits in one place. One object per place and process: it holds the cache."""

    def __init__(self, place: str, cache: int) -> None:
        self.place, self.cache = place, cache
        self.folder = None if "://" in place else Path(place)
        self._fs: Any = None
        self._root = place
        if self.folder is None:
            self._fs, self._root = _file_system(place)
        self._held: OrderedDict[tuple[str, str], tuple[State, Message | None]] = OrderedDict()
        self._made: set[str] = set()
        self.protected: set[tuple[str, str]] = set()
        """The client and name of each file that a checkpoint needs."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CommitFiles) and other.place == self.place

    def __hash__(self) -> int:
        return hash(self.place)

    def __reduce__(self) -> tuple[Callable[..., CommitFiles], tuple[Any, ...]]:
        return commit_files, (self.place, self.cache)

    @property
    def shared(self) -> bool:
        """Whether other processes see what this one writes."""
        return self.folder is not None or "memory" not in _protocols(self._fs)

    def write(self, client: str, commit: Commit) -> FiledCommit:
        """Write a commit; what is not renamed yet does not count."""
        about = {"client": client, "round": commit.round, "terms": terms_as_text(commit.terms)}
        data = encode_state(commit.state, commit.reply, **about)
        checksum, size = sha256_of(data), sum(map(len, data))
        facts = FileFacts(f"{commit.round:06d}-{checksum[:16]}", size, checksum)
        if self.folder is not None:
            path = self.path(client, facts.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}{ASIDE}")
            try:
                with aside.open("wb") as file:
                    file.writelines(data)
                aside.replace(path)
            except BaseException:
                with suppress(OSError):
                    aside.unlink(missing_ok=True)
                raise
        else:
            with self._problems():
                if client not in self._made:  # on S3 and the like there are no folders to make
                    self._fs.makedirs(f"{self._root}/clients/{client}", exist_ok=True)
                    self._made.add(client)
                self._fs.pipe_file(self._url(client, facts.name), b"".join(data))
            self._hold(client, facts.name, (commit.state, commit.reply))
        replied = commit.reply is not None
        return FiledCommit(commit.round, commit.terms, commit.keeps, replied, client, facts, self)

    def read(self, client: str, name: str) -> tuple[State, Message | None]:
        """The state and the reply of a commit; a local file's arrays are read when they are used."""
        found = self._held.get((client, name))
        if found is None:
            try:
                data = self.path(client, name) if self.folder else self.load(client, name)
                state, reply, _ = decode_state(data)
            except DamagedState as error:
                where = f"{self.place}/clients/{client}/{name}{SUFFIX}"
                raise RunError(f"client {client}: its store cannot be read: {where}: {error}") from None
            found = state, reply
        self._hold(client, name, found)
        return found

    def load(self, client: str, name: str) -> bytes:
        """A file's bytes."""
        if self.folder is not None:
            return self.path(client, name).read_bytes()
        with self._problems():
            return bytes(self._fs.cat_file(self._url(client, name)))

    def size(self, client: str, name: str) -> int:
        """A file's length."""
        if self.folder is not None:
            return self.path(client, name).stat().st_size
        with self._problems():
            return int(self._fs.size(self._url(client, name)))

    def path(self, client: str, name: str) -> Path:
        """Where a file is, in a folder."""
        assert self.folder is not None
        return self.folder / "clients" / client / f"{name}{SUFFIX}"

    def retire(self, before: Iterable[Committed], after: Iterable[Committed]) -> None:
        """Remove the files of commits that a store has no more, unless a checkpoint needs them."""
        had, has = (
            {(c.client, c.facts.name) for c in commits if isinstance(c, FiledCommit) and c.files == self}
            for commits in (before, after)
        )
        self.remove(had - has - self.protected)

    def remove(self, files: Iterable[tuple[str, str]]) -> None:
        """Remove files."""
        for client, name in files:
            self._held.pop((client, name), None)
            if self.folder is not None:
                self.path(client, name).unlink(missing_ok=True)
            else:
                with suppress(Exception):  # it may be gone; what stays costs space and nothing else
                    self._fs.rm_file(self._url(client, name))

    def of(self, client: str) -> ClientFiles:
        """Where this client's store writes."""
        return ClientFiles(self, client)

    def _url(self, client: str, name: str) -> str:
        return f"{self._root}/clients/{client}/{name}{SUFFIX}"

    def _hold(self, client: str, name: str, found: tuple[State, Message | None]) -> None:
        self._held[client, name] = found
        self._held.move_to_end((client, name))
        while len(self._held) > self.cache:
            self._held.popitem(last=False)

    @contextmanager
    def _problems(self) -> Iterator[None]:
        """Whatever a file system raises, as one line."""
        try:
            yield
        except Exception as error:  # every file system has its own errors
            raise RunError(f"stores.place: {cannot_use(self.place, error)}") from error


@lru_cache(maxsize=16)
def commit_files(place: str, cache: int) -> CommitFiles:
    """The files in this place: in one process the same object, so that its cache is worth having."""
    return CommitFiles(place, cache)


def cannot_use(place: str, error: Exception) -> str:
    """Says that a place cannot be read or written, and why."""
    return f"{place} cannot be used: {type(error).__name__}: {reason(error)}"


def sha256_of(data: Pieces) -> str:
    """The checksum of a file's pieces."""
    checksum = hashlib.sha256()
    for piece in data:
        checksum.update(piece)
    return checksum.hexdigest()


def _file_system(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise InputError(f"stores.place: {url} needs fsspec; pip install 'mutua[url]'") from None
    try:
        found, root = fsspec.core.url_to_fs(url)
    except Exception as error:  # an unknown protocol, or one whose package is missing
        way_out = "install the package that it names, or use disk"
        raise InputError(f"stores.place: {cannot_use(url, error)}; {way_out}") from None
    return found, root.rstrip("/")


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
