"""FedALA: with weights of 1 it is FedAvg; learned weights and merging in NumPy; which layers are last."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax  # type: ignore[import-untyped]
from torch import nn

import mutua
from conftest import PLAN
from mutua import Federation, InputError
from mutua.methods import FedALA, FedAvg
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]


@pytest.mark.parametrize("net", ["plain", "normed", "dropping"])
def test_with_weights_of_1_it_is_fedavg_to_the_bit(
    net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    """A rate of 0 leaves all weights at 1; all else is done: what merges and learns must touch nothing more."""
    model = getattr(nets, net)
    federation = federate((9, 13, 5), models=model, global_model=model)
    still, fedavg = (mutua.run(m, federation, **PLAN) for m in (FedALA(eta=0, layers=9), FedAvg()))
    moving = mutua.run(FedALA(eta=5), federation, **PLAN)
    assert identical(still.global_state, fedavg.global_state)  # type: ignore[arg-type]
    assert not identical(moving.global_state, fedavg.global_state)  # type: ignore[arg-type]
    assert still.ledger.kinds("up") == fedavg.ledger.kinds("up")
    for client in still.clients:
        assert all(bool((w == 1).all()) for w in client.state["ala.weights"].values())
        assert identical(dict(client.predictor.model.state_dict()), fedavg.global_state)  # type: ignore[arg-type]


def test_three_rounds_equal_numpy(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """The first round has nothing to merge; then W learns from 1, by two passes and later by one, and lasts."""
    federation = federate([5, 8], models=nets.linear, global_model=nets.linear)
    method = FedALA(sample=1.0, eta=0.8, first_passes=2)
    settings = {"steps": 2, "batch_size": 20, "optimizer": {"name": "sgd", "lr": 0.5}}
    run = simulate(method, federation, rounds=3, **settings)

    def joined(state: Tensors) -> np.ndarray:
        return np.hstack([state["head.weight"].numpy(), state["head.bias"].numpy()[:, None]])

    shared = joined(run.globals[0])
    local: dict[str, np.ndarray] = {}
    W = {client: np.ones_like(shared) for client in "ab"}
    for round in (1, 2, 3):
        memes = {}
        for client in "ab":
            data = federation[client].train
            x, truth = np.hstack([data.x.double().numpy(), np.ones((len(data), 1))]), np.eye(3)[data.y.numpy()]

            def slope(w: np.ndarray, x: np.ndarray = x, truth: np.ndarray = truth) -> np.ndarray:
                found: np.ndarray = (softmax(x @ w.T, axis=1) - truth).T @ x / len(x)
                return found

            w = shared
            if client in local:
                own = local[client]
                for _ in range(2 if round == 2 else 1):
                    merged = own + (shared - own) * W[client]
                    W[client] = np.clip(W[client] - 0.8 * slope(merged) * (shared - own), 0, 1)
                w = own + (shared - own) * W[client]
            for _ in range(2):
                w = w - 0.5 * slope(w)
            memes[client] = local[client] = w
            found = joined(run.engine.replies[round, client].message.arrays("meme"))
            assert found == pytest.approx(w, abs=1e-9)
            assert joined(run.engine.kept[round, client]["ala.weights"]) == pytest.approx(W[client], abs=1e-9)
        shared = (5 * memes["a"] + 8 * memes["b"]) / 13
        assert joined(run.globals[round]) == pytest.approx(shared, abs=1e-9)
    assert all(0 <= w.min() < w.max() <= 1 for w in W.values())


class HeadFirst(nn.Module):
    """Its head is the first attribute, as in public networks whose last layers were taken for the first."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(7, classes)
        self.inner = nn.Linear(6, 7)
        self.outer = nn.Sequential(nn.Linear(channels, 6), nn.BatchNorm1d(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.inner(self.outer(x))))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("layers", "names"), [(1, {"head"}), (2, {"head", "outer.1"}), (4, {"head", "outer.1", "outer.0", "inner"})]
)
def test_the_last_layers_are_the_head_and_those_before_it(layers: int, names: set[str]) -> None:
    found = FedALA(layers=layers).last(HeadFirst(4, 3))
    assert {name.rpartition(".")[0] for name in found} == names
    assert len(found) == 2 * len(names)


def test_only_the_last_layers_are_merged_and_no_statistics_move(
    federate: Federate, simulate: Simulate, modules: Any
) -> None:
    federation = federate((9, 13, 5), models=HeadFirst, global_model=HeadFirst)
    run = simulate(FedALA(eta=20.0), federation, rounds=2, optimizer={"name": "sgd", "lr": 0.3})
    served = mutua.methods.Participant(run.job, federation["a"], dict(run.engine.kept[3, "a"]), 3, modules)
    model = run.job.method.predictor(served, run.engine.briefs[3, "a"]).state_dict()
    for name, array in run.globals[2].items():
        assert torch.equal(model[name], array) != name.startswith("head."), name


def test_a_partial_global_is_refused_by_name(nets: SimpleNamespace, federate: Federate) -> None:
    with pytest.raises(InputError, match=r"models.global.share: a part, but fedala merges .*; share 'all'"):
        FedALA().arrange(federate(global_model={"name": nets.plain, "share": "body"}))
