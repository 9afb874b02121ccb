"""The one transaction: what a client keeps and what it sends are committed together, or neither is."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conftest import work
from mutua import Federation, Message, Plan
from mutua.engines.work import HandIn, Replies, Reply, Staged, Verb, perform
from mutua.engines.work import work as transaction
from mutua.errors import Fault
from mutua.federation.module_pool import Modules
from mutua.federation.store import Store
from mutua.methods import FML, FedAvg, Participant, weights
from mutua.methods.base import Job
from mutua.support import signals
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]

linux = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, on Linux only")
MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def test_a_client_works_alike_without_any_engine(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate(models=nets.normed, global_model={"name": nets.dropping, "share": "body"})
    run = simulate(FML(), federation, rounds=2, optimizer=MOMENTUM)
    store = Store()
    # Modules built anew for every round: none of them may carry anything over.
    work(run.job, federation["c"], store, "start", 0, None, Modules(torch.device("cpu")))
    for round in (1, 2):
        brief = Message.decode(run.engine.briefs[round, "c"].encode())
        reply = work(run.job, federation["c"], store, "train", round, brief, Modules(torch.device("cpu")))
        assert reply.message == run.engine.replies[round, "c"].message
        there = run.engine.kept[round, "c"]
        assert set(store.state) == set(there)
        assert all(identical(store.state[group], there[group]) for group in there)


class Failing(FML):
    """A method that breaks down after it has trained."""

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        reply = super().train(client, brief)
        if client.round == 2 and client.id == "b":
            raise ValueError("the disk is full\nand more")
        return reply


def test_a_failed_train_leaves_the_store_as_it_was_and_names_the_client(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate(models=nets.normed, global_model={"name": nets.dropping, "share": "body"})
    good = simulate(FML(), federation, rounds=2, optimizer=MOMENTUM)
    run = simulate(Failing(), federation, rounds=2, optimizer=MOMENTUM, go=False)
    run.job.method.open(run.server)
    run.engine.start()
    for round in (1, 2):
        replies = run.engine.train(round, {client: good.engine.briefs[round, client] for client in "abc"})
    assert str(replies["b"]).startswith("client b, round 2: ValueError: the disk is full (")
    assert replies["b"].reason.startswith("ValueError: the disk is full (")
    assert replies["a"].message == good.engine.replies[2, "a"].message
    store = run.engine.stores["b"]
    assert [commit.round for commit in store.commits] == [0, 1]
    for group, arrays in good.engine.kept[1, "b"].items():
        assert identical(store.state[group], arrays)
    # What broke is mended and the brief comes again: the work is as if nothing had happened.
    job = replace(run.job, method=FML())
    reply = work(
        job, federation["b"], store, "train", 2, good.engine.briefs[2, "b"], run.engine.pool.worker.modules
    )
    run.engine.close()
    assert reply.message == good.engine.replies[2, "b"].message
    for group, arrays in good.engine.kept[2, "b"].items():
        assert identical(store.state[group], arrays)


class Dying(FML):
    """A method that is stopped in the middle of its training by something that is no Exception."""

    def objective(self, models: Any, batch: Any, hp: Any) -> Any:
        raise KeyboardInterrupt


def test_an_interrupt_leaves_the_store_and_the_random_streams_as_they_were(
    nets: SimpleNamespace, federate: Federate, modules: Modules
) -> None:
    federation = federate(models=nets.dropping)
    job = Job(Dying(), Plan(batch_size=4, device="cpu"), federation.global_model)
    store = Store()
    work(job, federation["a"], store, "start", 0, None, modules)
    state, rng = store.state, torch.get_rng_state()
    assert federation.global_model is not None
    first = federation.global_model.build(channels=4, size=1, classes=3, seed=1).state_dict()
    with pytest.raises(KeyboardInterrupt):
        work(job, federation["a"], store, "train", 1, Message(**{"global": weights(first)}), modules)
    assert store.state is state
    assert len(store.commits) == 1
    assert torch.equal(torch.get_rng_state(), rng)
    assert not any(module._forward_hooks for module in modules.built.values())


def test_a_signal_does_not_stop_a_commit_half_way(federate: Federate, modules: Modules) -> None:
    """Whatever engine calls it: what is handed in is committed before the signal stops the work."""

    class Interrupted(Store):
        def commit(self, *args: Any) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            super().commit(*args)

    federation = federate()
    job, store, other = Job(FedAvg(), Plan(device="cpu"), federation.global_model), Interrupted(), Store()

    def performer(staged: Mapping[str, Staged], hand_in: HandIn) -> None:
        for client, given in staged.items():
            hand_in(client, perform(job, federation[client], "start", 0, given, modules))

    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), signals.handled():
        transaction({"a": store, "b": other}, 0, {"a": None, "b": None}, performer)
    assert [done.round for done in store.commits] == [0]
    assert not other.commits


def test_a_brief_that_does_not_fit_the_global_is_an_error_that_names_the_client(
    federate: Federate, modules: Modules
) -> None:
    federation = federate()
    job = Job(FedAvg(), Plan(device="cpu"), federation.global_model)
    store = Store()
    work(job, federation["a"], store, "start", 0, None, modules)
    with pytest.raises(Fault, match="client a, round 1"):
        work(
            job, federation["a"], store, "train", 1, Message(**{"global": weights({"x": torch.ones(1)})}), modules
        )


def test_what_may_not_leave_is_not_committed(federate: Federate, modules: Modules, simulate: Simulate) -> None:
    class Chatty(FML):
        def train(self, client: Participant, brief: Message | None) -> Message | None:
            super().train(client, brief)
            return Message(meme=weights(client.state["personal"]), personal=weights({}))

    federation = federate()
    brief = simulate(FML(), federation, rounds=1).engine.briefs[1, "a"]
    job = Job(Chatty(), Plan(device="cpu"), federation.global_model)
    store = Store()
    work(job, federation["a"], store, "start", 0, None, modules)
    with pytest.raises(Fault, match="client a, round 1: weights 'personal' may not leave"):
        work(job, federation["a"], store, "train", 1, brief, modules)
    assert len(store.commits) == 1


@pytest.mark.parametrize("owners", [["abc"], ["ab", "c"], ["a", "b", "c"]], ids=len)
def test_whoever_owns_the_stores_calls_the_same_transaction(
    owners: list[str], nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    """Like actors that own some clients, or sites with one store: the local engine's bytes, asked twice too."""
    federation = federate(models=nets.normed, global_model={"name": nets.dropping, "share": "body"})
    run = simulate(FML(), federation, rounds=2, optimizer=MOMENTUM)
    for owned in owners:
        stores, modules = {client: Store() for client in owned}, Modules(torch.device("cpu"))

        def ask(verb: Verb, round: int, stores: Any = stores, modules: Modules = modules) -> Replies:
            def performer(staged: Mapping[str, Staged], hand_in: HandIn) -> None:
                for client, given in staged.items():
                    try:
                        hand_in(client, perform(run.job, federation[client], verb, round, given, modules))
                    except Fault as fault:
                        hand_in(client, fault)

            briefs = {client: run.engine.briefs.get((round, client)) for client in stores}
            return transaction(stores, round, briefs, performer)

        ask("start", 0)
        for round in (1, 2):
            first, again = ask("train", round), ask("train", round)
            for client in owned:
                expected, there = run.engine.replies[round, client].message, run.engine.kept[round, client]
                assert isinstance(first[client], Reply) and isinstance(again[client], Reply)
                assert first[client].message == again[client].message == expected
                assert again[client].seconds == 0
                assert all(identical(stores[client].state[group], there[group]) for group in there)


