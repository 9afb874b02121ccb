"""How a model lies in memory: channels last is what convolutions on CPUs are fastest with."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def lay_channels_last(model: nn.Module, x: Tensor) -> None:
    """Let convolutions have their channels last in memory, which is faster, where the model can take that."""
    if x.dim() != 4 or x.device.type == "mps":
        return
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    was_training = model.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()(x.contiguous(memory_format=torch.channels_last))
    except RuntimeError:  # such as a `view` that wants the usual order
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    model.train(was_training)


def channels_last(model: nn.Module) -> bool:
    """Whether the model's convolutions have their channels last."""
    return any(weight.dim() == 4 and not weight.is_contiguous() for weight in model.parameters())
