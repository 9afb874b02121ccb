"""FedH2L against the paper's Algorithm 1 written out in plain torch, and what crosses, on bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn import functional as F

from conftest import assert_repeatable, kept_numbers
from mutua import Architecture, Client, Federation, InputError, Kind, Message, Refused, Samples
from mutua.data.public import Public, carve
from mutua.federation.module_pool import Modules
from mutua.federation.topology import Topology
from mutua.methods import FedH2L, Part, Participant, number
from mutua.rounds.events import Rejected, RoundStarted
from mutua.seeds import private, public, torch_stream
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]

IDS = ("a", "b", "c", "d")
AMSGRAD = {"name": "amsgrad", "lr": 0.02, "weight_decay": 1e-3}


@contextmanager
def in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.fixture
def double() -> Iterator[None]:
    with in_double():
        yield


def turned(samples: Samples, places: int) -> Samples:
    return replace(samples, x=samples.x.roll(places, 1))


def with_public(federation: Federation, number: int, labelled: bool = True) -> Federation:
    """Every client gives so many of its training samples to the public set."""
    split = {client.id: carve(client.train, number, 0, client.id) for client in federation.clients}
    clients = tuple(replace(client, train=split[client.id][0]) for client in federation.clients)
    parts = {owner: given for owner, (_, given) in split.items()}
    return replace(federation, clients=clients, public=Public(parts, labelled))


@pytest.fixture(scope="module")
def peers(federate: Federate) -> Callable[..., Federation]:
    """`peers(labelled=, models=, sizes=)`: four domains, five public samples each, no global model.

    Two of them show the features of the others turned by a place, so that some gradients conflict.
    """

    def make(sizes: Sequence[int] = (17, 20, 15, 18), *, labelled: bool = True, models: Any = None) -> Federation:
        given = {} if models is None else {"models": models}
        federation = federate(sizes, global_model=None, **given)
        shown = [
            replace(c, train=turned(c.train, k % 2), val=turned(c.val, k % 2), test=turned(c.test, k % 2))
            for k, c in enumerate(federation.clients)
        ]
        return with_public(replace(federation, clients=tuple(shown)), 5, labelled)

    return make


@pytest.fixture(scope="module")
def exchange(simulate: Simulate) -> Callable[..., Any]:
    """A run in batches of four that keeps all that crossed."""

    def go(method: FedH2L, federation: Federation, **plan: Any) -> Any:
        plan = {"steps": 1, "optimizer": AMSGRAD, "evaluate_every": 1000} | plan
        return simulate(method, federation, **plan)

    return go


# Algorithm 1


@dataclass
class Node:
    """A network, its optimizer, its data, and the gradient of its last local step."""

    net: nn.Module
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor
    local: Tensor | None = None

    def gradient(self, loss: Tensor) -> Tensor:
        found = torch.autograd.grad(loss, list(self.net.parameters()))
        return torch.cat([g.reshape(-1) for g in found])

    def update(self, gradient: Tensor, lr: float) -> None:
        at = 0
        for p in self.net.parameters():
            p.grad = gradient[at : at + p.numel()].reshape(p.shape)
            at += p.numel()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()


def batches(n: int, size: int, stream: torch.Generator) -> Iterator[Tensor]:
    """Shuffled positions, anew whenever they run out."""
    return chain.from_iterable(torch.randperm(n, generator=stream).split(size) for _ in repeat(None))


def against(g: Tensor, other: Tensor) -> Tensor:
    """Eqs. (8) to (14) by the closed form of their one unknown v."""
    v = max(0.0, float(-(g @ other) / (other @ other)))
    return g + v * other


@dataclass
class Paper:
    """The loop of the paper: local steps, broadcast, mutual update. `nets` after it are what is to be compared."""

    federation: Federation
    seed: int = 0
    batch: int = 4
    lr: Callable[[int], float] = lambda t: 0.02
    lr_mutual: Callable[[int], float] | None = None
    decay: float = 1e-3
    steps: int = 1
    difference: bool = False
    kl: bool = True
    projection: str = "paper"
    everything: bool = False
    peers: Callable[[str, int], list[str]] = lambda i, t: [j for j in IDS if j != i]
    drawn: Callable[[int], Sequence[str]] = lambda t: IDS
    conflicts: int = 0
    updates: int = 0

    def open(self, starts: Mapping[str, Tensors]) -> None:
        self.nodes = {}
        for client in self.federation.clients:
            x, y = client.train.x, client.train.y
            if self.everything:
                parts = self.known.parts
                x = torch.cat([x, *(parts[owner].x for owner in sorted(parts))])
                y = torch.cat([y, *(parts[owner].y for owner in sorted(parts))])
            net = client.model.build(channels=x.shape[1], size=1, classes=3, seed=0)
            net.load_state_dict(starts[client.id])
            adam = torch.optim.Adam(net.parameters(), amsgrad=True, weight_decay=self.decay)
            self.nodes[client.id] = Node(net, adam, x, y)

    @property
    def known(self) -> Public:
        assert self.federation.public is not None
        return self.federation.public

    def public_batch(self, owner: str, round: int) -> tuple[Tensor, Tensor]:
        part = self.known.parts[owner]
        stream = torch_stream(public(self.seed), owner, round, "public batch")
        chosen = torch.randperm(len(part), generator=stream)[: self.batch]
        return part.x[chosen], part.y[chosen]

    def run(self, rounds: int) -> Iterator[int]:
        for round in range(1, rounds + 1):
            signals = {}
            for i in self.drawn(round):
                signals[i] = self.local(i, round)
            last = round == rounds
            for i in IDS if last else self.drawn(round + 1):
                heard = [j for j in self.peers(i, round) if j in signals]
                if heard and self.nodes[i].local is not None:
                    self.mutual(i, {j: signals[j] for j in heard}, round)
            yield round

    def local(self, i: str, round: int) -> tuple[Tensor, float]:
        node = self.nodes[i]
        node.net.train()
        gradients = []
        stream = torch_stream(private(self.seed, i), round, "batches")
        for chosen in islice(batches(len(node.y), self.batch, stream), self.steps):
            gradients.append(node.gradient(F.cross_entropy(node.net(node.x[chosen]), node.y[chosen])))
            node.update(gradients[-1], self.lr(round))
        node.local = gradients[-1] - gradients[0] if self.difference else sum(gradients[1:], gradients[0])
        x, y = self.public_batch(i, round)
        node.net.eval()
        with torch.no_grad():
            p = torch.softmax(node.net(x), 1)
        right = int((p.argmax(1) == y).sum()) / len(y) if self.known.labelled else 1.0
        return p, right

    def mutual(self, i: str, signals: Mapping[str, tuple[Tensor, float]], round: int) -> None:
        node = self.nodes[i]
        assert node.local is not None
        node.net.train()
        loss = torch.zeros(())
        for j, (p, acc) in signals.items():
            x, y = self.public_batch(j, round)
            logits = node.net(x)
            if self.kl:
                loss = loss + acc * (p * (p.log() - torch.log_softmax(logits, 1))).sum(1).mean() / len(signals)
            if self.known.labelled:
                loss = loss + F.cross_entropy(logits, y) / len(signals)
        g = node.gradient(loss)
        self.updates += 1
        self.conflicts += bool(g @ node.local < 0)
        if self.projection == "paper":
            g = against(g, node.local)
        elif self.projection == "pcgrad":
            g = against(g, node.local) + against(node.local, g) - node.local
        node.update(g, (self.lr_mutual or self.lr)(round))

    def losses(self) -> dict[str, float]:
        """Each node's log-loss on its own test data."""
        found = {}
        for client in self.federation.clients:
            net = self.nodes[client.id].net.eval()
            with torch.no_grad():
                found[client.id] = float(F.cross_entropy(net(client.test.x), client.test.y))
        return found


