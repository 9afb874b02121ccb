"""Precision: fewer digits inside the models, all of them everywhere else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import mutua
from mutua.learning.precision import computing_in


class Watched(nn.Linear):
    """Notes the type that it computes in."""

    inside = torch.float64

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.inside = y.dtype
        if x.isnan().any():
            raise ValueError("NaN")
        return y


def test_bfloat16_is_inside_the_model_and_nowhere_else() -> None:
    torch.manual_seed(0)
    model, x = Watched(8, 3), torch.randn(5, 8)
    exact = model(x)
    with computing_in("bfloat16", {"m": model}):
        y = model(x)
        assert (model.inside, y.dtype) == (torch.bfloat16, torch.float32)
        y.sum().backward()
        with pytest.raises(ValueError, match="NaN"):
            model(x * float("nan"))
        assert (x @ x.T).dtype == torch.float32  # a failed forward does not leave the casting on
    assert model.weight.grad is not None and model.weight.grad.dtype == torch.float32
    rounded = x.bfloat16().float() @ model.weight.bfloat16().float().T + model.bias
    assert not torch.equal(y, exact)
    torch.testing.assert_close(y, rounded, rtol=0.02, atol=0.02)
    assert model(x).dtype == torch.float32 and model.inside == torch.float32


def test_tf32_is_a_setting_that_is_taken_back() -> None:
    before = torch.get_float32_matmul_precision()
    with computing_in("tf32", {}):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
    with computing_in("float32", {}):
        assert torch.get_float32_matmul_precision() == before


def test_a_run_in_bfloat16_learns_nearly_the_same() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(120, 6, generator=generator)
    fed = mutua.Federation.from_arrays(
        x, (x[:, 0] > 0).long(), partition=mutua.partitions.IID(clients=2), models="mlp", global_model="mlp"
    )
    settings = {"rounds": 2, "epochs": 2, "batch_size": 16, "device": "cpu", "workers": 1}
    exact, short = (mutua.run(mutua.methods.FML(), fed, precision=p, **settings) for p in ("float32", "bfloat16"))
    assert exact.global_state is not None and short.global_state is not None
    for name, array in exact.global_state.items():
        assert short.global_state[name].dtype == torch.float32
        torch.testing.assert_close(short.global_state[name], array, rtol=0.1, atol=0.02)
    assert any(not torch.equal(short.global_state[n], a) for n, a in exact.global_state.items())
