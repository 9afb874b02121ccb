"""The small networks of the papers."""

from __future__ import annotations

from torch import nn

from mutua.models.parts import IMAGES, NUMERIC_INPUTS, ConvPool, Dense, Size, at_least, chain, scaled, sides
from mutua.models.registry import register_model


@register_model("linear", takes=NUMERIC_INPUTS)
def linear(channels: int, size: Size, classes: int) -> nn.Sequential:
    """One linear layer, so logistic regression; takes images, features or a table."""
    height, breadth = sides(size)
    return chain(flatten=nn.Flatten(), head=nn.Linear(channels * height * breadth, classes))


@register_model("mlp", takes=NUMERIC_INPUTS)
def mlp(channels: int, size: Size, classes: int, width: float = 1.0) -> nn.Sequential:
    """Two hidden layers of 200; takes images, features or a table."""
    height, breadth = sides(size)
    hidden = scaled(200, width)
    return chain(
        flatten=nn.Flatten(),
        fc1=Dense(channels * height * breadth, hidden),
        fc2=Dense(hidden, hidden),
        head=nn.Linear(hidden, classes),
    )


@register_model("lenet5", takes=IMAGES)
def lenet5(channels: int, size: Size, classes: int, width: float = 1.0) -> nn.Sequential:
    """LeNet5: 5×5 convolutions 6 and 16, layers of 120 and 84; 61,706 parameters at 28×28×1."""
    return _convolutional(channels, size, classes, width, convs=[(6, 5, 2), (16, 5, 0)], dense=[120, 84])


@register_model("cnn1", takes=IMAGES)
def cnn1(channels: int, size: Size, classes: int, width: float = 1.0) -> nn.Sequential:
    """FML's CNN1: 3×3 convolutions 6 and 16, a layer of 120."""
    return _convolutional(channels, size, classes, width, convs=[(6, 3, 1), (16, 3, 1)], dense=[120])


@register_model("cnn2", takes=IMAGES)
def cnn2(channels: int, size: Size, classes: int, width: float = 1.0) -> nn.Sequential:
    """FML's CNN2: three 3×3 convolutions of 128 straight to the head."""
    return _convolutional(channels, size, classes, width, convs=[(128, 3, 1)] * 3, dense=[])


@register_model("cnn-5x5", takes=IMAGES)
def cnn_5x5(channels: int, size: Size, classes: int, width: float = 1.0) -> nn.Sequential:
    """The mixture of experts' CNN: 5×5 convolutions 32 and 64, a layer of 512."""
    return _convolutional(channels, size, classes, width, convs=[(32, 5, 0), (64, 5, 0)], dense=[512])


@register_model("fmlu-cnn", takes=IMAGES)
def fmlu_cnn(channels: int, size: Size, classes: int, width: float = 1.0) -> nn.Sequential:
    """FMLU's CNN: 3×3 convolutions 32 and 64, a layer of 128."""
    return _convolutional(channels, size, classes, width, convs=[(32, 3, 0), (64, 3, 0)], dense=[128])


def _convolutional(
    channels: int,
    size: Size,
    classes: int,
    width: float,
    *,
    convs: list[tuple[int, int, int]],
    dense: list[int],
) -> nn.Sequential:
    """Pooled convolutions (outputs, kernel, padding), then dense layers, then the head."""
    least = 1
    for _, kernel, padding in reversed(convs):
        least = 2 * least + kernel - 1 - 2 * padding
    height, breadth = at_least(size, least)

    layers: dict[str, nn.Module] = {}
    inputs = channels
    for i, (outputs, kernel, padding) in enumerate(convs, 1):
        layers[f"conv{i}"] = ConvPool(inputs, scaled(outputs, width), kernel, padding=padding)
        inputs = scaled(outputs, width)
        height, breadth = ((side + 2 * padding - kernel + 1) // 2 for side in (height, breadth))
    layers["flatten"] = nn.Flatten()
    inputs *= height * breadth
    for i, outputs in enumerate(dense, 1):
        layers[f"fc{i}"] = Dense(inputs, scaled(outputs, width))
        inputs = scaled(outputs, width)
    return chain(**layers, head=nn.Linear(inputs, classes))
