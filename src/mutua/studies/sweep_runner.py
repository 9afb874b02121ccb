"""Running a sweep: one process per run, what it reports, and a second try where a process is killed."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import Any

from mutua import errors
from mutua.errors import MutuaError, RunError
from mutua.rounds.events import Event, Rejected, Retried, RoundEnded, Started
from mutua.rounds.preparation import prepare
from mutua.rounds.progress import newest_accuracies, rejection_text
from mutua.runs.execute import execute
from mutua.runs.folder import RunFolder
from mutua.runs.newcomer import HOWS, join_client, without_last
from mutua.runs.recording import Recorder
from mutua.runs.resuming import ResumedRecorder
from mutua.studies.measures import RunNumbers
from mutua.studies.sweep import PlannedRun, Sweep
from mutua.support import signals
from mutua.support.configuration import PathLike
from mutua.support.importing import trust
from mutua.support.processes import MAX_ATTEMPTS, can_fork, use_one_thread

_SELDOM = 20
"""Results are written again after so many times as long as writing them took, and at the end."""


@dataclass(frozen=True)
class News:
    """What a run reports while it works: a round is over, there is something to say, it has ended."""

    run: PlannedRun
    what: str
    text: str = ""
    round: int = 0
    rounds: int = 0


Watch = Callable[[News], None]


@dataclass
class SweepOutcome:
    """How a sweep went: why it was stopped, if it was, and what failed."""

    stopped: str = ""
    interrupted: bool = False
    """Whether somebody stopped it, rather than the clock."""
    failed: dict[str, str] = field(default_factory=dict)


def run_sweep(
    sweep: Sweep,
    watch: Watch,
    *,
    workers: int,
    data_dir: PathLike | None = None,
    engine: str = "local",
    minutes: float | None = None,
) -> SweepOutcome:
    """Run what is not finished, so many at once, until all is or the time is up."""
    return _Runner(sweep, watch, data_dir, engine).run(workers, minutes)


class _Runner:
    """A sweep at work: which runs wait, which have a process, and what came of the others."""

    def __init__(self, sweep: Sweep, watch: Watch, data_dir: PathLike | None, engine: str) -> None:
        self.sweep, self.watch, self.data_dir, self.engine = sweep, watch, data_dir, engine
        self.outcome = SweepOutcome()
        self.waiting = deque((run, 1) for run in sweep.runs if not run.finished)
        self.busy: dict[Connection, _Working] = {}
        self._next_write, self._stale = 0.0, True
        self._resume = f"to go on: the same command with --out {sweep.place}"

    def run(self, workers: int, minutes: float | None) -> SweepOutcome:
        """Until all is done, the time is up or somebody stops it."""
        until = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
        waiting, busy, outcome = self.waiting, self.busy, self.outcome
        self._write()
        with signals.handled(lambda: self._resume):
            try:
                while (waiting or busy) and not outcome.stopped:
                    while waiting and len(busy) < workers and (begun := self._begin(*waiting[0])):
                        busy[begun.line] = begun
                        waiting.popleft()
                    for line in wait(list(busy), timeout=max(0.0, min(1.0, until - time.monotonic()))):
                        one = busy[line]  # type: ignore[index]
                        if self._hear(one, again=one.attempt < MAX_ATTEMPTS):
                            waiting.append((one.run, one.attempt + 1))
                    if time.monotonic() >= until and (waiting or busy):
                        outcome.stopped = f"the time budget of {minutes:g} minutes is used up"
            except KeyboardInterrupt as heard:
                name = str(heard) or "Ctrl-C"
                outcome.stopped, outcome.interrupted = f"stopped by {name}", True
                signals.announce(name)
            finally:
                self._end()
                if self._stale:
                    self._write()
        return outcome

    def _begin(self, run: PlannedRun, attempt: int) -> _Working | None:
        """The run at work, or None where the system gives no process while others are at work."""
        for patience in (0.1, 0.3, 1.0, None):
            try:
                return _Working.begin(run, attempt, self.data_dir, self.engine)
            except OSError as error:
                if self.busy:
                    return None
                if patience is None:
                    raise RunError(f"workers: {error.strerror}; {self._resume}") from None
                time.sleep(patience)
        return None

    def _hear(self, one: _Working, again: bool = False) -> bool:
        """Take in what a run reports; whether its process was killed and it is to be tried `again`."""
        try:
            news: News = one.line.recv()
        except (EOFError, OSError):
            del self.busy[one.line]
            one.line.close()
            one.process.join()
            if one.ended:
                return False
            code = one.process.exitcode or 0
            why = f"its process ended with code {code}"
            if code < 0:  # seldom the run's own fault: it goes on from its checkpoint
                why = f"its process ended by signal {-code}"
                why += " (was memory short? use fewer --workers)" if code == -signal.SIGKILL else ""
                if again:
                    self.watch(News(one.run, "said", f"{why}; it goes on"))
                    return True
                why += f", {MAX_ATTEMPTS} times" if one.attempt == MAX_ATTEMPTS else ""
            news = News(one.run, "failed", why)
        self._take(one, news)
        return False

    def _take(self, one: _Working, news: News) -> None:
        outcome = self.outcome
        one.ended = one.ended or news.what in ("done", "failed", "stopped")
        if news.what == "failed":
            outcome.failed[one.run.label] = news.text
        elif news.what == "stopped":
            outcome.interrupted = outcome.interrupted or not outcome.stopped
            outcome.stopped = outcome.stopped or news.text
        elif news.what == "done":
            self._stale = True
            if time.monotonic() >= self._next_write:
                self._write()
        self.watch(news)

    def _end(self) -> None:
        """Ask the runs at work to save and stop, and wait for them; asked once more, end them at once."""
        try:
            for one in self.busy.values():
                one.process.terminate()
            while self.busy:
                for line in wait(list(self.busy)):
                    self._hear(self.busy[line])  # type: ignore[index]
        except KeyboardInterrupt:
            for one in self.busy.values():
                one.process.kill()
                one.process.join()

    def _write(self) -> None:
        """Write the sweep's files, which grow with the runs, and put off the next time so that it costs little."""
        began = time.monotonic()
        self.sweep.write()
        ended = time.monotonic()
        self._next_write, self._stale = ended + _SELDOM * (ended - began), False


