"""The tables of a comparison and remarks on them, as data: a terminal and Python's `Comparison` show the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mutua.federation.plan import SELECTIONS, Selection
from mutua.learning.headline import Headline
from mutua.studies.measures import (
    ABOUT,
    ComparableRun,
    alone_counterpart,
    alone_of_other_length,
    not_compared,
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
    of = _headline(summary)
    measures = [key for key in _SHOWN if any(_known(row[of.metric].get(key)) for row in summary.values())]
    rows = []
    for label, row in summary.items():
        rows.append((label, *(of.spread(row[of.metric][key]) for key in measures), size(row["bytes"]["up"])))
        if label != row["minus"]:
            differences = (of.spread(row["difference"][key], sign=True) for key in measures)
            rows.append((f"  minus {row['minus']}", *differences, ""))
    title = f"{_called(of)} {SELECTIONS[selection]}: mean ± standard deviation over {_seeds(summary)}"
    explained = [f"{key}: {ABOUT[key]}" for key in measures]
    return Sheet(title, ("method", *measures, "sent"), rows, remarks=[*explained, *remarks], most=len(rows))


def clients_table(summary: Summary) -> Sheet:
    """A row per cell: its worst client, the spread over clients, how many are better off than alone."""
    shown = [key for key in _OVER_CLIENTS if any(_known(row["clients"][key]) for row in summary.values())]
    of = _headline(summary)

    def cell(row: Mapping[str, Any], key: str) -> str:
        found = row["clients"][key]
        return spread(found) if key == "better_off" else of.spread(found)

    rows = [(label, *(cell(row, key) for key in shown)) for label, row in summary.items()]
    remarks = ["spread: standard deviation over clients"]
    if "better_off" in shown:
        remarks.append("better off: clients (%) whose predictor is better than alone (independent)")
    title = f"over clients: predictors' {_called(of)} on own test data"
    heads = ("method", *(_OVER_CLIENTS[key] for key in shown))
    return Sheet(title, heads, rows, remarks=remarks, most=len(rows))


def differences_table(summary: Summary) -> Sheet:
    """Paired differences over the same seeds, with 95 % intervals and verdicts; no rows with one seed."""
    rows, of = [], _headline(summary)
    for label, row in summary.items():
        for measure, found in row["difference"].items():
            if label != row["minus"] and measure in _SHOWN and found["low"] is not None:
                verdict = better_or_worse(found["low"], found["high"], of.lower_is_better)
                low, high, mean = (
                    of.spread({"mean": found[key], "std": None}, sign=True) for key in ("low", "high", "mean")
                )
                rows.append((label, row["minus"], measure, mean, f"{low} to {high}", verdict))
    unit = "percentage points" if of.in_percent else of.title
    title = f"differences in the same seeds ({unit}; Student's t)"
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


def _headline(summary: Summary) -> Headline:
    return Headline.of(next(iter(summary.values()), None))


def _called(of: Headline) -> str:
    return f"{of.name} (%)" if of.in_percent else of.title


def _known(found: Mapping[str, Any] | None) -> bool:
    return found is not None and found["mean"] is not None


def _seeds(summary: Summary) -> str:
    metric = _headline(summary).metric
    counts = [len(found["values"]) for row in summary.values() for found in row[metric].values()]
    fewest, most = min(counts), max(counts)
    return several(most, "seed") if fewest == most else f"{fewest} to {most} seeds"


def trained_longer(label: str) -> str:
    """What to know where clients train on after the last round, and those alone did not."""
    return (
        f"{label}: trained on after the last round until validation says stop; alone did not; to be fair to "
        "it, compare with independent:patience=10"
    )
