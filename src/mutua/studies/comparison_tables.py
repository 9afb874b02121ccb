"""The tables of a comparison and remarks on them, as data: a terminal and Python's `Comparison` show the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mutua.federation.plan import SELECTIONS, Selection
from mutua.studies.measures import (
    ABOUT,
    ComparableRun,
    alone_counterpart,
    alone_of_other_length,
    not_compared,
    trained_longer,
)
from mutua.studies.statistics import better_or_worse
from mutua.studies.summaries import Summaries, never_trained
from mutua.support.text import Sheet, several, size, spread

_SHOWN = ("global", "predictor", "acc")
"""The measures of a comparison that are shown."""
_OVER_CLIENTS = {"worst": "worst client", "spread_clients": "spread", "better_off": "better off"}
Summary = Mapping[str, Mapping[str, Any]]
"""What `summarise` makes: a row per cell."""


class NamedRun(ComparableRun, Protocol):
    """A run as remarks speak of it."""

    @property
    def cell_name(self) -> str:
        """The name of its row."""

    @property
    def stops_early(self) -> bool:
        """Whether its clients train until validation says stop."""


def comparison_tables(summary: Summary, selection: Selection, remarks: Sequence[str] = ()) -> list[Sheet]:
    """Accuracies with the remarks, numbers over clients and, with two seeds or more, paired differences."""
    tables = accuracy_table(summary, selection, remarks), clients_table(summary), differences_table(summary)
    return [table for table in tables if table.body]


def accuracy_table(summary: Summary, selection: Selection, remarks: Sequence[str] = ()) -> Sheet:
    """A row per cell and, indented below it, its difference to another."""
    measures = [key for key in _SHOWN if any(_known(row["accuracy"].get(key)) for row in summary.values())]
    rows = []
    for label, row in summary.items():
        rows.append((label, *(spread(row["accuracy"][key]) for key in measures), size(row["bytes"]["up"])))
        if label != row["minus"]:
            differences = (spread(row["difference"][key], sign=True) for key in measures)
            rows.append((f"  minus {row['minus']}", *differences, ""))
    title = f"accuracy (%) {SELECTIONS[selection]}: mean ± standard deviation over {_seeds(summary)}"
    explained = [f"{key}: {ABOUT[key]}" for key in measures]
    return Sheet(title, ("method", *measures, "sent"), rows, remarks=[*explained, *remarks], most=len(rows))


def clients_table(summary: Summary) -> Sheet:
    """A row per cell: its worst client, the spread over clients, how many are better off than alone."""
    shown = [key for key in _OVER_CLIENTS if any(_known(row["clients"][key]) for row in summary.values())]
    rows = [(label, *(spread(row["clients"][key]) for key in shown)) for label, row in summary.items()]
    remarks = ["spread: standard deviation over clients"]
    if "better_off" in shown:
        remarks.append("better off: clients (%) whose predictor is better than alone (independent)")
    title = "over clients: predictors' accuracy (%) on own test data"
    heads = ("method", *(_OVER_CLIENTS[key] for key in shown))
    return Sheet(title, heads, rows, remarks=remarks, most=len(rows))


def differences_table(summary: Summary) -> Sheet:
    """Paired differences over the same seeds, with 95 % intervals and verdicts; no rows with one seed."""
    rows = []
    for label, row in summary.items():
        for measure, found in row["difference"].items():
            if label != row["minus"] and measure in _SHOWN and found["low"] is not None:
                verdict = better_or_worse(found["low"], found["high"])
                interval = f"{100 * found['low']:+.1f} to {100 * found['high']:+.1f}"
                rows.append((label, row["minus"], measure, f"{100 * found['mean']:+.1f}", interval, verdict))
    title = "differences in the same seeds (percentage points; Student's t)"
    heads = ("method", "minus", "measure", "difference", "95 % interval", "")
    return Sheet(title, heads, rows, left=3, most=len(rows))


def comparison_remarks(runs: Sequence[NamedRun], summaries: Summaries) -> list[str]:
    """Where runs were not equally long, where alone trained less, and which clients never trained."""
    lengths, longer = dict[str, str](), dict[str, None]()
    for run in runs:
        rivals = [other for other in runs if other.seed == run.seed]
        if (rival := alone_of_other_length(run, rivals)) is not None:
            lengths[run.cell_name] = not_compared(run.cell_name, run, rival)
        if run.stops_early and (alone := alone_counterpart(run, rivals)) is not None and alone.length:
            longer[run.cell_name] = None
    unfair = [trained_longer(name) for name in longer]
    return [*lengths.values(), *unfair, *never_trained(summaries)]


def _known(found: Mapping[str, Any] | None) -> bool:
    return found is not None and found["mean"] is not None


def _seeds(summary: Summary) -> str:
    counts = [len(found["values"]) for row in summary.values() for found in row["accuracy"].values()]
    fewest, most = min(counts), max(counts)
    return several(most, "seed") if fewest == most else f"{fewest} to {most} seeds"
