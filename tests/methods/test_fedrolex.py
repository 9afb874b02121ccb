"""FedRolex and HeteroFL: with all widths 1 FedAvg, which units train when, and a round in NumPy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mutua
from mutua import Architecture, Federation, InputError
from mutua.methods import FedAvg, FedRolex, Message, weights
from mutua.models.narrow import filled, narrowed, places, window
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]
MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def tall(channels: int, classes: int, units: int = 6) -> nn.Module:
    one, two = nn.Linear(channels, units), nn.Linear(units, units)
    return _chain(one=one, act=nn.ReLU(), two=two, relu=nn.ReLU(), head=nn.Linear(units, classes))


def _chain(**layers: nn.Module) -> nn.Sequential:
    made = nn.Sequential()
    for name, layer in layers.items():
        made.add_module(name, layer)
    return made


def low(channels: int, classes: int) -> nn.Module:
    return tall(channels, classes, 3)


def lowest(channels: int, classes: int) -> nn.Module:
    return tall(channels, classes, 2)


def normed(channels: int, classes: int) -> nn.Module:
    return _chain(
        body=nn.Linear(channels, 3),
        norm=nn.BatchNorm1d(3),
        act=nn.ReLU(),
        drop=nn.Dropout(0.25),
        head=nn.Linear(3, classes),
    )


@pytest.mark.parametrize("net", ["plain", "normed"])
@pytest.mark.parametrize("options", [{}, {"window": "static"}, {"window": "random", "weights": "samples"}])
def test_where_all_are_as_wide_as_the_global_it_is_fedavg(
    options: Any, net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    federation = federate((9, 13, 5), models=getattr(nets, net), global_model=getattr(nets, net))
    plan: dict[str, Any] = {"rounds": 3, "batch_size": 4, "device": "cpu", "workers": 1, "progress": False}
    ours = mutua.run(FedRolex(**options), federation, optimizer=MOMENTUM, **plan)
    uniform = FedAvg(weights=options.get("weights", "uniform"))
    theirs = mutua.run(uniform, federation, optimizer=MOMENTUM, **plan)
    assert ours.global_state is not None
    assert identical(ours.global_state, theirs.global_state)
    assert ours.ledger.bytes("down") == theirs.ledger.bytes("down")


def test_after_n_rounds_every_unit_was_trained_as_often_as_a_part_has_units(
    federate: Federate, simulate: Simulate
) -> None:
    federation = federate((6, 7), models=low, global_model=tall)
    run = simulate(FedRolex(), federation, rounds=6)
    trained: Counter[tuple[str, int]] = Counter()
    for round in range(1, 7):
        held = run.job.method.held(run.server, round, "a")
        for layer in ("one", "two"):
            units = held[f"{layer}.weight"][0].tolist()
            assert units == sorted(units) and len(units) == 3
            trained.update((layer, unit) for unit in units)
        assert torch.equal(held["two.weight"][1], held["one.weight"][0])  # inputs are as the layer before chose
        assert torch.equal(held["head.weight"][1], held["two.bias"][0])
        assert held["head.weight"][0].tolist() == [0, 1, 2]
    assert set(trained.values()) == {3} and len(trained) == 12


def test_what_moves_is_what_was_held(federate: Federate, simulate: Simulate, identical: Identical) -> None:
    run = simulate(FedRolex(), federate((6, 7), models=low, global_model=tall), rounds=4)
    whole = run.engine.briefs[5, "a"].arrays("global")
    assert identical(whole, run.server.state["global"])
    for round in (1, 2, 3, 4):
        held = set(window("rolling", 6, 3, round, torch.Generator()).tolist())
        assert held == {(round - 1 + i) % 6 for i in range(3)}
        sent = run.engine.briefs[round, "a"].arrays("global")
        back = run.engine.replies[round, "a"].message.arrays("meme")
        assert {n: a.shape for n, a in sent.items()} == {n: a.shape for n, a in back.items()}
        assert sent["one.weight"].shape == (3, 4) and not torch.equal(sent["one.weight"], back["one.weight"])


@pytest.mark.parametrize("kind", ["rolling", "static", "random"])
def test_a_round_with_three_widths_is_as_numpy_does_it(kind: Any, federate: Federate, simulate: Simulate) -> None:
    federation = federate((9, 6, 7), models=[tall, low, lowest], global_model=tall)
    run = simulate(FedRolex(window=kind, scale=False), federation, rounds=3)
    g = {n: a.double().numpy() for n, a in run.engine.briefs[1, "a"].arrays("global").items()}
    for round in (1, 2, 3):
        sums, held = {n: np.zeros_like(a) for n, a in g.items()}, {n: np.zeros(a.shape) for n, a in g.items()}
        for client, many in zip("abc", (6, 3, 2), strict=True):
            where = run.job.method.held(run.server, round, client)
            units = {layer: where[f"{layer}.bias"][0].numpy() for layer in ("one", "two")}
            if kind != "random":
                first = round - 1 if kind == "rolling" else 0
                assert [u.tolist() for u in units.values()] == [sorted((first + i) % 6 for i in range(many))] * 2
            every, rows = np.arange(4), np.arange(3)
            index = {
                "one.weight": np.ix_(units["one"], every),
                "one.bias": np.ix_(units["one"]),
                "two.weight": np.ix_(units["two"], units["one"]),
                "two.bias": np.ix_(units["two"]),
                "head.weight": np.ix_(rows, units["two"]),
                "head.bias": np.ix_(rows),
            }
            brief = run.engine.briefs[round, client].arrays("global")
            meme = run.engine.replies[round, client].message.arrays("meme")
            for name, at in index.items():
                assert brief[name].numpy() == pytest.approx(g[name][at], abs=1e-6)
                sums[name][at] += meme[name].double().numpy()
                held[name][at] += 1
        g = {n: np.where(held[n] > 0, sums[n] / np.maximum(held[n], 1), a) for n, a in g.items()}
    for name, array in run.server.state["global"].items():
        assert array.numpy() == pytest.approx(g[name], abs=1e-5), name


def test_a_part_trains_scaled_as_wide_as_the_global_would_be(federate: Federate, simulate: Simulate) -> None:
    """One step of SGD on the whole batch, differentiated by hand with each hidden layer's output times 2."""
    federation = federate((8, 8), models=low, global_model=tall)
    run = simulate(FedRolex(), federation, rounds=1, steps=1, batch_size=8, optimizer={"lr": 0.5})
    plain = simulate(FedRolex(scale=False), federation, rounds=1, steps=1, batch_size=8, optimizer={"lr": 0.5})
    assert run.engine.briefs[1, "a"].arrays("scale").keys() == {"one", "two"}
    assert "scale" not in plain.engine.briefs[1, "a"]
    for simulation, times in ((run, 2.0), (plain, 1.0)):
        w = {n: a.clone().requires_grad_() for n, a in simulation.engine.briefs[1, "a"].arrays("global").items()}
        data = federation["a"].train
        z = torch.relu(times * (data.x @ w["one.weight"].T + w["one.bias"]))
        z = torch.relu(times * (z @ w["two.weight"].T + w["two.bias"]))
        loss = nn.functional.cross_entropy(z @ w["head.weight"].T + w["head.bias"], data.y)
        loss.backward()
        sent = simulation.engine.replies[1, "a"].message.arrays("meme")
        for name, array in w.items():
            assert array.grad is not None
            assert torch.allclose(sent[name], array.detach() - 0.5 * array.grad, atol=1e-5), name


