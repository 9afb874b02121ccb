"""Metrics beyond accuracy, and which classes are confused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from mutua import Recipe
from mutua.reports.document import Report
from mutua.reports.report import compose as report
from mutua.reports.study import read_study
from mutua.runs.saved_models import SavedModel


def test_other_metrics_are_those_of_scikit_learn(compared: Path) -> None:
    of = pytest.importorskip("sklearn.metrics")
    made = report(read_study(compared / "fml-0"))
    recipe = Recipe.load(compared / "fml-0" / "recipe.yaml")
    tables = {table.name: list(csv.DictReader(io.StringIO(table.csv()))) for table in made.tables}
    balanced = []
    for client, row in zip(recipe.federation().clients, tables["metrics-clients"], strict=True):
        p = SavedModel(compared / "fml-0" / "clients" / client.id).predictor()(client.test.x).numpy()
        y = client.test.y.numpy()
        balanced.append(of.balanced_accuracy_score(y, p.argmax(1)))
        areas = [of.roc_auc_score(y == c, p[:, c]) for c in np.unique(y)]
        assert float(row["balanced"]) == pytest.approx(balanced[-1])
        assert float(row["AUROC"]) == pytest.approx(np.mean(areas))
        assert float(row["macro F1"]) == pytest.approx(
            of.f1_score(y, p.argmax(1), labels=np.unique(y), average="macro")
        )
    assert float(tables["metrics"][0]["balanced"]) == pytest.approx(np.mean(balanced))


def test_the_confusion_matrix_is_the_sum_of_the_clients(compared_report: Report, compared: Path) -> None:
    [picture] = [picture for picture in compared_report.pictures if picture.name == "confusion-fml"]
    held = [json.loads(file.read_text()) for file in (compared / "fml-0/clients").glob("*/confusion.json")]
    total = np.zeros((10, 10), int)
    for true, predicted, count in (cell for one in held for cell in one["cells"]):
        total[true, predicted] += count
    axes = picture.figure().axes[0]
    assert np.array_equal(axes.images[0].get_array().filled(0), total)
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("true class", "predicted class")
    assert f"right: {total.trace()} of {total.sum()}" in picture.alt
