"""What a comparison runs: methods as users name them, or the cells of a grid, and seeds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutua.errors import InputError
from mutua.methods import base
from mutua.methods.base import Method
from mutua.recipe.grid import Cell
from mutua.recipe.recipe import Recipe, expand, read_recipe
from mutua.support import safe_reading

_OUTSIDE_BRACKETS = r"{}(?![^\[{{]*[\]}}])"


@dataclass(frozen=True)
class Contender:
    """A method and its label: as it was named, such as "fedprox:mu=0.1", or the name of a user's own class."""

    label: str
    method: Method
    text: str = ""
    """As the user wrote it."""

    @staticmethod
    def of(text: str, recipe: Recipe | None) -> Contender:
        """Read `name` or `name:key=value:key=value`; the recipe's own method keeps the recipe's options."""
        name, *parts = _split(":", text.strip())
        if name.lower() not in base.method_names() and parts and "=" not in parts[0]:
            name = f"{name}:{parts.pop(0)}"  # a user's own: package.module:Class
        own = {} if recipe is None else base.section_of(recipe.method)
        options = dict(own) if name == own.get("name") else {"name": name}
        for part in parts:
            key, equals, value = part.partition("=")
            if not equals or not key:
                raise InputError(f"--methods: '{text}': write options as name:key=value, such as fedprox:mu=0.1")
            try:
                options[key] = safe_reading.from_yaml(value)
            except safe_reading.Unreadable:
                raise InputError(f"--methods: '{text}': '{value}' is not a YAML value") from None
        try:
            method = base.method_of(options)
            label = ":".join([base.shown_name(method), *parts]) if ":" in name else text.strip()
            return Contender(label, method, text.strip())
        except InputError as error:
            raise InputError(f"--methods: '{text}': {error}") from None


def read_contenders(text: str, recipe: Recipe | None) -> list[Contender]:
    """The methods of a list such as "fml,fedprox:mu=0.1,independent"."""
    found = [Contender.of(part, recipe) for part in _split(",", text) if part.strip()]
    if not found:
        raise InputError("--methods: none given; name them as fml,fedavg,independent")
    labels = [c.label for c in found]
    # A user's own class may have the name of the method that it extends.
    found = [c if labels.count(c.label) == 1 or not c.text else Contender(c.text, c.method) for c in found]
    labels = [c.label for c in found]
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise InputError(f"--methods: '{twice}' is named twice; name each method once, or with other options")
    return found


def read_seeds(text: str) -> list[int]:
    """The seeds of a list such as "0,1,2"."""
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"--seeds: '{text}'; give whole numbers such as 0,1,2") from None
    if not found or min(found) < 0 or len(set(found)) < len(found):
        raise InputError(f"--seeds: '{text}'; give different whole numbers from 0 on, such as 0,1,2")
    return found


def _split(mark: str, text: str) -> list[str]:
    """Split at a mark, but not inside the brackets of a value such as [0.9, 0.5]."""
    return re.split(_OUTSIDE_BRACKETS.format(mark), text)


def compared_cells(path: Path, overrides: Sequence[str], methods: str | None) -> list[tuple[Cell, Recipe]]:
    """What a comparison runs: the cells of the recipe's grid, each with every method that is named."""
    tree = read_recipe(path, overrides)
    recipe = Recipe.of(tree, path)
    found = expand(tree, recipe.grid or {}, path)
    if methods is None and recipe.grid is None:
        raise InputError("--methods: missing; name them as fml,fedavg,independent, or give the recipe a grid")
    if methods is None:
        return found
    if recipe.grid and "method" in recipe.grid:
        raise InputError(f"--methods: {path} has a grid with an axis 'method'; leave --methods out")
    named = []
    for cell, one in found:
        for rival in read_contenders(methods, one):
            changes = {"method": base.section_of(rival.method), **cell.changes}
            named.append((Cell({"method": rival.label, **cell.labels}, changes), one.with_(method=rival.method)))
    return named
