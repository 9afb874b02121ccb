"""Sweeps: every cell of a grid with every seed, each an ordinary run in a process of its own.

A sweep is its folder: cells that are finished there are skipped, those that were begun go on.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import Any

import torch

from mutua import errors
from mutua.engines.workers import TRIES, can_fork
from mutua.errors import InputError, MutuaError, RunError
from mutua.federation.federation import Federation
from mutua.methods import base
from mutua.recipe.grid import Cell
from mutua.recipe.recipe import Recipe
from mutua.rounds.loop import Event, Rejected, Retried, RoundEnded, Started
from mutua.rounds.progress import rejection_text, standing
from mutua.runs.execute import execute
from mutua.runs.folder import RunFolder, new_folder
from mutua.runs.inputs import inputs, listed
from mutua.runs.newcomer import HOWS, join_client, read_joined, without_last
from mutua.runs.preparation import prepared
from mutua.studies import comparing
from mutua.studies.comparing import COLUMNS, MARK
from mutua.studies.measures import Finished, Measure, alone, alone_otherwise, length, not_compared
from mutua.support import signals
from mutua.support.configuration import PathLike, local_path
from mutua.support.files import ASIDE, Lock, plain, together
from mutua.support.importing import trust

FEDERATION = ("data", "partition", "clients", "models", "public", "opt_out")
"""The keys of a recipe that make its federation, with the seed."""
SELDOM = 20
"""Results are written again after so many times as long as writing them took, and at the end."""


@dataclass(frozen=True)
class Planned:
    """One run of a sweep: a cell with a seed."""

    cell: Cell
    recipe: Recipe
    path: Path
    newcomer: bool = False
    """Whether the last client comes after the others have trained, and joins in every way there is."""

    @property
    def label(self) -> str:
        """The run in words."""
        return f"{self.cell.name}, seed {self.recipe.seed}"

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.recipe.seed

    @property
    def finished(self) -> bool:
        """Whether it is over, newcomers and all."""
        joined = not self.newcomer or all((self.path / "newcomers" / how / "join.json").is_file() for how in HOWS)
        return (self.path / "run.json").is_file() and joined

    def joined(self, how: str) -> float | None:
        """A newcomer's accuracy on its own test data: alone, or when it has joined in this way."""
        found = read_joined(self.path / "newcomers" / (how if how in HOWS else HOWS[0]))
        return found.accuracy.get("predictor" if how in HOWS else "alone")

    def check_inputs(self, federation: Federation) -> None:
        """Refuse what is not as it was when this run began: runs on other data cannot be compared with it."""
        was = RunFolder(self.path).made_of if self.path.is_dir() else None
        if was is None:
            return
        learned = without_last(federation)[0] if self.newcomer else federation
        if changes := was.changed(inputs(self.recipe, learned)):
            raise InputError(f"--out: {self.path} began otherwise: {listed(changes)}; name another folder for it")

    @property
    def method(self) -> str:
        """The method's name, or the path of a class of the user's own."""
        return base.recipe_name(self.recipe.method)

    @property
    def alone(self) -> bool:
        """Whether its clients train alone, in every round."""
        full = self.recipe.method.works_alone or self.recipe.client_fraction == 1
        return self.method == "independent" and full

    @property
    def length(self) -> str | None:
        """How long a client is to train."""
        recipe = self.recipe
        return (
            None
            if self.alone and recipe.method.stops_early
            else length(recipe.rounds, recipe.epochs, recipe.steps)
        )

    @property
    def position(self) -> Mapping[str, str]:
        """Its labels by axis."""
        return self.cell.labels

    @property
    def dealt(self) -> tuple[Any, ...]:
        """Which data its clients get."""
        recipe = self.recipe
        return self.seed, recipe.data, recipe.partition, [(entry.id, entry.data) for entry in recipe.clients or []]


@dataclass(frozen=True)
class News:
    """What a run says while it works: a round is over, it has something to say, it has ended."""

    run: Planned
    what: str
    text: str = ""
    round: int = 0
    rounds: int = 0


Watch = Callable[[News], None]


@dataclass
class Outcome:
    """How a sweep went: why it was stopped, if it was, and what failed."""

    stopped: str = ""
    interrupted: bool = False
    """Whether somebody stopped it, rather than the clock."""
    failed: dict[str, str] = field(default_factory=dict)


