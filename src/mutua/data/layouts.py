"""Where images have their channels, and inputs with the channels that are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from torch import Tensor

from mutua.data.mapped_rows import MappedRows, transformed
from mutua.errors import InputError

Layout = Literal["channels-first", "channels-last"]


def layout_of(shape: Sequence[int]) -> Layout | None:
    """Where (N, a, b, c) has its channels: there are 1, 3 or 4, or images are square. None if both could be."""
    _, a, b, c = shape
    first, last = ((n in (1, 3, 4), square) for n, square in ((a, b == c), (c, a == b)))
    if first > last or (a, b, c) == (1, 1, 1):
        return "channels-first"
    return "channels-last" if last > first and last[0] and not first[1] else None


def fitting(shape: Sequence[int], wanted: Sequence[int]) -> dict[str, Any]:
    """How x of this shape is to be read for a model whose inputs are `wanted`, (C, H, W): layout and channels."""
    if len(wanted) != 3 or len(shape) not in (3, 4):
        return {}
    channels, *sides = wanted
    found: dict[str, Any] = {"channels": 3} if channels == 3 else {}
    allowed = {channels, 1} if found else {channels}
    if len(shape) == 4:
        layouts = {"channels-first": (shape[1], shape[2:]), "channels-last": (shape[3], shape[1:3])}
        fit = [name for name, (n, rest) in layouts.items() if n in allowed and list(rest) == sides]
        if not fit:
            return {}  # the error comes when shapes are compared
        found["layout"] = fit[0]
    return found


def channels_first(x: Tensor | MappedRows, layout: Layout | None, name: str) -> Tensor | MappedRows:
    """Images as (N, C, H, W); other samples as they are."""
    if layout is not None and (x.dim() != 4 or layout not in get_args(Layout)):
        ways = " or ".join(get_args(Layout))
        raise InputError(f"{name}.layout: '{layout}' for x of {tuple(x.shape)}; it is {ways}, of four dimensions")
    if x.dim() != 4:
        return transformed(x, _one_channel) if x.dim() == 3 else x
    layout = layout or layout_of(x.shape)
    if layout is None:
        raise InputError(
            f"{name}.x: shape {tuple(x.shape)}: which of them are the channels cannot be told; "
            "give layout: channels-last or channels-first"
        )
    return transformed(x, _last_to_first) if layout == "channels-last" else x


def with_channels(x: Tensor | MappedRows, channels: int | None, name: str) -> Tensor | MappedRows:
    """Grey images as RGB if asked for, such as a grey site among coloured ones."""
    if channels is None or (x.dim() == 4 and x.shape[1] == channels):
        return x
    if x.dim() != 4 or channels != 3 or x.shape[1] != 1:
        held = f"images of {x.shape[1]} channels" if x.dim() == 4 else "plain features"
        raise InputError(f"{name}.channels: {channels} for {held}; only grey images can be changed, to 3 channels")
    return transformed(x, _grey_to_rgb)


def _one_channel(x: Tensor) -> Tensor:
    return x[:, None]


def _last_to_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def _grey_to_rgb(x: Tensor) -> Tensor:
    return x.expand(-1, 3, -1, -1)