def test_what_was_handed_in_before_a_performer_breaks_stays_and_nothing_else_changes() -> None:
    stores = {client: Store() for client in "abc"}
    reply = Reply(Message(), {"loss": 1.0}, 0.1)

    def performer(staged: Mapping[str, Staged], hand_in: HandIn) -> None:
        hand_in("a", ({"personal": {"w": torch.ones(1)}}, reply))
        hand_in("b", Fault("client b, round 1", "its own"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transaction(stores, 1, dict.fromkeys("abc"), performer)
    assert [[commit.round for commit in store.commits] for store in stores.values()] == [[1], [], []]
    found = transaction(stores, 1, {"a": None}, lambda staged, hand_in: None)["a"]  # from the commit
    assert isinstance(found, Reply) and (found.message, found.terms) == (reply.message, reply.terms)


def test_what_is_staged_can_be_performed_again(federate: Federate, modules: Modules, simulate: Simulate) -> None:
    federation = federate()
    run = simulate(FML(), federation, rounds=1, optimizer=MOMENTUM)
    staged = Staged(run.engine.briefs[1, "a"], run.engine.kept[0, "a"])
    before = {group: list(arrays) for group, arrays in staged.state.items()}
    first, second = (perform(run.job, federation["a"], "train", 1, staged, modules) for _ in range(2))
    assert first[1].message == second[1].message == run.engine.replies[1, "a"].message
    assert {group: list(arrays) for group, arrays in staged.state.items()} == before
