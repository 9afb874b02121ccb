"""Checkpoints: all that a run needs to go on to the same bytes, in safetensors and JSON.

ROUND.json                     the manifest, written last: without it there is no checkpoint
server/ROUND.safetensors       the server's state
clients/ID/ROUND.safetensors   what a client keeps after its work of that round, for itself alone

A client that was not drawn is not written again: a manifest names the round of each client's file. If stores are
on disk, their files (`federation/commit_files.py`) are in the same folder or behind a URL, and are not copied: the
manifest names them. Reading runs no code, and no file larger than the limits in `support/safe_reading.py` is read,
or written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from mutua.errors import RunError
from mutua.federation.commit_files import (
    CommitFiles,
    FiledCommit,
    FileFacts,
    commit_files,
    sha256_of,
)
from mutua.federation.saved_state import DamagedState, decode_state, encode_state, terms_as_text, terms_of
from mutua.federation.store import Commit, Committed, State, Store
from mutua.federation.store_settings import StoreSettings
from mutua.recipe.checkpoint_settings import CheckpointSettings as Settings
from mutua.rounds.state import RunState
from mutua.runs.inputs import Inputs
from mutua.support import files, safe_reading
from mutua.support.configuration import Spec
from mutua.support.files import FILE_NAME
from mutua.support.growing_files import TableEnd
from mutua.support.tensor_files import Pieces


def _round_name(round: int) -> str:
    return f"{round:06d}"


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class ArrayFile:
    """An array file: its round, its length and its checksum. There are thousands, so it is no `Spec`."""

    round: Annotated[int, Field(ge=0)]
    bytes: Annotated[int, Field(ge=0, le=safe_reading.MAX_ARRAY_BYTES)]
    sha256: str
    file: Annotated[str | None, Field(pattern=f"^{FILE_NAME}$", max_length=64)] = None
    """Its name without its ending, if that is not the round alone."""

    @property
    def name(self) -> str:
        """Its name without its ending."""
        return self.file or _round_name(self.round)


Id = Annotated[str, Field(pattern=f"^{FILE_NAME}$", max_length=64)]


class TableEnds(Spec):
    """Where the tables ended."""

    history: TableEnd
    ledger: TableEnd
    participation: TableEnd


class Manifest(Spec):
    """What a checkpoint consists of. A newer mutua may have added fields, under the same format."""

    model_config = ConfigDict(extra="ignore")

    format: Literal[1, 2] = 2
    round: int = Field(ge=-1)
    seconds: float = Field(ge=0)
    inputs: Inputs | None = None
    """What the run is made of; format 1 does not say it."""
    validation: float | None = None
    """`RunState.validation`, if this round was evaluated."""
    lower_is_better: bool = False
    """Which way of that is better."""
    versions: dict[str, str]
    history: TableEnd
    ledger: TableEnd
    participation: TableEnd | None = None
    server: ArrayFile | None = None
    stores: str | None = None
    """Where the clients' stores are: None is in memory, "disk" beside the checkpoints, or a URL."""
    clients: dict[Id, ArrayFile]
    before: dict[Id, ArrayFile] = Field(default_factory=dict)
    """What clients kept before their last work, if that changed it: a longer run continues from there."""
    unfinished: TableEnds | None = None
    """Where the tables ended before the clients' last work, if this checkpoint is after it."""

    @property
    def files(self) -> list[tuple[str, ArrayFile]]:
        """The clients' files."""
        return [*self.clients.items(), *self.before.items()]

    @property
    def bytes(self) -> int:
        """How much its array files take; some belong to other checkpoints too."""
        own = [self.server] if self.server else []
        return sum(file.bytes for file in [*self.clients.values(), *self.before.values(), *own])


