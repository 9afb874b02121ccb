"""Shifts: what makes clients' samples differ beside who has which classes."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field

from mutua.data.mapped_rows import transformed
from mutua.data.samples import Samples
from mutua.data.transforms import rotate
from mutua.errors import InputError
from mutua.seeds import torch_stream
from mutua.support.configuration import Spec


class Shift(Spec):
    """How clients' samples differ: by number, the first clients of each group first."""

    turns: Annotated[int, Field(ge=1, le=360)] = 1
    """So many groups of clients; images of the k-th are turned by k·360/n degrees."""
    label_orders: Annotated[int, Field(ge=1)] = 1
    """So many groups; in all but the first, labels are put in another order, which is drawn."""
    label_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Each client's share of training and validation labels that are drawn anew is drawn between 0 and this."""

    def seen(self, samples: Samples, k: int, seed: int, split: Literal["train", "val", "test"]) -> Samples:
        """The samples as the k-th client has them."""
        if self.turns > 1:
            if samples.x.dim() != 4:
                raise InputError(
                    f"partition.shift.turns: {self.turns}, but a sample has shape {tuple(samples.x.shape[1:])}; "
                    "only images can be turned: leave it out"
                )
            degrees = 360 / self.turns * (k % self.turns)
            samples = replace(samples, x=transformed(samples.x, rotate, degrees))
        changes = self.label_orders > 1 or self.label_noise > 0
        if changes and samples.kind != "classification":
            raise InputError(
                f"partition.shift: labels of {samples.kind} have no order and no other class; leave it out"
            )
        C = len(samples.classes)
        if group := k % self.label_orders:
            order = torch.randperm(C, generator=torch_stream(seed, "shift", "order", group))
            samples = replace(samples, y=order[samples.y])
        if self.label_noise and split != "test":
            share = self.label_noise * torch.rand((), generator=torch_stream(seed, "shift", "noise", k))
            stream = torch_stream(seed, "shift", "noise", k, split)
            wrong = torch.rand(len(samples), generator=stream) < share
            drawn = torch.randint(C, (len(samples),), generator=stream)
            samples = replace(samples, y=torch.where(wrong, drawn, samples.y))
        return samples
