"""Array files: an .npz, or a folder of .npy files, read into memory or left where they are.

Whatever a file says of itself is compared with what there is before memory is taken; objects are never unpickled.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from mutua.data.formats import Arrays, reading
from mutua.data.mapped_rows import MappedRows, array_in_file
from mutua.data.samples import texts
from mutua.errors import InputError
from mutua.support import safe_reading
from mutua.support.configuration import PathLike, local_path

MAPPED_FROM = 2**30
"""Inputs of this many bytes stay in their file if nobody says otherwise."""
INPUTS = ("x", "x_train", "x_test")
"""The arrays that may stay in their file; the others are small."""


def npz(path: PathLike, mask: str | None = None, mapped: bool | None = False) -> Arrays:
    """An array file: x and y, or x_train and y_train; perhaps x_test, y_test, classes, domain, domains.

    `mask` is the name of the array that says what is opted out; with `_test` after it, of the test samples.
    `mapped` inputs stay in the file; None: those of `MAPPED_FROM` bytes or more, where the file allows it.
    """
    inputs, held = named_arrays(path, mapped)
    named: dict[str, np.ndarray | MappedRows] = {**inputs, **held}
    x, y = ("x", "y") if "x" in named else ("x_train", "y_train")
    if x not in named or y not in held or ("x_test" in named) != ("y_test" in held):
        raise InputError(
            f"{path}: holds {', '.join(named) or 'nothing'}; "
            "give x and y, or x_train and y_train, and both or none of x_test and y_test"
        )
    classes, domains = (tuple(texts(np.atleast_1d(held.get(k, []))).tolist()) for k in ("classes", "domains"))
    return Arrays(
        named[x],
        held[y],
        named.get("x_test"),
        held.get("y_test"),
        classes or None,
        held.get("domain"),
        domains,
        opted_out=None if mask is None else _mask(path, held, mask, x, len(named[x])),
        opted_out_test=_mask(path, held, f"{mask}_test", "x_test", len(named.get("x_test", ())))
        if f"{mask}_test" in held
        else None,
    )


def _mask(path: PathLike, held: Mapping[str, np.ndarray], key: str, x: str, number: int) -> np.ndarray:
    if key not in held:
        raise InputError(
            f"opt_out.mask: {path} has no array '{key}' (it has {', '.join(held)}); where nothing is opted out, "
            "give one that is false throughout"
        )
    mask = held[key]
    if mask.shape != (number,) or mask.dtype != np.bool_:
        raise InputError(
            f"opt_out.mask: '{key}' of {path} is {mask.dtype} {mask.shape}; it must be one true or false for each "
            f"of {number} samples in '{x}'"
        )
    return mask


def npz_file(path: PathLike) -> dict[str, np.ndarray]:
    """Every array of an array file, or of a folder of .npy files, by name, in memory."""
    return named_arrays(path, False)[1]


def named_arrays(path: PathLike, mapped: bool | None) -> tuple[dict[str, MappedRows], dict[str, np.ndarray]]:
    """The arrays of an array file or of a folder of .npy files: inputs that stay there, and what is in memory.

    `mapped` inputs must be able to stay; None: those of `MAPPED_FROM` bytes or more do, if they can.
    """
    path = local_path(path, "path")
    if path.is_dir():
        return _folder_arrays(path, mapped)
    with reading(path, "a readable array file (.npz)"), safe_reading.open_file(path) as opened:
        first = opened.read(2)
        if first == b"\x93N":
            raise InputError(
                f"{path}: a single array; give an .npz with x and y (numpy.savez), or a folder of x.npy and y.npy"
            )
        if first != b"PK":  # otherwise NumPy's error would be about pickles
            raise ValueError("it does not begin like one")
        inputs = _check_sizes(path, opened, mapped)
        opened.seek(0)
        with np.load(opened, allow_pickle=False) as file:
            try:
                return inputs, {key: file[key] for key in file.files if key not in inputs}
            except ValueError as error:
                if "Object arrays" not in str(error):
                    raise
                way_out = "save texts as numpy.array(values, dtype=str)"
                raise InputError(f"{path}: an array of Python objects is not read; {way_out}") from None


def npy_file(path: PathLike, field: str, mapped: bool = False) -> MappedRows | np.ndarray:
    """The one array of an .npy file, in memory, or `mapped`: it stays in the file."""
    path = local_path(path, field)
    with reading(path, "a readable array file (.npy)"), safe_reading.open_file(path) as file:
        head = _head(file, path.name)
        size = os.fstat(file.fileno()).st_size
        if mapped and (rows := head.rows(path, head.length, size, True, f"{field}: {path}")) is not None:
            return rows
        head.check(path.name, size)
        safe_reading.check_memory(size)
        file.seek(0)
        return np.asarray(np.load(file, allow_pickle=False))


def _folder_arrays(folder: Path, mapped: bool | None) -> tuple[dict[str, MappedRows], dict[str, np.ndarray]]:
    files = {file.stem: file for file in sorted(folder.glob("*.npy")) if file.name[0] != "."}
    if not files:
        raise InputError(
            f"{folder}: a folder, not a readable array file (.npz), and without .npy files; give an .npz file, or "
            "a folder of x.npy and y.npy"
        )
    inputs: dict[str, MappedRows] = {}
    for name in _mapped_names(files, mapped):
        with reading(files[name], "a readable array file (.npy)"), safe_reading.open_file(files[name]) as file:
            head = _head(file, files[name].name)
            size = os.fstat(file.fileno()).st_size
            rows = head.rows(files[name], head.length, size, mapped, f"mapped: true, but {files[name]}")
            if rows is not None:
                inputs[name] = rows
    rest = {name: file for name, file in files.items() if name not in inputs}
    with reading(folder, "a folder of readable array files (.npy)"):
        safe_reading.check_memory(sum(file.stat().st_size for file in rest.values()))
    held = {name: npy_file(file, "path") for name, file in rest.items()}
    return inputs, {name: array for name, array in held.items() if isinstance(array, np.ndarray)}


def _mapped_names(held: Iterable[str], mapped: bool | None) -> list[str]:
    """Of these arrays, those that may stay in their file."""
    return [] if mapped is False else [name for name in held if name in INPUTS]


@dataclass(frozen=True)
class _Head:
    """What an array in a file says of itself; `length` is where its values begin."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    length: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def check(self, name: str, size: int) -> None:
        """Refuse an array that claims more than its `size` bytes."""
        if not self.dtype.hasobject and self.nbytes > size:
            raise ValueError(f"'{name}' is said to be {self.shape}, which is more than it holds")

    def rows(self, path: Path, offset: int, size: int, mapped: bool | None, what: str) -> MappedRows | None:
        """The rows of an array that may stay in its file; None if it is to be read, and refused if it is bad."""
        if self.dtype.kind not in "biuf" or len(self.shape) < 2 or min(self.shape) < 1:
            return None
        if mapped is None and (self.nbytes < MAPPED_FROM or self.fortran):
            return None
        if self.fortran:
            raise InputError(f"{what} is stored column by column; save numpy.ascontiguousarray(x) in it instead")
        self.check(path.name, size - self.length)
        return MappedRows.of(array_in_file(path, offset, self.dtype, self.shape))


