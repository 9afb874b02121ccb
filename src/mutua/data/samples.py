"""Samples: inputs and labels as tensors, with the names of their classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mutua.data.layouts import Layout, channels_first, with_channels
from mutua.data.mapped_rows import MappedRows, cast, in_memory, joined, pieces, stored, taken, transformed
from mutua.errors import InputError
from mutua.support.text import several, some

MOST_NUMBERED = 100_000
"""The most classes or domains without names."""


@dataclass(frozen=True)
class Preprocess:
    """How stored values become a model's input: (x * scale - mean) / std, by channel.

    The numbers are declared, never computed from data, so they say nothing about any sample.
    """

    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @staticmethod
    def default(x: Tensor | MappedRows) -> Preprocess:
        """Bytes to [-1, 1]; floating values as they are."""
        return Preprocess(1 / 255, (0.5,), (0.5,)) if x.dtype == torch.uint8 else Preprocess()

    def __call__(self, x: Tensor | MappedRows) -> Tensor:
        """The model's input for stored values `x`, which are read if they are in a file."""
        x = in_memory(x)
        shape = (1, -1) + (1,) * (x.dim() - 2)
        dtype = torch.get_default_dtype()
        if self == Preprocess():
            return x.to(dtype)
        mean = torch.tensor(self.mean, dtype=dtype, device=x.device).view(shape)
        std = torch.tensor(self.std, dtype=dtype, device=x.device).view(shape)
        return x.to(dtype, copy=True).mul_(self.scale).sub_(mean).div_(std)


@dataclass(frozen=True, repr=False)
class Samples:
    """Inputs `x` (N, channels, height, width) or (N, features), labels `y` as indices into `classes`.

    Images stay uint8 in memory; `preprocess` turns them into a model's input when they are used. Inputs that are
    mapped stay in their file: `x` is then `MappedRows`, and `inputs` reads them.
    """

    x: Tensor | MappedRows
    y: Tensor
    classes: tuple[str, ...]
    preprocess: Preprocess = Preprocess()
    domain: Tensor | None = None
    domains: tuple[str, ...] = ()
    opted_out: Tensor | None = None
    """Which samples their owner keeps out of the federation, if the data itself says so."""
    declared: tuple[str, ...] | None = None
    """The classes that somebody has named; None is all. The others were found in labels or folder names."""

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        kind = str(self.x.dtype).removeprefix("torch.")
        held = f"{len(self)} of {tuple(self.x.shape[1:])} {kind}, {several(len(self.classes), 'class', 'classes')}"
        mapped = ", mapped" if isinstance(self.x, MappedRows) else ""
        return f"Samples({held}{f', domains {some(self.domains)}' if self.domains else ''}{mapped})"

    @property
    def inputs(self) -> Tensor:
        """`x` as a tensor: read anew every time if it is in a file."""
        return in_memory(self.x)

    def in_memory(self) -> Samples:
        """The same samples, read if they are in a file."""
        return replace(self, x=self.x.in_memory()) if isinstance(self.x, MappedRows) else self

    @property
    def channels(self) -> int:
        """Channels of an image, or the number of features."""
        return int(self.x.shape[1])

    @property
    def size(self) -> int | tuple[int, int]:
        """Side of the image; (height, width) if they differ; 1 for plain features."""
        if self.x.dim() == 2:
            return 1
        height, width = int(self.x.shape[2]), int(self.x.shape[3])
        return height if height == width else (height, width)

    def take(self, index: np.ndarray | Sequence[int] | Tensor) -> Samples:
        """The samples at these positions."""
        index = torch.as_tensor(index, dtype=torch.long)
        domain = None if self.domain is None else self.domain[index]
        opted_out = None if self.opted_out is None else self.opted_out[index]
        return replace(self, x=taken(self.x, index), y=self.y[index], domain=domain, opted_out=opted_out)

    def relabelled(self, classes: Sequence[str]) -> Samples:
        """The same samples with labels as indices into `classes`, matched by name."""
        if tuple(classes) == self.classes:
            return self
        position = {name: i for i, name in enumerate(classes)}
        missing = [self.classes[int(c)] for c in self.y.unique() if self.classes[int(c)] not in position]
        if missing:
            raise InputError(f"classes: {', '.join(missing)} in the data, but not among {', '.join(classes)}")
        table = torch.tensor([position.get(name, -1) for name in self.classes], dtype=torch.long)
        declared = self.classes if self.declared is None else self.declared
        return replace(self, y=table[self.y], classes=tuple(classes), declared=declared)

    @property
    def opted_in(self) -> Samples:
        """The samples that the federation may learn from."""
        return self if self.opted_out is None else self.take((~self.opted_out).nonzero()[:, 0])

    def counts(self) -> np.ndarray:
        """How many samples of each class."""
        return np.bincount(self.y.numpy(), minlength=len(self.classes))

    @staticmethod
    def of(
        x: Any,
        y: Any,
        *,
        classes: Sequence[str] | None = None,
        preprocess: Preprocess | None = None,
        domain: Any = None,
        domains: Sequence[str] = (),
        opted_out: Any = None,
        layout: Layout | None = None,
        channels: int | None = None,
        name: str = "data",
    ) -> Samples:
        """Samples of arrays or tensors, checked: `x` (N,H,W), (N,H,W,C), (N,C,H,W) or (N,features).

        An `x` that NumPy has mapped (`np.load(file, mmap_mode="r")`) stays in its file.
        `opted_out` is true for each sample that is kept out of the federation. `layout` says where channels are,
        if their number does not; `channels` 3 makes grey images RGB.
        """
        made = _check(x, y, classes, preprocess, domain, domains, layout, channels, name)
        if classes is None:
            made = replace(made, declared=())
        return made if opted_out is None else replace(made, opted_out=_mask(opted_out, len(made), name))

    @staticmethod
    def of_dataset(
        dataset: Any,
        *,
        classes: Sequence[str] | None = None,
        preprocess: Preprocess | None = None,
        name: str = "data",
    ) -> Samples:
        """Samples of any torch Dataset that yields (input, label)."""
        try:
            pairs = [dataset[i] for i in range(len(dataset))]
            x = [torch.as_tensor(np.asarray(a)) for a, _ in pairs]
            y = torch.tensor([int(b) for _, b in pairs])
            stacked = torch.stack(x) if x else None
        except Exception as error:  # whatever somebody's dataset raises
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise InputError(f"{name}: not a dataset of (input, label) with inputs of one shape ({why})") from None
        if stacked is None:
            raise InputError(f"{name}: an empty dataset; it needs at least one sample")
        known = classes or getattr(dataset, "classes", None)
        return Samples.of(stacked, y, classes=known, preprocess=preprocess, name=name)

    @staticmethod
    def given(data: Any, name: str, like: Samples | None = None) -> Samples:
        """Samples from what a user gave: Samples, or a torch Dataset, read with the classes of `like`."""
        if isinstance(data, Samples):
            return data
        if isinstance(getattr(data, "train", None), Samples):
            raise InputError(f"{name}: a whole source; give its samples, such as mutua.load('mnist5k').train")
        if isinstance(data, np.ndarray | Tensor | list | tuple) or not hasattr(data, "__getitem__"):
            raise InputError(f"{name}: a {type(data).__name__}; for arrays use Federation.from_arrays(x, y, ...)")
        if like is None:
            return Samples.of_dataset(data, name=name)
        read = Samples.of_dataset(data, classes=like.classes, preprocess=like.preprocess, name=name)
        return replace(read, declared=like.declared)


