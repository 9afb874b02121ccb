"""Tables as they are read: columns of numbers or of texts, by name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mutua.errors import InputError
from mutua.support.text import some

MISSING = frozenset(
    {"", "?", "na", "n/a", "#n/a", "#na", "nan", "-nan", "null", "none", "<na>", "nat", "#null!", "-", "."}
)
"""Texts, in small letters, that mean that there is no value."""
DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}|\d{1,2}:\d{2}(:\d{2})?")
"""How a text begins that is a date or a time."""


@dataclass(frozen=True)
class TextColumn:
    """A column of texts: the different ones, and of each row the position of its own; -1 where there is none."""

    codes: np.ndarray
    levels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def held(self) -> np.ndarray:
        """The positions of levels that any row has."""
        return np.unique(self.codes[self.codes >= 0])

    def value(self, row: int) -> str | None:
        """The text of a row; None where it has none."""
        return self.levels[self.codes[row]] if self.codes[row] >= 0 else None


RawColumn = np.ndarray | TextColumn
"""Numbers, with NaN where there is none, or texts."""


@dataclass(frozen=True)
class RawTable:
    """Columns of one length, by name; `where` says in messages where the table came from."""

    columns: Mapping[str, RawColumn]
    where: str

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def take(self, rows: np.ndarray) -> RawTable:
        """These rows."""
        return replace(self, columns={name: _taken(column, rows) for name, column in self.columns.items()})

    def __getitem__(self, name: str) -> RawColumn:
        return self.columns[name]


def _taken(column: RawColumn, rows: np.ndarray) -> RawColumn:
    return replace(column, codes=column.codes[rows]) if isinstance(column, TextColumn) else column[rows]


def missing_in(column: RawColumn) -> np.ndarray:
    """Which rows have no value."""
    if isinstance(column, TextColumn):
        return np.asarray(column.codes < 0)
    gaps = np.isnan(column)
    return np.asarray(gaps.any(axis=1) if gaps.ndim > 1 else gaps)


def column_of(values: Any, what: str) -> RawColumn:
    """A column of whatever somebody has: numbers, true and false, or texts; `what` names it in messages."""
    try:
        held = np.asarray(values)
    except ValueError:  # lists of different lengths
        raise InputError(_nested(what)) from None
    if held.ndim != 1:
        raise InputError(f"{what}: shape {held.shape}; a column has one value per row")
    if held.dtype.kind in "iufb":
        return _finite(held.astype(np.float64), what)
    if held.dtype.kind in "Mm":
        held = held.astype(str)
    elif held.dtype.kind == "S":
        held = np.char.decode(held, "utf-8", "replace")
    elif held.dtype.kind not in "OU":
        raise InputError(f"{what}: values of type {held.dtype}; give numbers or texts")
    codes, levels = _factorised(held.tolist(), what)
    return texts_or_numbers(codes, levels, what)


def _nested(what: str) -> str:
    return f"{what}: lists or other values of several parts; a column has one value per row"


def _factorised(values: Iterable[Any], what: str) -> tuple[np.ndarray, list[str]]:
    known: dict[Any, int] = {}
    codes = []
    for value in values:
        if isinstance(value, list | tuple | set | dict | np.ndarray):
            raise InputError(_nested(what))
        if value is None or value != value or str(value) == "NaT" or str(value) == "<NA>":
            codes.append(-1)
        else:
            codes.append(known.setdefault(as_text(value), len(known)))
    return np.array(codes, np.int64), list(known)


def texts_or_numbers(codes: np.ndarray, levels: Iterable[str], what: str) -> RawColumn:
    """The column of these texts: of numbers, if every one is a number."""
    texts = [" ".join(str(level).split()) for level in levels]
    known: dict[str, int] = {}
    gaps = MISSING - {"-"}  # beside texts, a minus may be a value: `minus_read` decides it
    place = [known.setdefault(text, len(known)) if text.lower() not in gaps else -1 for text in texts]
    codes = np.array([*place, -1], np.int64)[codes]
    numbers = [math.nan if text == "-" else as_number(text) for text in known]
    if None not in numbers and [*known] != ["-"]:  # so also where there is no value at all
        return _finite(np.array([*numbers, math.nan], np.float64)[codes], what)
    return TextColumn(codes, tuple(known))


def minus_read(columns: Sequence[RawColumn], names: Iterable[str] = ()) -> list[RawColumn]:
    """The same column of several tables: a minus in it is no value, but beside a plus in any, or among `names`.

    That must not depend on which rows a table happens to have: `names` are what is known of the column.
    """
    texts = [column for column in columns if isinstance(column, TextColumn)]
    if not {"+", "-"}.isdisjoint(names) or any("+" in column.levels for column in texts):
        return [*columns]
    return [_without_minus(column) for column in columns]


def _without_minus(column: RawColumn) -> RawColumn:
    if not isinstance(column, TextColumn) or "-" not in column.levels:
        return column
    if column.levels == ("-",):
        return np.full(len(column), math.nan)
    return replace(column, codes=np.where(column.codes == column.levels.index("-"), -1, column.codes))


def unread_word(names: Sequence[str]) -> str | None:
    """What to say of a category or class whose name no row can have: in a table it means that nothing is there."""
    unread = [name for name in names if name.strip().lower() in MISSING - {"-"}]
    return (
        f"'{unread[0]}' means no value in a table; write another word there and here, such as 'no'"
        if unread
        else None
    )


def as_number(text: str) -> float | None:
    """The number that a text is, if it is one."""
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def _finite(values: np.ndarray, what: str) -> np.ndarray:
    if infinite := int(np.isinf(values).sum()):
        raise InputError(f"{what}: {infinite} of {len(values)} values are infinite; leave them empty or mend them")
    return values


def as_text(value: Any) -> str:
    """A value as people write it: 1.0 is 1. True and false are 1 and 0, as they are where no value is missing."""
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, float | np.floating) and math.isfinite(value) and value == int(value):
        return str(int(value))
    return str(value)


def as_texts(column: RawColumn) -> TextColumn:
    """The same column as texts, whose levels are in order."""
    if isinstance(column, TextColumn):
        held = sorted(column.held.tolist(), key=lambda code: column.levels[code])
        place = np.full(len(column.levels) + 1, -1)
        place[held] = np.arange(len(held))
        return TextColumn(place[column.codes], tuple(column.levels[code] for code in held))
    values, codes = np.unique(column, return_inverse=True)
    known = values[~np.isnan(values)]
    return TextColumn(
        np.where(np.isnan(column), -1, codes.reshape(-1)), tuple(as_text(value) for value in known.tolist())
    )


def numbers_of(column: RawColumn, what: str) -> np.ndarray:
    """The values of a column that must be numbers."""
    if not isinstance(column, TextColumn):
        return column
    levels = [column.levels[code] for code in column.held.tolist()]
    strange = [level for level in levels if as_number(level) is None and level != "-"]
    if strange:
        raise InputError(
            f"{what}: {some(strange[:3])}{', ...' * (len(strange) > 3)} is no number; {way_out(strange)}"
        )
    values = np.array([*(math.nan if (n := as_number(level)) is None else n for level in column.levels), math.nan])
    return np.asarray(values[column.codes])


def way_out(levels: Iterable[str]) -> str:
    """What to do about texts where numbers are meant."""
    if all(DATE.match(level) for level in levels):
        return "these are dates: give a number, such as days since another date, or leave the column out"
    return "mend these values or leave them empty, or declare the column a category"
