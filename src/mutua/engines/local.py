"""The local engine: all clients on this machine, in this process or in one worker per core."""

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

from mutua.engines.assessment import Assessment, assess
from mutua.engines.protocol import Evaluation
from mutua.engines.scheduling import WorkItem, given_up
from mutua.engines.work import Briefs, HandIn, Replies, Staged, Verb, perform, work
from mutua.engines.workers import Workers
from mutua.errors import NO_MEMORY, Fault, InputError, MachineFault, RunError, short_of_memory
from mutua.federation.federation import Federation
from mutua.federation.module_pool import Modules
from mutua.federation.store import Store
from mutua.learning.evaluation import evaluation_batches, is_union, probabilities
from mutua.methods.base import Job
from mutua.support import signals
from mutua.support.processes import MAX_ATTEMPTS, can_fork, cores, use_one_thread
from mutua.support.profiling import Span, record_span
from mutua.support.tensor_files import Tensors


@dataclass
class LocalEngine:
    """Clients work on one thread each, so a run's bytes do not depend on the number of workers or cores."""

    workers: int | None = field(default=1, kw_only=True)
    """How many clients work at once; None is one per core, or one at a time on a GPU."""
    _pool: Workers | None = field(default=None, init=False)

    def open(self, job: Job, federation: Federation, stores: Mapping[str, Store] | None = None) -> None:
        """Take the job and fork the workers; stores live in memory."""
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
        # Without a deadline, a single worker or client is faster in this process.
        number = (cores() if place == "cpu" else 1) if self.workers is None else self.workers
        wanted = can_fork() and (deadline is not None or (number > 1 and len(self.stores) > 1))
        try:
            self._pool = Workers(self._do, number, len(self.stores), place) if wanted else None
        except RunError:  # no processes or memory for workers; this process gives the same bytes
            if self.workers is not None or deadline is not None:
                raise
            self._pool = None
        self._mishaps: list[tuple[str, str]] = [] if self._pool is None else self._pool.mishaps

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
        staged = {client: Staged(brief, self.stores[client].stage(round + 1)) for client, brief in briefs.items()}
        number = 0 if test is None else len(evaluation_batches(test))
        scores = self._items("score", {str(i): (shared,) for i in range(number)})
        assessments = self._items("assess", {client: (round, given) for client, given in staged.items()})
        seen = test is not None and self._seen_by_clients(briefs, shared)
        found: dict[tuple[str, str], Any] = {}

        def take(item: WorkItem, result: Any) -> None:
            found[item.what, item.client] = result

        self._do_all(assessments + ([] if seen else scores), take)
        clients: dict[str, Assessment | Fault] = {client: found["assess", client] for client in briefs}
        metrics = {c: one if isinstance(one, Fault) else one.metrics for c, one in clients.items()}
        if test is None:
            return Evaluation(None, metrics)
        if seen and any(isinstance(one, Fault) for one in clients.values()):
            seen = False
            self._do_all(scores, take)
        if seen:  # the clients' test samples make up the common test set, and the global has scored them already
            parts = [found["assess", client.id].seen for client in self.federation.clients]
        else:
            parts = [found["score", str(i)] for i in range(number)]
            for part in parts:
                if isinstance(part, Fault):  # this machine's: no client was at work
                    raise part
        common = self.federation.clients[0].task.metrics(torch.cat(parts), test.y)
        return Evaluation(common, metrics)

    def _seen_by_clients(self, briefs: Briefs, shared: Tensors | None) -> bool:
        """Whether evaluating the clients scores the common test set by this very global."""
        assert shared is not None
        if not self._common_is_union or len(briefs) < len(self.stores):
            return False
        sent = [
            brief.arrays("global") if brief is not None and "global" in brief else {} for brief in briefs.values()
        ]
        return all(arrays.get(name) is array for arrays in sent for name, array in shared.items())

    def close(self) -> None:
        """End the workers and restore the number of threads; the stores stay, in memory of this process."""
        if self._pool is not None:
            self._pool.close()
            for store in self.stores.values():
                store.copy_arrays()
            self._pool = None  # and with it the shared memory
        torch.set_num_threads(self._threads)

    def _work(self, verb: Verb, round: int, briefs: Briefs) -> Replies:
        """The transaction, with the clients' work done here or by the workers."""

        def performer(staged: Mapping[str, Staged], hand_in: HandIn) -> None:
            items = self._items(verb, {client: (round, given) for client, given in staged.items()})
            self._do_all(items, lambda item, found: hand_in(item.client, found))

        return work(self.stores, round, briefs, performer)

    def _items(self, what: str, given: Mapping[str, tuple[Any, ...]]) -> list[WorkItem]:
        """One item per client; it is likely to cost what it cost last time, or else what others like it cost."""
        alike = [seconds for (kind, _), seconds in self._seconds.items() if kind == what]
        usual = fmean(alike) if alike else 0.0
        deadline = None if what == "score" else self.job.plan.deadline
        costs = {client: self._seconds.get((what, client), usual) for client in given}
        return [WorkItem(what, client, args, costs[client], deadline) for client, args in given.items()]

    def _do_all(self, items: list[WorkItem], take: Callable[[WorkItem, Any], None]) -> None:
        """Do the items and `take` what comes of each as soon as it is there; the longest begin first."""

        def done(item: WorkItem, found: Any, span: Span) -> None:
            if not isinstance(found, Fault):
                self._seconds[item.what, item.client] = span.cpu
            record_span(span)
            take(item, found)

        if self._pool is not None:
            with signals.deferred():
                self._pool.do(sorted(items, key=lambda item: item.cost, reverse=True), done)
            return
        for item in items:
            with signals.deferred():
                began, cpu = time.perf_counter(), time.process_time()
                found = self._do_here(item)
                span = Span(0, item.what, item.client, began, time.perf_counter(), time.process_time() - cpu)
                done(item, found, span)

    def mishaps(self) -> list[tuple[str, str]]:
        """By client, what this machine failed in and did again since the last call."""
        new, self._mishaps[:] = list(self._mishaps), []
        return new

    def _do_here(self, item: WorkItem) -> Any:
        """Do an item in this process; what the machine fails in is tried again."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return self._do(item)
            except MachineFault as fault:
                if attempt == MAX_ATTEMPTS:
                    return given_up(fault)
                self._mishaps.append((item.client, fault.reason))

    def _do(self, item: WorkItem) -> Any:
        """Do an item, in whichever process. A `MachineFault` is raised: the caller may try again."""
        if item.what == "score":
            try:
                return self._score(int(item.client), *item.given)
            except Exception as error:
                if short_of_memory(error):
                    raise MachineFault("the common test set", NO_MEMORY) from error
                raise
        client, (round, staged) = self.federation[item.client], item.given
        try:
            if item.what == "assess":
                others = self.federation.others(client.id)
                return assess(self.job, client, round, staged, self.modules, others)
            return perform(self.job, client, item.what, round, staged, self.modules)  # type: ignore[arg-type]
        except MachineFault:
            raise
        except Fault as fault:
            return fault

    def _score(self, number: int, state: Tensors) -> Tensor:
        """The global's probabilities on one batch of the common test set."""
        client = self.federation.clients[0]
        assert self.federation.test is not None
        model = self.modules.get("meme", self.job.global_architecture, client, state)
        return probabilities(
            model, evaluation_batches(self.federation.test)[number], client.task, self.modules.device
        )


def device(name: str, *, forks: bool = False) -> torch.device:
    """The device of this name; `auto` is the best there is. `forks`: forked workers will use it."""
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
    """Let torch ask the GPU's driver what there is: a process that asked CUDA cannot fork workers for it."""
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
