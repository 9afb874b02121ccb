"""Grids: both forms, cells and their names, changes by dotted key, and what is refused."""

import itertools
from typing import Any

import pytest
from pydantic import TypeAdapter

from mutua import InputError, Recipe
from mutua.recipe.grid import Grid, cells, changed, kept
from mutua.recipe.recipe import expand

LONG = {"method": {"FML": {}, "alone": {"method": "independent", "rounds": 3}}}


def grid(given: object) -> Any:
    return TypeAdapter(Grid).validate_python(given)


def test_the_short_form_is_the_long_one_with_values_as_labels() -> None:
    short = grid({"rounds": [1, 2], "method.alpha": [0.1, True, "x", {"a": 1}]})
    assert short["rounds"] == {"1": {"rounds": 1}, "2": {"rounds": 2}}
    assert list(short["method.alpha"]) == ["0.1", "true", "x", '{"a": 1}']
    assert grid(short) == short


def test_cells_are_all_combinations_with_the_last_axis_fastest() -> None:
    found = cells(grid({**LONG, "rounds": [5, 6], "seedless": {"x": None, "y": {"epochs": 2}}}))
    assert [tuple(cell.labels.values()) for cell in found] == list(
        itertools.product(["FML", "alone"], ["5", "6"], ["x", "y"])
    )
    assert found[-1].changes == {"method": "independent", "rounds": 6, "epochs": 2}
    assert [cell.name for cell in found[:2]] == ["FML, rounds=5, x", "FML, rounds=5, y"]
    assert [cell.name for cell in cells({})] == ["all"]


def test_a_cell_agrees_with_labels_that_it_has() -> None:
    first, *_ = cells(grid({**LONG, "rounds": [5, 6]}))
    assert first.agrees({}) and first.agrees({"rounds": "5"}) and not first.agrees({"rounds": "6"})
    assert not first.agrees({"other": "5"})


def test_changes_leave_the_tree_as_it_was() -> None:
    tree = {"data": "mnist", "models": {"clients": ["mlp", "lenet5"]}}
    made = changed(tree, {"data.image_size": 8, "models.clients.1": "cnn1", "a.b": [1]}, "grid")
    assert made == {
        "data": {"name": "mnist", "image_size": 8},
        "models": {"clients": ["mlp", "cnn1"]},
        "a": {"b": [1]},
    }
    assert tree == {"data": "mnist", "models": {"clients": ["mlp", "lenet5"]}}
    with pytest.raises(InputError, match=r"grid: models\.clients\.2: '2' is not a position in a list of 2"):
        changed(tree, {"models.clients.2": "cnn1"}, "grid")


def test_labels_that_are_kept() -> None:
    assert list(kept(grid(LONG), {"method": ["alone"]}, "keep")["method"]) == ["alone"]
    with pytest.raises(
        InputError, match=r"keep: 'FLM' is not in grid\.method; did you mean 'FML'\? known: FML, alone"
    ):
        kept(grid(LONG), {"method": ["FLM"]}, "keep")
    with pytest.raises(InputError, match="keep: 'metod' is not an axis of grid; did you mean 'method'"):
        kept(grid(LONG), {"metod": ["FML"]}, "keep")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "grid: {}; name what varies, such as"),
        ({"rounds": []}, r"grid: rounds: \[\]; give values, such as"),
        ({"rounds": {}}, r"grid: rounds: {}; give values, such as"),
        ({"method": {"FML": 3}}, r"grid: method\.FML: 3; give what it changes"),
        ({"rounds": [1, 1]}, "grid: rounds: a value is given twice; give each once"),
        ({"rounds": 3}, "grid: rounds: 3; give values, such as"),
        ([1], r"grid: \[1\]; name what varies, such as"),
    ],
)
def test_grids_that_are_none(tiny: dict[str, Any], given: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Recipe.of({**tiny, "grid": given})


def test_an_axis_that_undoes_another_is_refused(tiny: dict[str, Any]) -> None:
    alphas, methods = {"0.3": {"method.alpha": 0.3}, "0.5": {"method.alpha": 0.5}}, {"FML": {"method": "fml"}}
    assert len(expand(tiny, {"method": methods, "alpha": alphas})) == 2
    with pytest.raises(InputError, match=r"grid: '0\.3, FML' and '0\.5, FML' are the same run; put an axis that"):
        expand(tiny, {"alpha": alphas, "method": methods})
