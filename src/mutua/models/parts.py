"""What the zoo's models are made of."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

from mutua.data.model_input import InputKind
from mutua.errors import InputError
from mutua.models.convolution import Convolution

Size = int | tuple[int, int]

IMAGES: tuple[InputKind, ...] = ("images",)
NUMERIC_INPUTS: tuple[InputKind, ...] = ("images", "features", "table")


def chain(**layers: nn.Module) -> nn.Sequential:
    """Layers in order, with their names."""
    return nn.Sequential(OrderedDict(layers))


def scaled(units: int, width: float) -> int:
    """This many units times `width`, at least one."""
    return max(1, round(units * width))


def sides(size: Size) -> tuple[int, int]:
    """Height and width of an image."""
    return (size, size) if isinstance(size, int) else size


def at_least(size: Size, least: int) -> tuple[int, int]:
    """Height and width, refused where an image would shrink to nothing."""
    height, width = sides(size)
    if min(height, width) < least:
        raise InputError(
            f"images of {height}×{width} pixels are too small; use {least} or more per side, or 'mlp'"
        )
    return height, width


class ConvPool(Convolution):
    """Convolution, 2×2 max-pool, ReLU: pooling first gives the same numbers for a quarter of the ReLUs."""

    def forward(self, x: Tensor) -> Tensor:
        """Half the height and width."""
        # CPUs work on channels that are last by eights: eight are faster than six, and two are thrown away.
        missing = -self.out_channels % 8
        if not 0 < missing <= 3 or self.groups > 1 or x.device.type != "cpu" or self.weight.stride(1) != 1:
            return F.relu(F.max_pool2d(super().forward(x), 2))
        weight = F.pad(self.weight, (0, 0, 0, 0, 0, 0, 0, missing))
        bias = None if self.bias is None else F.pad(self.bias, (0, missing))
        pooled = F.max_pool2d(self._conv_forward(x, weight, bias), 2)
        # A slice's gradient would have channels first.
        return F.relu(F.pad(pooled, (0, 0, 0, 0, 0, -missing)))


class Dense(nn.Linear):
    """A linear layer and ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        """Features that are never negative."""
        return F.relu(super().forward(x))


def conv_norm(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    *,
    stride: int = 1,
    groups: int = 1,
    activation: nn.Module | None = None,
) -> nn.Sequential:
    """Convolution (no bias: the norm has one), batch-norm and, if given, an activation."""
    conv = Convolution(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    layers = {"conv": conv, "norm": nn.BatchNorm2d(outputs)}
    return chain(**layers, activation=activation) if activation else chain(**layers)


def pooled_head(features: int, classes: int) -> dict[str, nn.Module]:
    """The last layers of a model for any image size: average over the image, then the head."""
    return {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "head": nn.Linear(features, classes)}
