"""Rows as data frames of the two packages that users have; neither is needed for anything else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mutua.support.importing import import_optional


def pandas_frame(rows: Iterable[tuple[Any, ...]], columns: Sequence[str]) -> Any:
    """A pandas DataFrame."""
    return import_optional("pandas", "to_pandas").DataFrame(list(rows), columns=list(columns))


def polars_frame(rows: Iterable[tuple[Any, ...]], columns: Sequence[str]) -> Any:
    """A polars DataFrame; a missing value is null."""
    frame = import_optional("polars", "to_polars").DataFrame
    # A column's type is found from all rows: its first values may be missing, or whole where later ones are not.
    return frame(list(rows), schema=list(columns), orient="row", infer_schema_length=None)
