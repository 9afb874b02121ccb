"""Workers: processes forked for a run, one thread each, that do a list of tasks and wait for the next."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from mutua.engines.arena import Arena, Block, Parcel, Place
from mutua.errors import MutuaError, RunError
from mutua.profile import Span
from mutua.stopping import breakable


@dataclass(frozen=True)
class Task:
    """Something to do for a client."""

    what: str
    client: str
    given: tuple[Any, ...]
    cost: float = 0.0
    """How many seconds it is likely to take; 0 if nobody knows."""


@dataclass
class _Turn:
    """A task that has begun: since when it is running, unless it is paused, and how long it has run before."""

    task: Task
    worker: int
    since: float | None
    ran: float = 0.0


Do = Callable[[Task], Any]
Done = Callable[[Task, Any, Span], None]
Answer = tuple[Parcel | Exception, Span]


def cores() -> int:
    """How many workers a run has unless told otherwise: one a core that this process may use."""
    return len(os.sched_getaffinity(0)) if can_fork() else 1


def can_fork() -> bool:
    """Whether workers can be had: on Linux, and not inside somebody's own worker."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


class Workers:
    """Does tasks by a function that the workers inherit with all that it holds, data included.

    Near the end of a list, where fewer than two tasks a core are left, all of them have begun and take turns on
    the cores, those first that have most left to do: five equal tasks take two cores two and a half times as long
    as one, not three. That is why there are nearly twice as many processes as cores.
    """

    def __init__(self, do: Do, number: int, most: int) -> None:
        """`number` tasks at once; never more than `most` in a list."""
        self.number = number
        context = multiprocessing.get_context("fork")
        processes = max(1, min(2 * number - 1, most))
        self.arena = Arena(processes + 1)
        self.lines: list[Connection] = []
        self.processes = []
        for process in range(1, processes + 1):
            here, there = context.Pipe()
            given = do, self.arena, process, there, [*self.lines, here], os.getpid()
            worker = context.Process(target=_serve, args=given, name=f"mutua-{process}", daemon=True)
            with warnings.catch_warnings():
                # Python warns of threads in this process, such as a progress bar's; workers need none of them.
                warnings.simplefilter("ignore", DeprecationWarning)
                worker.start()
            there.close()
            self.lines.append(here)
            self.processes.append(worker)
        for line in self.lines:
            line.recv_bytes()  # it is ready: from now on it may be paused

    def do(self, tasks: Sequence[Task], done: Done) -> None:
        """Do the tasks, which begin in this order, and say `done` of each as it ends."""
        waiting = list(reversed(tasks))
        idle = list(range(len(self.lines)))
        busy: dict[Connection, _Turn] = {}
        known: dict[int, Place] = {}  # every client's brief holds the same global, which crosses once
        blocks: list[Block | None] = []
        failed: dict[str, Exception] = {}
        stopped: KeyboardInterrupt | None = None
        while waiting or busy:
            left = len(waiting) + len(busy)
            while waiting and idle and len(busy) < (left if left < 2 * self.number else self.number):
                task, worker = waiting.pop(), idle.pop()
                parcel = self.arena.pack(task, known=known)
                blocks.append(parcel.block)
                self._send(worker, task, parcel)
                busy[self.lines[worker]] = _Turn(task, worker, time.perf_counter())
            longest = self._take_turns(list(busy.values()))
            try:
                with breakable():
                    ready = wait(list(busy), longest)
            except KeyboardInterrupt as asked:
                if stopped:
                    raise
                stopped, ready = asked, []
            for line in ready:
                assert isinstance(line, Connection)
                turn = busy.pop(line)
                task, worker = turn.task, turn.worker
                self._pause(turn, False)  # it was done just as its turn was over
                idle.append(worker)
                found, span = self._receive(worker, task)
                if isinstance(found, Exception):
                    failed[task.client] = found
                else:
                    done(task, self.arena.unpack(found), span)
            if stopped or failed:
                waiting.clear()  # what has begun is finished, nothing else begins
        for block in filter(None, blocks):
            self.arena.release(block)
        if failed:
            raise failed[min(failed)]
        if stopped:
            raise stopped

    def close(self) -> None:
        """End the workers; what they wrote can still be read."""
        for line in self.lines:
            line.close()
        for worker in self.processes:
            worker.kill()  # one that is paused would not hear a request to end
            worker.join()

    def _take_turns(self, turns: Sequence[_Turn]) -> float | None:
        """Let as many run as there are cores; how long, if others wait for their turn."""
        now = time.perf_counter()
        for turn in turns:
            turn.ran += 0.0 if turn.since is None else now - turn.since
            turn.since = None if turn.since is None else now
        order = sorted(turns, key=lambda turn: turn.ran - turn.task.cost)
        for place, turn in enumerate(order):
            self._pause(turn, place >= self.number)
        if len(turns) <= self.number:
            return None
        # Switching costs a worker its caches: a few times in a task is often enough.
        return max(0.01, max(turn.task.cost for turn in turns) / 4)

    def _pause(self, turn: _Turn, pause: bool) -> None:
        if pause == (turn.since is not None):
            pid = self.processes[turn.worker].pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP if pause else signal.SIGCONT)
            turn.since = None if pause else time.perf_counter()

    def _send(self, worker: int, task: Task, parcel: Parcel) -> None:
        freed, self.arena.released[worker + 1] = self.arena.released[worker + 1], []
        try:
            self.lines[worker].send_bytes(pickle.dumps((freed, parcel)))
        except OSError:
            raise self._died(worker, task) from None

    def _receive(self, worker: int, task: Task) -> Answer:
        try:
            answer: Answer = pickle.loads(self.lines[worker].recv_bytes())
            return answer
        except (EOFError, OSError):
            return self._died(worker, task), Span(worker + 1, task.what, task.client, 0.0, 0.0, 0.0)

    def _died(self, worker: int, task: Task) -> RunError:
        self.processes[worker].join()
        code = self.processes[worker].exitcode or 0
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        why = "; was memory short? use fewer workers" if code == -signal.SIGKILL else ""
        return RunError(f"client {task.client}, {task.what}: its worker process ended {how}{why}")


