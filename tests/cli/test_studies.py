"""`mutua compare` as people and scripts use it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Command = Callable[..., Any]
REPORT = {"method", "seed", "rounds", "global", "clients", "bytes", "privacy", "seconds"}
SAVED = "saved in x\na page of it: mutua report x"


def test_compare_as_json(command: Command, tmp_path: Path) -> None:
    words = ["--methods", "fml,fedprox:mu=0.1,fedprox:mu=5,independent", "--seeds", "0,3", "--out", "x", "--json"]
    done = command("compare", "tiny.yaml", *words)
    report = json.loads(done.out)
    assert done.code == 0 and done.err == SAVED + "\n" and set(report) == {"runs", "summary"}
    labels = ["fml", "fedprox:mu=0.1", "fedprox:mu=5", "independent"]
    assert [(one["seed"], one["method"]) for one in report["runs"]] == [
        (s, name) for s in (0, 3) for name in labels
    ]
    assert all(set(one) == REPORT for one in report["runs"])
    assert list(report["summary"]) == labels

    def mean_own(one: dict[str, Any]) -> float:
        return float(np.mean([client["accuracy"]["predictor"] for client in one["clients"]]))

    own = {name: [mean_own(one) for one in report["runs"] if one["method"] == name] for name in labels}
    for name in labels:
        found = report["summary"][name]
        assert found["accuracy"]["predictor"]["mean"] == pytest.approx(np.mean(own[name]))
        assert found["accuracy"]["predictor"]["std"] == pytest.approx(np.std(own[name], ddof=1))
        differences = np.subtract(own[name], own["fml"])
        assert found["difference"]["predictor"]["mean"] == pytest.approx(differences.mean())
        assert found["difference"]["predictor"]["std"] == pytest.approx(differences.std(ddof=1))
    assert report["summary"]["independent"]["accuracy"]["global"]["mean"] is None
    folders = {path.name for path in (tmp_path / "x").iterdir()}
    assert folders == {
        "comparison.csv",
        "comparison.json",
        "results.csv",
        "lock",
        *(f"{name.replace(':', '-')}-{seed}" for name in labels for seed in (0, 3)),
    }
    # Each run's folder is a run like any other, and the same run alone gives the same numbers.
    alone = json.loads(command("run", "tiny.yaml", "--seed", "3", "--out", "y", "--json").out)
    assert {**alone, "seconds": 0} == {**report["runs"][4], "seconds": 0}


def test_compare_says_who_uses_the_global_alone(command: Command, tmp_path: Path) -> None:
    done = command("compare", "tiny.yaml", "--methods", "fml,fedavg,fedprox:mu=1,independent", "--seeds", "0")
    assert done.code == 0
    assert "fedavg, fedprox:mu=1: every client uses models.global, not a model of its own\n" in done.out
    assert max(map(len, done.out.splitlines())) <= 80 and "…" not in done.out
    assert "fedprox:mu=1, seed 0: round 1/1, " in done.err
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"tiny-compare-\d{8}-\d{6}", folder.name)
    assert done.out.endswith(f"saved in runs/{folder.name}\na page of it: mutua report runs/{folder.name}\n")