def test_convolutions_are_cut_with_what_is_flattened_of_them(identical: Identical) -> None:
    given = {"channels": 1, "size": 28, "classes": 10, "seed": 0}
    wide, narrow = (Architecture.of({"name": "lenet5", "width": w}).build(**given) for w in (1, 0.5))
    where = places(wide, narrow, lambda layer, of, many: torch.arange(of - many, of))
    state = wide.state_dict()
    held = narrowed(state, where)
    assert {n: a.shape for n, a in held.items()} == {n: a.shape for n, a in narrow.state_dict().items()}
    assert where["fc1.weight"][1].tolist() == list(range(8 * 25, 16 * 25))
    assert torch.equal(held["conv2.weight"], state["conv2.weight"][8:, 3:])
    assert identical(filled(state, where, held), dict(state))
    zeros = {n: torch.zeros_like(a) for n, a in held.items()}
    assert int((filled(state, where, zeros)["conv2.weight"] == 0).sum()) == held["conv2.weight"].numel()
    # What a part says is what the wide model says without the other units.
    silent = {n: torch.zeros_like(a) for n, a in state.items()}
    wide.load_state_dict(filled(silent, where, held))
    narrow.load_state_dict(held)
    x = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(wide.eval()(x), narrow.eval()(x), atol=1e-5)