def _head(file: IO[bytes], name: str) -> _Head:
    heads = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    head = heads.get(np.lib.format.read_magic(file))
    if head is None:
        raise ValueError(f"'{name}' is not a plain array")
    return _Head(*head(file), file.tell())


def _check_sizes(path: Path, file: BinaryIO, mapped: bool | None) -> dict[str, MappedRows]:
    """Refuse, before anything is unpacked, arrays that are too large or claim more than is stored.

    Gives the inputs that stay in the file.
    """
    size = os.fstat(file.fileno()).st_size
    inputs: dict[str, MappedRows] = {}
    with zipfile.ZipFile(file) as held:
        for name in _mapped_names((name.removesuffix(".npy") for name in held.namelist()), mapped):
            if (rows := _mapped_entry(path, file, held, name, mapped)) is not None:
                inputs[name] = rows
        rest = [entry for entry in held.infolist() if entry.filename.removesuffix(".npy") not in inputs]
        safe_reading.check_memory(
            sum(entry.file_size for entry in rest), size - sum(rows.nbytes for rows in inputs.values())
        )
        for entry in rest:
            with held.open(entry) as stored:
                _head(stored, entry.filename).check(entry.filename, entry.file_size)
    return inputs


def _mapped_entry(
    path: Path, file: BinaryIO, held: zipfile.ZipFile, name: str, mapped: bool | None
) -> MappedRows | None:
    """The rows of one array of an .npz that may stay there; None if it is to be read."""
    entry = held.getinfo(f"{name}.npy" if f"{name}.npy" in held.namelist() else name)
    if entry.compress_type != zipfile.ZIP_STORED:
        if mapped is None:
            return None
        raise InputError(
            f"mapped: true, but '{name}' of {path} is compressed; save it with numpy.savez instead of "
            "numpy.savez_compressed, or leave mapped out"
        )
    with held.open(entry) as stored:  # which compares the entry with what stands before its bytes
        head = _head(stored, entry.filename)
        file.seek(entry.header_offset + 26)
        names = sum(struct.unpack("<HH", file.read(4)))
        start = entry.header_offset + 30 + names
        rows = head.rows(
            path, start + head.length, entry.file_size, mapped, f"mapped: true, but '{name}' of {path}"
        )
        if rows is not None:
            while stored.read(2**20):  # to the end, where the checksum is compared
                pass
    return rows


def opened(x: Any, y: Any) -> tuple[Any, Any]:
    """Inputs and labels as they were given or, where that is a path, of that .npy file: `x` stays there."""
    inputs = npy_file(x, "x", mapped=True) if isinstance(x, str | os.PathLike) else x
    return inputs, npy_file(y, "y") if isinstance(y, str | os.PathLike) else y