class Sweep:
    """A folder with a run a cell and seed; seeds are the outer loop, so that what is done is comparable."""

    def __init__(
        self,
        place: PathLike,
        cells: Sequence[tuple[Cell, Recipe]],
        seeds: Sequence[int],
        newcomer: bool = False,
    ) -> None:
        place = self.place = local_path(place, "--out")
        self.axes = list(cells[0][0].labels)
        names = comparing.folders([cell.name for cell, _ in cells])
        self.runs = [
            Planned(cell, recipe.with_(seed=seed), place / f"{folder}-{seed}", newcomer)
            for seed in seeds
            for (cell, recipe), folder in zip(cells, names, strict=True)
        ]
        self._read: dict[Path, Finished] = {}
        self._next, self._stale = 0.0, True

    @property
    def finished(self) -> list[Planned]:
        """The runs that are over."""
        return [run for run in self.runs if run.finished]

    def numbers(self, run: Planned) -> Finished:
        """A finished run's numbers."""
        return self._read.setdefault(run.path, Finished(run.path))

    def alone(self, run: Planned) -> Finished | None:
        """The numbers of the finished run in which the same clients train alone."""
        found = alone(run, [other for other in self.runs if other.seed == run.seed and other.finished])
        return None if found is None else self.numbers(found)

    def not_compared(self) -> list[str]:
        """A line for each cell whose clients alone have trained for longer or shorter."""
        finished, found = self.finished, dict[str, str]()
        for run in finished:
            rival = alone_otherwise(run, [other for other in finished if other.seed == run.seed])
            if rival is not None:
                found[run.cell.name] = not_compared(run.cell.name, run, rival)
        return list(found.values())

    def unfair(self) -> list[str]:
        """What to know where clients train on after the last round, and alone did not."""
        finished = self.finished
        rivals = [(run, alone(run, finished)) for run in finished if run.recipe.method.stops_early]
        longer = dict.fromkeys(run.cell.name for run, rival in rivals if rival is not None and rival.length)
        return [
            f"{name}: trained on after the last round until validation says stop; alone did not; to be fair to "
            "it, compare with independent:patience=10"
            for name in longer
        ]

    def check_recipes(self) -> None:
        """Refuse a folder that has runs of other recipes."""
        for run in self.runs:
            if RunFolder.begun(run.path) and RunFolder(run.path).recipe.dump() != run.recipe.dump():
                raise InputError(f"--out: {run.path} is of another recipe; name another folder or remove it")

    def check(self, data_dir: PathLike | None, field: str) -> None:
        """Refuse, before anything runs, what cannot; `field` is where the cells come from."""
        self.check_recipes()
        if len(self.finished) == len(self.runs):
            return
        held: tuple[Any, Federation | None] = None, None
        for run in self.runs:
            if run.seed != self.runs[0].seed:
                continue
            key = [getattr(run.recipe, name) for name in FEDERATION]
            if held[0] != key:
                held = key, run.recipe.federation(data_dir)
            assert held[1] is not None
            run.check_inputs(held[1])
            if run.finished:
                continue
            try:
                prepared(run.recipe.method, held[1], run.recipe)
            except InputError as error:
                raise InputError(f"{field}: '{run.cell.name}': {error}") from None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Have the folder, new or of the same sweep, alone; it goes again where nothing came into it."""
        plain(self.place)
        held = [path.name for path in self.place.iterdir()] if self.place.is_dir() else ["nothing"]
        # What a sweep leaves that was killed before it had written its first results.
        begun = all(name == "lock" or name.endswith(ASIDE) for name in held)
        if not begun and not _marked(self.place / MARK):
            new_folder(self.place)
        lock = Lock(self.place, "--out")
        try:
            yield
        finally:
            lock.free()
            with suppress(OSError):
                if not (self.place / MARK).is_file():
                    (self.place / "lock").unlink()
                    self.place.rmdir()

    def run(
        self,
        watch: Watch,
        *,
        workers: int,
        data_dir: PathLike | None = None,
        engine: str = "local",
        minutes: float | None = None,
    ) -> Outcome:
        """Run what is not finished, so many at once, until all is or the time is up."""
        waiting = deque((run, 1) for run in self.runs if not run.finished)
        until = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
        busy: dict[Connection, _Working] = {}
        outcome = Outcome()
        self.write()

        def begin(run: Planned, attempt: int) -> _Working | None:
            """The run at work, or None where the system gives no process while others are at work."""
            for patience in (0.1, 0.3, 1.0, None):
                try:
                    return _Working.begin(run, attempt, data_dir, engine)
                except OSError as error:
                    if busy:
                        return None
                    if patience is None:
                        raise RunError(
                            f"workers: {error.strerror}; to go on: the same command with --out {self.place}"
                        ) from None
                    time.sleep(patience)
            return None

        with signals.handled(lambda: f"to go on: the same command with --out {self.place}"):
            try:
                while (waiting or busy) and not outcome.stopped:
                    while waiting and len(busy) < workers and (begun := begin(*waiting[0])):
                        busy[begun.line] = begun
                        waiting.popleft()
                    for line in wait(list(busy), timeout=max(0.0, min(1.0, until - time.monotonic()))):
                        one = busy[line]  # type: ignore[index]
                        if self._hear(one, busy, outcome, watch, again=one.attempt < TRIES):
                            waiting.append((one.run, one.attempt + 1))
                    if time.monotonic() >= until and (waiting or busy):
                        outcome.stopped = f"the time budget of {minutes:g} minutes is used up"
            except KeyboardInterrupt as heard:
                name = str(heard) or "Ctrl-C"
                outcome.stopped, outcome.interrupted = f"stopped by {name}", True
                signals.announce(name)
            finally:
                self._end(busy, outcome, watch)
                if self._stale:
                    self.write()
        return outcome

    def _hear(
        self, one: _Working, busy: dict[Connection, _Working], outcome: Outcome, watch: Watch, again: bool = False
    ) -> bool:
        """Take in what a run says; whether its process was killed and it is to go on, if it may, `again`."""
        try:
            news: News = one.line.recv()
        except (EOFError, OSError):
            del busy[one.line]
            one.line.close()
            one.process.join()
            if one.ended:
                return False
            code = one.process.exitcode or 0
            why = f"its process ended with code {code}"
            if code < 0:  # what a process of ours dies of is seldom the run's own: it goes on where it stands
                why = f"its process ended by signal {-code}"
                why += " (was memory short? use fewer --workers)" if code == -signal.SIGKILL else ""
                if again:
                    watch(News(one.run, "said", f"{why}; it goes on"))
                    return True
                why += f", {TRIES} times" if one.attempt == TRIES else ""
            news = News(one.run, "failed", why)
        one.ended = one.ended or news.what in ("done", "failed", "stopped")
        if news.what == "failed":
            outcome.failed[one.run.label] = news.text
        elif news.what == "stopped":
            outcome.interrupted = outcome.interrupted or not outcome.stopped
            outcome.stopped = outcome.stopped or news.text
        elif news.what == "done":
            self._stale = True
            if time.monotonic() >= self._next:
                self.write()
        watch(news)
        return False

    def _end(self, busy: dict[Connection, _Working], outcome: Outcome, watch: Watch) -> None:
        """Ask what is at work to save and stop, and wait for it; asked once more, end it at once."""
        try:
            for one in busy.values():
                one.process.terminate()
            while busy:
                for line in wait(list(busy)):
                    self._hear(busy[line], busy, outcome, watch)  # type: ignore[index]
        except KeyboardInterrupt:
            for one in busy.values():
                one.process.kill()
                one.process.join()

    def write(self) -> None:
        """results.csv, a row a number of every finished run; comparison.csv and comparison.json."""
        began = time.monotonic()
        runs = [(run.cell.labels, run.seed, self.numbers(run)) for run in self.finished]
        with together() as files:
            files.write(self.place / MARK, comparing.results(self.axes, runs))
            comparing.write(files, self.place, self.summaries())
        # The files grow with the runs. So that writing them stays a small part of the time, not after every one.
        ended = time.monotonic()
        self._next, self._stale = ended + SELDOM * (ended - began), False

    def summary(self) -> dict[str, Any]:
        """By cell, mean and deviation over seeds and the differences to the first."""
        return comparing.summarise(self.summaries())

    def summaries(self) -> list[tuple[str, dict[str, Any]]]:
        """By cell's name, what every finished run says of itself, and what is known of its clients together."""
        found, finished = [], self.finished
        by_seed: dict[int, list[Planned]] = {}
        for run in finished:
            by_seed.setdefault(run.seed, []).append(run)
        for run in finished:
            other = alone(run, by_seed[run.seed])
            numbers, rival = self.numbers(run), None if other is None else self.numbers(other)
            over_clients = {name: numbers.measure(Measure(name), rival) for name in comparing.OVER_CLIENTS}
            more = {"cell": dict(run.cell.labels), "over_clients": over_clients}
            found.append((run.cell.name, {**numbers.summary, **more}))
        return found


