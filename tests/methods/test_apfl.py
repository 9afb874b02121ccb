"""APFL: its global is FedAvg's for every α, at its ends it is FedAvg and training alone, and a round in NumPy."""

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
from mutua.methods import APFL, FedAvg, Independent
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]


@pytest.mark.parametrize("net", ["plain", "normed", "dropping"])
@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": 0.3}, {"alpha": 1.0, "adaptive": False}], ids=str)
def test_its_global_is_uniform_fedavgs_for_every_alpha(
    options: Any, net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    model = getattr(nets, net)
    federation = federate((9, 13, 5), models=model, global_model=model)
    apfl, fedavg = (mutua.run(m, federation, **PLAN) for m in (APFL(**options), FedAvg(weights="uniform")))
    assert identical(apfl.global_state, fedavg.global_state)  # type: ignore[arg-type]
    assert apfl.ledger.kinds("up") == fedavg.ledger.kinds("up")


@pytest.mark.parametrize("net", ["plain", "normed", "dropping"])
def test_fixed_at_0_it_serves_with_the_global_and_at_1_with_a_model_trained_alone(
    net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    model = getattr(nets, net)
    federation = federate((9, 13, 5), models=model, global_model=model)
    low, high = (mutua.run(APFL(alpha=alpha, adaptive=False), federation, **PLAN) for alpha in (0.0, 1.0))
    alone = mutua.run(Independent(), federation, **PLAN)
    for one, other, third in zip(low.clients, high.clients, alone.clients, strict=True):
        assert identical(dict(one.predictor.model.state_dict()), low.global_state)  # type: ignore[arg-type]
        assert identical(dict(other.predictor.model.state_dict()), third.state["personal"])
        assert identical(other.state["personal.optimizer"], third.state["personal.optimizer"])


@pytest.mark.parametrize("adaptive", [True, False])
def test_two_rounds_equal_numpy(
    adaptive: bool, nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """Gradients are of before the step, v's at the mixture with the factor α; α moves at the first batch only."""
    federation = federate([7], models=nets.linear, global_model=nets.linear)
    settings = {"steps": 3, "batch_size": 7, "optimizer": {"name": "sgd", "lr": 0.5}}
    run = simulate(APFL(alpha=0.4, adaptive=adaptive, alpha_decay=0.1), federation, rounds=2, **settings)

    def joined(state: Tensors) -> np.ndarray:
        return np.hstack([state["head.weight"].numpy(), state["head.bias"].numpy()[:, None]])

    data = federation["a"].train
    x, truth = np.hstack([data.x.double().numpy(), np.ones((7, 1))]), np.eye(3)[data.y.numpy()]

    def gradient(w: np.ndarray) -> np.ndarray:
        slope: np.ndarray = (softmax(x @ w.T, axis=1) - truth).T @ x / 7
        return slope

    fresh = simulate(Independent(), federation, rounds=0)
    shared, v, alpha = joined(run.globals[0]), joined(fresh.engine.kept[0, "a"]["personal"]), 0.4
    for round in (1, 2):
        w = shared
        for step in range(3):
            slope = gradient(alpha * v + (1 - alpha) * w)
            moved = np.clip(alpha - 0.5 * (((v - w) * slope).sum() + 0.1 * alpha), 0, 1)
            w, v = w - 0.5 * gradient(w), v - 0.5 * alpha * slope
            alpha = moved if adaptive and step == 0 else alpha
        shared = w
        assert joined(run.engine.kept[round, "a"]["personal"]) == pytest.approx(v, abs=1e-9)
        assert float(run.engine.kept[round, "a"]["apfl.alpha"][""]) == pytest.approx(alpha, abs=1e-9)
        assert joined(run.globals[round]) == pytest.approx(shared, abs=1e-9)
    assert adaptive == (alpha != 0.4)


def test_alphas_gradient_by_finite_differences(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """With batch-norm: one step of the run moves α by lr times the slope of the loss along α."""
    federation = federate([8], models=nets.plain, global_model=nets.plain)
    given: dict[str, Any] = {"rounds": 1, "steps": 1, "batch_size": 8, "optimizer": {"name": "sgd", "lr": 0.05}}

    def mixed_loss(alpha: float) -> float:
        run = simulate(APFL(alpha=alpha, adaptive=False), federation, **given)
        return float(run.engine.replies[1, "a"].terms["personal"])

    run = simulate(APFL(alpha=0.6), federation, **given)
    slope = (mixed_loss(0.6 + 1e-5) - mixed_loss(0.6 - 1e-5)) / 2e-5
    assert float(run.engine.kept[1, "a"]["apfl.alpha"][""]) == pytest.approx(0.6 - 0.05 * slope, abs=1e-7)
    assert abs(slope) > 1e-3


def test_alpha_stays_between_0_and_1_lasts_and_does_not_leave(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    run = simulate(APFL(), federate(models=nets.plain), rounds=6, optimizer={"name": "sgd", "lr": 0.3})
    alphas = [float(run.engine.kept[round, client]["apfl.alpha"][""]) for round in range(1, 7) for client in "abc"]
    assert all(0 <= alpha <= 1 for alpha in alphas) and len(set(alphas)) > 3
    assert set(run.ledger.kinds("up")) == {"weights: meme"}
    with pytest.raises(InputError, match="alpha"):
        APFL(alpha=1.5)


def test_what_is_served_is_the_mixture_of_both_models_and_changes_no_state(
    nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    federation = federate(models=nets.normed, global_model=nets.normed)
    result = mutua.run(APFL(alpha=0.25, adaptive=False), federation, **PLAN)
    shared = result.global_state
    assert shared is not None
    for client in result.clients:
        before = {name: array.clone() for name, array in client.state["personal"].items()}
        served = client.predictor.model.state_dict()
        assert identical(client.state["personal"], before)
        for name, own in before.items():
            if own.is_floating_point():
                assert torch.allclose(served[name], 0.25 * own + 0.75 * shared[name], atol=1e-6), name


def test_models_of_other_designs_are_refused_by_name(nets: SimpleNamespace, federate: Federate) -> None:
    with pytest.raises(InputError, match=r"client a: its model is .* but apfl needs the global's design"):
        APFL().arrange(federate(models=nets.wide, global_model=nets.plain))


def test_weights_are_mixed_and_not_outputs(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """With a hidden layer the two differ: one step of L in plain torch, at the mixture of weights."""
    federation = federate([8], models=nets.plain, global_model=nets.plain)
    given: dict[str, Any] = {"rounds": 1, "steps": 1, "batch_size": 8, "optimizer": {"name": "sgd", "lr": 0.5}}
    run = simulate(APFL(alpha=0.4, adaptive=False), federation, **given)
    v = simulate(Independent(), federation, rounds=0).engine.kept[0, "a"]["personal"]
    w, data = run.globals[0], federation["a"].train
    mixed = {name: (0.4 * array + 0.6 * w[name]).requires_grad_() for name, array in v.items()}
    hidden = torch.tanh(data.x.double() @ mixed["body.weight"].T + mixed["body.bias"])
    scores = hidden @ mixed["head.weight"].T + mixed["head.bias"]
    torch.nn.functional.cross_entropy(scores, data.y).backward()
    for name, array in v.items():
        expected = array - 0.5 * 0.4 * mixed[name].grad
        assert torch.allclose(run.engine.kept[1, "a"]["personal"][name], expected, atol=1e-12), name