def follow(run: Any, paper: Paper, rounds: int) -> None:
    """The run and the loop, side by side: every evaluated round's predictors, and all weights at the end."""
    paper.open({i: run.engine.kept[0, i]["personal"] for i in IDS})
    evaluated = {row.round for row in run.history if row.metric == "loss"}
    for round in paper.run(rounds):
        if round in evaluated and list(paper.drawn(round + 1)) == list(IDS):
            for i, loss in paper.losses().items():
                rows = run.history.select(round=round, client=i, model="predictor", split="test", metric="loss")
                assert [row.value for row in rows] == pytest.approx([loss], abs=1e-9), (round, i)
    for i, node in paper.nodes.items():
        ours, theirs = run.engine.kept[rounds + 1, i]["personal"], node.net.state_dict()
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert torch.allclose(ours[name], theirs[name], rtol=0, atol=1e-8), (i, name)
        start = run.engine.kept[0, i]["personal"]
        assert not all(torch.allclose(start[name], theirs[name], atol=1e-3) for name in theirs)


@pytest.mark.usefixtures("double")
def test_twenty_rounds_of_one_step_are_the_papers_algorithm(peers: Any, exchange: Any) -> None:
    federation = peers()
    run = exchange(FedH2L(), federation, rounds=20, evaluate_every=3)
    paper = Paper(federation)
    follow(run, paper, 20)
    assert paper.updates == 80
    assert 8 < paper.conflicts < 72


