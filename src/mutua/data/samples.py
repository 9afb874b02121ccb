"""Samples: inputs and labels as tensors, with the names of their classes.

Over 400 lines: samples, how their inputs are encoded, and the checks of what somebody gives belong together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from mutua.data.layouts import Layout, channels_first, with_channels
from mutua.data.mapped_rows import MappedRows, cast, in_memory, joined, pieces, stored, taken, transformed
from mutua.data.model_input import ModelInput
from mutua.data.targets import NAMED, TaskKind, class_names, reordered, target_matrix, task_kind
from mutua.errors import InputError
from mutua.support.text import several, some

MOST_NUMBERED = 100_000
"""The most classes or domains without names."""


class Encoding(Protocol):
    """How stored inputs become a model's: `Preprocess` of images and features, and those of tables and texts."""

    def __call__(self, x: Tensor | MappedRows) -> Tensor:
        """The model's input for stored inputs, which are read if they are in a file."""

    def input(self, x: Tensor | MappedRows) -> ModelInput:
        """What a model is given for stored inputs like these."""

    @property
    def fitted(self) -> bool:
        """Whether nothing is left to be fitted on a client's own training samples."""

    @property
    def declared(self) -> Encoding:
        """The same without what was fitted: this may be known to everybody."""

    @property
    def applied(self) -> Encoding:
        """For inputs to which it has been applied already."""

    def fit(self, x: Tensor | MappedRows) -> Encoding:
        """The same with what these inputs say."""


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

    fitted = True

    @property
    def declared(self) -> Self:
        """Itself: nothing is fitted."""
        return self

    @property
    def applied(self) -> Preprocess:
        """Nothing to do."""
        return Preprocess()

    def fit(self, x: Tensor | MappedRows) -> Self:
        """Itself: nothing is fitted."""
        return self

    def input(self, x: Tensor | MappedRows) -> ModelInput:
        """Images, or plain features."""
        if x.dim() == 2:
            return ModelInput("features", int(x.shape[1]))
        channels, height, width = (int(side) for side in x.shape[1:])
        return ModelInput("images", channels, height if height == width else (height, width))


