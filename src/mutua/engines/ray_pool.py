"""Workers on Ray: actors that do work items. What Ray loses, an actor or a whole node, is done again elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mutua.engines.ray_cluster import check_head, explained, how_it_died, installed_ray, meaning
from mutua.engines.ray_transfer import bundled, flattened, unbundled, unflattened
from mutua.engines.ray_worker import Answer, ArrayPlan, ClusterJob, Hello, RayWorker, warm_arrays
from mutua.engines.scheduling import WorkItem, given_up
from mutua.engines.simulation import Done
from mutua.engines.work import Entrusted, Staged
from mutua.errors import Fault, MachineFault, RunError
from mutua.support import signals
from mutua.support.processes import MAX_ATTEMPTS
from mutua.support.profiling import Span

_SHARED_FROM = 1 << 16
"""Bytes. A brief from this size on is put into the object store, which has what many clients get once per node."""
_ALIKE = 0.8
"""An item may be taken before the longest one that waits if it is likely to take this share of its time."""
PATIENCE = 120.0
"""Seconds without any worker until a run is given up."""
_SILENCE = 10.0
"""Seconds without an answer after which the cluster's head is asked whether it is there."""
_FOR_THE_OTHERS = 20.0
"""Seconds that a run waits for further workers once one is ready; the others join it later."""

Shared = dict[int, tuple[Any, int, int]]
"""By array, the object in Ray's store that it is in, its place there and how many arrays are in that object."""


@dataclass
class _Turn:
    item: WorkItem
    attempt: int
    ref: Any
    plan: ArrayPlan
    given: list[Tensor]
    since: float | None = None
    """When it was first in its worker's queue."""


@dataclass
class _Worker:
    """An actor as the driver sees it."""

    number: int
    actor: Any
    greeting: Any
    """Its answer to come, while it starts."""
    hello: Hello | None = None
    queue: deque[_Turn] = field(default_factory=deque)
    warm: dict[str, list[Tensor]] = field(default_factory=dict)
    """By client, the arrays that it has; the client used last is the last."""

    def may_do(self, files: frozenset[str]) -> bool:
        """Whether the data are within its reach."""
        return not (files & self.hello.missing) if self.hello is not None else False


