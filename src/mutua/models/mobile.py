"""MobileNetV2 and ShuffleNetV2 for small images: the first strides are 1 and there is no first pool."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mutua.models.parts import IMAGES, Size, at_least, chain, conv_norm, pooled_head, scaled
from mutua.models.registry import register_model


@register_model("mobilenetv2", takes=IMAGES)
def mobilenetv2(channels: int, size: Size, classes: int, width: float = 1.0) -> nn.Sequential:
    """MobileNetV2; 2.2 million parameters."""
    at_least(size, 8)
    stages = [  # expansion, outputs, depth, first stride
        (1, 16, 1, 1),
        (6, 24, 2, 1),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]
    inputs, last = scaled(32, width), scaled(1280, width)
    layers: dict[str, nn.Module] = {"stem": conv_norm(channels, inputs, activation=nn.ReLU6())}
    for i, (expansion, units, depth, first) in enumerate(stages, 1):
        outputs = scaled(units, width)
        stage = nn.Sequential()
        for j in range(depth):
            stage.append(_Inverted(inputs, outputs, expansion, first if j == 0 else 1))
            inputs = outputs
        layers[f"stage{i}"] = stage
    layers["last"] = conv_norm(inputs, last, 1, activation=nn.ReLU6())
    return chain(**layers, **pooled_head(last, classes))


class _Inverted(nn.Module):
    """Widen, filter each channel by itself, narrow; added to the input where the shape stays."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers = {"expand": conv_norm(inputs, hidden, 1, activation=nn.ReLU6())} if expansion > 1 else {}
        layers["filter"] = conv_norm(hidden, hidden, stride=stride, groups=hidden, activation=nn.ReLU6())
        layers["project"] = conv_norm(hidden, outputs, 1)
        self.branch = chain(**layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        return x + y if self.residual else y


@register_model("shufflenetv2", takes=IMAGES)
def shufflenetv2(channels: int, size: Size, classes: int, width: float = 1.0) -> nn.Sequential:
    """ShuffleNetV2; 1.3 million parameters."""
    at_least(size, 8)
    inputs, last = scaled(24, width), scaled(1024, width)
    layers: dict[str, nn.Module] = {"stem": conv_norm(channels, inputs, activation=nn.ReLU())}
    for i, (units, depth) in enumerate([(116, 4), (232, 8), (464, 4)], 1):
        half = scaled(units // 2, width)
        units_of_stage = [_Shuffle(half) for _ in range(depth - 1)]
        layers[f"stage{i}"] = nn.Sequential(_ShuffleDown(inputs, half), *units_of_stage)
        inputs = 2 * half
    layers["last"] = conv_norm(inputs, last, 1, activation=nn.ReLU())
    return chain(**layers, **pooled_head(last, classes))


def _interleave(a: Tensor, b: Tensor) -> Tensor:
    """Channels a0, b0, a1, b1, ...: concatenation and channel shuffle in one step."""
    return torch.stack((a, b), dim=2).flatten(1, 2)


def _branch(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return chain(
        mix=conv_norm(inputs, outputs, 1, activation=nn.ReLU()),
        filter=conv_norm(outputs, outputs, stride=stride, groups=outputs),
        project=conv_norm(outputs, outputs, 1, activation=nn.ReLU()),
    )


class _Shuffle(nn.Module):
    """Half of the channels pass, the other half is worked on."""

    def __init__(self, half: int) -> None:
        super().__init__()
        self.branch = _branch(half, half, stride=1)

    def forward(self, x: Tensor) -> Tensor:
        kept, worked = x.chunk(2, dim=1)
        return _interleave(kept, self.branch(worked))


class _ShuffleDown(nn.Module):
    """Two branches, each from all channels to half of the outputs, at half the height and width."""

    def __init__(self, inputs: int, half: int) -> None:
        super().__init__()
        self.branch1 = chain(
            filter=conv_norm(inputs, inputs, stride=2, groups=inputs),
            project=conv_norm(inputs, half, 1, activation=nn.ReLU()),
        )
        self.branch2 = _branch(inputs, half, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return _interleave(self.branch1(x), self.branch2(x))
