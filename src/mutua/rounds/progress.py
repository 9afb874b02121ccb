"""The progress of a run: a bar or lines on stderr, and its events in the log `mutua`; nothing on stdout."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.errors import LiveError
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from mutua import errors
from mutua.learning.headline import ACCURACY
from mutua.rounds.events import Callback, Event, Finished, Rejected, Retried, RoundEnded, Started, Stopped
from mutua.rounds.history import History
from mutua.rounds.notebook_bars import NotebookBars
from mutua.support.text import printable, several, size

err = Console(markup=False, emoji=False, highlight=False, stderr=True)

log = logging.getLogger("mutua")
log.addHandler(logging.NullHandler())  # silent unless a program configures it: progress has shown it already


@contextmanager
def watched(label: str, notes: Sequence[str], progress: bool) -> Iterator[list[Callback]]:
    """Around a run in Python: callbacks that log it and, if wanted, show its progress."""
    for note in notes:
        log.warning("%s: note: %s", label, printable(note))
    if not progress:
        yield [EventLogger(label)]
        return
    for note in notes:
        err.print(printable(f"note: {note}"), soft_wrap=True)
    with bars() as shown:
        yield [EventLogger(label), ProgressBar(label, shown)]


class EventLogger:
    """A callback: writes a run's events to the log; what goes wrong is a warning."""

    def __init__(self, label: str) -> None:
        self.label, self.rounds = label, 0

    def __call__(self, event: Event) -> None:
        """Log what the event says."""
        match event:
            case Started():
                plan, clients = event.job.plan, len(event.federation.clients)
                self.rounds = plan.rounds
                began = several(clients, "client"), several(plan.rounds, "round")
                log.info("%s: %s, %s, seed %d", self.label, *began, plan.seed)
            case Rejected():
                log.warning("%s: %s", self.label, rejection_text(event))
            case Retried():
                log.warning("%s: round %d: %s again: %s", self.label, event.round, event.client, event.reason)
            case RoundEnded() if log.isEnabledFor(logging.INFO):
                at = event.round, self.rounds, newest_accuracies(event.history)
                log.info("%s: round %d/%d: %s", self.label, *at)
            case Stopped():
                log.warning("%s: stopped after round %d", self.label, event.run_state.round)
            case Finished():
                log.info("%s: finished", self.label)


ShownBars = Progress | NotebookBars


@contextmanager
def bars(wanted: bool = True) -> Iterator[ShownBars | None]:
    """Progress bars on stderr or in a notebook; None if they are not wanted or there is nowhere to show them."""
    if wanted and err.is_jupyter:
        shown = NotebookBars()
        try:
            yield shown
        finally:
            shown.stop()
        return
    if not (wanted and err.is_terminal):
        yield None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[at]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
    )
    progress = Progress(*columns, console=err, expand=True)
    try:
        progress.start()
    except LiveError:  # another run in another thread shows its bars
        yield None
        return
    try:
        yield progress
    finally:
        progress.stop()


SHOWN_FROM = 10**9
"""Hashing of more bytes than this is shown: it takes about a second."""


class Hashing:
    """Shows the progress of hashing a run's inputs, if that takes long."""

    def __init__(self, progress: ShownBars | None) -> None:
        self.progress, self.task = progress, TaskID(-1)

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` bytes are hashed."""
        if total < SHOWN_FROM:
            return
        label = f"hashing {size(total)} of data, to know it again"
        if self.progress is None:
            if self.task < 0:
                _say(label)
                self.task = TaskID(0)
            return
        if self.task < 0:
            self.task = self.progress.add_task(label, total=total, at="", note="")
        self.progress.update(self.task, completed=done, visible=done < total)


class ProgressBar:
    """A callback: a bar over rounds in a terminal, a line at each evaluation elsewhere.

    With keep=False the bar of a finished run becomes a line, so that many runs fit into a terminal.
    """

    def __init__(self, label: str, progress: ShownBars | None, keep: bool = True) -> None:
        self.label, self.progress, self.keep = printable(label), progress, keep
        # Shown at once: a method may work for a long time before its first round.
        self.task = (
            TaskID(0) if progress is None else progress.add_task(self.label, total=None, at="", note="starting")
        )
        self.rounds, self.note = 0, ""

    def __call__(self, event: Event) -> None:
        """Show what the event says."""
        match event:
            case Started():
                self.rounds = event.job.plan.rounds
                if self.progress is not None:
                    self.progress.update(self.task, total=self.rounds)
            case Rejected():
                _say(rejection_text(event))
            case Retried():
                _say(f"round {event.round}: {event.client} again: {event.reason}")
            case RoundEnded():
                self._show(event.round, event.history)
            case Finished() if self.progress is not None and not self.keep:
                self.progress.remove_task(self.task)
                _say(f"{self.label}: {self.note}")

    def _show(self, round: int, history: History) -> None:
        self.note = newest_accuracies(history)
        if self.progress is not None:
            at = f"round {round}/{self.rounds}"
            self.progress.update(self.task, completed=round, at=at, note=self.note)
        elif history and history[-1].round == round and history[-1].split != "train":
            _say(f"{self.label}: round {round}/{self.rounds}, {self.note}")


class EndOfRun:
    """A callback: one line when a run is over, for many runs in a row."""

    def __init__(self, label: str) -> None:
        self.label, self.note = label, ""

    def __call__(self, event: Event) -> None:
        """Print how it ended, and who was left out."""
        match event:
            case Rejected():
                _say(f"{self.label}: {rejection_text(event)}")
            case RoundEnded():
                self.note = newest_accuracies(event.history)
            case Finished():
                _say(f"{self.label}: {self.note}")


def rejection_text(event: Rejected) -> str:
    """Who was left out and why; with the traceback if the user has asked for tracebacks."""
    text = f"round {event.round}: without {event.client}: {event.reason}"
    return f"{text}\n{event.trace.rstrip()}" if errors.tracebacks and event.trace else text


def newest_accuracies(history: History) -> str:
    """The newest accuracies, or what the task has: the global on the common test set, clients on their own."""
    shared, own, of = history.newest("global"), history.newest("predictor"), history.headline
    parts = [f"global {of.shown(shared[1])}{of.unit}"] if shared else []
    parts += [f"clients {of.shown(own[1])}{of.unit}"] if own else []
    said = ", ".join(parts)
    return said if of == ACCURACY or not parts else f"{of.name}: {said}"


def _say(text: str) -> None:
    err.print(printable(text), soft_wrap=True)
