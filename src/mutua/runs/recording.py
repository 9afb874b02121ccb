"""What records a run: its folder is made before the run begins, grows with it, and is complete at its end.

`resuming.py` takes up the folder of a run that was stopped.
"""

from __future__ import annotations

import platform
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from mutua import __version__
from mutua.errors import InputError, RunError, raised_at, short_of_memory
from mutua.federation.commit_files import CommitFiles
from mutua.federation.federation import Federation
from mutua.federation.ledger import Entry
from mutua.federation.store_settings import StoreSettings, chosen_place
from mutua.methods import base
from mutua.methods.base import Job, shown_name
from mutua.recipe.recipe import Recipe
from mutua.rounds.events import (
    Event,
    Merged,
    Reached,
    Rejected,
    Retried,
    RoundEnded,
    RoundStarted,
    Started,
    Stopped,
    Trained,
)
from mutua.rounds.history import Row
from mutua.rounds.participation import ParticipationRow
from mutua.rounds.state import RunState
from mutua.runs.checkpoints import Manifest, TableEnds, checkpoint_due
from mutua.runs.folder import RunFolder, RunRecord
from mutua.runs.inputs import HashProgress, Inputs, hash_inputs
from mutua.support import safe_reading
from mutua.support.configuration import PathLike
from mutua.support.files import ASIDE, cannot_write, sync, to_json, write_file
from mutua.support.folders import FolderLock, dated_folder, new_folder, no_place
from mutua.support.growing_files import SCHEMA, GrowingTable
from mutua.support.profiling import timed
from mutua.support.row_log import LogPrefix

LONG_RECIPE = 2**18
"""Shorter recipes, in characters, are within the limits of what can be read again."""
FIRST_FILES = ("recipe.yaml", "events.jsonl", "history.csv", "ledger.csv", "participation.csv", "lock")

_IN_CODE = re.compile(r" \(\S+\.py:\d+\)")
"""How an error names the line of the user's own code that raised it."""


