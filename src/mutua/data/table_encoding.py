"""A table's columns, and how their values become a model's input: filled, scaled, one-hot.

What is fitted (mean, deviation and fill of a column of numbers) is fitted by each client on its own training rows
and stays with it. Everything else, so also the shape of the input, is declared: it is the same for all clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mutua.data.mapped_rows import MappedRows, in_memory
from mutua.data.model_input import ModelInput
from mutua.data.table_columns import RawTable, TextColumn, as_texts, minus_read, numbers_of
from mutua.errors import InputError

Scaling = Literal["standard", "none"]
Fill = Literal["mean", "median"]


@dataclass(frozen=True)
class Column:
    """A column of numbers or of categories, and what is known about it."""

    name: str
    kind: Literal["number", "category"] = "number"
    categories: tuple[str, ...] = ()
    missing: bool = True
    """Whether the model is told by a feature of its own where the value is missing."""
    drop_first: bool = False
    """Whether the first category has no feature: then it is where all others are 0."""
    mean: float | None = None
    std: float | None = None
    fill: float | None = None
    """What stands for a missing number, before scaling. These three are fitted where nobody declares them."""

    @property
    def one_hot(self) -> list[str]:
        """The features of a category by name."""
        names = [f"{self.name}={level}" for level in self.categories[self.drop_first :]]
        return names + [f"{self.name} is missing"] * self.missing


@dataclass(frozen=True)
class Statistics:
    """What a column of numbers is filled and scaled with: (value - mean) / std, and `fill` for no value."""

    name: str
    fill: float
    mean: float
    std: float


@dataclass(frozen=True)
class TableEncoding:
    """How stored rows of a table become a model's input: numbers, then what is missing, then categories.

    A stored row holds one number per column: the value, or the position of its category; NaN where it is missing.
    """

    columns: tuple[Column, ...]
    scale: Scaling = "standard"
    fill: Fill = "mean"
    target: str = ""
    """The column that is predicted."""
    group: str = ""
    """The column that says which rows belong together, if any does."""
    statistics: tuple[Statistics, ...] = ()
    """Of every column of numbers, in order; none until they are fitted."""

    def __call__(self, x: Tensor | MappedRows) -> Tensor:
        """The model's input for stored rows."""
        x = in_memory(x)
        if not self.fitted:
            raise InputError(
                "table: the means and deviations of its columns are not fitted: each client fits them on its own "
                "training rows; use the model of a client, or let one join"
            )
        dtype = torch.get_default_dtype()
        fill, mean, std = (torch.tensor(row, dtype=dtype, device=x.device) for row in self._rows)
        values = x[:, self._numbers]
        unknown = values.isnan()
        parts = [(torch.where(unknown, fill, values.to(dtype)) - mean) / std]
        if self._indicated:
            parts.append(unknown[:, self._indicated].to(dtype))
        for at, first, last, missing in self._one_hot:
            position = x[:, at, None]
            parts.append((position == torch.arange(first, last, device=x.device)).to(dtype))
            if missing:
                parts.append(position.isnan().to(dtype))
        return torch.cat(parts, dim=1)

    @property
    def fitted(self) -> bool:
        """Whether nothing is left to be fitted."""
        return len(self.statistics) == len(self._numbers)

    @property
    def declared(self) -> TableEncoding:
        """The same without what was fitted."""
        return replace(self, statistics=())

    @property
    def applied(self) -> AppliedEncoding:
        """For rows that are a model's input already."""
        return AppliedEncoding(self._input)

    def fit(self, x: Tensor | MappedRows) -> TableEncoding:
        """The encoding with mean, deviation and fill of these rows; of a column without values 0, 1 and 0."""
        rows = in_memory(x)
        found = (_statistics(self.columns[k], rows[:, k].double().numpy(), self) for k in self._numbers)
        return replace(self, statistics=tuple(found))

    def input(self, x: Tensor | MappedRows) -> ModelInput:
        """What a model is given."""
        return self._input

    @property
    def formula(self) -> str:
        """What it does, for a model's card."""
        return (
            "numbers by (x - mean) / std of statistics, fill where there is none; then 1 where a number is "
            "missing; then, for each column of categories, 1 for the category (without the first if drop_first) "
            "and 1 where it is missing"
        )

    def stored(self, table: RawTable) -> Tensor:
        """The rows of a table as they are stored: columns by name, and missing where the table has none of it."""
        rows = np.full((len(table), len(self.columns)), np.nan, np.dtype(str(torch.get_default_dtype())[6:]))
        for k, column in enumerate(self.columns):
            held = table.columns.get(column.name)
            if held is not None:
                what = f"{table.where}: column '{column.name}'"
                with np.errstate(over="ignore"):
                    rows[:, k] = numbers_of(held, what) if column.kind == "number" else positions(held, column)
                if np.isinf(rows[:, k]).any():
                    raise InputError(f"{what}: values beyond {np.finfo(rows.dtype).max:.2g}; give another unit")
        return torch.from_numpy(rows)

    @cached_property
    def _numbers(self) -> list[int]:
        return [k for k, column in enumerate(self.columns) if column.kind == "number"]

    @cached_property
    def _indicated(self) -> list[int]:
        """Among the numbers, those with a feature for missing values."""
        return [i for i, k in enumerate(self._numbers) if self.columns[k].missing]

    @cached_property
    def _one_hot(self) -> list[tuple[int, int, int, bool]]:
        """Of each category: its column, the first and last position with a feature, one for missing values."""
        held = [(k, column) for k, column in enumerate(self.columns) if column.kind == "category"]
        return [(k, int(c.drop_first), len(c.categories), c.missing) for k, c in held]

    @cached_property
    def _rows(self) -> list[list[float]]:
        return [[getattr(one, name) for one in self.statistics] for name in ("fill", "mean", "std")]

    @cached_property
    def _input(self) -> ModelInput:
        numbers = [self.columns[k] for k in self._numbers]
        names = [column.name for column in numbers]
        names += [f"{column.name} is missing" for column in numbers if column.missing]
        blocks = []
        for column in self.columns:
            if column.kind == "category":
                blocks.append((len(names), len(column.one_hot)))
                names += column.one_hot
        return ModelInput("table", len(names), 1, tuple(names), tuple(blocks))


