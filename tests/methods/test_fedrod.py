"""FedRoD: without γ its global is FedAvg's; losses in NumPy; rare and absent classes; what h_P does not touch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax  # type: ignore[import-untyped]

import mutua
from mutua import Federation, InputError
from mutua.methods import FedAvg, FedRoD
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
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
}


@pytest.mark.parametrize("net", ["plain", "normed", "dropping"])
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_without_gamma_its_global_is_fedavgs_to_the_bit(
    weights: Any, net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    """Also where a class is missing: 0⁰ is 1. The private head, which learns beside it, changes nothing."""
    model = getattr(nets, net)
    federation = federate((9, 13, 5), models=model, global_model=model)
    a = federation["a"]
    poorer = replace(a, train=a.train.take((a.train.y != 2).nonzero()[:, 0]))
    federation = replace(federation, clients=(poorer, *federation.clients[1:]))
    rod, fedavg = (mutua.run(m(weights=weights), federation, **PLAN) for m in (FedRoD, FedAvg))
    still = mutua.run(FedRoD(weights=weights, gamma=0), federation, **PLAN)
    assert identical(still.global_state, fedavg.global_state)  # type: ignore[arg-type]
    assert not identical(rod.global_state, fedavg.global_state)  # type: ignore[arg-type]
    assert all(client.state["own_head"]["weight"].any() for client in still.clients)


def test_two_rounds_equal_numpy(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """The meme's loss has the prior, h_P's has none and reaches neither the body nor the generic head."""
    federation = federate([7, 12], models=nets.plain, global_model=nets.plain)
    given = {"rounds": 2, "epochs": 2, "batch_size": 20, "optimizer": {"name": "sgd", "lr": 0.5}}
    run = simulate(FedRoD(gamma=0.7, weights="uniform"), federation, **given)
    g = {name: array.numpy() for name, array in run.globals[0].items()}
    own = {client: np.zeros((3, 7)) for client in "ab"}
    for round in (1, 2):
        memes = []
        for client in "ab":
            data, w, losses = federation[client].train, dict(g), []
            x, truth = data.x.double().numpy(), np.eye(3)[data.y.numpy()]
            prior = 0.7 * np.log(truth.sum(0))
            assert np.isfinite(prior).all()
            for _ in range(2):
                z = np.tanh(x @ w["body.weight"].T + w["body.bias"])
                scores, Z = z @ w["head.weight"].T + w["head.bias"], np.hstack([z, np.ones((len(z), 1))])
                both = scores + Z @ own[client].T
                losses.append(
                    (
                        -(truth * log_softmax(scores + prior, 1)).sum(1).mean(),
                        -(truth * log_softmax(both, 1)).sum(1).mean(),
                    )
                )
                d, e = ((softmax(s, axis=1) - truth) / len(x) for s in (scores + prior, both))
                a = d @ w["head.weight"] * (1 - z**2)
                slopes = {
                    "body.weight": a.T @ x,
                    "body.bias": a.sum(0),
                    "head.weight": d.T @ z,
                    "head.bias": d.sum(0),
                }
                w = {name: p - 0.5 * slopes[name] for name, p in w.items()}
                own[client] = own[client] - 0.5 * e.T @ Z
            memes.append(w)
            kept, terms = run.engine.kept[round, client]["own_head"], run.engine.replies[round, client].terms
            assert np.hstack([kept["weight"], kept["bias"][:, None]]) == pytest.approx(own[client], abs=1e-10)
            assert (terms["meme"], terms["own_head"]) == pytest.approx(tuple(np.mean(losses, 0)), abs=1e-10)
        g = {name: (memes[0][name] + memes[1][name]) / 2 for name in g}
        for name, array in run.globals[round].items():
            assert array.numpy() == pytest.approx(g[name], abs=1e-10), name


def test_what_is_served_is_both_heads_together_without_a_prior(nets: SimpleNamespace, federate: Federate) -> None:
    result = mutua.run(FedRoD(), federate(models=nets.plain, global_model=nets.plain), **PLAN)
    shared = {name: array.double().numpy() for name, array in (result.global_state or {}).items()}
    for client in result.clients:
        x = client.client.test.x
        own = {name: array.double().numpy() for name, array in client.state["own_head"].items()}
        z = np.tanh(x.double().numpy() @ shared["body.weight"].T + shared["body.bias"])
        expected = z @ (shared["head.weight"] + own["weight"]).T + shared["head.bias"] + own["bias"]
        with torch.no_grad():
            found = client.predictor.model(x).numpy()
        assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("net", ["plain", "normed"])
def test_a_lone_sample_of_a_class_in_the_partial_batch_keeps_losses_finite(
    net: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """Counts are of all training samples: a loader that drops the last batch would count this class 0."""
    model = getattr(nets, net)
    federation = federate((9, 8), models=model, global_model=model)
    a = federation["a"]
    y = torch.zeros(9, dtype=torch.long)
    y[3] = 1  # and none of the third class
    lone = replace(a, train=replace(a.train, y=y))
    federation = replace(federation, clients=(lone, federation["b"]))
    run = simulate(FedRoD(), federation, rounds=4, optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9})
    for round in range(1, 5):
        assert all(np.isfinite(value) for value in run.engine.replies[round, "a"].terms.values())
    assert all(bool(array.isfinite().all()) for array in run.globals[-1].values())


def test_the_absent_class_is_ruled_out_in_training_only(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """Its row of the generic head gets no gradient, and what is served still scores it."""
    federation = federate([9], models=nets.plain, global_model=nets.plain)
    a = federation["a"]
    poorer = replace(a, train=a.train.take((a.train.y != 2).nonzero()[:, 0]))
    run = simulate(FedRoD(), replace(federation, clients=(poorer,)), rounds=2, batch_size=4)
    assert torch.equal(run.globals[0]["head.weight"][2], run.globals[-1]["head.weight"][2])
    assert not torch.equal(run.globals[0]["head.weight"][1], run.globals[-1]["head.weight"][1])
    assert np.isfinite(run.history.last("a", "predictor", "test", "loss"))


def test_counts_and_the_private_head_stay_and_before_its_first_training_a_client_has_the_global(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    run = simulate(FedRoD(), federate((9, 6, 5, 8), models=nets.plain), client_fraction=0.25, rounds=1)
    assert set(run.ledger.kinds("up")) == {"weights: meme", "count: samples"}
    (drawn,) = {client for _, client in run.engine.replies}
    for client in "abcd":
        own, shared = (run.history.last(client, model, "test", "loss") for model in ("predictor", "global"))
        assert (own == shared) == (client != drawn)


def test_what_it_cannot_do_is_refused_by_name(nets: SimpleNamespace, federate: Federate) -> None:
    with pytest.raises(InputError, match=r"share: a part, but fedrod shares its generic head"):
        FedRoD().arrange(federate(global_model={"name": nets.plain, "share": "body"}))
    with pytest.raises(InputError, match=r"privacy: fedrod sends 'samples' \(count\).*weights: uniform"):
        mutua.run(FedRoD(), federate(models=nets.plain), **PLAN, privacy={"clip": 1.0, "noise": 1.0})
    private = {"level": "example", "clip": 1.0, "noise": 1.0}
    with pytest.raises(InputError, match=r"privacy.level: 'example', but in fedrod"):
        mutua.run(FedRoD(weights="uniform"), federate(models=nets.plain), **PLAN, privacy=private)
