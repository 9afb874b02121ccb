"""Data sharing: without draw and warm-up it is FedAvg; a round in NumPy; draws that last; the warm-up by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax  # type: ignore[import-untyped]

import mutua
from conftest import PLAN
from mutua import SGD, Federation, InputError
from mutua.data.public import Public
from mutua.methods import DataSharing, FedAvg
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]


def joined(state: Tensors) -> np.ndarray:
    return np.hstack([state["head.weight"].numpy(), state["head.bias"].numpy()[:, None]])


def with_public(federation: Federation, blobs: Any, n: int = 8) -> Federation:
    parts = {client.id: blobs(n, seed=50 + k) for k, client in enumerate(federation.clients)}
    return replace(federation, public=Public(parts))


@pytest.mark.parametrize("net", ["plain", "normed"])
def test_without_a_draw_and_a_warm_up_it_is_fedavg(
    net: str, nets: SimpleNamespace, federate: Federate, blobs: Any, identical: Identical
) -> None:
    federation = with_public(federate((9, 13, 5), global_model=getattr(nets, net)), blobs)
    none, drawn, warm, fedavg = (
        mutua.run(m, federation, **PLAN)
        for m in (
            DataSharing(alpha=0, warm_up=0),
            DataSharing(warm_up=0),
            DataSharing(alpha=0, warm_up=5),
            FedAvg(),
        )
    )
    assert identical(none.global_state, fedavg.global_state)  # type: ignore[arg-type]
    assert none.ledger.kinds("up") == fedavg.ledger.kinds("up") == drawn.ledger.kinds("up")
    for other in (drawn, warm):
        assert not identical(other.global_state, fedavg.global_state)  # type: ignore[arg-type]


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_two_rounds_equal_numpy(
    weighting: Any, nets: SimpleNamespace, federate: Federate, simulate: Simulate, blobs: Any, double: None
) -> None:
    """Full batches of own samples and, in both rounds, the same half of the public set; n_k counts both."""
    federation = with_public(federate([5, 9], models=nets.linear, global_model=nets.linear), blobs, 3)
    settings = {"steps": 2, "batch_size": 99, "optimizer": {"name": "sgd", "lr": 0.3}}
    warm = DataSharing(alpha=0.5, warm_up=2, warm_up_optimizer=SGD(lr=0.7), weights=weighting)
    run = simulate(warm, federation, rounds=2, **settings)
    cold = simulate(DataSharing(warm_up=0), federation, rounds=0)
    public = federation.public.whole  # type: ignore[union-attr]

    def stepped(w: np.ndarray, x: torch.Tensor, y: torch.Tensor, lr: float) -> np.ndarray:
        inputs = np.hstack([x.double().numpy(), np.ones((len(x), 1))])
        found: np.ndarray = w - lr * (softmax(inputs @ w.T, axis=1) - np.eye(3)[y.numpy()]).T @ inputs / len(x)
        return found

    w = joined(cold.server.state["global"])
    for _ in range(2):
        w = stepped(w, public.x, public.y, 0.7)
    assert joined(run.globals[0]) == pytest.approx(w, abs=1e-9), "warmed up on the public set"
    shares = (8 / 20, 12 / 20) if weighting == "samples" else (0.5, 0.5)
    for round in (1, 2):
        memes = []
        for client in "ab":
            data, v = federation[client].train, w
            drawn = public.take(run.engine.kept[0, client]["shared.drawn"]["index"])
            assert len(drawn) == 3
            for _ in range(2):
                v = stepped(v, torch.cat([data.x, drawn.x]), torch.cat([data.y, drawn.y]), 0.3)
            memes.append(v)
        w = shares[0] * memes[0] + shares[1] * memes[1]
        assert joined(run.globals[round]) == pytest.approx(w, abs=1e-9)


def test_a_draw_is_a_clients_own_and_lasts_all_rounds(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, blobs: Any
) -> None:
    run = simulate(DataSharing(alpha=0.25, warm_up=0), with_public(federate((9, 13, 5)), blobs), rounds=3)
    draws = {
        (round, client): tuple(run.engine.kept[round, client]["shared.drawn"]["index"].tolist())
        for round in range(4)
        for client in "abc"
    }
    for client in "abc":
        assert len({draws[round, client] for round in range(4)}) == 1
        assert len(set(draws[0, client])) == 6
    assert len({draws[0, client] for client in "abc"}) == 3
    for (_, client), reply in run.engine.replies.items():
        assert reply.message.number("samples") == {"a": 15, "b": 19, "c": 11}[client]


def test_a_public_set_without_labels_is_refused(federate: Federate, blobs: Any) -> None:
    federation = with_public(federate(), blobs)
    unlabelled = replace(federation, public=replace(federation.public, labelled=False))  # type: ignore[type-var]
    with pytest.raises(InputError, match=r"public.labelled: false, but datasharing trains on it"):
        DataSharing().arrange(unlabelled)
    with pytest.raises(InputError, match=r"public: missing; datasharing learns from a public set"):
        DataSharing().arrange(replace(federation, public=None))
