"""Arrays as products of thin ones: the few singular values that hold most of a matrix's energy."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mutua.support.tensor_files import Tensors

LEFT, RIGHT = ".left", ".right"
"""After an array's name: its factors."""


def factors(array: Tensor, energy: float) -> tuple[Tensor, Tensor] | None:
    """U·Σ and V of the fewest singular values whose squares are this share of all; None where that is not smaller.

    An array of more dimensions is a matrix with as many rows as the array is long, such as output channels.
    """
    if array.dim() < 2 or not array.is_floating_point() or not bool(array.isfinite().all()):
        return None
    matrix = array.reshape(len(array), -1)
    u, values, v = torch.linalg.svd(matrix, full_matrices=False)
    held = values.square().cumsum(0)
    rank = min(len(values), 1 + int((held < energy * held[-1]).sum()))
    if rank * sum(matrix.shape) >= matrix.numel():
        return None
    return u[:, :rank] * values[:rank], v[:rank].contiguous()


def thinned(arrays: Tensors, before: Tensors, energy: float) -> tuple[Tensors, Tensors]:
    """The arrays that stay whole, and of the others the factors of what has changed since `before`."""
    found = {name: factors(array - before[name], energy) for name, array in arrays.items()} if energy < 1 else {}
    thin = {name: both for name, both in found.items() if both is not None}
    whole = {name: array for name, array in arrays.items() if name not in thin}
    named = {
        name + side: part for name, both in thin.items() for side, part in zip((LEFT, RIGHT), both, strict=True)
    }
    return whole, named


def restored(whole: Tensors, thin: Mapping[str, Tensor], before: Tensors) -> Tensors:
    """All arrays again: those that stayed whole, and `before` plus the products of factors."""
    names = [key.removesuffix(LEFT) for key in thin if key.endswith(LEFT)]
    changed = {n: before[n] + (thin[n + LEFT] @ thin[n + RIGHT]).view_as(before[n]) for n in names}
    return {**whole, **changed}
