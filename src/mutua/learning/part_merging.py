"""Merging what is not whole: each number of a wide model by those clients that held it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from mutua.learning.merging import Combiner
from mutua.models.narrow import Positions, filled, grid
from mutua.support.tensor_files import Tensors

MOST_KINDS = 60
"""How many different parts there may be: each is a bit of a whole number."""


class HeldPart(NamedTuple):
    """What one client sends of a wide model, where it is in it, and how much it counts."""

    arrays: Tensors
    where: Positions
    weight: float


def merge_parts(combine: Combiner, parts: Sequence[HeldPart], before: Tensors) -> Tensors:
    """All numbers that the same clients held are combined of what these sent; what nobody held stays."""
    wide = [filled(before, part.where, part.arrays) for part in parts]
    kinds = list({id(part.where): part.where for part in parts}.values())
    bits = {id(where): 2**i for i, where in enumerate(kinds)}
    holders = {name: torch.zeros(array.shape, dtype=torch.long) for name, array in before.items()}
    for where in kinds:
        for name, along in where.items():
            holders[name][grid(along)] += bits[id(where)]
    merged = {name: array.clone() for name, array in before.items()}
    for which in sorted({int(code) for codes in holders.values() for code in codes.unique()} - {0}):
        within = {name: codes == which for name, codes in holders.items() if bool((codes == which).any())}
        mine = [i for i, part in enumerate(parts) if bits[id(part.where)] & which]
        sent = [{name: wide[i][name][here] for name, here in within.items()} for i in mine]
        known = {name: before[name][here] for name, here in within.items()}
        found = combine(sent, [parts[i].weight for i in mine], known)
        for name, here in within.items():
            merged[name][here] = found[name]
    return merged
