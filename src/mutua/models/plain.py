"""AlexNet and VGG for small images: plain stacks of convolutions, averaged before a single linear head."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from mutua.models.convolution import Convolution
from mutua.models.parts import IMAGES, Size, at_least, chain, conv_norm, pooled_head, scaled
from mutua.models.registry import register_model


def _halve() -> nn.MaxPool2d:
    """A 2×2 max-pool that rounds up, so that five of them leave a pixel of a 28-pixel image."""
    return nn.MaxPool2d(2, ceil_mode=True)


@register_model("alexnet", takes=IMAGES)
def alexnet(channels: int, size: Size, classes: int, width: float = 1.0) -> nn.Sequential:
    """AlexNet's five convolutions with one linear head; 2.5 million parameters."""
    at_least(size, 8)
    c1, c2, c3, c4, c5 = (scaled(units, width) for units in (64, 192, 384, 256, 256))
    return chain(
        conv1=Convolution(channels, c1, 11, stride=4, padding=5),
        pool1=_halve(),
        relu1=nn.ReLU(),
        conv2=Convolution(c1, c2, 5, padding=2),
        pool2=_halve(),
        relu2=nn.ReLU(),
        conv3=Convolution(c2, c3, 3, padding=1),
        relu3=nn.ReLU(),
        conv4=Convolution(c3, c4, 3, padding=1),
        relu4=nn.ReLU(),
        conv5=Convolution(c4, c5, 3, padding=1),
        pool5=_halve(),
        relu5=nn.ReLU(),
        **pooled_head(c5, classes),
    )


@register_model("vgg11", takes=IMAGES)
def vgg11(channels: int, size: Size, classes: int, width: float = 1.0) -> nn.Sequential:
    """VGG11 with batch-norm and one linear head; 9.2 million parameters."""
    return _vgg(channels, size, classes, width, depths=(1, 1, 2, 2, 2))


@register_model("vgg19", takes=IMAGES)
def vgg19(channels: int, size: Size, classes: int, width: float = 1.0) -> nn.Sequential:
    """VGG19 with batch-norm and one linear head; 20.0 million parameters."""
    return _vgg(channels, size, classes, width, depths=(2, 2, 4, 4, 4))


def _vgg(channels: int, size: Size, classes: int, width: float, *, depths: Sequence[int]) -> nn.Sequential:
    at_least(size, 8)
    layers: dict[str, nn.Module] = {}
    inputs = channels
    for i, depth in enumerate(depths):
        outputs = scaled(min(64 * 2**i, 512), width)
        stage = nn.Sequential()
        for _ in range(depth):
            stage.append(conv_norm(inputs, outputs, activation=nn.ReLU()))
            inputs = outputs
        layers[f"stage{i + 1}"] = stage.append(_halve())
    return chain(**layers, **pooled_head(inputs, classes))