@pytest.mark.usefixtures("double")
def test_nodes_may_have_models_of_their_own_design(nets: SimpleNamespace, peers: Any, exchange: Any) -> None:
    """With batch-norm: running statistics follow the same forwards, one a peer."""
    federation = peers(models=[nets.plain, nets.wide, nets.linear, normed])
    follow(exchange(FedH2L(), federation, rounds=8, evaluate_every=3, seed=4), Paper(federation, seed=4), 8)


def normed(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(channels, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, classes))


OPTIONS: dict[str, tuple[FedH2L, dict[str, Any], dict[str, Any]]] = {
    "E=3": (FedH2L(), {"steps": 3}, {"steps": 3}),
    # More steps than batches: the shuffle runs out in mid-round, after a batch of less than four.
    "E=9": (FedH2L(), {"steps": 9}, {"steps": 9}),
    "E=3, difference": (FedH2L(local_gradient="difference"), {"steps": 3}, {"steps": 3, "difference": True}),
    "lr_mutual": (FedH2L(lr_mutual=0.005), {}, {"lr_mutual": lambda t: 0.005}),
    "lr_mutual over rounds": (
        FedH2L(lr_mutual=[0.03, 0.02, 0.01]),
        {},
        {"lr_mutual": lambda t: [0.03, 0.02, 0.01, 0.01, 0.01][t - 1]},
    ),
    "lr over rounds": (
        FedH2L(),
        {"optimizer": AMSGRAD | {"lr": [0.05, 0.03, 0.01]}},
        {"lr": lambda t: [0.05, 0.03, 0.01, 0.01, 0.01][t - 1]},
    ),
    "private+public": (FedH2L(local_data="private+public"), {}, {"everything": True}),
    "no KL": (FedH2L(kl=False), {}, {"kl": False}),
    "no projection": (FedH2L(projection="none"), {}, {"projection": "none"}),
    "PCGrad": (FedH2L(projection="pcgrad"), {}, {"projection": "pcgrad"}),
    "ring": (
        FedH2L(),
        {"topology": "ring"},
        {"peers": lambda i, t: {"a": ["b", "d"], "b": ["a", "c"], "c": ["b", "d"], "d": ["a", "c"]}[i]},
    ),
    "pairs": (
        FedH2L(),
        {"topology": "pairs", "seed": 3},
        {"seed": 3, "peers": lambda i, t: Topology("pairs").peers(i, IDS, 3, t)},
    ),
    "no decay": (FedH2L(), {"optimizer": {"name": "amsgrad", "lr": 0.02}}, {"decay": 0.0}),
    "batch 5": (FedH2L(), {"batch_size": 5}, {"batch": 5}),
    "batch 50": (FedH2L(), {"batch_size": 50}, {"batch": 50}),
}


@pytest.fixture(scope="module")
def usual(peers: Any, exchange: Any) -> Tensor:
    """Weights after four rounds with no option."""
    with in_double():
        weights: Tensor = exchange(FedH2L(), peers(), rounds=4).engine.kept[5, "a"]["personal"]["head.weight"]
    return weights


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_its_change_to_the_loop(name: str, peers: Any, exchange: Any, usual: Tensor) -> None:
    federation = peers()
    method, plan, change = OPTIONS[name]
    run = exchange(method, federation, rounds=4, evaluate_every=2, **plan)
    paper = Paper(federation, **change)
    follow(run, paper, 4)
    assert paper.conflicts > 0
    assert not torch.allclose(run.engine.kept[5, "a"]["personal"]["head.weight"], usual, atol=1e-6)


@pytest.mark.usefixtures("double")
def test_without_labels_it_learns_by_kl_alone_with_every_peer_trusted(peers: Any, exchange: Any) -> None:
    federation = peers(labelled=False)
    run = exchange(FedH2L(), federation, rounds=6, evaluate_every=2)
    follow(run, Paper(federation), 6)


