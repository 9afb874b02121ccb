"""Tables and texts as sources: target, clients, groups and masks are taken out, the rest become inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator

from mutua.data.column_specs import Columns, ColumnSpec, choose_columns
from mutua.data.samples import Samples
from mutua.data.table_columns import (
    RawColumn,
    RawTable,
    TextColumn,
    as_number,
    as_texts,
    minus_read,
    missing_in,
    numbers_of,
    unread_word,
)
from mutua.data.table_encoding import Column, Fill, Scaling, TableEncoding
from mutua.data.targets import TaskKind, target_matrix
from mutua.data.text_encoding import TextEncoding
from mutua.errors import InputError, suggest
from mutua.support import safe_reading
from mutua.support.configuration import Spec, local_path
from mutua.support.text import several, some

KINDS = ("table", "text")
ONLY = {"table": ("columns", "infer", "own_columns", "scale", "fill"), "text": ("text", "vocabulary", "length")}
"""The keys that are for one of them."""
HASHED = 10_000
"""How many numbers there are for words if nobody says."""
LENGTH = 100
"""How many words of a text are kept if nobody says."""
MOST_CLASSES = 1000


class Tabular(Spec):
    """What a recipe says of a table or of texts; None: as usual."""

    target: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    columns: Columns | None = None
    infer: bool | None = None
    own_columns: bool | None = None
    group: str | None = None
    scale: Scaling | None = None
    fill: Fill | None = None
    text: str | None = None
    vocabulary: Annotated[int, Field(ge=1, le=10_000_000)] | tuple[str, ...] | Path | None = None
    length: int | None = Field(None, ge=1, le=100_000)

    @model_validator(mode="before")
    @classmethod
    def _names_as_text(cls, value: Any) -> Any:
        """Names of columns, that YAML may have read as numbers, as text."""
        if not isinstance(value, dict):
            return value
        listed = ("target", "group", "text")
        names: dict[str, Any] = {n: str(value[n]) for n in listed if isinstance(value.get(n), int | float)}
        if isinstance(several := value.get("target"), list | tuple):
            names["target"] = [str(one) if isinstance(one, int | float) else one for one in several]
        return {**value, **names}

    @field_validator("columns", mode="before")
    @classmethod
    def _column_names(cls, value: Any) -> Any:
        return {str(name): spec for name, spec in value.items()} if isinstance(value, Mapping) else value

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns that are predicted."""
        return (self.target,) if isinstance(self.target, str) else self.target or ()

    @property
    def one_target(self) -> str:
        """The column that is predicted; of several none, since these are the names of a model's outputs."""
        return self.targets[0] if len(self.targets) == 1 else ""

    @property
    def given(self) -> list[str]:
        """The fields that are not as usual."""
        return [name for name in Tabular.model_fields if getattr(self, name) is not None]

    @property
    def tabular(self) -> Tabular:
        """These fields alone."""
        return Tabular(**self.as_given())

    def as_given(self) -> dict[str, Any]:
        """The fields that are not as usual, with their values."""
        return {name: getattr(self, name) for name in self.given}


@dataclass(frozen=True)
class RawSource:
    """A table with a target, before it is decided which of its columns are inputs."""

    table: RawTable
    target: RawColumn
    """One column, or a matrix of numbers."""
    options: Tabular
    classes: tuple[str, ...] | None
    aside: tuple[str, ...]
    domain: TextColumn | None = None
    group: TextColumn | None = None
    opted_out: np.ndarray | None = None
    texts: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    kind: TaskKind = "classification"


@dataclass(frozen=True)
class TabularSource:
    """Samples of a table or of texts, what a reader should know, and which columns nobody has declared."""

    samples: Samples
    notes: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()


