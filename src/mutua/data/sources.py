"""Where data comes from: known sets by name, array files and folders of images, all into Samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
from torch import Tensor
from torch.nn import functional as F

from mutua.data import array_files, formats, image_folders
from mutua.data.formats import Arrays
from mutua.data.known_sets import KNOWN, Known, Place
from mutua.data.layouts import Layout, fitting
from mutua.data.mapped_rows import transformed
from mutua.data.samples import Samples
from mutua.data.table_columns import RawTable
from mutua.data.table_files import ReadProgress
from mutua.data.tabular_reading import read_source
from mutua.data.tabular_sources import KINDS, RawSource, Tabular, TabularSource, encode, raw_source
from mutua.data.targets import TaskKind
from mutua.errors import InputError, suggest
from mutua.support.configuration import PathLike, checked, local_path, whole_number


@dataclass(frozen=True)
class Source:
    """A set as it was published: training samples, perhaps test samples, and a note if it is partial."""

    name: str
    train: Samples
    test: Samples | None = None
    note: str = ""
    lists: dict[str, np.ndarray] | None = None
    """Positions in `train` of what list files call train, val and test; a sample may be in several."""
    inferred: tuple[str, ...] = ()
    """The columns of a table that nobody has declared."""


@dataclass(frozen=True)
class CatalogueEntry:
    """A line of the catalogue; `found` is where the set is, None if it must be downloaded first."""

    name: str
    about: str
    images: str
    classes: int
    found: Path | None
    how: str


# Sets of the user's own, given by a path.
GIVEN: dict[str, Callable[[Path], Arrays]] = {"arrays": array_files.npz, "folder": image_folders.images}


PYTHON = "python:"
"""How the name of data begins that was given as objects in Python; a checksum follows."""


def data_folder(data_dir: PathLike | None = None) -> Path:
    """Where sets are looked for: `data_dir`, else MUTUA_DATA, else the user's cache folder."""
    chosen = data_dir or os.environ.get("MUTUA_DATA") or platformdirs.user_cache_path("mutua")
    return local_path(chosen, "data_dir")


def catalogue(data_dir: PathLike | None = None) -> list[CatalogueEntry]:
    """The known sets, and where each was found."""
    folder = data_folder(data_dir)
    entries = []
    for name, known in KNOWN.items():
        place = _place(known, folder)
        found = folder / place.path if place else None
        entries.append(CatalogueEntry(name, known.about, known.images, known.classes, found, known.how))
    return entries


def load(
    name: str,
    *,
    data_dir: PathLike | None = None,
    path: PathLike | None = None,
    image_size: int | None = None,
    classes: Sequence[str] | None = None,
    mask: str | None = None,
    layout: Layout | None = None,
    channels: int | None = None,
    mapped: bool | None = None,
    fits: Sequence[int] = (),
    kind: TaskKind = "classification",
    by: str | None = None,
    show: ReadProgress | None = None,
    **tabular: Any,
) -> Source:
    """A known set by name, `arrays` (an .npz or a folder of .npy), `folder` (of images), `table` or `text`.

    `classes` declares the classes: by name if the set has names, otherwise in the order of the labels.
    `mask` names what is opted out: an array of the .npz, or a list file in the folder.
    `layout` says where arrays have their channels, if their number does not; `channels` 3 makes grey images RGB.
    `mapped`: inputs of arrays stay in their file until a client works with them; None: if they take 1 GiB or more.
    If `fits`, the shape of a model's inputs, is given, data is read to fit that model.
    `kind` says what the labels of arrays, or the target of a table or of texts, are; all other sets have classes.
    A table or texts: `tabular` are the keys of `data` in a recipe, such as `target`; `by` is the column that names
    each row's client, for `partitions.ByColumn`; `show` is told how many bytes are read, and of how many.
    """
    options = checked(Tabular, tabular, at="data") if tabular else Tabular()
    if name in KINDS or (name in KNOWN and KNOWN[name].tabular):
        mine: Any = {"image_size": image_size, "layout": layout, "channels": channels, "mapped": mapped}
        if strange := [field for field, value in mine.items() if value is not None]:
            raise InputError(f"{strange[0]}: is for images, not for data '{name}'; leave it out")
        raw = load_raw(
            name, options, data_dir=data_dir, path=path, classes=classes, by=by, mask=mask, kind=kind, show=show
        )
        return as_source(name, encode([raw])[0])
    if options.given:
        raise InputError(f"{options.given[0]}: is for tables and texts, not for data '{name}'; leave it out")
    if by is not None:
        raise InputError(
            f"partition.kind: column is for tables and texts, not for data '{name}'; use another kind"
        )
    if kind != "classification" and name != "arrays":
        raise InputError(f"task: {kind} is for arrays, tables and texts; '{name}' has one class per sample")
    if mapped is not None and not isinstance(mapped, bool):
        raise InputError(f"mapped: {mapped!r}; give true, false or nothing, which maps arrays of 1 GiB or more")
    if mapped and name != "arrays":
        raise InputError(f"mapped: true is for data 'arrays', not for '{name}'; leave it out")
    if layout is not None and name != "arrays":
        raise InputError(f"layout: {layout} is for data 'arrays'; '{name}' says itself where its channels are")
    if image_size is not None:
        image_size = whole_number(image_size, "image_size")
    if name in GIVEN:
        if path is None:
            raise InputError(f"path: missing; data '{name}' needs the path of its {_kind(name)}")
        arrays = _read(name, GIVEN[name], local_path(path, "path"), image_size, mask, mapped)
        given: Any = {"layout": layout or arrays.layout, "channels": channels, **fitting(arrays.x.shape, fits)}
        return _source(name, replace(arrays, **given), image_size, declared=classes, kind=kind)
    if isinstance(name, str) and name.startswith(PYTHON):
        raise InputError("data: this run was made in Python of objects that no file holds; run it again in Python")
    if name not in KNOWN:
        raise InputError(f"data: '{name}' is not known; {suggest(str(name), [*KNOWN, *GIVEN, *KINDS])}")
    if path is not None:
        raise InputError(f"path: {path} is for data 'arrays' or 'folder'; '{name}' is found in --data-dir")
    known, place, folder = _found(name, data_dir)
    arrays = replace(_read(name, place.read, folder / place.path, image_size, mask), channels=channels)
    source = _source(name, arrays, image_size, known, classes)
    return replace(source, note=place.note or source.note)


