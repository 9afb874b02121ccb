"""Clients are packed: each is made again with the same content, and thousands take little memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mutua import Architecture, Client, Federation, Samples
from mutua.data.mapped_rows import MappedRows
from mutua.federation.clients import Clients
from mutua.support.tensor_files import ALIGNMENT

Federate = Callable[..., Federation]


def same(one: Samples, other: Samples) -> bool:
    """Whether all fields are equal, and tensors lie as they did."""
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(Samples)]
    return all(
        torch.equal(a, b) and (a.stride() == b.stride() or not a.numel()) and a.dtype == b.dtype
        if isinstance(a, torch.Tensor)
        else a.is_like(b)
        if isinstance(a, MappedRows)
        else a == b
        for a, b in pairs
    )


@pytest.mark.parametrize("mapped", [False, True])
def test_a_client_comes_back_as_it_was(mapped: bool, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", draw.random((30, 3, 8, 8)).astype(np.float32))
    x = np.load(tmp_path / "x.npy", mmap_mode="r" if mapped else None)
    whole = Samples.of(x, draw.integers(0, 3, 30), opted_out=np.arange(30) % 4 == 0)
    large = replace(whole, x=torch.rand(30, 3, 40, 50).to(memory_format=torch.channels_last))
    net = torch.nn.Linear(2, 2)
    given = [
        Client("a", *(whole.take(range(k, k + 9)) for k in (0, 9, 18)), Architecture.of("cnn1"), "north", seed=3),
        Client("b", large, large.take([1]), large.take([]), Architecture.of(net)),
    ]
    made = Clients(given)
    for packed in (made, pickle.loads(pickle.dumps(made))):
        assert len(packed) == 2 and [client.id for client in packed[:]] == ["a", "b"]
        for client, was in zip(packed, given, strict=True):
            assert all(same(getattr(client, split), getattr(was, split)) for split in ("train", "val", "test"))
            assert (client.id, client.domain, client.seed, client.aim) == (was.id, was.domain, was.seed, was.aim)
            assert client.opt_in is not None and was.opt_in is not None
            assert torch.equal(client.opt_in, was.opt_in)
    # What is large or a model is there once; what is small is the client's own, and lies as torch's arrays do.
    assert made[1].train.x is made[1].train.x is large.x and made[1].model.name is net
    assert made[0].train.y is not made[0].train.y and made[0].train.y.data_ptr() % ALIGNMENT == 0
    made[0].train.y.zero_()
    assert torch.equal(made[0].train.y, given[0].train.y)
    with pytest.raises(IndexError):
        made[2]


def test_what_clients_have_in_common_is_there_once(tmp_path: Path) -> None:
    """Of each of a thousand clients there are its row numbers, its labels and less than 800 bytes."""
    np.save(tmp_path / "x.npy", np.zeros((5000, 4), np.float32))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    whole = Samples.of(x, np.arange(5000) % 10)
    net = Architecture.of("mlp")
    parts = ([range(5 * k, 5 * k + 3), [5 * k + 3], [5 * k + 4]] for k in range(1000))
    made = Clients(Client(f"c{k}", *map(whole.take, part), net) for k, part in enumerate(parts))
    assert len(made) == 1000 and made[999].train.inputs.shape == (3, 4)
    assert len(pickle.dumps(made)) < 1000 * (5 * 16 + 800)


def test_a_federation_finds_its_clients_by_id_and_number(federate: Federate) -> None:
    federation = federate([9, 12, 7])
    assert type(federation.clients) is Clients
    assert [federation[client.id].id for client in federation.clients] == ["a", "b", "c"]
    assert replace(federation, notes=("n",)).clients is federation.clients
