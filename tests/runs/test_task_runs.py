"""Runs of tasks other than one class per sample: files, selection, comparison, report, predict, join, resume."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import mutua
from mutua.learning.headline import Headline
from mutua.reports.sections.better_off import ClientVerdict
from mutua.rounds.history import History
from mutua.runs.folder import RunFolder
from mutua.runs.inference import export, predict
from mutua.runs.newcomer import join
from mutua.studies.measures import Measure
from mutua.studies.statistics import Difference, Spread

RNG = np.random.default_rng(11)
X = RNG.normal(size=(90, 3)).astype(np.float32)
VALUES = 40 + 8 * X[:, 0] + RNG.normal(size=90)
LABELS = (X[:, :2] + 0.3 * RNG.normal(size=(90, 2)) > 0).astype(int)
TREE: dict[str, Any] = {
    "partition": {"kind": "iid", "clients": 3},
    "models": {"global": "linear"},
    "method": "fml",
    "rounds": 2,
    "steps": 4,
    "batch_size": 8,
    "optimizer": {"name": "sgd", "lr": 0.1},
}
TASKS: dict[str, tuple[Any, Any]] = {
    "values": ({"kind": "regression", "mean": 40, "std": 8}, VALUES),
    "labels": ({"kind": "multi-label", "class_weights": "balanced"}, LABELS),
}


def recipe(tmp_path: Path, which: str, **more: Any) -> mutua.Recipe:
    task, y = TASKS[which]
    names = {"classes": np.array(["cough", "fever"])} if which == "labels" else {}
    np.savez(tmp_path / "data.npz", x=X, y=y, **names)
    return mutua.Recipe.of(
        TREE | {"data": {"name": "arrays", "path": str(tmp_path / "data.npz")}, "task": task} | more
    )


def run(of: mutua.Recipe, out: Path) -> mutua.Result:
    result = mutua.run(of.method, of.federation(), plan=of.plan(), workers=1, progress=False)
    result.save(out, of)
    return result


@pytest.mark.parametrize("which", TASKS)
def test_what_a_run_leaves_tells_its_task(tmp_path: Path, which: str) -> None:
    of = recipe(tmp_path, which)
    result = run(of, tmp_path / "run")
    metric = result.federation.headline.metric
    told = json.loads((tmp_path / "run" / "run.json").read_text())["summary"]
    assert told["task"] == {**TASKS[which][0], "headline": metric}
    assert metric in told["global"]
    assert "accuracy" not in told["mean"]["predictor"]
    for client in told["clients"]:
        low, high = client["interval"]["predictor"]
        assert low <= client[metric]["predictor"] <= high
    opened = mutua.load_run(tmp_path / "run")
    assert opened.history.headline == result.history.headline
    assert mutua.Recipe.load(tmp_path / "run" / "recipe.yaml").task == of.task
    with (tmp_path / "run" / "history.csv").open() as file:
        metrics = {row["metric"] for row in csv.DictReader(file)}
    assert {metric, f"{metric}_low", f"{metric}_high", "loss"} <= metrics
    assert ("auroc[cough]" in metrics) == (which == "labels")


@pytest.mark.parametrize("which", TASKS)
def test_predictions_of_a_saved_model(tmp_path: Path, which: str) -> None:
    result = run(recipe(tmp_path, which), tmp_path / "run")
    model = RunFolder.open(tmp_path / "run").client("c1")
    y = TASKS[which][1]
    found = predict(model, tmp_path / "data.npz")
    assert torch.equal(found.probabilities, result["c1"].predictor(X))
    with (tmp_path / "out.csv").open("w") as file:
        found.write(file)
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    if which == "values":
        assert list(rows[0]) == ["sample", "value"]
        errors = np.array([float(row["value"]) for row in rows]) - y
        assert found.summary()["rmse"] == pytest.approx(np.sqrt((errors**2).mean()))
    else:
        assert list(rows[0]) == ["sample", "predicted", "cough", "fever"]
        said = [{n for n in ("cough", "fever") if float(row[n]) >= 0.5} for row in rows]
        assert [{*filter(None, row["predicted"].split("; "))} for row in rows] == said
        assert found.summary()["auroc"] > 0.5
    # In plain torch, from what `export` leaves
    weights, card = export(model, tmp_path / "export")
    state, told = load_file(weights), json.loads(card.read_text())
    outputs = torch.from_numpy(X) @ state["head.weight"].T + state["head.bias"]
    plain = outputs * told["task"]["std"] + told["task"]["mean"] if which == "values" else torch.sigmoid(outputs)
    assert torch.allclose(plain, found.probabilities, atol=1e-5)


def test_a_newcomer_joins_with_values(tmp_path: Path) -> None:
    run(recipe(tmp_path, "values"), tmp_path / "run")
    joined = join(RunFolder.open(tmp_path / "run"), tmp_path / "data.npz", how="finetune")
    assert set(joined.accuracy) == {"global", "predictor", "alone"}  # errors here
    assert 0 < (joined.accuracy["predictor"] or 0) < 20
    assert RunFolder.open(tmp_path / "run").client("newcomer").card.score == joined.accuracy["predictor"]


def test_a_comparison_knows_that_a_smaller_error_is_better(tmp_path: Path) -> None:
    task, y = TASKS["values"]
    federation = mutua.Federation.from_arrays(
        X, y, task=task, partition=mutua.partitions.IID(clients=3), models="linear", global_model="linear"
    )
    given: Any = {"rounds": 2, "steps": 20, "batch_size": 8, "optimizer": {"name": "sgd", "lr": 0.1}}
    methods = {
        "short": mutua.methods.FML(),
        "alone": "independent",
        "none": mutua.methods.FML(alpha=1e-9, beta=1e-9),
    }
    found = mutua.compare(methods, federation, seeds=[0, 1, 2], workers=1, progress=False, **given)
    assert "RMSE (lower is better)" in str(found)
    numbers = {run.label: run.numbers for run in found.runs if run.seed == 0}
    own = numbers["none"].by_client("predictor")
    assert numbers["none"].measure(Measure("worst")) == max(own.values())
    # It has not learned from labels.
    assert numbers["none"].measure(Measure("better_off"), numbers["alone"]) == 0.0
    low, high = (found.difference("none")[end] for end in ("low", "high"))
    assert low > 0 and high > low
    line = next(line for line in str(found).splitlines() if line.startswith("none") and line.endswith("worse"))
    assert "short" in line
    found.save(tmp_path / "all")
    told = json.loads((tmp_path / "all" / "comparison.json").read_text())
    assert told["summary"]["none"]["rmse"]["predictor"]["mean"] == pytest.approx(
        found.summary["none"]["rmse"]["predictor"]["mean"]
    )
    assert (tmp_path / "all" / "comparison.csv").read_text().splitlines()[0].endswith(",rmse")
    mutua.report(tmp_path / "all", html=tmp_path / "all.html", tables=tmp_path / "tables")
    page = (tmp_path / "all.html").read_text()
    assert "RMSE (lower is better)" in page
    assert "ccuracy" not in page.partition("To repeat it")[0]
    verdicts = list(csv.DictReader((tmp_path / "tables" / "verdicts.csv").open()))
    assert all(float(row["difference"]) > 0 for row in verdicts if row["method"].startswith("none"))
    assert {row["is"] for row in verdicts} == {"cannot tell"}  # each run is one seed here


def test_a_verdict_on_errors_goes_the_other_way() -> None:
    nothing = Spread.of([1.0])
    less = Difference.of_pairs([1.0, 1.1, 0.9], [2.0, 2.2, 1.9])
    assert ClientVerdict("a", nothing, nothing, less, Headline("rmse")).word == "better off"
    assert ClientVerdict("a", nothing, nothing, less, Headline()).word == "worse off"


@pytest.mark.parametrize("which", TASKS)
def test_a_report_of_one_run_has_intervals(tmp_path: Path, which: str) -> None:
    result = run(recipe(tmp_path, which), tmp_path / "run")
    mutua.report(tmp_path / "run", html=tmp_path / "run.html", tables=tmp_path / "tables")
    rows = list(csv.DictReader((tmp_path / "tables" / "intervals.csv").open()))
    assert [int(row["test samples"]) for row in rows] == [len(c.client.test) for c in result.clients]
    ends = [(float(row["from"]), float(row["to"])) for row in rows]
    assert ends == [pytest.approx(client.interval()) for client in result.clients]


def test_a_client_with_sixteen_patients_is_told_how_sure_its_accuracy_is() -> None:
    y = (X[:, 0] > 0).astype(int)
    federation = mutua.Federation.from_arrays(
        X,
        y,
        test=(X[:16], y[:16]),
        partition=mutua.partitions.IID(clients=1),
        models="linear",
        global_model="linear",
    )
    client = mutua.run("fedavg", federation, rounds=0, workers=1, progress=False).clients[0]
    low, high = client.interval() or (0, 0)
    assert f"({100 * low:.1f} to {100 * high:.1f}) on 16 own test samples" in repr(client)


def test_a_stopped_run_of_values_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    of = recipe(tmp_path, "values", rounds=3)
    whole = mutua.run(of.method, of.federation(), plan=of.plan(), workers=1, progress=False)
    short = of.with_(rounds=1)
    part = mutua.run(short.method, short.federation(), plan=short.plan(), workers=1, progress=False)
    assert list(part.extend(3, progress=False).history) == list(whole.history)


def test_the_newest_and_the_best_of_an_error() -> None:
    history = History(Headline("rmse"))
    for round, values in enumerate([(4.0, 2.0), (1.0, 3.0), (2.0, 5.0)]):
        for client, value in zip("ab", values, strict=True):
            history.add(round, client, "predictor", "val", "rmse", value)
            history.add(round, client, "predictor", "test", "rmse", value + 1)
            history.add(round, client, "global", "val", "rmse", value)
    history.serves_since(2, {"a": 1, "b": 1})
    assert history.newest("predictor") == (2, 4.5)
    best = history.best_rounds()
    assert (best["a", "predictor"], best["b", "predictor"]) == (1, 1)
    assert best["global", "global"] == 1
    assert history.curve("predictor") == [(0, 4.0), (1, 3.0), (2, 4.5)]


def test_weights_of_classes_do_not_change_what_a_run_is_called(tmp_path: Path) -> None:
    y = (VALUES > 45).astype(int)
    np.savez(tmp_path / "data.npz", x=X, y=y)
    tree = TREE | {"data": {"name": "arrays", "path": str(tmp_path / "data.npz")}}
    weighted = mutua.Recipe.of(tree | {"task": {"class_weights": "balanced", "headline": "balanced_accuracy"}})
    result = run(weighted, tmp_path / "run")
    assert result.federation.clients[0].task.weights is not None
    assert "balanced accuracy in %" in str(result)
    assert RunFolder.open(tmp_path / "run").client("c0").card.task == weighted.task