def test_without_labels_no_label_of_a_public_sample_is_used_and_no_accuracy_leaves(
    peers: Any, exchange: Any, identical: Identical
) -> None:
    def runs(labelled: bool) -> list[Any]:
        federation = peers(labelled=labelled)
        wrong = {owner: replace(part, y=(part.y + 1) % 3) for owner, part in federation.public.parts.items()}
        other = replace(federation, public=Public(wrong, labelled))
        return [exchange(FedH2L(), each, rounds=3, evaluate_every=1) for each in (federation, other)]

    one, other = runs(labelled=False)
    for key, reply in one.engine.replies.items():
        assert set(load(reply.message.encode())) == {"probabilities/public/"}
        assert reply.message.encode() == other.engine.replies[key].message.encode()
    for brief in one.engine.briefs.values():
        assert set(brief) == {"public"}
    for key, state in one.engine.kept.items():
        assert identical(state["personal"], other.engine.kept[key]["personal"])
    assert list(one.history) == list(other.history)
    one, other = runs(labelled=True)
    assert not identical(one.engine.kept[4, "a"]["personal"], other.engine.kept[4, "a"]["personal"])


@pytest.mark.usefixtures("double")
def test_a_graph_says_who_hears_whom(tmp_path: Path, peers: Any, exchange: Any) -> None:
    path = tmp_path / "star.graphml"
    networkx.write_graphml(networkx.Graph([("a", "b"), ("a", "c"), ("a", "d")]), path)
    federation = peers()
    run = exchange(FedH2L(), federation, rounds=4, topology=str(path))
    heard = {"a": ["b", "c", "d"], "b": ["a"], "c": ["a"], "d": ["a"]}
    follow(run, Paper(federation, peers=lambda i, t: heard[i]), 4)
    graph = networkx.Graph([("a", "b"), ("a", "c"), ("a", "d")])
    given = exchange(FedH2L(), federation, rounds=4, topology=graph)
    for key, reply in run.engine.replies.items():
        assert reply.message.encode() == given.engine.replies[key].message.encode()
    networkx.write_graphml(networkx.Graph([("a", "b"), ("a", "c")]), path)
    with pytest.raises(InputError, match="no node 'd'"):
        exchange(FedH2L(), federation, topology=str(path))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("topology", ["all", "ring", "pairs"])
def test_clients_that_were_not_drawn(topology: str, peers: Any, exchange: Any) -> None:
    """Who comes back learns from what was said in the round before, against its own last local gradient.

    Who was never drawn has taken no local step, so there is nothing yet that a mutual update could follow.
    """
    federation = peers()
    run = exchange(FedH2L(), federation, rounds=7, client_fraction=0.5, topology=topology, seed=1)
    drawn = {event.round: event.clients for event in run.events if isinstance(event, RoundStarted)}
    assert {len(ids) for ids in drawn.values()} == {2}
    earlier = {t: {i for s in range(1, t - 1) for i in drawn[s]} for t in range(3, 8)}
    assert any(i in earlier[t] and i not in drawn[t - 1] for t in earlier for i in drawn[t])
    paper = Paper(
        federation,
        seed=1,
        drawn=lambda t: drawn.get(t, ()),
        peers=lambda i, t: Topology(topology).peers(i, IDS, 1, t),
    )
    follow(run, paper, 7)
    assert paper.updates > 3
    for (round, i), brief in run.engine.briefs.items():
        assert set(brief.arrays("public")) <= set(drawn[round - 1]) - {i}


# What crosses


def raw(array: Tensor) -> bytes:
    return array.detach().contiguous().numpy().tobytes()


def test_messages_hold_probabilities_on_public_data_and_one_accuracy_and_nothing_else(
    nets: SimpleNamespace, peers: Any, exchange: Any
) -> None:
    federation = peers(models=[nets.plain, nets.wide, nets.dropping, nets.normed])
    run = exchange(FedH2L(), federation, rounds=4, steps=2)
    said = [reply.message.encode() for reply in run.engine.replies.values()]
    crossed = said + [brief.encode() for brief in run.engine.briefs.values()]
    assert len(said) == 16
    for (_, client), reply in run.engine.replies.items():
        entries = load(reply.message.encode())
        assert {name: tuple(array.shape) for name, array in entries.items()} == {
            "probabilities/public/": (4, 3),
            "accuracy/public_accuracy/": (),
        }, client
        assert entries["probabilities/public/"].sum(1).tolist() == pytest.approx([1] * 4, abs=1e-5)
        assert float(entries["accuracy/public_accuracy/"]) * 4 in range(5)
    assert not any(b"__metadata__" in message for message in crossed)
    for brief in run.engine.briefs.values():
        assert {part.kind for part in brief.values()} == {Kind.PROBABILITIES, Kind.ACCURACY}
    # No weight, optimizer state, kept gradient, sample or label of anybody is in any byte that crossed.
    secrets = kept_numbers(run)
    secrets += [row for client in federation.clients for row in client.train.x]
    secrets += [split.y for client in federation.clients for split in (client.train, client.val, client.test)]
    assert len(secrets) > 200
    assert not any(raw(secret) in message for secret in secrets for message in crossed)
    groups = {group for state in run.engine.kept.values() for group in state}
    assert groups == {"personal", "personal.optimizer", "local gradient"}


