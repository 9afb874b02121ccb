"""FedProto: mean features by class, matched by name, and models drawn to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mutua import Federation, InputError
from mutua.methods import FedProto, Independent, Kind, Message, Part, Participant
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]
MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}

APE_BEE = torch.arange(3) < 2


@pytest.mark.parametrize("net", ["plain", "normed"])
def test_without_lambda_it_is_independent(
    net: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate((9, 13, 5), models=getattr(nets, net), global_model=None)
    runs = [
        simulate(method, federation, rounds=3, optimizer=MOMENTUM) for method in (FedProto(lam=0), Independent())
    ]
    for client in "abc":
        assert identical(*(run.engine.kept[3, client]["personal"] for run in runs))
    drawn = simulate(FedProto(), federation, rounds=3, optimizer=MOMENTUM)
    assert not identical(*(run.engine.kept[3, "a"]["personal"] for run in (drawn, runs[1])))


def features_by_hand(state: Tensors, x: torch.Tensor) -> np.ndarray:
    """Of `normed` in evaluation mode: z = relu(batch-norm by running statistics)."""
    s = {n: a.double().numpy() for n, a in state.items()}
    a = x.double().numpy() @ s["body.weight"].T + s["body.bias"]
    normed = (a - s["norm.running_mean"]) / np.sqrt(s["norm.running_var"] + 1e-5)
    return np.maximum(normed * s["norm.weight"] + s["norm.bias"], 0)


def test_prototypes_are_class_means_of_the_trained_model_over_all_own_samples(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """Not of a model that still moves, nor with dropout, nor without the last partial batch."""
    federation = federate((9, 13), models=nets.normed, global_model=None)
    run = simulate(FedProto(), federation)
    for (round, client), reply in run.engine.replies.items():
        data, sent = federation[client].train, reply.message.arrays("prototypes")
        z = features_by_hand(run.engine.kept[round, client]["personal"], data.x)
        assert set(sent) == set(federation[client].held_classes)
        for name, vector in sent.items():
            of = data.y.numpy() == data.classes.index(name)
            assert vector.numpy() == pytest.approx(z[of].mean(0), abs=1e-5)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_the_server_takes_the_mean_over_the_clients_that_have_the_class(
    weights: Any, federate: Federate, simulate: Simulate
) -> None:
    federation = federate((9, 13, 5), global_model=None)
    a = federation["a"]
    poorer = replace(a, train=a.train.take((a.train.y != 2).nonzero()[:, 0]))
    federation = replace(federation, clients=(poorer, *federation.clients[1:]))
    run = simulate(FedProto(weights=weights), federation)
    replies = [run.engine.replies[2, c].message for c in "abc"]
    assert set(replies[0].arrays("prototypes")) == {"ape", "bee"}
    for name in ("ape", "bee", "cat"):
        having = [k for k, reply in enumerate(replies) if name in reply.arrays("prototypes")]
        vectors = [replies[k].arrays("prototypes")[name].double().numpy() for k in having]
        counts = [int((federation["abc"[k]].train.y == federation.classes.index(name)).sum()) for k in having]
        if weights == "samples":
            assert [float(replies[k].arrays("class_counts")[name]) for k in having] == counts
        by_hand = np.average(vectors, axis=0, weights=counts if weights == "samples" else None)
        assert run.server.state["prototypes"][name].numpy() == pytest.approx(by_hand, abs=1e-5)
    assert ("class_counts" in replies[0]) == (weights == "samples")


def test_a_class_that_nobody_sent_keeps_its_last_prototype(federate: Federate, simulate: Simulate) -> None:
    """One client alone has cats, and is not drawn in every round."""
    federation = federate((12, 12, 14, 14), global_model=None)
    clients = tuple(
        client
        if client.id == "d"
        else replace(client, train=client.train.take(APE_BEE[client.train.y].nonzero()[:, 0]))
        for client in federation.clients
    )
    run = simulate(FedProto(), replace(federation, clients=clients), rounds=6, client_fraction=0.5, seed=2)
    rounds = {round for round, client in run.engine.replies if client == "d"}
    assert 1 < len(rounds) < 6
    briefs = {round: brief.arrays("prototypes") for (round, _), brief in run.engine.briefs.items()}
    for round in range(min(rounds) + 1, 7):
        assert "cat" in briefs[round]
        assert torch.equal(briefs[round]["cat"], briefs[round + 1]["cat"]) == (round not in rounds)


def test_the_gradient_is_of_the_mean_over_batch_and_features(
    federate: Federate, simulate: Simulate, nets: Any
) -> None:
    """Against NumPy, one full batch: ∂/∂z of λ·mean (z − P_y)² is 2λ(z − P_y)/(n·d), 0 without a prototype."""
    federation = federate((10,), models=nets.plain, global_model=None)
    run = simulate(FedProto(lam=3.0), federation, rounds=2, batch_size=50, optimizer={"name": "sgd", "lr": 0.4})
    data, known = federation["a"].train, run.engine.briefs[2, "a"].arrays("prototypes")
    s = {n: a.double().numpy() for n, a in run.engine.kept[1, "a"]["personal"].items()}
    x, y = data.x.double().numpy(), data.y.numpy()
    z = np.tanh(x @ s["body.weight"].T + s["body.bias"])
    p = np.exp(z @ s["head.weight"].T + s["head.bias"])
    d = (p / p.sum(1, keepdims=True) - np.eye(3)[y]) / len(y)
    target = np.stack([known[data.classes[c]].double().numpy() for c in y])
    dz = d @ s["head.weight"] + 3.0 * 2 * (z - target) / z.size
    body = s["body.weight"] - 0.4 * (dz * (1 - z**2)).T @ x
    assert run.engine.kept[2, "a"]["personal"]["body.weight"].numpy() == pytest.approx(body, abs=1e-5)


def test_a_client_serves_with_the_nearest_prototype_among_its_own_classes(
    federate: Federate, simulate: Simulate, nets: Any, modules: Any
) -> None:
    federation = federate((20, 13), models=nets.plain, global_model=None)
    a = federation["a"]
    poorer = replace(a, train=a.train.take(APE_BEE[a.train.y].nonzero()[:, 0]))
    run = simulate(FedProto(), replace(federation, clients=(poorer, federation["b"])))
    brief, state = run.engine.briefs[3, "a"], run.engine.kept[3, "a"]
    model = run.job.method.predictor(Participant(run.job, poorer, dict(state), 3, modules), brief).eval()
    s = {n: v.double().numpy() for n, v in state["personal"].items()}
    z = np.tanh(a.test.x.double().numpy() @ s["body.weight"].T + s["body.bias"])
    far = np.stack([((z - brief.arrays("prototypes")[c].double().numpy()) ** 2).sum(1) for c in ("ape", "bee")], 1)
    assert model(a.test.x).argmax(1).tolist() == far.argmin(1).tolist()
    assert run.history.last("a", "head", "test", "accuracy") is not None
    by_head = simulate(FedProto(serve="head"), replace(federation, clients=(poorer, federation["b"])))
    assert by_head.history.last("a", "predictor", "test", "loss") == run.history.last("a", "head", "test", "loss")


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        ({"ape": torch.ones(5)}, "its prototype of 'ape' is not 6 finite numbers"),
        ({"ape": torch.full((6,), torch.nan)}, "its prototype of 'ape' is not 6 finite numbers"),
        ({f"class {k}": torch.ones(6) for k in range(4)}, "its prototypes are of 4 classes; there are 3"),
        ({}, "its prototypes are of 0 classes; there are 3"),
    ],
)
def test_prototypes_that_cannot_be_are_refused_and_the_round_goes_on(
    vectors: Tensors, said: str, federate: Federate, simulate: Simulate
) -> None:
    def lie(round: int, client: str, message: Message) -> Message:
        return Message(prototypes=Part(Kind.PROTOTYPES, vectors)) if client == "a" else message

    run = simulate(FedProto(), federate(global_model=None), tamper=lie)
    refused = [turn for turn in run.participation if turn.outcome == "refused"]
    assert {turn.client for turn in refused} == {"a"} and said in refused[0].reason


def test_designs_need_features_of_one_width(nets: SimpleNamespace, federate: Federate, simulate: Simulate) -> None:
    with pytest.raises(InputError, match=r"models.features: missing; fedproto needs features of one width"):
        FedProto().arrange(federate((5, 6), models=[nets.plain, nets.wide], global_model=None))
    pooled = [{"name": net, "features": 2} for net in (nets.plain, nets.wide)]
    run = simulate(FedProto(), federate((5, 6), models=pooled, global_model=None))
    assert {vector.shape for vector in run.server.state["prototypes"].values()} == {(2,)}