def raw_source(
    table: RawTable,
    options: Tabular,
    *,
    classes: Sequence[str] | None = None,
    by: str | None = None,
    mask: str | None = None,
    kind: TaskKind = "classification",
) -> RawSource:
    """The table with its target, whose rows are `by` which client's and in which group, and what is opted out."""
    if options.target is None:
        raise InputError(f"target: missing; name the column of {table.where} that models predict")
    whose = f"'{', '.join(options.targets)}'"
    for field in ("text", "group"):
        if (name := getattr(options, field)) in options.targets:
            raise InputError(
                f"{field}: '{name}' is the target, which would tell what is to be predicted; name another"
            )
    mine, other = ("table", "text") if options.text is None else ("text", "table")
    if strange := [field for field in ONLY[other] if field in options.given]:
        raise InputError(f"{strange[0]}: is for data '{other}', and this is a {mine}; leave it out")
    if classes is not None and kind != "classification":
        raise InputError(f"classes: with task: {kind} the columns of target name what is predicted; leave it out")
    if kind == "classification" and (unread := unread_word([str(name) for name in classes or ()])) is not None:
        raise InputError(f"classes: {unread}")
    target = target_column(table, options.targets, kind, classes or ())
    without = missing_in(target)
    notes = []
    if without.all():
        raise InputError(f"target: {whose} of {table.where} has no value in any row; name another column")
    if without.any():
        kept = np.flatnonzero(~without)
        notes.append(f"{several(int(without.sum()), 'row')} without a value in {whose} left out")
        table = table.take(kept)
        target = target_column(table, options.targets, kind, classes or ())
    others = [name for name in (options.group, by, mask) if name is not None]
    aside = [*options.targets, *others]
    made = RawSource(table, target, options, None if classes is None else tuple(classes), tuple(aside))
    if options.text is not None:
        texts = texts_of(column_named(table, options.text, "text"))
        made = replace(made, texts=texts)
        if empty := sum(not text for text in texts):
            notes.append(f"{several(empty, 'text')} of {len(texts):,} without words")
    named: dict[str, Any] = {"notes": tuple(notes), "kind": kind}
    if by is not None:
        named["domain"] = _complete(table, by, "partition.column")
    if options.group is not None:
        named["group"] = _complete(table, options.group, "group")
    if mask is not None:
        named["opted_out"] = _mask(table, mask)
    return replace(made, **named)


def target_column(
    table: RawTable, targets: Sequence[str], kind: TaskKind, classes: Sequence[str] = ()
) -> RawColumn:
    """The column that is predicted; labels and several values are a matrix, with NaN where nobody says."""
    columns = [minus_read([column_named(table, name, "target")], classes)[0] for name in targets]
    if kind == "classification" or (kind == "regression" and len(columns) == 1):
        if len(columns) > 1:
            raise InputError(
                f"target: {some(targets)} are several columns, and classification has one; name one, or set task: "
                "multi-label (0 or 1 in each) or regression"
            )
        return columns[0]
    read = _labels_of if kind == "multi-label" else numbers_of
    held = [read(c, f"{table.where}: '{n}'") for n, c in zip(targets, columns, strict=True)]
    return np.stack(held, axis=1)


_YES = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0, "no": 0.0, "yes": 1.0}


def _labels_of(column: RawColumn, what: str) -> np.ndarray:
    """Of each row whether a label is true, NaN where nobody says."""
    texts = as_texts(column)
    if strange := [level for level in texts.levels if level.lower() not in _YES]:
        raise InputError(f"{what}: {some(strange[:3])}, where task: multi-label needs 0 or 1 in every target")
    return np.asarray(np.array([*(_YES[level.lower()] for level in texts.levels), np.nan])[texts.codes])


def column_named(table: RawTable, name: str, field: str) -> RawColumn:
    """The column of this name, which `field` asks for."""
    if name not in table.columns:
        raise InputError(
            f"{field}: '{name}' is not a column of {table.where}; {suggest(name, list(table.columns))}"
        )
    return table[name]


def _complete(table: RawTable, name: str, field: str) -> TextColumn:
    """A column that must have a value in every row."""
    [column] = minus_read([column_named(table, name, field)])
    if empty := int(missing_in(column).sum()):
        raise InputError(f"{field}: '{name}' of {table.where} has no value in {several(empty, 'row')}; fill it in")
    return as_texts(column)


def _mask(table: RawTable, name: str) -> np.ndarray:
    marks = as_texts(column_named(table, name, "opt_out.mask"))
    strange = [level for level in marks.levels if level.lower() not in _YES]
    if strange or (marks.codes < 0).any():
        held = strange[0] if strange else "nothing"
        raise InputError(f"opt_out.mask: '{name}' of {table.where} holds {held}; give 0 or 1 (true: opted out)")
    return np.asarray(np.array([_YES[level.lower()] for level in marks.levels], bool)[marks.codes])


def texts_of(column: RawColumn) -> tuple[str, ...]:
    """The text of every row; an empty one where there is none."""
    held = as_texts(column)
    levels = (*held.levels, "")
    return tuple(levels[code] for code in held.codes.tolist())


def encode(sources: Sequence[RawSource]) -> list[TabularSource]:
    """The samples of every source. Columns of tables are matched by name; what a table lacks is missing there."""
    tables = [source for source in sources if source.texts is None]
    encoded = iter(_encode_tables(tables)) if tables else iter(())
    return [next(encoded) if source.texts is None else _encode_texts(source) for source in sources]


def _encode_tables(sources: Sequence[RawSource]) -> list[TabularSource]:
    declared: dict[str, ColumnSpec] = {}
    for source in sources:
        for name, spec in (source.options.columns or {}).items():
            if declared.setdefault(name, spec) != spec:
                raise InputError(
                    f"columns.{name}: declared in two ways for tables that are put together; give one"
                )
    infer = all(source.options.infer is not False for source in sources)
    aside = list(dict.fromkeys(name for source in sources for name in source.aside))
    columns, inferred, notes = choose_columns([source.table for source in sources], declared, infer, aside)
    made = []
    for source in sources:
        own = source.options
        encoding = TableEncoding(
            columns, own.scale or "standard", own.fill or "mean", own.one_target, own.group or ""
        )
        samples = labelled(source, encoding.stored(source.table), encoding)
        made.append(TabularSource(samples, (*source.notes, *lacking(source, columns), *notes), tuple(inferred)))
    return made