@pytest.mark.usefixtures("double")
def test_a_signal_is_what_the_stepped_model_says_of_its_own_public_batch_in_evaluation_mode(
    nets: SimpleNamespace, peers: Any, exchange: Any
) -> None:
    federation = peers(models=nets.normed)
    run = exchange(FedH2L(), federation, rounds=3, batch_size=3, seed=8)
    for (round, client), reply in run.engine.replies.items():
        # No index is in the message: this is how a peer knows which samples were meant.
        part = federation.public.parts[client]
        stream = torch_stream(public(8), client, round, "public batch")
        batch = part.take(torch.randperm(len(part), generator=stream)[:3])
        net = nets.normed(4, 3).eval()
        net.load_state_dict(run.engine.kept[round, client]["personal"])
        with torch.no_grad():
            p = torch.softmax(net(batch.x), 1)
        assert torch.allclose(reply.message.arrays("public")[""], p, rtol=0, atol=1e-12)
        right = np.mean(p.argmax(1).numpy() == batch.y.numpy())
        assert reply.message.number("public_accuracy") == pytest.approx(right, abs=1e-15)


@pytest.mark.parametrize("topology", ["all", "pairs", "ring"])
def test_the_server_relays_the_very_bytes_and_computes_nothing(topology: str, peers: Any, exchange: Any) -> None:
    run = exchange(FedH2L(), peers(), rounds=4, topology=topology, seed=2)
    assert all(round > 1 for round, _ in run.engine.briefs)
    for (round, client), brief in run.engine.briefs.items():
        heard = Topology(topology).peers(client, IDS, 2, round - 1)
        assert list(brief.arrays("public")) == list(brief.arrays("public_accuracy")) == heard
        for peer in heard:
            sent = run.engine.replies[round - 1, peer].message
            for part in ("public", "public_accuracy"):
                assert raw(brief.arrays(part)[peer]) == raw(sent.arrays(part)[""])
    expected = {(round, client) for round in (2, 3, 4, 5) for client in IDS}
    assert set(run.engine.briefs) == expected
    assert set(run.server.state) == {"public", "public_accuracy"}
    if topology == "pairs":
        pairs = {round: tuple(run.engine.briefs[round, i].arrays("public")) for round, i in expected if i == "a"}
        assert len(set(pairs.values())) > 1


def test_four_lenets_send_321_floats_a_node_a_round(exchange: Any) -> None:
    """Batch 32, ten classes: 32·10 probabilities and one accuracy. Weights would be 61,706."""
    clients, parts = [], {}
    for k, name in enumerate(IDS):
        x = torch.randint(256, (80, 1, 28, 28), generator=torch_stream(k, "x"), dtype=torch.uint8)
        samples = Samples.of(x, torch.arange(80) % 10, classes=[str(c) for c in range(10)])
        parts[name] = samples.take(range(40))
        held = samples.take(range(72, 80))
        clients.append(Client(name, samples.take(range(40, 72)), held, held, Architecture.of("lenet5")))
    federation = Federation(tuple(clients), public=Public(parts))
    run = exchange(FedH2L(), federation, rounds=2, batch_size=32, optimizer={"name": "amsgrad", "lr": 0.001})
    for round in (1, 2):
        for name in IDS:
            rows = [e for e in run.ledger if (e.round, e.client, e.direction) == (round, name, "up")]
            assert sum(row.values for row in rows) == 321
            numbers = [row for row in rows if row.kind != "envelope"]
            assert sum(row.bytes for row in numbers) == 321 * 4
            assert sorted((row.kind, row.name, row.values) for row in numbers) == [
                ("accuracy", "public_accuracy", 1),
                ("probabilities", "public", 320),
            ]
    down = [e.values for e in run.ledger if (e.round, e.client, e.direction) == (2, "a", "down")]
    assert sum(down) == 3 * 321
    assert sum(array.numel() for array in run.engine.kept[0, "a"]["personal"].values()) == 61_706


