"""File formats: IDX and the CIFAR archives, each read into plain arrays (array files: array_files.py)."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mutua.data.layouts import Layout
from mutua.data.mapped_rows import MappedRows
from mutua.errors import InputError
from mutua.support import safe_reading


@dataclass(frozen=True)
class Arrays:
    """What a file or folder holds: inputs and labels, perhaps a test set, class names and domains."""

    x: np.ndarray | MappedRows
    y: np.ndarray
    x_test: np.ndarray | MappedRows | None = None
    y_test: np.ndarray | None = None
    classes: tuple[str, ...] | None = None
    domain: np.ndarray | None = None
    domains: tuple[str, ...] = ()
    lists: dict[str, np.ndarray] | None = None
    """Positions in x of train, val and test, if list files say so."""
    opted_out: np.ndarray | None = None
    """True for each sample of x that is opted out, if a mask was asked for."""
    opted_out_test: np.ndarray | None = None
    by_folder: bool = False
    """Whether the classes are names of folders, so that they depend on the samples."""
    layout: Layout | None = None
    """Where the channels are, if known."""
    channels: int | None = None
    """How many channels are wanted."""


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn whatever a reader raises on a damaged file into one line that names the file."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except FileNotFoundError:
        where = "" if path.is_absolute() else ", which counts from the folder where you are"
        raise InputError(f"{path}: not found; check the path{where}") from None
    except IsADirectoryError:
        raise InputError(f"{path}: a folder, not {what}; give a file") from None
    except Exception as error:  # zip, zlib, gzip, tar, pickle and Pillow each raise their own kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: not {what} ({reason}); replace or remove it") from None


def idx(folder: Path) -> Arrays:
    """The four IDX files of MNIST and similar sets, each with or without gzip."""
    return Arrays(
        _idx_file(folder / "train-images-idx3-ubyte"),
        _idx_file(folder / "train-labels-idx1-ubyte"),
        _idx_file(folder / "t10k-images-idx3-ubyte"),
        _idx_file(folder / "t10k-labels-idx1-ubyte"),
    )


def _idx_file(plain: Path) -> np.ndarray:
    zipped = plain.with_name(plain.name + ".gz")
    path = plain if plain.is_file() else zipped
    if not path.is_file():
        raise InputError(f"{plain}: missing, with or without .gz; get the set's other IDX files too")
    with reading(path, "a whole IDX file"), safe_reading.open_file(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
        length = os.fstat(file.fileno()).st_size
        file.seek(0)
        stream = gzip.GzipFile(fileobj=file) if packed else file
        dims = 3 if "idx3" in plain.name else 1
        magic, start = bytes([0, 0, 8, dims]), 4 + 4 * dims
        head = stream.read(start)
        if head[:4] != magic:
            raise ValueError(f"it starts with {head[:4].hex(' ')}, not {magic.hex(' ')}")
        shape = tuple(int.from_bytes(head[i : i + 4], "big") for i in range(4, start, 4))
        takes = prod(shape)
        if packed:
            safe_reading.check_memory(takes, length)
        elif length != start + takes:
            raise ValueError(f"{length} bytes, where its head promises {start + takes}")
        raw = stream.read(takes + 1)
        if len(raw) != takes:
            raise ValueError(f"{'more' if len(raw) > takes else 'fewer'} bytes than its head promises")
        return np.frombuffer(raw, np.uint8).reshape(shape).copy()


# Training files, test file, class names: CIFAR-10 and CIFAR-100 as published for Python, then as binary.
_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
_CIFAR = (
    (_BATCHES, "test_batch", "batches.meta"),
    (["train"], "test", "meta"),
    ([f"{name}.bin" for name in _BATCHES], "test_batch.bin", "batches.meta.txt"),
    (["train.bin"], "test.bin", "fine_label_names.txt"),
)


def cifar(path: Path) -> Arrays:
    """CIFAR-10 or CIFAR-100 as published (Python or binary): the archive, or the folder it unpacks to."""
    with reading(path, "a CIFAR archive or folder as published"):
        wanted = {name for train, test, meta in _CIFAR for name in (*train, test, meta)}
        held = _members(path, wanted)
        train, test, meta = next((layout for layout in _CIFAR if layout[1] in held), _CIFAR[0])
        missing = [name for name in (*train, test, meta) if name not in held]
        if missing:
            raise ValueError(f"without {', '.join(missing)}")
        images = *_batches(train, held), *_batches([test], held)
        return Arrays(*images, _class_names(meta, held[meta]), layout="channels-first")


def _members(path: Path, wanted: set[str]) -> dict[str, bytes]:
    if path.is_dir():
        found = {file.name: file for file in path.iterdir() if file.name in wanted}
        safe_reading.check_memory(sum(file.stat().st_size for file in found.values()))
        return {name: safe_reading.read_bytes(file, file.stat().st_size) for name, file in found.items()}
    held, takes = {}, 0
    with safe_reading.open_file(path) as packed, tarfile.open(fileobj=packed) as archive:
        length = os.fstat(packed.fileno()).st_size
        for member in archive:
            name = Path(member.name).name
            if member.isfile() and name in wanted and (file := archive.extractfile(member)):
                takes += member.size
                safe_reading.check_memory(takes, length)
                held[name] = file.read()
    return held


def _batches(names: list[str], held: dict[str, bytes]) -> tuple[np.ndarray, np.ndarray]:
    batches = [_batch(name, held.pop(name)) for name in names]
    return np.concatenate([pixels for pixels, _ in batches]), np.concatenate([labels for _, labels in batches])


def _batch(name: str, raw: bytes) -> tuple[np.ndarray, np.ndarray]:
    if name.endswith(".bin"):
        width = 3074 if name in ("train.bin", "test.bin") else 3073  # CIFAR-100 puts a coarse label first
        rows = np.frombuffer(raw, np.uint8).reshape(-1, width)
        pixels, labels = rows[:, -3072:], rows[:, -3073]
    else:
        stored = _unpickled(name, raw)
        _, shape, _, fortran, content = stored[b"data"].state
        pixels = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")
        labels = np.asarray(stored.get(b"fine_labels", stored.get(b"labels")), np.int64)
    return pixels.reshape(-1, 3, 32, 32), labels


def _class_names(name: str, raw: bytes) -> tuple[str, ...]:
    if name.endswith(".txt"):
        return tuple(raw.decode().split())
    stored = _unpickled(name, raw)
    return tuple(label.decode() for label in stored.get(b"fine_label_names") or stored[b"label_names"])


class _StoredArray:
    """Stands in for NumPy's array and dtype in a pickle: keeps what was stored and does nothing."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Numbers, text, lists, dicts and `_StoredArray`: a pickle that asks for more is refused."""

    allowed = frozenset({("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")})

    def find_class(self, module: str, name: str) -> type[_StoredArray]:
        """The stand-in for the three NumPy names that the published files hold; everything else is refused."""
        if (module, name) in self.allowed:
            return _StoredArray
        raise pickle.UnpicklingError(f"refused: it asks to run {module}.{name}")


def _unpickled(name: str, raw: bytes) -> dict[bytes, Any]:
    stored = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
    if not isinstance(stored, dict):
        raise ValueError(f"{name} is not a dictionary")
    return stored
