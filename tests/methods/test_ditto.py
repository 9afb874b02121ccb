"""Ditto: its global is FedAvg's, without λ its personal models are those trained alone, and a round in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax  # type: ignore[import-untyped]

import mutua
from conftest import PLAN
from mutua import Federation, InputError
from mutua.methods import Ditto, FedAvg, Independent
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]


@pytest.mark.parametrize("net", ["plain", "normed"])
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_its_global_is_fedavgs_whatever_lambda_is(
    lam: float, net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    model = getattr(nets, net)
    federation = federate((9, 13, 5), models=model, global_model=model)
    for weighting in ("samples", "uniform"):
        given: Any = {"weights": weighting}
        ditto, fedavg = (mutua.run(m, federation, **PLAN) for m in (Ditto(lam=lam, **given), FedAvg(**given)))
        assert identical(ditto.global_state, fedavg.global_state)  # type: ignore[arg-type]
        assert ditto.ledger.kinds("up") == fedavg.ledger.kinds("up")


@pytest.mark.parametrize("net", ["plain", "normed", "dropping"])
def test_without_lambda_its_personal_models_are_trained_alone(
    net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    model = getattr(nets, net)
    federation = federate((9, 13, 5), models=model, global_model=model)
    free, held, alone = (mutua.run(m, federation, **PLAN) for m in (Ditto(lam=0), Ditto(), Independent()))
    for one, other, third in zip(free.clients, held.clients, alone.clients, strict=True):
        for group in ("personal", "personal.optimizer"):
            assert identical(one.state[group], third.state[group])
        assert not identical(other.state["personal"], third.state["personal"])
        assert identical(dict(one.predictor.model.state_dict()), one.state["personal"])


def test_two_rounds_equal_numpy(nets: SimpleNamespace, federate: Federate, simulate: Simulate) -> None:
    """The personal model is held to the global it received: not to its own meme, and not to the next global."""
    federation = federate([5, 8], models=nets.linear, global_model=nets.linear)
    settings = {"epochs": 2, "batch_size": 20, "optimizer": {"name": "sgd", "lr": 0.3}}
    run = simulate(Ditto(lam=0.7, init="global"), federation, rounds=2, **settings)

    def joined(state: Tensors) -> np.ndarray:
        return np.hstack([state["head.weight"].double().numpy(), state["head.bias"].double().numpy()[:, None]])

    shared = joined(run.globals[0])
    personal = {"a": shared, "b": shared}
    for round in (1, 2):
        memes = {}
        for client, v in personal.items():
            data = federation[client].train
            x, truth = np.hstack([data.x.double().numpy(), np.ones((len(data), 1))]), np.eye(3)[data.y.numpy()]
            w, losses = shared, []
            for _ in range(2):
                p, q = softmax(x @ w.T, axis=1), softmax(x @ v.T, axis=1)
                losses.append(-np.log((q * truth).sum(1)).mean() + 0.35 * np.square(v - shared).sum())
                w = w - 0.3 * (p - truth).T @ x / len(x)
                v = v - 0.3 * ((q - truth).T @ x / len(x) + 0.7 * (v - shared))
            memes[client], personal[client] = w, v
            assert joined(run.engine.kept[round, client]["personal"]) == pytest.approx(v, abs=1e-5)
            assert run.engine.replies[round, client].terms["personal"] == pytest.approx(np.mean(losses), abs=1e-5)
        shared = (5 * memes["a"] + 8 * memes["b"]) / 13
        assert joined(run.globals[round]) == pytest.approx(shared, abs=1e-5)


def test_by_default_the_global_holds_and_lambda_may_be_a_schedule(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    assert Ditto().lam == 1.0
    with pytest.raises(InputError, match="lam"):
        Ditto(lam=-1)
    federation = federate(models=nets.plain)
    scheduled, free, held = (simulate(Ditto(lam=lam), federation, rounds=2) for lam in ([0, 2], 0, 2))
    one, two, three = (
        [run.engine.kept[round, "a"]["personal"] for round in (1, 2)] for run in (scheduled, free, held)
    )
    assert identical(one[0], two[0]) and not identical(one[1], two[1]) and not identical(one[1], three[1])


def test_a_strong_hold_keeps_it_at_the_global(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = federate([9, 12], models=nets.linear, global_model=nets.linear)
    run = simulate(Ditto(lam=9.0), federation, rounds=1, steps=60, optimizer={"name": "sgd", "lr": 0.1})
    received, v = run.globals[0]["head.weight"], run.engine.kept[1, "a"]["personal"]["head.weight"]
    far = run.engine.replies[1, "a"].message.arrays("meme")["head.weight"]
    assert (v - received).norm() < 0.25 * (far - received).norm()


def test_before_its_first_training_a_client_serves_with_the_global(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    run = simulate(Ditto(), federate((9, 6, 5, 8), models=nets.plain), client_fraction=0.25, rounds=1)
    (drawn,) = {client for _, client in run.engine.replies}
    for client in "abcd":
        own, shared = (run.history.last(client, model, "test", "loss") for model in ("predictor", "global"))
        assert (own == shared) == (client != drawn)


def test_models_of_other_designs_are_refused_by_name(nets: SimpleNamespace, federate: Federate) -> None:
    with pytest.raises(InputError, match=r"client a: its model is .* but ditto needs the global's design"):
        Ditto().arrange(federate(models=nets.wide, global_model=nets.plain))


def test_a_partial_global_holds_it_with_the_clients_own_adaptor(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    names = [("ape", "bee"), ("bee", "cat", "dog")]
    given = {"classes": names, "models": nets.plain, "global_model": {"name": nets.plain, "share": "body"}}
    ditto, fedavg = (simulate(m, federate([8, 9], **given), rounds=2) for m in (Ditto(), FedAvg()))
    assert all(identical(a, b) for a, b in zip(ditto.globals, fedavg.globals, strict=True))
    state = ditto.engine.kept[2, "b"]
    assert state["personal"]["head.weight"].shape == (3, 6)
    assert torch.isfinite(state["personal"]["head.weight"]).all()
