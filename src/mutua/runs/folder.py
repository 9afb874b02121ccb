"""The run folder: recipe, events, history, ledger, checkpoints, and every model with a card that says what it is.

recipe.yaml     the full recipe, defaults filled in
run.json        method, plan, versions and a summary of the results; written last
events.jsonl    one line an event       checkpoints/    what the run needs to go on
history.csv     one row a number        ledger.csv      one row a part that crossed
participation.csv   one row for every client and round: what came of it
global/         weights.safetensors, card.json
clients/ID/     personal.safetensors, ..., card.json: each client's in a folder of its own
newcomers/ID/   the same, of those who joined later

Every file but those that grow is written aside, synced and renamed. What is read from a folder is checked as if a
stranger had sent it.
"""

from __future__ import annotations

import platform
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

import mutua
from mutua.errors import InputError, RunError, short_of_memory
from mutua.federation.federation import Federation
from mutua.federation.ledger import Direction, Entry, Ledger
from mutua.federation.module_pool import Modules
from mutua.federation.plan import Plan
from mutua.methods import base
from mutua.recipe.recipe import Recipe
from mutua.rounds.history import History, Row
from mutua.rounds.loop import (
    Event,
    Reached,
    Rejected,
    Retried,
    RoundEnded,
    RoundStarted,
    RunState,
    Started,
    Stopped,
    Trained,
)
from mutua.rounds.participation import OUTCOMES, Participation, Turn
from mutua.runs.checkpoints import Checkpoints, Damaged, Manifest, Marks, due
from mutua.runs.inputs import Inputs, Show, changed_fields, inputs, listed, recipe_of
from mutua.runs.preparation import lengthened
from mutua.runs.result import ClientResult, Result, reported
from mutua.runs.saved_models import Card, Kept, SavedModel, put_model, put_weights, read
from mutua.support import safe_reading
from mutua.support.configuration import PathLike, local_path
from mutua.support.files import ASIDE, Lock, Together, plain, reason, sync, to_json, together, write
from mutua.support.growing_files import SCHEMA, Events, Mark, Table, torn
from mutua.support.importing import reading_untrusted_file
from mutua.support.processes import one_thread
from mutua.support.profiling import timed
from mutua.support.row_log import Upto
from mutua.support.tensor_files import Tensors
from mutua.support.text import some

LONG_RECIPE = 2**18
"""Shorter ones, in characters, are within the limits of what is read."""
BEGUN = ("recipe.yaml", "events.jsonl", "history.csv", "ledger.csv", "participation.csv", "lock")


class Record(Kept):
    """What run.json holds."""

    versions: dict[str, str]
    method: dict[str, Any]
    plan: Plan
    recipe: str | None = None
    """As it was executed, in YAML."""
    notes: tuple[str, ...] = ()
    summary: dict[str, Any]


