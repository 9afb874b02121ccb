"""Checkpoints: all that a run needs to go on to the same bytes, in safetensors and JSON.

ROUND.json                     the manifest, written last: without it there is no checkpoint
server/ROUND.safetensors       the server's state
clients/ID/ROUND.safetensors   what a client keeps after its work of that round, for itself alone

A client that was not drawn is not written again: a manifest names the round of each client's file. Reading runs no
code, and no file larger than the limits in `support/safe_reading.py` is read, or written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from mutua.errors import MutuaError, RunError
from mutua.federation.message import Kind, Message, Part
from mutua.federation.store import Commit, State, Store
from mutua.recipe.checkpoint_settings import CheckpointSettings as Settings
from mutua.rounds.state import RunState
from mutua.runs.inputs import Inputs
from mutua.support import files, safe_reading
from mutua.support.configuration import Spec
from mutua.support.files import FILE_NAME
from mutua.support.growing_files import TableEnd
from mutua.support.tensor_files import FILE_DTYPES, Pieces, Tensors, encode_tensors


class DamagedCheckpoint(MutuaError):
    """A checkpoint is damaged; the text says how."""


class ArrayFile(Spec):
    """An array file: its round, its length and its checksum."""

    round: int = Field(ge=0)
    bytes: int = Field(ge=0, le=safe_reading.MAX_ARRAY_BYTES)
    sha256: str


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
    versions: dict[str, str]
    history: TableEnd
    ledger: TableEnd
    participation: TableEnd | None = None
    server: ArrayFile | None = None
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
        self.damaged: dict[Path, str] = {}
        for file in sorted(path.glob("*.json")):
            try:
                manifest = _manifest(file)
                self.kept[manifest.round] = manifest
            except FileNotFoundError:  # a run at work has removed it
                continue
            except (DamagedCheckpoint, OSError) as error:
                self.damaged[file] = files.reason(error)

    @property
    def newest(self) -> Manifest | None:
        """The one from which a run continues."""
        return self.kept[max(self.kept)] if self.kept else None

    @property
    def best(self) -> Manifest | None:
        """The best on validation data; of equal ones the first."""
        judged = [(m.validation, -m.round, m) for m in self.kept.values() if m.validation is not None]
        return max(judged, key=lambda found: found[:2])[2] if judged else None

    def write(self, standing: RunState, *, last: int | None = None, **facts: Any) -> Manifest:
        """Save the state of a run: clients' files, the server's, then the manifest, which makes them count.

        `last` is the round of the clients' last work: what they kept before it is saved too.
        """
        known = {(client, file.round): file for manifest in self.kept.values() for client, file in manifest.files}
        clients: dict[str, ArrayFile] = {}
        before: dict[str, ArrayFile] = {}
        with files.atomic_files() as made:

            def put(client: str, commit: Commit) -> ArrayFile:
                if (client, commit.round) not in known:
                    # The server does not ask again for what it has merged.
                    reply = commit.reply if commit.round > standing.round else None
                    data = encode_state(
                        commit.state, reply, client=client, round=commit.round, terms=_as_text(commit.terms)
                    )
                    known[client, commit.round] = _described(commit.round, data)
                    made.write(self._client(client, commit.round), *data)
                return known[client, commit.round]

            for client, store in sorted(standing.stores.items()):
                if not store.commits:
                    continue
                clients[client] = put(client, store.commits[-1])
                if store.commits[-1].round == last and store.changed:
                    before[client] = put(client, store.commits[-2])
            server = None
            if standing.round >= 0:
                data = encode_state(standing.server, round=standing.round)
                server = _described(standing.round, data)
                made.write(self._server(standing.round), *data)
        manifest = Manifest(
            round=standing.round,
            seconds=standing.seconds,
            server=server,
            clients=clients,
            before=before,
            **facts,
        )
        sealed = _sealed(manifest)
        if len(sealed) > safe_reading.MAX_TEXT_BYTES:
            raise RunError(f"a list of {len(clients)} clients' files cannot be saved: it is too large")
        files.write_file(self._manifest(standing.round), sealed)
        self.kept[manifest.round] = manifest
        if standing.round >= 0:
            self.kept.pop(-1, None)  # its file has the same name
        return manifest

    def load(self, manifest: Manifest) -> tuple[State, dict[str, Store]]:
        """The server's state and the clients' stores; `DamagedCheckpoint` if a file has changed."""
        stores: dict[str, Store] = {}
        for client, file in [*manifest.before.items(), *manifest.clients.items()]:
            state, reply, about = decode_state(_read(self._client(client, file.round), file))
            terms = about.get("terms")
            if about.get("client") != client or about.get("round") != file.round or not isinstance(terms, dict):
                raise DamagedCheckpoint(f"clients/{client}: it is not what its name says")
            commit = Commit(file.round, state, reply, _numbers(terms))
            stores.setdefault(client, Store()).commits.append(commit)
        if manifest.server is None:
            return {}, stores
        return decode_state(_read(self._server(manifest.round), manifest.server))[0], stores

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
        return gone, freed

    def _files(self, manifest: Manifest) -> Iterator[Path]:
        if manifest.server is not None:
            yield self._server(manifest.round)
        for client, file in manifest.files:
            yield self._client(client, file.round)

    def _all(self) -> list[Path]:
        return [*self.path.glob("server/*.safetensors*"), *self.path.glob("clients/*/*.safetensors*")]

    def _manifest(self, round: int) -> Path:
        return self.path / f"{max(round, 0):06d}.json"

    def _server(self, round: int) -> Path:
        return self.path / "server" / f"{round:06d}.safetensors"

    def _client(self, client: str, round: int) -> Path:
        return self.path / "clients" / client / f"{round:06d}.safetensors"


def checkpoint_due(settings: Settings, round: int, since: float) -> bool:
    """Whether a checkpoint is due after this round, so many seconds after the last."""
    return round % settings.every == 0 and since >= settings.seconds


def encode_state(state: State, reply: Message | None = None, **about: Any) -> Pieces:
    """Groups of named arrays as `GROUP/NAME`, and a reply as `/PART/NAME`, in one safetensors file.

    Names and their order are also in the file's metadata, beside `about`: groups may be empty, and order counts.
    """
    arrays: Tensors = {}
    for group, named in state.items():
        if not _valid_group(group):
            raise RunError(f"'{group}' cannot be saved: a group's name has no '/' and is not empty")
        arrays |= {f"{group}/{name}": array for name, array in named.items()}
    parts = None
    if reply is not None:
        arrays |= {f"/{part}/{name}": array for part in reply for name, array in reply.arrays(part).items()}
        parts = {name: {"kind": part.kind, "arrays": list(part.arrays)} for name, part in reply.items()}
    groups = {group: list(named) for group, named in state.items()}
    for name, array in arrays.items():
        if array.dtype not in FILE_DTYPES:
            raise RunError(f"'{name}' cannot be saved: safetensors has no {array.dtype}")
    told = json.dumps({"format": 1, **about, "groups": groups, "reply": parts})
    header, *data = encode_tensors(arrays, {"mutua": told})
    names, size = len(header) - 8, sum(map(len, data))
    if size + len(header) > safe_reading.MAX_ARRAY_BYTES or names > safe_reading.MAX_HEADER_BYTES:
        raise RunError(f"a state of {size} bytes and {names} of names cannot be saved: it is too large")
    return [header, *data]


def decode_state(data: bytes) -> tuple[State, Message | None, dict[str, Any]]:
    """The state, the reply and what is said about them; `DamagedCheckpoint` if the bytes cannot be read."""
    try:
        arrays, metadata = safe_reading.parse_arrays(data)
        about = safe_reading.from_json(metadata["mutua"])
        state = {
            group: {name: arrays.pop(f"{group}/{name}") for name in names}
            for group, names in about.pop("groups").items()
        }
        parts = about.pop("reply")
        reply = None if parts is None else Message(**{n: _part(n, part, arrays) for n, part in parts.items()})
    except safe_reading.Unreadable as error:
        raise DamagedCheckpoint(str(error)) from None
    except Exception as error:  # whatever names from a stranger make these raise
        raise DamagedCheckpoint(f"it cannot be read ({type(error).__name__})") from None
    if arrays or about.get("format") != 1 or not all(map(_valid_group, state)):
        raise DamagedCheckpoint("it holds what this mutua does not know")
    return state, reply, about


def _valid_group(group: str) -> bool:
    return bool(group) and "/" not in group


def _part(name: str, told: Mapping[str, Any], arrays: Tensors) -> Part:
    return Part(Kind(told["kind"]), {key: arrays.pop(f"/{name}/{key}") for key in told["arrays"]})


def _as_text(terms: Mapping[str, float]) -> dict[str, str]:
    """Numbers as text: JSON has no NaN."""
    return {name: repr(float(value)) for name, value in terms.items()}


def _numbers(terms: Mapping[str, Any]) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in terms.items()}
    except (TypeError, ValueError, OverflowError):
        raise DamagedCheckpoint("its terms are no numbers") from None


def _described(round: int, data: Pieces) -> ArrayFile:
    checksum = hashlib.sha256()
    for piece in data:
        checksum.update(piece)
    return ArrayFile(round=round, bytes=sum(map(len, data)), sha256=checksum.hexdigest())


def _read(path: Path, file: ArrayFile) -> bytes:
    where = "/".join(path.parts[-3:] if path.parts[-3] == "clients" else path.parts[-2:])
    try:
        if path.stat().st_size != file.bytes:
            raise DamagedCheckpoint(f"{where} has {path.stat().st_size} bytes; it had {file.bytes}")
        data = path.read_bytes()
    except OSError as error:
        raise DamagedCheckpoint(f"{where}: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DamagedCheckpoint(f"{where} is not what it was")
    return data


def _sealed(manifest: Manifest) -> str:
    """The manifest with its own checksum."""
    body = manifest.model_dump(mode="json")
    return json.dumps({"sha256": _sum(body), **body}, indent=1) + "\n"


def _manifest(path: Path) -> Manifest:
    try:
        body = safe_reading.from_json(safe_reading.read_text(path))
        if not isinstance(body, dict) or body.pop("sha256", None) != _sum(body):
            raise DamagedCheckpoint("its checksum is wrong")
        manifest = Manifest.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise DamagedCheckpoint(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except ValueError as error:
        raise DamagedCheckpoint(str(error)) from None
    if path.name != f"{max(manifest.round, 0):06d}.json":
        raise DamagedCheckpoint("it is of another round than its name says")
    return manifest


def _sum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
