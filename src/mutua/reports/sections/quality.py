"""How good predictors are, beyond accuracy: other metrics, and which classes are confused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

import numpy as np

from mutua.learning.headline import Headline
from mutua.reports.figures import Picture, confusion_picture, slug
from mutua.reports.study import Run, Study
from mutua.reports.tables import CellValue, Table, scores_of
from mutua.studies.statistics import Spread

_METRICS = {
    "accuracy": "accuracy",
    "exact_match": "exact match",
    "balanced_accuracy": "balanced",
    "macro_f1": "macro F1",
    "auroc": "AUROC",
    "average_precision": "average precision",
    "sensitivity": "sensitivity",
    "ece": "ECE",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
}
"""Metrics of the last evaluation, where a task has them, and the names of their columns."""
_WHEN = "after the last round, on the clients' own test data"
_ABOUT = {
    "exact_match": "exact match: the share of samples of which all labels are right",
    "balanced_accuracy": (
        "balanced: the mean over classes of the share that is recognised; rare classes count as much as others"
    ),
    "auroc": (
        "AUROC: of each class against the rest; 50 is chance; – where a client has test samples of one class only"
    ),
    "average_precision": "average precision: the area below precision over recall; chance: the share of positives",
    "sensitivity": "sensitivity: the share of positives found, at the specificity that the task names",
    "ece": "ECE: how far predicted probabilities are from the share that is right; 0 is best",
    "rmse": "RMSE, MAE: root mean square and mean absolute error, in the values' own unit; 0 is best",
    "r2": "R²: the share of the values' variance that is predicted; 1 is best, 0 is no better than their mean",
}
_MOST_CLASSES = 40
"""A larger matrix could not be read."""


def metric_tables(study: Study) -> Iterator[Table]:
    """By label the mean over clients; with one run also by client."""
    if all(run.summary is None for run in study.runs):
        return
    by_label = {label: [_by_client(run) for run in study.of(label)] for label in study.labels}
    shown = [name for name in _METRICS if any(of[name] for found in by_label.values() for of in found)]
    rows: list[tuple[CellValue, ...]] = []
    for label, found in by_label.items():
        rows.append((label, *(_cell(name, [_mean(of[name]) for of in found]) for name in shown)))
    heads = tuple(_METRICS[name] for name in shown)
    unit = " in %" if any(Headline(name).in_percent for name in shown) else ""
    title = f"Other metrics{unit}: mean over clients" + (", and over seeds" if len(study.seeds) > 1 else "")
    remarks = (_WHEN, *(_ABOUT[name] for name in shown if name in _ABOUT))
    yield Table("metrics", title, ("method",), heads, tuple(rows), remarks)
    if len(study.runs) == 1:
        [run] = study.runs
        [of] = found
        each: list[tuple[CellValue, ...]] = [
            (client, *(_cell(metric, [of[metric].get(client)]) for metric in shown)) for client in run.clients
        ]
        yield Table("metrics-clients", f"Metrics{unit} of each client", ("client",), heads, tuple(each))


def _cell(metric: str, values: Sequence[float | None]) -> Spread:
    return scores_of(Headline(metric), Spread.of(values))


def _by_client(run: Run) -> dict[str, dict[str, float | None]]:
    """By metric and client, in one pass: a long history is read from its file."""
    last = run.summary["rounds"] if run.summary is not None else None
    found: dict[str, dict[str, float | None]] = {metric: {} for metric in _METRICS}
    for row in run.history.select(round=last, model="predictor", split="test"):
        if row.metric in found:
            found[row.metric][row.client] = row.value
    return found


def _mean(values: dict[str, float | None]) -> float | None:
    known = [value for value in values.values() if value is not None]
    return fmean(known) if known else None


def confusion_pictures(study: Study, missing: list[str]) -> Iterator[Picture]:
    """Per label, all clients' test samples by true and predicted class, with the first seed."""
    for label in study.labels:
        run = study.of(label)[0]
        held = run.confusions
        classes = list(dict.fromkeys(name for names, _ in held.values() for name in names))
        if not held:
            continue
        if len(classes) > _MOST_CLASSES:
            missing.append(f"confusion matrix of {label}: {len(classes)} classes are too many to draw")
            continue
        total = np.zeros((len(classes), len(classes)), int)
        for names, cells in held.values():
            at = np.array([classes.index(name) for name in names])
            np.add.at(total, (at[cells[:, 0]], at[cells[:, 1]]), cells[:, 2])
        title = f"{label}: test samples of all clients by true and predicted class, seed {run.seed}"
        yield confusion_picture(f"confusion-{slug(label)}", title, total, classes)