class RunFolder:
    """A run's folder, made before the run begins so that a bad place is known at once."""

    def __init__(self, path: PathLike) -> None:
        path = local_path(path, "RUN")
        plain(path)
        self.path = path
        self.notes: list[str] = []
        """What was not whole when the run was taken up again."""
        self.events = Events(path / "events.jsonl")
        self.checkpoints = Checkpoints(path / "checkpoints")
        self._tables = (
            Table(path / "history.csv", Row._fields),
            Table(path / "ledger.csv", Entry._fields),
            Table(path / "participation.csv", Turn._fields),
        )
        self._standing: RunState | None = None
        self._code: list[str] = []
        self._recipe: Recipe | None = None
        self._accept, self._accepted = False, list[str]()
        self._longer = False
        self._unfinished: Marks | None = None
        self._lock: Lock | None = None

    @classmethod
    def create(
        cls, name: str, seed: int, out: PathLike | None = None, under: PathLike = "runs", field: str = "--out"
    ) -> RunFolder:
        """A new folder: `out`, which is empty or of a run that was killed before it began, else a dated one."""
        folder = cls(dated(name, f"-{seed}", under) if out is None else new_folder(out, _not_begun, field))
        folder._lock = Lock(folder.path, field)
        try:
            new_folder(folder.path, _not_begun, field)  # a run may have begun and ended there meanwhile
            for table in folder._tables:
                table.begin()
            sync(folder.path.parent)
        except OSError as error:
            folder._remove()
            raise _no_place(folder.path, error) from None
        return folder

    @classmethod
    def resume(cls, path: PathLike, accept: bool = False, rounds: int | None = None) -> RunFolder:
        """The folder of a run that was stopped, at its newest whole checkpoint, else at its beginning.

        What the run is made of must be as it was, unless changes are to be accepted. With `rounds` it becomes so
        long, also where it was finished.
        """
        path = local_path(path, "--resume")
        if not cls.begun(path):
            if not path.is_dir():
                raise InputError(f"--resume: {path} is not a folder; give the folder that 'mutua run' named")
            way_out = "give the folder that 'mutua run' named"
            if all(map(_not_begun, path.iterdir())):
                way_out = f"begin one there: mutua run RECIPE --out {shlex.quote(str(path))}"
            raise InputError(f"--resume: {path} has no recipe.yaml: no run has begun there; {way_out}")
        plain(path)
        lock = Lock(path, "--resume")
        folder = cls(path)
        folder._lock, folder._accept, folder._longer = lock, accept, rounds is not None
        try:
            folder._take_up()
            folder._recipe = folder._agreed(rounds)
        except OSError as error:
            raise InputError(f"--resume: cannot write to {path}: {error.strerror}") from None
        return folder

    @classmethod
    def open(cls, path: PathLike) -> RunFolder:
        """A folder that a run has left."""
        path = local_path(path, "RUN")
        if not (path / "run.json").is_file():
            what = "has no run.json: it is not a finished run's folder"
            if (path / "recipe.yaml").is_file():
                raise InputError(f"RUN: {path}: the run is not finished; to go on: mutua run --resume {path}")
            raise no_run(path, what)
        return cls(path)

    @staticmethod
    def begun(path: Path) -> bool:
        """Whether a run has begun there: it has written its recipe, which also a checkpoint holds."""
        return (path / "recipe.yaml").is_file() or any(path.glob("checkpoints/*.json"))

    @property
    def finished(self) -> bool:
        """Whether the run is over: run.json is written last."""
        return (self.path / "run.json").is_file()

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run, as it was executed."""
        return self._recipe or self._read_recipe(self.recorded)

    def _read_recipe(self, text: str | None = None) -> Recipe:
        """The recipe in this text, else in recipe.yaml; others may have written it."""
        path = self.path / "recipe.yaml"
        with reading_untrusted_file(path):
            return Recipe.load(path) if text is None else recipe_of(text)

    @property
    def recorded(self) -> str | None:
        """The recipe as it was executed, by the run's record or newest checkpoint: recipe.yaml may be edited."""
        told = self.record.recipe if self.finished else None
        return told or (None if self.made_of is None else self.made_of.recipe)

    def restore_recipe(self) -> None:
        """Write recipe.yaml anew where it was removed: damaged, perhaps."""
        path, told = self.path / "recipe.yaml", None
        if not path.is_file() and (told := self.recorded) is not None:
            write(path, told)
            self.notes.append("recipe.yaml was not there; it is written anew as the run's record has it")

    def _take_up(self) -> None:
        """Find where the run stands. What is not whole is said and stepped over: the run makes it again."""
        for path, why in self.checkpoints.damaged.items():
            self.notes.append(f"checkpoint {path.name} is damaged ({why}); it is stepped over")
        for table in self._tables:
            if table.path.is_file() and torn(table.path):
                self.notes.append(f"{table.path.name}: its last line is torn; it is stepped over")
        if self.events.mend():
            self.notes.append("events.jsonl: its last line is torn; it is stepped over")
        self._standing = RunState()
        while (newest := self.checkpoints.newest) is not None:
            try:
                self._standing, self._unfinished = self._load(newest), newest.unfinished
                break
            except (Damaged, OSError, ValueError) as error:
                self.notes.append(f"checkpoint of round {newest.round} is damaged ({error}); it is stepped over")
                self.checkpoints.step_over(newest, str(error))
        for table in self._tables:
            table.back(None if newest is None else _mark(newest, table))
        were, now = {} if newest is None else newest.versions, versions()
        for package in sorted(name for name in were.keys() & now if were[name] != now[name]):
            change = f"{were[package]} to {now[package]}"
            self.notes.append(f"{package} has changed from {change}: the bytes may not be the same")

    def _load(self, manifest: Manifest, marks: Marks | None = None) -> RunState:
        """Where the run stood; with the rows up to these marks, if given."""
        rows, entries, turns = History(), Ledger(), Participation()
        history, ledger, participation = self._tables
        upto = marks or manifest
        rows.extend(history.read(upto.history, _row))
        entries.extend(ledger.read(upto.ledger, _entry))
        if upto.participation is not None:
            turns.extend(participation.read(upto.participation, _turn))
        server, stores = self.checkpoints.load(manifest)
        return RunState(
            round=manifest.round,
            server=server,
            stores=stores,
            history=rows,
            ledger=entries,
            participation=turns,
            validation=manifest.validation,
            seconds=manifest.seconds,
        )

    def _agreed(self, rounds: int | None) -> Recipe:
        """The recipe as the run began with it, but for `rounds`; if it was edited, that is refused or accepted."""
        was, newest = self.made_of, self.checkpoints.newest
        self.restore_recipe()
        try:
            recipe = self._read_recipe()
        except InputError as error:
            file = self.path / "recipe.yaml"
            way_out = "put back the one that the run began with, or begin anew in another folder"
            if was is not None:
                way_out = f"remove {file}, and the same command writes it anew as the checkpoint has it"
            raise InputError(f"--resume: {file} cannot be used ({error}); {way_out}") from None
        if was is None:
            if rounds is not None and (newest is not None or self.finished):
                why = "an older mutua wrote its checkpoint" if newest else "its checkpoints are gone"
                raise InputError(f"--rounds: {self.path} cannot become longer, for {why}; begin a new run")
            if newest is not None:
                self.notes.append(
                    "an older mutua began this run; whether what it is made of has changed is not known"
                )
            return recipe if rounds is None else recipe.with_(rounds=rounds)
        began = self._read_recipe(was.recipe)
        if rounds is not None:
            self._lengthen(began, rounds)
            began, recipe = began.with_(rounds=rounds), recipe.with_(rounds=rounds)
        elif recipe.rounds != began.rounds:
            told = f"recipe.yaml: rounds was {began.rounds}, is {recipe.rounds}"
            raise InputError(f"--resume: {told}; say by --rounds how many the run is to have")
        fields = changed_fields(began.dump(), recipe.dump())
        self._changed(f"recipe.yaml: {change}" for change in fields)
        return recipe

    def _lengthen(self, began: Recipe, rounds: int) -> None:
        """Stand where a run planned so long would stand; refused where it would stand elsewhere."""
        newest, standing = self.checkpoints.newest, self._standing
        assert newest is not None and standing is not None
        done = max([standing.round, *(store.commits[-1].round for store in standing.stores.values())])
        try:
            lengthened(began, began.method, rounds, done)
        except InputError as error:
            raise InputError(f"--{error}") from None
        if rounds == began.rounds:  # as where the same command was killed before
            return
        marks = newest.unfinished
        if marks is not None:
            standing = self._load(newest, marks)
            for table, mark in zip(self._tables, (marks.history, marks.ledger, marks.participation), strict=True):
                table.back(mark)
        self._standing = standing.unfinished(began.rounds)

    def _become_longer(self, recipe: Recipe) -> None:
        """From a finished run, or one that was stopped, to a longer one; killed in between it is either."""
        assert self._standing is not None
        if self.checkpoints.newest is not None:
            self._write_checkpoint(self._standing, recipe.rounds)
            self.checkpoints.forget(after=self._standing.round)
        self.write_recipe(recipe)
        (self.path / "run.json").unlink(missing_ok=True)
        sync(self.path)
        for name in ("global", "clients"):  # of the shorter run
            shutil.rmtree(self.path / name, ignore_errors=True)
        if any(self.path.glob("newcomers/*")):
            self.notes.append("newcomers/: they joined the shorter run, and know nothing of the rounds to come")

    @property
    def made_of(self) -> Inputs | None:
        """What the run was made of when it was saved."""
        return None if self.checkpoints.newest is None else self.checkpoints.newest.inputs

    def _changed(self, changes: Iterable[str]) -> None:
        """Refuse changes, or go on with them and say so for good."""
        found = list(changes)
        if found and not self._accept:
            raise InputError(
                f"--resume: {listed(found)}; a run goes on with what it began with: undo that (recipe.yaml is "
                "written anew if you remove it; a path counts from where you are, a data set's name from "
                "--data-dir), begin a new run, or add --accept-changes"
            )
        assert self._standing is not None
        self._accepted += (f"since round {self._standing.round}: {change}" for change in found)

    def begin(self, recipe: Recipe, federation: Federation, show: Show | None = None) -> RunState:
        """Write down what begins, or what goes on; where the run stands. `show` how far hashing has come."""
        self._settings, self._saved = recipe.checkpoints, time.monotonic()
        self._inputs = inputs(recipe, federation, show)
        self._code = recipe.code
        if self._standing is None:
            self.write_recipe(recipe)
            about = {"method": recipe.method.name, "seed": recipe.seed, "rounds": recipe.rounds}
            clients = [client.id for client in federation.clients]
            self.events.add(
                "begun", schema=SCHEMA, **about, clients=clients, versions=versions(), command=command()
            )
            return RunState()
        if self.made_of is not None:
            self._changed(self.made_of.changed(self._inputs))
            earlier = self.made_of.accepted
            self._inputs = self._inputs.model_copy(update={"accepted": (*earlier, *self._accepted)})
        self.notes += (f"accepted {change}" for change in self._accepted)
        if self._longer:
            self._become_longer(recipe)
        for table in self._tables:  # only now: what is refused stays as it is
            table.cut()
        about = {"round": self._standing.round, "rounds": recipe.rounds}
        self.events.add("resumed", schema=SCHEMA, **about, versions=versions())
        for note in self.notes:
            self.events.add("note", text=note)
        return self._standing

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Around a run: whatever stops it, say how to go on; of a run that had not begun leave nothing."""
        try:
            yield
        except KeyboardInterrupt as signal:
            raise RunError(self._stopped(f"stopped by {str(signal) or 'Ctrl-C'}")) from None
        except RunError as error:
            raise RunError(self._stopped(str(error))) from error
        except (OSError, SafetensorError) as error:
            raise RunError(self._stopped(f"cannot write to {self.path}: {reason(error)}", "mend that; ")) from None
        except InputError:  # nothing has run
            if self._standing is None:
                self._remove()
            raise
        except Exception as error:  # a mistake in mutua or in a method of the user's own: its trace is needed
            if short_of_memory(error):
                raise RunError(self._stopped("there was no memory left", "free some; ")) from error
            error.add_note(self._stopped(f"stopped by {type(error).__name__}"))
            raise
        finally:
            if self._lock is not None:
                self._lock.free()

    def _stopped(self, why: str, first: str = "") -> str:
        if not (self.path / "recipe.yaml").is_file():
            self._remove()
            return why
        with suppress(OSError):
            self.events.add("stopped", reason=why)
        return f"{why}; {first}{self.to_go_on()}"

    def to_go_on(self) -> str:
        """What to type to go on with the run."""
        allow = "".join(f" --trust-code {name}" for name in self._code)
        return f"to go on: mutua run --resume {shlex.quote(str(self.path))}{allow}"

    def _remove(self) -> None:
        """Take away what a run that has not begun has left."""
        with suppress(OSError):
            for name in BEGUN:
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    def __call__(self, event: Event) -> None:
        """A callback: events, history and ledger grow with the rounds; now and then a checkpoint is written."""
        match event:
            case Started():
                self._rounds = event.job.plan.rounds
                if self._standing is not None and self._standing.round == self._rounds:
                    self._unfinished = self._marks
            case RoundStarted():
                self.events.add("round", round=event.round, clients=event.clients)
            case Trained():
                sent = 0 if event.reply.message is None else event.reply.message.nbytes
                seconds = round(event.reply.seconds, 3)
                self.events.add("trained", round=event.round, client=event.client, seconds=seconds, bytes=sent)
            case Rejected():
                self.events.add("rejected", round=event.round, client=event.client, reason=event.reason)
            case Retried():
                self.events.add("retried", round=event.round, client=event.client, reason=event.reason)
            case RoundEnded():
                self.events.add("ended", round=event.round, accuracy=_accuracy(event))
            case Reached():
                self._grow(event.standing)
                if event.standing.round == self._rounds:
                    self._unfinished = self._marks
                since = time.monotonic() - self._saved
                if event.standing.round > self._rounds or due(self._settings, event.standing.round, since):
                    self.save(event.standing)
            case Stopped():
                self._grow(event.standing)
                self.save(event.standing)

    def _grow(self, standing: RunState) -> None:
        logs: tuple[Sequence[Any], ...] = standing.history, standing.ledger, standing.participation
        kinds: tuple[Callable[..., Any], ...] = _row, _entry, _turn
        for table, rows, make in zip(self._tables, logs, kinds, strict=True):
            table.extend(rows)
            if isinstance(rows, Upto):
                rows.let_go(partial(table.first, len(rows), make))

    @timed("checkpoint")
    def save(self, standing: RunState) -> None:
        """Write a checkpoint, and remove those that need not be kept."""
        began = time.monotonic()
        for table in self._tables:
            sync(table.path)
        manifest = self._write_checkpoint(standing, self._rounds)
        self.checkpoints.sweep(self._settings.keep, self._settings.best)
        self._saved = time.monotonic()
        took = round(self._saved - began, 3)
        self.events.add("checkpoint", round=standing.round, bytes=manifest.bytes, seconds=took)
        sync(self.events.path)

    def _write_checkpoint(self, standing: RunState, rounds: int) -> Manifest:
        return self.checkpoints.write(
            standing,
            last=rounds + 1,
            inputs=self._inputs,
            validation=standing.validation,
            versions=versions(),
            unfinished=self._unfinished if standing.round > rounds else None,
            **dict(self._marks),
        )

    @property
    def _marks(self) -> Marks:
        """Where the files that grow end now."""
        history, ledger, participation = self._tables
        return Marks(history=history.mark, ledger=ledger.mark, participation=participation.mark)

    def write_recipe(self, recipe: Recipe) -> None:
        """The full recipe, defaults filled in; refused where nobody could read it again."""
        text = recipe.dump()
        try:
            if len(text) > LONG_RECIPE:
                safe_reading.from_yaml(text)
        except safe_reading.Unreadable as error:
            raise InputError(
                f"recipe: filled in with its defaults it could not be read again ({error}); "
                "have fewer clients, or deal one set of data to them (data and partition)"
            ) from None
        write(self.path / "recipe.yaml", text)

    def keep(self, result: Result, recipe: str) -> None:
        """All of a run that went on elsewhere, in Python, as if it had been recorded here."""
        job, self._inputs = result.job, Inputs(recipe=recipe, sums={})
        try:
            write(self.path / "recipe.yaml", recipe)
            about = {"method": job.method.name, "seed": job.plan.seed, "rounds": job.plan.rounds}
            clients = [client.id for client in result.clients]
            self.events.add("begun", schema=SCHEMA, **about, clients=clients, versions=versions())
            history, ledger, participation = self._tables
            history.extend(result.history)
            ledger.extend(result.ledger)
            participation.extend(result.participation)
            self.write(result)
        except (OSError, SafetensorError) as error:
            raise RunError(f"cannot write to {self.path}: {reason(error)}") from None
        finally:
            if self._lock is not None:
                self._lock.free()

    def write(self, result: Result) -> None:
        """Models, cards and, last, run.json: a folder that has it is whole."""
        job, shared = result.job, result.job.global_model
        with together() as files:
            if result.global_state is not None and shared is not None:
                first = min(result.federation.clients, key=lambda client: client.id).train
                card = Card.of(shared.spec(), first, share=shared.share, weights="weights.safetensors")
                if shared.share != "all":  # every client ends it in classes of its own
                    card = card.model_copy(update={"classes": ()})
                put_model(files, self.path / "global", {"weights": result.global_state}, card)
            modules = Modules(torch.device("cpu"))  # in which clients take turns: building one takes long
            with one_thread():
                for client in result.clients:
                    self._put_client(files, client, modules)
        record = Record(
            versions=versions(),
            method=base.section_of(job.method),
            plan=job.plan,
            recipe=self._inputs.recipe,
            notes=(*result.federation.notes, *(f"changed {change}" for change in self._inputs.accepted)),
            summary=result.summary(),
        )
        told = record.model_dump(mode="json")
        text = to_json(told)
        if len(text) > safe_reading.TEXT:  # of tens of thousands of clients; what is read again is not longer
            text = to_json(told, indent=None)
        write(self.path / "run.json", text + "\n")
        self.events.add("finished", seconds=round(result.seconds, 3))

    def _put_client(self, files: Together, client: ClientResult, modules: Modules) -> None:
        # What a method keeps beside models has a dot or a space in its name, or nothing in it.
        groups = {name: arrays for name, arrays in client.state.items() if name.isidentifier() and arrays}
        if not client.evaluated:
            put_weights(files, self.path / "clients" / client.id, groups)
            return
        model = client.serving(modules)
        predictor = model.state_dict()
        serving = next((name for name, arrays in groups.items() if _equal(arrays, predictor)), None)
        if serving is None:
            serving, groups = "predictor", {**groups, "predictor": predictor}
        place = self.path / "clients" / client.id
        card = Card.of(
            client.made_of,
            client.client.train,
            client=client.id,
            weights=f"{serving}.safetensors",
            accuracy=client.accuracy(),
        )
        put_model(files, place, groups, card)
        # Without its zeros: a matrix of thousands of classes would be larger than what is read again.
        table = {"classes": list(client.client.task.classes), "cells": client.confusion_cells(model)}
        text = to_json(table, indent=None) + "\n"
        if len(text) <= safe_reading.TEXT:  # else docs/runs.md says that there is none
            files.write(place / "confusion.json", text)

    @property
    def record(self) -> Record:
        """What run.json holds."""
        return read(self.path / "run.json", Record)

    def rows(self) -> tuple[History, Ledger]:
        """What was measured and what crossed, as far as the run has come."""
        history, ledger = History(), Ledger()
        try:
            history.extend(self._tables[0].whole(_row))
            ledger.extend(self._tables[1].whole(_entry))
        except (OSError, ValueError) as error:
            raise InputError(f"RUN: {self.path}: {reason(error)}") from None
        return history, ledger

    def participation(self) -> Participation:
        """Who was asked in which round, and what came of it."""
        turns = Participation()
        try:
            turns.extend(self._tables[2].whole(_turn))
        except (OSError, ValueError) as error:
            raise InputError(f"RUN: {self.path}: {reason(error)}") from None
        return turns

    def report(self) -> dict[str, Any]:
        """What `mutua run --json` printed."""
        return reported(self.record.summary)

    @property
    def method(self) -> base.Method:
        """The method of the run."""
        try:
            with reading_untrusted_file(self.path / "run.json"):
                return base.method_of(self.record.method)
        except InputError as error:
            raise InputError(f"RUN: {self.path / 'run.json'}: {error}") from None

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self.record.plan

    def clients(self) -> dict[str, Path]:
        """The folders of the clients and of those who joined later, by id."""
        places = sorted([*self.path.glob("clients/*/card.json"), *self.path.glob("newcomers/*/card.json")])
        return {card.parent.name: card.parent for card in places}

    def client(self, client_id: str, field: str = "--client") -> SavedModel:
        """The model that this client serves with."""
        known = self.clients()
        if client_id not in known:
            there = ", ".join(known) or "none"
            raise InputError(f"{field}: '{client_id}' is not in {self.path}; there are {there}")
        return SavedModel(known[client_id])

    def shared(self) -> SavedModel:
        """The global."""
        if not (self.path / "global").is_dir():
            raise InputError(
                f"RUN: {self.path} holds no global model, for method {self.record.method.get('name')} has none; "
                "a newcomer needs a run of a method that shares one, such as fml or fedavg"
            )
        return SavedModel(self.path / "global")


@cache
def versions() -> dict[str, str]:
    """Versions of everything that can change a number, and what the processor can do."""
    found = {"python": platform.python_version(), "mutua": mutua.__version__}
    for package in ("torch", "numpy", "pillow", "networkx", "dp-accounting", "pydantic", "safetensors"):
        with suppress(PackageNotFoundError):  # not everybody has the accountants
            found[package] = version(package)
    return {**found, "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"}


def command() -> str | None:
    """What was typed, where it was `mutua` and not a program that uses it."""
    program, *words = sys.argv
    return shlex.join(["mutua", *words]) if Path(program).stem == "mutua" else None


def new_folder(path: PathLike, but: Callable[[Path], bool] = lambda _: False, field: str = "--out") -> Path:
    """A folder that was not there or is empty `but` for such files; any other is refused: nothing is lost."""
    path = local_path(path, field)
    try:
        if path.is_dir() and not all(map(but, path.iterdir())):
            raise InputError(f"{field}: {path} is there already and not empty; name another or remove it")
        if path.exists() and not path.is_dir():
            raise InputError(f"{field}: {path} is a file; name a folder")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_place(path, error, field) from None
    return path


def no_run(path: Path, what: str) -> InputError:
    """Says that this is no run's folder: that there is none, that it is a comparison's, or else `what`."""
    if not path.is_dir():
        what = "is not a folder"
    elif (path / "comparison.json").is_file():
        runs = some([found.parent.name for found in sorted(path.glob("*/run.json"))])
        return InputError(f"RUN: {path} is a comparison; give one of its runs ({runs})")
    return InputError(f"RUN: {path} {what}; give the folder that 'mutua run' named")


def _not_begun(path: Path) -> bool:
    """Whether this is a file that a run leaves which is killed before it has written its recipe."""
    headers = {"history.csv": Row._fields, "ledger.csv": Entry._fields, "participation.csv": Turn._fields}
    try:
        if path.name == "lock":
            return path.stat().st_size <= 20
        if path.name in headers:
            header = ",".join(headers[path.name]) + "\n"
            return path.stat().st_size <= len(header) and header.startswith(path.read_text())
        return path.name == f"recipe.yaml{ASIDE}" and path.is_file()
    except (OSError, ValueError):
        return False


def _no_place(path: Path, error: OSError, field: str = "--out") -> InputError:
    return InputError(f"{field}: cannot write to {path}: {error.strerror}; name another place")


@contextmanager
def filling(path: PathLike) -> Iterator[Path]:
    """A new folder to be filled; it goes again where nothing came into it."""
    made = new_folder(path)
    try:
        yield made
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write to {made}: {reason(error)}") from None
    finally:
        with suppress(OSError):
            made.rmdir()  # which only removes an empty one


def _equal(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _accuracy(event: RoundEnded) -> dict[str, float | None]:
    """Of the global on the common test set and of the clients on their own, where the round was evaluated."""
    newest = {"global": event.history.newest("global"), "clients": event.history.newest("predictor")}
    return {of: point[1] if point and point[0] == event.round else None for of, point in newest.items()}


def _round(text: str) -> int:
    if not 0 <= (number := int(text)) < 2**31:
        raise ValueError(f"round {text[:20]}")
    return number


def _row(round: str, client: str, model: str, split: str, metric: str, value: str) -> Row:
    return Row(_round(round), client, model, split, metric, float(value) if value else None)


def _entry(
    round: str, client: str, direction: str, kind: str, name: str, arrays: str, values: str, size: str
) -> Entry:
    way: Direction = "up" if direction == "up" else "down"
    return Entry(_round(round), client, way, kind, name, int(arrays), int(values), int(size))


def _turn(round: str, client: str, outcome: str, reason: str) -> Turn:
    if outcome not in OUTCOMES:
        raise ValueError(f"'{outcome[:20]}' is no outcome")
    return Turn(_round(round), client, outcome, reason)


def _mark(manifest: Manifest, table: Table) -> Mark | None:
    """How far the table had come; None where an older mutua kept no such table."""
    found: Mark | None = getattr(manifest, table.path.stem)
    return found


def dated(name: str, end: str = "", under: PathLike = "runs") -> Path:
    """A new folder runs/NAME-DATE, with a number behind it where two begin in the same second."""
    path = local_path(under, "--out") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}{end}"
    numbered = (path.with_name(f"{path.name}-{n}") for n in count(2))
    place = path
    while True:
        try:
            place.mkdir(parents=True)
            return place
        except OSError as error:
            if not place.exists():
                raise _no_place(place, error) from None
            place = next(numbered)  # another process may have made it just now
