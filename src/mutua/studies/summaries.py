"""What the runs of a comparison say together, and its files: results.csv, comparison.csv, comparison.json."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from mutua.learning.headline import Headline
from mutua.recipe.grid import facets
from mutua.rounds.participation import never_drawn
from mutua.studies.measures import ComparableRun, Measure, RunNumbers, alone_counterpart, counted_in_all, counts
from mutua.studies.statistics import BySeed, Difference, Spread, paired
from mutua.support.files import AtomicFiles, to_json
from mutua.support.text import some, spreadsheet_csv

_MEASURES = ("global", "predictor")
_DOMAINS = ("wdp", "cdp", "acc")
OVER_CLIENTS = ("worst", "spread_clients", "better_off")
COMPARED = ("method", "seed", "client", "model", "selection")
"""Columns of comparison.csv before that of the metric."""
COLUMNS = ("seed", "client", "model", "split", "metric", "value")
RESULTS = "results.csv"
"""A folder with this file holds many runs."""

OVER_BOTH = "differences: over the clients whose predictors count in both runs of a pair"

Summaries = Sequence[tuple[str, dict[str, Any]]]
"""Of every run the name of its cell, and what it says of itself and of its clients together."""
_Run = TypeVar("_Run", bound=ComparableRun)


def run_summaries(runs: Iterable[tuple[str, _Run, RunNumbers]]) -> list[tuple[str, dict[str, Any]]]:
    """The summaries of runs that are given as the name of a cell, the run and its numbers."""
    by_seed: dict[int, list[_Run]] = {}
    named = list(runs)
    for _, run, _ in named:
        by_seed.setdefault(run.seed, []).append(run)
    numbers = {id(run): mine for _, run, mine in named}
    found = []
    for name, run, mine in named:
        rival = alone_counterpart(run, by_seed[run.seed])
        beside = None if rival is None else numbers[id(rival)]
        told = {**mine.summary, "cell": dict(run.position)}
        told["over_clients"] = {measure: mine.measure(Measure(measure), beside) for measure in OVER_CLIENTS}
        if mine.summary["domains"]:
            told["domains_by_client"] = {measure: mine.by_client(measure) for measure in _DOMAINS}
        found.append((name, told))
    return found


def summarise(runs: Summaries) -> dict[str, Any]:
    """By cell: mean and standard deviation over seeds, and the paired difference to the cell that it names.

    That is the first cell or, where a grid has other axes beside `method`, the first of the same labels there.
    """
    beside = facets({label: run["cell"] for label, run in runs}).values()
    first = {label: members[0] for members in beside for label in members}
    measures = _MEASURES + (_DOMAINS if runs and all(run["domains"] for _, run in runs) else ())
    of: dict[str, dict[int, dict[str, Any]]] = {}
    for label, run in runs:
        of.setdefault(label, {})[run["seed"]] = run
    return {label: {"minus": first[label], **_row(mine, of[first[label]], measures)} for label, mine in of.items()}


def _row(
    mine: Mapping[int, dict[str, Any]], first: Mapping[int, dict[str, Any]], measures: Sequence[str]
) -> dict[str, Any]:
    runs = list(mine.values())
    headline = Headline.of(runs[0])

    def by_seed(of: Mapping[int, dict[str, Any]], beside: Mapping[int, dict[str, Any]], measure: str) -> BySeed:
        both = {seed: counted_in_all(run, beside[seed]) for seed, run in of.items() if seed in beside}
        return {seed: _accuracy(of[seed], measure, among) for seed, among in both.items()}

    return {
        **({"task": runs[0]["task"]} if "task" in runs[0] else {}),
        headline.metric: {name: _spread([_accuracy(run, name) for run in runs]) for name in measures},
        "difference": {
            name: _difference(by_seed(mine, first, name), by_seed(first, mine, name), headline)
            for name in measures
        },
        "clients": {name: _spread([run["over_clients"][name] for run in runs]) for name in OVER_CLIENTS},
        "bytes": {way: fmean([run["bytes"][way] for run in runs]) for way in ("up", "down")},
    }


def _accuracy(run: dict[str, Any], model: str, among: Set[str] | None = None) -> float | None:
    """The global on the common test set; predictors on their clients' own test data, mean over clients.

    Where clients have domains, also their predictors within, across and over all domains. The mean is over all
    clients that count, or over those `among` these.
    """
    metric = Headline.of(run).metric
    if model != "global" and among is not None:
        own = {client["id"]: client[metric]["predictor"] for client in run["clients"]}
        of = run["domains_by_client"][model] if model in _DOMAINS else own
        known = [float(of[client]) for client in own if client in among and client in of]
        return fmean(known) if known else None
    if model in _DOMAINS:
        return None if run["domains"][model] is None else float(run["domains"][model])
    found = run["global"][metric] if model == "global" else run["mean"]["predictor"][metric]
    return None if found is None else float(found)


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    found = Spread.of(values)
    return {"mean": found.mean, "std": found.sd, "values": list(values)}


def _difference(a: BySeed, b: BySeed, headline: Headline) -> dict[str, Any]:
    sides = paired(a, b)
    found = Difference.of_pairs(*sides)
    if headline.in_percent:
        found = found.within(1)
    values = [None if x is None or y is None else x - y for x, y in zip(*sides, strict=True)]
    return {"mean": found.mean, "std": found.sd, "values": values, "low": found.low, "high": found.high}


def results_csv(axes: Sequence[str], runs: Iterable[tuple[Mapping[str, str], int, RunNumbers]]) -> str:
    """results.csv: one row per number of every run, with the run's labels on the axes and its seed."""
    head = [*(f"grid.{axis}" if axis in COLUMNS else axis for axis in axes), *COLUMNS]
    rows = (
        [*(labels[axis] for axis in axes), seed, *row] for labels, seed, numbers in runs for row in numbers.rows
    )
    return spreadsheet_csv(chain([head], rows))