def load_raw(
    name: str,
    options: Tabular,
    *,
    data_dir: PathLike | None = None,
    path: PathLike | None = None,
    classes: Sequence[str] | None = None,
    by: str | None = None,
    mask: str | None = None,
    kind: TaskKind = "classification",
    show: ReadProgress | None = None,
) -> RawSource:
    """A table or texts, before it is decided which columns are inputs."""
    if name in KINDS:
        if path is None:
            raise InputError(
                f"path: missing; data '{name}' needs the path of its file (.csv, .jsonl, .parquet, ...)"
            )
        given: Any = {"classes": classes, "by": by, "mask": mask, "kind": kind}
        return read_source(name, local_path(path, "path"), options, show=show, **given)
    if path is not None:
        raise InputError(f"path: {path} is for data 'table' or 'text'; '{name}' is found in --data-dir")
    known = KNOWN[name]
    assert known.tabular is not None
    if kind != "classification":
        raise InputError(f"task: {kind}, but '{name}' has one class per sample")
    if options.target is not None or options.text is not None:
        raise InputError(f"target: '{name}' has its own; leave it out")
    _, place, folder = _found(name, data_dir)
    own = known.tabular.model_dump(exclude_none=True) | options.model_dump(exclude_none=True)
    read = place.read(folder / place.path)
    assert isinstance(read, RawTable)
    by = by or known.by
    return raw_source(read, Tabular(**own), classes=classes or known.class_names, by=by, mask=mask)


def as_source(name: str, made: TabularSource) -> Source:
    """Samples of a table or of texts as a source."""
    return Source(name, made.samples, note="; ".join(made.notes), inferred=made.inferred)


def _found(name: str, data_dir: PathLike | None) -> tuple[Known, Place, Path]:
    """A known set, and where it is."""
    known, folder = KNOWN[name], data_folder(data_dir)
    place = _place(known, folder)
    if place is None:
        tried = ", ".join(place.path for place in known.places)
        raise InputError(f"data: {name} is not in {folder} (looked for {tried}); to get it: {known.how}")
    return known, place, folder


def _kind(name: str) -> str:
    return "array file (.npz)" if name == "arrays" else "folder of images"


def _place(known: Known, folder: Path) -> Place | None:
    return next((place for place in known.places if _holds(place, folder / place.path)), None)


def _holds(place: Place, path: Path) -> bool:
    """Whether a set is there, rather than an empty folder or an unfinished download."""
    if place.files:
        return all((path / name).is_file() for name in place.files)
    if place.read is formats.idx:
        return any((path / f"train-images-idx3-ubyte{end}").is_file() for end in ("", ".gz"))
    if place.read is image_folders.images:
        return path.is_dir() and any(sub.is_dir() and sub.name[0] != "." for sub in path.iterdir())
    return path.exists()


