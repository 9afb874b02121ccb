"""Tables and texts read from files and data frames: for a federation, for a saved model, for a newcomer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mutua.data.samples import Samples
from mutua.data.table_columns import RawTable, TextColumn, as_texts, minus_read, missing_in, numbers_of
from mutua.data.table_encoding import TableEncoding
from mutua.data.table_files import ReadProgress, read_table, table_of
from mutua.data.tabular_sources import (
    ONLY,
    RawSource,
    Tabular,
    TabularSource,
    column_named,
    encode,
    labelled,
    lacking,
    raw_source,
    target_column,
    texts_of,
)
from mutua.data.targets import TaskKind, target_matrix
from mutua.data.text_encoding import TextEncoding
from mutua.errors import InputError
from mutua.support import safe_reading
from mutua.support.configuration import checked, local_path
from mutua.support.text import some

LINES = {"text": "text", "target": "label"}
"""The columns of a file of lines."""


def given_tables(
    tables: Sequence[Any],
    names: Sequence[str],
    options: Mapping[str, Any],
    *,
    classes: Sequence[str] | None = None,
    by: str | None = None,
    mask: str | None = None,
    task: TaskKind = "classification",
) -> list[TabularSource]:
    """Samples of data frames, mappings of columns or paths; `names` says in messages which is which."""
    own = checked(Tabular, options, at="table")
    read: Any = {"classes": classes, "by": by, "mask": mask, "kind": task}
    raws = []
    for one, name in zip(tables, names, strict=True):
        if isinstance(one, str | PathLike):
            kind = "table" if own.text is None else "text"
            raws.append(read_source(kind, local_path(one, name), own, **read))
        else:
            raws.append(raw_source(table_of(one, name), own, **read))
    made = encode(raws)
    if mask is not None and (inferred := made[0].inferred):
        raise InputError(
            f"columns: {some(inferred)} must be declared where rows are opted out, so that those need not tell "
            "what the columns hold: columns={'NAME': 'number', 'OTHER': ['a', 'b']}"
        )
    return made


def read_source(
    name: str,
    path: Path,
    options: Tabular,
    *,
    classes: Sequence[str] | None = None,
    by: str | None = None,
    mask: str | None = None,
    kind: TaskKind = "classification",
    show: ReadProgress | None = None,
) -> RawSource:
    """A table or texts of a file."""
    other = "text" if name == "table" else "table"
    if strange := [field for field in ONLY[other] if field in options.given]:
        raise InputError(f"{strange[0]}: is for data '{other}'; leave it out, or give name: {other}")
    if name == "text":
        if path.suffix == ".txt" and options.text is None:
            return raw_source(
                lines(path), options.model_copy(update=LINES), classes=classes, by=by, mask=mask, kind=kind
            )
        if options.text is None:
            raise InputError(f"text: missing; name the column of {path} that holds the texts")
    return raw_source(read_table(path, show), options, classes=classes, by=by, mask=mask, kind=kind)


def lines(path: Path, unlabelled_too: bool = False) -> RawTable:
    """A text file with a text per line, then a tab and its label, or, with `unlabelled_too`, texts alone."""
    try:
        held = safe_reading.read_text(path, safe_reading.MAX_ARRAY_BYTES)
    except FileNotFoundError:
        raise InputError(f"{path}: not found; check the path") from None
    except (OSError, safe_reading.Unreadable) as error:
        raise InputError(f"{path}: not a readable text file ({error})") from None
    numbered = enumerate(held.removeprefix("﻿").split("\n"), 1)
    split = {number: line.rpartition("\t") for number, line in numbered if line.strip()}
    rows = [*split.values()]
    if not rows:
        raise InputError(f"{path}: an empty file; give a text per line, then a tab and its label")
    bare = [number for number, (_, tab, _) in split.items() if not tab]
    if len(bare) == len(rows) and unlabelled_too:
        return RawTable({"text": _plain([row[2] for row in rows])}, str(path))
    if bare:
        raise InputError(
            f"{path}: line {bare[0]} has no tab; give a text per line, then a tab and its label, or a CSV or JSON "
            "lines file with text: and target:"
        )
    return RawTable(
        {"text": _plain([row[0] for row in rows]), "label": _plain([row[2] for row in rows])}, str(path)
    )


def _plain(values: Sequence[str]) -> TextColumn:
    """Texts as a column, as they are; an empty one is missing."""
    known: dict[str, int] = {}
    codes = [known.setdefault(text, len(known)) if (text := value.strip()) else -1 for value in values]
    return TextColumn(np.array(codes, np.int64), tuple(known))


def unlabelled(given: Any, like: Samples, where: str) -> Samples:
    """Samples without labels of what somebody has: a table or texts, or rows as they are stored."""
    encoding = like.preprocess
    numeric = isinstance(given, torch.Tensor) or (isinstance(given, np.ndarray) and given.dtype.kind in "iufb")
    if numeric and given.shape[1:] == like.x.shape[1:]:
        x = torch.as_tensor(given).to(like.x.dtype)
    elif isinstance(encoding, TextEncoding):
        held = given
        if isinstance(given, RawTable) or hasattr(given, "columns"):
            held = texts_of(column_named(table_of(given, where), encoding.column, where))
        held = [held] if isinstance(held, str) or not isinstance(held, Iterable) else list(held)
        held = [None if isinstance(text, float) and text != text else text for text in held]
        if isinstance(given, str) or not all(text is None or isinstance(text, str) for text in held):
            raise InputError(f"{where}: give a list of texts, or a table with the column '{encoding.column}'")
        x = encoding.stored(held)
    else:
        assert isinstance(encoding, TableEncoding)
        table = table_of(given, where)
        lacking = [column.name for column in encoding.columns if column.name not in table.columns]
        if len(lacking) == len(encoding.columns):
            has = some([*table.columns])
            raise InputError(f"{where}: none of the model's columns ({some(lacking)}) is there; it has {has}")
        x = encoding.stored(table)
    return replace(like, x=x, y=like.unknown(len(x)), opted_out=None, domain=None, group=None)


def read_like(path: Path, like: Samples) -> tuple[Samples, list[str] | None]:
    """The samples in a file for a model that takes such as `like`, and the names of their labels if it has any.

    A class that a row does not have is an empty name.
    """
    table, encoding = _table_like(path, like, unlabelled_too=True)
    samples = unlabelled(table, replace(like, preprocess=encoding), str(path))
    targets = (encoding.target,) if encoding.target else like.classes
    if not {*targets} <= table.columns.keys():
        return samples, None
    if like.kind == "classification":
        held = as_texts(minus_read([table[encoding.target]], like.classes)[0])
        return samples, [held.value(row) or "" for row in range(len(table))]
    values = target_column(table, targets, like.kind)
    if missing_in(values).any():  # not every row can be measured
        return samples, None
    y, names = target_matrix(numbers_of(values, str(path)), like.kind, like.classes, len(samples), str(path))
    return replace(samples, y=y), list(names)


def read_labelled(
    path: Path, like: Samples, *, classes: Sequence[str] | None = None, mask: str | None = None
) -> TabularSource:
    """The labelled samples in a file for a model that takes such as `like`; their preprocessing is not fitted.

    Their classes are those that are given, or else the file's. `mask` is the column that says what is opted out.
    """
    table, encoding = _table_like(path, like)
    group = encoding.group if encoding.group in table.columns else None
    text = encoding.column if isinstance(encoding, TextEncoding) else None
    options = Tabular(target=encoding.target or like.classes, group=group, text=text)
    raw = raw_source(table, options, classes=classes, mask=mask, kind=like.kind)
    if isinstance(encoding, TextEncoding):
        return TabularSource(labelled(raw, encoding.stored(raw.texts or ()), encoding.declared), raw.notes)
    if not any(column.name in table.columns for column in encoding.columns):
        wanted, has = (some([*names]) for names in ([c.name for c in encoding.columns], table.columns))
        raise InputError(f"{path}: none of the columns {wanted} is there; it has {has}")
    rows = labelled(raw, encoding.stored(raw.table), encoding.declared)
    return TabularSource(rows, (*raw.notes, *lacking(raw, encoding.columns)))


def _table_like(
    path: Path, like: Samples, unlabelled_too: bool = False
) -> tuple[RawTable, TableEncoding | TextEncoding]:
    """The table in a file, and how its rows become inputs."""
    encoding = like.preprocess
    assert isinstance(encoding, TableEncoding | TextEncoding)
    if path.suffix == ".txt" and isinstance(encoding, TextEncoding):
        return lines(path, unlabelled_too), replace(encoding, column=LINES["text"], target=LINES["target"])
    return read_table(path), encoding
