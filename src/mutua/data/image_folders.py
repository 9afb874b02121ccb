"""Folders of images, with or without list files, read into plain arrays."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from mutua.data.formats import Arrays, reading
from mutua.errors import InputError
from mutua.support import safe_reading

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF")
"""Which formats are read, whatever the file's name: Pillow would pass PostScript to Ghostscript."""


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
    with reading(path, "a list of this folder's images"):
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

    None if there are none.
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
    """The positions of the images that a file lists: one per line, and its label, which counts from 1."""
    with reading(path, "a list of this folder's images and their labels"):
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
    """Images without labels, directly in a folder, by name; None if it holds none."""
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
    with reading(folder, "a folder of images that fit"):
        safe_reading.check_memory(max(len(paths) * width * height, *(w * h for w, h in sizes)) * channels)
    x = np.empty((len(paths), channels, height, width), np.uint8)
    for i, path in enumerate(paths):
        with _image(path, "a whole image") as image:
            if image.size != (width, height):
                # A JPEG that is several times too large is decoded at a fraction of its size: much faster.
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
    return [p for p in held if p.suffix.lower() in IMAGE_SUFFIXES and p not in folders], [
        p for p in held if p in folders
    ]


def _head(path: Path) -> tuple[tuple[int, int], str]:
    with _image(path, "an image") as image:
        if image.mode[0] in "IF":
            raise ValueError(f"pixels of mode {image.mode}, more than 8 bits per channel")
        return image.size, image.mode


@contextmanager
def _image(path: Path, what: str) -> Iterator[Image.Image]:
    """An image whose pixels are not yet read."""
    with reading(path, what), safe_reading.open_file(path) as file, warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", Image.DecompressionBombWarning
        )  # the memory of all images together is checked
        with Image.open(file, formats=FORMATS) as image:
            yield image
