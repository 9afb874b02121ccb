"""Rows of arrays in files: inputs that stay on disk until somebody works with them.

`Samples.x` is a tensor or `MappedRows`, which knows in which file its rows are and how they become inputs.
Reading maps the file, copies the rows that are wanted and closes the file again. So nothing is kept open, however
many files there are, and rows can be pickled and read in any process that has the file at the same path.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mutua.errors import InputError
from mutua.support import safe_reading

BYTES_AT_ONCE = 2**20
"""How many bytes of inputs are read at once, about."""

Step = tuple[Callable[..., Tensor], tuple[Any, ...]]
"""A function of inputs (N, ...) that treats each alone, and its further arguments; a pickle holds its name."""


@dataclass(frozen=True)
class ArrayInFile:
    """An array that lies in a file as NumPy has it in memory, and the file as it was when it was found."""

    path: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]
    length: int
    """Of the file, in bytes."""
    modified: int
    """When the file was last changed, in nanoseconds."""

    def read(self, rows: np.ndarray) -> Tensor:
        """These rows, copied into memory; refused if the file is not what it was."""
        try:
            with safe_reading.open_file(self.path) as file:
                found = os.fstat(file.fileno())
                if (found.st_size, found.st_mtime_ns) != (self.length, self.modified):
                    raise InputError(
                        f"{self.path}: it has changed since the federation was made, which reads its data from "
                        "there; put the file back, or make the federation again"
                    )
                held: np.ndarray = np.memmap(file, self.dtype, "r", self.offset, self.shape)
                return torch.from_numpy(np.asarray(held[rows]))
        except (OSError, ValueError) as error:
            why = "not found" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())
            raise InputError(
                f"{self.path}: {why}; the federation reads its data from there while clients work: "
                "keep the file, at the same path on every machine"
            ) from None


@dataclass(frozen=True, eq=False)
class ArrayInMemory:
    """An array in memory, whose rows stand among others that are in files."""

    held: Tensor

    def read(self, rows: np.ndarray) -> Tensor:
        """These rows."""
        return self.held[torch.from_numpy(rows)]


@dataclass(frozen=True)
class _Origin:
    """Where rows are, how they become inputs, and what an input looks like then."""

    array: ArrayInFile | ArrayInMemory
    shape: tuple[int, ...]
    dtype: torch.dtype
    steps: tuple[Step, ...] = ()

    def read(self, rows: np.ndarray) -> Tensor:
        x = self.array.read(rows)
        for function, arguments in self.steps:
            x = function(x.contiguous(), *arguments)  # else torch may resize or turn in another way, to other bits
        return x


class MappedRows:
    """Inputs that are rows of arrays in files, in any order: read when they are indexed or `in_memory` is called.

    Choosing rows, splitting, joining and changing inputs (`then`) reads nothing.
    """

    def __init__(self, origins: Sequence[_Origin], rows: np.ndarray, origin: np.ndarray | None = None) -> None:
        """`origin` says from which of the origins each row is; None where there is one."""
        self._origins, self._rows, self._origin = tuple(origins), rows, origin

    @staticmethod
    def of(array: ArrayInFile | ArrayInMemory) -> MappedRows:
        """All rows of an array."""
        if isinstance(array, ArrayInMemory):
            shape, dtype = tuple(array.held.shape), array.held.dtype
        else:
            shape, dtype = array.shape, torch.from_numpy(np.empty(0, array.dtype)).dtype
        return MappedRows([_Origin(array, shape[1:], dtype)], np.arange(shape[0]))

    @staticmethod
    def of_memmap(x: np.memmap[Any, Any]) -> MappedRows | None:
        """The rows of an array that NumPy has mapped; None if it is not an array in a file as it is there."""
        mapped = getattr(x, "_mmap", None)  # None for what was computed from a mapped array
        path = getattr(x, "filename", None)
        # With "c" what was written to the array is not in the file.
        if mapped is None or path is None or x.mode == "c" or x.ndim < 2 or not x.flags.c_contiguous:
            return None
        if x.mode != "r":
            x.flush()
        # A part of a mapped array says the offset of the whole; where it begins is what counts.
        start = x.offset - x.offset % mmap.ALLOCATIONGRANULARITY
        offset = start + x.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
        try:
            return MappedRows.of(array_in_file(Path(path), offset, x.dtype, x.shape))
        except (OSError, ValueError):  # it is gone
            return None

    # What tensors have too

    @property
    def shape(self) -> torch.Size:
        """As of a tensor."""
        return torch.Size((len(self._rows), *self._origins[0].shape))

    @property
    def dtype(self) -> torch.dtype:
        """As of a tensor."""
        return self._origins[0].dtype

    @property
    def nbytes(self) -> int:
        """How much memory all rows would take."""
        return self.shape.numel() * self.dtype.itemsize

    @property
    def files(self) -> dict[Path, tuple[int, int]]:
        """The files that they stay in, with length and time of the last change."""
        arrays = [origin.array for origin in self._origins]
        return {a.path: (a.length, a.modified) for a in arrays if isinstance(a, ArrayInFile)}

    def dim(self) -> int:
        """How many dimensions."""
        return len(self.shape)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        files = sorted(str(path) for path in self.files)
        where = files[0] if len(files) == 1 else f"{len(files)} files"
        return f"MappedRows({tuple(self.shape)} {str(self.dtype).removeprefix('torch.')} in {where})"

    def __getitem__(self, key: Any) -> Tensor:
        """These inputs, read: `x[3]`, `x[2:5]`, `x[index]`; further keys count within each, as in `x[3, 0]`."""
        first, *rest = key if isinstance(key, tuple) else (key,)
        if isinstance(first, int | np.integer):
            x = self.take([int(first)]).in_memory()[0]
            return x[tuple(rest)]
        x = self.take(first).in_memory()
        return x[(slice(None), *rest)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.in_memory().numpy(), dtype)

    def split(self, size: int | Sequence[int]) -> list[MappedRows]:
        """Parts of `size` rows, or of these sizes."""
        sizes = [size] * max(1, math.ceil(len(self) / size)) if isinstance(size, int) else list(size)
        ends = np.cumsum([0, *sizes]).tolist()
        return [self.take(slice(start, end)) for start, end in pairwise(ends)]

    # What needs no reading

    def take(self, index: Any) -> MappedRows:
        """The rows at these positions."""
        if not isinstance(index, slice):
            index = np.asarray(index)
            if not index.size:
                index = index.astype(np.int64)
        rows = self._rows[index]
        if self._origin is None:
            return MappedRows(self._origins, rows)
        used, origin = np.unique(self._origin[index], return_inverse=True)
        used = used if len(used) else np.zeros(1, np.int64)  # with no rows there is still a shape
        kept = [self._origins[i] for i in used.tolist()]
        return MappedRows(kept, rows, origin if len(kept) > 1 else None)

    def then(self, function: Callable[..., Tensor], *arguments: Any) -> MappedRows:
        """The same rows, with this done to inputs (N, ...) when they are read; it must treat each input alone."""
        changed = []
        for origin in self._origins:
            made = function(torch.zeros(1, *origin.shape, dtype=origin.dtype), *arguments)
            steps = (*origin.steps, (function, arguments))
            changed.append(replace(origin, shape=tuple(made.shape[1:]), dtype=made.dtype, steps=steps))
        return MappedRows(changed, self._rows, self._origin)

    def is_like(self, other: MappedRows) -> bool:
        """Whether both are the same rows of the same files; if not, their values may still be the same."""
        own, others = (
            (rows._rows, np.zeros(len(rows), np.int64) if rows._origin is None else rows._origin)
            for rows in (self, other)
        )
        return self._origins == other._origins and all(map(np.array_equal, own, others))

    # What reads

    def in_memory(self) -> Tensor:
        """All inputs, read."""
        whole = torch.empty(self.shape, dtype=self.dtype)
        each = rows_at_once(self)
        for start in range(0, len(self), each):
            self._read(slice(start, start + each), whole[start : start + each])
        return whole

    def pieces(self) -> Iterator[Tensor]:
        """All inputs, read a few at a time."""
        for part in self.split(rows_at_once(self)):
            yield part.in_memory()

    def _read(self, chosen: slice, into: Tensor) -> None:
        rows = self._rows[chosen]
        if self._origin is None:
            into.copy_(self._origins[0].read(rows))
            return
        origin = self._origin[chosen]
        for number in np.unique(origin).tolist():
            mine = np.flatnonzero(origin == number)
            into[torch.from_numpy(mine)] = self._origins[number].read(rows[mine])


def array_in_file(path: Path, offset: int, dtype: np.dtype[Any], shape: Sequence[int]) -> ArrayInFile:
    """The array at this offset of a file that is there and long enough."""
    with safe_reading.open_file(path) as file:
        found = os.fstat(file.fileno())
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never read")
    if offset + math.prod(shape) * dtype.itemsize > found.st_size:
        raise ValueError(f"it is said to hold an array of {tuple(shape)}, which is more than there is")
    return ArrayInFile(path.absolute(), offset, dtype.str, tuple(shape), found.st_size, found.st_mtime_ns)


# For inputs in memory or in files


def stored(x: Any) -> Tensor | MappedRows:
    """Inputs as somebody gave them: what is mapped stays in its file, anything else becomes a tensor."""
    if isinstance(x, np.memmap) and (rows := MappedRows.of_memmap(x)) is not None:
        return rows
    return x if isinstance(x, MappedRows) else torch.as_tensor(x)


def in_memory(x: Tensor | MappedRows) -> Tensor:
    """The inputs as a tensor, read if they are in a file."""
    return x.in_memory() if isinstance(x, MappedRows) else x


def pieces(x: Tensor | MappedRows) -> Iterator[Tensor]:
    """The inputs one after the other: as they are, or read a few at a time if they are in a file."""
    return x.pieces() if isinstance(x, MappedRows) else iter([x])


def taken(x: Tensor | MappedRows, index: Tensor) -> Tensor | MappedRows:
    """The inputs at these positions; what is in a file stays there."""
    return x.take(index) if isinstance(x, MappedRows) else x[index]


def transformed(x: Tensor | MappedRows, function: Callable[..., Tensor], *arguments: Any) -> Tensor | MappedRows:
    """The inputs with this done to them: now, or if they are in a file, when they are read."""
    return x.then(function, *arguments) if isinstance(x, MappedRows) else function(x, *arguments)


def joined(several: Sequence[Tensor | MappedRows]) -> Tensor | MappedRows:
    """The inputs of all, one after the other; if some are in files, nothing is read."""
    tensors = [x for x in several if isinstance(x, Tensor)]
    if len(tensors) == len(several):
        return torch.cat(tensors)
    mapped = [MappedRows.of(ArrayInMemory(x)) if isinstance(x, Tensor) else x for x in several]
    dtype = mapped[0].dtype
    for x in mapped:
        dtype = torch.promote_types(dtype, x.dtype)
    shapes = {x.shape[1:]: None for x in mapped}
    if len(shapes) > 1:
        raise InputError(
            f"x: samples of {', '.join(str(tuple(shape)) for shape in shapes)} cannot be put together"
        )
    mapped = [x if x.dtype == dtype else x.then(cast, dtype) for x in mapped]
    known: dict[_Origin, int] = {}
    origins = []
    for x in mapped:
        numbers = np.array([known.setdefault(origin, len(known)) for origin in x._origins])
        origins.append(np.full(len(x), numbers[0]) if x._origin is None else numbers[x._origin])
    rows = np.concatenate([x._rows for x in mapped])
    return MappedRows([*known], rows, np.concatenate(origins) if len(known) > 1 else None)


def equal(a: Tensor | MappedRows, b: Tensor | MappedRows) -> bool:
    """Whether both hold the same values; if they are the same rows of a file, nothing is read."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if isinstance(a, MappedRows) and isinstance(b, MappedRows) and a.is_like(b):
        return True
    each = rows_at_once(a)
    return all(torch.equal(in_memory(p), in_memory(q)) for p, q in zip(a.split(each), b.split(each), strict=True))


def rows_at_once(x: Tensor | MappedRows) -> int:
    """How many rows are read at once."""
    return max(1, BYTES_AT_ONCE // max(1, x.shape[1:].numel() * x.dtype.itemsize))


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The inputs as numbers of this type."""
    return x.to(dtype)
