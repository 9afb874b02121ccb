"""The local engine: repeated briefs, and replies that do not depend on who else takes part."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mutua
from mutua import Federation, InputError, Plan, RunError
from mutua.engines.client_worker import device
from mutua.engines.local import LocalEngine
from mutua.engines.workers import Workers
from mutua.learning.optimizers import Stepper
from mutua.methods import FML, FedAvg, FineTuned
from mutua.methods.base import Job
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]

linux = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, on Linux only")
MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every step of any optimizer."""
    taken: list[int] = []
    step = Stepper.step
    monkeypatch.setattr(Stepper, "step", lambda *given: (taken.append(1), step(*given)))
    return taken


# A reply is nobody else's affair


def test_a_reply_to_the_same_brief_has_the_same_bytes_whoever_else_takes_part(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """All together, two, or one by itself: the brief decides, and the client's own past."""
    federation = federate([9, 12, 7, 5], models=[nets.dropping, nets.normed, nets.wide, nets.plain])
    run = simulate(FML(), federation, rounds=3, optimizer=MOMENTUM)
    for company in ("b", "bd", "dcba"):
        some = replace(federation, clients=tuple(federation[client] for client in company))
        engine = LocalEngine()
        engine.open(run.job, some)
        engine.start()
        for round in (1, 2, 3):
            replies = engine.train(round, {client: run.engine.briefs[round, client] for client in company})
            for client in company:
                assert replies[client].message is not None
                assert replies[client].message == run.engine.replies[round, client].message
        engine.close()


def test_twins_with_other_ids_train_differently(federate: Federate, simulate: Simulate) -> None:
    federation = federate()
    twins = tuple(replace(federation["a"], id=name) for name in ("a", "z"))
    run = simulate(FML(), replace(federation, clients=twins), rounds=1)
    assert run.engine.replies[1, "a"].message != run.engine.replies[1, "z"].message


def test_a_brief_that_another_process_may_still_hold_is_not_changed(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    run = simulate(FML(), federate(global_model=nets.normed), rounds=1, go=False)
    run.job.method.open(run.server)
    run.engine.start()
    brief = run.job.method.brief(run.server, 1, "a")
    before = brief.encode()
    run.engine.train(1, {"a": brief})
    run.engine.close()
    assert brief.encode() == before


# Repeated briefs


@pytest.mark.parametrize("method", [FML(), FedAvg()], ids=lambda m: str(m.name))
def test_a_repeated_brief_is_answered_from_the_store_and_trains_nothing(
    method: Any, federate: Federate, simulate: Simulate, steps: list[int]
) -> None:
    run = simulate(method, federate([9]), rounds=3, optimizer=MOMENTUM, go=False)
    run.job.method.open(run.server)
    engine = run.engine
    engine.start()
    brief = run.job.method.brief(run.server, 1, "a")
    first = engine.train(1, {"a": brief})["a"].message
    taken, kept = len(steps), engine.stores["a"].commits
    assert taken == 3 * (2 if method.name == "fml" else 1)  # nine samples in batches of four, one or two models
    again = engine.train(1, {"a": brief})["a"].message
    assert again == first
    assert len(steps) == taken
    assert engine.stores["a"].commits == kept
    engine.close()


def test_starting_or_finishing_twice_does_it_once(
    federate: Federate, simulate: Simulate, steps: list[int]
) -> None:
    run = simulate(FineTuned(tune_epochs=2), federate([5]), rounds=1)
    taken = len(steps)
    state = run.engine.stores["a"].state
    run.engine.finish(2, {"a": run.engine.briefs[2, "a"]})
    assert len(steps) == taken
    assert run.engine.stores["a"].state is state
    fml = simulate(FML(), federate([5]), go=False)
    fml.engine.start()
    started = fml.engine.stores["a"].state
    fml.engine.start()
    assert fml.engine.stores["a"].state is started
    fml.engine.close()


def test_a_server_one_round_behind_is_answered_and_all_goes_on_to_the_same_bytes(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    """The server forgets round 3 and asks again: who has it answers from the store, who lost it trains anew."""
    federation = federate(models=nets.normed, global_model={"name": nets.dropping, "share": "body"})
    run = simulate(FML(), federation, rounds=5, optimizer=MOMENTUM, go=False)
    engine = run.engine
    run.job.method.open(run.server)
    engine.start()
    replies = {}
    shared = []
    for round in (1, 2, 3):
        shared.append(dict(run.server.state))
        briefs = {client: run.job.method.brief(run.server, round, client) for client in "abc"}
        replies = engine.train(round, briefs)
        run.job.method.merge(run.server, {client: reply.message for client, reply in replies.items()})
    after = {client: engine.stores[client].state for client in "abc"}
    run.server.state = shared[2]
    briefs = {client: run.job.method.brief(run.server, 3, client) for client in "abc"}
    # b lost its last commit (a crash between two saves); the others have it.
    b = engine.stores["b"]
    assert [commit.round for commit in b.commits] == [2, 3]
    b.commits = b.commits[:1]
    again = engine.train(3, briefs)
    for client in "abc":
        assert again[client].message == replies[client].message
        assert again[client].terms == replies[client].terms
        assert (again[client].seconds == 0) == (client != "b")
        state = engine.stores[client].state
        assert set(state) == set(after[client])
        assert all(identical(state[group], after[client][group]) for group in state)
    engine.close()


# Clients that share built modules


def test_clients_of_one_architecture_do_not_mix_though_they_share_a_module(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation, adam = federate(models=nets.normed, global_model=nets.normed), {"name": "adam", "lr": 0.05}
    run = simulate(FML(), federation, rounds=2, optimizer=adam)
    personals = [run.engine.kept[2, client]["personal"] for client in "abc"]
    assert not identical(personals[0], personals[1])
    assert not identical(personals[1], personals[2])
    together = simulate(FML(alpha=1), federation, optimizer=adam)
    for client in "abc":
        alone = simulate(FML(alpha=1), replace(federation, clients=(federation[client],)), optimizer=adam)
        assert identical(alone.engine.kept[2, client]["personal"], together.engine.kept[2, client]["personal"])


def test_what_is_kept_shares_no_memory_with_what_trains(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    run = simulate(FML(), federate(models=nets.normed), rounds=2, optimizer=MOMENTUM)
    live = {p.data_ptr() for m in run.engine.pool.worker.modules.built.values() for p in m.state_dict().values()}
    for store in run.engine.stores.values():
        for commit in store.commits:
            kept = [array for arrays in commit.state.values() for array in arrays.values()]
            sent = [array for part in (commit.reply or {}).values() for array in part.arrays.values()]
            assert not live & {array.data_ptr() for array in [*kept, *sent]}
            assert all(not array.requires_grad for array in [*kept, *sent])


# The place


def test_one_thread_while_it_runs_and_the_old_number_after(federate: Federate, simulate: Simulate) -> None:
    torch.set_num_threads(2)
    try:
        run = simulate(FML(), federate(), go=False)
        assert torch.get_num_threads() == 1
        run.engine.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_devices_by_name() -> None:
    assert device("cpu") == torch.device("cpu")
    assert device("auto").type in ("cpu", "cuda", "mps")
    missing = [name for name, there in (("cuda", torch.cuda.is_available()),) if not there]
    for name in missing:
        with pytest.raises(InputError, match=f"'{name}' is not on this machine"):
            device(name)


@linux
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU would do the work")
def test_on_a_gpu_clients_work_one_by_one_or_as_many_at_once_as_asked(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU one can see no more than who goes for it: this process, or a worker before its first task."""
    asked, crews = list[str | None](), list[int]()
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)

    def available() -> bool:
        asked.append(os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
        return True

    monkeypatch.setattr(torch.cuda, "is_available", available)
    monkeypatch.setattr(Workers, "_greet", lambda self, worker: crews.append(len(self.processes)))
    for workers, deadline, processes in ((None, None, 0), (1, None, 0), (2, None, 2), (9, None, 3), (None, 5, 1)):
        crews.clear()
        asked.clear()
        federation = federate([5, 5, 5])
        engine = LocalEngine(workers=workers)
        engine.open(Job(FML(), Plan(device="cuda", deadline=deadline), federation.global_model), federation)
        engine.close()
        assert crews == [processes] * processes
        # CUDA itself, once asked, could not be used by what is forked; its driver knows less.
        assert asked == ["1" if processes else None]
        assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ


@linux
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU would do the work")
def test_workers_that_cannot_use_the_gpu_say_so(federate: Federate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RunError, match=r"workers: .*(CUDA|NVIDIA).*; use --workers 1"):
        mutua.run(FML(), federate(), device="cuda", workers=2)


def test_other_engines_are_refused_by_name(federate: Federate) -> None:
    from mutua import run

    with pytest.raises(InputError, match=r"'lokal'.*'local'"):
        run(FML(), federate(), engine="lokal")
    with pytest.raises(InputError, match="rounds"):
        run(FML(), federate(), rounds=-1)
    with pytest.raises(InputError, match="epochs and steps"):
        run(FML(), federate(), epochs=1, steps=1)


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
