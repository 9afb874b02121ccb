"""Samples pass through a model in parts, which are the same whoever scores them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mutua import Samples
from mutua.data.mapped_rows import MappedRows
from mutua.learning.evaluation import BATCH, evaluation_batch, evaluation_batches, number_of_batches


@pytest.mark.parametrize("n", [0, 1, BATCH - 1, BATCH, BATCH + 1, 2 * BATCH + 7])
@pytest.mark.parametrize("mapped", [False, True])
def test_parts_are_those_that_torch_cuts(n: int, mapped: bool, tmp_path: object) -> None:
    x, y = torch.rand(n, 3), torch.randint(0, 2, (n,))
    if mapped and n:
        np.save(f"{tmp_path}/x.npy", x.numpy())
        held = MappedRows.of_memmap(np.load(f"{tmp_path}/x.npy", mmap_mode="r"))
        assert held is not None
        samples = Samples(held, y, ("a", "b"))
    else:
        samples = Samples(x, y, ("a", "b"))
    expected = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    parts = evaluation_batches(samples)
    assert number_of_batches(samples) == len(parts) == len(expected)
    for k, (inputs, labels) in enumerate(expected):
        for part in (parts[k], evaluation_batch(samples, k)):
            assert torch.equal(part.inputs, inputs) and torch.equal(part.y, labels)