# Refusals


def said_by_b(change: Callable[[Message], Message]) -> Callable[[int, str, Message], Message]:
    return lambda t, client, message: change(message) if (t, client) == (2, "b") else message


def rows(change: Callable[[Tensor], Any]) -> Callable[[Message], Message]:
    def changed(message: Message) -> Message:
        part = Part(Kind.PROBABILITIES, {"": change(message.arrays("public")[""].clone())})
        return Message(**{**message, "public": part})

    return changed


def accuracy(value: Any) -> Callable[[Message], Message]:
    return lambda message: Message(public=message["public"], **value)


BROKEN: dict[str, tuple[Callable[[Message], Message], str]] = {
    "rows of 0.9": (rows(lambda p: 0.9 * p), "sum to 1"),
    "a negative": (rows(lambda p: p + torch.tensor([2.0, -1.0, -1.0])), "at least 0"),
    "float16": (rows(lambda p: p.half()), "are torch.float16, not torch.float"),
    "not a number": (rows(lambda p: p * math.nan), "finite rows of 3"),
    "infinite": (rows(lambda p: p / 0), "finite rows of 3"),
    "whole numbers": (rows(lambda p: torch.eye(3, dtype=torch.int64)[[0, 1, 2, 0]]), "torch.int64"),
    "two classes": (rows(lambda p: torch.full((4, 2), 0.5)), "rows of 3"),
    "one row, no dimension": (rows(lambda p: p[0]), "rows"),
    "two arrays": (
        lambda m: Message(**{**m, "public": Part(Kind.PROBABILITIES, {**m.arrays("public"), "x": torch.ones(1)})}),
        "no probabilities 'public'",
    ),
    "accuracy above 1": (accuracy({"public_accuracy": number(Kind.ACCURACY, 1.01)}), "outside [0, 1]"),
    "accuracy below 0": (accuracy({"public_accuracy": number(Kind.ACCURACY, -0.01)}), "outside [0, 1]"),
    "accuracy nan": (accuracy({"public_accuracy": number(Kind.ACCURACY, math.nan)}), "outside [0, 1]"),
    "no accuracy": (accuracy({}), "missing"),
    "accuracies": (accuracy({"public_accuracy": Part(Kind.ACCURACY, {"": torch.ones(3)})}), "not one number"),
}


@pytest.fixture
def tampered(simulate: Simulate) -> Callable[..., Any]:
    def go(federation: Federation, change: Callable[[Message], Message], **plan: Any) -> Any:
        plan = {"rounds": 3, "steps": 1, "optimizer": AMSGRAD, "evaluate_every": 1000} | plan
        return simulate(FedH2L(), federation, tamper=said_by_b(change), **plan)

    return go


def test_a_signal_that_cannot_be_is_refused(peers: Any, exchange: Any) -> None:
    run = exchange(FedH2L(), peers(), rounds=1)
    honest = run.engine.replies[1, "b"].message
    run.job.method.check(run.server, "b", honest)
    for name, (change, reason) in BROKEN.items():
        with pytest.raises(Refused) as refused:
            run.job.method.check(run.server, "b", change(honest))
        assert reason in str(refused.value), name


@pytest.mark.parametrize("what", ["rows", "weights"])
def test_nobody_hears_what_was_refused_and_the_round_goes_on(what: str, peers: Any, tampered: Any) -> None:
    smuggled = Part(Kind.WEIGHTS, {"head.weight": torch.ones(3, 6)})
    change = rows(lambda p: 0.9 * p) if what == "rows" else lambda m: Message(**m, meme=smuggled)
    run = tampered(peers(), change)
    (refused,) = (event for event in run.events if isinstance(event, Rejected))
    assert (refused.round, refused.client) == (2, "b")
    assert ("sum to 1" if what == "rows" else "weights 'meme' may not leave") in refused.reason
    for client in IDS:
        assert set(run.engine.briefs[3, client].arrays("public")) == set(IDS) - {client, "b"}
        assert set(run.engine.briefs[4, client].arrays("public")) == set(IDS) - {client}


