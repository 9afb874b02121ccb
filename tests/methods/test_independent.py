"""Training alone, and all data in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax  # type: ignore[import-untyped]

from mutua import Client, Federation, InputError, run
from mutua.data.public import Public
from mutua.errors import LeftOut
from mutua.federation.module_pool import Modules
from mutua.learning.trainer import Trainer
from mutua.methods import AloneAgain, Centralised, FedAvg, Independent, Participant
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]


def test_each_client_trains_alone_as_numpy_does(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = federate([4, 9], models=nets.linear, global_model=None)
    optimizer = {"name": "sgd", "lr": 0.2, "momentum": 0.8}
    run = simulate(Independent(), federation, rounds=3, epochs=2, batch_size=9, optimizer=optimizer)
    for client in "ab":
        data = federation[client].train
        x = np.hstack([data.x.double().numpy(), np.ones((len(data), 1))])
        start = run.engine.kept[0, client]["personal"]
        w = np.hstack([start["head.weight"], start["head.bias"][:, None]]).astype(float)
        v = np.zeros_like(w)
        for _ in range(3 * 2):  # rounds × epochs: alone, a round's end is nothing
            v = 0.8 * v + (softmax(x @ w.T, axis=1) - np.eye(3)[data.y.numpy()]).T @ x / len(x)
            w = w - 0.2 * v
        found = run.engine.kept[3, client]["personal"]
        assert found["head.weight"].numpy() == pytest.approx(w[:, :-1], abs=1e-5)
        assert found["head.bias"].numpy() == pytest.approx(w[:, -1], abs=1e-5)


def test_nothing_leaves_and_nothing_comes(federate: Federate, simulate: Simulate) -> None:
    run = simulate(Independent(), federate(), rounds=3)
    assert len(run.ledger) == 0
    assert run.engine.briefs == {}
    assert all(reply.message is None for reply in run.engine.replies.values())
    assert Independent().shares == {}
    assert run.history.select(model="global") == []


def test_a_client_alone_is_the_same_whoever_else_there_is(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate()
    together = simulate(Independent(), federation)
    alone = simulate(Independent(), replace(federation, clients=(federation["b"],)))
    assert identical(together.engine.kept[3, "b"]["personal"], alone.engine.kept[3, "b"]["personal"])


def test_a_newcomer_has_nothing_to_join(federate: Federate, simulate: Simulate, modules: Modules) -> None:
    for method in (Independent(), Centralised()):
        run = simulate(method, federate(), rounds=1)
        at = Participant(run.job, federate()["a"], {}, 2, modules)
        with pytest.raises(InputError, match=f"{method.name}.*no global model"):
            method.personalise(at, None, "global")


def test_centralised_is_independent_on_the_pooled_data(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate(models=[nets.wide, nets.plain, nets.normed], global_model=nets.dropping)
    central, alone = simulate(Centralised(), federation), simulate(Independent(), federation.pooled())
    assert identical(
        central.engine.kept[3, "pooled"]["personal"],
        alone.engine.kept[3, "pooled"]["personal"],
    )
    assert set(central.engine.kept[3, "pooled"]["personal"]) == set(nets.dropping(4, 3).state_dict())
    assert len(central.ledger) == 0
    pooled = central.federation["pooled"]
    assert [len(part) for part in (pooled.train, pooled.val)] == [9 + 12 + 7, 3 * 8]
    # The ceiling is judged on the common test set.
    assert federation.test is not None
    assert torch.equal(pooled.test.x, federation.test.x)


def test_what_is_public_with_its_labels_is_pooled_too(federate: Federate, blobs: Any) -> None:
    """Else the ceiling would lack the data that clients gave to the public set."""
    federation, parts = federate(), {"a": blobs(5, seed=1), "b": blobs(4, seed=2)}
    pooled = replace(federation, public=Public(parts)).pooled()["pooled"].train
    private = federation.pooled()["pooled"].train
    assert len(pooled) == 28 + 9 and torch.equal(pooled.x[:28], private.x)
    assert torch.equal(pooled.x[28:], torch.cat([parts["a"].x, parts["b"].x]))
    assert torch.equal(pooled.y[28:], torch.cat([parts["a"].y, parts["b"].y]))
    unlabelled = replace(federation, public=Public(parts, labelled=False)).pooled()["pooled"].train
    assert torch.equal(unlabelled.x, private.x)
    alien = replace(federation, public=Public({"a": blobs(5, features=7)}))
    with pytest.raises(InputError, match=r"public: a's part has inputs \(7,\)"):
        alien.pooled()


def test_pooled_data_is_everybodys_with_labels_matched_by_name(nets: SimpleNamespace, federate: Federate) -> None:
    tasks = [("ape", "bee"), ("cat", "bee", "ape"), ("dog", "ape")]
    federation = federate(classes=tasks, global_model={"name": nets.plain, "share": "body"})
    pooled = federation.pooled()["pooled"]
    assert pooled.train.classes == ("ape", "bee", "cat", "dog")
    assert pooled.model.share == "all"
    own = [
        (tuple(x.tolist()), client.train.classes[int(y)])
        for client in federation.clients
        for x, y in zip(client.train.x, client.train.y, strict=True)
    ]
    found = [
        (tuple(x.tolist()), pooled.train.classes[int(y)])
        for x, y in zip(pooled.train.x, pooled.train.y, strict=True)
    ]
    assert sorted(found) == sorted(own)
    assert len(pooled.test) == 3 * 8


def test_the_pool_does_not_depend_on_the_order_of_clients(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate()
    back = replace(federation, clients=federation.clients[::-1])
    one, other = (simulate(Centralised(), data) for data in (federation, back))
    assert identical(one.engine.kept[3, "pooled"]["personal"], other.engine.kept[3, "pooled"]["personal"])


def test_inputs_of_different_shapes_cannot_be_pooled(
    nets: SimpleNamespace, federate: Federate, blobs: Callable[..., Any]
) -> None:
    federation = federate([5], global_model=None)
    train, val, test = (blobs(n, features=7) for n in (5, 4, 3))
    broad = Client("z", train, val, test, federation["a"].model)
    with pytest.raises(InputError, match=r"\(4,\).*\(7,\)|\(7,\).*\(4,\)"):
        Federation((federation["a"], broad)).pooled()


def test_one_client_centralised_or_federated_or_alone_sees_the_same_number_of_samples(
    federate: Federate, simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool takes as many steps a round as its samples need, not as one client's do."""
    steps: list[int] = []
    monkeypatch.setattr(Trainer, "step", lambda *_: steps.append(1))
    simulate(Centralised(), federate([9, 12, 7]), rounds=2)
    central = len(steps)
    steps.clear()
    simulate(FedAvg(), federate([9, 12, 7]), rounds=2)
    assert central == 2 * 7  # 28 samples in batches of 4
    assert len(steps) == 2 * (3 + 3 + 2)


