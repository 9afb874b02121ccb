"""Per-FedAvg: without α it is uniform FedAvg; first-order, difference and exact steps in NumPy; statistics."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy.special import softmax  # type: ignore[import-untyped]
from torch import nn

import mutua
from conftest import PLAN
from mutua import Federation
from mutua.federation.module_pool import Modules
from mutua.methods import FedAvg, Participant, PerFedAvg
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]

HESSIANS = ("first-order", "difference", "exact")


def convolved(channels: int, classes: int) -> nn.Module:
    layers = {
        "body": nn.Linear(channels, 6),
        "norm": nn.BatchNorm1d(6),
        "act": nn.Tanh(),
        "head": nn.Linear(6, classes),
    }
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model


@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize("net", ["plain", "batch-norm"])
def test_without_alpha_it_is_uniform_fedavg_to_the_bit(
    net: str, hessian: Any, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    model = nets.plain if net == "plain" else convolved
    federation = federate((9, 13, 5), models=model, global_model=model)
    method = PerFedAvg(alpha=0, hessian=hessian)
    meta, fedavg = (mutua.run(m, federation, **PLAN) for m in (method, FedAvg(weights="uniform")))
    assert identical(meta.global_state, fedavg.global_state)  # type: ignore[arg-type]
    assert meta.ledger.kinds("up") == fedavg.ledger.kinds("up")
    assert identical(dict(meta.clients[0].predictor.model.state_dict()), fedavg.global_state)  # type: ignore[arg-type]


class Softmax:
    """Cross-entropy of a linear model: gradient, and the Hessian times a matrix, in closed form."""

    def __init__(self, federation: Federation, client: str) -> None:
        data = federation[client].train
        self.x = np.hstack([data.x.double().numpy(), np.ones((len(data), 1))])
        self.truth = np.eye(3)[data.y.numpy()]

    def slope(self, w: np.ndarray) -> np.ndarray:
        found: np.ndarray = (softmax(self.x @ w.T, axis=1) - self.truth).T @ self.x / len(self.x)
        return found

    def curved(self, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        p, d = softmax(self.x @ w.T, axis=1), self.x @ v.T
        found: np.ndarray = (p * d - p * (p * d).sum(1, keepdims=True)).T @ self.x / len(self.x)
        return found


def joined(state: Tensors) -> np.ndarray:
    return np.hstack([state["head.weight"].numpy(), state["head.bias"].numpy()[:, None]])


@pytest.mark.parametrize("hessian", HESSIANS)
def test_two_rounds_equal_numpy(
    hessian: Any, nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None, modules: Modules
) -> None:
    """All data in each batch, so that D, D' and D'' are alike: w̃, the gradient there, the curvature at w."""
    federation = federate([7, 11], models=nets.linear, global_model=nets.linear)
    settings = {"steps": 2, "batch_size": 20, "optimizer": {"name": "sgd", "lr": 0.3}}
    method = PerFedAvg(alpha=0.4, hessian=hessian)
    run = simulate(method, federation, rounds=2, **settings)
    shared = joined(run.globals[0])
    for round in (1, 2):
        memes = []
        for client in "ab":
            at, w = Softmax(federation, client), shared
            for _ in range(2):
                outer = at.slope(w - 0.4 * at.slope(w))
                step = outer if hessian == "first-order" else outer - 0.4 * at.curved(w, outer)
                w = w - 0.3 * step
            memes.append(w)
            found = joined(run.engine.replies[round, client].message.arrays("meme"))
            assert found == pytest.approx(w, abs=1e-6 if hessian == "difference" else 1e-9)
        shared = sum(memes) / 2
        assert joined(run.globals[round]) == pytest.approx(shared, abs=1e-6)
    served = Participant(run.job, federation["a"], dict(run.engine.kept[2, "a"]), 3, modules)
    found = joined(dict(method.predictor(served, run.engine.briefs[3, "a"]).state_dict()))
    adapted = shared - 0.4 * Softmax(federation, "a").slope(shared)
    assert found == pytest.approx(adapted, abs=1e-6), "it serves with the global after one step of rate alpha"


