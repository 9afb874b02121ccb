"""What a second reading found: each of these was wrong once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx
import numpy as np
import pytest
import torch

from mutua import Adam, Federation, InputError, Kind, Message, Plan, Recipe, Refused, Samples, partitions, run
from mutua.data.public import Public
from mutua.federation.ledger import may_leave
from mutua.federation.message import Part, weights
from mutua.federation.topology import Topology
from mutua.methods import FML, FedAvg, FedH2L, FedMD, Independent, MixtureOfExperts
from mutua.models import shared_names

Simulate = Callable[..., Any]
Federate = Callable[..., Federation]
Blobs = Callable[..., Samples]

DEALT = [
    partitions.IID(clients=3),
    partitions.Shards(clients=3, shards_per_client=2),
    partitions.Dirichlet(clients=3, alpha=1.0, min_size=2),
    partitions.Majority(clients=3, p=0.6, majority_classes=1),
    partitions.LogNormal(clients=3, sigma=0.5),
    partitions.Domains(),
]


def _altered(samples: Samples, how: str) -> Samples:
    """Other values, other labels or fewer of the samples that are opted out."""
    out = samples.opted_out
    assert out is not None
    if how == "values":
        return replace(samples, x=torch.where(out[:, None], -samples.x, samples.x))
    if how == "labels":
        return replace(samples, y=torch.where(out, (samples.y + 1) % 3, samples.y))
    return samples.take((~out | (torch.arange(len(out)) % 4 == 0)).nonzero()[:, 0])


@pytest.mark.parametrize("each", [None, 9])
@pytest.mark.parametrize("partition", DEALT, ids=lambda partition: partition.kind)
def test_a_mask_in_the_data_survives_split_and_deal_and_changes_no_byte_that_leaves(
    partition: Any, each: int | None, blobs: Blobs, nets: SimpleNamespace, simulate: Simulate, identical: Any
) -> None:
    n = 120
    out = torch.arange(n) % 5 < 2
    domain = torch.arange(n) % 3
    marked = replace(blobs(n), opted_out=out, domain=domain, domains=("u", "v", "w"))

    def run(samples: Samples) -> Any:
        federation = Federation.from_samples(
            samples, partition=partition, models=nets.plain, global_model=nets.plain, samples_per_client=each
        )
        assert all(client.opt_in is not None for client in federation.clients)
        assert sum(len(client.train) - len(client.opted_in) for client in federation.clients) > 0
        return federation, simulate(MixtureOfExperts(mixture_epochs=1), federation)

    federation, first = run(marked)
    secret = {tuple(row) for row in marked.x[out].tolist()}
    for client in federation.clients:
        assert not secret & {tuple(row) for row in client.opted_in.x.tolist()}
    assert not secret & {tuple(row) for row in federation.test.x.tolist()}
    for how in ("values", "labels", "number"):
        other, second = run(_altered(marked, how))
        assert other.test is not None and torch.equal(other.test.x, federation.test.x)
        assert all(identical(a, b) for a, b in zip(first.globals, second.globals, strict=True))
        assert first.engine.replies.keys() == second.engine.replies.keys()
        for key, reply in first.engine.replies.items():
            assert reply.message == second.engine.replies[key].message


def test_opted_out_samples_go_to_clients_of_their_kind(blobs: Blobs, nets: SimpleNamespace) -> None:
    """Each to one client at most, and to one that holds its class."""
    marked = replace(blobs(300), opted_out=torch.arange(300) % 2 == 0)
    partition = partitions.Shards(clients=3, shards_per_client=1)
    federation = Federation.from_samples(marked, partition=partition, models=nets.plain)
    held = [tuple(row) for c in federation.clients for s in (c.train, c.val, c.test) for row in s.x.tolist()]
    assert len(held) == len(set(held)) == 300
    for client in federation.clients:
        assert client.opt_in is not None and 0 < int(client.opt_in.sum()) < len(client.train)
        assert len(client.train.y.unique()) == len(client.val.y.unique()) == len(client.test.y.unique()) == 1


def test_data_with_opted_out_samples_is_refused_by_methods_that_would_send_what_they_learned(
    blobs: Blobs, nets: SimpleNamespace
) -> None:
    marked = replace(blobs(60), opted_out=torch.arange(60) % 2 == 0)
    federation = Federation.from_samples(
        marked, partition=partitions.IID(clients=2), models=nets.plain, global_model=nets.plain
    )
    with pytest.raises(InputError, match="fml would let opted-out samples leave"):
        FML().arrange(federation)
    whole = replace(marked, opted_out=torch.ones(60, dtype=torch.bool))
    with pytest.raises(InputError, match="every sample is opted out"):
        Federation.from_samples(whole, partition=partitions.IID(clients=2), models=nets.plain)


def test_a_class_that_only_opted_out_samples_have_must_be_declared(tmp_path: Path) -> None:
    """Else the labels of opted-out samples would say how many classes the global has."""
    path = tmp_path / "data.npz"
    arrays = {"x": np.random.default_rng(0).random((40, 4)), "y": np.arange(40) % 3, "out": np.arange(40) % 2 == 0}
    tree = {
        "data": {"name": "arrays", "path": str(path)},
        "partition": {"kind": "iid", "clients": 2},
        "models": {"global": "mlp"},
        "method": "mixture",
        "opt_out": {"mask": "out"},
    }
    np.savez(path, **arrays)
    assert Recipe.of(tree).federation().classes == ("0", "1", "2")
    arrays["y"][0] = 5
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=r"data.classes: only opted-out samples have 5, .*; declare all classes"):
        Recipe.of(tree).federation()
    arrays["y"][0] = 0
    np.savez(path, **arrays, classes=np.array(["ape", "bee", "cat"]))
    clients = Recipe.of(tree).federation().clients
    assert sum(len(client.opted_in) for client in clients) == 14


def test_no_client_is_called_global(federate: Federate) -> None:
    """Its rows of the history would pass for those of the shared model."""
    with pytest.raises(InputError, match="client id 'global'"):
        replace(federate().clients[0], id="global")


class Half(torch.nn.Module):
    """A body that its author has frozen, and a head that learns."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.body = torch.nn.Linear(channels, 6).requires_grad_(False)
        self.head = torch.nn.Linear(6, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("freeze_experts", [False, True])
def test_what_a_user_froze_stays_frozen_in_the_mixture(
    freeze_experts: bool, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    method = MixtureOfExperts(mixture_epochs=2, freeze_experts=freeze_experts)
    run = simulate(method, federate((9, 12), models=Half, global_model=nets.plain))
    for client in "ab":
        built = run.engine.modules.get(
            "personal",
            run.federation[client].model,
            run.federation[client],
            run.engine.stores[client].state["personal"],
        )
        assert [p.requires_grad for p in built.parameters()] == [False, False, True, True]
        begun = simulate(Independent(), federate((9, 12), models=Half), rounds=0).engine.stores[client].state
        assert torch.equal(
            run.engine.stores[client].state["personal"]["body.weight"], begun["personal"]["body.weight"]
        )


class Tied(torch.nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.middle, self.head = (torch.nn.Linear(4, n) for n in (4, 4, 3))
        self.middle.weight = self.body.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.middle(torch.tanh(self.body(x)))))  # type: ignore[no-any-return]


def test_a_tied_weight_is_not_both_shared_and_private(federate: Federate) -> None:
    """Loading the adaptor would overwrite the shared weight, and the client's own would leave as its meme's."""
    assert len(shared_names(Tied(), "body")) == 4
    with pytest.raises(InputError, match=r"'body\.weight' and 'middle\.weight' are one weight"):
        federate(global_model={"name": Tied, "share": ["body"]}).check(needs_global=True)


@pytest.mark.parametrize("share", ["all", "body"])
def test_a_personal_model_may_start_as_the_global_did_where_that_is_partial_too(
    share: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Any
) -> None:
    federation = federate(
        models=[nets.plain, nets.plain, nets.wide], global_model={"name": nets.plain, "share": share}
    )
    run = simulate(FML(init="global"), federation, rounds=0)
    begun = {c: run.engine.kept[0, c]["personal"] for c in "abc"}
    for client in "ab":
        assert identical({name: begun[client][name] for name in run.globals[0]}, run.globals[0])
    assert begun["c"]["body.weight"].shape != begun["a"]["body.weight"].shape


def test_a_number_that_is_declared_is_one_number() -> None:
    for kind in (Kind.COUNT, Kind.ENTROPY, Kind.ACCURACY):
        many = Message(part=Part(kind, {"": torch.arange(3.0)}))
        with pytest.raises(Refused, match=f"{kind} 'part' may not leave; it is not one number"):
            may_leave(many, {kind: "part"}, None)


def test_a_message_comes_back_with_the_names_it_was_sent_with() -> None:
    sent = Message(**{"my part": weights({"a/b.c": torch.ones(2)})})
    assert list(Message.decode(sent.encode()).arrays("my part")) == ["a/b.c"]
    with pytest.raises(ValueError, match="'my/part'"):
        Message(**{"my/part": weights({})})


def test_a_plan_takes_a_networkx_graph_and_refuses_what_is_none() -> None:
    graph = networkx.path_graph(["a", "b", "c"])
    assert Topology(Plan(topology=graph).topology).peers("b", "abc", 0, 1) == ["a", "c"]
    with pytest.raises(InputError, match="networkx graph"):
        Plan(topology=3)


def test_impossible_betas_are_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="betas"):
        Adam(betas=(0.9, 1.0))