def compared(runs: Summaries) -> list[str]:
    """The columns of comparison.csv: the last is the metric that runs are compared by."""
    return [*COMPARED, Headline.of(runs[0][1]).metric if runs else "accuracy"]


def comparison_rows(runs: Summaries) -> list[tuple[Any, ...]]:
    """The accuracy, or what the task has, of every run's global, and of predictor and global at every client."""
    made = []
    for label, run in runs:
        metric = Headline.of(run).metric
        found = [("global", "global", run["global"][metric])]
        found += [(c["id"], model, value) for c in run["clients"] for model, value in c[metric].items()]
        made += [(label, run["seed"], client, model, run["selection"], value) for client, model, value in found]
    return made


def never_trained(runs: Summaries) -> list[str]:
    """A line for each run with clients whose own model never trained, and what that is to differences."""
    found = []
    for label, run in runs:
        if out := [client["id"] for client in run["clients"] if not client.get("trained", True)]:
            undrawn = some([client["id"] for client in run["clients"] if never_drawn(client)])
            why = f" (never drawn: {undrawn})" if undrawn else ""
            found.append(
                f"{label}, seed {run['seed']}: {some(out)} never trained: out of the predictors' means{why}"
            )
    if not all(counts(client) for _, run in runs for client in run["clients"]):
        found.append(OVER_BOTH)
    return found


def folder_names(names: Sequence[str]) -> list[str]:
    """A folder name for each cell, all different."""
    plain = [re.sub(r"[^\w.=-]+", "-", name)[:80] for name in names]
    return [name if plain.count(name) == 1 else f"{name}-{i}" for i, name in enumerate(plain)]


def write_comparison(files: AtomicFiles, folder: Path, runs: Summaries) -> None:
    """comparison.csv, one row per cell, seed, client and model, and comparison.json with the summary."""
    report = {"runs": [{**run, "method": label} for label, run in runs], "summary": summarise(runs)}
    files.write(folder / "comparison.csv", spreadsheet_csv([compared(runs), *comparison_rows(runs)]))
    files.write(folder / "comparison.json", to_json(report) + "\n")
