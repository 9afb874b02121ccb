"""Aggregated is Independent on the concatenation of own and public samples; nothing leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conftest import work
from mutua import Architecture, Client, Federation, InputError, Samples
from mutua.data.public import Public, carve
from mutua.federation.module_pool import Modules
from mutua.federation.store import Store
from mutua.methods import Aggregated, Independent
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]

SETTINGS = {"rounds": 3, "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}


@pytest.fixture
def shared(federate: Federate, nets: SimpleNamespace) -> Federation:
    """Three clients with models of their own, public parts of different sizes."""
    federation = federate([13, 16, 9], models=[nets.normed, nets.dropping, nets.plain], global_model=None)
    split = {c.id: carve(c.train, n, 0, c.id) for c, n in zip(federation.clients, (4, 5, 3), strict=True)}
    clients = tuple(replace(c, train=split[c.id][0]) for c in federation.clients)
    # The order of owners in the mapping must not matter.
    return replace(federation, clients=clients, public=Public({i: split[i][1] for i in "cab"}))


@pytest.fixture
def learn(simulate: Simulate) -> Callable[..., Any]:
    def go(method: Any, federation: Federation, **plan: Any) -> Any:
        return simulate(method, federation, **{**SETTINGS, **plan})

    return go


@pytest.mark.parametrize("work", [{"epochs": 1}, {"steps": 3}], ids=str)
def test_it_is_independent_on_own_and_all_public_samples_to_the_bit(
    work: dict[str, int], shared: Federation, learn: Any, identical: Identical
) -> None:
    assert shared.public is not None
    ours = learn(Aggregated(), shared, **work)
    parts = [shared.public.parts[owner] for owner in "abc"]

    def joined(own: Samples) -> Samples:
        x, y = torch.cat([own.x, *(p.x for p in parts)]), torch.cat([own.y, *(p.y for p in parts)])
        return Samples.of(x, y, classes=own.classes)

    clients = tuple(replace(client, train=joined(client.train)) for client in shared.clients)
    assert [len(client.train) for client in clients] == [9 + 12, 11 + 12, 6 + 12]
    theirs = learn(Independent(), replace(shared, clients=clients, public=None), **work)
    for key, state in theirs.engine.kept.items():
        assert ours.engine.kept[key].keys() == state.keys()
        assert all(identical(ours.engine.kept[key][group], state[group]) for group in state)
    assert list(ours.history) == list(theirs.history)
    without = learn(Independent(), shared, **work)
    assert not identical(ours.engine.kept[3, "a"]["personal"], without.engine.kept[3, "a"]["personal"])


def test_samples_stored_in_another_way_are_put_together_by_what_they_mean(learn: Any) -> None:
    """Private bytes and public numbers of the same pictures: preprocessing is each one's own."""
    stored = torch.randint(256, (12, 1, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    as_bytes = Samples.of(stored, torch.arange(12) % 3, classes=list("xyz"))
    as_numbers = Samples.of((stored / 255 - 0.5) / 0.5, torch.arange(12) % 3, classes=list("xyz"))
    held = as_bytes.take([])
    model = Architecture.of(lambda classes: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, classes)))
    client = Client("a", as_bytes, held, held, model)
    weights = [
        learn(Aggregated(), Federation((client,), public=Public({"a": given}))).engine.kept[3, "a"]["personal"]
        for given in (as_bytes, as_numbers)
    ]
    for name in weights[0]:
        assert torch.allclose(weights[0][name], weights[1][name], atol=1e-5)


def test_nothing_leaves(shared: Federation, learn: Any) -> None:
    run = learn(Aggregated(), shared)
    assert all(reply.message is None for reply in run.engine.replies.values())
    assert len(run.ledger) == 0
    assert Aggregated().shares == {}


def test_a_public_set_with_labels_is_needed(shared: Federation) -> None:
    assert shared.public is not None
    with pytest.raises(InputError, match="public: missing; aggregated"):
        Aggregated().arrange(replace(shared, public=None))
    with pytest.raises(InputError, match=r"public\.labelled: false, but aggregated"):
        Aggregated().arrange(replace(shared, public=replace(shared.public, labelled=False)))


def test_a_repeated_brief_trains_nothing_twice_and_others_do_not_matter(
    shared: Federation, learn: Any, identical: Identical, modules: Modules
) -> None:
    run = learn(Aggregated(), shared)
    store = Store()
    work(run.job, shared["b"], store, "start", 0, None, modules)
    for round in (1, 2, 3):
        work(run.job, shared["b"], store, "train", round, None, modules)
        state = store.state
        work(run.job, shared["b"], store, "train", round, None, modules)
        assert store.state is state
        assert identical(state["personal"], run.engine.kept[round, "b"]["personal"])
    again = learn(Aggregated(), shared)
    assert identical(again.engine.kept[3, "c"]["personal"], run.engine.kept[3, "c"]["personal"])
