"""ResNets for small images: a 3×3 stem without pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from mutua.models.parts import IMAGES, Size, at_least, chain, conv_norm, pooled_head, scaled
from mutua.models.registry import register_model


@register_model("resnet18", takes=IMAGES)
def resnet18(channels: int, size: Size, classes: int, width: float = 1.0) -> nn.Sequential:
    """ResNet18 with a 3×3 stem; 11.2 million parameters."""
    return _resnet(channels, size, classes, width, block=_basic, expansion=1, depths=(2, 2, 2, 2))


@register_model("resnet34", takes=IMAGES)
def resnet34(channels: int, size: Size, classes: int, width: float = 1.0) -> nn.Sequential:
    """ResNet34 with a 3×3 stem; 21.3 million parameters."""
    return _resnet(channels, size, classes, width, block=_basic, expansion=1, depths=(3, 4, 6, 3))


@register_model("resnet50", takes=IMAGES)
def resnet50(channels: int, size: Size, classes: int, width: float = 1.0) -> nn.Sequential:
    """ResNet50 (bottlenecks) with a 3×3 stem; 23.5 million parameters."""
    return _resnet(channels, size, classes, width, block=_bottleneck, expansion=4, depths=(3, 4, 6, 3))


class _Residual(nn.Module):
    """A branch added to its input, which is projected where the shapes differ."""

    def __init__(self, branch: nn.Sequential, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x))


def _basic(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return chain(
        conv1=conv_norm(inputs, outputs, stride=stride, activation=nn.ReLU()),
        conv2=conv_norm(outputs, outputs),
    )


def _bottleneck(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    hidden = outputs // 4
    return chain(
        conv1=conv_norm(inputs, hidden, 1, activation=nn.ReLU()),
        conv2=conv_norm(hidden, hidden, stride=stride, activation=nn.ReLU()),
        conv3=conv_norm(hidden, outputs, 1),
    )


def _resnet(
    channels: int,
    size: Size,
    classes: int,
    width: float,
    *,
    block: Callable[[int, int, int], nn.Sequential],
    expansion: int,
    depths: Sequence[int],
) -> nn.Sequential:
    at_least(size, 8)
    inputs = scaled(64, width)
    layers: dict[str, nn.Module] = {"stem": conv_norm(channels, inputs, activation=nn.ReLU())}
    for i, depth in enumerate(depths):
        outputs = scaled(64 * 2**i, width) * expansion
        stage = nn.Sequential()
        for j in range(depth):
            stride = 2 if i > 0 and j == 0 else 1
            same = stride == 1 and inputs == outputs
            shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride=stride)
            stage.append(_Residual(block(inputs, outputs, stride), shortcut))
            inputs = outputs
        layers[f"layer{i + 1}"] = stage
    return chain(**layers, **pooled_head(inputs, classes))