def _read(
    name: str,
    read: Callable[[Path], Arrays | RawTable],
    path: Path,
    image_size: int | None,
    mask: str | None,
    mapped: bool | None = False,
) -> Arrays:
    # Images are resized one by one as they are read, so that the originals are never in memory together.
    if read is image_folders.images:
        return image_folders.images(path, image_size, mask)
    if read is array_files.npz:
        return array_files.npz(path, mask, mapped)
    if mask is not None:
        raise InputError(
            f"opt_out.mask: '{mask}', but {name} is neither an array file (.npz) nor a folder of images; use "
            "opt_out.fraction or opt_out.samples"
        )
    arrays = read(path)
    assert isinstance(arrays, Arrays)
    return arrays


def _source(
    name: str,
    arrays: Arrays,
    image_size: int | None,
    known: Known | None = None,
    declared: Sequence[str] | None = None,
    kind: TaskKind = "classification",
) -> Source:
    """The arrays as samples, with the classes that are declared, that the set names, or that its labels show."""
    if declared is not None and len({*declared}) < len(declared):
        twice = next(name for name in declared if list(declared).count(name) > 1)
        raise InputError(f"classes: '{twice}' is named twice; class names must differ")
    named = arrays.classes or (known.class_names if known else None)
    train, test = _as_read(name, arrays, image_size, known, named or declared, kind)
    read_off = (
        kind == "classification" and known is None and declared is None and (named is None or arrays.by_folder)
    )

    def with_classes(samples: Samples) -> Samples:
        samples = samples if declared is None else samples.relabelled(tuple(declared))
        return replace(samples, declared=() if read_off else None)

    return Source(name, with_classes(train), test and with_classes(test), _listed(arrays), arrays.lists)


def _as_read(
    name: str, arrays: Arrays, size: int | None, known: Known | None, classes: Sequence[str] | None, kind: TaskKind
) -> tuple[Samples, Samples | None]:
    preprocess = known.preprocess if known else None
    read: Any = {"classes": classes, "preprocess": preprocess, "kind": kind}
    read |= {"layout": arrays.layout, "channels": arrays.channels}
    train = Samples.of(
        arrays.x,
        arrays.y,
        domain=arrays.domain,
        domains=arrays.domains,
        opted_out=arrays.opted_out,
        name=name,
        **read,
    )
    if preprocess and (train.x.dtype != torch.uint8 or len(preprocess.mean) not in (1, train.channels)):
        held = f"{train.channels} channels of {str(train.x.dtype).removeprefix('torch.')}"
        raise InputError(f"{name}.x: {held}; {name} is bytes (0 to 255) in {len(preprocess.mean)} channels")
    if arrays.x_test is None:
        return _resized(train, size, name), None
    test = Samples.of(
        arrays.x_test,
        arrays.y_test,
        opted_out=arrays.opted_out_test,
        name=f"{name}.test",
        **read,
    )
    if test.x.shape[1:] != train.x.shape[1:] or test.x.dtype != train.x.dtype:
        shapes = f"{tuple(test.x.shape[1:])} {test.x.dtype}, not {tuple(train.x.shape[1:])} {train.x.dtype}"
        raise InputError(f"{name}.test.x: samples of {shapes} as in training; they must agree")
    if classes is None:  # numbered: the longer list of numbers serves both
        both = max(train.classes, test.classes, key=len)
        train, test = replace(train, classes=both), replace(test, classes=both)
    return _resized(train, size, name), _resized(test, size, name)


def _listed(arrays: Arrays) -> str:
    """What a user should know about a split by list files."""
    if arrays.lists is None:
        return ""
    fit, val, test = (arrays.lists[part] for part in ("train", "val", "test"))
    seen = np.isin(test, np.concatenate([fit, val])).sum()
    left = len(arrays.y) - len(np.unique(np.concatenate([fit, val, test])))
    note = f"split by list files: {seen} of {len(test)} test images are training or validation images too"
    return note + (f"; {left} images are in no list" if left else "")


def _resized(samples: Samples, size: int | None, name: str) -> Samples:
    if size is None or samples.size == size:
        return samples
    if samples.x.dim() != 4:
        raise InputError(f"image_size: {size}, but {name} holds plain features, not images; leave it out")
    return replace(samples, x=transformed(samples.x, _scaled, size))


def _scaled(x: Tensor, size: int) -> Tensor:
    return F.interpolate(x, (size, size), mode="bilinear", antialias=True)
