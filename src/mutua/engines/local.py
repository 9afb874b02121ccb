"""The local engine: every client on this machine, in this process or in one worker per core."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from mutua.engines.protocol import Evaluation
from mutua.engines.scheduling import WorkItem, given_up
from mutua.engines.work import (
    Assessment,
    Briefs,
    Committer,
    Performed,
    Replies,
    Staged,
    Verb,
    assess,
    perform,
    work,
)
from mutua.engines.workers import Workers
from mutua.errors import NO_MEMORY, Fault, InputError, MachineFault, RunError, short_of_memory
from mutua.federation.federation import Federation
from mutua.federation.message import Message
from mutua.federation.module_pool import Modules
from mutua.federation.store import State, Store, copied
from mutua.learning.evaluation import evaluation_batches, is_union, probabilities
from mutua.methods.base import Job
from mutua.support import signals
from mutua.support.processes import MAX_ATTEMPTS, can_fork, cores, use_one_thread
from mutua.support.profiling import Span, note
from mutua.support.tensor_files import Tensors


@dataclass
class LocalEngine:
    """Clients work on one thread each, so a run's bytes do not depend on the number of workers or cores."""

    workers: int | None = field(default=1, kw_only=True)
    """How many clients work at once; None is one per core, and one by one on a GPU."""
    _crew: Workers | None = field(default=None, init=False)

    def open(self, job: Job, federation: Federation, stores: Mapping[str, Store] | None = None) -> None:
        """Take the job; stores live in memory."""
        self.job, self.federation = job, federation
        self._threads = use_one_thread()
        deadline = job.plan.deadline
        forks = can_fork() and (deadline is not None or (self.workers or 1) > 1)
        self.modules = Modules(device(job.plan.device, forks=forks))
        place = self.modules.device.type
        if deadline is not None and not can_fork():
            raise InputError(
                f"deadline: {deadline:g}, but only a worker process can be ended, on Linux; leave it out"
            )
        self.stores = {client.id: (stores or {}).get(client.id, Store()) for client in federation.clients}
        self._seconds: dict[tuple[str, str], float] = {}
        self._common_is_union = is_union(federation.test, [client.test for client in federation.clients])
        # Without a deadline, a lone worker or client had better stay here.
        number = (cores() if place == "cpu" else 1) if self.workers is None else self.workers
        wanted = can_fork() and (deadline is not None or (number > 1 and len(self.stores) > 1))
        try:
            self._crew = Workers(self._do, number, len(self.stores), place) if wanted else None
        except RunError:  # no processes or memory for them: one by one, here, comes to the same bytes
            if self.workers is not None or deadline is not None:
                raise
            self._crew = None
        self._mishaps: list[tuple[str, str]] = [] if self._crew is None else self._crew.mishaps

    def start(self) -> None:
        """Every client's `start`, as round 0."""
        for found in self._work("start", 0, dict.fromkeys(self.stores)).values():
            if isinstance(found, Fault):
                raise found

    def train(self, round: int, briefs: Briefs) -> Replies:
        """The briefed clients' `train`."""
        return self._work("train", round, briefs)

    def finish(self, round: int, briefs: Briefs) -> Replies:
        """The briefed clients' `finish`."""
        return self._work("finish", round, briefs)

    def evaluate(self, round: int, briefs: Briefs, shared: Tensors | None) -> Evaluation:
        """Each briefed client's models on its own data, and the global on the common test set."""
        test = self.federation.test if shared is not None else None
        given = {client: (round, brief, self.stores[client].stage(round + 1)) for client, brief in briefs.items()}
        number = 0 if test is None else len(evaluation_batches(test))
        scores = self._tasks("score", {str(i): (shared,) for i in range(number)})
        seen = test is not None and self._seen_by_clients(briefs, shared)
        found: dict[tuple[str, str], Any] = {}

        def take(task: WorkItem, result: Any) -> None:
            found[task.what, task.client] = result

        self._all(self._tasks("assess", given) + ([] if seen else scores), take)
        clients: dict[str, Assessment | Fault] = {client: found["assess", client] for client in briefs}
        told = {c: one if isinstance(one, Fault) else one.metrics for c, one in clients.items()}
        if test is None:
            return Evaluation(None, told)
        if seen and any(isinstance(one, Fault) for one in clients.values()):
            seen = False
            self._all(scores, take)
        if seen:  # everybody's test samples make up the common test set, and have been through the global already
            parts = [found["assess", client.id].seen for client in self.federation.clients]
        else:
            parts = [found["score", str(i)] for i in range(number)]
            for part in parts:
                if isinstance(part, Fault):  # nobody's but this machine's
                    raise part
        common = self.federation.clients[0].task.metrics(torch.cat(parts), test.y)
        return Evaluation(common, told)

    def _seen_by_clients(self, briefs: Briefs, shared: Tensors | None) -> bool:
        """Whether evaluating the clients passes the common test set through this very global."""
        assert shared is not None
        if not self._common_is_union or len(briefs) < len(self.stores):
            return False
        sent = [
            brief.arrays("global") if brief is not None and "global" in brief else {} for brief in briefs.values()
        ]
        return all(arrays.get(name) is array for arrays in sent for name, array in shared.items())

    def close(self) -> None:
        """End the workers and give the threads back; the stores stay, in memory of this process's own."""
        if self._crew is not None:
            self._crew.close()
            for store in self.stores.values():
                store.copy_arrays()
            self._crew = None  # and with it the memory that was shared
        torch.set_num_threads(self._threads)

    def _work(self, verb: Verb, round: int, briefs: Briefs) -> Replies:
        """The work of these clients, in as many processes as there are."""

        def performer(staged: Mapping[str, Staged], commit: Committer) -> None:
            tasks = self._tasks(verb, {client: (round, *given) for client, given in staged.items()})
            self._all(tasks, lambda task, found: commit(task.client, found))

        return work(self.stores, round, briefs, performer)

    def _tasks(self, what: str, given: Mapping[str, tuple[Any, ...]]) -> list[WorkItem]:
        """One task per client, which is likely to cost what it cost last time, or what others like it did."""
        alike = [seconds for (kind, _), seconds in self._seconds.items() if kind == what]
        usual = fmean(alike) if alike else 0.0
        deadline = None if what == "score" else self.job.plan.deadline
        costs = {client: self._seconds.get((what, client), usual) for client in given}
        return [WorkItem(what, client, args, costs[client], deadline) for client, args in given.items()]

    def _all(self, tasks: list[WorkItem], take: Callable[[WorkItem, Any], None]) -> None:
        """Do the tasks and `take` what comes of each as it is done; the longest begin first."""

        def done(task: WorkItem, found: Any, span: Span) -> None:
            if not isinstance(found, Fault):
                self._seconds[task.what, task.client] = span.cpu
            note(span)
            take(task, found)

        if self._crew is not None:
            with signals.deferred():
                self._crew.do(sorted(tasks, key=lambda task: task.cost, reverse=True), done)
            return
        for task in tasks:
            with signals.deferred():
                began, cpu = time.perf_counter(), time.process_time()
                found = self._again_and_again(task)
                span = Span(0, task.what, task.client, began, time.perf_counter(), time.process_time() - cpu)
                done(task, found, span)

    def mishaps(self) -> list[tuple[str, str]]:
        """By client, what this machine failed in and did again since it was last asked."""
        told, self._mishaps[:] = list(self._mishaps), []
        return told

    def _again_and_again(self, task: WorkItem) -> Any:
        """A task in this process; what the machine fails in is done again."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return self._do(task)
            except MachineFault as fault:
                if attempt == MAX_ATTEMPTS:
                    return given_up(fault)
                self._mishaps.append((task.client, fault.reason))

    def _do(self, task: WorkItem) -> Any:
        """A task, in whichever process. A fault of the machine's is raised: to try again is for who asked."""
        if task.what == "score":
            try:
                return self._score(int(task.client), *task.given)
            except Exception as error:
                if short_of_memory(error):
                    raise MachineFault("the common test set", NO_MEMORY) from error
                raise
        try:
            if task.what == "assess":
                return self._assess(task.client, *task.given)
            return self._perform(task.what, task.client, *task.given)  # type: ignore[arg-type]
        except MachineFault:
            raise
        except Fault as fault:
            return fault

    def _perform(self, verb: Verb, client: str, round: int, brief: Message | None, state: State) -> Performed:
        return perform(self.job, self.federation[client], copied(state), verb, round, brief, self.modules)

    def _assess(self, client: str, round: int, brief: Message | None, state: State) -> Assessment:
        others = self.federation.others(client)
        return assess(self.job, self.federation[client], copied(state), round, brief, self.modules, others)

    def _score(self, number: int, state: Tensors) -> Tensor:
        """The global's probabilities on one batch of the common test set."""
        client = self.federation.clients[0]
        assert self.federation.test is not None
        model = self.modules.get("meme", self.job.global_architecture, client, state)
        return probabilities(
            model, evaluation_batches(self.federation.test)[number], client.task, self.modules.device
        )


def device(name: str, *, forks: bool = False) -> torch.device:
    """The device of this name; `auto` is the best there is. `forks`: workers are to be forked that use it."""
    with _asking_the_driver() if forks else nullcontext():
        cuda = torch.cuda.is_available()
    there = {"cpu": True, "cuda": cuda, "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(name for name in ("cuda", "mps", "cpu") if there[name])
    if not there[name]:
        raise InputError(f"device: '{name}' is not on this machine; use 'auto' or 'cpu'")
    return torch.device(name)


@contextmanager
def _asking_the_driver() -> Iterator[None]:
    """In here torch asks the GPU's driver what there is: who asks CUDA itself spoils it for all that it forks."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
