"""Measures of a run's folder, by hand from its files."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

import pytest

from conftest import csv_rows
from mutua import InputError
from mutua.studies.measures import ABOUT, Measure, RunNumbers, uses_global_alone


@pytest.fixture(scope="module")
def runs(finished: Callable[..., tuple[Path, Any]]) -> dict[str, Path]:
    rotated = {"partition": {"kind": "rotated", "angles": [0, 90]}, "rounds": 4}
    return {name: finished(name, **rotated)[0] for name in ("fedavg", "independent")}


def history(path: Path, client: str, model: str, metric: str = "accuracy") -> list[tuple[int, float]]:
    wanted = (client, model, "test", metric)
    found = [
        r for r in csv_rows(path / "history.csv") if (r["client"], r["model"], r["split"], r["metric"]) == wanted
    ]
    return [(int(r["round"]), float(r["value"])) for r in found]


def value(path: Path, text: str, alone: Path | None = None) -> float | None:
    return RunNumbers(path).measure(Measure.of(text), RunNumbers(alone) if alone else None)


def test_accuracies(runs: dict[str, Path]) -> None:
    path, ids = runs["fedavg"], ("0deg", "90deg")
    own = {client: history(path, client, "predictor")[-1][1] for client in ids}
    assert value(path, "global") == history(path, "global", "global")[-1][1]
    assert value(path, "predictor") == pytest.approx(fmean(own.values()))
    assert value(path, "global_own") == pytest.approx(fmean(history(path, c, "global")[-1][1] for c in ids))
    assert value(path, "predictor(90deg)") == own["90deg"]
    assert value(path, "predictor(0deg 90deg)") == pytest.approx(fmean(own.values()))
    assert value(path, "predictor(0deg 10deg)") is None
    for name in ("wdp", "cdp", "acc"):
        by_hand = [history(path, c, "predictor", name)[-1][1] for c in ids]
        assert value(path, name) == pytest.approx(fmean(by_hand))
        assert value(path, f"{name}(90deg)") == by_hand[1]
    assert value(path, "worst") == min(own.values())
    assert value(path, "spread_clients") == pytest.approx(pstdev(own.values()))
    assert value(runs["independent"], "global") is None


def test_better_off_than_alone(runs: dict[str, Path]) -> None:
    shared, alone = runs["fedavg"], runs["independent"]
    pairs = [
        (history(shared, c, "predictor")[-1][1], history(alone, c, "predictor")[-1][1]) for c in ("0deg", "90deg")
    ]
    assert value(shared, "better_off", alone) == fmean(a > b for a, b in pairs)
    assert value(shared, "better_off") is None


def test_rounds_and_bytes(runs: dict[str, Path]) -> None:
    path = runs["fedavg"]
    curve = history(path, "global", "global")
    highest = max(v for _, v in curve)
    first = next(round for round, v in curve if v == highest)
    assert value(path, f"rounds_to({100 * highest})") == first
    assert value(path, "rounds_to(100)") is None
    ledger = csv_rows(path / "ledger.csv")
    up = [r for r in ledger if r["direction"] == "up"]
    assert value(path, f"bytes_to({100 * highest})") == sum(
        int(r["bytes"]) for r in up if int(r["round"]) <= first
    )
    assert RunNumbers(path).whole(Measure.of("rounds_to(100)")) == 4
    assert RunNumbers(path).whole(Measure.of("bytes_to(100)")) == sum(int(r["bytes"]) for r in up)
    assert value(path, "bytes_up") == sum(int(r["bytes"]) for r in up) / 8  # two clients, four rounds
    down = [r for r in ledger if r["direction"] == "down"]
    assert value(path, "bytes_down") == sum(int(r["bytes"]) for r in down) / 10  # and the last brief
    assert value(runs["independent"], "bytes_up") == 0


def test_how_steady_the_last_20_are(finished: Callable[..., tuple[Path, Any]]) -> None:
    for rounds in (19, 20):  # round 0 does not count
        path, _ = finished("fedavg", rounds=rounds)
        last = [v for _, v in history(path, "global", "global")][-20:]
        assert value(path, "spread_last_20") == (None if rounds == 19 else pytest.approx(stdev(last)))


def test_selections(finished: Callable[..., tuple[Path, Any]]) -> None:
    """The rows of results.csv are of the evaluation that the run's own summary selects."""
    for selection in ("last", "last5", "best"):
        path, _ = finished("fedavg", rounds=7, selection=selection)
        summary = json.loads((path / "run.json").read_text())["summary"]
        found = {(client, model): v for client, model, split, metric, v in RunNumbers(path).rows
                 if (split, metric) == ("test", "accuracy")}  # fmt: skip
        assert found["global", "global"] == pytest.approx(summary["global"]["accuracy"])
        for client in summary["clients"]:
            for model, accuracy in client["accuracy"].items():
                assert found[client["id"], model] == pytest.approx(accuracy)
        assert found["mean", "predictor"] == pytest.approx(summary["mean"]["predictor"]["accuracy"])


def test_every_measure_can_be_asked(runs: dict[str, Path]) -> None:
    for name in ABOUT:
        value(runs["fedavg"], f"{name}(50)" if name.endswith("_to") else name)


def test_which_methods_use_the_global_alone(finished: Callable[..., tuple[Path, Any]]) -> None:
    tuned = {"name": "finetuned", "tune_epochs": 1}
    methods = ("fml", "fedavg", "fedprox", tuned, "independent", "centralised")
    found = [name for name in methods if uses_global_alone(finished(name, rounds=0)[0])]
    assert found == ["fedavg", "fedprox", tuned]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("acc", ("acc", 0, "global", ())),
        ("rounds_to(80)", ("rounds_to", 80.0, "global", ())),
        ("bytes_to(62.5, predictor)", ("bytes_to", 62.5, "predictor", ())),
        ("acc(0deg)", ("acc", 0, "global", ("0deg",))),
        ("predictor(c0 c1)", ("predictor", 0, "global", ("c0", "c1"))),
        ("spread_last_20(predictor)", ("spread_last_20", 0, "predictor", ())),
    ],
)
def test_measures(text: str, found: tuple[Any, ...]) -> None:
    assert Measure.of(text) == found


@pytest.mark.parametrize("text", ["", "accuracy", "bytes_up(1)", "rounds_to", "rounds_to(0.8)", "bytes_to(80, a)"])
def test_measures_that_are_none(text: object) -> None:
    with pytest.raises(InputError, match="measure: "):
        Measure.of(text)
