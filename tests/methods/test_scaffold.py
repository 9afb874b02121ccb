"""SCAFFOLD: without corrections it is FedAvg, controls are mean gradients, and two rounds in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax  # type: ignore[import-untyped]

import mutua
from mutua import Federation, InputError
from mutua.methods import FedAvg, Kind, Message, Part, Scaffold
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
NETS = ("plain", "normed", "dropping")


@pytest.mark.parametrize("net", NETS)
def test_without_corrections_it_is_uniform_fedavg_to_the_bit(
    net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    model = getattr(nets, net)
    federation = federate((9, 13, 5), models=model, global_model=model)
    still, fedavg = (mutua.run(m, federation, **PLAN) for m in (Scaffold(strength=0), FedAvg(weights="uniform")))
    moving = mutua.run(Scaffold(), federation, **PLAN)
    assert identical(still.global_state, fedavg.global_state)  # type: ignore[arg-type]
    assert not identical(moving.global_state, fedavg.global_state)  # type: ignore[arg-type]


@pytest.mark.parametrize("net", NETS)
def test_the_first_round_is_fedavgs_and_so_is_every_round_of_a_lone_client(
    net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    """Controls begin at 0; of one client c and c_k are the same numbers, whatever they are."""
    model = getattr(nets, net)
    for sizes, rounds in (((9, 13, 5), 1), ((13,), 4)):
        federation = federate(sizes, models=model, global_model=model)
        given = {**PLAN, "rounds": rounds, "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}
        one, other = (mutua.run(m, federation, **given) for m in (Scaffold(), FedAvg(weights="uniform")))
        assert identical(one.global_state, other.global_state)  # type: ignore[arg-type]


def joined(state: Tensors) -> np.ndarray:
    return np.hstack([state["head.weight"].numpy(), state["head.bias"].numpy()[:, None]])


def test_three_rounds_with_one_of_two_clients_equal_numpy(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """Option II as c_k − c + (x − y)/(Kη); c moves by |S|/N; who is not drawn keeps its control."""
    federation = federate([5, 8], models=nets.linear, global_model=nets.linear)
    settings = {"steps": 3, "batch_size": 20, "optimizer": {"name": "sgd", "lr": 0.3}}
    run = simulate(Scaffold(server_lr=0.5), federation, rounds=4, client_fraction=0.5, seed=2, **settings)
    drawn = [next(client for at, client in run.engine.replies if at == round) for round in range(1, 5)]
    assert set(drawn) == {"a", "b"}, drawn
    x = joined(run.globals[0])
    c, own = np.zeros_like(x), {"a": np.zeros_like(x), "b": np.zeros_like(x)}
    for round, client in enumerate(drawn, 1):
        data, y = federation[client].train, x
        X, truth = np.hstack([data.x.double().numpy(), np.ones((len(data), 1))]), np.eye(3)[data.y.numpy()]
        for _ in range(3):
            g = (softmax(X @ y.T, axis=1) - truth).T @ X / len(X)
            y = y - 0.3 * (g - own[client] + c)
        new = own[client] - c + (x - y) / (3 * 0.3)
        c, own[client], x = c + 0.5 * (new - own[client]), new, x + 0.5 * (y - x)
        for who in "ab":
            kept = run.engine.kept[round, who].get("control")
            assert (kept is None) == (not own[who].any())
            assert kept is None or joined(kept) == pytest.approx(own[who], abs=1e-9)
        assert joined(run.globals[round]) == pytest.approx(x, abs=1e-9)
        if round < 4:
            later = run.engine.briefs[round + 1, drawn[round]].arrays("control")
            assert joined(later) == pytest.approx(c, abs=1e-9)


def test_c_is_the_mean_of_the_clients_controls(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """Eq. (5) with N clients, whoever is drawn: those who never were count with a control of 0."""
    federation = federate((9, 6, 5, 8), models=nets.normed, global_model=nets.normed)
    run = simulate(Scaffold(), federation, rounds=5, client_fraction=0.5, seed=1)
    for name, c in run.server.state["control"].items():
        owns = [run.engine.kept[5, client].get("control") for client in "abcd"]
        mean = sum(own[name] for own in owns if own is not None) / 4
        assert c.numpy() == pytest.approx(mean.numpy(), abs=1e-12)
    assert "norm.running_mean" not in run.server.state["control"]


def test_it_leads_clients_that_pull_apart_to_where_all_of_them_want_to_be(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """Many local steps of unlike clients: FedAvg stops beside the optimum of the mean, SCAFFOLD in it."""
    federation = federate([6, 8], models=nets.linear, global_model=nets.linear)
    b = federation["b"]
    federation = replace(
        federation, clients=(federation["a"], replace(b, train=replace(b.train, y=2 - b.train.y)))
    )
    sgd = {"name": "sgd", "lr": 0.2, "weight_decay": 0.1}
    given = {"rounds": 60, "steps": 10, "batch_size": 8, "optimizer": sgd}

    def slope(w: np.ndarray) -> float:
        slopes = [0.1 * w]
        for client in federation.clients:
            data = client.train
            x, truth = np.hstack([data.x.double().numpy(), np.ones((len(data), 1))]), np.eye(3)[data.y.numpy()]
            slopes.append((softmax(x @ w.T, axis=1) - truth).T @ x / len(x) / 2)
        return float(np.linalg.norm(sum(slopes)))

    ends = [joined(simulate(m, federation, **given).globals[-1]) for m in (Scaffold(), FedAvg(weights="uniform"))]
    assert slope(ends[0]) < 1e-5 and slope(ends[1]) > 1e-2


def test_what_leaves_is_a_meme_and_a_control_of_each_parameter(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = federate(models=nets.normed, global_model=nets.normed)
    run = simulate(Scaffold(), federation)
    assert set(run.ledger.kinds("up")) == {"weights: meme", "control: control"}
    reply = run.engine.replies[1, "a"].message
    assert reply.nbytes <= Scaffold().reply_bytes(federation, run.job.plan)
    assert set(reply.arrays("control")) == {n for n in reply.arrays("meme") if not n.startswith("norm.r")} - {
        "norm.num_batches_tracked"
    }


def test_a_reply_without_a_control_or_with_another_one_is_refused(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    def cut(round: int, client: str, reply: Message) -> Message:
        if client == "a":
            return Message(meme=reply["meme"])
        wrong = {name: array * float("nan") for name, array in reply.arrays("control").items()}
        return Message(meme=reply["meme"], control=Part(Kind.CONTROL, wrong)) if client == "b" else reply

    run = simulate(Scaffold(), federate(models=nets.plain), rounds=1, tamper=cut)
    said = " ".join(map(str, run.events))
    assert "it holds no control 'control'" in said and "hold NaN or infinity" in said
    assert run.participation.merged[1] == 1


def test_a_liars_controls_are_combined_as_robustly_as_its_weights(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    def lie(round: int, client: str, reply: Message) -> Message:
        if client != "c":
            return reply
        huge = {name: array + 50 for name, array in reply.arrays("control").items()}
        return Message(meme=reply["meme"], control=Part(Kind.CONTROL, huge))

    federation = federate((9, 12, 7, 8, 6), models=nets.plain)
    mean, median = (
        simulate(Scaffold(combine={"name": name}), federation, rounds=1, tamper=lie).server.state["control"]
        for name in ("mean", "median")
    )
    assert float(mean["head.bias"].abs().max()) > 5 and float(median["head.bias"].abs().max()) < 1


def test_partial_globals_and_privacy_are_refused_by_name(nets: SimpleNamespace, federate: Federate) -> None:
    with pytest.raises(InputError, match=r"models.global.share: a part, but scaffold corrects whole models"):
        Scaffold().arrange(federate(global_model={"name": nets.plain, "share": "body"}))
    with pytest.raises(InputError, match=r"privacy: scaffold sends 'control' \(control\)"):
        mutua.run(Scaffold(), federate(models=nets.plain), **PLAN, privacy={"clip": 1.0, "noise": 1.0})
    with pytest.raises(InputError, match="strength"):
        Scaffold(strength=-1)