@dataclass(frozen=True, repr=False)
class Samples:
    """Inputs `x` (N, channels, height, width) or (N, features), labels `y` as indices into `classes`.

    Of the kinds `multi-label` and `regression`, `y` is a matrix (N, columns) of 0 and 1 or of values, and
    `classes` are the names of its columns.

    Images stay uint8 in memory; `preprocess` turns them into a model's input when they are used. Inputs that are
    mapped stay in their file: `x` is then `MappedRows`, and `inputs` reads them.
    """

    x: Tensor | MappedRows
    y: Tensor
    classes: tuple[str, ...]
    preprocess: Encoding = Preprocess()
    domain: Tensor | None = None
    domains: tuple[str, ...] = ()
    opted_out: Tensor | None = None
    """Which samples their owner keeps out of the federation, if the data itself says so."""
    declared: tuple[str, ...] | None = None
    """The classes that somebody has named; None is all. The others were found in labels or folder names."""
    kind: TaskKind = "classification"
    group: Tensor | None = None
    """Which samples belong together, such as those of one patient: a split keeps them on one side."""

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        kind = str(self.x.dtype).removeprefix("torch.")
        held = f"{len(self)} of {tuple(self.x.shape[1:])} {kind}, {several(len(self.classes), *NAMED[self.kind])}"
        mapped = ", mapped" if isinstance(self.x, MappedRows) else ""
        return f"Samples({held}{f', domains {some(self.domains)}' if self.domains else ''}{mapped})"

    @property
    def inputs(self) -> Tensor:
        """`x` as a tensor: read again every time if it is in a file."""
        return in_memory(self.x)

    def in_memory(self) -> Samples:
        """The same samples, read if they are in a file."""
        return replace(self, x=self.x.in_memory()) if isinstance(self.x, MappedRows) else self

    @property
    def model_input(self) -> ModelInput:
        """What a model is given."""
        return self.preprocess.input(self.x)

    @property
    def channels(self) -> int:
        """Channels of an image, the number of features, or how many words a text has at most."""
        return self.model_input.channels

    @property
    def size(self) -> int | tuple[int, int]:
        """Side of the image; (height, width) if they differ; 1 for all else."""
        return self.model_input.size

    def take(self, index: np.ndarray | Sequence[int] | Tensor) -> Samples:
        """The samples at these positions."""
        index = torch.as_tensor(index, dtype=torch.long)
        domain = None if self.domain is None else self.domain[index]
        opted_out = None if self.opted_out is None else self.opted_out[index]
        group = None if self.group is None else self.group[index]
        x, y = taken(self.x, index), self.y[index]
        return replace(self, x=x, y=y, domain=domain, opted_out=opted_out, group=group)

    def relabelled(self, classes: Sequence[str]) -> Samples:
        """The same samples with labels as indices into `classes`, matched by name."""
        if tuple(classes) == self.classes:
            return self
        if self.kind != "classification":
            y = reordered(self.y, self.classes, classes, self.kind)
            return replace(self, y=y, classes=tuple(classes))
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
        """How many samples of each class or with each label; of each value, all."""
        if self.kind != "classification":
            given = self.y if self.kind == "multi-label" else torch.ones_like(self.y)
            return np.asarray(given.sum(0).long().numpy())
        return np.bincount(self.y.numpy(), minlength=len(self.classes))

    @property
    def held(self) -> list[str]:
        """The classes or labels of which it has samples, or the names of its values."""
        return [self.classes[c] for c in self.counts().nonzero()[0].tolist()]

    def unknown(self, number: int) -> Tensor:
        """Labels of this kind for samples whose labels are not known."""
        return torch.zeros(number, *self.y.shape[1:], dtype=self.y.dtype)

    @property
    def strata(self) -> np.ndarray:
        """What every part of a split has in proportion: the classes. With labels of other kinds all are alike."""
        if self.kind != "classification":
            return np.zeros(len(self), dtype=np.int64)
        return np.asarray(self.y.numpy())

    @staticmethod
    def of(
        x: Any,
        y: Any,
        *,
        classes: Sequence[str] | None = None,
        preprocess: Encoding | None = None,
        domain: Any = None,
        domains: Sequence[str] = (),
        opted_out: Any = None,
        layout: Layout | None = None,
        channels: int | None = None,
        kind: TaskKind = "classification",
        name: str = "data",
    ) -> Samples:
        """Samples of arrays or tensors, checked: `x` (N,H,W), (N,H,W,C), (N,C,H,W) or (N,features).

        `y` is a class per sample or, by `kind`, a row of 0 and 1 (`multi-label`) or of values (`regression`).

        An `x` that NumPy has mapped (`np.load(file, mmap_mode="r")`) stays in its file.
        `opted_out` is true for each sample that is kept out of the federation. `layout` says where channels are,
        if their number does not; `channels` 3 makes grey images RGB.
        """
        kind = task_kind(kind, f"{name}.kind")
        made = _check(x, y, classes, preprocess, domain, domains, layout, channels, kind, name)
        if classes is None and kind == "classification":
            made = replace(made, declared=())
        return made if opted_out is None else replace(made, opted_out=_mask(opted_out, len(made), name))

    @staticmethod
    def of_dataset(
        dataset: Any,
        *,
        classes: Sequence[str] | None = None,
        preprocess: Encoding | None = None,
        kind: TaskKind = "classification",
        name: str = "data",
    ) -> Samples:
        """Samples of any torch Dataset that yields (input, label)."""
        try:
            pairs = [dataset[i] for i in range(len(dataset))]
            x = [torch.as_tensor(np.asarray(a)) for a, _ in pairs]
            one = int if kind == "classification" else np.asarray
            y = np.array([one(b) for _, b in pairs])
            stacked = torch.stack(x) if x else None
        except Exception as error:  # whatever somebody's dataset raises
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise InputError(f"{name}: not a dataset of (input, label) with inputs of one shape ({why})") from None
        if stacked is None:
            raise InputError(f"{name}: an empty dataset; it needs at least one sample")
        known = classes or getattr(dataset, "classes", None)
        return Samples.of(stacked, y, classes=known, preprocess=preprocess, kind=kind, name=name)

    @staticmethod
    def given(data: Any, name: str, like: Samples | None = None, kind: TaskKind = "classification") -> Samples:
        """Samples from what a user gave: Samples, or a torch Dataset, read with the classes of `like`."""
        if isinstance(data, Samples):
            return data
        if isinstance(getattr(data, "train", None), Samples):
            raise InputError(f"{name}: a whole source; give its samples, such as mutua.load('mnist5k').train")
        if isinstance(data, np.ndarray | Tensor | list | tuple) or not hasattr(data, "__getitem__"):
            raise InputError(f"{name}: a {type(data).__name__}; for arrays use Federation.from_arrays(x, y, ...)")
        if like is None:
            return Samples.of_dataset(data, kind=kind, name=name)
        given: Any = {"classes": like.classes, "preprocess": like.preprocess, "kind": like.kind}
        read = Samples.of_dataset(data, **given, name=name)
        return replace(read, declared=like.declared)