def test_alone_a_client_trains_in_every_round_whatever_fraction_is_drawn_or_out_of_reach(
    federate: Federate, identical: Identical
) -> None:
    """What it is compared with: the same work as in a federation of which everybody is a part."""
    plan: dict[str, Any] = {"rounds": 4, "batch_size": 4, "device": "cpu"}
    whole = run(Independent(), federate([9, 8, 7, 6]), **plan)
    away = {"dropout": [{"clients": ["b"], "rounds": [1, 2]}]}
    for more in ({"client_fraction": 0.25}, {"client_fraction": 0.25, "faults": away}):
        found = run(Independent(), federate([9, 8, 7, 6]), **plan, **more)
        for client, other in zip(found.clients, whole.clients, strict=True):
            assert identical(client.state["personal"], other.state["personal"])
            assert client.attendance.answered == 4
    with pytest.warns(LeftOut, match="^1 of 4 clients were never drawn: .: never drawn, so"):
        drawn = run(Independent(drawn_only=True), federate([9, 8, 7, 6]), **plan, client_fraction=0.25, seed=2)
    assert sum(client.attendance.asked for client in drawn.clients) == 4


def test_alone_again_is_the_same_training_by_other_chance(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate([9, 12, 7], models=nets.dropping)
    runs = [simulate(method, federation, rounds=2) for method in (Independent(), AloneAgain(), AloneAgain())]
    kept = [{c: store.state for c, store in run.engine.stores.items()} for run in runs]
    for client in "abc":
        first, again, same = (one[client]["personal"] for one in kept)
        assert identical(again, same) and not identical(first, again)
        assert set(kept[1][client]) == {"personal", "personal.optimizer"}
    assert runs[1].ledger.bytes("up") == 0