def test_an_accuracy_of_samples_without_labels_is_refused(peers: Any, tampered: Any) -> None:
    add = accuracy({"public_accuracy": number(Kind.ACCURACY, 1.0)})
    run = tampered(peers(labelled=False), add)
    (refused,) = (event for event in run.events if isinstance(event, Rejected))
    assert "without labels" in refused.reason


@pytest.mark.parametrize(("batch_size", "n"), [(3, 3), (4, 4), (1000, 0)])
def test_a_signal_of_another_number_of_samples_is_refused_by_name(
    batch_size: int, n: int, peers: Any, tampered: Any, identical: Identical
) -> None:
    """One row would otherwise be taken for all, and more would stop the run. A small part is a small batch."""
    federation = peers()
    n = n or len(federation.public.parts["b"])
    unheard = tampered(federation, rows(lambda p: 0.9 * p), batch_size=batch_size)
    for change in (rows(lambda p: p[:1]), rows(lambda p: torch.cat([p, p])), rows(lambda p: p[:0])):
        run = tampered(federation, change, batch_size=batch_size)
        (refused,) = (event for event in run.events if isinstance(event, Rejected))
        assert (refused.round, refused.client) == (2, "b")
        assert f"samples; its public batch has {n}" in refused.reason
        for client in "acd":
            assert identical(run.engine.kept[4, client]["personal"], unheard.engine.kept[4, client]["personal"])


def test_a_class_ruled_out_altogether_is_no_accident(peers: Any, tampered: Any) -> None:
    """A probability of exactly 0 or 1, as float32 can say, must not make NaN of anybody's weights."""
    run = tampered(peers(), rows(lambda p: torch.eye(3)[[0, 1, 2, 0]]))
    assert not [event for event in run.events if isinstance(event, Rejected)]
    for client in IDS:
        assert all(torch.isfinite(array).all() for array in run.engine.kept[4, client]["personal"].values())


def test_what_it_needs_is_refused_by_name(peers: Any, exchange: Any, federate: Federate) -> None:
    federation, unlabelled = peers(), peers(labelled=False)
    with pytest.raises(InputError, match="public: missing; fedh2l"):
        FedH2L().arrange(federate(global_model=None))
    some = {owner: part for owner, part in federation.public.parts.items() if owner != "c"}
    with pytest.raises(InputError, match="public: client c owns no part"):
        FedH2L().arrange(replace(federation, public=Public(some)))
    with pytest.raises(InputError, match=r"method\.kl"):
        FedH2L(kl=False).arrange(unlabelled)
    with pytest.raises(InputError, match=r"method\.local_data"):
        FedH2L(local_data="private+public").arrange(unlabelled)
    wide = {owner: replace(part, x=torch.zeros(5, 7)) for owner, part in federation.public.parts.items()}
    with pytest.raises(InputError, match="public: a's part"):
        FedH2L().arrange(replace(federation, public=Public(wide)))
    a = federation["a"]
    out = replace(a, opt_in=torch.arange(len(a.train)) > 0)
    with pytest.raises(InputError, match="opt_out: method fedh2l"):
        FedH2L().arrange(replace(federation, clients=(out, *federation.clients[1:])))


def test_a_newcomer_has_no_global_to_join_with(peers: Any, exchange: Any, modules: Modules) -> None:
    run = exchange(FedH2L(), peers(), rounds=1)
    newcomer = Participant(run.job, run.federation["a"], {}, 2, modules)
    with pytest.raises(InputError, match="fedh2l"):
        run.job.method.personalise(newcomer, None, "global")


def test_one_public_sample_each_is_enough_also_for_batch_norm(
    nets: SimpleNamespace, federate: Federate, exchange: Any
) -> None:
    federation = with_public(federate([6, 9, 5, 7], models=nets.normed, global_model=None), 1)
    run = exchange(FedH2L(), federation, rounds=3)
    for client in IDS:
        assert run.engine.replies[3, client].message.arrays("public")[""].shape == (1, 3)
        assert all(torch.isfinite(array).all() for array in run.engine.kept[4, client]["personal"].values())


def test_a_federation_of_one_is_training_alone(peers: Any, exchange: Any) -> None:
    federation = peers()
    alone = replace(federation, clients=(federation["a"],))
    run = exchange(FedH2L(), alone, rounds=2)
    assert run.engine.briefs == {}
    assert set(run.engine.replies) == {(1, "a"), (2, "a")}


# State


