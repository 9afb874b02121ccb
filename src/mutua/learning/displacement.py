"""A model's parameters elsewhere for a moment, at w + d, and back to the bit; and its running statistics kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def learned(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that learn."""
    return [p for p in model.parameters() if p.requires_grad]


def flat(arrays: Sequence[Tensor]) -> Tensor:
    """All numbers as one vector, such as gradients by all parameters."""
    return torch.cat([array.reshape(-1) for array in arrays])


@torch.no_grad()
def move(model: nn.Module, by: Tensor) -> None:
    """Add a vector to the parameters that learn."""
    parameters = learned(model)
    for p, part in zip(parameters, by.split([p.numel() for p in parameters]), strict=True):
        p.add_(part.view_as(p))


@contextmanager
def moved(model: nn.Module, by: Tensor) -> Iterator[None]:
    """In here the parameters are elsewhere; afterwards they are back, to the bit."""
    before = [p.detach().clone() for p in learned(model)]
    move(model, by)
    yield
    with torch.no_grad():
        for p, old in zip(learned(model), before, strict=True):
            p.copy_(old)


@contextmanager
def statistics_apart(model: nn.Module) -> Iterator[None]:
    """In here the model moves copies of its buffers, such as running statistics."""
    held = [(layer, dict(layer._buffers)) for layer in model.modules()]
    for layer, buffers in held:
        layer._buffers.update({name: b if b is None else b.clone() for name, b in buffers.items()})
    yield
    for layer, buffers in held:
        layer._buffers.update(buffers)
