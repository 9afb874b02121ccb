"""How good predictors are, beyond accuracy: other metrics, and which classes are confused."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

import numpy as np

from mutua.reports.figures import Picture, confusion_picture, slug
from mutua.reports.study import Run, Study
from mutua.reports.tables import CellValue, Table
from mutua.studies.statistics import Spread

_METRICS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced",
    "macro_f1": "macro F1",
    "auroc": "AUROC",
    "ece": "ECE",
}
"""Metrics of the last evaluation, and the names of their columns."""
_REMARKS = (
    "after the last round, on the clients' own test data",
    "balanced: the mean over classes of the share that is recognised; rare classes count as much as others",
    "AUROC: of each class against the rest; 50 is chance; – where a client has test samples of one class only",
    "ECE: how far predicted probabilities are from the share that is right; 0 is best",
)
_MOST_CLASSES = 40
"""A larger matrix could not be read."""


def metric_tables(study: Study) -> Iterator[Table]:
    """By label the mean over clients; with one run also by client."""
    if all(run.summary is None for run in study.runs):
        return
    rows: list[tuple[CellValue, ...]] = []
    for label in study.labels:
        found = [_by_client(run) for run in study.of(label)]
        rows.append((label, *(Spread.of([_mean(of[metric]) for of in found]) for metric in _METRICS)))
    heads = tuple(_METRICS.values())
    title = "Other metrics in %: mean over clients" + (", and over seeds" if len(study.seeds) > 1 else "")
    yield Table("metrics", title, ("method",), heads, tuple(rows), _REMARKS)
    if len(study.runs) == 1:
        [run] = study.runs
        [of] = found
        each: list[tuple[CellValue, ...]] = [
            (client, *(Spread.of([of[metric].get(client)]) for metric in _METRICS)) for client in run.clients
        ]
        yield Table("metrics-clients", "Metrics in % of each client", ("client",), heads, tuple(each))


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
