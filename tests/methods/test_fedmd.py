"""FedMD against the paper's loop written out in plain torch, and what crosses, on bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn import functional as F

from conftest import assert_repeatable, kept_numbers
from mutua import Architecture, Federation, InputError, Kind, Message, Samples
from mutua import run as run_method
from mutua.data.partitions import IID
from mutua.data.public import Public, carve
from mutua.federation.module_pool import Modules
from mutua.methods import FedMD, Part, Participant
from mutua.rounds.events import Rejected, RoundStarted
from mutua.seeds import private, public, torch_stream
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]

SMALL = {"public_epochs": 2, "private_epochs": 1, "subset": 7}
ADAM = {"name": "adam", "lr": 0.02}


@pytest.fixture
def members(federate: Federate, nets: SimpleNamespace) -> Callable[..., Federation]:
    """`members(labelled=)`: three clients with models of their own, four public samples each."""

    def make(labelled: bool = True) -> Federation:
        federation = federate([13, 16, 11], models=[nets.plain, nets.wide, nets.linear], global_model=None)
        split = {client.id: carve(client.train, 4, 0, client.id) for client in federation.clients}
        clients = tuple(replace(client, train=split[client.id][0]) for client in federation.clients)
        shared = Public({owner: given for owner, (_, given) in split.items()}, labelled)
        return replace(federation, clients=clients, public=shared)

    return make


@pytest.fixture
def learn(simulate: Simulate) -> Callable[..., Any]:
    """A run that keeps all that crossed."""

    def go(method: FedMD, federation: Federation, **plan: Any) -> Any:
        return simulate(method, federation, **{"optimizer": ADAM, "evaluate_every": 1000, **plan})

    return go


# The paper's loop


@dataclass
class Member:
    net: nn.Module
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Paper:
    """Transfer learning, then: communicate, aggregate, distribute, digest, revisit."""

    def __init__(self, federation: Federation, method: FedMD, seed: int, epochs: int = 1) -> None:
        assert federation.public is not None
        self.method, self.seed, self.epochs, self.members = method, seed, epochs, {}
        parts = [federation.public.parts[owner] for owner in sorted(federation.public.parts)]
        self.x, self.y = torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts])
        for client in federation.clients:
            net = client.model.build(channels=4, size=1, classes=3, seed=0)
            adam = torch.optim.Adam(net.parameters(), lr=0.02)
            self.members[client.id] = Member(net, adam, client.train.x, client.train.y)

    def orders(self, who: str, n: int, epochs: int, round: int) -> Iterator[Tensor]:
        stream = torch_stream(private(self.seed, who), round, "batches")
        for _ in range(epochs):
            yield from torch.randperm(n, generator=stream).split(4)

    def fit(self, who: str, x: Tensor, y: Tensor, epochs: int, round: int) -> None:
        member = self.members[who]
        for chosen in self.orders(who, len(y), epochs, round):
            member.step(F.cross_entropy(member.net(x[chosen]), y[chosen]))

    def open(self, starts: dict[str, Tensors]) -> None:
        for who, member in self.members.items():
            member.net.load_state_dict(starts[who])
            self.fit(who, self.x, self.y, self.method.public_epochs, 0)
            self.fit(who, member.x, member.y, self.method.private_epochs, 0)

    def round(self, round: int) -> Tensor:
        # A member's work after the consensus counts as the next round's: so are its batches drawn.
        order = torch.randperm(len(self.y), generator=torch_stream(public(self.seed), round, "public subset"))
        x = self.x[order[: self.method.subset]]
        with torch.no_grad():
            scores = {who: member.net(x) for who, member in self.members.items()}
        consensus = torch.stack(list(scores.values())).mean(0)
        for who, member in self.members.items():
            for chosen in self.orders(who, len(x), self.method.digest_epochs, round + 1):
                member.step(self.distance(consensus[chosen], member.net(x[chosen])))
            self.fit(who, member.x, member.y, self.epochs, round + 1)
        return consensus

    def distance(self, target: Tensor, scores: Tensor) -> Tensor:
        if self.method.digest == "l1":
            return (scores - target).abs().mean()
        if self.method.digest == "mse":
            return (scores - target).square().mean()
        p = torch.softmax(target, 1)
        return (p * (p.log() - torch.log_softmax(scores, 1))).sum(1).mean()


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"digest": "l1"},
        {"digest": "mse"},
        {"digest_epochs": 3},
        {"subset": 1000},
        {"public_epochs": 1, "private_epochs": 3},
        {"epochs": 2},
    ],
    ids=str,
)
def test_the_papers_loop(options: dict[str, Any], members: Any, learn: Any, nets: SimpleNamespace) -> None:
    epochs = options.get("epochs", 1)
    method = FedMD(**{**SMALL, **{k: v for k, v in options.items() if k != "epochs"}})
    federation = members()
    run = learn(method, federation, rounds=3, seed=5, epochs=epochs)
    paper = Paper(federation, method, seed=5, epochs=epochs)
    paper.open({who: begun(run, who) for who in "abc"})
    for who, member in paper.members.items():
        same(run.engine.kept[0, who]["personal"], member.net)
    for round in (1, 2, 3):
        consensus = paper.round(round)
        for who in "abc":
            there = run.engine.briefs[round + 1, who].arrays("consensus")[""]
            assert torch.allclose(there, consensus, rtol=0, atol=1e-9)
    for who, member in paper.members.items():
        same(run.engine.kept[4, who]["personal"], member.net)


def begun(run: Any, who: str) -> Tensors:
    """The client's network before any training: built anew, as its seed has it."""
    participant = Participant(run.job, run.federation[who], {}, 0, Modules(torch.device("cpu")))
    participant.initialise("personal")
    return participant.state["personal"]


