"""A client: private data, a task, and a personal model of its own design."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from mutua.data.samples import Samples, known_classes
from mutua.errors import InputError
from mutua.learning.task_behaviour import Task
from mutua.learning.tasks import CLASSIFICATION, Aim, aim_of
from mutua.models import Architecture
from mutua.support.files import FILE_NAME
from mutua.support.text import some


@dataclass(frozen=True, repr=False)
class Client:
    """A participant: private data, a task and a personal model of its own design."""

    id: str
    train: Samples
    val: Samples
    test: Samples
    model: Architecture
    domain: str | None = None
    opt_in: Tensor | None = None
    """Which training samples the federation may learn from; None: as `train` says, or all of them."""
    seed: int | None = None
    """The root of its own random numbers; None: it is derived from the run's seed, as in a simulation."""
    aim: Aim = CLASSIFICATION
    """What it is to learn, with the options of that kind of task; if it does not say, what its labels are."""

    def __post_init__(self) -> None:
        for split in ("train", "val", "test"):
            if not isinstance(held := getattr(self, split), Samples):
                what = f"{split} is a {type(held).__name__}"
                raise InputError(f"client {self.id}: {what}; give Samples, as Samples.of(x, y) makes")
        if not isinstance(self.id, str):
            raise InputError(f"client id: {self.id!r}; give text, such as 'north'")
        object.__setattr__(self, "model", Architecture.of(self.model))
        given = aim_of(self.aim)
        object.__setattr__(self, "aim", aim_of(self.train.kind) if given == CLASSIFICATION else given)
        if self.aim.kind != self.train.kind:
            raise InputError(
                f"client {self.id}: its task is {self.aim.kind}, its labels are of {self.train.kind}; "
                f"give Samples.of(x, y, kind='{self.aim.kind}')"
            )
        if self.opt_in is None and self.train.opted_out is not None:
            object.__setattr__(self, "opt_in", ~self.train.opted_out)
        if self.opt_in is not None and (self.opt_in.dtype, self.opt_in.shape) != (torch.bool, self.train.y.shape):
            raise InputError(f"client {self.id}: opt_in must be one true or false for each training sample")
        if len(self.id) > 64 or not re.fullmatch(FILE_NAME, self.id):
            raise InputError(
                f"client id '{self.id}': use letters, digits, '.', '_', '+', '-', at most 64, not '.' first"
            )
        if self.id.casefold() == "global":
            raise InputError(
                f"client id '{self.id}': in a history that is the shared model; give the client another"
            )
        if len(self.train) == 0:
            raise InputError(f"client {self.id}: no training samples; it needs at least one")
        if not self.train.preprocess.fitted:
            self._fit()
        for split, samples in (("val", self.val), ("test", self.test)):
            if (samples.model_input, samples.classes, samples.kind) != (
                self.train.model_input,
                self.train.classes,
                self.train.kind,
            ):
                raise InputError(
                    f"client {self.id}: {split} has inputs {tuple(samples.x.shape[1:])} and "
                    f"{len(samples.classes)} classes, train {tuple(self.train.x.shape[1:])} and "
                    f"{len(self.train.classes)}; they must agree"
                )

    def _fit(self) -> None:
        """Fit the preprocessing on its own training samples that are opted in; on all if none of them is."""
        shown = self.opted_in if self.takes_part else self.train
        fitted = self.train.preprocess.fit(shown.x)
        for split in ("train", "val", "test"):
            samples = getattr(self, split)
            if samples.preprocess == self.train.preprocess or not samples.preprocess.fitted:
                object.__setattr__(self, f"_{split}", replace(samples, preprocess=fitted))
        for split in ("train", "val", "test"):
            object.__setattr__(self, split, self.__dict__.pop(f"_{split}", getattr(self, split)))

    def __repr__(self) -> str:
        held = ", ".join(f"{len(getattr(self, split))} {split}" for split in ("train", "val", "test"))
        domain = "" if self.domain is None else f", domain {self.domain}"
        return f"Client({self.id}: model {self.model.title}, {held}{domain}, classes {some(self.held_classes)})"

    @cached_property
    def task(self) -> Task:
        """What its labels mean.

        Weights of classes are those of the samples that the federation may learn from: nothing about the others
        shapes what leaves. A client that has opted out whole sends nothing, and counts its own.
        """
        return self.aim.of(self.opted_in if self.takes_part else self.train)

    @property
    def opted_in(self) -> Samples:
        """The training samples that the federation may learn from."""
        return self.train if self.opt_in is None else self.train.take(self.opt_in.nonzero()[:, 0])

    @property
    def takes_part(self) -> bool:
        """Whether it has anything that the federation may learn from."""
        return self.opt_in is None or bool(self.opt_in.any())

    def shown(self, split: Literal["val", "test"]) -> Tensor | None:
        """Which val or test samples may count for what is shared: none of a client that has opted out whole."""
        samples: Samples = getattr(self, split)
        if not self.takes_part:
            return torch.zeros(len(samples), dtype=torch.bool)
        return None if samples.opted_out is None else ~samples.opted_out

    def opted_in_of(self, split: Literal["val", "test"]) -> Samples:
        """The val or test samples that may count for what is shared."""
        samples: Samples = getattr(self, split)
        shown = self.shown(split)
        return samples if shown is None else samples.take(shown.nonzero()[:, 0])

    @property
    def opted_out(self) -> int:
        """How many of its training samples the federation may not learn from."""
        return 0 if self.opt_in is None else int((~self.opt_in).sum())

    @property
    def held_classes(self) -> list[str]:
        """The classes of its training samples."""
        return self.train.held

    @property
    def known_classes(self) -> tuple[str, ...]:
        """Its classes as the federation may know them: those declared, and those that opted-in samples show."""
        shown = {"train": self.opt_in, "val": self.shown("val"), "test": self.shown("test")}
        declared = self.train.declared
        return known_classes([(replace(getattr(self, n), declared=declared), m) for n, m in shown.items()])

    def relabelled(self, classes: Sequence[str]) -> Client:
        """The same client with labels as indices into `classes`, matched by name."""
        parts = {split: getattr(self, split).relabelled(classes) for split in ("train", "val", "test")}
        return replace(self, **parts) if any(parts[name] is not getattr(self, name) for name in parts) else self


def build(architecture: Architecture, client: Client, seed: int, classes: int | None = None) -> torch.nn.Module:
    """The architecture for this client's inputs and classes."""
    samples = client.train
    classes = classes or len(samples.classes)
    return architecture.build(
        channels=samples.channels, size=samples.size, classes=classes, seed=seed, input=samples.model_input
    )