@dataclass
class _Working:
    """A run at work in a process."""

    run: Planned
    process: BaseProcess
    line: Connection
    attempt: int = 1
    ended: bool = False

    @classmethod
    def begin(cls, run: Planned, attempt: int, data_dir: PathLike | None, engine: str) -> _Working:
        context: Any = multiprocessing.get_context("fork" if can_fork() else "spawn")
        line, end = context.Pipe(duplex=False)
        # A line that a worker holds open would not break when the one who listens is killed.
        register_after_fork(line, Connection.close)
        process = context.Process(target=_work, args=(run, data_dir, engine, end), name=run.label)
        try:
            with signals.blocked():
                process.start()
        except OSError:
            line.close()
            raise
        finally:
            end.close()  # so that the line ends when the process does
        return cls(run, process, line, attempt)


def _work(run: Planned, data_dir: PathLike | None, engine: str, line: Connection) -> None:
    """In a process of its own: the run, from its beginning or from where it stands."""
    # Ctrl-C reaches every process of a terminal, as its end does; the one that started this passes it on, once.
    signals.ignore(except_for=signal.SIGTERM)
    signals.skip_announcement()
    torch.set_num_threads(1)
    teller = _Teller(run, line)
    try:
        signals.unblock()
        _run(run, data_dir, engine, teller)
        # From the folder: a run that was stopped after its last round has no round to tell of.
        ended = "done", standing(Finished(run.path).history)
    except KeyboardInterrupt:
        ended = "stopped", "stopped by SIGTERM"
    except MutuaError as error:
        stopped = isinstance(error.__context__, KeyboardInterrupt)
        if errors.tracebacks and not stopped:
            teller.tell("said", "".join(traceback.format_exception(error)).rstrip())
        ended = "stopped" if stopped else "failed", str(error).partition("; to go on:")[0]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # there is nothing left to stop
    with suppress(KeyboardInterrupt):  # nobody watches any more
        teller.tell(*ended)


