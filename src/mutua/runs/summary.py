"""A run's summary as people see it: the table that `print` shows, and what `--json` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mutua.federation.ledger import Ledger
from mutua.federation.plan import SELECTIONS
from mutua.learning.headline import Headline
from mutua.rounds.history import History
from mutua.support.line_chart import line_chart
from mutua.support.text import Sheet, of_width, several, size, some

REPORTED = ("method", "task", "seed", "rounds", "global", "clients", "bytes", "privacy", "seconds")


def sheet(summary: Mapping[str, Any], ledger: Ledger, left_out: Sequence[str]) -> Sheet:
    """A run in a few lines, from its summary and its ledger: what `print` shows."""
    models, of = ("predictor", "global"), Headline.of(summary)
    rows = [
        (
            c["id"],
            of_width(c["model"], c.get("width", 1)),
            f"{c['samples']:,}",
            *(of.shown(c[of.metric][model]) for model in models),
            size(ledger.bytes("up", c["id"])),
        )
        for c in summary["clients"]
    ]
    means = [of.shown(summary["mean"][model][of.metric]) for model in models]
    remarks = [f"{of.title} on each client's own test data {SELECTIONS[summary['selection']]}"]
    if (common := summary["global"][of.metric]) is not None:
        remarks += [f"the global on the common test set: {of.shown(common)}{of.unit}"]
    kinds = [f"{kind} ({name})" for kind, name in (label.split(": ", 1) for label in ledger.kinds("up"))]
    remarks += [f"left the clients: {some(kinds) or 'nothing'}"]
    remarks += left_out[:3]
    if len(left_out) > 3:
        remarks += [f"... and {len(left_out) - 3} more clients of which something went wrong"]
    title = f"{summary['method']}: {several(len(rows), 'client')}, {several(summary['rounds'], 'round')}"
    heads = ("client", "model", "samples", "predictor", "global", "sent")
    sums = [("mean", "", "", *means, size(summary["bytes"]["up"]))]
    return Sheet(f"{title}, seed {summary['seed']}", heads, rows, sums, remarks, left=2)


def notebook_page(run: Sheet, history: History) -> str:
    """The same for a notebook: the table, and the curves over rounds."""
    of = history.headline
    lines = {"clients (mean)": history.served_curve(), "global, common test set": history.global_curve()}
    return run.html() + line_chart(lines, "round", of.heading, of.shown)


def reported(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's summary that `--json` prints."""
    asked = () if summary.get("selection", "last") == "last" else ("selection",)
    known = [key for key in REPORTED if key != "task" or key in summary]
    return {key: summary.get(key) for key in (*known, *asked)}
