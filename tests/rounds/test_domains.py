"""WDP, CDP and ACC of every method whose clients have domains, against predictions counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from method_needs import AGREED, method_named
from mutua import Architecture, Client, Federation, Samples, methods, run
from mutua.data.public import Public

Federate = Callable[..., Federation]
Blobs = Callable[..., Samples]

SHORT: dict[str, dict[str, Any]] = {
    "finetuned": {"tune_epochs": 2},
    "mixture": {"mixture_epochs": 2},
    "fedmd": {"public_epochs": 1, "private_epochs": 1},
}
PLAN: dict[str, Any] = {
    "rounds": 2,
    "batch_size": 4,
    "optimizer": {"name": "sgd", "lr": 0.1},
    "device": "cpu",
    "seed": 3,
}
EACH = [name for name in methods.names() if name != "centralised"]


@pytest.fixture
def domains(federate: Federate, blobs: Blobs) -> Federation:
    """Three domains, tests of 11, 7 and 20 samples, 4 more in val, each with the features in another order."""
    federation = federate([9, 12, 7])
    clients, parts = [], {}
    for k, (client, n) in enumerate(zip(federation.clients, (11, 7, 20), strict=True)):
        val = blobs(n + 4, seed=600 + k)
        parts_of = (client.train, val, blobs(n, seed=700 + k), blobs(5, seed=800 + k))
        seen = [replace(s, x=s.x.roll(k, 1)) for s in parts_of]
        clients.append(replace(client, train=seen[0], val=seen[1], test=seen[2], domain=f"turned-{k}"))
        parts[client.id] = seen[3]
    return replace(federation, clients=tuple(clients), public=Public(parts))


def correct(model: nn.Module, samples: Samples) -> int:
    model.eval()
    with torch.no_grad():
        return int((model(samples.preprocess(samples.x)).argmax(1) == samples.y).sum())


def by_hand(federation: Federation, client: str, model: nn.Module, split: str = "test") -> dict[str, float]:
    """Right answers counted over own samples, over the others' pooled samples, and over all."""
    own = getattr(federation[client], split)
    others = [getattr(c, split) for c in federation.clients if c.id != client]
    n, right = len(own), correct(model, own)
    m, elsewhere = sum(map(len, others)), sum(correct(model, test) for test in others)
    return {"wdp": right / n, "cdp": elsewhere / m, "acc": (right + elsewhere) / (n + m)}


def metrics(history: Any, client: str, round: int, split: str = "test") -> dict[str, float | None]:
    rows = history.select(client=client, round=round, model="predictor", split=split)
    return {row.metric: row.value for row in rows if row.metric in ("wdp", "cdp", "acc")}


@pytest.mark.parametrize("name", EACH)
def test_after_the_last_round_of_every_method(name: str, domains: Federation) -> None:
    method = methods.of({"name": name, **AGREED.get(name, {}), **SHORT.get(name, {})})
    result = run(method, domains, **PLAN)
    different = set()
    for client in result.clients:
        expected = by_hand(domains, client.id, client.predictor.model)
        assert metrics(result.history, client.id, 2) == pytest.approx(expected, abs=1e-12)
        on_val = by_hand(domains, client.id, client.predictor.model, "val")
        assert metrics(result.history, client.id, 2, "val") == pytest.approx(on_val, abs=1e-12)
        assert metrics(result.history, client.id, 2)["wdp"] == client.accuracy()
        assert (
            set(metrics(result.history, client.id, 0))
            == set(metrics(result.history, client.id, 1))
            == set(expected)
        )
        different |= set(expected.values())
    assert len(different) > 3
    # They are the observer's, of the model that a client serves with: no other has any, and nothing crosses.
    assert {row.model for row in result.history if row.metric in ("wdp", "cdp", "acc")} == {"predictor"}
    assert {row.split for row in result.history if row.metric in ("wdp", "cdp", "acc")} == {"val", "test"}
    assert not [entry for entry in result.ledger if entry.kind == "metric"]


