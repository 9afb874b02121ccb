"""Who holds which labels, and pictures of the data where it may be loaded."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mutua import Recipe
from mutua.reports import projections
from mutua.reports.document import Report
from mutua.reports.report import compose as report
from mutua.reports.study import read_study
from reading_reports import Runs, said


def test_labels_are_those_of_the_test_data(compared_report: Report, compared: Path) -> None:
    [picture] = [picture for picture in compared_report.pictures if picture.name == "labels"]
    shown = picture.figure().axes[0].images[0].get_array().filled(0)
    recipe = Recipe.load(compared / "fml-0" / "recipe.yaml")
    assert np.array_equal(shown, np.stack([client.test.counts() for client in recipe.federation().clients]))
    assert picture.title == "Test samples by client and class, seed 0"


def test_data_that_differ_have_a_picture_each(
    finished: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = SimpleNamespace(fit_transform=lambda x: x[:, :2])
    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=lambda **_: plane))
    few, many = ({"data": {"name": "mnist5k", "samples_per_client": n}} for n in (20, 30))
    for name, method, data in (("a", "fml", few), ("b", "fml", many), ("c", "fedavg", many)):
        shutil.copytree(finished(method, **data)[0], tmp_path / name)
    drawn = {picture.name: picture.title for picture in report(read_study(tmp_path), load_data=True).pictures}
    for name in ("labels", "data"):
        assert [key for key in drawn if key.startswith(name)] == [f"{name}-a", f"{name}-b"]
        assert drawn[f"{name}-b"].endswith("seed 0: b")


def test_with_the_data_come_training_labels_features_and_umap(
    finished: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    class First:
        def __init__(self, **options: Any) -> None:
            assert options["random_state"] == 0

        def fit_transform(self, x: np.ndarray) -> np.ndarray:
            return x[:, 300:302]

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=First))
    folder, result = finished("fml", rounds=2)
    made = {picture.name: picture for picture in report(read_study(folder), load_data=True).pictures}
    clients = result.federation.clients
    shown = made["labels"].figure().axes[0].images[0].get_array().filled(0)
    assert np.array_equal(shown, np.stack([client.train.counts() for client in clients]))
    assert made["labels"].title.startswith("Training samples")

    model = result.clients[0].predictor.model
    x = np.concatenate([client.test.preprocess(client.test.x).flatten(1).numpy() for client in clients])
    hidden = np.asarray(x, float)
    for layer in [part for part in model.modules() if hasattr(part, "weight")][:-1]:  # an MLP by hand
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        hidden = np.maximum(hidden @ weight.T + bias, 0)
    [panel] = made["features"].figure().axes
    points = np.concatenate([dots.get_offsets() for dots in panel.collections])
    expected = projections.pca(hidden)
    assert np.allclose(sorted(points[:, 0]), sorted(expected[:, 0]), atol=1e-4)
    whole, *each = made["data"].figure().axes[:3]
    assert [axes.get_title(loc="left") for axes in (whole, *each)] == ["all clients", "c0", "c1"]
    coloured = [sum(len(dots.get_offsets()) for dots in axes.collections[1:]) for axes in (whole, *each)]
    assert coloured == [sum(len(c.train) for c in clients), *(len(c.train) for c in clients)]


def test_without_umap_or_the_data_it_says_how_to_get_them(
    finished: Runs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    folder, _ = finished("fml", rounds=2)
    assert 'pip install "mutua[umap]"' in said(report(read_study(folder), load_data=True))
    gone = Path(shutil.copytree(folder, tmp_path / "run"))
    record = json.loads((gone / "run.json").read_text())
    record["recipe"] = record["recipe"].replace("mnist5k", "fashion-mnist")
    (gone / "run.json").write_text(json.dumps(record))
    text = said(report(read_study(gone), load_data=True, data_dir=tmp_path))
    assert "the data of fml: " in text and "mutua data get fashion-mnist" in text
