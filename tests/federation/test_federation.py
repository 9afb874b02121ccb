"""Federations: clients by id, labels by name, models that fit, and mistakes said before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mutua import Architecture, Client, Federation, InputError, Preprocess, Samples
from mutua.data.partitions import IID
from mutua.data.splits import ClientData
from mutua.federation.model_checks import check_models
from mutua.learning.evaluation import measure
from mutua.methods import FML, Centralised, FedAvg
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Blobs = Callable[..., Samples]


# Labels by name


def named(samples: Samples) -> list[tuple[tuple[float, ...], str]]:
    return [(tuple(x.tolist()), samples.classes[int(y)]) for x, y in zip(samples.x, samples.y, strict=True)]


def test_labels_keep_their_names_when_class_lists_differ_in_order(federate: Federate) -> None:
    orders = [("ape", "bee", "cat"), ("cat", "ape", "bee"), ("bee", "cat", "ape")]
    apart = [federate(classes=[order] * 3)["abc"[k]] for k, order in enumerate(orders)]
    together = federate(classes=orders)
    for before, after in zip(apart, together.clients, strict=True):
        assert after.train.classes == after.task.classes == together.classes == ("ape", "bee", "cat")
        for split in ("train", "val", "test"):
            assert named(getattr(after, split)) == named(getattr(before, split))


def test_the_classes_are_the_union_of_all_clients(federate: Federate) -> None:
    federation = federate(classes=[("cat", "bee"), ("bee", "ape"), ("cat",)])
    assert set(federation.classes) == {"ape", "bee", "cat"}
    assert all(client.task.classes == federation.classes for client in federation.clients)
    assert federation.test is not None
    assert federation.test.classes == federation.classes


@pytest.mark.parametrize("method", [FML(), FedAvg()], ids=lambda m: str(m.name))
def test_a_run_does_not_depend_on_the_order_of_a_clients_class_list(
    method: Any, federate: Federate, simulate: Simulate, identical: Callable[[Tensors, Tensors], bool]
) -> None:
    one = federate(classes=[("ape", "bee", "cat")] * 3)
    orders = [("ape", "bee", "cat"), ("cat", "ape", "bee"), ("bee", "cat", "ape")]
    shuffled = tuple(client.relabelled(order) for client, order in zip(one.clients, orders, strict=True))
    assert shuffled[1].train.y.tolist() != one.clients[1].train.y.tolist()
    other = replace(one, clients=shuffled)
    runs = [simulate(method, federation) for federation in (one, other)]
    assert identical(runs[0].globals[-1], runs[1].globals[-1])


def test_matching_by_name_is_what_makes_a_federation_learn(
    nets: SimpleNamespace, simulate: Simulate, blobs: Blobs
) -> None:
    """Two clients with opposite class lists: matched by index the global would learn nothing."""
    orders = [("ape", "bee"), ("bee", "ape")]
    architecture = Architecture.of(nets.linear)
    clients = []
    for k, order in enumerate(orders):
        train, val, test = (blobs(n, seed=10 * k + n, classes=order) for n in (40, 10, 30))
        clients.append(Client("ab"[k], train, val, test, architecture))
    federation = Federation(tuple(clients), architecture, blobs(60, seed=77, classes=("bee", "ape")))
    run = simulate(FedAvg(), federation, rounds=5)
    assert run.history.last("global", "global", "test", "accuracy") > 0.95


def test_a_class_of_the_common_test_set_that_no_client_knows_is_said(federate: Federate, blobs: Blobs) -> None:
    federation = federate(common=0)
    with pytest.raises(InputError, match="elk"):
        replace(federation, test=blobs(30, classes=("ape", "elk")))


def test_with_a_partial_global_clients_keep_their_own_tasks(nets: SimpleNamespace, federate: Federate) -> None:
    tasks = [("ape", "bee"), ("cat", "dog", "elk"), ("bee", "ape")]
    federation = federate(classes=tasks, global_model={"name": nets.plain, "share": "body"})
    assert federation.partial
    assert [client.task.classes for client in federation.clients] == tasks
    check_models(federation, needs_global=True)


# Clients


def test_clients_are_found_by_id(federate: Federate) -> None:
    federation = federate()
    assert [federation[name].id for name in "cab"] == list("cab")
    with pytest.raises(InputError, match="is not in it"):
        federation["z"]


def test_mistakes_in_clients_are_named(federate: Federate, blobs: Blobs) -> None:
    federation = federate()
    a = federation["a"]
    with pytest.raises(InputError, match="clients: none"):
        Federation(())
    with pytest.raises(InputError, match="'a' is used twice"):
        Federation((a, federation["b"], a))
    with pytest.raises(InputError, match="client a: no training samples"):
        replace(a, train=a.train.take([]))
    with pytest.raises(InputError, match=r"client a: val has inputs \(7,\)"):
        replace(a, val=blobs(3, features=7))
    with pytest.raises(InputError, match=r"client a: test has .* 2 classes"):
        replace(a, test=blobs(3, classes=("ape", "bee")))


# Making


def arrays(n: int = 90) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    return rng.normal(size=(n, 4)) + y[:, None], y


def test_from_arrays_deals_every_sample_once(nets: SimpleNamespace) -> None:
    x, y = arrays()
    federation = Federation.from_arrays(x, y, partition=IID(clients=4), models=nets.plain, global_model=nets.plain)
    held = [(client.train, client.val, client.test) for client in federation.clients]
    rows = torch.cat([part.x for parts in held for part in parts])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, torch.tensor(x).float().tolist()))
    assert len({client.id for client in federation.clients}) == 4
    assert federation.test is not None
    assert len(federation.test) == 18
    again = Federation.from_arrays(x, y, partition=IID(clients=4), models=nets.plain, global_model=nets.plain)
    assert all(torch.equal(a.train.x, b.train.x) for a, b in zip(federation.clients, again.clients, strict=True))


def test_models_are_one_for_all_or_one_a_client(nets: SimpleNamespace) -> None:
    x, y = arrays()
    make = Federation.from_arrays
    mixed = make(x, y, partition=IID(clients=2), models=[nets.plain, nets.wide], global_model=nets.dropping)
    assert [client.model.label for client in mixed.clients] == ["plain", "wide"]
    same = make(x, y, partition=IID(clients=3), models=nets.plain)
    assert len({id(client.model) for client in same.clients}) == 1
    assert same.global_model is None
    alike = make(x, y, partition=IID(clients=3), global_model=nets.wide)
    assert {client.model.label for client in alike.clients} == {"wide"}
    with pytest.raises(InputError, match="2 for 3 clients"):
        make(x, y, partition=IID(clients=3), models=[nets.plain, nets.wide])
    with pytest.raises(InputError, match="models: missing"):
        make(x, y, partition=IID(clients=3))


def test_without_a_common_test_set_it_is_the_union_of_the_clients(nets: SimpleNamespace, blobs: Blobs) -> None:
    data = [ClientData(name, blobs(6), blobs(4), blobs(n, seed=n)) for name, n in (("a", 3), ("b", 5))]
    federation = Federation.of_clients(data, nets.plain, nets.plain)
    assert federation.test is not None
    assert torch.equal(federation.test.x, torch.cat([data[0].test.x, data[1].test.x]))
    partial = Federation.of_clients(data, nets.plain, {"name": nets.plain, "share": "body"})
    assert partial.test is None


def test_data_with_different_preprocessing_is_pooled_as_the_model_would_see_it(nets: SimpleNamespace) -> None:
    x = torch.arange(24.0).view(6, 4)
    clients = []
    for k, pre in enumerate([Preprocess(2.0, (1.0,), (4.0,)), Preprocess()]):
        samples = Samples.of(x, [0, 1, 2, 0, 1, 2], preprocess=pre)
        clients.append(Client("ab"[k], samples, samples, samples, Architecture.of(nets.plain)))
    pooled = Federation(tuple(clients), clients[0].model).pooled()["pooled"].train
    expected = np.concatenate([(x.numpy() * 2 - 1) / 4, x.numpy()])
    assert pooled.preprocess(pooled.x).numpy() == pytest.approx(expected)
    assert torch.equal(clients[0].train.x, x), "pooling changes nobody's data"


def test_training_and_evaluating_leave_every_clients_data_as_it_was(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = federate()
    given = Preprocess(0.5, (1.0,), (2.0,))
    clients = tuple(
        replace(c, **{split: replace(getattr(c, split), preprocess=given) for split in ("train", "val", "test")})
        for c in federation.clients
    )
    federation = replace(federation, clients=clients)
    before = [part.x.clone() for c in federation.clients for part in (c.train, c.val, c.test)]
    for method in (FML(), Centralised()):
        simulate(method, federation)
    after = [part.x for c in federation.clients for part in (c.train, c.val, c.test)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_measuring_twice_gives_the_same(nets: SimpleNamespace, blobs: Blobs) -> None:
    samples = replace(blobs(10), preprocess=Preprocess(0.5, (1.0,), (2.0,)))
    model = Architecture.of(nets.plain).build(channels=4, size=1, classes=3, seed=0)
    task = Client("a", samples, samples, samples, Architecture.of(nets.plain)).task
    assert measure(model, samples, task) == measure(model, samples, task)
