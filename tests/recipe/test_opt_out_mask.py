"""Opted-out samples that the data itself marks: they are split and dealt, and change no byte that leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mutua import Federation, InputError, Recipe, Samples, partitions, run
from mutua.methods import FML, MixtureOfExperts

Simulate = Callable[..., Any]
Blobs = Callable[..., Samples]


DEALT = [
    partitions.IID(clients=3),
    partitions.Shards(clients=3, shards_per_client=2),
    partitions.Dirichlet(clients=3, alpha=1.0, min_size=2),
    partitions.Majority(clients=3, p=0.6, majority_classes=1),
    partitions.LogNormal(clients=3, sigma=0.5),
    partitions.Domains(),
]


def _altered(samples: Samples, how: str) -> Samples:
    """Other values, other labels or fewer of the samples that are opted out."""
    out = samples.opted_out
    assert out is not None
    if how == "values":
        return replace(samples, x=torch.where(out[:, None], -samples.x, samples.x))
    if how == "labels":
        return replace(samples, y=torch.where(out, (samples.y + 1) % 3, samples.y))
    return samples.take((~out | (torch.arange(len(out)) % 4 == 0)).nonzero()[:, 0])


@pytest.mark.parametrize("each", [None, 9])
@pytest.mark.parametrize("partition", DEALT, ids=lambda partition: partition.kind)
def test_a_mask_in_the_data_survives_split_and_deal_and_changes_no_byte_that_leaves(
    partition: Any, each: int | None, blobs: Blobs, nets: SimpleNamespace, simulate: Simulate, identical: Any
) -> None:
    n = 120
    out = torch.arange(n) % 5 < 2
    domain = torch.arange(n) % 3
    marked = replace(blobs(n), opted_out=out, domain=domain, domains=("u", "v", "w"))

    def run(samples: Samples) -> Any:
        federation = Federation.from_samples(
            samples, partition=partition, models=nets.plain, global_model=nets.plain, samples_per_client=each
        )
        assert all(client.opt_in is not None for client in federation.clients)
        assert sum(len(client.train) - len(client.opted_in) for client in federation.clients) > 0
        return federation, simulate(MixtureOfExperts(mixture_epochs=1), federation)

    federation, first = run(marked)
    secret = {tuple(row) for row in marked.x[out].tolist()}
    for client in federation.clients:
        assert not secret & {tuple(row) for row in client.opted_in.x.tolist()}
    assert not secret & {tuple(row) for row in federation.test.x.tolist()}
    for how in ("values", "labels", "number"):
        other, second = run(_altered(marked, how))
        assert other.test is not None and torch.equal(other.test.x, federation.test.x)
        assert all(identical(a, b) for a, b in zip(first.globals, second.globals, strict=True))
        assert first.engine.replies.keys() == second.engine.replies.keys()
        for key, reply in first.engine.replies.items():
            assert reply.message == second.engine.replies[key].message


def test_opted_out_samples_go_to_clients_of_their_kind(blobs: Blobs, nets: SimpleNamespace) -> None:
    """Each to one client at most, and to one that holds its class."""
    marked = replace(blobs(300), opted_out=torch.arange(300) % 2 == 0)
    partition = partitions.Shards(clients=3, shards_per_client=1)
    federation = Federation.from_samples(marked, partition=partition, models=nets.plain)
    held = [tuple(row) for c in federation.clients for s in (c.train, c.val, c.test) for row in s.x.tolist()]
    assert len(held) == len(set(held)) == 300
    for client in federation.clients:
        assert client.opt_in is not None and 0 < int(client.opt_in.sum()) < len(client.train)
        assert len(client.train.y.unique()) == len(client.val.y.unique()) == len(client.test.y.unique()) == 1


def test_data_with_opted_out_samples_is_refused_by_methods_that_would_send_what_they_learned(
    blobs: Blobs, nets: SimpleNamespace
) -> None:
    marked = replace(blobs(60), opted_out=torch.arange(60) % 2 == 0)
    federation = Federation.from_samples(
        marked, partition=partitions.IID(clients=2), models=nets.plain, global_model=nets.plain
    )
    with pytest.raises(InputError, match="fml would let opted-out samples leave"):
        FML().arrange(federation)
    whole = replace(marked, opted_out=torch.ones(60, dtype=torch.bool))
    with pytest.raises(InputError, match="every sample is opted out"):
        Federation.from_samples(whole, partition=partitions.IID(clients=2), models=nets.plain)


def test_a_class_that_only_opted_out_samples_have_must_be_declared(tmp_path: Path) -> None:
    """Else the labels of opted-out samples would say how many classes the global has."""
    path = tmp_path / "data.npz"
    arrays = {"x": np.random.default_rng(0).random((40, 4)), "y": np.arange(40) % 3, "out": np.arange(40) % 2 == 0}
    tree = {
        "data": {"name": "arrays", "path": str(path)},
        "partition": {"kind": "iid", "clients": 2},
        "models": {"global": "mlp"},
        "method": "mixture",
        "opt_out": {"mask": "out"},
    }
    np.savez(path, **arrays)
    assert Recipe.of(tree).federation().classes == ("0", "1", "2")
    arrays["y"][0] = 5
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=r"data.classes: only opted-out samples have 5, .*; declare all classes"):
        Recipe.of(tree).federation()
    arrays["y"][0] = 0
    np.savez(path, **arrays, classes=np.array(["ape", "bee", "cat"]))
    clients = Recipe.of(tree).federation().clients
    assert sum(len(client.opted_in) for client in clients) == 14


@pytest.mark.parametrize("samples_per_client", [None, 8])
def test_a_domain_may_be_opted_out_whole_by_a_mask(samples_per_client: int | None, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    domain = np.arange(90) % 3
    held = {"x": rng.normal(size=(90, 4)).astype("float32"), "y": np.arange(90) // 3 % 3, "out": domain == 1}
    np.savez(tmp_path / "d.npz", **held, domain=domain, classes=np.array(["ape", "bee", "cat"]))
    tree: dict[str, Any] = {
        "data": {"name": "arrays", "path": str(tmp_path / "d.npz")},
        "partition": {"kind": "domains"},
        "models": {"global": {"name": "mlp", "width": 0.1}},
        "opt_out": {"mask": "out"},
        "method": "fedavg",
        "rounds": 1,
    }
    if samples_per_client:
        tree["data"]["samples_per_client"] = samples_per_client
    recipe = Recipe.of(tree)
    federation = recipe.federation()
    taking_part = [client.takes_part for client in sorted(federation.clients, key=lambda client: client.id)]
    assert taking_part == [True, False, True]
    assert all(len(client.train) and len(client.val) and len(client.test) for client in federation.clients)
    assert not any(note.startswith("no ") for note in federation.notes)
    result = run(recipe.method, federation, plan=recipe.plan())
    assert {e.client for e in result.ledger if e.direction == "up"} == {
        federation.clients[0].id,
        federation.clients[2].id,
    }
    held["out"] = domain >= 0
    np.savez(tmp_path / "d.npz", **held, domain=domain, classes=np.array(["ape", "bee", "cat"]))
    with pytest.raises(InputError, match="opt_out: every sample is opted out"):
        recipe.federation()
