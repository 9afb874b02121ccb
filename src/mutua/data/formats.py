"""File formats: array files, IDX, the CIFAR archives and folders of images, each read into plain arrays."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from mutua.data.samples import Layout, texts
from mutua.errors import InputError
from mutua.support import safe_reading
from mutua.support.configuration import PathLike, local_path

IMAGES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF")
"""What an image may be, whatever its name: Pillow alone would hand PostScript to Ghostscript."""


@dataclass(frozen=True)
class Arrays:
    """What a file or folder holds: inputs and labels, perhaps a test set, class names and domains."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    classes: tuple[str, ...] | None = None
    domain: np.ndarray | None = None
    domains: tuple[str, ...] = ()
    lists: dict[str, np.ndarray] | None = None
    """Positions in x of train, val and test, where list files say so."""
    opted_out: np.ndarray | None = None
    """True for each sample of x that is opted out, where a mask was asked for."""
    opted_out_test: np.ndarray | None = None
    by_folder: bool = False
    """Whether the classes are the names of folders, which are there because samples are."""
    layout: Layout | None = None
    """Where the channels are, where that is known."""
    channels: int | None = None
    """How many are wanted."""


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Report whatever a damaged file makes its reader raise as one line that names the file."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except FileNotFoundError:
        where = "" if path.is_absolute() else ", which counts from the folder where you are"
        raise InputError(f"{path}: not found; check the path{where}") from None
    except IsADirectoryError:
        raise InputError(f"{path}: a folder, not {what}; give a file") from None
    except Exception as error:  # zip, zlib, gzip, tar, pickle and Pillow each raise kinds of their own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: not {what} ({reason}); replace or remove it") from None


def npz(path: PathLike, mask: str | None = None) -> Arrays:
    """An array file: x and y, or x_train and y_train; perhaps x_test, y_test, classes, domain, domains.

    `mask` is the name of the array that says what is opted out; with `_test` after it, of the test samples.
    """
    held = npz_file(path)
    x, y = ("x", "y") if "x" in held else ("x_train", "y_train")
    if x not in held or y not in held or ("x_test" in held) != ("y_test" in held):
        raise InputError(
            f"{path}: holds {', '.join(held) or 'nothing'}; "
            "give x and y, or x_train and y_train, and both or none of x_test and y_test"
        )
    classes, domains = (tuple(texts(np.atleast_1d(held.get(k, []))).tolist()) for k in ("classes", "domains"))
    return Arrays(
        held[x],
        held[y],
        held.get("x_test"),
        held.get("y_test"),
        classes or None,
        held.get("domain"),
        domains,
        opted_out=None if mask is None else _mask(path, held, mask, x),
        opted_out_test=_mask(path, held, f"{mask}_test", "x_test") if f"{mask}_test" in held else None,
    )


def _mask(path: PathLike, held: dict[str, np.ndarray], key: str, x: str) -> np.ndarray:
    if key not in held:
        raise InputError(
            f"opt_out.mask: {path} has no array '{key}' (it has {', '.join(held)}); where nothing is opted out, "
            "give one that is false throughout"
        )
    mask = held[key]
    number = len(held.get(x, ()))
    if mask.shape != (number,) or mask.dtype != np.bool_:
        raise InputError(
            f"opt_out.mask: '{key}' of {path} is {mask.dtype} {mask.shape}; it must be one true or false for each "
            f"of {number} samples in '{x}'"
        )
    return mask


def npz_file(path: PathLike) -> dict[str, np.ndarray]:
    """Every array of an array file, by name."""
    path = local_path(path, "path")
    with _reading(path, "a readable array file (.npz)"), safe_reading.open_file(path) as opened:
        first = opened.read(2)
        if first == b"\x93N":
            raise InputError(f"{path}: a single array; give an .npz with x and y (numpy.savez)")
        if first != b"PK":  # else NumPy would speak of pickles
            raise ValueError("it does not begin like one")
        _check_sizes(opened)
        opened.seek(0)
        with np.load(opened, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}


def _check_sizes(file: BinaryIO) -> None:
    """Refuse, before anything is unpacked, arrays that take too much or are said to be more than is stored."""
    heads = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with zipfile.ZipFile(file) as held:
        safe_reading.check_memory(
            sum(entry.file_size for entry in held.infolist()), os.fstat(file.fileno()).st_size
        )
        for entry in held.infolist():
            with held.open(entry) as stored:
                head = heads.get(np.lib.format.read_magic(stored))
                if head is None:
                    raise ValueError(f"'{entry.filename}' is not a plain array")
                shape, _, dtype = head(stored)
            if not dtype.hasobject and prod(shape) * dtype.itemsize > entry.file_size:
                raise ValueError(f"'{entry.filename}' is said to be {shape}, which is more than it holds")


