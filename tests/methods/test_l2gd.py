"""L2GD: between training alone and uniform FedAvg, several pulls in a row, the coin, and two rounds in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax  # type: ignore[import-untyped]
from torch import nn

import mutua
from mutua import Federation, InputError, Plan
from mutua.federation.module_pool import Modules
from mutua.methods import L2GD, FedAvg, Independent, Participant
from mutua.methods.base import Job
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]

PLAN: dict[str, Any] = {
    "rounds": 3,
    "batch_size": 4,
    "device": "cpu",
    "workers": 1,
    "progress": False,
    "optimizer": {"name": "sgd", "lr": 0.1},
}


def joined(state: Tensors) -> np.ndarray:
    return np.hstack([state["head.weight"].double().numpy(), state["head.bias"].double().numpy()[:, None]])


@pytest.mark.parametrize("net", ["plain", "bn"])
def test_pulled_all_the_way_it_is_uniform_fedavg_and_without_pulls_each_is_alone(
    net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    model = nets.plain if net == "plain" else normed_without_dropout
    federation = federate((9, 13, 5), models=model, global_model=model)
    whole, none, fedavg, alone = (
        mutua.run(m, federation, **PLAN)
        for m in (L2GD(theta=1), L2GD(theta=0), FedAvg(weights="uniform"), Independent())
    )
    assert identical(whole.global_state, fedavg.global_state)  # type: ignore[arg-type]
    assert whole.ledger.kinds("up") == fedavg.ledger.kinds("up")
    for one, other, third in zip(whole.clients, none.clients, alone.clients, strict=True):
        served = dict(one.predictor.model.state_dict())
        counters = {name for name, array in served.items() if not array.is_floating_point()}
        assert counters == ({"norm.num_batches_tracked"} if net == "bn" else set())
        shared = {n: array for n, array in whole.global_state.items() if n not in counters}  # type: ignore[union-attr]
        assert identical({n: array for n, array in served.items() if n not in counters}, shared)
        assert identical(other.state["personal"], third.state["personal"])
        assert identical(dict(other.predictor.model.state_dict()), third.state["personal"])


def normed_without_dropout(channels: int, classes: int) -> Any:
    model = nn.Sequential()
    for name, layer in (
        ("body", nn.Linear(channels, 6)),
        ("norm", nn.BatchNorm1d(6)),
        ("head", nn.Linear(6, classes)),
    ):
        model.add_module(name, layer)
    return model


def test_two_rounds_equal_numpy(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, modules: Modules
) -> None:
    """First the pull, then training; the trained model leaves, the mean is uniform, what is served is pulled."""
    federation = federate([5, 8], models=nets.linear, global_model=nets.linear)
    settings = {"epochs": 2, "batch_size": 20, "optimizer": {"name": "sgd", "lr": 0.3}}
    run = simulate(L2GD(theta=0.3), federation, rounds=2, **settings)
    fresh = simulate(Independent(), federation, rounds=0)
    mean = joined(run.globals[0])
    own = {client: joined(fresh.engine.kept[0, client]["personal"]) for client in "ab"}
    for round in (1, 2):
        for client in "ab":
            data = federation[client].train
            x, truth = np.hstack([data.x.double().numpy(), np.ones((len(data), 1))]), np.eye(3)[data.y.numpy()]
            w = 0.7 * own[client] + 0.3 * mean
            for _ in range(2):
                w = w - 0.3 * (softmax(x @ w.T, axis=1) - truth).T @ x / len(x)
            own[client] = w
            assert joined(run.engine.kept[round, client]["personal"]) == pytest.approx(w, abs=1e-5)
            assert joined(run.engine.replies[round, client].message.arrays("meme")) == pytest.approx(w, abs=1e-5)
        mean = (own["a"] + own["b"]) / 2
        assert joined(run.globals[round]) == pytest.approx(mean, abs=1e-5)
    at = Participant(run.job, federation["a"], dict(run.engine.kept[2, "a"]), 3, modules)
    served = joined(dict(run.job.method.predictor(at, run.engine.briefs[3, "a"]).state_dict()))
    assert served == pytest.approx(0.7 * own["a"] + 0.3 * mean, abs=1e-5)


def at_work(federation: Federation, method: L2GD, round: int, client: str, modules: Modules) -> Participant:
    job = Job(method, Plan(rounds=40, device="cpu"), federation.global_model)
    return Participant(job, federation[client], {}, round, modules)


def test_several_pulls_in_a_row_are_one(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, modules: Modules
) -> None:
    """A run with a coin in NumPy: m pulls of θ, one after the other, towards a mean that does not move."""
    federation = federate([5, 8], models=nets.linear, global_model=nets.linear)
    settings = {"batch_size": 20, "optimizer": {"name": "sgd", "lr": 0.3}, "rounds": 6}
    method = L2GD(theta=0.3, coin=0.6)
    run = simulate(method, federation, **settings)
    fresh = simulate(Independent(), federation, rounds=0)
    own = {client: joined(fresh.engine.kept[0, client]["personal"]) for client in "ab"}
    tossed = [method.tossed(at_work(federation, method, round, "a", modules)) for round in range(1, 7)]
    assert len(set(tossed)) > 2 and max(pulls for pulls, _ in tossed) > 1
    for round, (pulls, steps) in enumerate(tossed, start=1):
        mean = joined(run.globals[round - 1])
        for client in "ab":
            data = federation[client].train
            x, truth = np.hstack([data.x.double().numpy(), np.ones((len(data), 1))]), np.eye(3)[data.y.numpy()]
            w = own[client]
            for _ in range(pulls):
                w = 0.7 * w + 0.3 * mean
            for _ in range(steps):
                w = w - 0.3 * (softmax(x @ w.T, axis=1) - truth).T @ x / len(x)
            own[client] = w
            assert joined(run.engine.kept[round, client]["personal"]) == pytest.approx(w, abs=1e-5)


def test_the_coin_is_public_and_falls_as_often_as_it_should(
    nets: SimpleNamespace, federate: Federate, modules: Modules
) -> None:
    federation, method = federate(models=nets.linear, global_model=nets.linear), L2GD(coin=0.25)
    draws = [
        [method.tossed(at_work(federation, method, r, client, modules)) for r in range(1, 400)] for client in "ab"
    ]
    assert draws[0] == draws[1], "all clients pull and step alike"
    pulls, steps = np.array(draws[0]).T
    assert pulls.min() == steps.min() == 1
    assert pulls.mean() == pytest.approx(1 / 0.75, abs=0.15)  # until it falls on the other side
    assert steps.mean() == pytest.approx(1 / 0.25, abs=0.6)


def test_options(nets: SimpleNamespace, federate: Federate) -> None:
    assert L2GD().theta == 0.1 and L2GD().coin is None
    for wrong in ({"theta": 1.1}, {"coin": 0}, {"coin": 1}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            L2GD(**wrong)
    with pytest.raises(InputError, match=r"client a: its model is .* but l2gd needs the global's design"):
        L2GD().arrange(federate(models=nets.wide, global_model=nets.plain))
