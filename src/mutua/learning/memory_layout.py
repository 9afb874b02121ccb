"""How a model lies in memory: channels last is what convolutions on CPUs are fastest with."""

from __future__ import annotations

from weakref import WeakSet

import torch
from torch import Tensor, nn

_unable: WeakSet[nn.Module] = WeakSet()
"""Models that want their inputs in the usual order."""


def lay_channels_last(model: nn.Module, x: Tensor) -> None:
    """Let convolutions have their channels last in memory, which is faster, where the model can take that."""
    if x.dim() != 4 or x.device.type == "mps":
        return
    if any(map(_crashes, model.modules())):
        _unable.add(model)  # so that, where it is a part of another, the whole is fed in the usual order
        return
    was_training = model.training
    try:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()(x.contiguous(memory_format=torch.channels_last))
    except Exception:  # such as a `view` or an assertion that wants the usual order, or weights of five dimensions
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        _unable.add(model)
    model.train(was_training)


def _crashes(layer: nn.Module) -> bool:
    """Whether torch's backward through it writes beyond its memory with channels last (seen in 2.13 on AVX2)."""
    if not isinstance(layer, nn.Conv2d):
        return False
    return layer.in_channels < 8 and max(layer.kernel_size) == 1 and max(layer.stride) > 1


def channels_last(model: nn.Module) -> bool:
    """Whether the model's convolutions have their channels last and all of its parts can take such inputs."""
    if any(part in _unable for part in model.modules()):
        return False
    return any(weight.dim() == 4 and not weight.is_contiguous() for weight in model.parameters())


def laid_out(x: Tensor) -> Tensor:
    """Images (N, C, H, W) with their channels last in memory; strides say so even where there is only one."""
    number, channels, height, width = x.shape
    in_order = x.permute(0, 2, 3, 1).reshape(-1)
    return in_order.view(number, height, width, channels).permute(0, 3, 1, 2)
