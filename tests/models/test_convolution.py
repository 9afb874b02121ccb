"""A wide convolution's own way to its weights' gradient, against sums written out and torch's layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from mutua.models import convolution
from mutua.models.convolution import Convolution

SHAPES = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (1, 5), "stride": (2, 3), "padding": (0, 2), "bias": False},
    {"kernel_size": 4},
]


def layer(inputs: int = 64, outputs: int = 72, **settings: Any) -> Convolution:
    torch.manual_seed(1)
    return Convolution(inputs, outputs, **settings).double().to(memory_format=torch.channels_last)


def images(number: int = 5, channels: int = 64) -> Tensor:
    drawn = torch.randn(number, channels, 9, 12, generator=torch.Generator().manual_seed(2), dtype=torch.double)
    return drawn.contiguous(memory_format=torch.channels_last)


def own_way(y: Tensor) -> bool:
    return type(y.grad_fn).__name__ == "_ConvolveBackward"


def by_hand(x: Tensor, gradient: Tensor, like: Convolution) -> np.ndarray:
    """dL/dW[o, i, a, b]: the sum over images and places of gradient[o] times the input that W[o, i, a, b] met."""
    (down, right), (top, left) = like.stride, like.padding
    assert not isinstance(like.padding, str)
    padded = np.pad(x.detach().numpy(), ((0, 0), (0, 0), (int(top), int(top)), (int(left), int(left))))
    g, total = gradient.numpy(), np.zeros(tuple(like.weight.shape))
    for a, b in np.ndindex(*like.kernel_size):
        for y, z in np.ndindex(*g.shape[2:]):
            total[:, :, a, b] += g[:, :, y, z].T @ padded[:, :, y * down + a, z * right + b]
    return total


@pytest.mark.parametrize("patches", [1, 2**20], ids=["image by image", "all at once"])
@pytest.mark.parametrize("settings", SHAPES, ids=str)
def test_gradients_are_the_sums_written_out(
    settings: dict[str, Any], patches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "PATCHES", patches)
    ours, x = layer(**settings), images().requires_grad_()
    theirs, same = nn.Conv2d(64, 72, **settings).double(), images().requires_grad_()
    theirs.load_state_dict(ours.state_dict())
    y, expected = ours(x), theirs(same)
    assert own_way(y)
    torch.testing.assert_close(y, expected)
    gradient = torch.randn(y.shape, dtype=torch.double)
    y.backward(gradient)
    expected.backward(gradient)
    assert ours.weight.grad is not None
    np.testing.assert_allclose(ours.weight.grad.numpy(), by_hand(x, gradient, ours), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(x.grad, same.grad)
    torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()])
    assert ours.weight.grad.stride() == ours.weight.stride(), "else the optimizer would lay it out anew"


def test_each_examples_gradient_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As differential privacy asks for them."""
    asked: list[torch.Size] = []
    found_by = convolution._by_patches
    monkeypatch.setattr(convolution, "_by_patches", lambda g, *rest: asked.append(g.shape) or found_by(g, *rest))
    ours, x = layer(kernel_size=3, padding=1), images()
    parameters = {name: p.detach() for name, p in ours.named_parameters()}

    def loss(parameters: dict[str, Tensor], one: Tensor) -> Tensor:
        y = functional_call(ours, parameters, (one[None],))
        return y.square().sum()

    found = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    assert len(asked) == 1
    for i, one in enumerate(x):
        ours.zero_grad()
        ours(one[None]).square().sum().backward()
        expected = {name: p.grad for name, p in ours.named_parameters()}
        torch.testing.assert_close({name: gradients[i] for name, gradients in found.items()}, expected)


def test_frozen_weights_pass_the_gradient_on() -> None:
    ours, x = layer(kernel_size=3).requires_grad_(False), images().requires_grad_()
    y = ours(x)
    assert own_way(y)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    assert ours.weight.grad is None


def test_no_images_no_gradient() -> None:
    ours = layer(kernel_size=3)
    y = ours(images(0))
    assert own_way(y)
    y.sum().backward()
    assert ours.weight.grad is not None
    assert not ours.weight.grad.any()


@pytest.mark.parametrize(
    "settings",
    [
        {"inputs": 63},
        {"outputs": 63},
        {"kernel_size": 1},
        {"inputs": 128, "outputs": 128, "groups": 2},
        {"dilation": 2},
        {"padding": "same"},
        {"padding": 1, "padding_mode": "reflect"},
    ],
    ids=str,
)
def test_where_it_gains_nothing_it_is_torchs(settings: dict[str, Any]) -> None:
    given = {"inputs": 64, "outputs": 64, "kernel_size": 3, **settings}
    ours, x = layer(**given), images(channels=given["inputs"])
    y = ours(x)
    assert not own_way(y)
    theirs = nn.Conv2d(given.pop("inputs"), given.pop("outputs"), **given).double()
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(y, theirs(x))


def test_channels_first_evaluation_one_image_and_half_precision_are_torchs() -> None:
    ours, x = layer(kernel_size=3), images()
    with torch.no_grad():
        assert ours(x).grad_fn is None
    assert not own_way(ours(x[0]))
    torch.testing.assert_close(ours(x[0]), ours(x)[0])
    assert not own_way(ours.to(memory_format=torch.contiguous_format)(x))
    ours, x = layer(kernel_size=3).float(), images().float()
    assert own_way(ours(x))
    with torch.autocast("cpu", torch.bfloat16):
        y = ours(x)
    assert not own_way(y)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert ours.weight.grad is not None