def texts(names: np.ndarray) -> np.ndarray:
    """Names as text; bytes that are not UTF-8 are written as escapes."""
    return (np.char.decode(names, "utf-8", "backslashreplace") if names.dtype.kind == "S" else names).astype(str)


def concatenate(parts: Sequence[Samples]) -> Samples:
    """The samples of all parts, which must have the same classes."""
    if any(part.preprocess != parts[0].preprocess for part in parts):
        parts = [replace(p, x=transformed(p.x, p.preprocess), preprocess=Preprocess()) for p in parts]
    x, y = joined([p.x for p in parts]), torch.cat([p.y for p in parts])
    return replace(parts[0], x=x, y=y, domain=None, domains=(), opted_out=None)


def known_classes(parts: Sequence[tuple[Samples, Tensor | None]]) -> tuple[str, ...]:
    """The classes as the federation may know them: those declared, and those of shown samples (None: all).

    If labels are numbers, all numbers up to the largest are classes.
    """
    held = [part for part, _ in parts]
    declared = list(dict.fromkeys(n for p in held for n in (p.classes if p.declared is None else p.declared)))
    labels = [(part.classes, part.y if shown is None else part.y[shown]) for part, shown in parts]
    found = {classes[c] for classes, y in labels for c in y.unique().tolist()} - {*declared}
    if found and all(name.isdecimal() and int(name) < MOST_NUMBERED for name in found):
        found = {str(i) for i in range(max(map(int, found)) + 1)} - {*declared}
        return (*declared, *sorted(found, key=int))
    return (*declared, *sorted(found))


def with_known_classes(parts: Sequence[Samples]) -> list[Samples]:
    """The same samples with a list of classes that does not depend on any opted-out label."""
    names = known_classes([(part, None if part.opted_out is None else ~part.opted_out) for part in parts])
    try:
        return [replace(part.relabelled(names), declared=None) for part in parts]
    except InputError:
        held = {part.classes[c] for part in parts for c in part.y.unique().tolist()}
        raise InputError(undeclared(held - {*names})) from None


def undeclared(names: Iterable[str]) -> str:
    """The error about classes that only opted-out samples have."""
    which = ", ".join(sorted(names))
    return (
        f"classes: only opted-out samples have {which}, and nobody has declared it; declare all classes "
        "(in a recipe: data.classes), so that opted-out labels need not tell them"
    )


def _mask(opted_out: Any, n: int, name: str) -> Tensor:
    mask = torch.as_tensor(np.asarray(opted_out))
    if mask.shape != (n,) or mask.dtype != torch.bool:
        kind = f"{str(mask.dtype).removeprefix('torch.')} {tuple(mask.shape)}"
        raise InputError(f"{name}.opted_out: {kind}; it must be one true or false for each of {n} samples")
    return mask.clone()


