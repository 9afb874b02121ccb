"""FedPer and FedBN: which parts leave, FedAvg as their special case, and heads that nobody else gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import mutua
from conftest import PLAN
from mutua import Federation
from mutua.methods import FedAvg, FedBN, FedPer
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]


class Downsampling(nn.Module):
    """Its normalisation is not called so: "shortcut.1", as in public residual networks, and "scale"."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(channels, 6)
        self.shortcut = nn.Sequential(nn.Linear(channels, 6), nn.BatchNorm1d(6))
        self.scale = nn.LayerNorm(6)
        self.bn_like = nn.Linear(6, 6)
        self.head = nn.Linear(6, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.scale(torch.tanh(self.body(x)) + self.shortcut(x))
        return self.head(torch.tanh(self.bn_like(hidden)))  # type: ignore[no-any-return]


NORMS = {"shortcut.1", "scale"}


@pytest.mark.parametrize("net", ["plain", "normed"])
def test_fedper_with_all_parts_listed_is_fedavg_and_else_fedavg_of_the_body(
    net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    model = getattr(nets, net)
    parts = list(model(4, 3).state_dict())
    listed, whole, plain, body = (
        federate((9, 13, 5), models=model, global_model={"name": model, "share": share})
        for share in (parts, "all", "all", "body")
    )
    everything, fedavg = mutua.run(FedPer(), listed, **PLAN), mutua.run(FedAvg(), plain, **PLAN)
    assert identical(everything.global_state, fedavg.global_state)  # type: ignore[arg-type]
    by_name, by_share = mutua.run(FedPer(), whole, **PLAN), mutua.run(FedAvg(), body, **PLAN)
    assert identical(by_name.global_state, by_share.global_state)  # type: ignore[arg-type]
    for one, other in zip(by_name.clients, by_share.clients, strict=True):
        assert identical(one.state["adaptor"], other.state["adaptor"])
        assert one.state["adaptor"].keys() == {"head.weight", "head.bias"}
    heads = [client.state["adaptor"]["head.weight"] for client in by_name.clients]
    assert not any(torch.equal(heads[i], heads[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_no_byte_of_a_head_is_in_any_message(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    run = simulate(FedPer(), federate((9, 13, 5), models=nets.plain), rounds=3)
    messages = [brief.encode() for brief in run.engine.briefs.values()]
    messages += [reply.message.encode() for reply in run.engine.replies.values()]
    for state in run.engine.kept.values():
        for array in state.get("adaptor", {}).values():
            assert not any(array.contiguous().numpy().tobytes() in message for message in messages)
    assert not any(b"head" in message for message in messages)


def test_clients_of_fedper_may_have_different_classes(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    names = [("ape", "bee"), ("bee", "cat", "dog")]
    shared = {"name": nets.plain, "share": "body"}
    run = simulate(FedPer(), federate([8, 9], classes=names, models=nets.plain, global_model=shared), rounds=2)
    shapes = [run.engine.kept[2, client]["adaptor"]["head.weight"].shape for client in "ab"]
    assert shapes == [(2, 6), (3, 6)]
    assert all(run.history.last(client, "predictor", "test", "accuracy") is not None for client in "ab")


def test_a_client_never_drawn_keeps_its_own_first_head(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    run = simulate(FedPer(), federate((9, 6, 5, 8), models=nets.plain), client_fraction=0.25, rounds=1)
    (drawn,) = {client for _, client in run.engine.replies}
    losses = {c: run.history.last(c, "predictor", "test", "loss") for c in "abcd"}
    assert len(set(losses.values())) == 4 and drawn in losses
    assert all("adaptor" not in run.engine.kept[1, client] for client in set("abcd") - {drawn})


def test_fedbn_keeps_layers_that_normalise_whatever_their_names(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    run = simulate(FedBN(), federate((9, 13, 5), models=Downsampling, global_model=Downsampling), rounds=3)
    shared = set(run.globals[0])
    everything = set(Downsampling(4, 3).state_dict())
    assert everything - shared == {name for name in everything if name.rpartition(".")[0] in NORMS}
    assert {name.rpartition(".")[0] for name in shared} == {"body", "shortcut.0", "bn_like", "head"}
    kept = [run.engine.kept[3, client]["adaptor"] for client in "abc"]
    assert not identical(kept[0], kept[1]) and "shortcut.1.running_var" in kept[0]
    for reply in run.engine.replies.values():
        assert set(reply.message.arrays("meme")) == shared


def test_fedbn_without_such_layers_is_fedavg(
    nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    federation = federate((9, 13, 5), models=nets.plain)
    one, other = (mutua.run(method, federation, **PLAN) for method in (FedBN(), FedAvg()))
    assert identical(one.global_state, other.global_state)  # type: ignore[arg-type]
    assert not one.clients[0].state


def test_one_round_of_fedbn_by_hand(federate: Federate, simulate: Simulate) -> None:
    """In plain torch: all but the norms are averaged by n_k; each norm is its own client's of the round before."""

    def net(channels: int, classes: int) -> nn.Module:
        model = nn.Sequential()
        for name, layer in (
            ("body", nn.Linear(channels, 5)),
            ("n", nn.BatchNorm1d(5)),
            ("head", nn.Linear(5, classes)),
        ):
            model.add_module(name, layer)
        return model

    federation = federate((6, 10), models=net, global_model=net)
    run = simulate(FedBN(), federation, rounds=2, batch_size=16, optimizer={"name": "sgd", "lr": 0.2})
    shared = {name: array.clone() for name, array in run.globals[0].items()}
    own: dict[str, Tensors] = {"a": {}, "b": {}}
    for round in (1, 2):
        trained = {}
        for client in "ab":
            model, data = net(4, 3), federation[client].train
            fresh = {n: a for n, a in model.state_dict().items() if n.startswith("n.")}
            model.load_state_dict({**fresh, **own[client], **shared})
            nn.functional.cross_entropy(model(data.x), data.y).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.2 * parameter.grad
            trained[client] = {n: a.detach().clone() for n, a in model.state_dict().items()}
            own[client] = {n: a for n, a in trained[client].items() if n.startswith("n.")}
            for name, array in own[client].items():
                found = run.engine.kept[round, client]["adaptor"][name]
                assert torch.allclose(found, array, atol=1e-5), name
        shared = {n: (6 * trained["a"][n] + 10 * trained["b"][n]) / 16 for n in shared}
        for name, array in shared.items():
            assert torch.allclose(run.globals[round][name], array, atol=1e-5), name


def test_fedbn_of_a_body_shares_the_body_without_norms(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = federate(models=nets.normed, global_model={"name": nets.normed, "share": "body"})
    run = simulate(FedBN(), federation, rounds=1)
    assert set(run.globals[1]) == {"body.weight", "body.bias"}
    arranged = FedPer().arrange(replace(federation, global_model=nets.normed))
    assert arranged.global_model is not None and arranged.global_model.share == "body"