class RayPool:
    """Does work items on actors. Each holds all data of its node's copy, or reads them from the node's files."""

    def __init__(
        self,
        job: ClusterJob,
        number: int,
        *,
        gpus: float = 0.0,
        cache: int = 4,
        files: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """`files` says, by client, in which files its data stay; "" is the common test set."""
        self.mishaps: list[tuple[str, str]] = []
        self._cache, self._files = cache, files or {}
        self._ray = ray = installed_ray()
        with explained():
            self._job = ray.put(job)
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self._begin: Callable[[], Any] = lambda: ray.remote(RayWorker).options(**options).remote(self._job)
        self._workers: list[_Worker] = []
        self._started = self._lost_at_start = 0
        self.stores_on_disk = False
        """Whether items need a worker that sees the folder of the stores."""
        for _ in range(number):
            self._add()
        self._greet_all()

    @property
    def greetings(self) -> list[Hello]:
        """What the workers said that are ready."""
        return [worker.hello for worker in self._workers if worker.hello is not None]

    def do(self, items: Sequence[WorkItem], done: Done) -> None:
        """Do the items, the longest first, and call `done` with each result as it comes."""
        with signals.deferred():
            try:
                self._do(sorted(items, key=lambda item: item.cost, reverse=True), done)
            except BaseException:
                self._drain()
                raise

    def close(self) -> None:
        """End the actors."""
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers.clear()

    def _do(self, items: list[WorkItem], done: Done) -> None:
        waiting = [(item, 1) for item in items]
        shared: Shared = {}
        failed: dict[str, Exception] = {}
        stopped: KeyboardInterrupt | None = None
        alone_since = heard = time.monotonic()
        while waiting or any(worker.queue for worker in self._workers):
            self._hand_out(waiting, shared)
            busy = {worker.queue[0].ref: worker for worker in self._workers if worker.queue}
            starting = {worker.greeting: worker for worker in self._workers if worker.hello is None}
            if busy or any(worker.hello for worker in self._workers):
                alone_since = time.monotonic()
            if waiting and not busy:
                self._check_hope(waiting, alone_since)
            ready: list[Any] = []
            try:
                with signals.allowed(), explained():
                    ready, _ = self._ray.wait([*busy, *starting], timeout=self._seconds(busy.values()))
            except KeyboardInterrupt as interrupt:
                if stopped:
                    raise
                stopped = interrupt
                signals.announce(str(interrupt) or "Ctrl-C")
            if ready:
                heard = time.monotonic()
            elif time.monotonic() > heard + _SILENCE:
                heard = time.monotonic()
                check_head()
            for ref in ready:
                if ref in starting:
                    self._greet(starting[ref])
            late = [
                worker
                for ref, worker in busy.items()
                if ref not in ready and (left := _left(worker.queue[0])) is not None and left <= 0
            ]
            for worker in [busy[ref] for ref in ready if ref in busy] + late:
                if not worker.queue or worker not in self._workers:
                    continue
                turn, found, span = self._receive(worker, waiting, late=worker in late)
                if isinstance(found, MachineFault) and turn.attempt < MAX_ATTEMPTS:
                    self.mishaps.append((turn.item.client, found.reason))
                    waiting.insert(0, (turn.item, turn.attempt + 1))
                elif isinstance(found, MachineFault):
                    done(turn.item, given_up(found), span)
                elif isinstance(found, Exception) and not isinstance(found, Fault):
                    failed[turn.item.client] = found
                else:
                    done(turn.item, found, span)
            if stopped or failed:
                waiting.clear()
        if failed:
            raise failed[min(failed)]
        if stopped:
            raise stopped

    def _hand_out(self, waiting: list[tuple[WorkItem, int]], shared: Shared) -> None:
        """Give every idle worker an item; and another behind it while many wait, so that none idles between."""
        for depth in (1, 2):
            for worker in self._workers:
                most = depth if depth == 1 or len(waiting) > len(self._workers) else 1
                if len(worker.queue) >= most:
                    continue
                chosen = self._choose(worker, waiting)
                if chosen is not None:
                    self._send(worker, *waiting.pop(chosen), shared)

    def _choose(self, worker: _Worker, waiting: list[tuple[WorkItem, int]]) -> int | None:
        """Which of the items that wait it is to do."""
        if worker.hello is None or (self.stores_on_disk and not worker.hello.sees_stores):
            return None
        able = [i for i, (item, _) in enumerate(waiting) if worker.may_do(self._needs(item))]
        elsewhere = {client for other in self._workers if other is not worker for client in other.warm}
        chosen = next_item([waiting[i][0] for i in able], worker.warm, elsewhere)
        return None if chosen is None else able[chosen]

    def _needs(self, item: WorkItem) -> frozenset[str]:
        return self._files.get("" if item.what == "score" else item.client, frozenset())

    def _send(self, worker: _Worker, item: WorkItem, attempt: int, shared: Shared) -> None:
        client = None if item.what == "score" else item.client
        content, given = flattened(item)
        self._share(item, given, shared)
        warm = {id(array): i for i, array in enumerate(worker.warm.get(item.client, ()))} if client else {}
        plan: ArrayPlan = []
        new: list[Tensor] = []
        objects: dict[Any, int] = {}
        sizes = 0
        for array in given:
            if id(array) in warm:
                plan.append(("warm", warm[id(array)]))
            elif id(array) in shared:
                ref, number, length = shared[id(array)]
                if ref not in objects:
                    objects[ref] = sizes
                    sizes += length
                plan.append(("shared", objects[ref] + number))
            else:
                plan.append(("new", len(new)))
                new.append(array)
        forget: list[str] = []
        if client:
            worker.warm[client] = worker.warm.pop(client, [])
            forget = list(worker.warm)[: max(0, len(worker.warm) - max(1, self._cache) - len(worker.queue))]
            for name in forget:
                del worker.warm[name]
        ref = worker.actor.do.remote(client, content, plan, bundled(new), forget, *objects)
        since = None if worker.queue else time.perf_counter()
        worker.queue.append(_Turn(item, attempt, ref, plan, given, since))

    def _share(self, item: WorkItem, given: list[Tensor], shared: Shared) -> None:
        """Put a large brief into the object store, unless it is there."""
        known = {id(array) for array in given}
        brief = [array for array in _brief_arrays(item) if id(array) in known and id(array) not in shared]
        if sum(array.nbytes for array in brief) < _SHARED_FROM:
            return
        brief = list({id(array): array for array in brief}.values())
        with explained():
            ref = self._ray.put(bundled(brief))
        shared |= {id(array): (ref, number, len(brief)) for number, array in enumerate(brief)}

    def _receive(
        self, worker: _Worker, waiting: list[tuple[WorkItem, int]], *, late: bool
    ) -> tuple[_Turn, Any, Span]:
        turn = worker.queue[0]
        item, now = turn.item, time.perf_counter()
        nothing = Span(worker.number, item.what, item.client, now, now, 0.0)
        where = f"client {item.client}, {item.what}"
        if late:
            self._replace(worker, waiting)
            return turn, Fault(where, f"it took longer than the deadline of {item.deadline:g} s"), nothing
        try:
            answer: Answer | Exception = self._ray.get(turn.ref)
        except self._ray.exceptions.RayTaskError as error:  # nothing of a client's: its errors are answers
            worker.queue.popleft()
            return turn, RunError(f"engine: {where}: {meaning(error.cause or error)}"), nothing
        except self._ray.exceptions.RayError as error:
            self._replace(worker, waiting)
            return turn, MachineFault(where, how_it_died(error)), nothing
        worker.queue.popleft()
        if worker.queue:
            worker.queue[0].since = now
        if isinstance(answer, Exception):
            return turn, answer, nothing
        fresh = unbundled(answer.arrays, copy=True)  # or what is in the object store could never be freed
        arrays = [(turn.given if place == "given" else fresh)[number] for place, number in answer.plan]
        if item.what != "score":
            worker.warm[item.client] = warm_arrays(turn.plan, turn.given, arrays, answer.kept)
        span = Span(worker.number, item.what, item.client, now - (answer.ended - answer.began), now, answer.cpu)
        return turn, unflattened(answer.content, arrays), span

    def _seconds(self, busy: Any) -> float:
        """How long to wait: not beyond a deadline, and briefly enough to see signals and lost nodes."""
        return max(0.0, min([1.0, *(left for w in busy if (left := _left(w.queue[0])) is not None)]))

    def _add(self) -> None:
        self._started += 1
        actor = self._begin()
        self._workers.append(_Worker(self._started, actor, actor.hello.remote()))

    def _replace(self, worker: _Worker, waiting: list[tuple[WorkItem, int]]) -> None:
        """Begin another actor for one that is lost; what waited behind its first item waits again, as before."""
        check_head()
        self._ray.kill(worker.actor)
        self._workers.remove(worker)
        waiting[:0] = [(turn.item, turn.attempt) for turn in list(worker.queue)[1:]]
        # The same node may have had other workers: an item must not be lost three times in a row.
        for other in self._workers:
            if other.hello is not None and not other.queue:
                other.hello, other.greeting = None, other.actor.hello.remote()
        self._add()

    def _greet_all(self) -> None:
        """Wait until the workers are ready; those that wait for a place join later."""
        until = time.monotonic() + PATIENCE
        while starting := {worker.greeting: worker for worker in self._workers if worker.hello is None}:
            with signals.allowed(), explained():
                ready, _ = self._ray.wait(list(starting), timeout=1.0)
            for ref in ready:
                self._greet(starting[ref])
            if ready:
                until = time.monotonic() + _FOR_THE_OTHERS
            elif time.monotonic() > until:
                if not self.greetings:
                    raise RunError(f"engine: {self._no_worker()}")
                return

    def _greet(self, worker: _Worker) -> None:
        try:
            hello: Hello = self._ray.get(worker.greeting)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            if isinstance(error, self._ray.exceptions.RayTaskError | self._ray.exceptions.ActorUnschedulableError):
                raise RunError(f"engine: {meaning(cause)}") from error
            if "ModuleNotFoundError" in str(error) or "failed to import" in str(error):
                raise RunError(f"engine: {meaning(error)}") from error
            self._lost_at_start += 1
            if self._lost_at_start > MAX_ATTEMPTS * len(self._workers):
                raise RunError(f"engine: workers end as soon as they begin: {meaning(error)}") from error
            self._workers.remove(worker)
            self._add()
            return
        if hello.problem:
            raise RunError(f"engine: node {hello.node}: {hello.problem}")
        worker.hello, self._lost_at_start = hello, 0

    def _check_hope(self, waiting: list[tuple[WorkItem, int]], alone_since: float) -> None:
        """Refuse to wait without end: for a worker that can read a client's files, or for any worker at all."""
        if time.monotonic() - alone_since > PATIENCE:
            raise RunError(f"engine: {self._no_worker()}")
        if not all(worker.hello for worker in self._workers):
            return
        if not any(hello.sees_stores for hello in self.greetings) and self.stores_on_disk:
            raise RunError("stores: no node with a worker sees the run's folder; use stores: memory, or a URL")
        item = waiting[0][0]
        files = sorted(self._needs(item))
        raise RunError(
            f"client {item.client}: no node has {files[0]} as it is here; copy it there with its time (rsync -a), "
            "or let the data travel (data.mapped: false)"
        )

    def _no_worker(self) -> str:
        there = self._ray.cluster_resources().get("CPU", 0.0)
        return (
            f"no worker could begin in {PATIENCE:g} s; the cluster has {there:g} cores: are others at work "
            "on them? Wait for them, or add a node with 'ray start --address'"
        )

    def _drain(self) -> None:
        """After a failure: let what has begun end, so that no answer is taken for a later item's."""
        for worker in self._workers:
            worker.queue.clear()
            worker.warm.clear()


def next_item(waiting: Sequence[WorkItem], here: Collection[str], elsewhere: Collection[str]) -> int | None:
    """The longest item, which is the first; of those about as long, one whose client's state is `here`."""
    if not waiting:
        return None
    alike = [i for i, item in enumerate(waiting) if item.cost >= _ALIKE * waiting[0].cost]
    cold = [i for i in alike if waiting[i].client not in elsewhere]
    return next((i for i in alike if waiting[i].client in here), (cold or alike)[0])


def _brief_arrays(item: WorkItem) -> list[Tensor]:
    """The arrays that the server sends: many clients may get the same."""
    if item.what == "score":
        (state,) = item.given
        return list(state.values())
    given = item.given[1]
    assert isinstance(given, Staged | Entrusted)
    if given.brief is None:
        return []
    return [array for part in given.brief.values() for array in part.arrays.values()]


def _left(turn: _Turn) -> float | None:
    """How many seconds it may still take, if there is a deadline."""
    if turn.item.deadline is None or turn.since is None:
        return None
    return turn.item.deadline - (time.perf_counter() - turn.since)
