"""Tables and texts from files and data frames: CSV, JSON lines, parquet, array files, pandas and polars.

pandas reads CSV, JSON lines and parquet (`pip install 'mutua[tables]'`); it is imported only where it is used.
Array files, mappings of lists and data frames that are already in memory need nothing.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mutua.data import array_files
from mutua.data.formats import reading
from mutua.data.table_columns import RawColumn, RawTable, column_of, texts_or_numbers
from mutua.errors import InputError
from mutua.support import safe_reading
from mutua.support.text import several

ReadProgress = Callable[[int, int], None]
"""Called with how many bytes of a file have been read, and of how many."""

SEPARATORS = ",;\t|"
SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".parquet", ".npz")
_HEAD = 2**16
"""How many bytes of a file show how it is written."""


def read_table(path: Path, show: ReadProgress | None = None) -> RawTable:
    """The table in a file, whose kind its ending says; `.gz` after the ending is unpacked."""
    kind = (Path(path.stem) if path.suffix == ".gz" else path).suffix.lower()
    if path.is_dir():
        raise InputError(f"{path}: a folder, not a table; give a file ({', '.join(SUFFIXES)})")
    if kind not in SUFFIXES:
        raise InputError(f"{path}: '{kind or path.name}' is no known kind of table; give {', '.join(SUFFIXES)}")
    if kind == ".npz":
        held = {name: column_of(one, f"{path}: '{name}'") for name, one in array_files.npz_file(path).items()}
        return _checked(RawTable(held, str(path)))
    with reading(path, "a readable table"), safe_reading.open_file(path) as file:
        length = path.stat().st_size
        if length == 0:
            raise InputError(f"{path}: an empty file; give a table with a row of column names and rows of values")
        safe_reading.check_memory(length)
        told = _Told(file, length, show)
        frame = _frame(path, kind, told)
    return table_of(frame, str(path))


def _frame(path: Path, kind: str, file: _Told) -> Any:
    """The file as a pandas DataFrame."""
    pandas = _pandas(path)
    packed = "gzip" if path.suffix == ".gz" else None
    try:
        if kind == ".parquet":
            return pandas.read_parquet(file)
        if kind in (".jsonl", ".ndjson"):
            return pandas.read_json(file, lines=True, dtype=False, compression=packed)
        how = _how_written(path, packed)
        return pandas.read_csv(file, low_memory=False, compression=packed, **how)
    except ImportError:
        raise InputError(
            f"{path}: reading parquet needs pyarrow: pip install 'mutua[tables]', or save the table as CSV"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; save it as UTF-8 (in a spreadsheet: 'CSV UTF-8')") from None
    except ValueError as error:  # of pandas' parsers
        raise InputError(f"{path}: not a readable table ({' '.join(str(error).split())})") from None


def _pandas(path: Path) -> Any:
    try:
        import pandas
    except ImportError:
        raise InputError(
            f"{path}: reading this needs pandas: pip install 'mutua[tables]'; an .npz with an array per column "
            "does without"
        ) from None
    return pandas


def _how_written(path: Path, packed: str | None) -> dict[str, Any]:
    """What pandas must be told of a CSV file: what separates values, and what the decimal sign is."""
    import gzip

    with safe_reading.open_file(path) as file:
        text = (gzip.GzipFile(fileobj=file) if packed else file).read(_HEAD).decode("utf-8-sig", "replace")
    lines = text.splitlines()[: 50 if len(text) >= _HEAD // 2 else None]
    if not any(line.strip() for line in lines):
        raise InputError(f"{path}: an empty file; give a table with a row of column names and rows of values")
    while not lines[0].strip():  # pandas leaves these out too
        del lines[0]
    head = lines[0]
    separator = max(SEPARATORS, key=lambda one: len(next(csv.reader([head], delimiter=one), [])))
    names = [name.strip() for name in next(csv.reader([head], delimiter=separator))]
    twice = [name for name, number in Counter(names).items() if number > 1 and name]
    if twice:
        raise InputError(f"{path}: the column '{twice[0]}' is there twice; column names must differ")
    if all(re.fullmatch(r"[-+]?[\d.,]+(e[-+]?\d+)?", name) for name in names):
        raise InputError(
            f"{path}: its first row is numbers ({separator.join(names[:4])}, ...); it must name the columns"
        )
    held = len(next(filter(None, csv.reader(io.StringIO("\n".join(lines[1:])), delimiter=separator)), []))
    if held > len(names):  # pandas would take the first values for the rows' names
        raise InputError(
            f"{path}: its first row names {several(len(names), 'column')} and the next has {held} values; "
            "name every column, and end no row with what separates"
        )
    cells = [cell for line in lines[1:] for cell in next(csv.reader([line], delimiter=separator), [])]
    comma = separator != "," and any(re.fullmatch(r"[-+]?\d+,\d+", cell) for cell in cells)
    return {"sep": separator, "decimal": "," if comma else "."}


class _Told(io.RawIOBase):
    """A file that says how much of it has been read."""

    def __init__(self, file: BinaryIO, length: int, show: ReadProgress | None) -> None:
        self._file, self._length, self._show = file, length, show

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        part = self._file.read(-1 if size is None else size)
        if self._show is not None:
            self._show(self._file.tell(), self._length)
        return part

    def readinto(self, into: Any, /) -> int:
        part = self.read(len(into))
        into[: len(part)] = part
        return len(part)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def table_of(given: Any, where: str = "table") -> RawTable:
    """The table that a pandas or polars DataFrame, an Arrow table, columns by name or rows hold."""
    if isinstance(given, RawTable):
        return given
    if isinstance(given, Mapping):
        return _checked(RawTable({str(n): column_of(one, f"{where}: '{n}'") for n, one in given.items()}, where))
    if isinstance(given, Sequence) and given and all(isinstance(row, Mapping) for row in given):
        names = dict.fromkeys(str(name) for row in given for name in row)
        return table_of({name: np.array([row.get(name) for row in given], object) for name in names}, where)
    if hasattr(given, "to_pydict"):  # Arrow's tables, whose columns have no names of their own
        return table_of(given.to_pydict(), where)
    if not hasattr(given, "shape") or not hasattr(given, "columns"):
        raise InputError(
            f"{where}: a {type(given).__name__}; give a pandas or polars DataFrame, columns by name, or a path"
        )
    header = [str(name).strip() for name in given.columns]
    twice = [name for name, number in Counter(header).items() if number > 1]
    if twice:
        raise InputError(f"{where}: the column '{twice[0]}' is there twice; column names must differ")
    columns = zip(header, given.columns, strict=True)
    return _checked(RawTable({name: _series(given[key], f"{where}: '{name}'") for name, key in columns}, where))


def _series(series: Any, what: str) -> RawColumn:
    """A column of a DataFrame."""
    if hasattr(series, "factorize"):  # pandas
        kind = series.dtype
        if getattr(kind, "kind", "O") in "iufb" and str(kind) != "category":
            values = (
                series.to_numpy(np.float64, na_value=np.nan) if hasattr(kind, "na_value") else series.to_numpy()
            )
            return column_of(values, what)
        if getattr(kind, "kind", "O") == "M":
            series = series.dt.strftime("%Y-%m-%d")
        if str(kind) in ("str", "string", "category") or getattr(kind, "name", "").startswith("string"):
            codes, levels = series.factorize()
            return texts_or_numbers(np.asarray(codes), [str(level) for level in levels], what)
        return column_of(series.to_numpy(object), what)
    values = series.to_numpy()
    return column_of(values if values.dtype.kind in "iufb" else np.array(series.to_list(), object), what)


def _checked(table: RawTable) -> RawTable:
    lengths = {name: len(column) for name, column in table.columns.items()}
    if not lengths:
        raise InputError(f"{table.where}: no columns; give a table with at least one")
    if len({*lengths.values()}) > 1:
        short, long = min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)
        raise InputError(
            f"{table.where}: '{short}' has {several(lengths[short], 'value')} and '{long}' {lengths[long]}; every "
            "column has one value per row"
        )
    if not len(table):
        raise InputError(f"{table.where}: no rows below the names of the columns; give at least one")
    return table