class Counting(torch.nn.Module):
    """Remembers what it saw where no state_dict looks."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 3)
        self.inner = torch.nn.Module()
        self.inner.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.inner.seen = self.inner.seen + x.detach().abs().sum()
        return self.head(x) * (1 + 0.001 * self.inner.seen)  # type: ignore[no-any-return]


def test_a_buffer_that_is_not_saved_carries_nothing_from_one_client_to_the_next(
    federate: Federate, simulate: Simulate
) -> None:
    federation = federate((9, 12), global_model=Counting)
    both, alone = (
        simulate(FedAvg(), replace(federation, clients=c)) for c in (federation.clients, federation.clients[1:])
    )
    assert both.engine.replies[1, "b"].message == alone.engine.replies[1, "b"].message


@pytest.mark.parametrize(
    ("method", "labelled"), [(FedH2L(), True), (FedH2L(), False), (FedMD(subset=5), True), (FedAvg(), True)]
)
def test_a_budget_binds_every_method_whose_clients_send(
    method: Any, labelled: bool, federate: Federate, blobs: Blobs
) -> None:
    federation = federate((9, 12, 7))
    public = Public({client.id: blobs(6, seed=50 + k) for k, client in enumerate(federation.clients)}, labelled)
    federation = replace(federation, public=public)
    settings: dict[str, Any] = {"rounds": 12, "steps": 1, "batch_size": 4, "evaluate_every": 12, "device": "cpu"}
    free = run(method, federation, **settings)
    sent = free.ledger.bytes("up")
    assert run(method, federation, **settings, budget={"bytes_up": sent}).ledger.bytes("up") == sent
    bound = run(method, federation, **settings, budget={"bytes_up": sent // 2})
    assert (bound.job.plan.rounds, bound.job.plan.steps, bound.ledger.bytes("up")) == (6, 2, sent // 2)


def test_a_budget_counts_only_clients_that_can_be_drawn(federate: Federate) -> None:
    """Three of four have opted out whole: a fourth of the bytes pays for all rounds."""
    federation = federate((9, 9, 9, 9))
    out = [replace(c, opt_in=torch.full((9,), c.id == "a")) for c in federation.clients]
    settings: dict[str, Any] = {"rounds": 12, "steps": 1, "batch_size": 4, "evaluate_every": 12, "device": "cpu"}
    sent = run(FedAvg(), replace(federation, clients=tuple(out)), **settings).ledger.bytes("up")
    bound = run(FedAvg(), replace(federation, clients=tuple(out)), **settings, budget={"bytes_up": sent})
    assert (bound.job.plan.rounds, bound.ledger.bytes("up")) == (12, sent)


@pytest.mark.parametrize("samples_per_client", [None, 8])
def test_a_domain_may_be_opted_out_whole_by_a_mask(samples_per_client: int | None, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    domain = np.arange(90) % 3
    held = {"x": rng.normal(size=(90, 4)).astype("float32"), "y": np.arange(90) // 3 % 3, "out": domain == 1}
    np.savez(tmp_path / "d.npz", **held, domain=domain, classes=np.array(["ape", "bee", "cat"]))
    tree: dict[str, Any] = {
        "data": {"name": "arrays", "path": str(tmp_path / "d.npz")},
        "partition": {"kind": "domains"},
        "models": {"global": {"name": "mlp", "width": 0.1}},
        "opt_out": {"mask": "out"},
        "method": "fedavg",
        "rounds": 1,
    }
    if samples_per_client:
        tree["data"]["samples_per_client"] = samples_per_client
    recipe = Recipe.of(tree)
    federation = recipe.federation()
    taking_part = [client.takes_part for client in sorted(federation.clients, key=lambda client: client.id)]
    assert taking_part == [True, False, True]
    assert all(len(client.train) and len(client.val) and len(client.test) for client in federation.clients)
    assert not any(note.startswith("no ") for note in federation.notes)
    result = run(recipe.method, federation, plan=recipe.plan())
    assert {e.client for e in result.ledger if e.direction == "up"} == {
        federation.clients[0].id,
        federation.clients[2].id,
    }
    held["out"] = domain >= 0
    np.savez(tmp_path / "d.npz", **held, domain=domain, classes=np.array(["ape", "bee", "cat"]))
    with pytest.raises(InputError, match="opt_out: every sample is opted out"):
        recipe.federation()
