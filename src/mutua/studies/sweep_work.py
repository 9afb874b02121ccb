"""A run of a sweep, in the process that it is given to: from its beginning or its checkpoint, with news."""

from __future__ import annotations

import shutil
import signal
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mutua import errors
from mutua.errors import MutuaError
from mutua.rounds.events import Event, Rejected, Retried, RoundEnded, Started
from mutua.rounds.preparation import Prepared, prepare
from mutua.rounds.progress import newest_accuracies, rejection_text
from mutua.runs.execute import execute
from mutua.runs.folder import RunFolder
from mutua.runs.newcomer import HOWS, join_client, without_last
from mutua.runs.recording import Recorder
from mutua.runs.resuming import ResumedRecorder
from mutua.studies.measures import RunNumbers
from mutua.studies.sweep import PlannedRun
from mutua.support import signals
from mutua.support.configuration import PathLike
from mutua.support.importing import trust
from mutua.support.processes import use_one_thread


@dataclass(frozen=True)
class News:
    """What a run reports while it works: a round is over, there is something to say, it has ended."""

    run: PlannedRun
    what: str
    text: str = ""
    round: int = 0
    rounds: int = 0


class NewsLine(Protocol):
    """Where news go; an OSError says that nobody listens any more."""

    def send(self, news: News, /) -> None:
        """Send it."""


def do_run(run: PlannedRun, data_dir: PathLike | None, line: NewsLine, prepared: Prepared | None = None) -> None:
    """The run, in a process that does nothing else; it is prepared here unless it was already."""
    # Ctrl-C and the end of a terminal reach all of its processes; the sweep passes the signal on, once.
    signals.ignore(except_for=signal.SIGTERM)
    signals.skip_announcement()
    use_one_thread()
    reporter = _Reporter(run, line)
    try:
        signals.unblock()
        ready, began = prepared or _prepare(run, data_dir), time.process_time()
        try:
            _run(run, ready, reporter)
        finally:
            if run.path.is_dir():  # this process does nothing else
                RunFolder(run.path).events.add("processed", seconds=round(time.process_time() - began, 3))
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


def _prepare(run: PlannedRun, data_dir: PathLike | None) -> Prepared:
    return prepare(run.recipe.method, run.recipe.federation(data_dir), run.recipe.plan())


def _run(run: PlannedRun, prepared: Prepared, reporter: _Reporter) -> None:
    for note in prepared.notes:
        reporter.tell("note", note)
    if run.newcomer:
        federation, newcomer = without_last(prepared.given)
    if not (run.path / "run.json").is_file():
        ready = federation if run.newcomer else prepared
        execute(run.recipe, ready, _recorder(run), workers=1, callbacks=[reporter])
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
    line: NewsLine
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