class CheckpointFolder:
    """A run's checkpoints, oldest first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept: dict[int, Manifest] = {}
        self.stores: CommitFiles | None = None
        """The files of the stores, if they are not in memory."""
        self._stores_said: str | None = None
        self._live: set[tuple[str, str]] = set()
        """The client and name of each file that a store has."""
        self.damaged: dict[Path, str] = {}
        for file in sorted(path.glob("*.json")):
            try:
                manifest = _manifest(file)
                self.kept[manifest.round] = manifest
            except FileNotFoundError:  # a run at work has removed it
                continue
            except (DamagedState, OSError) as error:
                self.damaged[file] = files.reason(error)

    @property
    def newest(self) -> Manifest | None:
        """The one from which a run continues."""
        return self.kept[max(self.kept)] if self.kept else None

    @property
    def best(self) -> Manifest | None:
        """The best on validation data; of equal ones the first."""
        judged = [
            (-m.validation if m.lower_is_better else m.validation, -m.round, m)
            for m in self.kept.values()
            if m.validation is not None
        ]
        return max(judged, key=lambda found: found[:2])[2] if judged else None

    def write(self, run_state: RunState, *, last: int | None = None, **facts: Any) -> Manifest:
        """Save the state of a run: clients' files, the server's, then the manifest, which makes them count.

        `last` is the round of the clients' last work: what they kept before it is saved too.
        """
        known = {(client, file.name): file for manifest in self.kept.values() for client, file in manifest.files}
        clients: dict[str, ArrayFile] = {}
        before: dict[str, ArrayFile] = {}
        durable: list[FiledCommit] = []
        with files.atomic_files() as made:

            def put(client: str, commit: Committed) -> ArrayFile:
                if isinstance(commit, FiledCommit) and commit.files == self.stores:
                    name, size, checksum = commit.facts
                    if (client, name) not in known:
                        durable.append(commit)
                        known[client, name] = ArrayFile(round=commit.round, bytes=size, sha256=checksum, file=name)
                    return known[client, name]
                name = _round_name(commit.round)
                if (client, name) not in known:
                    # The server does not ask again for what it has merged.
                    reply = commit.reply if commit.round > run_state.round else None
                    about = {"client": client, "round": commit.round, "terms": terms_as_text(commit.terms)}
                    data = encode_state(commit.state, reply, **about)
                    known[client, name] = _described(commit.round, data)
                    made.write(self._client(client, known[client, name]), *data)
                return known[client, name]

            for client, store in sorted(run_state.stores.items()):
                if not store.commits:
                    continue
                clients[client] = put(client, store.commits[-1])
                if store.commits[-1].round == last and store.changed:
                    before[client] = put(client, store.commits[-2])
            self._sync(durable)
            server = None
            if run_state.round >= 0:
                data = encode_state(run_state.server, round=run_state.round)
                server = _described(run_state.round, data)
                made.write(self._server(run_state.round), *data)
        manifest = Manifest(
            round=run_state.round,
            seconds=run_state.seconds,
            server=server,
            stores=self._stores_said,
            clients=clients,
            before=before,
            **facts,
        )
        sealed = _sealed(manifest)
        if len(sealed) > safe_reading.MAX_TEXT_BYTES:
            raise RunError(f"a list of {len(clients)} clients' files cannot be saved: it is too large")
        files.write_file(self._manifest(run_state.round), sealed)
        self.kept[manifest.round] = manifest
        if run_state.round >= 0:
            self.kept.pop(-1, None)  # its file has the same name
        self._live = {
            (commit.client, commit.facts.name)
            for store in run_state.stores.values()
            for commit in store.commits
            if isinstance(commit, FiledCommit)
        }
        return manifest

    def keep_stores(self, place: str, cache: int) -> CommitFiles:
        """Let the stores of the run have their files beside the checkpoints ("disk") or behind this URL."""
        self._stores_said = place
        self.stores = commit_files(str(self.path.resolve()) if place == "disk" else place, cache)
        self._protect()
        return self.stores

    def _protect(self) -> None:
        """Tell the stores which of their files checkpoints need."""
        if self.stores is not None:
            self.stores.protected = {(c, file.name) for m in self.kept.values() for c, file in m.files}

    def _sync(self, commits: Iterable[FiledCommit]) -> None:
        """Have the stores' own files safe on the disk; behind a URL they are."""
        paths = [commit.files.path(commit.client, commit.facts.name) for commit in commits if commit.files.folder]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(files.sync, paths))
            list(pool.map(files.sync, {folder for path in paths for folder in (path.parent, path.parent.parent)}))

    def load(self, manifest: Manifest) -> tuple[State, dict[str, Store]]:
        """The server's state and the clients' stores; `DamagedState` if a file has changed.

        Stores that were on disk stay there: their files are checked, and read when they are needed.
        """
        if manifest.stores is not None:
            self.keep_stores(manifest.stores, self.stores.cache if self.stores else StoreSettings().cache)
        stores: dict[str, Store] = {}
        for client, file in [*manifest.before.items(), *manifest.clients.items()]:
            store = stores.setdefault(client, Store(files=None if self.stores is None else self.stores.of(client)))
            store.commits.append(self._commit(client, file))
        if manifest.server is None:
            return {}, stores
        return decode_state(_read(self._server(manifest.round), manifest.server))[0], stores

    def _commit(self, client: str, file: ArrayFile) -> Committed:
        own = self.stores if file.file is not None else None
        if own is None or own.folder is not None:
            data = _read(self._client(client, file), file)
        else:
            at = client, file.name
            where = f"{own.place}/clients/{client}/{file.name}"
            data = _checked(where, file, partial(own.size, *at), partial(own.load, *at))
        state, reply, about = decode_state(data)
        terms = about.get("terms")
        if about.get("client") != client or about.get("round") != file.round or not isinstance(terms, dict):
            raise DamagedState(f"clients/{client}: it is not what its name says")
        if own is None:
            return Commit(file.round, state, reply, terms_of(terms))
        facts = FileFacts(file.name, file.bytes, file.sha256)
        return FiledCommit(file.round, terms_of(terms), bool(state), reply is not None, client, facts, own)

    def forget(self, after: int) -> None:
        """Remove the checkpoints after this round: the run takes another course from there."""
        for round in [round for round in self.kept if round > after]:
            del self.kept[round]
            self._manifest(round).unlink(missing_ok=True)
        files.sync(self.path)

    def step_over(self, manifest: Manifest, reason: str) -> None:
        """Ignore a damaged checkpoint: the run makes it again."""
        del self.kept[manifest.round]
        self.damaged[self._manifest(manifest.round)] = reason

    def sweep(self, keep: int, best: bool, dry: bool = False) -> tuple[list[int], int]:
        """Remove all but the last `keep` and the best; the rounds removed, and the bytes of all files removed."""
        rounds = sorted(self.kept)[-keep:] if keep else []
        if best and keep and self.best is not None:
            rounds.append(self.best.round)
        gone = [round for round in sorted(self.kept) if round not in rounds]
        manifests = {self._manifest(round) for round in rounds}
        needed = {file for round in rounds for file in self._files(self.kept[round])}
        needed |= {self._client_file(*live) for live in self._live}
        old = [path for path in self.path.glob("*.json*") if path not in manifests and path.is_file()]
        # Manifests first: none may name a file that is gone.
        rest = [path for path in self._all() if path not in needed and path.is_file()]
        freed = sum(path.stat().st_size for path in [*old, *rest])
        if not dry:
            for path in old:
                path.unlink(missing_ok=True)
            if old:
                files.sync(self.path)
            for path in rest:
                path.unlink(missing_ok=True)
            self.kept = {round: self.kept[round] for round in sorted(set(rounds))}
            self.damaged = {}
            self._drop_remote()
        return gone, freed

    def _drop_remote(self) -> None:
        """Remove files behind a URL that only removed checkpoints needed."""
        if self.stores is None:
            return
        before = self.stores.protected
        self._protect()
        if self.stores.folder is None:
            self.stores.remove(before - self.stores.protected - self._live)

    def _files(self, manifest: Manifest) -> Iterator[Path]:
        if manifest.server is not None:
            yield self._server(manifest.round)
        for client, file in manifest.files:
            yield self._client(client, file)

    def _all(self) -> list[Path]:
        return [*self.path.glob("server/*.safetensors*"), *self.path.glob("clients/*/*.safetensors*")]

    def _manifest(self, round: int) -> Path:
        return self.path / f"{max(round, 0):06d}.json"

    def _server(self, round: int) -> Path:
        return self.path / "server" / f"{round:06d}.safetensors"

    def _client(self, client: str, file: ArrayFile) -> Path:
        return self._client_file(client, file.name)

    def _client_file(self, client: str, name: str) -> Path:
        return self.path / "clients" / client / f"{name}.safetensors"


