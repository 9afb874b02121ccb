"""Where data comes from: known sets by name, array files and folders of images, all into Samples."""

from __future__ import annotations

import lzma
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
from mutua.data.layouts import Layout, fitting
from mutua.data.mapped_rows import transformed
from mutua.data.samples import Preprocess, Samples
from mutua.errors import InputError, suggest
from mutua.support.configuration import PathLike, local_path, whole_number

EMBEDDED = Path(__file__).with_name("mnist5k.xz")
DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class Source:
    """A set as it was published: training samples, perhaps test samples, and a note if it is partial."""

    name: str
    train: Samples
    test: Samples | None = None
    note: str = ""
    lists: dict[str, np.ndarray] | None = None
    """Positions in `train` of what list files call train, val and test; a sample may be in several."""


@dataclass(frozen=True)
class Place:
    """A path below the data folder where a set may be, how to read it there, and a note about it."""

    path: str
    read: Callable[[Path], Arrays]
    note: str = ""


@dataclass(frozen=True)
class Known:
    """A set known by name; `preprocess` is declared here, never computed from a user's data."""

    about: str
    images: str
    classes: int
    places: tuple[Place, ...]
    preprocess: Preprocess
    how: str
    class_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class CatalogueEntry:
    """A line of the catalogue; `found` is where the set is, None if it must be downloaded first."""

    name: str
    about: str
    images: str
    classes: int
    found: Path | None
    how: str


def _places(read: Callable[[Path], Arrays], *paths: str) -> tuple[Place, ...]:
    return tuple(Place(path, read) for path in paths)


def _embedded(path: Path) -> Arrays:
    x = np.frombuffer(lzma.decompress(path.read_bytes()), np.uint8).reshape(-1, 28, 28).copy()
    return Arrays(x, np.arange(len(x)) % 10)


def _grey(mean: float, std: float) -> Preprocess:
    return Preprocess(1 / 255, (mean,), (std,))


KNOWN: dict[str, Known] = {
    "mnist5k": Known(
        about="handwritten digits: the sample inside mutua",
        images="5,000 of 28x28",
        classes=10,
        places=_places(_embedded, str(EMBEDDED)),
        preprocess=_grey(0.1307, 0.3081),
        how="it comes with mutua",
        class_names=DIGITS,
    ),
    "mnist": Known(
        about="handwritten digits",
        images="60,000 + 10,000 of 28x28",
        classes=10,
        places=_places(array_files.npz, "mnist.npz") + _places(formats.idx, "mnist", "MNIST/raw"),
        preprocess=_grey(0.1307, 0.3081),
        how="mutua data get mnist",
        class_names=DIGITS,
    ),
    "fashion-mnist": Known(
        about="articles of clothing",
        images="60,000 + 10,000 of 28x28",
        classes=10,
        # The last is where Debian's package dataset-fashion-mnist puts it.
        places=_places(array_files.npz, "fashion-mnist.npz")
        + _places(formats.idx, "fashion-mnist", "FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"),
        preprocess=_grey(0.2860, 0.3530),
        how="mutua data get fashion-mnist (Debian: apt install dataset-fashion-mnist)",
        class_names=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle-boot"),
        ),
    ),
    "cifar10": Known(
        about="photographs of animals and vehicles",
        images="50,000 + 10,000 of 32x32x3",
        classes=10,
        places=_places(array_files.npz, "cifar10.npz")
        + _places(
            formats.cifar,
            *("cifar10/cifar-10-python.tar.gz", "cifar-10-python.tar.gz", "cifar-10-batches-py"),
            *("cifar-10-binary.tar.gz", "cifar-10-batches-bin"),
        ),
        preprocess=Preprocess(1 / 255, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        how="mutua data get cifar10",
    ),
    "cifar100": Known(
        about="photographs of a hundred kinds of things",
        images="50,000 + 10,000 of 32x32x3",
        classes=100,
        places=_places(array_files.npz, "cifar100.npz")
        + _places(
            formats.cifar,
            *("cifar100/cifar-100-python.tar.gz", "cifar-100-python.tar.gz", "cifar-100-python"),
            *("cifar-100-binary.tar.gz", "cifar-100-binary"),
        )
        + (Place("cifar100-half.npz", array_files.npz, "half of CIFAR-100: 250 + 50 images per class"),),
        preprocess=Preprocess(1 / 255, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        how="mutua data get cifar100",
    ),
    "eurosat": Known(
        about="land use seen by satellite",
        images="27,000 of 64x64x3",
        classes=10,
        places=_places(array_files.npz, "eurosat.npz")
        + _places(
            image_folders.images,
            "eurosat/EuroSAT_RGB",
            "EuroSAT_RGB",
            "eurosat/2750",
            "EuroSAT/2750",
            "2750",
            "eurosat",
            "EuroSAT",
        ),
        preprocess=_grey(0.5, 0.5),
        how="mutua data get eurosat",
    ),
    "pacs": Known(
        about="seven kinds of things as photographs, paintings, cartoons and sketches",
        images="9,991 of 227x227x3",
        classes=7,
        places=_places(array_files.npz, "pacs.npz")
        + _places(image_folders.images, "pacs/kfold", "PACS/kfold", "pacs", "PACS")
        + (Place("pacs64.npz", array_files.npz, "PACS reduced to 64x64 pixels"),),
        preprocess=_grey(0.5, 0.5),
        how="download it by hand from https://dali-dl.github.io/project_iccv2017.html and make the folders "
        "pacs/DOMAIN/CLASS/*.jpg with the domains art_painting, cartoon, photo, sketch, and its "
        "lists DOMAIN_train_kfold.txt, DOMAIN_crossval_kfold.txt, DOMAIN_test_kfold.txt beside them",
    ),
    "office-home": Known(
        about="things of office and home as art, clipart, product pictures and photographs",
        images="15,588 of many sizes, RGB",
        classes=65,
        places=_places(array_files.npz, "office-home.npz")
        + _places(image_folders.images, "office-home", "OfficeHomeDataset_10072016", "OfficeHome"),
        preprocess=_grey(0.5, 0.5),
        how="download it by hand from https://www.hemanthdv.org/officeHomeDataset.html and make the folders "
        "office-home/DOMAIN/CLASS/*.jpg with the domains Art, Clipart, Product, Real World",
    ),
}

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
) -> Source:
    """A known set by name, or `arrays` (path of an .npz or of a folder of .npy) or `folder` (of images).

    `classes` declares the classes: by name if the set has names, otherwise in the order of the labels.
    `mask` names what is opted out: an array of the .npz, or a list file in the folder.
    `layout` says where arrays have their channels, if their number does not; `channels` 3 makes grey images RGB.
    `mapped`: inputs of arrays stay in their file until a client works with them; None: if they take 1 GiB or more.
    If `fits`, the shape of a model's inputs, is given, data is read to fit that model.
    """
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
        return _source(name, replace(arrays, **given), image_size, declared=classes)
    if isinstance(name, str) and name.startswith(PYTHON):
        raise InputError("data: this run was made in Python of objects that no file holds; run it again in Python")
    if name not in KNOWN:
        raise InputError(f"data: '{name}' is not known; {suggest(str(name), [*KNOWN, *GIVEN])}")
    if path is not None:
        raise InputError(f"path: {path} is for data 'arrays' or 'folder'; '{name}' is found in --data-dir")
    known, folder = KNOWN[name], data_folder(data_dir)
    place = _place(known, folder)
    if place is None:
        tried = ", ".join(place.path for place in known.places)
        raise InputError(f"data: {name} is not in {folder} (looked for {tried}); to get it: {known.how}")
    arrays = replace(_read(name, place.read, folder / place.path, image_size, mask), channels=channels)
    source = _source(name, arrays, image_size, known, classes)
    return replace(source, note=place.note or source.note)


