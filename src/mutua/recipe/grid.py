"""Grids: what varies between runs, as axes of labelled changes; a cell is one label of each axis."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from mutua.errors import InputError, suggest

Labels = Mapping[str, str]
"""By axis, a label. If some axes are missing, all cells with these labels are meant."""


def _labelled(given: object) -> object:
    """A grid in its long form: a list of values becomes changes of the one key, labelled by the values."""
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f"{given!r}; name what varies, such as {{method.alpha: [0.1, 0.5]}}")
    return {str(axis): _axis(str(axis), labels) for axis, labels in given.items()}


def _axis(axis: str, given: object) -> dict[str, object]:
    if isinstance(given, list) and given:
        labels = [as_label(value) for value in given]
        if len(set(labels)) < len(labels):
            raise ValueError(f"{axis}: a value is given twice; give each once")
        return dict(zip(labels, ({axis: value} for value in given), strict=True))
    if isinstance(given, Mapping) and given:
        return {as_label(label): _changes(f"{axis}.{label}", changes) for label, changes in given.items()}
    raise ValueError(f"{axis}: {given!r}; give values, such as [0.1, 0.5], or labels with what they change")


def _changes(label: str, given: object) -> object:
    if given is None or isinstance(given, Mapping):
        return given or {}
    raise ValueError(f"{label}: {given!r}; give what it changes, such as {{method.alpha: 0.1}}")


def as_label(value: object) -> str:
    """A label as text: YAML reads `4` and `yes` as other types."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def as_labels(given: object) -> object:
    """Axes and labels as text."""
    if isinstance(given, Mapping):
        return {str(axis): as_label(label) for axis, label in given.items()}
    return given


Axes = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By axis and label, changes by dotted key."""
Axis = dict[str, dict[str, Any]]
Grid = Annotated[dict[str, Axis], BeforeValidator(_labelled)]
"""By axis and label, changes of a recipe by dotted key; `{method.alpha: [0.1, 0.5]}` is the short form."""


@dataclass(frozen=True)
class Cell:
    """One label of each axis, and what they change together."""

    labels: Labels
    changes: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The cell's labels, each with its axis if the label is only a value, such as 0.1."""
        return ", ".join(self._word(axis, label) for axis, label in self.labels.items()) or "all"

    def _word(self, axis: str, label: str) -> str:
        value = self.changes.get(axis)
        return label if value is None or isinstance(value, str) or as_label(value) != label else f"{axis}={label}"

    def agrees(self, wanted: Labels) -> bool:
        """Whether it has these labels."""
        return all(self.labels.get(axis) == label for axis, label in wanted.items())


def cells(grid: Axes) -> list[Cell]:
    """Every combination, the last axis fastest; a grid without axes has one cell."""
    return list(_cells(grid))


def _cells(grid: Axes) -> Iterator[Cell]:
    for chosen in itertools.product(*(labels.items() for labels in grid.values())):
        labels = {axis: label for axis, (label, _) in zip(grid, chosen, strict=True)}
        yield Cell(labels, {key: value for _, changes in chosen for key, value in changes.items()})


def kept(grid: Mapping[str, Axis], keep: Mapping[str, Collection[str]], field: str) -> dict[str, Axis]:
    """The grid with fewer labels on some axes."""
    for axis, labels in keep.items():
        for label in labels:
            known(grid, {axis: label}, field)
    return {axis: {label: labels[label] for label in keep.get(axis, labels)} for axis, labels in grid.items()}


def known(grid: Mapping[str, Mapping[str, Any]], labels: Labels, field: str) -> None:
    """Refuse an axis or label that is not in the grid."""
    for axis, label in labels.items():
        if axis not in grid:
            raise InputError(f"{field}: '{axis}' is not an axis of grid; {suggest(axis, list(grid))}")
        if label not in grid[axis]:
            raise InputError(f"{field}: '{label}' is not in grid.{axis}; {suggest(label, list(grid[axis]))}")


def changed(tree: Mapping[str, Any], changes: Mapping[str, Any], field: str) -> dict[str, Any]:
    """A recipe's tree with changes by dotted key; `field` says in errors where they were given."""
    made = copy.deepcopy(dict(tree))
    for path, value in changes.items():
        put(made, path, copy.deepcopy(value), f"{field}: {path}")
    return made


def put(tree: dict[str, Any], path: str, value: Any, told: str) -> None:
    """Set `a.b` of a tree; `told` is how an error begins."""
    at: Any = tree
    *parents, last = path.split(".")
    for step in parents:
        key = _key(at, step, told)
        inner = at[key] if isinstance(at, list) else at.get(key)
        if not isinstance(inner, dict | list):
            # `data: mnist` is short for `data: {name: mnist}`; a change may add to it.
            inner = at[key] = {"name": inner} if isinstance(inner, str) else {}
        at = inner
    at[_key(at, last, told)] = value


def _key(at: list[Any] | dict[str, Any], step: str, told: str) -> Any:
    if isinstance(at, dict):
        return step
    if not step.isdigit() or int(step) >= len(at):
        raise InputError(f"{told}: '{step}' is not a position in a list of {len(at)}; positions count from 0")
    return int(step)


def facets(cells: Mapping[str, Labels]) -> dict[str, list[str]]:
    """Groups of cells that differ in their method only, by the labels that they have in common.

    If no axis is `method`, all cells are one group.
    """
    found: dict[str, list[str]] = {}
    for name, labels in cells.items():
        shared = ", ".join(f"{axis} {label}" for axis, label in labels.items() if axis != "method")
        found.setdefault(shared if "method" in labels else "", []).append(name)
    return found