def idx(folder: Path) -> Arrays:
    """The four IDX files of MNIST and its like, each with or without gzip."""
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
    with _reading(path, "a whole IDX file"), safe_reading.open_file(path) as file:
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
    with _reading(path, "a CIFAR archive or folder as published"):
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
    """Numbers, text, lists, dicts and `_StoredArray`: a pickle that asks for anything else runs nothing."""

    allowed = frozenset({("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")})

    def find_class(self, module: str, name: str) -> type[_StoredArray]:
        """The stand-in for the three NumPy names that the published files hold; all else is refused."""
        if (module, name) in self.allowed:
            return _StoredArray
        raise pickle.UnpicklingError(f"refused: it asks to run {module}.{name}")


def _unpickled(name: str, raw: bytes) -> dict[bytes, Any]:
    stored = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
    if not isinstance(stored, dict):
        raise ValueError(f"{name} is not a dictionary")
    return stored


def images(folder: Path, image_size: int | None = None, mask: str | None = None) -> Arrays:
    """A folder of images, class/*.jpg or domain/class/*.jpg, resized to a square of `image_size` while read.

    Order: domains, classes and files by name. Grey if every image is, else RGB. Domains may have list files.
    `mask` is the name of a list of images that are opted out; those do not count for grey or RGB.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: not a folder; give one with images as class/*.jpg or domain/class/*.jpg")
    by_domain = _listing(folder)
    classes = tuple(sorted({name for held in by_domain.values() for name in held}))
    listed = [
        (path, classes.index(name), domain)
        for domain, held in enumerate(by_domain.values())
        for name, paths in held.items()
        for path in paths
    ]
    domains = tuple(by_domain)
    lists = _lists(folder, domains, [path for path, _, _ in listed], classes)
    paths = [path for path, _, _ in listed]
    opted_out = None if mask is None else _opted_out(folder, mask, paths)
    x = _pictures(folder, paths, image_size, opted_out)
    return Arrays(
        x,
        np.array([label for _, label, _ in listed]),
        classes=classes,
        domain=None if domains == ("",) else np.array([domain for _, _, domain in listed]),
        domains=() if domains == ("",) else domains,
        lists=lists,
        opted_out=opted_out,
        by_folder=True,
        layout="channels-first",
    )


def _opted_out(folder: Path, name: str, images: list[Path]) -> np.ndarray:
    """True for each image that the list file of this name, in the folder or one level up, has a line for."""
    places = [at / file for at in (folder, folder.resolve().parent) for file in (name, f"{name}.txt")]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise InputError(
            f"opt_out.mask: {folder} has no list file '{name}' or '{name}.txt', nor has the folder around it; "
            "where nothing is opted out, give an empty one"
        )
    position = {image.relative_to(folder).as_posix(): i for i, image in enumerate(images)}
    out = np.zeros(len(images), dtype=bool)
    with _reading(path, "a list of this folder's images"):
        for number, line in enumerate(safe_reading.read_text(path).splitlines(), start=1):
            if image := line.strip():
                if image not in position:
                    raise ValueError(f"line {number}: there is no image '{image}' in {folder}")
                out[position[image]] = True
    return out


# What PACS's list files call the parts: DOMAIN_train_kfold.txt and so on.
_PARTS = {"train": "train", "val": "crossval", "test": "test"}


def _lists(
    folder: Path, domains: tuple[str, ...], images: list[Path], classes: tuple[str, ...]
) -> dict[str, np.ndarray] | None:
    """Positions among the images of train, val and test by list files beside the domains or one level up.

    None where there are none.
    """
    found = {path.name: path for at in (folder.resolve().parent, folder) for path in at.glob("*_kfold.txt")}
    wanted = {part: [f"{domain}_{word}_kfold.txt" for domain in domains] for part, word in _PARTS.items()}
    names = [name for part in wanted.values() for name in part]
    missing = [name for name in names if name not in found]
    if len(missing) == len(names):
        return None
    if missing:
        raise InputError(f"{folder}: has list files, but not {missing[0]}; add it, or remove the others")
    position = {path.relative_to(folder).as_posix(): i for i, path in enumerate(images)}
    return {
        part: np.unique(np.array([i for name in names for i in _list_file(found[name], position, classes)], int))
        for part, names in wanted.items()
    }


def _list_file(path: Path, position: dict[str, int], classes: tuple[str, ...]) -> Iterator[int]:
    """The positions of the images that a file lists: one a line, and its label, which counts from 1."""
    with _reading(path, "a list of this folder's images and their labels"):
        for number, line in enumerate(safe_reading.read_text(path).splitlines(), start=1):
            if not line.strip():
                continue
            image, _, label = line.strip().rpartition(" ")
            if image not in position:
                raise ValueError(f"line {number}: there is no image '{image}'")
            name = image.split("/")[1]
            if label != str(classes.index(name) + 1):
                raise ValueError(f"line {number}: label {label}, but '{name}' is {classes.index(name) + 1}")
            yield position[image]


def image_files(folder: Path) -> list[Path]:
    """The images of a folder, with or without classes, in the order in which they are read."""
    files, _ = _contents(folder)
    return files or [path for held in _listing(folder).values() for paths in held.values() for path in paths]


def plain_images(folder: Path, image_size: int | None = None) -> np.ndarray | None:
    """Images without labels, straight in a folder, by name; None where it holds none."""
    files, _ = _contents(folder)
    return _pictures(folder, files, image_size) if files else None


def _pictures(
    folder: Path, paths: list[Path], image_size: int | None, opted_out: np.ndarray | None = None
) -> np.ndarray:
    """The images as one array (N, channels, height, width): grey if every opted-in one is, else RGB."""
    heads = [_head(path) for path in paths]
    apart = opted_out if opted_out is not None and not opted_out.all() else np.zeros(len(paths), dtype=bool)
    mode = "L" if all(mode == "L" for (_, mode), out in zip(heads, apart, strict=True) if not out) else "RGB"
    sizes = Counter(size for size, _ in heads)
    if image_size is None and len(sizes) > 1:
        common = ", ".join(f"{w}x{h} ({n})" for (w, h), n in sizes.most_common(3))
        raise InputError(f"{folder}: images of {len(sizes)} sizes, {common} ...; give image_size to resize them")
    width, height = (image_size, image_size) if image_size else next(iter(sizes))
    channels = 1 if mode == "L" else 3
    with _reading(folder, "a folder of images that fit"):
        safe_reading.check_memory(max(len(paths) * width * height, *(w * h for w, h in sizes)) * channels)
    x = np.empty((len(paths), channels, height, width), np.uint8)
    for i, path in enumerate(paths):
        with _image(path, "a whole image") as image:
            if image.size != (width, height):
                # A JPEG several times too large is decoded at a fraction of its size: many times quicker.
                image.draft(mode, (2 * width, 2 * height))
            resized = image.convert(mode).resize((width, height), Image.Resampling.BILINEAR)
            x[i] = np.asarray(resized).reshape(height, width, channels).transpose(2, 0, 1)
    return x


def _listing(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """Images by domain and class; the one domain of class/*.jpg has the empty name."""
    files, folders = _contents(folder)
    inner = {sub.name: _contents(sub) for sub in folders}
    layout = f"{folder}: give images as class/*.jpg or domain/class/*.jpg"
    if files or not folders:
        raise InputError(f"{layout}; found {len(files)} images beside {len(folders)} folders")
    if any(held for held, _ in inner.values()):
        listing = {"": {name: held for name, (held, _) in inner.items()}}
    else:
        listing = {name: {sub.name: _contents(sub)[0] for sub in subs} for name, (_, subs) in inner.items()}
    for domain, held in listing.items():
        empty = [name for name, paths in held.items() if not paths] if held else [""]
        if empty:
            raise InputError(f"{layout}; no image in {folder / domain / empty[0]}")
    return listing


def _contents(folder: Path) -> tuple[list[Path], list[Path]]:
    """Images and folders in a folder, by name, without hidden ones and macOS's `__MACOSX`."""
    held = sorted((p for p in folder.iterdir() if not p.name.startswith((".", "__"))), key=lambda p: p.name)
    folders = {p for p in held if p.is_dir()}
    return [p for p in held if p.suffix.lower() in IMAGES and p not in folders], [p for p in held if p in folders]


def _head(path: Path) -> tuple[tuple[int, int], str]:
    with _image(path, "an image") as image:
        if image.mode[0] in "IF":
            raise ValueError(f"pixels of mode {image.mode}, more than 8 bits a channel")
        return image.size, image.mode


@contextmanager
def _image(path: Path, what: str) -> Iterator[Image.Image]:
    """An image whose pixels are not yet read."""
    with _reading(path, what), safe_reading.open_file(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # what images take together is checked
        with Image.open(file, formats=FORMATS) as image:
            yield image
