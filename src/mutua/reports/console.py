"""What people see in a terminal: progress while a run works, tables when it is done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from mutua.errors import line
from mutua.federation.plan import SELECTIONS
from mutua.methods import base
from mutua.rounds.progress import Hashing as Hashing
from mutua.rounds.progress import ProgressBar as ProgressBar
from mutua.rounds.progress import ShownBars
from mutua.rounds.progress import bars as bars
from mutua.rounds.progress import err as err
from mutua.runs.result import Result
from mutua.support.profiling import Profile
from mutua.support.text import Sheet, of_width, printable, several, size

if TYPE_CHECKING:
    from mutua.studies.sweep_work import News

# Results go to stdout, progress and notes to stderr. Names of users are printed as they are, not as markup.
out = Console(markup=False, emoji=False, highlight=False)


def say(text: str, to: Console | None = None) -> None:
    """Print text; only the terminal breaks its lines."""
    (to or out).print(printable(text), soft_wrap=True)


class _Cells(Table):
    """A table in which no text can move the cursor."""

    def add_row(self, *cells: Any, **more: Any) -> None:
        """Add a row of text."""
        super().add_row(*(printable(cell) if isinstance(cell, str) else cell for cell in cells), **more)


def table(left: Sequence[str], right: Sequence[str] = ()) -> Table:
    """An empty table: columns of text, which wrap where they are narrow, then columns of numbers."""
    made = _Cells(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in left:
        made.add_column(printable(name), overflow="fold")
    for name in right:
        made.add_column(printable(name), justify="right", no_wrap=True)
    return made


def show_table(title: str, table: Table, *remarks: str) -> None:
    """Print a title, a table and remarks on it."""
    say(f"{title}\n")
    out.print(table)
    say("")
    for remark in remarks:
        say(remark)


def show_sheets(*sheets: Sheet) -> None:
    """Print tables that were built as data; indented rows belong to the row above them, and are dim."""
    for k, sheet in enumerate(sheets):
        drawn = table(sheet.heads[: sheet.left], sheet.heads[sheet.left :])
        for row in sheet.body:
            drawn.add_row(*row, style="dim" if row[0].startswith("  ") else None)
        drawn.add_section()
        for row in sheet.sums:
            drawn.add_row(*row)
        show_table("\n" * (k > 0) + sheet.title, drawn, *sheet.remarks)


def event_line(event: Mapping[str, Any]) -> str:
    """An event of a run in one line: when, what, and its details."""
    facts = {key: value for key, value in event.items() if key not in ("event", "time", "versions", "schema")}
    said = ", ".join(f"{key} {value}" for key, value in facts.items())
    return line(f"{event.get('time')} {event.get('event')}{': ' if said else ''}{said}")


class SweepBars:
    """Watches a sweep: in a terminal one bar for all runs and one per run at work; a line when a run ends."""

    def __init__(self, runs: int, finished: int, progress: ShownBars | None, notes_only: bool = False) -> None:
        self.runs, self.finished, self.progress, self.notes_only = runs, finished, progress, notes_only
        self._todo, self._began = runs - finished, time.monotonic()
        self._tasks: dict[str, TaskID] = {}
        self._part: dict[str, float] = {}
        self._said: set[str] = set()
        self._all = TaskID(0)
        if progress is not None:
            self._all = progress.add_task("all runs", total=self._todo, at=self._count, note="")

    def __call__(self, news: News) -> None:
        """Show what a run says."""
        label, at = news.run.label, f"round {news.round}/{news.rounds}"
        match news.what:
            case "note" if news.text not in self._said:
                self._said.add(news.text)
                show_notes([news.text])
            case "failed":
                say(f"{label}: failed: {news.text}", err)
            case "said" if not self.notes_only:
                say(f"{label}: {news.text}", err)
            case "done":
                self.finished += 1
                self._part[label] = 1.0
                if not self.notes_only:
                    left = f", {self._left()}" if self.finished < self.runs else ""
                    say(f"{label}: round {news.rounds}/{news.rounds}, {news.text} ({self._count}{left})", err)
            case "round":
                self._part[label] = news.round / max(news.rounds, 1)
        if self.progress is not None:
            self._draw(news, label, at)

    def _draw(self, news: News, label: str, at: str) -> None:
        assert self.progress is not None
        if news.what == "begun":
            self._tasks[label] = self.progress.add_task(printable(label), total=news.rounds, at="", note="")
        elif news.what == "round" and label in self._tasks:
            self.progress.update(self._tasks[label], completed=news.round, at=at, note=news.text)
        elif news.what in ("done", "failed", "stopped") and label in self._tasks:
            self.progress.remove_task(self._tasks.pop(label))
        self.progress.update(self._all, completed=sum(self._part.values()), at=self._count)

    @property
    def _count(self) -> str:
        return f"{self.finished} of {self.runs} runs"

    def _left(self) -> str:
        done = sum(self._part.values())
        minutes = (time.monotonic() - self._began) / done * (self._todo - done) / 60
        return f"about {minutes:.0f} min left" if minutes >= 1 else "less than a minute left"


@contextmanager
def download_bar(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on stderr; the function that moves it takes the bytes that have come and, if known, the total."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=err)
    task = bar.add_task(name, total=None)

    def move(done: int, total: int | None) -> None:
        bar.start()  # not before: a mistake in the name is one line
        bar.update(task, completed=done, total=total)

    try:
        yield move
    finally:
        if bar.live.is_started:
            bar.stop()


def show_notes(notes: Sequence[str]) -> None:
    """Print notes on stderr."""
    for note in notes:
        say(f"note: {note}", err)


def what_left(result: Result) -> str:
    """The kinds and names of all that left the clients."""
    kinds = [label.split(": ") for label in result.ledger.kinds("up")]
    return ", ".join(f"{kind} ({name})" for kind, name in kinds) or "nothing"


def method_options(method: base.Method) -> str:
    """A method's options, defaults included."""
    given = {key: value for key, value in base.section_of(method).items() if key != "name" and value is not None}
    return ", ".join(f"{key} {option_text(value)}" for key, value in given.items())


