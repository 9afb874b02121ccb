"""FedBABU: FedAvg of a model whose head does not learn, bit for bit; a round in NumPy; what is tuned."""

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
from mutua import Federation, InputError
from mutua.methods import FedAvg, FedBABU
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
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
}


@pytest.mark.parametrize("net", ["plain", "normed", "dropping"])
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_it_is_fedavg_of_a_model_whose_head_does_not_learn(
    weights: Any, net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    model = getattr(nets, net)

    def still(channels: int, classes: int) -> nn.Module:
        module = model(channels, classes)
        module.head.requires_grad_(False)
        return module  # type: ignore[no-any-return]

    sizes = (9, 13, 5)
    babu = mutua.run(FedBABU(weights=weights), federate(sizes, models=model, global_model=model), **PLAN)
    fedavg = mutua.run(FedAvg(weights=weights), federate(sizes, models=still, global_model=still), **PLAN)
    assert identical(babu.global_state, fedavg.global_state)  # type: ignore[arg-type]
    assert babu.ledger.kinds("up") == fedavg.ledger.kinds("up")


def test_the_head_is_the_first_one_in_every_message_and_without_tuning_in_what_is_served(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """Whole, to the byte with 2 clients: a mean of equals rounds otherwise. Weight decay does not shrink it."""
    federation = federate((9, 13), models=nets.normed, global_model=nets.normed)
    run = simulate(FedBABU(tune_epochs=0, weights="uniform"), federation, rounds=3, optimizer=PLAN["optimizer"])
    first = run.globals[0]
    messages = [reply.message.arrays("meme") for reply in run.engine.replies.values()]
    for state in [*run.globals, *messages, run.engine.kept[4, "a"]["tuned"]]:
        assert torch.equal(state["head.weight"], first["head.weight"])
        assert torch.equal(state["head.bias"], first["head.bias"])
    assert not torch.equal(run.globals[-1]["body.weight"], first["body.weight"])
    for name, array in run.globals[-1].items():
        assert torch.equal(run.engine.kept[4, "a"]["tuned"][name], array), name


def test_a_round_and_the_tuning_equal_numpy(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    federation = federate([5, 8], models=nets.plain, global_model=nets.plain)
    given = {"rounds": 1, "epochs": 2, "batch_size": 20, "optimizer": {"name": "sgd", "lr": 0.4}}
    run = simulate(FedBABU(tune_epochs=3), federation, **given)
    g = {name: array.numpy() for name, array in run.globals[0].items()}

    def step(w: dict[str, np.ndarray], client: str, parts: tuple[str, ...]) -> dict[str, np.ndarray]:
        data = federation[client].train
        x, truth = data.x.double().numpy(), np.eye(3)[data.y.numpy()]
        z = np.tanh(x @ w["body.weight"].T + w["body.bias"])
        d = (softmax(z @ w["head.weight"].T + w["head.bias"], axis=1) - truth) / len(x)
        a = d @ w["head.weight"] * (1 - z**2)
        slopes = {"body.weight": a.T @ x, "body.bias": a.sum(0), "head.weight": d.T @ z, "head.bias": d.sum(0)}
        return {name: p - 0.4 * slopes[name] * name.startswith(parts) for name, p in w.items()}

    memes = {}
    for client in "ab":
        w = g
        for _ in range(2):
            w = step(w, client, ("body",))
        memes[client] = w
    shared = {name: (5 * memes["a"][name] + 8 * memes["b"][name]) / 13 for name in g}
    for name, array in run.globals[1].items():
        assert array.numpy() == pytest.approx(shared[name], abs=1e-10), name
    w = shared
    for _ in range(3):
        w = step(w, "b", ("body", "head"))
    for name, array in run.engine.kept[2, "b"]["tuned"].items():
        assert array.numpy() == pytest.approx(w[name], abs=1e-10), name


@pytest.mark.parametrize("part", ["all", "body", "head"])
def test_what_is_tuned(part: Any, nets: SimpleNamespace, federate: Federate, simulate: Simulate) -> None:
    run = simulate(FedBABU(tune=part, tune_epochs=1), federate(models=nets.normed, global_model=nets.normed))
    tuned, shared = run.engine.kept[3, "a"]["tuned"], run.globals[-1]
    for name in ("head.weight", "body.weight", "norm.running_mean"):
        moved = part in ("all", "head" if name.startswith("head") else "body")
        assert torch.equal(tuned[name], shared[name]) != moved, name


def test_what_it_cannot_do_is_refused_by_name(nets: SimpleNamespace, federate: Federate) -> None:
    with pytest.raises(InputError, match=r"share: a part, but fedbabu trains bodies under one head"):
        FedBABU().arrange(federate(global_model={"name": nets.plain, "share": "body"}))
    with pytest.raises(InputError, match=r"fedbabu trains bodies.* a body without anything in it"):
        FedBABU().arrange(federate(models=nets.linear, global_model=nets.linear))
