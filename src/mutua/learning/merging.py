"""Merging: one model out of many of the same shape."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mutua.errors import Refused
from mutua.message import Tensors


def mean(states: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    """Weighted mean of floating parameters *and* buffers; whole-number buffers are the first state's.

    Running statistics of batch-norm are part of a model: leaving them out would merge half of it.
    """
    total = sum(weights)
    merged: Tensors = {}
    for name, first in states[0].items():
        if first.dtype.is_floating_point:
            merged[name] = torch.zeros_like(first)
            for state, weight in zip(states, weights, strict=True):
                merged[name].add_(state[name], alpha=weight / total)
        else:
            merged[name] = first.clone()
    return merged


def fits(arrays: Tensors, shared: Tensors) -> None:
    """Refuse weights that are not the shared model's in name, shape, type or are not finite."""
    for name in [*(shared.keys() - arrays.keys()), *(arrays.keys() - shared.keys())]:
        what = "is missing" if name in shared else "is not the global's"
        raise Refused(f"weights '{name}' {what}")
    for name, expected in shared.items():
        found = arrays[name]
        if found.shape != expected.shape or found.dtype != expected.dtype:
            raise Refused(
                f"weights '{name}' are {found.dtype} {tuple(found.shape)}, "
                f"the global's {expected.dtype} {tuple(expected.shape)}"
            )
        if not bool(torch.isfinite(found).all()):
            raise Refused(f"weights '{name}' hold NaN or infinity")