def option_text(value: Any) -> str:
    """An option's value; a section is its name and, in brackets, its own options: trimmed-mean (share 0.2)."""
    named = [key for key in ("name", "schedule") if key in value] if isinstance(value, Mapping) else []
    if not named:
        return str(value)
    own = ", ".join(f"{key} {inner}" for key, inner in value.items() if key not in named and inner is not None)
    return f"{value[named[0]]} ({own})" if own else str(value[named[0]])


def show_result(result: Result) -> None:
    """A run's result: a row per client."""
    summary = result.summary()
    opting, of = any(client["opted_out"] for client in summary["clients"]), result.history.headline
    columns = ["samples", *["opted out"] * opting, "answered", "predictor", "global", "sent"]
    clients, mean = table(["client", "model"], columns), summary["mean"]
    for client in summary["clients"]:
        scores = [of.shown(client[of.metric][model]) for model in ("predictor", "global")]
        sent = size(result.ledger.bytes("up", client["id"]))
        part = client["participation"]
        rounds = f"{part['answered']}/{part['asked']}"
        held = [str(client["samples"]), *[str(client["opted_out"])] * opting]
        model = of_width(client["model"], client["width"])
        clients.add_row(client["id"], model, *held, rounds, *scores, sent)
    clients.add_section()
    for label, key, sent in (
        ("mean", of.metric, size(summary["bytes"]["up"])),
        ("weighted", f"{of.metric}_by_samples", ""),
    ):
        scores = [of.shown(mean[model][key]) for model in ("predictor", "global")]
        clients.add_row(label, "", "", "", *[""] * opting, *scores, sent)
    remarks = [
        "predictor: the model that a client serves with; weighted: by test samples",
        "answered: rounds in which its work was accepted / rounds it was asked for",
        *_few(result.left_out()),
        f"left the clients: {what_left(result)}",
        f"differential privacy: {result.guarantee or 'none'}",
    ]
    if (common := summary["global"][of.metric]) is not None:
        remarks += [f"global on the common test set: {of.shown(common)}{of.unit}, {_loss(summary)}"]
    if summary["domains"] is not None:
        within, across, over_all = (f"{of.shown(value)}{of.unit}" for value in summary["domains"].values())
        remarks += [f"predictors: own domain {within}, the others' {across}, all {over_all}"]
    plan = result.job.plan
    if plan.steps is not None and plan.steps > 1:
        remarks += [f"{plan.rounds} rounds of {plan.steps}: {plan.rounds * plan.steps} local steps per client"]
    models = [client.model for client in result.federation.clients] + [result.job.global_model]
    files = dict.fromkeys(str(model.init) for model in models if model is not None and model.init is not None)
    remarks += [f"models start from {', '.join(files) or 'scratch'}"]
    if told := method_options(result.job.method):
        remarks += [f"options: {told}"]
    when = SELECTIONS[plan.selection]
    what = f"{of.name} (%)" if of.in_percent else of.title
    show_table(f"{summary['method']}: {what} on each client's own test data {when}", clients, *remarks)


def _few(said: Sequence[str], most: int = 10) -> list[str]:
    """The first lines, and how many more there are."""
    return [*said[:most], *([f"and {len(said) - most} more clients: see run.json"] if len(said) > most else [])]


def show_profile(profile: Profile, to: Console) -> None:
    """Print where the time of a run went."""
    seconds = profile.seconds()
    whole = sum(seconds.values()) or 1.0
    rows = table(["what"], ["CPU seconds", "share"])
    for what, took in seconds.items():
        rows.add_row(what, f"{took:.2f}", f"{took / whole:.0%}")
    wall = profile.ended - profile.began
    title = f"where {wall:.1f} s on {several(profile.workers, 'worker')} went"
    to.print(title, rows, sep="\n", end="\n\n")
    say("trace.json in the run's folder shows who did what when: open it in ui.perfetto.dev", to)


def _loss(summary: dict[str, Any]) -> str:
    loss = summary["global"]["loss"]
    if loss is None or not math.isfinite(loss):
        return "no finite loss: the model has diverged, a lower optimizer.lr may help"
    return f"loss {loss:.3f}"
