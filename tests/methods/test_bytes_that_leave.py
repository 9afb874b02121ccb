"""What leaves a client and what never does, shown on the bytes of every message of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import Tensor

from mutua import Federation, Kind, Samples
from mutua.methods import FML, FedAvg, FedProx, FineTuned, Independent

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]

MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def crossed(run: Any) -> Iterator[tuple[int, str, bytes]]:
    """Every message of a run as bytes, briefs and replies."""
    for (round, client), brief in run.engine.briefs.items():
        yield round, client, brief.encode()
    for (round, client), reply in run.engine.replies.items():
        if reply.message is not None:
            yield round, client, reply.message.encode()


def raw(array: Tensor) -> bytes:
    return array.detach().contiguous().numpy().tobytes()


def private_arrays(run: Any) -> Iterator[tuple[str, Tensor]]:
    """All that any client keeps after any round, with a name for it."""
    for (round, client), state in run.engine.kept.items():
        for group, arrays in state.items():
            for name, array in arrays.items():
                yield f"round {round}, client {client}: {group} {name}", array


def telling(array: Tensor) -> bool:
    """Long and varied enough that its bytes are nobody else's: not a counter, not all zeros or ones."""
    return array.dtype.is_floating_point and array.unique().numel() >= 2


@pytest.mark.parametrize("share", ["all", "body"])
@pytest.mark.parametrize("shared", ["plain", "normed"])
def test_no_private_array_is_in_any_message_of_fml(
    shared: str, share: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """Personal models of the global's own architecture, so that names and shapes alone would not tell."""
    net = getattr(nets, shared)
    federation = federate(models=net, global_model={"name": net, "share": share})
    run = simulate(FML(), federation, rounds=3, optimizer=MOMENTUM)
    messages = list(crossed(run))
    assert len(messages) == 3 * 3 * 2 + 3
    looked = 0
    for what, array in private_arrays(run):
        if telling(array):
            looked += 1
            assert not any(raw(array) in message for _, _, message in messages), what
    assert looked >= 4 * 3 * (4 + 2)
    groups = {group for state in run.engine.kept.values() for group in state}
    assert groups == {"personal", "personal.optimizer"} | ({"adaptor"} if share == "body" else set())


def test_the_search_finds_what_is_there(nets: SimpleNamespace, federate: Federate, simulate: Simulate) -> None:
    """The same search on FedAvg's last local copy, which is what was sent, must find it."""
    run = simulate(FedAvg(serve="local"), federate(), rounds=1)
    messages = [message for _, _, message in crossed(run)]
    for _, array in private_arrays(run):
        assert any(raw(array) in message for message in messages)


@pytest.mark.parametrize(
    "method", [FML(), FedAvg(), FedProx(), FineTuned(tune_epochs=2), Independent()], ids=lambda m: str(m.name)
)
def test_no_sample_and_no_label_is_in_any_message(method: Any, federate: Federate, simulate: Simulate) -> None:
    federation = federate()
    run = simulate(method, federation)
    messages = [message for _, _, message in crossed(run)]
    for client in federation.clients:
        for split in (client.train, client.val, client.test):
            assert not any(raw(row) in message for row in split.x for message in messages)
            assert not any(raw(split.y) in message for message in messages)


@pytest.mark.parametrize(
    ("share", "names"),
    [
        ("all", {"body.weight", "body.bias", "head.weight", "head.bias"}),
        ("body", {"body.weight", "body.bias"}),
        ("head", {"head.weight", "head.bias"}),
        (["body.bias", "head"], {"body.bias", "head.weight", "head.bias"}),
    ],
    ids=["all", "body", "head", "list"],
)
def test_fmls_messages_are_the_globals_names_and_nothing_else(
    share: Any, names: set[str], nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """On the bytes: every entry, every name, every shape, and no metadata beside them."""
    federation = federate(models=nets.wide, global_model={"name": nets.plain, "share": share})
    run = simulate(FML(), federation)
    shapes = {name: array.shape for name, array in nets.plain(4, 3).state_dict().items() if name in names}
    for (round, client), reply in run.engine.replies.items():
        entries = load(reply.message.encode())
        assert {name: array.shape for name, array in entries.items()} == {
            f"weights/meme/{name}": shape for name, shape in shapes.items()
        }, (round, client)
        assert b"__metadata__" not in reply.message.encode()
    for brief in run.engine.briefs.values():
        assert set(load(brief.encode())) == {f"weights/global/{name}" for name in names}
    for _, _, message in crossed(run):
        assert not any(word in message for word in (b"personal", b"adaptor", b"optimizer", b"samples", b"count"))
        assert not any(class_name in message for class_name in (b"bee", b"cat"))


def test_the_declarations_are_the_table_of_privacy_facts() -> None:
    meme, n_k = {"meme": Kind.WEIGHTS}, {"samples": Kind.COUNT}
    assert FML().shares == meme
    for method in (FedAvg, FedProx, FineTuned):
        assert method().shares == {**meme, **n_k}
        assert method(weights="uniform").shares == meme
    assert Independent().shares == {}


@pytest.mark.parametrize("method", [FML(), FedAvg(weights="uniform")], ids=lambda m: str(m.name))
def test_the_size_of_a_message_says_nothing_of_the_number_of_samples_or_classes_held(
    method: Any, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    sizes = set()
    for n in (1, 2, 9, 60):
        run = simulate(method, federate([n, 5], models=nets.plain, global_model=nets.plain))
        sizes |= {len(reply.message.encode()) for reply in run.engine.replies.values()}
    assert len(sizes) == 1


def test_fmls_reply_does_not_tell_a_client_from_one_with_every_sample_twice(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """In one full batch a mean over samples is the mean over their copies: n_k would show, were it sent."""
    federation = federate([7, 6])
    a = federation["a"]
    twice = replace(a, train=a.train.take([*range(7), *range(7)]))
    settings = {"rounds": 1, "batch_size": 100}
    both = [replace(federation, clients=(client, federation["b"])) for client in (a, twice)]
    once, doubled = (simulate(FML(), each, **settings) for each in both)
    ours, theirs = (run.engine.replies[1, "a"].message for run in (once, doubled))
    assert len(ours.encode()) == len(theirs.encode())
    for name, array in ours.arrays("meme").items():
        assert torch.allclose(array, theirs.arrays("meme")[name], atol=1e-6)
    by_samples = [simulate(FedAvg(), each, **settings) for each in both]
    assert [run.engine.replies[1, "a"].message.number("samples") for run in by_samples] == [7, 14]


def test_a_client_not_drawn_sends_nothing_and_gets_only_the_last_global(
    federate: Federate, simulate: Simulate
) -> None:
    run = simulate(FML(), federate([5, 5, 5, 5]), rounds=3, client_fraction=0.25)
    drawn = set(run.engine.replies)
    assert set(run.engine.briefs) == drawn | {(4, client) for client in "abcd"}
    up = {(e.round, e.client) for e in run.ledger if e.direction == "up"}
    assert up == drawn


def test_evaluation_leaves_nothing_with_the_server(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, blobs: Callable[..., Samples]
) -> None:
    """Other validation and test data at a client change what is measured, never what is sent or merged."""
    federation = federate()
    a = federation["a"]
    other = replace(a, val=blobs(17, seed=501), test=blobs(3, seed=502))
    runs = [
        simulate(FML(), replace(federation, clients=(client, *federation.clients[1:])), evaluate_every=every)
        for client, every in ((a, 1), (other, 2))
    ]
    sent = [[message for _, _, message in crossed(run)] for run in runs]
    assert sent[0] == sent[1]
    assert set(runs[0].server.state) == {"global"}


@pytest.mark.parametrize("method", [FML(), FedAvg(weights="uniform")], ids=lambda method: method.name)
def test_batch_norms_counter_does_not_tell_how_many_samples_a_client_has(method, federate, simulate, nets) -> None:
    run = simulate(method, federate((5, 40), models=nets.normed, global_model=nets.normed), rounds=2)
    for (round, client), reply in run.engine.replies.items():
        sent = reply.message.arrays("meme")["norm.num_batches_tracked"]
        assert torch.equal(sent, run.engine.briefs[round, client].arrays("global")["norm.num_batches_tracked"])
        assert not torch.equal(
            reply.message.arrays("meme")["norm.running_mean"],
            run.engine.briefs[round, client].arrays("global")["norm.running_mean"],
        )