def _serve(do: Do, arena: Arena, process: int, line: Connection, others: list[Connection], parent: int) -> None:
    """A worker's life: until the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the forking process's affair
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:  # else a worker would keep its siblings' lines open after that process's death
        other.close()
    _die_with(parent)
    arena.process = process
    torch.set_num_threads(1)
    keep_memory()
    line.send_bytes(b"ready")
    while True:
        try:
            freed, parcel = pickle.loads(line.recv_bytes())
        except (EOFError, OSError):
            return
        for block in freed:
            arena.release(block)
        task: Task = arena.unpack(parcel)
        began, cpu = time.perf_counter(), time.process_time()
        try:
            found: Parcel | Exception = arena.pack(do(task), refer=False)
        except Exception as error:
            found = _portable(error)
        span = Span(process, task.what, task.client, began, time.perf_counter(), time.process_time() - cpu)
        line.send_bytes(pickle.dumps((found, span)))


def _portable(error: Exception) -> Exception:
    """The error itself where it can be sent to another process, else one that says the same."""
    if not isinstance(error, MutuaError):  # a mistake in the program: its trace would stay behind here
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:  # whatever a user's own exception does when it is copied
        return RunError(f"{type(error).__name__}: {error}")


def _die_with(parent: int) -> None:
    """End when that process does: one that is paused would not see its line closed."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it could be said
        os._exit(1)


def keep_memory() -> None:
    """Let the C library keep freed memory instead of giving it back and asking again at every step."""
    if os.environ.get("MUTUA_KEEP_MEMORY", "1") == "0":
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt  # only where the C library is GNU's
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_max = -1, -4
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, ctypes.c_int(2**31 - 1))