def test_in_mid_run_as_if_the_run_ended_there(domains: Federation) -> None:
    """FedAvg's clients serve with the global: after round 2 of 3 as at the end of 2."""
    method = methods.of({"name": "fedavg"})
    long, short = (run(method, domains, **{**PLAN, "rounds": rounds}) for rounds in (3, 2))
    for client in short.clients:
        expected = by_hand(domains, client.id, client.predictor.model)
        assert metrics(long.history, client.id, 2) == pytest.approx(expected, abs=1e-12)


def test_fedh2l_in_mid_run_is_judged_after_the_pending_update(domains: Federation) -> None:
    """The same: after round 2 of 3 the predictor is what two rounds and a finish would give."""
    method = methods.of({"name": "fedh2l"})
    long, short = (run(method, domains, **{**PLAN, "rounds": rounds}) for rounds in (3, 2))
    for client in short.clients:
        for metric in ("wdp", "cdp", "acc", "loss"):
            (there,) = long.history.select(
                client=client.id, round=2, model="predictor", split="test", metric=metric
            )
            assert there.value == short.history.last(client.id, "predictor", "test", metric)


@pytest.mark.parametrize("name", ["fedavg", "fedh2l", "independent"])
def test_without_domains_there_are_none(name: str, domains: Federation) -> None:
    clients = tuple(replace(client, domain=None) for client in domains.clients)
    result = run(method_named(name), replace(domains, clients=clients), **PLAN)
    assert not [row for row in result.history if row.metric in ("wdp", "cdp", "acc")]


def test_centralised_has_one_client_of_all_domains_and_none_of_its_own(domains: Federation) -> None:
    result = run(methods.of({"name": "centralised"}), domains, **PLAN)
    assert not [row for row in result.history if row.metric in ("wdp", "cdp", "acc")]


def test_clients_without_a_domain_are_nobodys_cross_domain(domains: Federation) -> None:
    a, b, c = domains.clients
    some = replace(domains, clients=(a, b, replace(c, domain=None)))
    result = run(methods.of({"name": "fedavg"}), some, **PLAN)
    model = result.clients[0].predictor.model
    right, elsewhere = correct(model, a.test), correct(model, b.test)
    assert metrics(result.history, "a", 2) == pytest.approx(
        {"wdp": right / 11, "cdp": elsewhere / 7, "acc": (right + elsewhere) / 18}
    )
    assert metrics(result.history, "c", 2) == {}


def test_a_domain_without_test_samples_has_no_accuracy_within(domains: Federation) -> None:
    a, b, c = domains.clients
    some = replace(domains, clients=(replace(a, test=a.test.take([])), b, c))
    result = run(methods.of({"name": "independent"}), some, **PLAN)
    model = result.clients[0].predictor.model
    elsewhere = (correct(model, b.test) + correct(model, c.test)) / 27
    assert metrics(result.history, "a", 2) == pytest.approx({"wdp": None, "cdp": elsewhere, "acc": elsewhere})
    model = result.clients[1].predictor.model
    right, there = correct(model, b.test), correct(model, c.test)
    assert metrics(result.history, "b", 2) == pytest.approx(
        {"wdp": right / 7, "cdp": there / 20, "acc": (right + there) / 27}
    )


def test_different_tasks_are_not_judged_on_each_others_tests(
    nets: SimpleNamespace, federate: Federate, blobs: Blobs
) -> None:
    """With a partial global clients may have classes of their own: an index would mean another class."""
    tasks = [("ape", "bee", "cat"), ("dog", "elk", "fox")]
    federation = federate([8, 9], classes=tasks, global_model={"name": nets.plain, "share": "body"})
    clients = tuple(replace(client, domain=client.id) for client in federation.clients)
    result = run(methods.of({"name": "fml"}), replace(federation, clients=clients), **PLAN)
    assert not [row for row in result.history if row.metric in ("wdp", "cdp", "acc")]
    train, val, test = (blobs(6, seed=k, features=7) for k in range(3))
    other = Client("b", train, val, test, Architecture.of(nets.plain), domain="b")
    result = run(methods.of({"name": "independent"}), Federation((clients[0], other)), **PLAN)
    assert not [row for row in result.history if row.metric in ("wdp", "cdp", "acc")]