def texts(names: np.ndarray) -> np.ndarray:
    """Names as text; bytes that are not UTF-8 are written as escapes."""
    return (np.char.decode(names, "utf-8", "backslashreplace") if names.dtype.kind == "S" else names).astype(str)


def concatenate(parts: Sequence[Samples]) -> Samples:
    """The samples of all parts, which must have the same classes; with domains if all parts have the same list."""
    if any(part.preprocess != parts[0].preprocess for part in parts):
        parts = [replace(p, x=transformed(p.x, p.preprocess), preprocess=p.preprocess.applied) for p in parts]
    x, y = joined([p.x for p in parts]), torch.cat([p.y for p in parts])
    held = [part.domain for part in parts if part.domain is not None and part.domains == parts[0].domains]
    known = {"domain": torch.cat(held)} if len(held) == len(parts) else {"domain": None, "domains": ()}
    return replace(parts[0], x=x, y=y, **known, opted_out=None, group=None)


def known_classes(parts: Sequence[tuple[Samples, Tensor | None]]) -> tuple[str, ...]:
    """The classes as the federation may know them: those declared, and those of shown samples (None: all).

    If labels are numbers, all numbers up to the largest are classes. The columns of a matrix of labels or values
    are the same whatever is in it.
    """
    if any(part.kind != "classification" for part, _ in parts):
        return tuple(dict.fromkeys(name for part, _ in parts for name in part.classes))
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
    if any(part.kind != "classification" for part in parts):
        return [part.relabelled(parts[0].classes) for part in parts]
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
    preprocess: Encoding | None,
    domain: Any,
    domains: Sequence[str],
    layout: Layout | None,
    channels: int | None,
    kind: TaskKind,
    name: str,
) -> Samples:
    labels = np.asarray(y)
    if kind == "classification" and labels.dtype.kind in "US":
        raise InputError(f"{name}.y: labels are text; give whole numbers from 0 on, and the names as classes")
    try:
        xt, yt = stored(x), torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}: x and y must be numeric arrays or tensors ({error})") from None
    if xt.dim() not in (2, 3, 4):
        raise InputError(
            f"{name}.x: shape {tuple(xt.shape)}; give (N, H, W), (N, H, W, C), (N, C, H, W) or (N, features)"
        )
    if kind == "classification" and (yt.dim() != 1 or len(yt) != len(xt)):
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
    if kind == "classification":
        yt, names = _class_indices(yt, classes, name)
    else:
        yt, names = target_matrix(labels, kind, classes, len(xt), name)
    dt = None
    if domain is not None:
        dt, domains = _domains(domain, domains, name)
        if dt.shape != yt.shape[:1] or int(dt.min()) < 0 or int(dt.max()) >= len(domains):
            raise InputError(f"{name}.domain: give one index below {len(domains)}, or a domain's name, per sample")
    return Samples(
        xt.contiguous() if isinstance(xt, Tensor) else xt,
        yt,
        names,
        preprocess or Preprocess.default(xt),
        dt,
        tuple(domains) if dt is not None else (),
        kind=kind,
    )


def _class_indices(yt: Tensor, classes: Sequence[str] | None, name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as indices of classes, and the names of those."""
    if yt.dtype.is_complex or yt.dtype.is_floating_point:
        if yt.dtype.is_complex or not bool((torch.isfinite(yt) & (yt == yt.round())).all()):
            raise InputError(
                f"{name}.y: labels must be whole numbers (indices into the class names); values are a regression's"
            )
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
    names = class_names(classes, f"{name}.classes")
    if low < 0 or high >= len(names):
        bad = low if low < 0 else high
        raise InputError(
            f"{name}.y: label {bad} is out of range; {len(names)} classes allow 0 to {len(names) - 1}"
        )
    return yt, names


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
