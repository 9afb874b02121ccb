"""Checks of a reply that several methods make before they merge it. Each raises `Refused` with the reason."""

from __future__ import annotations

import torch
from torch import Tensor

from mutua.errors import Refused
from mutua.federation.message import Kind, Message


def check_number(reply: Message, name: str, what: str, low: float, high: float) -> float:
    """The number in the part of this name, which must be there and lie in [low, high]."""
    if name not in reply:
        raise Refused(f"its {what} is missing")
    found = reply.number(name)
    if not low <= found <= high:
        raise Refused(f"its {what} {found} is outside [{low:g}, {high:.4g}]")
    return found


def check_rows(reply: Message, name: str, kind: Kind, classes: int, samples: int, where: str) -> Tensor:
    """Scores or probabilities: finite rows of one number per class, one row for each sample of `where`."""
    if name not in reply or list(reply.arrays(name)) != [""]:
        raise Refused(f"it holds no {kind} '{name}'")
    rows, usual = reply.arrays(name)[""], torch.get_default_dtype()
    if rows.dtype != usual:
        raise Refused(f"its {kind} are {rows.dtype}, not {usual}")
    if rows.dim() != 2 or rows.shape[1] != classes or not bool(torch.isfinite(rows).all()):
        raise Refused(f"its {kind} are not finite rows of {classes}")
    if kind is Kind.PROBABILITIES and (bool((rows < 0).any()) or bool(((rows.sum(1) - 1).abs() >= 1e-3).any())):
        raise Refused("its probabilities must be at least 0, and their rows sum to 1")
    if len(rows) != samples:
        raise Refused(f"its {kind} are of {len(rows)} samples; {where} has {samples}")
    return rows