def same(ours: Tensors, net: nn.Module) -> None:
    theirs = net.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], rtol=0, atol=1e-9) for name in theirs)


def test_digesting_brings_clients_together(members: Any, learn: Any) -> None:
    """Much digestion and one step of revisiting: what clients say of the same samples comes nearer."""
    run = learn(FedMD(**SMALL | {"digest_epochs": 20, "subset": 1000}, digest="mse"), members(), rounds=2, steps=1)

    def apart(round: int) -> float:
        scores = {c: run.engine.replies[round, c].message.arrays("public")[""] for c in "abc"}
        stream = torch_stream(public(0), round, "public subset")
        back = torch.randperm(12, generator=stream).argsort()
        aligned = torch.stack([s[back] for s in scores.values()])
        return float((aligned - aligned.mean(0)).square().mean())

    assert apart(2) < 0.5 * apart(1)


class Seeing(nn.Module):
    """Remembers every image that it is trained on."""

    seen: ClassVar[list[Tensor]] = []

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(36, classes)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.extend(x)
        return self.head(x.flatten(1))


def test_the_consensus_is_matched_on_the_images_that_were_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """`augment` changes what is learned with labels; of an augmented image the consensus says nothing."""
    monkeypatch.setattr(Seeing, "seen", [])
    rng = np.random.default_rng(0)
    x, y = rng.random((60, 1, 6, 6)), np.arange(60) % 3
    federation = Federation.from_arrays(x, y, partition=IID(clients=2), models=Seeing)
    known = Samples.of(rng.random((8, 1, 6, 6)), np.arange(8) % 3)
    federation = replace(federation, public=Public({"c0": known}))
    method = FedMD(digest_epochs=2, public_epochs=1, private_epochs=1)
    plan = {"rounds": 3, "augment": ["crop"], "evaluate_every": 1000}
    run_method(method, federation, workers=1, **plan)  # here, where `seen` is
    exact = sum(any(torch.equal(image, one) for one in known.x) for image in Seeing.seen)
    digested = 2 * 3 * 2 * 8  # clients, rounds, epochs, images
    assert digested <= exact <= digested + 4  # a crop is the image itself once in 81 times


# What crosses


def test_scores_on_public_data_leave_and_nothing_else(members: Any, learn: Any) -> None:
    federation = members()
    run = learn(FedMD(**SMALL), federation, rounds=3)
    assert FedMD().shares == {"public": Kind.SCORES}
    crossed = [reply.message.encode() for reply in run.engine.replies.values()]
    for message in crossed:
        assert {name: tuple(array.shape) for name, array in load(message).items()} == {"scores/public/": (7, 3)}
        assert b"__metadata__" not in message
    for (round, _), brief in run.engine.briefs.items():
        assert round > 1
        assert set(load(brief.encode())) == {"scores/consensus/"}
        crossed.append(brief.encode())
    secrets = kept_numbers(run)
    secrets += [row for client in federation.clients for row in client.train.x]
    secrets += [client.train.y for client in federation.clients]
    raw = [secret.contiguous().numpy().tobytes() for secret in secrets]
    assert len(raw) > 100
    assert not any(secret in message for secret in raw for message in crossed)
    assert set(run.server.state) == {"consensus"}


