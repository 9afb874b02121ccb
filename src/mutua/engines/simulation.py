"""What the engines of a simulation have in common: one owner of all stores, and a pool that does the work."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import torch

from mutua.engines.assessment import Measured, Names
from mutua.engines.client_worker import ClientWorker
from mutua.engines.protocol import Evaluation
from mutua.engines.scheduling import WorkItem, given_up
from mutua.engines.work import Briefs, Entrusted, HandIn, Replies, Reply, Staged, Verb, Worked, work
from mutua.errors import Fault, MachineFault
from mutua.federation.commit_files import CommitFiles
from mutua.federation.federation import Federation
from mutua.federation.message import Message
from mutua.federation.store import Store
from mutua.learning.evaluation import is_union, number_of_batches
from mutua.methods.base import Job
from mutua.support import signals
from mutua.support.processes import MAX_ATTEMPTS
from mutua.support.profiling import Span, record_span
from mutua.support.tensor_files import Tensors

Done = Callable[[WorkItem, Any, Span], None]


class Pool(Protocol):
    """Workers elsewhere: each has a `ClientWorker` and does items with it."""

    mishaps: list[tuple[str, str]]
    """By client, what a machine failed in and did again."""

    def do(self, items: Sequence[WorkItem], done: Done) -> None:
        """Do the items, in the order that suits the pool, and call `done` with each result as it comes."""

    def close(self) -> None:
        """End the workers; arrays that they sent stay valid."""


class HerePool:
    """One item after the other, in this process."""

    def __init__(self, worker: ClientWorker) -> None:
        self.worker = worker
        self.mishaps: list[tuple[str, str]] = []

    def do(self, items: Sequence[WorkItem], done: Done) -> None:
        """Do the items; what the machine fails in is tried again."""
        for item in items:
            with signals.deferred():
                began, cpu = time.perf_counter(), time.process_time()
                found = self._do(item)
                span = Span(0, item.what, item.client, began, time.perf_counter(), time.process_time() - cpu)
                done(item, found, span)

    def _do(self, item: WorkItem) -> Any:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return self.worker.do(item)
            except MachineFault as fault:
                if attempt == MAX_ATTEMPTS:
                    return given_up(fault)
                self.mishaps.append((item.client, fault.reason))

    def close(self) -> None:
        """Nothing is held."""


class SimulationEngine:
    """Clients in a simulation: one owner holds all stores, and workers of a pool do the clients' work.

    Clients work on one thread each, so a run's bytes do not depend on the pool.
    """

    job: Job
    federation: Federation
    stores: Mapping[str, Store]
    pool: Pool

    def _take(
        self, job: Job, federation: Federation, stores: Mapping[str, Store] | None, files: CommitFiles | None
    ) -> None:
        """Take the job; the subclass then makes the pool."""
        self.job, self.federation, self.files = job, federation, files
        known = stores or {}
        self.stores = {client.id: known.get(client.id, Store()) for client in federation.clients}
        for client, store in self.stores.items():
            store.files = None if files is None else files.of(client)
        self._seconds: dict[str, dict[str, float]] = {}
        """By what was done and client, how long it took last time."""
        self._common_is_union = is_union(federation.test, [client.test for client in federation.clients])

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
        staged = {client: self._given(client, brief, round + 1) for client, brief in briefs.items()}
        number = 0 if test is None else number_of_batches(test)
        scores = self._items("score", {str(i): (shared,) for i in range(number)})
        assessments = self._items("assess", {client: (round, given) for client, given in staged.items()})
        seen = test is not None and self._seen_by_clients(briefs, shared)
        metrics: dict[str, Measured | Fault] = {}
        saw: dict[str, np.ndarray] = {}
        scored: dict[int, Any] = {}
        known: dict[Names, Names] = {}

        def take(item: WorkItem, result: Any) -> None:
            if item.what == "score":
                scored[int(item.client)] = result
            elif isinstance(result, Fault):
                metrics[item.client] = result
            else:
                metrics[item.client] = Measured(result.metrics, known)
                if seen and result.seen is not None:
                    saw[item.client] = result.seen.numpy().copy()  # which lets the worker's memory go

        self._do_all(assessments + ([] if seen else scores), take)
        metrics = {client: metrics[client] for client in briefs}
        if test is None:
            return Evaluation(None, metrics)
        if seen and len(saw) < len(briefs):
            seen = False
            self._do_all(scores, take)
        if seen:  # the clients' test samples make up the common test set, and the global has scored them already
            parts = [torch.from_numpy(saw[client]) for client in self.stores]
        else:
            parts = [scored[i] for i in range(number)]
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

    def mishaps(self) -> list[tuple[str, str]]:
        """By client, what a machine failed in and did again since the last call."""
        new, self.pool.mishaps[:] = list(self.pool.mishaps), []
        return new

    def _given(self, client: str, brief: Message | None, round: int) -> Staged | Entrusted:
        """What a worker gets: the client's state, or where it is on disk."""
        store = self.stores[client]
        return Entrusted(brief, store) if self._on_disk else Staged(brief, store.stage(round))

    @property
    def _on_disk(self) -> bool:
        """Whether workers read and write the stores themselves."""
        return self.files is not None and self.files.shared

    def _work(self, verb: Verb, round: int, briefs: Briefs) -> Replies:
        """The transaction, with the clients' work done by the pool; or, if stores are on disk, all of it."""
        before = {client: self.stores[client].commits for client in briefs}
        replies = self._work_there(verb, round, briefs) if self._on_disk else self._work_here(verb, round, briefs)
        if self.files is not None:
            for client, commits in before.items():
                self.files.retire(commits, self.stores[client].commits)
        return replies

    def _work_here(self, verb: Verb, round: int, briefs: Briefs) -> Replies:
        def performer(staged: Mapping[str, Staged], hand_in: HandIn) -> None:
            items = self._items(verb, {client: (round, given) for client, given in staged.items()})
            self._do_all(items, lambda item, found: hand_in(item.client, found))

        return work(self.stores, round, briefs, performer)

    def _work_there(self, verb: Verb, round: int, briefs: Briefs) -> Replies:
        replies: dict[str, Reply | Fault] = {}

        def take(item: WorkItem, found: Worked | Fault) -> None:
            if isinstance(found, Fault):
                replies[item.client] = found
                return
            store, reply = self.stores[item.client], found.reply
            store.commits = found.commits
            if isinstance(reply, Reply) and reply.message is None and (done := store.committed(round)) is not None:
                reply = replace(reply, message=done.reply)
            replies[item.client] = reply

        given = {client: (round, self._given(client, brief, round)) for client, brief in briefs.items()}
        self._do_all(self._items(verb, given), take)
        return {client: replies[client] for client in briefs}

    def _items(self, what: str, given: Mapping[str, tuple[Any, ...]]) -> list[WorkItem]:
        """One item per client; it is likely to cost what it cost last time, or else what others like it cost."""
        known = self._seconds.get(what, {})
        usual = fmean(known.values()) if known else 0.0
        deadline = None if what == "score" else self.job.plan.deadline
        return [WorkItem(what, client, args, known.get(client, usual), deadline) for client, args in given.items()]

    def _do_all(self, items: list[WorkItem], take: Callable[[WorkItem, Any], None]) -> None:
        """Do the items and `take` what comes of each as soon as it is there."""

        def done(item: WorkItem, found: Any, span: Span) -> None:
            if not isinstance(found, Fault):
                self._seconds.setdefault(item.what, {})[item.client] = span.cpu
            record_span(span)
            take(item, found)

        self.pool.do(items, done)
