"""Shifts: what clients see of the same samples, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mutua
from mutua import InputError, Samples
from mutua.data.partitions import IID
from mutua.data.shifts import Shift
from mutua.data.splits import Split, split_and_deal

GIVEN: dict[str, Any] = {"val": 0.2, "test": 0.3}


def images(n: int = 400) -> Samples:
    rng = np.random.default_rng(0)
    return Samples.of(rng.integers(0, 255, (n, 6, 6), np.uint8), np.arange(n) % 4, classes=list("abcd"))


def dealt(**shift: Any) -> list[Any]:
    return split_and_deal(images(), None, IID(clients=5, shift=Shift(**shift)), Split(**GIVEN), seed=3).clients


def test_a_shift_of_nothing_changes_nothing() -> None:
    plain = split_and_deal(images(), None, IID(clients=5), Split(**GIVEN), seed=3).clients
    for one, other in zip(dealt(), plain, strict=True):
        for split in ("train", "val", "test"):
            assert torch.equal(getattr(one, split).x, getattr(other, split).x)
            assert torch.equal(getattr(one, split).y, getattr(other, split).y)


def test_groups_of_clients_see_images_turned() -> None:
    for k, (turned, plain) in enumerate(zip(dealt(turns=4), dealt(), strict=True)):
        for split in ("train", "val", "test"):
            expected = torch.rot90(getattr(plain, split).x, -(k % 4), (-2, -1))
            assert torch.equal(getattr(turned, split).x, expected)


def test_groups_of_clients_have_labels_in_another_order() -> None:
    orders = []
    for k, (other, plain) in enumerate(zip(dealt(label_orders=3), dealt(), strict=True)):
        pairs = set[tuple[int, int]]()
        for split in ("train", "val", "test"):
            before, after = (getattr(one, split).y.tolist() for one in (plain, other))
            pairs |= set(zip(before, after, strict=True))
        assert len(pairs) == 4 and len({b for _, b in pairs}) == 4  # one to one, the same in all splits
        orders.append(pairs)
        assert (pairs == {(c, c) for c in range(4)}) is (k % 3 == 0)
    assert orders[0] == orders[3] and orders[1] == orders[4] and orders[1] != orders[2]


def test_labels_to_learn_from_are_noisy_and_those_to_judge_by_are_not() -> None:
    wrong = []
    for noisy, plain in zip(dealt(label_noise=0.9), dealt(), strict=True):
        assert torch.equal(noisy.test.y, plain.test.y)
        wrong.append(float((noisy.train.y != plain.train.y).float().mean()))
    assert len(set(wrong)) > 1 and 0 < np.mean(wrong) < 0.9


def test_what_cannot_be_shifted(blobs: Callable[..., Samples]) -> None:
    with pytest.raises(InputError, match=r"shift.turns: 4, but a sample has shape .*; only images can be turned"):
        split_and_deal(blobs(40), None, IID(clients=2, shift=Shift(turns=4)), Split(), seed=0)
    values = Samples.of(np.ones((20, 3)), np.arange(20.0), kind="regression")
    with pytest.raises(InputError, match="labels of regression have no order"):
        split_and_deal(values, None, IID(clients=2, shift=Shift(label_noise=0.1)), Split(), seed=0)


def test_a_recipe_has_it(tiny: dict[str, Any]) -> None:
    tiny["partition"]["shift"] = {"label_orders": 2}
    federation = mutua.Recipe.of(tiny).federation()
    assert federation.test is not None
    assert len(federation.test) == sum(len(client.test) for client in federation.clients)
