"""MOCHA: without λ training alone, unrelated it is weight decay, Ω against SciPy, and a round in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg  # type: ignore[import-untyped]
from scipy.special import softmax  # type: ignore[import-untyped]

import mutua
from conftest import PLAN
from mutua import Federation, InputError
from mutua.learning.relation import task_relation
from mutua.methods import Independent, Mocha
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]


@pytest.mark.parametrize("net", ["plain", "normed", "dropping"])
def test_without_lambda_each_client_is_alone_to_the_bit(
    net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    model = getattr(nets, net)
    federation = federate((9, 13, 5), models=model, global_model=model)
    free, tied, alone = (mutua.run(m, federation, **PLAN) for m in (Mocha(lam=0), Mocha(lam=0.05), Independent()))
    for one, other, third in zip(free.clients, tied.clients, alone.clients, strict=True):
        assert identical(one.state["personal"], third.state["personal"])
        assert not identical(other.state["personal"], third.state["personal"])
    assert free.global_state is None
    assert set(free.ledger.kinds("up")) == {"weights: model"}


@pytest.mark.parametrize("net", ["plain", "normed"])
def test_unrelated_it_is_weight_decay_of_two_lambda(net: str, nets: SimpleNamespace, federate: Federate) -> None:
    model = getattr(nets, net)
    federation = federate((9, 13, 5), models=model, global_model=model)
    decay = {**PLAN, "optimizer": {**PLAN["optimizer"], "weight_decay": 0.06}}
    one, other = (
        mutua.run(Mocha(lam=0.03, relation="none"), federation, **PLAN),
        mutua.run(Independent(), federation, **decay),
    )
    for ours, theirs in zip(one.clients, other.clients, strict=True):
        for name, array in ours.state["personal"].items():
            assert torch.allclose(array.double(), theirs.state["personal"][name].double(), atol=1e-6), name


@pytest.mark.parametrize("relation", ["learned", "mean", "none"])
def test_two_rounds_equal_numpy(
    relation: Any, nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """The gradient is CE's and 2λ·Σ_j Ω_kj w_j, the others' w_j being those that were sent last."""
    federation = federate([6, 8, 7], models=nets.linear, global_model=nets.linear)
    settings = {"steps": 3, "batch_size": 20, "optimizer": {"name": "sgd", "lr": 0.2}}
    run = simulate(Mocha(lam=0.05, relation=relation), federation, rounds=2, **settings)

    def joined(state: Tensors) -> np.ndarray:
        return np.hstack([state["head.weight"].numpy(), state["head.bias"].numpy()[:, None]])

    w = [joined(run.engine.kept[0, client]["personal"]) for client in "abc"]
    omega = {"learned": 3 * np.eye(3), "mean": np.eye(3) * 2 / 3, "none": np.eye(3)}[relation]
    for round in (1, 2):
        known, new = [v.copy() for v in w], []
        for k, client in enumerate("abc"):
            data = federation[client].train
            x, truth = np.hstack([data.x.double().numpy(), np.ones((len(data), 1))]), np.eye(3)[data.y.numpy()]
            v = w[k]
            for _ in range(3):
                others = sum(omega[k, j] * known[j] for j in range(3) if j != k)
                v = v - 0.2 * (
                    (softmax(x @ v.T, axis=1) - truth).T @ x / len(x) + 0.1 * (omega[k, k] * v + others)
                )
            new.append(v)
            assert joined(run.engine.kept[round, client]["personal"]) == pytest.approx(v, abs=1e-9)
            assert joined(run.engine.replies[round, client].message.arrays("model")) == pytest.approx(v, abs=1e-9)
        w = new
        W = np.stack([v.ravel() for v in w], axis=1)
        if relation == "learned":
            root = linalg.sqrtm(W.T @ W)
            omega = np.linalg.inv(root / np.trace(root))
        else:
            omega = np.eye(3) - (1 / 3 if relation == "mean" else 0)
    assert run.server.state["omega"][""].numpy() == pytest.approx(omega, rel=1e-6)


def test_the_relation_against_scipy_and_where_models_are_alike() -> None:
    W = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    root = linalg.sqrtm((W.T @ W).numpy())
    assert task_relation(W, "learned").numpy() == pytest.approx(np.linalg.inv(root / np.trace(root)), rel=1e-8)
    assert np.trace(np.linalg.inv(task_relation(W, "learned").numpy())) == pytest.approx(1)
    twins = torch.cat([W[:, :2], W[:, :1]], 1)  # the third is the first: WᵀW has no inverse
    omega = task_relation(twins, "learned")
    assert bool(omega.isfinite().all()) and float(omega[0, 2]) < 0 < float(omega[0, 0])
    assert abs(float(omega[0, 2])) > 100 * abs(float(omega[0, 1]))
    mean = task_relation(W, "mean")
    w, centre = W, W.mean(1, keepdim=True)
    assert torch.trace(w @ mean @ w.T) == pytest.approx(float((w - centre).square().sum()))
    assert torch.equal(task_relation(W, "none"), torch.eye(6, dtype=torch.float64))


def test_statistics_stay_and_a_client_never_drawn_is_left_as_it_was(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = federate((9, 6, 5, 8), models=nets.normed, global_model=nets.normed)
    run = simulate(Mocha(), federation, client_fraction=0.5, rounds=3, seed=1)
    drawn = {client for _, client in run.engine.replies}
    for reply in run.engine.replies.values():
        assert not any("running" in name or "tracked" in name for name in reply.message.arrays("model"))
    heard = sorted(drawn)
    assert run.server.state["omega"][""].shape == (len(heard), len(heard))
    assert {name for name in run.server.state if name.startswith("w ")} == {f"w {client}" for client in heard}


def test_what_it_cannot_do_is_refused_by_name(nets: SimpleNamespace, federate: Federate) -> None:
    with pytest.raises(InputError, match=r"client a: its model is .* but mocha needs the global's design"):
        Mocha().arrange(federate(models=nets.wide, global_model=nets.plain))
    with pytest.raises(InputError, match=r"models.global.share: a part, but mocha compares whole models"):
        Mocha().arrange(federate(models=nets.plain, global_model={"name": nets.plain, "share": "body"}))
    private = {"clip": 1.0, "noise": 1.0, "randomness": "seeded"}
    with pytest.raises(InputError, match=r"privacy: mocha sends models that are no update of a global"):
        mutua.run(Mocha(), federate(models=nets.plain), privacy=private, **PLAN)
