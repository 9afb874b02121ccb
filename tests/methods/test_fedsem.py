"""FedSEM and IFCA: with one centre FedAvg, a round in NumPy, groups that are recovered, and who chooses what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import mutua
from mutua import Architecture, Client, Federation, InputError
from mutua.methods import FedAvg, FedSEM, Kind, Message, count, number, weights
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]
MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
PLAN: dict[str, Any] = {"batch_size": 20, "device": "cpu", "workers": 1, "progress": False}


def turned(turns: tuple[int, ...], per: int, samples: int = 60, seed: int = 0, width: float = 0.1) -> Federation:
    """Clients with digits of their own; client k turns them by `turns[k % len(turns)]` quarters."""
    digits, at = mutua.load("mnist5k").train, 0
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
    model, clients = Architecture.of({"name": "mlp", "width": width}), []
    for k in range(per * len(turns)):
        parts = []
        for n in (samples, 20, 40):
            part = digits.take(order[at : at + n])
            parts.append(replace(part, x=torch.rot90(part.x, turns[k % len(turns)], (2, 3)).contiguous()))
            at += n
        clients.append(Client("abcdefghijkl"[k], *parts, model))
    return Federation(tuple(clients), model)


def groups(server: Any) -> dict[str, int]:
    return {client: int(group) for client, group in server.state["group"].items()}


@pytest.mark.parametrize("net", ["plain", "normed"])
@pytest.mark.parametrize("assign", ["distance", "loss"])
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_with_one_centre_it_is_fedavg(
    weights: Any, assign: Any, net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    federation = federate((9, 13, 5), models=getattr(nets, net), global_model=getattr(nets, net))
    plan = {**PLAN, "batch_size": 4, "rounds": 3, "optimizer": MOMENTUM}
    ours = mutua.run(FedSEM(k=1, assign=assign, weights=weights), federation, **plan)
    theirs = mutua.run(FedAvg(weights=weights), federation, **plan)
    assert ours.global_state is not None
    assert identical(ours.global_state, theirs.global_state)
    for one, other in zip(ours.clients, theirs.clients, strict=True):
        assert one.accuracy() == other.accuracy()


@pytest.mark.parametrize(("turns", "per"), [((0, 2), 3), ((0, 1, 2), 3)])
def test_rotated_domains_are_recovered(turns: tuple[int, ...], per: int, simulate: Simulate) -> None:
    for seed in (0, 1):
        federation = turned(turns, per, samples=100, seed=seed)
        run = simulate(FedSEM(k=len(turns)), federation, rounds=2, batch_size=20, seed=seed, evaluate_every=5)
        assert groups(run.server) == {c.id: k % len(turns) for k, c in enumerate(federation.clients)}


def test_rotated_domains_are_recovered_by_loss_and_serve_better(simulate: Simulate) -> None:
    federation = turned((0, 2), 3, samples=100, width=0.5)
    plan = {"rounds": 8, "batch_size": 20, "optimizer": {"name": "sgd", "lr": 0.1}, "evaluate_every": 8, "seed": 0}
    run, one = (simulate(m, federation, **plan) for m in (FedSEM(assign="loss"), FedAvg()))
    found = groups(run.server)
    assert len({found[c] for c in "ace"}) == len({found[c] for c in "bdf"}) == 1 and found["a"] != found["b"]

    def mean(history: Any) -> float:
        return float(np.mean([history.last(c, "predictor", "test", "accuracy") for c in "abcdef"]))

    assert mean(run.history) > mean(one.history) + 0.1


def test_the_second_round_is_as_numpy_does_it(federate: Federate, simulate: Simulate) -> None:
    federation = federate((4, 15, 9, 6))
    run = simulate(FedSEM(k=2), federation, rounds=3)
    replies = {key: reply.message for key, reply in run.engine.replies.items()}
    before = {c: run.engine.briefs[2, c].arrays("global") for c in "abcd"}  # round 1's centres, one of each member

    def flat(arrays: Tensors) -> np.ndarray:
        return np.concatenate([a.double().numpy().ravel() for a in arrays.values()])

    first = {c: flat(arrays) for c, arrays in before.items()}
    centres = list({row.tobytes(): row for row in first.values()}.values())
    assert len(centres) == 2
    memes = {c: flat(replies[2, c].arrays("meme")) for c in "abcd"}
    chosen = {c: int(np.argmin([((memes[c] - centre) ** 2).sum() for centre in centres])) for c in "abcd"}
    for c in "abcd":
        members = [o for o in "abcd" if chosen[o] == chosen[c]]
        n = [len(federation[o].train) for o in members]
        mean = sum(k * memes[o] for k, o in zip(n, members, strict=True)) / sum(n)
        assert flat(run.engine.briefs[3, c].arrays("global")) == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("name", ["body.weight", "body.bias", "norm.weight", "head.weight", "head.bias"])
def test_memes_that_differ_in_any_one_layer_are_told_apart(
    name: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """In the first round by k-means, then by the nearest centre."""
    found = grouped_by(name, nets.normed, federate, simulate)
    assert found == [{"a": 0, "b": 1, "c": 0, "d": 1}, {"a": 1, "b": 1, "c": 0, "d": 0}]


def test_running_statistics_tell_nobody_apart(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    together = dict.fromkeys("abcd", 0)
    assert grouped_by("norm.running_mean", nets.normed, federate, simulate) == [together, together]


def grouped_by(name: str, net: Any, federate: Federate, simulate: Simulate) -> list[dict[str, int]]:
    """The groups of two rounds: first memes b and d, then a and b are elsewhere in one array."""
    method = FedSEM(k=2)
    run = simulate(method, federate((6, 6, 6, 6), models=net, global_model=net), go=False)
    method.open(run.server)
    first, found = run.server.state["global"], []
    for elsewhere in ("bd", "ab"):
        run.server.round += 1
        memes = {c: {n: a + 2 if n == name and c in elsewhere else a for n, a in first.items()} for c in "abcd"}
        method.merge(run.server, {c: Message(meme=weights(m), samples=count(6)) for c, m in memes.items()})
        found.append(groups(run.server))
    return found


def test_where_clients_choose_it_is_by_their_loss_and_an_empty_centre_stays(
    federate: Federate, simulate: Simulate, identical: Identical, nets: SimpleNamespace
) -> None:
    federation = federate((4, 15, 9), models=nets.linear, global_model=nets.linear)
    run = simulate(FedSEM(k=3, assign="loss"), federation, rounds=2)
    state = run.server.state
    for round in (1, 2):
        for client in "abc":
            brief, sent = run.engine.briefs[round, client], run.engine.replies[round, client].message
            parts = {int(n[7:]): brief.arrays(n) for n in brief if n.startswith("centre-")}
            parts[int(brief.number("group"))] = brief.arrays("global")
            assert sorted(parts) == [0, 1, 2]
            data, losses = federation[client].train, []
            for i in sorted(parts):
                scores = data.x.double() @ parts[i]["head.weight"].double().T + parts[i]["head.bias"].double()
                losses.append(float(torch.nn.functional.cross_entropy(scores, data.y)))
            assert sent.number("choice") == int(np.argmin(losses))
    first = run.engine.briefs[1, "a"]
    known = {f"centre-{int(first.number('group'))}": first.arrays("global")}
    known |= {name: first.arrays(name) for name in first if name.startswith("centre-")}
    taken = {int(run.engine.replies[r, c].message.number("choice")) for r in (1, 2) for c in "abc"}
    assert all(identical(known[f"centre-{i}"], state[f"centre-{i}"]) == (i not in taken) for i in range(3))


def test_a_client_never_drawn_takes_the_centre_that_fits_it(identical: Identical) -> None:
    federation = turned((0, 2), 3, samples=100, width=0.5)
    result = mutua.run(FedSEM(), federation, rounds=3, client_fraction=0.5, seed=2, optimizer={"lr": 0.1}, **PLAN)
    never = [c.id for c in result.clients if not any(turn.client == c.id for turn in result.participation)]
    assert never == ["b"]
    for client, like in (("b", "d"), ("a", "c")):
        served, theirs = (dict(result[c].predictor.model.state_dict()) for c in (client, like))
        assert identical(served, theirs)
    assert result.ledger.kinds("up").keys() == {"weights: meme", "count: samples"}


@pytest.mark.parametrize("choice", [-1, 2, 7])
def test_a_choice_that_there_is_not_is_refused(choice: int, federate: Federate, simulate: Simulate) -> None:
    def lie(round: int, client: str, message: Message) -> Message:
        told = number(Kind.CHOICE, choice)
        return Message(**{**message, "choice": told}) if client == "a" else message

    run = simulate(FedSEM(assign="loss"), federate(), tamper=lie)
    assert {turn.client for turn in run.participation if turn.outcome == "refused"} == {"a"}


def test_an_overlong_update_is_compared_with_the_centre_that_was_chosen(
    federate: Federate, simulate: Simulate
) -> None:
    def lie(round: int, client: str, message: Message) -> Message:
        if client != "a":
            return message
        meme = {n: a + 20 for n, a in message.arrays("meme").items()}
        return Message(**{**message, "meme": mutua.methods.weights(meme)})

    for method in (FedSEM(assign="loss", max_norm_ratio=3.0, k=1), FedSEM(max_norm_ratio=3.0, k=1)):
        run = simulate(method, federate((5, 6, 7, 8)), tamper=lie)
        assert {turn.client for turn in run.participation if turn.outcome == "refused"} == {"a"}


def test_centres_that_would_be_one_are_refused(
    federate: Federate, nets: SimpleNamespace, simulate: Simulate
) -> None:
    module = nets.plain(4, 3)
    federation = federate(models=nets.plain, global_model=module)
    with pytest.raises(InputError, match=r"method.assign: loss, but models.global is not initialised by a seed"):
        simulate(FedSEM(assign="loss"), federation)
    assert simulate(FedSEM(), federation).server.state["group"]


def test_a_newcomer_chooses_by_its_loss_among_all_centres_of_a_saved_run(tmp_path: Any) -> None:
    from mutua.runs.folder import RunFolder
    from mutua.runs.newcomer import join_client
    from mutua.runs.saved_models import SavedModel

    whole = turned((0, 2), 4, samples=100, width=0.5)
    first = Federation(whole.clients[:6], whole.global_model)
    result = mutua.run(FedSEM(), first, rounds=6, optimizer={"lr": 0.1}, **PLAN)
    folder = RunFolder.open(result.save(tmp_path / "run"))
    assert sorted(f.name for f in (tmp_path / "run" / "global").glob("*.safetensors")) == [
        "centre-0.safetensors",
        "centre-1.safetensors",
        "weights.safetensors",
    ]
    for client, like in zip(whole.clients[6:], "ab", strict=True):
        for how in ("global", "finetune"):
            joined = join_client(folder, client, how=how, seed=0, out=tmp_path / f"{client.id}-{how}")
            if how == "global":
                centre = result[like].predictor.model.state_dict()
                found = SavedModel(joined.folder).weights
                assert all(torch.equal(found[name], array) for name, array in centre.items())
            assert joined.accuracy["predictor"] is not None and joined.accuracy["predictor"] > 0.5
