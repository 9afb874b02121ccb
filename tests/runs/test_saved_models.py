"""Models in files: the weights are what safetensors itself writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from mutua import RunError
from mutua.runs.saved_models import put_weights
from mutua.support.files import atomic_files


def test_weights_are_written_as_safetensors_writes_them_also_where_they_share_memory(tmp_path: Path) -> None:
    head = torch.randn(3, 2, requires_grad=True)
    groups = {"personal": {"w": head, "tied": head, "turned": head.T}, "none": {}}
    with atomic_files() as files:
        put_weights(files, tmp_path, groups)
    for name, arrays in groups.items():
        apart = {key: array.detach().contiguous().clone() for key, array in arrays.items()}
        assert (tmp_path / f"{name}.safetensors").read_bytes() == save(apart)


def test_a_type_that_safetensors_does_not_have_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(RunError, match=r"^'w' cannot be saved: safetensors has no torch\.complex128"),
        atomic_files() as files,
    ):
        put_weights(files, tmp_path, {"personal": {"w": torch.ones(1, dtype=torch.complex128)}})
    assert list(tmp_path.iterdir()) == []
