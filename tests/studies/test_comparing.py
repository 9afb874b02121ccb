"""Fair comparisons: what is compared, that everything but the method is the same, and the arithmetic."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from mutua import InputError, Recipe
from mutua.learning.schedules import Linear, Listed
from mutua.methods import FML, FedAvg, FedProx, Independent
from mutua.studies import comparing
from mutua.studies.comparing import contenders, seeds, summarise
from mutua.support.files import together


@pytest.fixture
def recipe(tiny: dict[str, Any]) -> Recipe:
    return Recipe.of({**tiny, "method": {"name": "fml", "alpha": 0.3}})


# Who is compared


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fml", [FML(alpha=0.3)]),  # the recipe's own method keeps the recipe's options
        ("fml:alpha=0.7", [FML(alpha=0.7)]),
        ("fml:beta=0.7", [FML(alpha=0.3, beta=0.7)]),
        ("fedavg , independent,", [FedAvg(), Independent()]),
        ("fedprox:mu=0.1:weights=uniform", [FedProx(mu=0.1, weights="uniform")]),
        ("fedprox:mu=0.1,fedprox:mu=1", [FedProx(mu=0.1), FedProx(mu=1)]),
        ("fml:beta=[0.9,0.5],fedavg", [FML(alpha=0.3, beta=Listed(values=(0.9, 0.5))), FedAvg()]),
        (
            "fml:beta={schedule: linear, start: 0.3, end: 0.9}:alpha=1",
            [FML(alpha=1, beta=Linear(start=0.3, end=0.9))],
        ),
        ("mutua.methods.fedavg:FedAvg:weights=uniform", [FedAvg(weights="uniform")]),
    ],
)
def test_methods_with_options(recipe: Recipe, text: str, expected: list[Any]) -> None:
    found = contenders(text, recipe)
    assert [contender.method for contender in found] == expected


def test_labels_are_the_users_words(recipe: Recipe) -> None:
    assert [c.label for c in contenders(" fml:beta=0.7 ,fedavg", recipe)] == ["fml:beta=0.7", "fedavg"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--methods: none given; name them as fml,fedavg,independent"),
        (" , ", "--methods: none given"),
        ("fml,fml", "--methods: 'fml' is named twice; name each method once, or with other options"),
        ("fml,fedvag", r"--methods: 'fedvag': method\.name: 'fedvag' is not a method; did you mean 'fedavg'\?"),
        (
            "fedprox:nu=1",
            r"--methods: 'fedprox:nu=1': method\.nu: unknown key; known: .*weights, serve, mu",
        ),
        ("fedprox:mu", "--methods: 'fedprox:mu': write options as name:key=value, such as fedprox:mu=0.1"),
        ("fedprox:=1", "--methods: 'fedprox:=1': write options as name:key=value"),
        ("fedprox:mu=x", r"--methods: 'fedprox:mu=x': method\.mu: 'x' is not a finite number"),
        ("fedprox:mu=[1", "--methods: .* is not a YAML value"),
        ("fedprox:mu=-1", r"--methods: 'fedprox:mu=-1': method\.mu: -1 is out of range"),
        ("no_such.module:Method", "--methods: .* cannot be imported"),
    ],
)
def test_methods_that_are_none(recipe: Recipe, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        contenders(text, recipe)


def test_seeds() -> None:
    assert seeds("0,1,2") == [0, 1, 2] and seeds(" 7 , 3,") == [7, 3]
    for text in ("a", "1.5", "", ",", "1,1", "0,-1"):
        with pytest.raises(InputError, match=f"--seeds: '{text}'; give .*whole numbers"):
            seeds(text)


# What is the same for all


def test_methods_are_an_axis_beside_those_of_the_grid(tiny: dict[str, Any], tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        json.dumps({**tiny, "method": {"name": "fml", "alpha": 0.3}, "grid": {"method.beta": [0.1, 0.2]}})
    )
    found = comparing.cells(recipe, ["rounds=3"], "fml,fedavg")
    assert [cell.name for cell, _ in found] == [
        "fml, method.beta=0.1", "fedavg, method.beta=0.1", "fml, method.beta=0.2", "fedavg, method.beta=0.2",
    ]  # fmt: skip
    assert [one.method for _, one in found] == [
        FML(alpha=0.3, beta=0.1), FedAvg(), FML(alpha=0.3, beta=0.2), FedAvg(),
    ]  # fmt: skip
    assert all(one.rounds == 3 and one.grid is None for _, one in found)
    assert [cell.name for cell, _ in comparing.cells(recipe, [], None)] == ["method.beta=0.1", "method.beta=0.2"]
    # Without a grid the methods are all there is.
    recipe.write_text(json.dumps(tiny))
    assert [dict(cell.labels) for cell, _ in comparing.cells(recipe, [], "fml,fedavg")] == [
        {"method": "fml"},
        {"method": "fedavg"},
    ]


@pytest.mark.parametrize(
    ("grid", "methods", "said"),
    [
        (None, None, "--methods: missing; name them as fml,fedavg,independent, or give the recipe a grid"),
        ({"method": {"a": {}}}, "fml", "--methods: .* has a grid with an axis 'method'; leave --methods out"),
        ({"rounds": [1, "x"]}, None, "grid: 'x': rounds: 'x'; it must be a whole number"),
        ({"a": {"b": {"data.0": 1, "data.0.x.0": 2}}}, None, "grid: 'b': data"),
        ({"steps": {"two": {"steps": 2, "epochs": 1}}}, None, "grid: 'two': epochs and steps are both given"),
    ],
)
def test_comparisons_that_are_none(
    tiny: dict[str, Any], tmp_path: Path, grid: object, methods: str | None, said: str
) -> None:
    (tmp_path / "recipe.yaml").write_text(json.dumps({**tiny, "grid": grid}))
    with pytest.raises(InputError, match=said):
        comparing.cells(tmp_path / "recipe.yaml", [], methods)


def test_which_methods_use_the_global_alone(finished: Callable[..., tuple[Path, Any]]) -> None:
    tuned = {"name": "finetuned", "tune_epochs": 1}
    methods = ("fml", "fedavg", "fedprox", tuned, "independent", "centralised")
    found = [name for name in methods if comparing.uses_global_alone(finished(name, rounds=0)[0])]
    assert found == ["fedavg", "fedprox", tuned]


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


# What it leaves


def test_the_files(tmp_path: Path) -> None:
    def save(some: list[Any]) -> None:
        with together() as files:
            comparing.write(files, tmp_path, some)

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
