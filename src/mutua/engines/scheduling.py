"""Which work items run now, which are paused and which are tried again. Nothing here knows of processes.

Near the end of a list, when fewer than two items per core are left, all of them have begun and take turns on the
cores; those with most left to do come first. Five equal items on two cores then take two and a half times as long
as one, not three times.

When all cores are busy, each belongs to one worker at a time: otherwise the system may let two share a core for a
while beside an idle one. When fewer are busy, workers may run anywhere, or two runs might choose the same cores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mutua.errors import MachineFault
from mutua.support.processes import MAX_ATTEMPTS

_LONGEST_WAIT = 1e6
"""Seconds. The system cannot wait longer, and there is no need to end such a wait."""


@dataclass(frozen=True, slots=True)
class WorkItem:
    """Something to do for a client."""

    what: str
    client: str
    given: tuple[Any, ...]
    cost: float = 0.0
    """How many seconds it is likely to take; 0 if unknown."""
    deadline: float | None = None
    """How many seconds it may take."""


@dataclass
class WorkTurn:
    """An item that has begun, and the worker that has it."""

    item: WorkItem
    worker: int
    attempt: int = 1
    core: int | None = None
    """The core that its worker has to itself."""
    since: float | None = None
    """When it last began to run; None while it is paused."""
    ran_before: float = 0.0

    def run(self) -> None:
        """Count its time from now on."""
        if self.since is None:
            self.since = time.perf_counter()

    def pause(self) -> None:
        """Do not count its time from now on."""
        self.ran_before, self.since = self.ran, None

    @property
    def ran(self) -> float:
        """How many seconds it has run, without pauses."""
        return self.ran_before + (0.0 if self.since is None else time.perf_counter() - self.since)

    @property
    def left(self) -> float:
        """How many seconds it may still take; infinite while it is paused."""
        if self.item.deadline is None or self.since is None:
            return math.inf
        return self.item.deadline - self.ran


class TurnPlan(NamedTuple):
    """Who may run now and who is paused, and for how many seconds this holds (None: until a turn ends)."""

    running: list[WorkTurn]
    paused: list[WorkTurn]
    seconds: float | None


class Scheduler:
    """Plans a list of items, which begin in the order given, for so many workers and so many cores."""

    def __init__(self, items: Sequence[WorkItem], at_once: int, workers: int, cores: Sequence[int] = ()) -> None:
        """`at_once` items run at the same time; `cores` are those that a worker may have to itself, if any."""
        self.at_once = at_once
        self.turns: dict[int, WorkTurn] = {}
        """The turns that have begun and not ended, by worker."""
        self._waiting = [(item, 1) for item in reversed(items)]
        self._idle = list(range(workers))
        self._free = list(cores)

    def begin(self) -> WorkTurn | None:
        """The next item with an idle worker for it, if one may begin. It is not running before `WorkTurn.run`."""
        left = len(self._waiting) + len(self.turns)
        most = left if left < 2 * self.at_once else self.at_once
        if not self._waiting or not self._idle or len(self.turns) >= most:
            return None
        if self._waiting[-1][1] > 1 and self.turns:
            return None  # what failed is tried again alone, with all the memory there is
        (item, attempt), worker = self._waiting.pop(), self._idle.pop()
        turn = self.turns[worker] = WorkTurn(item, worker, attempt)
        if left >= self.at_once:
            self._take_core(turn)
        return turn

    def share(self) -> TurnPlan:
        """Let as many turns run as are allowed at once, and pause the others."""
        turns = list(self.turns.values())
        order = sorted(turns, key=lambda turn: turn.ran - turn.item.cost)
        running, paused = order[: self.at_once], order[self.at_once :]
        for turn in paused:  # first, so that their cores are free
            turn.pause()
            self._free_core(turn)
        for turn in running:
            if len(turns) < self.at_once:
                self._free_core(turn)
            else:
                self._take_core(turn)
            turn.run()
        # Switching costs a worker its caches: four times per item, and not after less than 2 ms, is often enough.
        longest = max(max(turn.item.cost, turn.ran) for turn in turns)
        switch = max(0.002, longest / 4) if paused else math.inf
        soonest = max(0.0, min([switch, *(turn.left for turn in turns)]))
        return TurnPlan(running, paused, None if soonest > _LONGEST_WAIT else soonest)

    def end(self, turn: WorkTurn, found: object) -> bool:
        """Its worker is idle again. False if this machine failed and the item is tried again, after all others."""
        del self.turns[turn.worker]
        self._free_core(turn)
        self._idle.append(turn.worker)
        if isinstance(found, MachineFault) and turn.attempt < MAX_ATTEMPTS:
            self._waiting.insert(0, (turn.item, turn.attempt + 1))
            return False
        return True

    def stop(self) -> None:
        """Begin nothing else; what has begun is finished."""
        self._waiting.clear()

    def _take_core(self, turn: WorkTurn) -> None:
        if turn.core is None and self._free:
            turn.core = self._free.pop()

    def _free_core(self, turn: WorkTurn) -> None:
        if turn.core is not None:
            self._free.append(turn.core)
            turn.core = None


def given_up(fault: MachineFault) -> MachineFault:
    """The fault of an item that is not tried again."""
    reason = f"{fault.reason}, {MAX_ATTEMPTS} times: this machine's failure, not the client's own"
    return MachineFault(fault.args[0], reason)