def _check(
    x: Any,
    y: Any,
    classes: Sequence[str] | None,
    preprocess: Preprocess | None,
    domain: Any,
    domains: Sequence[str],
    layout: Layout | None,
    channels: int | None,
    name: str,
) -> Samples:
    labels = np.asarray(y)
    if labels.dtype.kind in "US":
        raise InputError(f"{name}.y: labels are text; give whole numbers from 0 on, and the names as classes")
    try:
        xt, yt = stored(x), torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}: x and y must be numeric arrays or tensors ({error})") from None
    if xt.dim() not in (2, 3, 4):
        raise InputError(
            f"{name}.x: shape {tuple(xt.shape)}; give (N, H, W), (N, H, W, C), (N, C, H, W) or (N, features)"
        )
    if yt.dim() != 1 or len(yt) != len(xt):
        raise InputError(f"{name}.y: shape {tuple(yt.shape)} for {len(xt)} inputs; give one label per sample")
    if len(xt) == 0:
        raise InputError(f"{name}: no samples; it needs at least one")
    if 0 in xt.shape:
        raise InputError(f"{name}.x: shape {tuple(xt.shape)}: samples without values; give at least one each")
    xt = with_channels(channels_first(xt, layout, name), channels, name)
    if xt.dtype != torch.uint8:
        if not (xt.dtype.is_floating_point or xt.dtype in (torch.int8, torch.int16, torch.int32, torch.int64)):
            raise InputError(f"{name}.x: values of type {xt.dtype}; give bytes (0 to 255) or floating numbers")
        xt = transformed(xt, cast, torch.get_default_dtype())
        if not all(bool(torch.isfinite(part).all()) for part in pieces(xt)):
            bad = sum(int((~torch.isfinite(part)).flatten(1).any(1).sum()) for part in pieces(xt))
            raise InputError(f"{name}.x: NaN or infinity in {bad} of {len(xt)} samples; clean or drop them")
    if yt.dtype.is_complex or yt.dtype.is_floating_point:
        if yt.dtype.is_complex or not bool((torch.isfinite(yt) & (yt == yt.round())).all()):
            raise InputError(f"{name}.y: labels must be whole numbers (indices into the class names)")
    elif yt.dtype == torch.bool:
        yt = yt.to(torch.uint8)
    yt = yt.long()
    low, high = int(yt.min()), int(yt.max())
    if classes is None:
        if low < 0:
            raise InputError(f"{name}.y: label {low}; labels count from 0")
        if high >= MOST_NUMBERED:
            raise InputError(
                f"{name}.y: label {high}; without names there are at most {MOST_NUMBERED:,} classes: number "
                "the labels from 0 on without gaps, or name the classes"
            )
        classes = [str(i) for i in range(high + 1)]
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise InputError(f"{name}.classes: {classes!r}; give a list of names, such as ['cat', 'dog']")
    classes = tuple(str(c) for c in classes)
    if len(set(classes)) != len(classes):
        twice = Counter(classes).most_common(1)[0][0]
        raise InputError(f"{name}.classes: '{twice}' is named twice; class names must differ")
    if low < 0 or high >= len(classes):
        bad = low if low < 0 else high
        raise InputError(
            f"{name}.y: label {bad} is out of range; {len(classes)} classes allow 0 to {len(classes) - 1}"
        )
    dt = None
    if domain is not None:
        dt, domains = _domains(domain, domains, name)
        if dt.shape != yt.shape or int(dt.min()) < 0 or int(dt.max()) >= len(domains):
            raise InputError(f"{name}.domain: give one index below {len(domains)}, or a domain's name, per sample")
    return Samples(
        xt.contiguous() if isinstance(xt, Tensor) else xt,
        yt,
        classes,
        preprocess or Preprocess.default(xt),
        dt,
        tuple(domains) if dt is not None else (),
    )


def _domains(given: Any, names: Sequence[str], where: str) -> tuple[Tensor, tuple[str, ...]]:
    """Indices of domains and their names; domains may be given by name, then they are numbered by name."""
    held = np.asarray(given)
    if held.dtype.kind in "USO":
        text = texts(held)
        known = [str(name) for name in names] or sorted(set(text.tolist()))
        if strange := sorted(set(text.tolist()) - set(known)):
            raise InputError(f"{where}.domain: '{strange[0]}' is not among the domains {', '.join(known)}")
        position = {name: i for i, name in enumerate(known)}
        return torch.tensor([position[name] for name in text.tolist()], dtype=torch.long), tuple(known)
    if held.dtype.kind not in "iub" or not held.size:
        raise InputError(f"{where}.domain: values of type {held.dtype}; give names, or whole numbers from 0 on")
    index = torch.as_tensor(held).long()
    if not names and int(index.max()) >= MOST_NUMBERED:
        raise InputError(
            f"{where}.domain: {int(index.max())}; without names there are at most {MOST_NUMBERED:,}: number "
            "them from 0 on without gaps, or name the domains"
        )
    return index, tuple(str(name) for name in names) or tuple(str(i) for i in range(int(index.max()) + 1))
