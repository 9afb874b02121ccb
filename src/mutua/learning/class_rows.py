"""One row of numbers for each class: what clients say of their classes, matched by name and not by position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mutua.support.tensor_files import Tensors


def class_means(rows: Tensor, y: Tensor, classes: Sequence[str]) -> Tensors:
    """By name, for each class that there is a sample of, the mean of its samples' rows."""
    return {classes[c]: rows[y == c].mean(0) for c in y.unique().tolist()}


def class_sums(rows: Tensor, y: Tensor, classes: Sequence[str]) -> Tensors:
    """The same with sums."""
    return {classes[c]: rows[y == c].sum(0) for c in y.unique().tolist()}


def rows_by_class(sent: Tensors, classes: Sequence[str], width: int = 1) -> tuple[Tensor, Tensor]:
    """The rows that were sent, in the order of these classes, and which there are; zeros where there is none."""
    nothing = torch.zeros_like(next(iter(sent.values()))) if sent else torch.zeros(width)
    rows = torch.stack([sent.get(name, nothing) for name in classes])
    return rows, torch.tensor([name in sent for name in classes])
