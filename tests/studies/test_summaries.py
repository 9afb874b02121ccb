"""What the runs of a comparison say together: the arithmetic, and the files."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from mutua.studies.comparison_tables import differences_table
from mutua.studies.summaries import never_trained, summarise, write_comparison
from mutua.support.files import atomic_files

# The arithmetic


def one(
    shared: float | None, own: float | None, up: int = 10, domains: Any = None, seed: int = 0, cell: Any = None
) -> dict[str, Any]:
    return {
        "seed": seed,
        "cell": cell or {},
        "selection": "last",
        "global": {"accuracy": shared, "loss": 1.0},
        "mean": {"predictor": {"accuracy": own}},
        "clients": [{"id": "a", "accuracy": {"predictor": own, "global": shared}}],
        "bytes": {"up": up, "down": 2 * up},
        "domains": domains,
        "over_clients": {"worst": own, "spread_clients": 0.0, "better_off": None},
    }


def test_means_deviations_and_paired_differences_by_numpy() -> None:
    rng = np.random.default_rng(0)
    shared, own = rng.random((2, 4)), rng.random((2, 4))
    runs = [
        (name, one(shared[m, s], own[m, s], up=100 * m + s, seed=s))
        for s in range(4)
        for m, name in enumerate("xy")
    ]
    summary = summarise(runs)
    for m, name in enumerate("xy"):
        for model, table in (("global", shared), ("predictor", own)):
            accuracy, difference = summary[name]["accuracy"][model], summary[name]["difference"][model]
            assert accuracy["mean"] == pytest.approx(table[m].mean())
            assert accuracy["std"] == pytest.approx(table[m].std(ddof=1))
            assert accuracy["values"] == pytest.approx(list(table[m]))
            assert difference["mean"] == pytest.approx((table[m] - table[0]).mean())
            assert difference["std"] == pytest.approx((table[m] - table[0]).std(ddof=1))
            if m:
                interval = scipy_stats.ttest_rel(table[m], table[0]).confidence_interval(0.95)
                assert (difference["low"], difference["high"]) == pytest.approx(tuple(interval))
        assert summary[name]["clients"]["worst"]["mean"] == pytest.approx(own[m].mean())
        assert summary[name]["bytes"] == {"up": 100 * m + 1.5, "down": 200 * m + 3}
    assert summary["x"]["difference"]["global"]["values"] == [0.0] * 4


def test_one_seed_has_no_deviation() -> None:
    summary = summarise([("x", one(0.5, 0.7)), ("y", one(0.4, 0.9))])
    assert summary["y"]["accuracy"]["global"] == {"mean": 0.4, "std": None, "values": [0.4]}
    assert summary["y"]["difference"]["predictor"]["mean"] == pytest.approx(0.2)


def test_what_a_method_has_not_is_null() -> None:
    summary = summarise(
        [("x", one(None, 0.7)), ("y", one(0.4, 0.9)), ("x", one(None, 0.5, seed=1)), ("y", one(0.2, None, seed=1))]
    )
    assert summary["x"]["accuracy"]["global"]["mean"] is None
    assert summary["y"]["difference"]["global"]["mean"] is None
    assert summary["y"]["accuracy"]["predictor"] == {"mean": None, "std": None, "values": [0.9, None]}


def test_seeds_that_one_has_not_are_not_compared() -> None:
    runs = [("x", one(0.5, 0.5, seed=s)) for s in (0, 1, 2)] + [("y", one(0.7, 0.7, seed=s)) for s in (2, 5)]
    assert summarise(runs)["y"]["difference"]["global"]["values"] == pytest.approx([0.2])
    assert summarise([]) == {}


def test_differences_are_to_the_first_cell_that_differs_in_nothing_but_the_method() -> None:
    accuracy = {"easy": {"x": 0.9, "y": 0.8}, "hard": {"x": 0.5, "y": 0.6}}
    runs = [
        (f"{method}, {data}", one(shared, shared, cell={"method": method, "data": data}))
        for data, row in accuracy.items()
        for method, shared in row.items()
    ]
    found = {label: (row["minus"], row["difference"]["global"]["mean"]) for label, row in summarise(runs).items()}
    assert found["x, easy"] == ("x, easy", 0) and found["x, hard"] == ("x, hard", 0)
    assert found["y, easy"] == ("x, easy", pytest.approx(-0.1))
    assert found["y, hard"] == ("x, hard", pytest.approx(0.1))
    lone = summarise([(str(a), one(0.1 * a, 0.1, cell={"method.alpha": str(a)})) for a in (1, 2, 3)])
    assert [row["minus"] for row in lone.values()] == ["1"] * 3


def test_domains_are_compared_where_all_runs_have_them() -> None:
    some = {"wdp": 0.9, "cdp": 0.4, "acc": 0.5}
    both = summarise([("x", one(0.1, 0.2, domains=some)), ("y", one(0.1, 0.2, domains={**some, "acc": 0.75}))])
    assert both["y"]["difference"]["acc"]["mean"] == pytest.approx(0.25)
    assert "acc" not in summarise([("x", one(0.1, 0.2, domains=some)), ("y", one(0.1, 0.2))])["x"]["accuracy"]


def test_a_difference_is_over_the_clients_that_count_in_both_runs() -> None:
    def run(own: list[float], never: str = "", seed: int = 0, domains: bool = False) -> dict[str, Any]:
        ids = [f"c{i}" for i in range(len(own))]
        counted = [value for client, value in zip(ids, own, strict=True) if client != never]
        made = one(0.5, sum(counted) / len(counted), seed=seed)
        made["clients"] = [
            {"id": client, "trained": client != never, "accuracy": {"predictor": value, "global": 0.5}}
            for client, value in zip(ids, own, strict=True)
        ]
        if domains:
            made["domains"] = dict.fromkeys(("wdp", "cdp", "acc"), made["mean"]["predictor"]["accuracy"])
            known = {client: value for client, value in zip(ids, own, strict=True) if client != never}
            made["domains_by_client"] = dict.fromkeys(("wdp", "cdp", "acc"), known)
        return made

    # Means: 0.6 of three clients, 0.55 of four. Of the same three: 0.6 and 0.7.
    x, y = run([0.5, 0.6, 0.7, 0.1], never="c3"), run([0.6, 0.7, 0.8, 0.1])
    for first, second, sign in ((("x", x), ("y", y), 1), (("y", y), ("x", x), -1)):
        row = summarise([first, second])[second[0]]
        assert row["difference"]["predictor"]["mean"] == pytest.approx(sign * 0.1)
    found = summarise([("x", x), ("y", y)])
    assert found["x"]["accuracy"]["predictor"]["mean"] == pytest.approx(0.6)
    assert found["y"]["accuracy"]["predictor"]["mean"] == pytest.approx(0.55)
    assert any("count in both" in line for line in never_trained([("x", x), ("y", y)]))
    assert never_trained([("y", y)]) == []
    # Each seed has clients of its own that count: +0.1 over c0, c1, c2 and +0.2 over c1, c2, c3.
    again = run([0.9, 0.2, 0.3, 0.4], never="c0", seed=1), run([0.1, 0.4, 0.5, 0.6], seed=1)
    both = summarise([("x", x), ("y", y), ("x", again[0]), ("y", again[1])])["y"]["difference"]["predictor"]
    assert both["values"] == pytest.approx([0.1, 0.2])
    # The accuracies of domains are over the same clients.
    pair = run([0.5, 0.6, 0.7, 0.1], "c3", domains=True), run([0.6, 0.7, 0.8, 0.1], domains=True)
    domains = summarise([("x", pair[0]), ("y", pair[1])])["y"]["difference"]
    assert [domains[name]["mean"] for name in ("wdp", "cdp", "acc")] == pytest.approx([0.1] * 3)
    # No client counts in both; other clients altogether: nothing to pair, so the whole means.
    none = summarise([("x", run([0.5, 0.6], "c0")), ("y", run([0.5, 0.6], "c1"))])["y"]["difference"]["predictor"]
    assert none["mean"] is None
    other = summarise([("x", run([0.5, 0.7], "c1")), ("y", run([0.2, 0.3, 0.4]))])["y"]["difference"]["predictor"]
    assert other["mean"] == pytest.approx(-0.2)


# What it leaves


def test_the_files(tmp_path: Path) -> None:
    def save(some: list[Any]) -> None:
        with atomic_files() as files:
            write_comparison(files, tmp_path, some)

    runs = [(name, one(0.5, None if name == "y" else 0.25, seed=s)) for s in (0, 1) for name in "xy"]
    save(runs[:3])  # stopped in mid-comparison
    assert len(json.loads((tmp_path / "comparison.json").read_text())["runs"]) == 3
    save(runs)
    with (tmp_path / "comparison.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["method", "seed", "client", "model", "selection", "accuracy"]
    assert list(rows[0].values()) == ["x", "0", "global", "global", "last", "0.5"]
    assert list(rows[1].values()) == ["x", "0", "a", "predictor", "last", "0.25"]
    assert list(rows[4].values()) == ["y", "0", "a", "predictor", "last", ""]
    assert len(rows) == 12
    report = json.loads((tmp_path / "comparison.json").read_text())
    assert [r["method"] for r in report["runs"]] == ["x", "y", "x", "y"]
    assert report["summary"] == json.loads(json.dumps(summarise(runs)))


def test_results_that_are_equal_in_every_seed_are_called_equal() -> None:
    runs = [(name, one(0.1 * (s + 1), 0.5 + 0.1 * s * (name == "y"), seed=s)) for s in (0, 1, 2) for name in "xy"]
    rows = {row[2]: row for row in differences_table(summarise(runs)).body}
    assert rows["global"][3:] == ("+0.0", "+0.0 to +0.0", "equal")
    assert rows["predictor"][-1] == "cannot tell"  # 0, 0.1 and 0.2: an interval from below 0 to above
