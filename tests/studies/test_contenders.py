"""What is compared: methods as users name them, seeds, and the cells of a grid."""

import json
from pathlib import Path
from typing import Any

import pytest

from mutua import InputError, Recipe
from mutua.learning.schedules import Linear, Listed
from mutua.methods import FML, FedAvg, FedProx, Independent
from mutua.studies.contenders import compared_cells, read_contenders, read_seeds


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
    found = read_contenders(text, recipe)
    assert [contender.method for contender in found] == expected


def test_labels_are_the_users_words(recipe: Recipe) -> None:
    assert [c.label for c in read_contenders(" fml:beta=0.7 ,fedavg", recipe)] == ["fml:beta=0.7", "fedavg"]


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
        read_contenders(text, recipe)


def test_seeds() -> None:
    assert read_seeds("0,1,2") == [0, 1, 2] and read_seeds(" 7 , 3,") == [7, 3]
    for text in ("a", "1.5", "", ",", "1,1", "0,-1"):
        with pytest.raises(InputError, match=f"--seeds: '{text}'; give .*whole numbers"):
            read_seeds(text)


# What is the same for all


def test_methods_are_an_axis_beside_those_of_the_grid(tiny: dict[str, Any], tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        json.dumps({**tiny, "method": {"name": "fml", "alpha": 0.3}, "grid": {"method.beta": [0.1, 0.2]}})
    )
    found = compared_cells(recipe, ["rounds=3"], "fml,fedavg")
    assert [cell.name for cell, _ in found] == [
        "fml, method.beta=0.1", "fedavg, method.beta=0.1", "fml, method.beta=0.2", "fedavg, method.beta=0.2",
    ]  # fmt: skip
    assert [one.method for _, one in found] == [
        FML(alpha=0.3, beta=0.1), FedAvg(), FML(alpha=0.3, beta=0.2), FedAvg(),
    ]  # fmt: skip
    assert all(one.rounds == 3 and one.grid is None for _, one in found)
    assert [cell.name for cell, _ in compared_cells(recipe, [], None)] == ["method.beta=0.1", "method.beta=0.2"]
    # Without a grid the methods are all there is.
    recipe.write_text(json.dumps(tiny))
    assert [dict(cell.labels) for cell, _ in compared_cells(recipe, [], "fml,fedavg")] == [
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
        compared_cells(tmp_path / "recipe.yaml", [], methods)