def _run(run: Planned, data_dir: PathLike | None, engine: str, teller: _Teller) -> None:
    federation = run.recipe.federation(data_dir)
    for note in prepared(run.recipe.method, federation, run.recipe).notes:
        teller.tell("note", note)
    if run.newcomer:
        federation, newcomer = without_last(federation)
    if not (run.path / "run.json").is_file():
        execute(run.recipe, federation, _folder(run), engine=engine, workers=1, callbacks=[teller])
    if run.newcomer:
        for how in HOWS:
            out = _cleared(run.path, how)
            join_client(RunFolder.open(run.path), newcomer, how=how, seed=run.seed, out=out)


def _cleared(run: Path, how: str) -> Path:
    """A place for a newcomer, without what a killed one has left there."""
    folder = run / "newcomers" / how
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _folder(run: Planned) -> RunFolder:
    if RunFolder.begun(run.path):
        trust(*run.recipe.code)  # which is the user's own: a process that was not forked does not know it yet
        return RunFolder.resume(run.path)
    return RunFolder.create(run.recipe.name, run.seed, run.path)


@dataclass
class _Teller:
    """A callback: tells the process that watches how far the run has come."""

    run: Planned
    line: Connection
    rounds: int = 0

    def tell(self, what: str, text: str = "", round: int = 0) -> None:
        try:
            self.line.send(News(self.run, what, text, round, self.rounds))
        except OSError:  # nobody watches any more: save and stop
            raise KeyboardInterrupt("the end of the sweep") from None

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                self.rounds = event.job.plan.rounds
                self.tell("begun")
            case Rejected():
                self.tell("said", rejection_text(event))
            case Retried():
                self.tell("said", f"round {event.round}: {event.client} again: {event.reason}")
            case RoundEnded():
                self.tell("round", standing(event.history), event.round)


def _marked(file: Path) -> bool:
    """Whether it is a sweep's file of results, and not somebody's who calls it so too."""
    with suppress(OSError, ValueError), file.open(encoding="utf-8") as lines:
        return lines.readline(2**16).rstrip("\n").endswith(",".join(COLUMNS))
    return False
