"""Merging by hand, and what may not be merged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from mutua import Refused
from mutua.learning.merging import check_weights, mean


def test_weighted_mean_by_hand() -> None:
    states = [{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, -2.0])}, {"w": torch.tensor([0.0, 10.0])}]
    assert mean(states, [2, 1, 1])["w"].tolist() == [1.25, 3.0]
    assert mean(states, [1, 1, 0])["w"].tolist() == [2.0, 0.0]
    assert mean(states, [1.0, 1.0, 1.0])["w"].numpy() == pytest.approx([4 / 3, 10 / 3])


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=12))
def test_weights_are_shares_of_their_sum(counts: list[int]) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(len(counts), 5))
    merged = mean([{"w": torch.tensor(v)} for v in values], counts)["w"].numpy()
    assert merged == pytest.approx(np.average(values, axis=0, weights=counts), abs=1e-12)
    alike = mean([{"w": torch.tensor(v)} for v in values], [0.1 * c for c in counts])["w"].numpy()
    assert alike == pytest.approx(merged, abs=1e-12)


def test_one_state_is_its_own_mean_to_the_bit() -> None:
    state = {"w": torch.randn(4), "n": torch.tensor(3)}
    merged = mean([state], [17.0])
    assert torch.equal(merged["w"], state["w"])
    assert merged["w"].data_ptr() != state["w"].data_ptr()


def test_nothing_given_is_changed_or_shared() -> None:
    states = [{"w": torch.ones(2), "n": torch.tensor(1)}, {"w": torch.zeros(2), "n": torch.tensor(2)}]
    merged = mean(states, [1, 1])
    merged["w"].fill_(9)
    merged["n"].fill_(9)
    assert states[0]["w"].tolist() == [1, 1]
    assert [int(state["n"]) for state in states] == [1, 2]


def test_batch_norm_statistics_are_merged_and_its_counter_survives() -> None:
    """What public implementations of FML leave out, or fail at."""
    layers = [nn.BatchNorm1d(2) for _ in range(2)]
    for layer, batches in zip(layers, (3, 5), strict=True):
        for i in range(batches):
            layer(torch.tensor([[1.0, 2.0], [3.0, float(i + batches)]]))
    states = [dict(layer.state_dict()) for layer in layers]
    merged = mean(states, [3, 1])
    for name in ("running_mean", "running_var", "weight", "bias"):
        by_hand = 0.75 * states[0][name].numpy() + 0.25 * states[1][name].numpy()
        assert merged[name].numpy() == pytest.approx(by_hand, rel=1e-6)
    assert not torch.equal(merged["running_mean"], states[0]["running_mean"])
    assert merged["num_batches_tracked"].dtype == torch.int64
    assert int(merged["num_batches_tracked"]) == 3
    nn.BatchNorm1d(2).load_state_dict(merged)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_floating_type_is_merged_and_kept(dtype: torch.dtype) -> None:
    merged = mean([{"w": torch.full((2,), 1.0, dtype=dtype)}, {"w": torch.full((2,), 2.0, dtype=dtype)}], [1, 1])
    assert merged["w"].dtype == dtype
    assert merged["w"].tolist() == [1.5, 1.5]


def test_whole_numbers_and_truth_values_are_the_first_states() -> None:
    for first, second in ((torch.tensor([4]), torch.tensor([9])), (torch.tensor(True), torch.tensor(False))):
        merged = mean([{"n": first}, {"n": second}], [1, 99])
        assert torch.equal(merged["n"], first)
        assert merged["n"].dtype == first.dtype


SHARED = {"w": torch.zeros(2, 3), "b": torch.zeros(2), "n": torch.tensor(4)}


def test_the_shared_models_like_fits() -> None:
    check_weights({name: array + 1 for name, array in SHARED.items()}, SHARED)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"head.weight": torch.zeros(1)}, "'head.weight' is not the global's"),
        ({"w": None}, "'w' is missing"),
        ({"w": torch.zeros(3, 2)}, "'w' are torch.float32 (3, 2), the global's torch.float32 (2, 3)"),
        ({"w": torch.zeros(6)}, "'w'"),
        ({"w": torch.zeros(2, 3).double()}, "'w' are torch.float64"),
        ({"n": torch.tensor(4.0)}, "'n' are torch.float32"),
        ({"b": torch.tensor([0.0, float("nan")])}, "'b' hold NaN or infinity"),
        ({"b": torch.tensor([float("inf"), 0.0])}, "'b' hold NaN or infinity"),
        ({"b": torch.tensor([float("-inf"), 0.0])}, "'b' hold NaN or infinity"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    arrays: dict[str, Tensor] = {n: a for n, a in {**SHARED, **changes}.items() if a is not None}
    with pytest.raises(Refused) as refused:
        check_weights(arrays, SHARED)
    assert named in str(refused.value)
