"""Which columns of tables are a model's input: as they are declared, and else as the tables show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field, FiniteFloat, model_validator

from mutua.data.table_columns import (
    DATE,
    RawColumn,
    RawTable,
    TextColumn,
    as_number,
    as_text,
    as_texts,
    minus_read,
    missing_in,
    unread_word,
    way_out,
)
from mutua.data.table_encoding import Column
from mutua.errors import InputError, suggest
from mutua.support.configuration import Spec
from mutua.support.text import some

MOST_CATEGORIES = 100
"""A column of more different texts is no category unless it is declared one."""
MOST_DECLARED = 10_000


class ColumnSpec(Spec):
    """What a recipe says of a column: number, category (with its categories, if they are declared) or ignore."""

    kind: Literal["number", "category", "ignore"] = "number"
    categories: tuple[str, ...] | None = Field(None, min_length=1, max_length=MOST_DECLARED)
    missing: bool = True
    drop_first: bool = False
    mean: FiniteFloat | None = None
    std: FiniteFloat | None = Field(None, gt=0)
    fill: FiniteFloat | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"kind": value}
        if isinstance(value, list | tuple):
            value = {"categories": value}
        if not isinstance(value, Mapping) or value.get("categories") is None:
            return value
        levels = value["categories"]
        if any(isinstance(level, bool) for level in levels):
            raise ValueError(
                "true and false among categories (in YAML yes and no are that too); write them in quotes"
            )
        return {"kind": "category", **value, "categories": [as_text(level) for level in levels]}

    @model_validator(mode="after")
    def _fits_its_kind(self) -> ColumnSpec:
        if self.categories is not None and len({*self.categories}) < len(self.categories):
            raise ValueError(f"categories: {list(self.categories)} has one twice; they must differ")
        if (unread := unread_word(self.categories or ())) is not None:
            raise ValueError(f"categories: {unread}")
        for_numbers = [name for name in ("mean", "std", "fill") if getattr(self, name) is not None]
        if self.kind != "number" and for_numbers:
            raise ValueError(f"{for_numbers[0]} is for a column of numbers; leave it out")
        if self.kind != "category" and (self.categories is not None or self.drop_first):
            raise ValueError("categories and drop_first are for a category; give kind: category")
        return self


Columns = dict[str, ColumnSpec]
"""What is declared, by the name of the column."""


def choose_columns(
    tables: Sequence[RawTable], declared: Mapping[str, ColumnSpec], infer: bool, aside: Sequence[str]
) -> tuple[tuple[Column, ...], list[str], list[str]]:
    """The columns that are inputs, in order of first appearance; those that were inferred; notes.

    `aside` are columns of another use, such as the target's. What is not declared is inferred over all tables, if
    `infer`: then whoever gives the tables together has declared it.
    """
    names = list(dict.fromkeys(name for table in tables for name in table.columns))
    for name in declared:
        if name not in names:
            raise InputError(f"columns: '{name}' is not a column of {_where(tables)}; {suggest(name, names)}")
        if name in aside and declared[name].kind != "ignore":
            raise InputError(
                f"columns: '{name}' has another use (target, group, client or mask); leave it out here"
            )
    columns, inferred, notes, unfit = [], [], [], []
    for name in names:
        spec = declared.get(name)
        if name in aside or (spec is None and not infer) or (spec is not None and spec.kind == "ignore"):
            continue
        given = [table.columns[name] for table in tables if name in table.columns]
        held = minus_read(given, spec.categories or () if spec else ())
        if spec is not None:
            columns.append(_declared(name, spec, held))
            if spec.kind == "category" and spec.categories is None:
                inferred.append(name)
            notes += _strangers(columns[-1], held)
            continue
        if all(bool(missing_in(column).all()) for column in held):
            notes.append(f"column '{name}' has no value in any row and is left out")
            continue
        if (why := _unfit(held)) is not None:
            unfit.append(f"'{name}' ({why})")
            continue
        missing = len(held) < len(tables) or any(bool(missing_in(column).any()) for column in held)
        kind: Literal["number", "category"] = "category" if _textual(held) else "number"
        columns.append(Column(name, kind, _levels(held) if kind == "category" else (), missing))
        inferred.append(name)
        if kind == "number" and _numbered(name, held):
            notes.append(f"column '{name}' has another whole number in every row; if it is an id, leave it out")
    if unfit:
        raise InputError(
            f"columns: {', '.join(unfit)} of {_where(tables)}: neither numbers nor categories; leave them out "
            "with columns: {NAME: ignore}, or declare what they are"
        )
    if not columns:
        raise InputError(f"columns: {_where(tables)} has no column that could be an input; it has {some(names)}")
    return tuple(columns), inferred, notes


def _where(tables: Sequence[RawTable]) -> str:
    return some(list(dict.fromkeys(table.where for table in tables)))


def _textual(held: Sequence[RawColumn]) -> bool:
    return any(isinstance(column, TextColumn) for column in held)


def _levels(held: Sequence[RawColumn]) -> tuple[str, ...]:
    """All categories, in order: numbers by size."""
    found = {level for column in held for level in as_texts(column).levels}
    numbers = {level: as_number(level) for level in found}
    if None not in numbers.values():
        return tuple(sorted(found, key=lambda level: (numbers[level] or 0.0, level)))
    return tuple(sorted(found))


def _declared(name: str, spec: ColumnSpec, held: Sequence[RawColumn]) -> Column:
    levels: tuple[str, ...] = ()
    if spec.kind == "category":
        levels = spec.categories or _levels(held)
        if len(levels) > MOST_DECLARED:
            raise InputError(
                f"columns.{name}: {len(levels):,} categories; at most {MOST_DECLARED:,} are possible: leave it out"
            )
    kind: Literal["number", "category"] = "category" if spec.kind == "category" else "number"
    drop = spec.drop_first and len(levels) > 0
    return Column(name, kind, levels, spec.missing, drop, spec.mean, spec.std, spec.fill)


def _strangers(column: Column, held: Sequence[RawColumn]) -> list[str]:
    """What to say of values that are not among the declared categories; refused if none is."""
    if column.kind == "number":
        return []
    found = {level for one in held for level in as_texts(one).levels}
    strangers = sorted(found - {*column.categories})
    if not strangers:
        return []
    if len(strangers) == len(found):
        raise InputError(
            f"columns.{column.name}: none of its values ({some(strangers)}) is among the declared categories "
            f"({some(column.categories)}); declare those that it has"
        )
    return [f"column '{column.name}': {some(strangers)} not among its declared categories count as none of them"]


def _unfit(held: Sequence[RawColumn]) -> str | None:
    """Why a column of texts is not taken for a category; None if it may be one."""
    if not _textual(held):
        return None
    levels = list(_levels(held))
    numeric = [level for level in levels if as_number(level) is not None]
    if all(DATE.match(level) for level in levels):
        return f"dates, such as {levels[0]}"
    strange = [level for level in levels if as_number(level) is None]
    if len(numeric) > len(strange):
        return f"numbers, but {some(strange[:3])}: {way_out(strange)}"
    values = sum(int((~missing_in(column)).sum()) for column in held)
    if len(levels) > MOST_CATEGORIES or (len(levels) == values and values > 20):
        return f"{len(levels):,} different texts"
    return None


def _numbered(name: str, held: Sequence[RawColumn]) -> bool:
    """Whether the values look like a number that each row was given."""
    values = np.concatenate([column for column in held if isinstance(column, np.ndarray)])
    whole = bool((values == np.round(values)).all())
    named = (
        name.lower() == "id"
        or name.startswith("Unnamed: ")
        or name.lower().endswith(("_id", " id", "-id", "number", "index"))
    )
    return len(values) > 20 and whole and (named and len(np.unique(values)) == len(values))


def declaration(table: RawTable, aside: Sequence[str]) -> dict[str, Any]:
    """What the columns of a table look like, as a recipe declares them; what is unfit is to be ignored."""
    for name in aside:
        if name not in table.columns:
            raise InputError(
                f"--without: '{name}' is not a column of {table.where}; {suggest(name, [*table.columns])}"
            )
    found: dict[str, Any] = {}
    for name, given in table.columns.items():
        [column] = minus_read([given])
        empty = bool(missing_in(column).all())
        if name in aside or empty or _unfit([column]) is not None:
            found |= {} if name in aside else {name: "ignore"}
        else:
            found[name] = [*_levels([column])] if isinstance(column, TextColumn) else "number"
    return found
