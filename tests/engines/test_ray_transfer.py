"""Objects cross to Ray's workers without their arrays, which arrive with the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mutua.engines.ray_transfer import ArrayBundle, bundled, flattened, unbundled, unflattened
from mutua.support.tensor_files import ALIGNMENT

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'mutua[ray]')")

ARRAYS = [
    torch.arange(6, dtype=torch.int64).reshape(2, 3),
    torch.tensor([True, False, True]),
    torch.tensor(0.5),
    torch.tensor([1.0, -2.0], dtype=torch.bfloat16),
    torch.zeros(0, dtype=torch.int64),
    torch.from_numpy(np.zeros((0, 1, 28, 28), np.uint8)),
    torch.randn(40_000, dtype=torch.float64),
    torch.randn(30, 50).T,
    torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    torch.randint(256, (70_001,), dtype=torch.uint8),
]


def as_in_the_object_store(bundle: ArrayBundle) -> ArrayBundle:
    """Where arrays cannot be written to, and begin where they may."""
    for array in (bundle.small, *bundle.large):
        array.flags.writeable = False
    return bundle


@pytest.mark.parametrize("copy", [True, False])
def test_arrays_arrive_with_the_same_bytes(copy: bool) -> None:
    found = unbundled(as_in_the_object_store(bundled(ARRAYS)), copy=copy)
    assert [(a.dtype, a.shape) for a in found] == [(a.dtype, a.shape) for a in ARRAYS]
    assert all(map(torch.equal, found, ARRAYS))
    assert all(array.data_ptr() % ALIGNMENT == 0 for array in found if array.numel())


def test_what_is_copied_may_be_written_to_and_belongs_to_nobody_else() -> None:
    bundle = as_in_the_object_store(bundled(ARRAYS))
    for array in unbundled(bundle, copy=True):
        array.zero_()
    assert all(map(torch.equal, unbundled(bundle, copy=False), ARRAYS))


def test_a_bundle_knows_its_length() -> None:
    held = sum(array.nbytes for array in ARRAYS)
    assert held <= bundled(ARRAYS).nbytes < held + ALIGNMENT * len(ARRAYS)


def test_an_object_keeps_its_arrays_apart_and_one_array_one() -> None:
    large, parameter = ARRAYS[-1], torch.nn.Parameter(torch.ones(2))
    content, arrays = flattened({"twice": (large, large), "text": "x", "parameter": parameter})
    assert arrays[0] is large and [array.numel() for array in arrays[1:]] == [2]
    assert len(content) < 2_000
    back = unflattened(content, arrays)
    assert back["twice"][0] is back["twice"][1] is large and back["text"] == "x"
    assert isinstance(back["parameter"], torch.nn.Parameter) and torch.equal(back["parameter"], torch.ones(2))