class Recorder:
    """Writes a run's folder. It is a callback of the loop."""

    def __init__(self, folder: RunFolder, lock: FolderLock) -> None:
        self.folder, self.path = folder, folder.path
        self._lock = lock
        self._code: list[str] = []
        self.goes_on_by: str | None = None
        """The command that goes on with the run, if it is not `mutua run --resume`."""
        self.deployed = False
        """Whether models and data are the clients' own, so that the federation only stands in for them."""
        self._ends_before_finish: TableEnds | None = None
        """Where the tables ended before the clients' last work."""

    @classmethod
    def create(
        cls, name: str, seed: int, out: PathLike | None = None, under: PathLike = "runs", field: str = "--out"
    ) -> Recorder:
        """Of a new folder: `out`, which is empty or of a run that was killed before it began, or a dated one."""
        place = dated_folder(name, f"-{seed}", under) if out is None else new_folder(out, _not_begun, field)
        folder = RunFolder(place)
        recorder = cls(folder, FolderLock(folder.path, field))
        try:
            new_folder(folder.path, _not_begun, field)  # a run may have begun and ended there meanwhile
            for table in folder.tables:
                table.begin()
            sync(folder.path.parent)
        except OSError as error:
            recorder._remove()
            raise no_place(folder.path, error) from None
        return recorder

    def begin(self, recipe: Recipe, federation: Federation, show: HashProgress | None = None) -> RunState:
        """Write down what begins; the state from which the run starts. `show` how far hashing has come."""
        self._prepare(recipe, federation, show)
        self.write_recipe(recipe)
        clients = [client.id for client in federation.clients]
        known = {} if self.deployed else _known(federation)
        self._begun(shown_name(recipe.method), recipe.seed, recipe.rounds, clients, command=_command(), **known)
        return RunState()

    def _prepare(self, recipe: Recipe, federation: Federation, show: HashProgress | None) -> None:
        self._settings, self._saved = recipe.checkpoints, time.monotonic()
        self._inputs = hash_inputs(recipe, federation, show)
        self._code = recipe.code

    def _begun(self, method: str, seed: int, rounds: int, clients: Sequence[str], **more: Any) -> None:
        about = {"method": method, "seed": seed, "rounds": rounds, "clients": clients}
        self.folder.events.add("begun", schema=SCHEMA, **about, versions=versions(), **more)

    @property
    def resumed(self) -> RunState | None:
        """The state of the stopped run that goes on here, if it is one."""
        return None

    def store_files(self, settings: StoreSettings, store_bytes: int) -> CommitFiles | None:
        """Where the clients' stores write, which take about so many bytes; None if they are in memory.

        A run that goes on has its stores where it had them.
        """
        checkpoints = self.folder.checkpoints
        newest = checkpoints.newest
        place = chosen_place(settings, store_bytes) if newest is None else newest.stores
        return None if place is None else checkpoints.keep_stores(place, settings.cache)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Around a run: whatever stops it, say how to go on; if the run had not begun, leave nothing."""
        try:
            yield
        except KeyboardInterrupt as signal:
            raise RunError(self._stopped(f"stopped by {str(signal) or 'Ctrl-C'}")) from None
        except RunError as error:
            raise RunError(self._stopped(str(error))) from error
        except (OSError, SafetensorError) as error:
            raise RunError(self._stopped(cannot_write(self.path, error), "fix that; ")) from None
        except InputError:  # nothing has run
            if self.resumed is None:
                self._remove()
            raise
        except Exception as error:  # a mistake in mutua or in the user's own method: its trace is needed
            if short_of_memory(error):
                raise RunError(self._stopped("there was no memory left", "free some; ")) from error
            error.add_note(self._stopped(f"stopped by {type(error).__name__}", own_code=bool(raised_at(error))))
            raise
        finally:
            self._lock.release()

    def _stopped(self, why: str, first: str = "", own_code: bool = False) -> str:
        if not (self.path / "recipe.yaml").is_file():
            self._remove()
            return why
        with suppress(OSError):
            self.folder.events.add("stopped", reason=why)
        if self._code and (
            own_code or _IN_CODE.search(why)
        ):  # mended, it is no longer the code that the run began with
            return f"{why}; {first}{self.to_go_on()} --accept-changes, once the code is mended"
        return f"{why}; {first}{self.to_go_on()}"

    def to_go_on(self) -> str:
        """What to type to go on with the run."""
        if self.goes_on_by is not None:
            return f"to go on: {self.goes_on_by}"
        allow = "".join(f" --trust-code {name}" for name in self._code)
        return f"to go on: mutua run --resume {shlex.quote(str(self.path))}{allow}"

    def _remove(self) -> None:
        """Remove what a run has left that has not begun."""
        with suppress(OSError):
            for name in FIRST_FILES:
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    def __call__(self, event: Event) -> None:
        """A callback: events, history and ledger grow with the rounds; now and then a checkpoint is written."""
        add = self.folder.events.add
        match event:
            case Started():
                self._rounds = event.job.plan.rounds
                if self.resumed is not None and self.resumed.round == self._rounds:
                    self._ends_before_finish = self._ends
            case RoundStarted():
                add("round", round=event.round, clients=event.clients)
            case Trained():
                sent = 0 if event.reply.message is None else event.reply.message.nbytes
                seconds = round(event.reply.seconds, 3)
                add("trained", round=event.round, client=event.client, seconds=seconds, bytes=sent)
            case Rejected():
                add("rejected", round=event.round, client=event.client, reason=event.reason)
            case Retried():
                add("retried", round=event.round, client=event.client, reason=event.reason)
            case Merged():
                shares = {client: share and round(share, 6) for client, share in event.weights.items()}
                add("merged", round=event.round, weights=shares)
            case RoundEnded():
                add("ended", round=event.round, **{event.history.headline.metric: _newest(event)})
            case Reached():
                self._grow(event.run_state)
                if event.run_state.round == self._rounds:
                    self._ends_before_finish = self._ends
                since = time.monotonic() - self._saved
                if event.run_state.round > self._rounds or checkpoint_due(
                    self._settings, event.run_state.round, since
                ):
                    self.save(event.run_state)
            case Stopped():
                self._grow(event.run_state)
                self.save(event.run_state)

    def _grow(self, run_state: RunState) -> None:
        self.extend(run_state.history, run_state.ledger, run_state.participation)

    def extend(
        self, history: Sequence[Row], ledger: Sequence[Entry], participation: Sequence[ParticipationRow]
    ) -> None:
        """Given all rows, write those that are not in the files yet."""
        logs: tuple[Sequence[Any], ...] = history, ledger, participation
        tables: tuple[GrowingTable[Any], ...] = self.folder.tables
        for table, rows in zip(tables, logs, strict=True):
            table.extend(rows)
            if isinstance(rows, LogPrefix):
                rows.read_from_file(partial(table.first, len(rows)))

    @timed("checkpoint")
    def save(self, run_state: RunState) -> None:
        """Write a checkpoint, and remove those that need not be kept."""
        began = time.monotonic()
        for table in self.folder.tables:
            sync(table.path)
        manifest = self._write_checkpoint(run_state, self._rounds)
        self.folder.checkpoints.sweep(self._settings.keep, self._settings.best)
        self._saved = time.monotonic()
        took = round(self._saved - began, 3)
        self.folder.events.add("checkpoint", round=run_state.round, bytes=manifest.bytes, seconds=took)
        sync(self.folder.events.path)

    def _write_checkpoint(self, run_state: RunState, rounds: int) -> Manifest:
        return self.folder.checkpoints.write(
            run_state,
            last=rounds + 1,
            inputs=self._inputs,
            validation=run_state.validation,
            lower_is_better=run_state.lower_is_better,
            versions=versions(),
            unfinished=self._ends_before_finish if run_state.round > rounds else None,
            **dict(self._ends),
        )

    @property
    def _ends(self) -> TableEnds:
        """Where the tables end now."""
        history, ledger, participation = self.folder.tables
        return TableEnds(history=history.end, ledger=ledger.end, participation=participation.end)

    def write_recipe(self, recipe: Recipe) -> None:
        """The full recipe, defaults filled in; refused if nobody could read it again."""
        text = recipe.dump()
        try:
            if len(text) > LONG_RECIPE:
                safe_reading.from_yaml(text)
        except safe_reading.Unreadable as error:
            raise InputError(
                f"recipe: filled in with its defaults it could not be read again ({error}); "
                "have fewer clients, or deal one set of data to them (data and partition)"
            ) from None
        write_file(self.path / "recipe.yaml", text)

    def finish(self, job: Job, notes: Sequence[str], summary: Mapping[str, Any], seconds: float) -> None:
        """Write run.json: a folder that has it is complete."""
        record = RunRecord(
            versions=versions(),
            method=base.section_of(job.method),
            plan=job.plan,
            recipe=self._inputs.recipe,
            notes=(*notes, *(f"changed {change}" for change in self._inputs.accepted)),
            summary=dict(summary),
        )
        told = record.model_dump(mode="json")
        text = to_json(told)
        if len(text) > safe_reading.MAX_TEXT_BYTES:  # with tens of thousands of clients; longer files are not read
            text = to_json(told, indent=None)
        write_file(self.path / "run.json", text + "\n")
        self.folder.events.add("finished", seconds=round(seconds, 3))

    # A run that went on elsewhere, in Python

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around the saving of a run that was not recorded while it went on."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            raise RunError(cannot_write(self.path, error)) from None
        finally:
            self._lock.release()

    def begin_saved(self, recipe: str, job: Job, clients: Sequence[str]) -> None:
        """Write down what ran: the recipe, in YAML, and the first event."""
        self._inputs = Inputs(recipe=recipe, sums={})
        write_file(self.path / "recipe.yaml", recipe)
        self._begun(shown_name(job.method), job.plan.seed, job.plan.rounds, clients)


@cache
def versions() -> dict[str, str]:
    """Versions of everything that can change a number, and what the processor can do."""
    found = {"python": platform.python_version(), "mutua": __version__}
    for package in ("torch", "numpy", "pillow", "networkx", "dp-accounting", "pydantic", "safetensors"):
        with suppress(PackageNotFoundError):  # the accountants are optional
            found[package] = version(package)
    return {**found, "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"}


def _known(federation: Federation) -> dict[str, dict[str, Any]]:
    """What a simulation knows of its clients: models, and how many training samples."""
    return {
        "models": {client.id: client.model.title for client in federation.clients},
        "samples": {client.id: len(client.train) for client in federation.clients},
    }


def _command() -> str | None:
    """What was typed, if it was `mutua` and not a program that uses it."""
    program, *words = sys.argv
    return shlex.join(["mutua", *words]) if Path(program).stem == "mutua" else None


def _not_begun(path: Path) -> bool:
    """Whether a run that was killed before it had written its recipe may have left this file."""
    headers = {
        "history.csv": Row._fields,
        "ledger.csv": Entry._fields,
        "participation.csv": ParticipationRow._fields,
    }
    try:
        if path.name == "lock":
            return path.stat().st_size <= 20
        if path.name in headers:
            header = ",".join(headers[path.name]) + "\n"
            return path.stat().st_size <= len(header) and header.startswith(path.read_text())
        return path.name == f"recipe.yaml{ASIDE}" and path.is_file()
    except (OSError, ValueError):
        return False


def only_leftovers(path: Path) -> bool:
    """Whether all in this folder is what a run leaves that was killed before it began."""
    return all(map(_not_begun, path.iterdir()))


def _newest(event: RoundEnded) -> dict[str, float | None]:
    """Of the global on the common test set and of the clients on their own, if the round was evaluated."""
    newest = {"global": event.history.newest("global"), "clients": event.history.newest("predictor")}
    return {of: point[1] if point and point[0] == event.round else None for of, point in newest.items()}