def _kind(name: str) -> str:
    return "array file (.npz)" if name == "arrays" else "folder of images"


def _place(known: Known, folder: Path) -> Place | None:
    return next((place for place in known.places if _holds(place, folder / place.path)), None)


def _holds(place: Place, path: Path) -> bool:
    """Whether a set is there, rather than an empty folder or an unfinished download."""
    if place.read is formats.idx:
        return any((path / f"train-images-idx3-ubyte{end}").is_file() for end in ("", ".gz"))
    if place.read is image_folders.images:
        return path.is_dir() and any(sub.is_dir() and sub.name[0] != "." for sub in path.iterdir())
    return path.exists()


def _read(
    name: str,
    read: Callable[[Path], Arrays],
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
    return read(path)


def _source(
    name: str,
    arrays: Arrays,
    image_size: int | None,
    known: Known | None = None,
    declared: Sequence[str] | None = None,
) -> Source:
    """The arrays as samples, with the classes that are declared, that the set names, or that its labels show."""
    if declared is not None and len({*declared}) < len(declared):
        twice = next(name for name in declared if list(declared).count(name) > 1)
        raise InputError(f"classes: '{twice}' is named twice; class names must differ")
    named = arrays.classes or (known.class_names if known else None)
    train, test = _as_read(name, arrays, image_size, known, named or declared)
    read_off = known is None and declared is None and (named is None or arrays.by_folder)

    def with_classes(samples: Samples) -> Samples:
        samples = samples if declared is None else samples.relabelled(tuple(declared))
        return replace(samples, declared=() if read_off else None)

    return Source(name, with_classes(train), test and with_classes(test), _listed(arrays), arrays.lists)


def _as_read(
    name: str, arrays: Arrays, image_size: int | None, known: Known | None, classes: Sequence[str] | None
) -> tuple[Samples, Samples | None]:
    preprocess = known.preprocess if known else None
    read: Any = {
        "classes": classes,
        "preprocess": preprocess,
        "layout": arrays.layout,
        "channels": arrays.channels,
    }
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
        return _resized(train, image_size, name), None
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
    return _resized(train, image_size, name), _resized(test, image_size, name)


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