def test_batch_norms_are_cut_with_their_units_and_counters_stay(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    run = simulate(
        FedRolex(), federate((9, 13, 5), models=[nets.normed, normed, normed], global_model=nets.normed), rounds=3
    )
    held = run.job.method.held(run.server, 3, "b")
    assert held["norm.running_var"][0].tolist() == [2, 3, 4] == held["norm.weight"][0].tolist()
    assert held["norm.num_batches_tracked"] == ()
    assert int(run.server.state["global"]["norm.num_batches_tracked"]) == 0
    for client in "abc":
        assert run.history.last(client, "predictor", "test", "accuracy") is not None


def test_a_client_never_drawn_serves_with_the_global_too(federate: Federate, identical: Identical) -> None:
    federation = federate((9, 6, 5, 8), models=[tall, low, low, lowest], global_model=tall)
    plan: dict[str, Any] = {"rounds": 2, "batch_size": 4, "device": "cpu", "workers": 1, "progress": False}
    result = mutua.run(FedRolex(), federation, client_fraction=0.5, seed=1, **plan)
    assert result.global_state is not None
    for client in result.clients:
        assert identical(dict(client.predictor.model.state_dict()), result.global_state)
        assert client.made_of["name"].endswith(":tall")


def test_robust_merging_and_long_updates(federate: Federate, simulate: Simulate) -> None:
    federation = federate((9, 13, 5, 6, 8), models=[tall, low, low, low, lowest], global_model=tall)

    def lie(round: int, client: str, message: Message) -> Message:
        if client != "c":
            return message
        return Message(meme=weights({n: a + 50 for n, a in message.arrays("meme").items()}))

    for combine in ("median", "trimmed-mean", "krum", "clip"):
        run = simulate(
            mutua.methods.of({"name": "fedrolex", "combine": combine}), federation, rounds=1, tamper=lie
        )
        state = run.server.state["global"]
        assert all(bool(a.isfinite().all()) for a in state.values())
        if combine == "median":
            assert float(state["head.bias"].abs().max()) < 5  # which all five held
    run = simulate(FedRolex(max_norm_ratio=5), federation, rounds=1, tamper=lie)
    assert {turn.client for turn in run.participation if turn.outcome == "refused"} == {"c"}


def test_a_reply_that_is_not_the_clients_part_is_refused(federate: Federate, simulate: Simulate) -> None:
    federation = federate((9, 13, 5), models=[tall, low, low], global_model=tall)

    def lie(round: int, client: str, message: Message) -> Message:
        wide = {n: torch.zeros_like(a) for n, a in tall(4, 3).state_dict().items()}
        return Message(meme=weights(wide)) if client == "b" else message

    run = simulate(FedRolex(), federation, tamper=lie)
    assert {turn.client for turn in run.participation if turn.outcome == "refused"} == {"b"}


def test_what_is_no_part_is_refused_by_name(federate: Federate, nets: SimpleNamespace) -> None:
    for models, shared, why in (
        (
            nets.wide,
            nets.plain,
            r"client a: its wide is no part of the global's plain, as fedrolex needs it: layer 'body' has 9 units",
        ),
        (nets.normed, nets.plain, r"layer 'drop' is in only one of the two"),
        (
            nets.plain,
            {"name": nets.plain, "share": "body"},
            r"models.global.share: a part, but fedrolex cuts whole",
        ),
    ):
        with pytest.raises(InputError, match=why):
            FedRolex().arrange(federate(models=models, global_model=shared))
    digits = mutua.load("mnist5k").train
    deep = mutua.Federation.from_samples(
        digits,
        partition=mutua.partitions.IID(clients=2),
        samples_per_client=20,
        global_model="resnet20" if "resnet20" in mutua.models.names() else "resnet18",
    )
    with pytest.raises(
        InputError, match=r"no chain of linear layers, convolutions and batch-norms: .* use one from mlp"
    ):
        FedRolex().arrange(deep)
