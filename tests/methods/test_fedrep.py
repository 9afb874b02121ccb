"""FedRep: head first, then body; and what neither moves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mutua import Federation, InputError
from mutua.methods import FedPer, FedRep
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]
MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


@pytest.mark.parametrize("net", ["plain", "normed"])
def test_without_epochs_of_the_body_the_first_global_stays_statistics_included(
    net: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    """Of two clients: a mean of equals rounds otherwise. A frozen body that still counts means would show."""
    model = getattr(nets, net)
    method = FedRep(head_epochs=2, body_epochs=0)
    run = simulate(method, federate((9, 13), models=model, global_model=model), rounds=3, optimizer=MOMENTUM)
    assert all(identical(run.globals[0], shared) for shared in run.globals[1:])
    assert not identical(run.engine.kept[1, "a"]["adaptor"], run.engine.kept[3, "a"]["adaptor"])


@pytest.mark.parametrize("net", ["plain", "normed"])
def test_without_epochs_of_the_head_every_head_stays(
    net: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    model = getattr(nets, net)
    run = simulate(FedRep(head_epochs=0), federate(models=model, global_model=model), optimizer=MOMENTUM)
    for client in "abc":
        first = run.engine.kept[1, client]["adaptor"]
        assert identical(first, run.engine.kept[2, client]["adaptor"])
        assert identical(first, run.engine.kept[3, client]["adaptor"])
    assert not identical(run.globals[0], run.globals[-1])


def test_a_round_is_as_numpy_does_it(nets: SimpleNamespace, federate: Federate, simulate: Simulate) -> None:
    """Head: two steps on frozen features; body: one step under the new head; bodies: the plain mean."""
    federation = federate((7, 12), models=nets.plain, global_model=nets.plain)
    run = simulate(
        FedRep(head_epochs=2), federation, rounds=1, batch_size=50, optimizer={"name": "sgd", "lr": 0.5}
    )
    g, bodies = {n: a.double().numpy() for n, a in run.globals[0].items()}, []
    for client in "ab":
        data, fresh = federation[client].train, FedPer()
        x, y = data.x.double().numpy(), np.eye(3)[data.y.numpy()]
        start = simulate(fresh, federation, rounds=1, steps=1, batch_size=50, optimizer={"name": "sgd", "lr": 0.0})
        head = {n: a.double().numpy() for n, a in start.engine.kept[1, client]["adaptor"].items()}
        w, b, v, c = g["body.weight"], g["body.bias"], head["head.weight"], head["head.bias"]

        def error(z: np.ndarray, v: np.ndarray, c: np.ndarray, y: np.ndarray = y) -> np.ndarray:
            scores = np.exp(z @ v.T + c)
            return (scores / scores.sum(1, keepdims=True) - y) / len(y)

        z = np.tanh(x @ w.T + b)
        for _ in range(2):
            d = error(z, v, c)
            v, c = v - 0.5 * d.T @ z, c - 0.5 * d.sum(0)
        a = error(z, v, c) @ v * (1 - z**2)
        bodies.append((w - 0.5 * a.T @ x, b - 0.5 * a.sum(0)))
        kept = run.engine.kept[1, client]["adaptor"]
        assert kept["head.weight"].numpy() == pytest.approx(v, abs=1e-5)
        assert kept["head.bias"].numpy() == pytest.approx(c, abs=1e-5)
    for name, parts in zip(("body.weight", "body.bias"), zip(*bodies, strict=True), strict=True):
        assert run.globals[-1][name].numpy() == pytest.approx(np.mean(parts, 0), abs=1e-5)


def test_no_head_leaves_and_clients_may_have_other_classes(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = federate(
        (9, 12),
        models=nets.plain,
        global_model={"name": nets.plain, "share": "body"},
        classes=[("ape", "bee"), ("cat", "dog", "eel")],
    )
    run = simulate(FedRep(head_epochs=1), federation)
    for reply in run.engine.replies.values():
        assert set(reply.message.arrays("meme")) == {"body.weight", "body.bias"}
    assert [len(run.engine.kept[3, c]["adaptor"]["head.bias"]) for c in "ab"] == [2, 3]


@pytest.mark.parametrize("head_epochs", [0, 1])
def test_who_is_never_drawn_has_a_head_of_its_own(
    head_epochs: int, nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    """Also where heads are as they began: by each client's own seed."""
    method = FedRep(head_epochs=head_epochs)
    run = simulate(method, federate((5, 6, 7, 8)), rounds=2, client_fraction=0.25, seed=1)
    drawn = {client for _, client in run.engine.replies}
    heads = {client: run.engine.kept[3, client]["adaptor"] for client in "abcd"}
    assert drawn < set("abcd")
    for one in "abcd":
        assert not any(identical(heads[one], heads[other]) for other in "abcd" if other != one)


def test_what_it_shares_is_the_body(nets: SimpleNamespace, federate: Federate) -> None:
    assert FedRep().arrange(federate()).global_model.share == "body"  # type: ignore[union-attr]
    with pytest.raises(InputError, match=r"models.global.share: head; fedrep shares the body"):
        FedRep().arrange(federate(global_model={"name": nets.plain, "share": "head"}))
