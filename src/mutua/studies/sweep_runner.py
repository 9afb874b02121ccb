"""Running a sweep: which runs wait, which are at work, what they report, and a second try where one is lost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from mutua.engines.choice import LOCAL, EngineChoice
from mutua.errors import RunError
from mutua.studies.sweep import PlannedRun, Sweep
from mutua.studies.sweep_processes import Ended, RunProcesses
from mutua.studies.sweep_work import News
from mutua.support import signals
from mutua.support.configuration import PathLike
from mutua.support.processes import MAX_ATTEMPTS

_SELDOM = 20
"""Results are written again after so many times as long as writing them took, and at the end."""

Watch = Callable[[News], None]


class RunPlaces(Protocol):
    """Where runs work: processes of this machine, or a cluster."""

    @property
    def places(self) -> int:
        """How many runs may well work at once."""

    def begin(self, run: PlannedRun) -> None:
        """Begin a run; an OSError says that there is no place for it now."""

    def heard(self, timeout: float | None) -> list[tuple[PlannedRun, News | Ended]]:
        """What runs reported; wait for so many seconds if there is nothing yet."""

    def stop(self) -> None:
        """Ask all runs to save and stop."""

    def close(self) -> None:
        """End what is still at work, at once."""


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
    workers: int | None = None,
    data_dir: PathLike | None = None,
    engine: EngineChoice = LOCAL,
    minutes: float | None = None,
) -> SweepOutcome:
    """Run what is not finished, so many at once, until all is or the time is up. Each run works in one process."""
    places = _places(engine, sweep, workers, data_dir)
    try:
        return _Runner(sweep, watch, places).run(workers or places.places, minutes)
    finally:
        places.close()


def _places(engine: EngineChoice, sweep: Sweep, workers: int | None, data_dir: PathLike | None) -> RunPlaces:
    if engine.name != "ray":
        return RunProcesses(data_dir, sweep.prepared)
    from mutua.studies.sweep_on_ray import RunsOnRay

    sweep.prepared.clear()  # runs are prepared on their nodes, which may have their own copy of the data
    return RunsOnRay(engine, sweep.place, workers, data_dir)


@dataclass
class _AtWork:
    attempt: int
    ended: bool = False
    """Whether it said how it ended."""


class _Runner:
    """A sweep at work: which runs wait, which are at work, and what came of the others."""

    def __init__(self, sweep: Sweep, watch: Watch, places: RunPlaces) -> None:
        self.sweep, self.watch, self.places = sweep, watch, places
        self.outcome = SweepOutcome()
        self.waiting = deque((run, 1) for run in sweep.runs if not run.finished)
        self.busy: dict[str, _AtWork] = {}
        """By label, since every run has its own."""
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
                    while waiting and len(busy) < workers and self._begin(waiting[0][0]):
                        run, attempt = waiting.popleft()
                        busy[run.label] = _AtWork(attempt)
                    for run, news in self.places.heard(max(0.0, min(1.0, until - time.monotonic()))):
                        self._hear(run, news)
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

    def _begin(self, run: PlannedRun) -> bool:
        """Whether the run is at work now; not where there is no place for it while others are at work."""
        for patience in (0.1, 0.3, 1.0, None):
            try:
                self.places.begin(run)
                return True
            except OSError as error:
                if self.busy:
                    return False
                if patience is None:
                    raise RunError(f"workers: {error.strerror}; {self._resume}") from None
                time.sleep(patience)
        return False

    def _hear(self, run: PlannedRun, news: News | Ended, *, stopping: bool = False) -> None:
        """Take in what a run reports. One that its machine lost goes on from its checkpoint, unless all stop."""
        one = self.busy[run.label]
        if isinstance(news, Ended):
            del self.busy[run.label]
            if one.ended:
                return
            why = news.why
            if news.machine and not stopping:
                if one.attempt < MAX_ATTEMPTS:
                    self.watch(News(run, "said", f"{why}; it goes on"))
                    self.waiting.append((run, one.attempt + 1))
                    return
                why += f", {MAX_ATTEMPTS} times"
            news = News(run, "failed", why)
        self._take(one, news)

    def _take(self, one: _AtWork, news: News) -> None:
        outcome = self.outcome
        one.ended = one.ended or news.what in ("done", "failed", "stopped")
        if news.what == "failed":
            outcome.failed[news.run.label] = news.text
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
            self.places.stop()
            while self.busy:
                for run, news in self.places.heard(None):
                    self._hear(run, news, stopping=True)
        except KeyboardInterrupt:
            self.places.close()

    def _write(self) -> None:
        """Write the sweep's files, which grow with the runs, and put off the next time so that it costs little."""
        began = time.monotonic()
        self.sweep.write()
        ended = time.monotonic()
        self._next_write, self._stale = ended + _SELDOM * (ended - began), False