def test_evaluation_changes_no_state_and_no_byte(
    nets: SimpleNamespace, peers: Any, exchange: Any, identical: Identical
) -> None:
    federation = peers(models=[nets.plain, nets.dropping, nets.normed, nets.wide])
    often, seldom = (exchange(FedH2L(), federation, rounds=3, evaluate_every=every) for every in (1, 1000))
    for key, reply in often.engine.replies.items():
        assert reply.message.encode() == seldom.engine.replies[key].message.encode()
    for key, state in often.engine.kept.items():
        other = seldom.engine.kept[key]
        assert state.keys() == other.keys()
        assert all(identical(state[group], other[group]) for group in state)


def test_the_predictor_is_a_copy_after_the_pending_update_which_finish_makes_once(
    nets: SimpleNamespace, peers: Any, exchange: Any, identical: Identical, modules: Modules
) -> None:
    """In mid-run it is what the next round starts its local steps from; at the end what finish has left."""
    federation = peers(models=[nets.plain, nets.dropping, nets.normed, nets.wide])
    run = exchange(FedH2L(), federation, rounds=3)
    method = run.job.method
    for client in IDS:
        state = {group: dict(arrays) for group, arrays in run.engine.kept[3, client].items()}
        pending = Participant(run.job, federation[client], state, 4, modules)
        model = method.predictor(pending, run.engine.briefs[4, client])
        served = {name: array.clone() for name, array in model.state_dict().items()}
        finished = run.engine.kept[4, client]
        assert identical(served, finished["personal"])
        assert not identical(served, run.engine.kept[3, client]["personal"])
        assert "local gradient" in run.engine.kept[3, client]
        assert "local gradient" not in finished
        # After the end neither another finish nor a predictor moves anything.
        after = Participant(run.job, federation[client], dict(finished), 5, modules)
        assert identical(dict(method.predictor(after, run.engine.briefs[4, client]).state_dict()), served)
        method.finish(after, run.engine.briefs[4, client])
        assert identical(after.state["personal"], served)
    before = {client: run.engine.stores[client].state for client in IDS}
    run.engine.finish(4, {client: run.engine.briefs[4, client] for client in IDS})
    assert all(run.engine.stores[client].state is before[client] for client in IDS)


def test_same_seed_same_bytes_another_seed_others(peers: Any, exchange: Any) -> None:
    one, two, other = (exchange(FedH2L(), peers(), rounds=3, topology="pairs", seed=seed) for seed in (5, 5, 6))
    for key, reply in one.engine.replies.items():
        assert reply.message.encode() == two.engine.replies[key].message.encode()
        assert reply.message.encode() != other.engine.replies[key].message.encode()


def test_the_order_of_clients_changes_no_byte(peers: Any, exchange: Any) -> None:
    federation = peers()
    turned = replace(federation, clients=federation.clients[::-1])
    one, other = (exchange(FedH2L(), each, rounds=3) for each in (federation, turned))
    assert {k: r.message.encode() for k, r in one.engine.replies.items()} == {
        k: r.message.encode() for k, r in other.engine.replies.items()
    }


def test_the_reply_to_a_brief_is_the_same_whoever_else_takes_part_and_however_often_it_comes(
    nets: SimpleNamespace, peers: Any, exchange: Any, identical: Identical, modules: Modules
) -> None:
    """Client b alone in the world with its store, the public set and the briefs of a run."""
    federation = peers(models=[nets.plain, nets.dropping, nets.normed, nets.wide])
    run = exchange(FedH2L(), federation, rounds=3)
    assert_repeatable(run, identical, modules)


def test_after_last_work_that_failed_signals_are_taken_for_the_round_in_which_they_were_sent(
    peers: Callable[..., Federation], simulate: Simulate
) -> None:
    """The pending update is then a part of the last evaluation: the same as if the work had been done."""

    class Failing(FedH2L):
        def finish(self, client: Participant, brief: Message | None) -> None:
            super().finish(client, brief)
            if (client.id, client.round) == ("b", 3):
                raise ValueError("no more")

    runs = []
    for method in (FedH2L(), Failing()):
        run = simulate(method, peers(), rounds=2, steps=1, evaluate_every=1000)
        runs.append(run)
    at = {"round": 2, "client": "b", "model": "predictor", "split": "test", "metric": "loss"}
    done, failed = (run.history.select(**at)[0].value for run in runs)
    assert done == failed
    assert [(e.round, e.client) for e in runs[1].events if isinstance(e, Rejected)] == [(3, "b")]
