"""The local engine: every client on this machine, in this process or in a worker a core."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mutua.engines.workers import Task, Workers, can_fork
from mutua.errors import InputError
from mutua.federation import Federation
from mutua.history import Metrics
from mutua.learning.evaluation import batches, probabilities
from mutua.message import Message, Tensors
from mutua.participant import Job, Modules, Reply, Verb, assess, perform
from mutua.profile import Span, note
from mutua.rounds import Briefs
from mutua.stopping import whole
from mutua.store import State, Store


@dataclass
class LocalEngine:
    """Clients work on one thread each, so a run's bytes do not depend on the number of workers or cores."""

    workers: int = field(default=1, kw_only=True)

    def open(self, job: Job, federation: Federation, stores: Mapping[str, Store] | None = None) -> None:
        """Take the job; stores live in memory."""
        self.job, self.federation = job, federation
        self.modules = Modules(device(job.plan.device))
        self.stores = {client.id: (stores or {}).get(client.id, Store()) for client in federation.clients}
        self._seconds: dict[tuple[str, str], float] = {}
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        # A GPU is one for all, and a lone client has nobody to work beside.
        alone = self.workers == 1 or len(self.stores) == 1 or self.modules.device.type != "cpu" or not can_fork()
        self._crew = None if alone else Workers(self._do, self.workers, len(self.stores))

    def start(self) -> None:
        """Every client's `start`, as round 0."""
        self._work("start", 0, dict.fromkeys(self.stores))

    def train(self, round: int, briefs: Briefs) -> Mapping[str, Reply]:
        """The briefed clients' `train`."""
        return self._work("train", round, briefs)

    def finish(self, round: int, briefs: Briefs) -> None:
        """The briefed clients' `finish`."""
        self._work("finish", round, briefs)

    def evaluate(self, round: int, briefs: Briefs) -> Mapping[str, Mapping[tuple[str, str], Metrics]]:
        """Each briefed client's models on its own data."""
        found: dict[str, Any] = {}
        given = {client: (round, brief, self.stores[client].stage(round + 1)) for client, brief in briefs.items()}
        self._all("assess", given, found.__setitem__)
        return {client: found[client] for client in briefs}

    def evaluate_global(self, state: Tensors) -> Metrics:
        """The global on the common test set, a batch at a time: workers share the batches."""
        assert self.federation.test is not None
        parts: dict[str, Tensor] = {}
        number = len(batches(self.federation.test))
        self._all("score", {str(i): (state,) for i in range(number)}, parts.__setitem__)
        task = self.federation.clients[0].task
        return task.metrics(torch.cat([parts[str(i)] for i in range(number)]), self.federation.test.y)

    def close(self) -> None:
        """End the workers and give the threads back; the stores stay, in memory of this process's own."""
        if self._crew is not None:
            self._crew.close()
            for store in self.stores.values():
                store.commits = deepcopy(store.commits)
        torch.set_num_threads(self._threads)

    def _work(self, verb: Verb, round: int, briefs: Briefs) -> dict[str, Reply]:
        """The work as a transaction: what a client keeps and what it replies are committed together."""
        replies: dict[str, Reply] = {}
        given: dict[str, tuple[Any, ...]] = {}
        for client, brief in briefs.items():
            done = self.stores[client].committed(round)
            if done is None:
                given[client] = round, brief, self.stores[client].stage(round)
            else:
                replies[client] = Reply(done.reply, done.terms, 0.0)

        def commit(client: str, found: tuple[State, Reply]) -> None:
            state, replies[client] = found
            self.stores[client].commit(round, state, replies[client].message, replies[client].terms)

        self._all(verb, given, commit)
        return {client: replies[client] for client in briefs}

    def _all(self, what: str, given: Mapping[str, tuple[Any, ...]], take: Callable[[str, Any], None]) -> None:
        """One task a client, `take`n as they are done; the longest of last time begins first."""
        tasks = [Task(what, client, args) for client, args in given.items()]

        def done(task: Task, found: Any, span: Span) -> None:
            self._seconds[what, task.client] = span.cpu
            note(span)
            take(task.client, found)

        if self._crew is not None:
            tasks.sort(key=lambda task: self._seconds.get((what, task.client), float("inf")), reverse=True)
            with whole():
                self._crew.do(tasks, done)
            return
        for task in tasks:
            with whole():
                began, cpu = time.perf_counter(), time.process_time()
                found = self._do(task)
                span = Span(0, what, task.client, began, time.perf_counter(), time.process_time() - cpu)
                done(task, found, span)

    def _do(self, task: Task) -> Any:
        """A task, in whichever process."""
        if task.what == "score":
            return self._score(int(task.client), *task.given)
        if task.what == "assess":
            return self._assess(task.client, *task.given)
        return self._perform(task.what, task.client, *task.given)  # type: ignore[arg-type]

    def _perform(
        self, verb: Verb, client: str, round: int, brief: Message | None, state: State
    ) -> tuple[State, Reply]:
        return perform(self.job, self.federation[client], state, verb, round, brief, self.modules)

    def _assess(self, client: str, round: int, brief: Message | None, state: State) -> Any:
        others = self.federation.others(client)
        return assess(self.job, self.federation[client], state, round, brief, self.modules, others)

    def _score(self, number: int, state: Tensors) -> Tensor:
        """The global's probabilities on one batch of the common test set."""
        client = self.federation.clients[0]
        assert self.federation.test is not None
        model = self.modules.get("meme", self.job.global_architecture, client, state)
        return probabilities(model, batches(self.federation.test)[number], client.task, self.modules.device)


def device(name: str) -> torch.device:
    """The device of this name; `auto` is the best there is."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(name for name in ("cuda", "mps", "cpu") if there[name])
    if not there[name]:
        raise InputError(f"device: '{name}' is not on this machine; use 'auto' or 'cpu'")
    return torch.device(name)
