"""Transforms of stored images (N, channels, height, width), before preprocessing: turns, augmentation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from mutua.errors import InputError, suggest

Augment = Literal["crop", "flip"]
PADDING = 4


def rotate(x: Tensor, degrees: float) -> Tensor:
    """The images turned clockwise about their centre: bilinear, zeros from outside, same size and type."""
    turns, rest = divmod(degrees % 360, 90)
    height, width = x.shape[-2:]
    if rest == 0 and (turns % 2 == 0 or height == width):
        return torch.rot90(x, -int(turns), (-2, -1)) if turns else x
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    values = x if x.is_floating_point() else x.float()
    # Where each output pixel comes from, in coordinates that run from -1 to 1 along both sides.
    source = [[cos, sin * height / width, 0.0], [-sin * width / height, cos, 0.0]]
    grid = F.affine_grid(values.new_tensor([source]), [1, 1, height, width], align_corners=False)
    turned = F.grid_sample(values.flatten(0, 1)[None], grid, align_corners=False).reshape(x.shape)
    return turned if x.is_floating_point() else turned.round().to(x.dtype)


def augment(x: Tensor, names: Sequence[Augment], generator: torch.Generator) -> Tensor:
    """The batch with each image randomly changed by these, in this order, with random numbers of the generator."""
    steps = {"crop": _crop, "flip": _flip}
    for name in names:
        if name not in steps:
            raise InputError(f"augment: '{name}' is unknown; {suggest(str(name), list(get_args(Augment)))}")
        if x.dim() != 4:
            raise InputError(f"augment: '{name}' needs images, but a sample has shape {tuple(x.shape[1:])}")
        x = steps[name](x, generator)
    return x


def _crop(x: Tensor, generator: torch.Generator) -> Tensor:
    """A random window of the zero-padded image, of the image's own size."""
    count, channels, height, width = x.shape
    top, left = torch.randint(2 * PADDING + 1, (2, count, 1), generator=generator).to(x.device)
    rows, columns = (top + torch.arange(height, device=x.device), left + torch.arange(width, device=x.device))
    padded = F.pad(x, (PADDING,) * 4)
    image = torch.arange(count, device=x.device)[:, None, None, None]
    channel = torch.arange(channels, device=x.device)[:, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Left and right swapped in each image with probability 1/2."""
    chosen = torch.rand(len(x), generator=generator).to(x.device) < 0.5
    return torch.where(chosen[:, None, None, None], x.flip(-1), x)