@dataclass
class _Working:
    """A run at work in a process."""

    run: PlannedRun
    process: BaseProcess
    line: Connection
    attempt: int = 1
    ended: bool = False

    @classmethod
    def begin(cls, run: PlannedRun, attempt: int, data_dir: PathLike | None, engine: str) -> _Working:
        context: Any = multiprocessing.get_context("fork" if can_fork() else "spawn")
        line, end = context.Pipe(duplex=False)
        # A worker that keeps this end open would not see the pipe break when the sweep is killed.
        register_after_fork(line, Connection.close)
        process = context.Process(target=_work, args=(run, data_dir, engine, end), name=run.label)
        try:
            with signals.blocked():
                process.start()
        except OSError:
            line.close()
            raise
        finally:
            end.close()  # so that the pipe ends when the process does
        return cls(run, process, line, attempt)


def _work(run: PlannedRun, data_dir: PathLike | None, engine: str, line: Connection) -> None:
    """The run in a process of its own, from its beginning or its checkpoint."""
    # Ctrl-C and the end of a terminal reach all of its processes; the sweep passes the signal on, once.
    signals.ignore(except_for=signal.SIGTERM)
    signals.skip_announcement()
    use_one_thread()
    reporter = _Reporter(run, line)
    try:
        signals.unblock()
        _run(run, data_dir, engine, reporter)
        # From the folder: a run that was stopped after its last round has no round to report.
        ended = "done", newest_accuracies(RunNumbers(run.path).history)
    except KeyboardInterrupt:
        ended = "stopped", "stopped by SIGTERM"
    except MutuaError as error:
        stopped = isinstance(error.__context__, KeyboardInterrupt)
        if errors.tracebacks and not stopped:
            reporter.tell("said", "".join(traceback.format_exception(error)).rstrip())
        ended = "stopped" if stopped else "failed", str(error).partition("; to go on:")[0]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # there is nothing left to stop
    with suppress(KeyboardInterrupt):  # nobody watches any more
        reporter.tell(*ended)


def _run(run: PlannedRun, data_dir: PathLike | None, engine: str, reporter: _Reporter) -> None:
    federation = run.recipe.federation(data_dir)
    prepared = prepare(run.recipe.method, federation, run.recipe.plan())
    for note in prepared.notes:
        reporter.tell("note", note)
    if run.newcomer:
        federation, newcomer = without_last(federation)
    if not (run.path / "run.json").is_file():
        ready = federation if run.newcomer else prepared
        execute(run.recipe, ready, _recorder(run), engine=engine, workers=1, callbacks=[reporter])
    if run.newcomer:
        for how in HOWS:
            out = _cleared(run.path, how)
            join_client(RunFolder.open(run.path), newcomer, how=how, seed=run.seed, out=out)


def _cleared(run: Path, how: str) -> Path:
    """A folder for a newcomer, without what a killed process left there."""
    folder = run / "newcomers" / how
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _recorder(run: PlannedRun) -> Recorder:
    if RunFolder.begun(run.path):
        trust(*run.recipe.code)  # the user's own: a process that was not forked does not know it yet
        return ResumedRecorder(run.path)
    return Recorder.create(run.recipe.name, run.seed, run.path)


@dataclass
class _Reporter:
    """A callback: tells the sweep how far the run is."""

    run: PlannedRun
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
                self.tell("round", newest_accuracies(event.history), event.round)