@pytest.mark.usefixtures("double")
def test_scores_are_logits_in_evaluation_mode_of_the_subset_that_everybody_draws(
    nets: SimpleNamespace, members: Any, learn: Any
) -> None:
    federation = members()
    normed = Architecture.of(nets.normed)
    federation = replace(federation, clients=tuple(replace(c, model=normed) for c in federation.clients))
    run = learn(FedMD(**SMALL), federation, rounds=2, seed=9)
    whole = federation.public.whole
    for (round, client), reply in run.engine.replies.items():
        order = torch.randperm(len(whole), generator=torch_stream(public(9), round, "public subset"))
        net = nets.normed(4, 3).eval()
        net.load_state_dict(run.engine.kept[round, client]["personal"])
        with torch.no_grad():
            scores = net(whole.x[order[:7]])
        assert torch.allclose(reply.message.arrays("public")[""], scores, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "scores",
    [
        torch.full((7, 3), math.nan),
        torch.full((7, 3), math.inf),
        torch.zeros(7, 2),
        torch.zeros(7),
        torch.zeros(6, 3),
        torch.zeros(1, 3),
        torch.zeros(0, 3),
        torch.zeros(7, 3, dtype=torch.float16),
        torch.zeros(7, 3, dtype=torch.int64),
        None,
    ],
    ids=[
        "nan",
        "infinite",
        "two classes",
        "no rows",
        "six",
        "one",
        "none",
        "float16",
        "whole numbers",
        "two arrays",
    ],
)
def test_scores_that_cannot_be_are_refused_and_the_round_goes_on(
    scores: Tensor | None, members: Any, simulate: Simulate
) -> None:
    def tamper(round: int, client: str, message: Message) -> Message:
        if (round, client) != (1, "b"):
            return message
        arrays = {"": scores} if scores is not None else {**message.arrays("public"), "more": torch.zeros(7, 3)}
        return Message(public=Part(Kind.SCORES, arrays))

    run = simulate(FedMD(**SMALL), members(), tamper=tamper, rounds=2, evaluate_every=1000)
    (refused,) = (event for event in run.events if isinstance(event, Rejected))
    assert (refused.round, refused.client) == (1, "b")
    assert "scores" in refused.reason
    sent = [run.engine.replies[1, client].message.arrays("public")[""] for client in "ac"]
    assert torch.allclose(run.engine.briefs[2, "b"].arrays("consensus")[""], (sent[0] + sent[1]) / 2)


def test_it_needs_labels_and_no_opted_out_sample(members: Any, federate: Federate) -> None:
    with pytest.raises(InputError, match="public: missing; fedmd"):
        FedMD().arrange(federate(global_model=None))
    with pytest.raises(InputError, match=r"public\.labelled: false, but fedmd"):
        FedMD().arrange(members(labelled=False))
    federation = members()
    out = replace(federation["a"], opt_in=torch.zeros(len(federation["a"].train), dtype=torch.bool))
    with pytest.raises(InputError, match="opt_out: method fedmd"):
        FedMD().arrange(replace(federation, clients=(out, *federation.clients[1:])))


# Rounds and their evaluations


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("rate", [0.02, [0.02, 0.01, 0.005]], ids=["flat", "halved"])
def test_an_evaluation_after_round_r_is_of_exchange_r_at_its_rate(
    rate: Any, members: Any, simulate: Simulate
) -> None:
    """Against the paper's loop by hand: after each round, loss and accuracy on everybody's own test data."""
    federation, method = members(), FedMD(**SMALL)
    run = simulate(method, federation, optimizer={"name": "adam", "lr": rate}, rounds=3, seed=5)
    paper = Paper(federation, method, seed=5)
    paper.open({who: begun(run, who) for who in "abc"})
    for round in (0, 1, 2, 3):
        if round:
            for member in paper.members.values():
                member.optimizer.param_groups[0]["lr"] = 0.02 if rate == 0.02 else rate[round - 1]
            paper.round(round)
        for who, member in paper.members.items():
            test = federation[who].test
            with torch.no_grad():
                loss = float(F.cross_entropy(member.net(test.x), test.y))
            at = {"round": round, "client": who, "model": "predictor", "split": "test", "metric": "loss"}
            assert run.history.select(**at)[0].value == pytest.approx(loss, abs=1e-9), (round, who)


def test_evaluations_leave_no_trace(members: Any, learn: Any, identical: Identical) -> None:
    often, never = (learn(FedMD(**SMALL), members(), rounds=3, evaluate_every=every) for every in (1, 1000))
    assert often.engine.kept.keys() == never.engine.kept.keys()
    for at, state in often.engine.kept.items():
        assert state.keys() == never.engine.kept[at].keys()
        assert all(identical(state[group], never.engine.kept[at][group]) for group in state)


# State


def test_a_client_that_was_not_drawn_digests_the_newest_consensus(members: Any, learn: Any) -> None:
    run = learn(FedMD(**SMALL), members(), rounds=5, client_fraction=0.4, seed=2)
    drawn = {event.round: event.clients for event in run.events if isinstance(event, RoundStarted)}
    assert {len(ids) for ids in drawn.values()} == {1}
    for (round, client), brief in run.engine.briefs.items():
        (speaker,) = drawn[round - 1]
        said = run.engine.replies[round - 1, speaker].message.arrays("public")[""]
        assert torch.equal(brief.arrays("consensus")[""], said), (round, client)
    assert {client for round, client in run.engine.briefs if round == 6} == {"a", "b", "c"}


def test_same_seed_same_bytes_another_seed_others(members: Any, learn: Any) -> None:
    one, two, other = (learn(FedMD(**SMALL), members(), seed=seed) for seed in (5, 5, 6))
    for key, reply in one.engine.replies.items():
        assert reply.message.encode() == two.engine.replies[key].message.encode()
        assert reply.message.encode() != other.engine.replies[key].message.encode()


def test_the_reply_to_a_brief_is_the_same_whoever_else_takes_part_and_however_often_it_comes(
    members: Any, learn: Any, identical: Identical, modules: Modules
) -> None:
    run = learn(FedMD(**SMALL), members(), rounds=2)
    assert_repeatable(run, identical, modules)