def declared_encoding(kind: str, options: Tabular) -> TableEncoding | TextEncoding | None:
    """How a table or texts become inputs, if the options say all of it, so that no data is needed to know."""
    if options.target is None:
        return None
    if kind == "text" and options.text is not None:
        words, buckets = _vocabulary(options)
        return TextEncoding(
            options.length or LENGTH, buckets, words, options.text, options.one_target, options.group or ""
        )
    declared = {name: spec for name, spec in (options.columns or {}).items() if spec.kind != "ignore"}
    read_off = any(spec.kind == "category" and spec.categories is None for spec in declared.values())
    if kind != "table" or not declared or read_off or options.infer is not False:
        return None
    none = RawTable({name: np.empty(0) for name in declared}, "the recipe")
    columns, _, _ = choose_columns([none], declared, False, ())
    return TableEncoding(
        columns, options.scale or "standard", options.fill or "mean", options.one_target, options.group or ""
    )


def lacking(source: RawSource, columns: Sequence[Column]) -> list[str]:
    """A note on the columns that a table does not have."""
    names = [column.name for column in columns if column.name not in source.table.columns]
    return [f"{source.table.where} has no {some(names)}: missing there"] if names else []


def _encode_texts(source: RawSource) -> TabularSource:
    own = source.options
    assert source.texts is not None
    words, buckets = _vocabulary(own)
    encoding = TextEncoding(own.length or LENGTH, buckets, words, own.text or "", own.one_target, own.group or "")
    return TabularSource(labelled(source, encoding.stored(source.texts), encoding), source.notes)


def _vocabulary(options: Tabular) -> tuple[tuple[str, ...], int]:
    """The declared words, or else how many numbers there are for words."""
    given = options.vocabulary
    if given is None or isinstance(given, int):
        return (), given or HASHED
    if isinstance(given, Path):
        path = local_path(given, "vocabulary")
        try:
            given = tuple(safe_reading.read_text(path).split())
        except (OSError, safe_reading.Unreadable) as error:
            raise InputError(f"vocabulary: {path}: {error}; give a file with one word per line") from None
    words = tuple(dict.fromkeys(str(word).lower() for word in given))
    if not words:
        raise InputError("vocabulary: no words; give some, or a number of hashed words such as 10000")
    return words, 0


def labelled(source: RawSource, x: torch.Tensor, preprocess: TableEncoding | TextEncoding) -> Samples:
    """Samples of stored rows, with labels, groups, clients and marks."""
    names = source.options.targets
    what = f"{source.table.where}: '{', '.join(names)}'"
    if source.kind != "classification":
        values = numbers_of(source.target, what)
        y, classes = target_matrix(values, source.kind, names, len(values), what)
        declared: tuple[str, ...] | None = None
    else:
        found, classes, declared = labels(source.target, source.classes, what)
        y = torch.from_numpy(found)
    domain, group, marks = source.domain, source.group, source.opted_out
    return Samples(
        x,
        y,
        classes,
        preprocess,
        domain=None if domain is None else torch.from_numpy(domain.codes.astype(np.int64)),
        domains=() if domain is None else domain.levels,
        opted_out=None if marks is None else torch.from_numpy(marks),
        declared=declared,
        group=None if group is None else torch.from_numpy(group.codes.astype(np.int64)),
        kind=source.kind,
    )


def labels(
    column: RawColumn, classes: Sequence[str] | None, what: str
) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...] | None]:
    """Labels as positions in the classes, the classes, and those that are declared (None: all)."""
    texts = as_texts(column)
    if classes is None:
        numbers = {level: as_number(level) for level in texts.levels}
        broken = [level for level, value in numbers.items() if value is not None and value % 1 > 0]
        if broken or len(texts.levels) > MOST_CLASSES:
            raise InputError(
                f"target: {what} has {len(texts.levels):,} different values ({some(texts.levels[:3])}, ...): "
                "too many or too fine for classes; name a column of classes, or declare classes"
            )
        found = tuple(texts.levels)
    else:
        found = tuple(str(name) for name in classes)
        if strange := sorted({*texts.levels} - {*found}):
            raise InputError(f"classes: {some(strange)} in {what}, but not among {some(found)}")
    place = {name: i for i, name in enumerate(found)}
    y = np.array([*(place[level] for level in texts.levels), -1], np.int64)[texts.codes]
    return y, found, None if classes is not None else ()
