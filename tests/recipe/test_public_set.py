"""Public sets, in a recipe and in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mutua
from conftest import X, Y, federation, quick
from mutua import Federation, InputError, Recipe
from mutua.methods import FedMD


def test_a_public_share_is_what_a_recipe_makes_of_it(tiny: dict[str, Any]) -> None:
    recipe = Recipe.of({**tiny, "public": {"share": 0.2}, "seed": 3})
    own = Federation.from_samples(
        mutua.load("mnist5k").train,
        partition=mutua.partitions.IID(clients=2),
        models=tiny["models"]["global"],
        samples_per_client=20,
        seed=3,
        public=0.2,
    )
    told = recipe.federation()
    assert own.public is not None and told.public is not None
    for client in ("c0", "c1"):
        assert torch.equal(own.public.parts[client].x, told.public.parts[client].x)
        assert torch.equal(own[client].train.x, told[client].train.x)


def test_a_public_set_of_arrays_samples_or_a_dataset_is_owned_in_turn() -> None:
    many = [federation(public=given).public for given in ((X[:9], Y[:9]), X[:9], mutua.Samples.of(X[:9], Y[:9]))]
    assert [len(public) for public in many if public] == [9, 9, 9]
    assert [public.labelled for public in many if public] == [True, False, True]
    assert quick(FedMD(), federation(public=(X[:9], Y[:9]))).ledger.bytes("up") > 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (1.5, r"public: 1\.5; give a share"),
        ((X[:2], Y[:2]), "public: 2 samples for 3 clients"),
        ((X[:9, :2], Y[:9]), r"public: c0's part has inputs \(2,\)"),
        ("0.1", "public"),
    ],
)
def test_impossible_public_sets(given: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        federation(public=given)
    with pytest.raises(InputError, match="public and opted_out are both given"):
        federation(public=0.2, opted_out=np.arange(60) < 3, classes=["a", "b", "c"])
