"""An item is one table or figure of a paper: its recipe, what varies, the numbers as printed, and its claims.

Each is a file PAPER/ITEM.yaml beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from mutua.errors import InputError, suggest
from mutua.recipe.grid import Cell, Grid, as_label, as_labels, cells, changed, kept, known
from mutua.recipe.recipe import Recipe
from mutua.studies.measures import measure_text
from mutua.support.configuration import Spec, checked, read_yaml

FOLDER = Path(__file__).parent
Scale = Literal["laptop", "paper"]
_Labels = Annotated[dict[str, str], BeforeValidator(as_labels)]
_Measure = Annotated[str, BeforeValidator(measure_text)]


def _all_labels(given: object) -> object:
    if not isinstance(given, Mapping):
        return given
    return {
        axis: [as_label(label) for label in labels] if isinstance(labels, list) else labels
        for axis, labels in given.items()
    }


class _Part(Spec):
    model_config = ConfigDict(allow_inf_nan=False)


class Laptop(_Part):
    """What scale `laptop` changes: after a cell's changes those of `set`, then those of its labels in `grid`."""

    set: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict)
    keep: Annotated[dict[str, tuple[str, ...]], BeforeValidator(_all_labels)] = Field(default_factory=dict)
    cut: tuple[str, ...] = ()


class PublishedValue(_Part):
    """A number as printed, in the paper's unit: percent as percent."""

    cell: _Labels = Field(default_factory=dict)
    measure: _Measure
    value: float
    spread: float | None = None


class Published(_Part):
    """What the paper prints; no values where it only draws."""

    selection: str | None = None
    doubt: str | None = None
    same_data: bool = False
    """Whether the numbers are of the data and the sizes that run here, so that levels can be compared too."""
    values: tuple[PublishedValue, ...] = ()


class Claim(_Part):
    """What the paper concludes: one thing is better than another, in the same seeds."""

    text: str
    measure: _Measure
    better: _Labels = Field(default_factory=dict)
    than: _Labels | None = None
    than_measure: _Measure | None = None
    lower: bool = False
    """Whether the lower value is the better one, such such as of rounds or bytes."""
    times: float = Field(1.0, gt=0)
    """The factor by which it must exceed the other value, such as in bandwidth."""
    margin: float = 0.0
    """By how much it may be worse, in the printed unit: for claims that something does little harm."""
    control: bool = False
    """Whether it explains another claim rather than being the paper's own."""

    @model_validator(mode="after")
    def _two_things(self) -> Self:
        if self.than is None and self.than_measure is None:
            raise ValueError("than and than_measure are both missing; a claim compares with one of them")
        return self


class Item(_Part):
    """One table or figure of a paper."""

    title: str
    where: str
    kind: Literal["runs", "newcomer"] = "runs"
    first_seed: int = Field(0, ge=0)
    """Of a study that was developed on other seeds: the first of those that it is confirmed on."""
    recipe: dict[str, Any]
    grid: Grid = Field(default_factory=dict)
    laptop: Laptop = Field(default_factory=Laptop)
    published: Published = Field(default_factory=Published)
    claims: tuple[Claim, ...] = ()
    measures: tuple[_Measure, ...] = ()
    """What is shown of every cell, whatever a paper prints."""
    choose: str | None = None
    """An axis, such as of learning rates, of which every other cell has the label that is best on validation."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        for key in ("seed", "grid"):
            if key in self.recipe:
                raise ValueError(f"recipe.{key}: the recipe of an item has no such key; leave it out")
        kept(self.grid, self.laptop.keep, "laptop.keep")
        kept(self.grid, self.laptop.grid, "laptop.grid")
        for i, value in enumerate(self.published.values):
            known(self.grid, value.cell, f"published.values.{i}.cell")
        for i, claim in enumerate(self.claims):
            known(self.grid, claim.better, f"claims.{i}.better")
            known(self.grid, claim.than or {}, f"claims.{i}.than")
        if self.choose is not None:
            known(self.grid, {self.choose: next(iter(self.grid.get(self.choose, {})), "")}, "choose")
            sides = [side or {} for claim in self.claims for side in (claim.better, claim.than)]
            told = [*(value.cell for value in self.published.values), *sides]
            if any(self.choose in cell for cell in told):
                raise ValueError(f"choose: '{self.choose}' is chosen by validation; name no label of it elsewhere")
        return self

    @classmethod
    def of(cls, tree: Mapping[str, Any], path: Path | None = None) -> Item:
        """The item of a mapping such as YAML gives; `path` is where it was read, for error messages."""
        return checked(cls, tree, path)

    @classmethod
    def load(cls, path: Path) -> Item:
        """The item in a YAML file."""
        return cls.of(read_yaml(path, "item"), path)

    def cells(self, scale: Scale) -> list[tuple[Cell, Recipe]]:
        """What runs at this scale: every cell with its recipe."""
        grid = kept(self.grid, self.laptop.keep, "laptop.keep") if scale == "laptop" else self.grid
        found = []
        for cell in cells(grid):
            tree = changed(self.recipe, cell.changes, f"grid: {cell.name}")
            if scale == "laptop":
                tree = changed(tree, self.laptop.set, "laptop.set")
                for axis, label in cell.labels.items():
                    tree = changed(tree, self.laptop.grid.get(axis, {}).get(label, {}), "laptop.grid")
            try:
                found.append((cell, Recipe.of(tree)))
            except InputError as error:
                raise InputError(f"{cell.name}, scale {scale}: {error}") from None
        return found


def item_names() -> list[str]:
    """Every item, as PAPER/ITEM."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in FOLDER.glob("*/*.yaml"))


def chosen_items(given: Sequence[str]) -> list[str]:
    """The items of these names; a paper's name stands for all of its items."""
    found: dict[str, None] = {}
    for name in given:
        mine = [known for known in item_names() if name in (known, known.partition("/")[0])]
        if not mine:
            where = "mutua reproduce --list shows all"
            raise InputError(f"ITEM: '{name}' is not an item; {suggest(name, item_names(), where)}")
        found |= dict.fromkeys(mine)
    return list(found)


def load_item(name: str) -> Item:
    """The item of this name."""
    [known] = chosen_items([name])
    return Item.load(FOLDER / f"{known}.yaml")
