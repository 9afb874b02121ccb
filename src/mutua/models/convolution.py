"""A convolution with a faster way to the gradient of its weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PATCHES = 2**20
"""How many numbers of patches are multiplied at once, about: 4 MB fit into a cache. At least one image."""


class Convolution(nn.Conv2d):
    """torch's; on CPUs a wide one with channels last finds its weights' gradient as a matrix product."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        wide = self.groups == 1 and min(weight.shape[:2]) >= 64 and max(self.kernel_size) > 1  # else no faster
        usual = self.dilation == (1, 1) and self.padding_mode == "zeros" and not isinstance(self.padding, str)
        last = x.device.type == "cpu" and x.dim() == 4 and weight.stride(1) == 1
        if wide and usual and last and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu"):
            y: Tensor = _Convolve.apply(x, weight, bias, self.stride, self.padding)  # type: ignore[no-untyped-call]
        else:
            y = super()._conv_forward(x, weight, bias)
        return y


class _Convolve(torch.autograd.Function):
    """What oneDNN does but for the weights' gradient, for which it takes 1.2 to 2.5 times as long (AVX2)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> Tensor:
        return torch.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        to_x, to_weight, to_bias, *_ = ctx.needs_input_grad
        settings = None, ctx.stride, ctx.padding, (1, 1), False, (0, 0), 1, (True, False, False)
        return (
            torch.ops.aten.convolution_backward(gradient, x, weight, *settings)[0] if to_x else None,
            _by_patches(gradient, x, weight.shape, ctx.stride, ctx.padding) if to_weight else None,
            gradient.sum((0, 2, 3)) if to_bias else None,
            None,
            None,
        )


def _by_patches(
    gradient: Tensor, x: Tensor, shape: torch.Size, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """The weights' gradient: every output's gradient times the patch of the input that it came from, summed."""
    outputs, inputs, height, width = shape
    top, left = padding
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, left, left, top, top))
    patches = padded.unfold(1, height, stride[0]).unfold(2, width, stride[1]).permute(0, 1, 2, 4, 5, 3)
    images = max(1, PATCHES // patches.shape[1:].numel())
    total: Tensor | None = None
    for some, theirs in zip(patches.split(images), gradient.permute(0, 2, 3, 1).split(images), strict=True):
        one, other = theirs.reshape(-1, outputs).t(), some.reshape(-1, height * width * inputs)
        total = one @ other if total is None else total.addmm_(one, other)
    assert total is not None
    return total.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