class Quadratic(PerFedAvg):
    """½(w − c)ᵀA(w − c) of all parameters, whatever the data are."""

    name: ClassVar[str] = "quadratic"

    def objective(self, models: Any, batch: Any, hp: Any) -> Any:
        w = torch.cat([p.reshape(-1) for p in models["meme"].parameters()])
        A, c = bowl(len(w))
        return {"meme": 0.5 * (w - c) @ A @ (w - c)}


def bowl(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    root = torch.randn(n, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / n**0.5
    return root @ root.T, torch.linspace(-1, 1, n, dtype=torch.float64)


@pytest.mark.parametrize(("hessian", "power"), [("exact", 2), ("difference", 2), ("first-order", 1)])
def test_the_step_is_that_of_the_closed_form_of_a_quadratic(
    hessian: Any, power: int, nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """∇F(w) = (I − αA)·A·(I − αA)(w − c), the first factor without the Hessian left out."""
    run = simulate(
        Quadratic(alpha=0.2, hessian=hessian),
        federate([8], models=nets.linear, global_model=nets.linear),
        **{"rounds": 1, "steps": 1, "optimizer": {"name": "sgd", "lr": 0.5}},
    )
    before, after = (
        np.concatenate([a.numpy().ravel() for a in state.values()]) for state in (run.globals[0], run.globals[1])
    )
    A, c = (array.numpy() for array in bowl(len(before)))
    shrink = np.eye(len(before)) - 0.2 * A
    gradient = np.linalg.matrix_power(shrink, power - 1) @ A @ shrink @ (before - c)
    assert after == pytest.approx(before - 0.5 * gradient, abs=1e-9)


def test_each_client_trains_once_a_round_and_only_its_own_batches_move_the_statistics(
    federate: Federate, simulate: Simulate
) -> None:
    """As many forwards count for batch-norm as with FedAvg, and each is seen by the running mean."""
    federation = federate([8, 6], models=convolved, global_model=convolved)
    meta, fedavg = (
        simulate(m, federation, rounds=1, steps=1, batch_size=16)
        for m in (PerFedAvg(alpha=0.3, hessian="exact"), FedAvg(weights="uniform"))
    )
    for client in "ab":
        ours, theirs = (
            run.engine.replies[1, client].message.arrays("meme")["norm.running_mean"] for run in (meta, fedavg)
        )
        assert not torch.equal(ours, meta.globals[0]["norm.running_mean"]) and not torch.equal(ours, theirs)
        # One forward of momentum 0.1 at w̃: a tenth of that batch's mean, of which only w̃ is another.
        assert torch.allclose(ours, theirs, atol=0.1 * float(theirs.abs().max()))


def test_the_batches_of_the_inner_step_are_others_than_those_of_the_outer_one(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, tuple[int, ...]]] = []
    inner, outer = PerFedAvg.gradient, PerFedAvg.objective

    def gradient(self: Any, client: Any, meme: Any, batch: Any, create_graph: bool = False) -> Any:
        seen.append(("inner", tuple(batch.index.tolist())))
        return inner(self, client, meme, batch, create_graph)

    def objective(self: Any, models: Any, batch: Any, hp: Any) -> Any:
        seen.append(("any", tuple(batch.index.tolist())))
        return outer(self, models, batch, hp)

    def train(self: Any, client: Any, brief: Any) -> Any:
        seen.clear()  # of the evaluation before
        reply = work(self, client, brief)
        training.extend(seen)
        return reply

    training: list[tuple[str, tuple[int, ...]]] = []
    work = PerFedAvg.train
    monkeypatch.setattr(PerFedAvg, "train", train)
    monkeypatch.setattr(PerFedAvg, "gradient", gradient)
    monkeypatch.setattr(PerFedAvg, "objective", objective)
    federation = federate([16], models=nets.plain, global_model=nets.plain)
    simulate(PerFedAvg(hessian="exact"), federation, rounds=1, evaluate_every=9)
    assert len(training) == 4 * 5  # in each step D, D' and D'': two inner gradients, three losses
    d, all_of_them = [b for kind, b in training if kind == "inner"], [b for kind, b in training if kind == "any"]
    first, second, own = d[0::2], d[1::2], all_of_them[1::3]
    assert len({*first}) == len({*second}) == len({*own}) == 4
    assert not {*first} & {*own} and not {*second} & {*own} and not {*first} & {*second}
