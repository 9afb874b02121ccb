"""What people see in a terminal: progress while a run works, tables when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from mutua.history import History
from mutua.result import Result
from mutua.rounds import Event, Finished, Rejected, RoundEnded, RoundStarted, Started, Trained

# Results go to stdout, everything about the way there to stderr.
out = Console()
err = Console(stderr=True)


def percent(value: float | None) -> str:
    """A fraction as a percentage; a dash where there is none."""
    return "–" if value is None else f"{100 * value:.1f}"


def size(number: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


class ProgressBar:
    """A callback: a bar over rounds in a terminal, a line at each evaluation elsewhere."""

    def __init__(self, label: str, progress: Progress | None) -> None:
        self.label, self.progress = label, progress
        self.task: TaskID | None = None
        self.rounds, self.drawn, self.done = 0, 1, 0

    def __call__(self, event: Event) -> None:
        """Show what the event says."""
        match event:
            case Started():
                self.rounds = event.job.plan.rounds
                if self.progress is not None:
                    self.task = self.progress.add_task(self.label, total=self.rounds, note="starting")
            case RoundStarted():
                self.drawn, self.done = len(event.clients), 0
            case Trained():
                self.done += 1
            case Rejected():
                err.print(
                    f"[yellow]round {event.round}: reply of {event.client} refused: {event.reason}[/]",
                    highlight=False,
                )
            case RoundEnded():
                self._show(event.round, event.history)
            case Finished():
                if self.progress is not None and self.task is not None:
                    self.progress.update(self.task, completed=self.rounds)

    def _show(self, round: int, history: History) -> None:
        note = _standing(history)
        if self.progress is not None and self.task is not None:
            self.progress.update(self.task, completed=round, note=note)
        elif history.rows and history.rows[-1].round == round and history.rows[-1].split != "train":
            err.print(f"{self.label} round {round}/{self.rounds}  {note}", highlight=False)


def _standing(history: History) -> str:
    shared = history.select(client="global", metric="accuracy")
    own = history.curve("predictor")
    parts = [f"global {percent(shared[-1].value)} %"] if shared else []
    parts += [f"clients {percent(own[-1][1])} %"] if own else []
    return ", ".join(parts)


def progress() -> Progress:
    """Bars for rounds, on stderr."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=err,
    )


def show_result(result: Result) -> None:
    """One run: a row a client."""
    summary = result.summary()
    table = Table(title=f"{summary['method']}: accuracy (%) on each client's own test data, after the last round")
    for column in ("client", "model", "samples", "serves with", "global", "left the client"):
        table.add_column(column, justify="left" if column in ("client", "model") else "right")
    for client in summary["clients"]:
        left = result.ledger.bytes("up", client["id"])
        kinds = ", ".join(result.ledger.kinds("up", client["id"])) or "nothing"
        table.add_row(
            client["id"],
            client["model"],
            str(client["samples"]),
            percent(client["accuracy"]["predictor"]),
            percent(client["accuracy"]["global"]),
            f"{size(left)} ({kinds})" if left else "nothing",
        )
    mean = summary["mean"]
    table.add_section()
    table.add_row(
        "mean",
        "",
        "",
        percent(mean["predictor"]["accuracy"]),
        percent(mean["global"]["accuracy"]),
        size(summary["bytes"]["up"]),
    )
    out.print(table)
    if summary["global"]["accuracy"] is not None:
        out.print(
            f"global on the common test set: {percent(summary['global']['accuracy'])} %, "
            f"loss {summary['global']['loss']:.3f}",
            highlight=False,
        )


def show_comparison(summary: dict[str, Any], notes: Sequence[str] = ()) -> None:
    """Several methods over seeds: a row a method."""
    first = next(iter(summary))
    names = {
        "global": "global, common test",
        "predictor": "predictors, own test",
        "acc": "predictors, all domains",
    }
    shown = {
        key: name
        for key, name in names.items()
        if any(_known(row["accuracy"].get(key)) for row in summary.values())
    }
    table = Table(title="accuracy (%) after the last round: mean ± standard deviation over seeds")
    table.add_column("method")
    for name in shown.values():
        table.add_column(name, justify="right")
        table.add_column(f"Δ to {first}", justify="right")
    table.add_column("bytes up", justify="right")
    for label, row in summary.items():
        cells = []
        for key in shown:
            cells.append(_spread(row["accuracy"][key]))
            cells.append("" if label == first else _spread(row["difference"][key], sign=True))
        table.add_row(label, *cells, size(row["bytes"]["up"]))
    out.print(table)
    for note in notes:
        out.print(note, highlight=False)


def _known(found: dict[str, Any] | None) -> bool:
    return found is not None and found["mean"] is not None


def _spread(found: dict[str, Any], sign: bool = False) -> str:
    if found["mean"] is None:
        return "–"
    return f"{100 * found['mean']:{'+' if sign else ''}.1f} ± {100 * found['std']:.1f}"