def checkpoint_due(settings: Settings, round: int, since: float) -> bool:
    """Whether a checkpoint is due after this round, so many seconds after the last."""
    return round % settings.every == 0 and since >= settings.seconds


def _described(round: int, data: Pieces) -> ArrayFile:
    return ArrayFile(round=round, bytes=sum(map(len, data)), sha256=sha256_of(data))


def _checked(where: str, file: ArrayFile, size: Callable[[], int], load: Callable[[], bytes]) -> bytes:
    """A file's bytes; `DamagedState` if they are not what they were."""
    try:
        if (found := size()) != file.bytes:
            raise DamagedState(f"{where} has {found} bytes; it had {file.bytes}")
        data = load()
    except (OSError, RunError) as error:
        raise DamagedState(f"{where}: {files.reason(error)}") from None
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DamagedState(f"{where} is not what it was")
    return data


def _read(path: Path, file: ArrayFile) -> bytes:
    where = "/".join(path.parts[-3:] if path.parts[-3] == "clients" else path.parts[-2:])
    return _checked(where, file, lambda: path.stat().st_size, path.read_bytes)


def _sealed(manifest: Manifest) -> str:
    """The manifest with its own checksum."""
    body = manifest.model_dump(mode="json")
    return json.dumps({"sha256": _sum(body), **body}, indent=1) + "\n"


def _manifest(path: Path) -> Manifest:
    try:
        body = safe_reading.from_json(safe_reading.read_text(path))
        if not isinstance(body, dict) or body.pop("sha256", None) != _sum(body):
            raise DamagedState("its checksum is wrong")
        manifest = Manifest.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise DamagedState(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except ValueError as error:
        raise DamagedState(str(error)) from None
    if path.name != f"{max(manifest.round, 0):06d}.json":
        raise DamagedState("it is of another round than its name says")
    return manifest


def _sum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
