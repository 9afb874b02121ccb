"""Items: a paper's table as data, checked; its cells at both scales."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from mutua import InputError
from mutua.studies.papers import items
from mutua.studies.papers.items import Item


@pytest.fixture
def tree(tiny: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": "Two clients",
        "where": "Table 9",
        "recipe": {**tiny, "rounds": 50},
        "grid": {
            "method": {"FML": {}, "alone": {"method": "independent", "rounds": 70}},
            "partition.clients": [2, 3],
        },
        "laptop": {
            "set": {"rounds": 1, "models.global.width": 0.2},
            "keep": {"partition.clients": [2]},
            "grid": {"method": {"alone": {"epochs": 4}}},
            "cut": ["1 round"],
        },
        "published": {"values": [{"cell": {"partition.clients": 2}, "measure": "predictor", "value": 89.1}]},
        "claims": [
            {"text": "better", "measure": "predictor", "better": {"method": "FML"}, "than": {"method": "alone"}}
        ],
    }


def test_cells_of_both_scales(tree: dict[str, Any]) -> None:
    item = Item.of(tree)
    paper, laptop = item.cells("paper"), item.cells("laptop")
    assert [recipe.rounds for _, recipe in paper] == [50, 50, 70, 70]
    assert [recipe.partition.clients for _, recipe in paper] == [2, 3, 2, 3]  # type: ignore[union-attr]
    # The laptop has the last word, over the grid too.
    assert [(cell.name, recipe.rounds, recipe.epochs) for cell, recipe in laptop] == [
        ("FML, partition.clients=2", 1, 1),
        ("alone, partition.clients=2", 1, 4),
    ]
    assert laptop[0][1].models.global_model.spec()["width"] == 0.2  # type: ignore[union-attr]
    assert item.published.values[0].cell == {"partition.clients": "2"}


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        ("wher", "x", "wher: unknown key; did you mean 'where'"),
        ("title", None, "title: nothing; it must be text"),
        ("kind", "odd", "kind: 'odd'; known: runs"),
        ("recipe.seed", 1, r"recipe\.seed: the recipe of an item has no such key; leave it out"),
        ("claims.0.measure", "pred", "measure: 'pred' is not a measure; did you mean 'predictor'"),
        ("claims.0.than", None, r"claims\.0: than and than_measure are both missing"),
        ("claims.0.than", {"method": "x"}, r"claims\.0\.than: 'x' is not in grid\.method; known: FML, alone"),
        ("published.values.0.cell", {"m": 1}, r"published\.values\.0\.cell: 'm' is not an axis of grid"),
        ("published.values.0.value", "x", r"published\.values\.0\.value: 'x'; it must be a number"),
        ("laptop.keep", {"method": ["x"]}, r"laptop\.keep: 'x' is not in grid\.method"),
        (
            "recipe.rounds",
            "many",
            r"FML, partition\.clients=2, scale paper: rounds: 'many'; it must be",
        ),
        ("grid", {"rounds": ["x"]}, r"laptop\.keep: 'partition.clients' is not an axis of grid"),
    ],
)
def test_items_that_are_none(tree: dict[str, Any], at: str, value: object, said: str) -> None:
    from mutua.recipe.grid import put

    wrong = deepcopy(tree)
    put(wrong, at, value, "test")
    with pytest.raises(InputError, match=said):
        Item.of(wrong).cells("paper")


def test_items_by_name(tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "FOLDER", tmp_path)
    for name in ("paper/table-1", "paper/figure-1", "other/table-1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    assert items.item_names() == ["other/table-1", "paper/figure-1", "paper/table-1"]
    assert items.chosen_items(["paper/table-1", "paper"]) == ["paper/table-1", "paper/figure-1"]
    assert items.load_item("paper/table-1").where == "Table 9"
    with pytest.raises(InputError, match="ITEM: 'paper/table-2' is not an item; did you mean 'paper/table-1'"):
        items.load_item("paper/table-2")
    (tmp_path / "paper" / "table-1.yaml").write_text("title: [")
    with pytest.raises(InputError, match=r"table-1\.yaml: not YAML"):
        items.load_item("paper/table-1")


@pytest.mark.parametrize("name", items.item_names())
def test_the_packages_items_are_whole_at_both_scales(name: str) -> None:
    item = items.load_item(name)
    for scale in ("laptop", "paper"):
        assert item.cells(scale)  # type: ignore[arg-type]