@dataclass(frozen=True)
class AppliedEncoding:
    """For rows that are a model's input already, such as those of several clients put together."""

    given: ModelInput

    def __call__(self, x: Tensor | MappedRows) -> Tensor:
        """The rows as they are."""
        return in_memory(x).to(torch.get_default_dtype())

    fitted = True

    @property
    def declared(self) -> AppliedEncoding:
        """Itself: there is nothing to fit."""
        return self

    @property
    def applied(self) -> AppliedEncoding:
        """Itself."""
        return self

    def fit(self, x: Tensor | MappedRows) -> AppliedEncoding:
        """Itself: there is nothing to fit."""
        return self

    def input(self, x: Tensor | MappedRows) -> ModelInput:
        """What a model is given."""
        return self.given


def _statistics(column: Column, values: np.ndarray, how: TableEncoding) -> Statistics:
    """What the values of a column of numbers say; what is declared stays as it is."""
    held = values[~np.isnan(values)]
    mean = float(held.mean()) if len(held) else 0.0
    std = float(held.std()) if len(held) else 1.0
    fill = float(np.median(held)) if len(held) and how.fill == "median" else mean
    if std <= 1e-7 * abs(mean):  # all the same but for rounding
        std = 1.0
    if how.scale == "none":
        mean, std = 0.0, 1.0
    found = {"fill": fill, "mean": mean, "std": std}
    found |= {name: given for name in found if (given := getattr(column, name)) is not None}
    return Statistics(column.name, **found)


def positions(held: np.ndarray | TextColumn, column: Column) -> np.ndarray:
    """Of each value, the position of its category; NaN where it is missing, one beyond the last if it is none."""
    texts = as_texts(minus_read([held], column.categories)[0])
    place = {level: float(i) for i, level in enumerate(column.categories)}
    by_level = np.array([*(place.get(level, float(len(place))) for level in texts.levels), np.nan])
    return np.asarray(by_level[texts.codes])  # a missing value has the code -1


def as_columns(rows: Tensor, encoding: TableEncoding) -> dict[str, np.ndarray]:
    """Stored rows as a table again: columns by name, with the names of categories; nothing where it is missing."""
    found: dict[str, np.ndarray] = {}
    for k, column in enumerate(encoding.columns):
        held = rows[:, k].numpy()
        if column.kind == "number":
            found[column.name] = held
            continue
        # One beyond the last is a category that is not among them.
        levels = np.array([*column.categories, "not among the categories", ""])
        found[column.name] = levels[np.where(np.isnan(held), len(levels) - 1, held).astype(np.int64)]
    return found


def describe_columns(encoding: TableEncoding) -> list[Mapping[str, Any]]:
    """The columns as a list for people and JSON: kind, categories, and what was declared of them."""
    return [
        {
            "name": column.name,
            "kind": column.kind,
            "categories": list(column.categories),
            "missing": column.missing,
            **({"drop_first": True} if column.drop_first else {}),
        }
        for column in encoding.columns
    ]
