"""Workers: processes forked for a run, one thread each, that do a list of tasks and wait for the next."""

from __future__ import annotations

import atexit
import math
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

import torch

from mutua.errors import Fault, MachineFault, MutuaError, RunError
from mutua.support import signals
from mutua.support.processes import MAX_ATTEMPTS, die_with, keep_memory, use_one_thread
from mutua.support.profiling import Span
from mutua.support.shared_memory import Arena, Block, Parcel, Place


@dataclass(frozen=True)
class Task:
    """Something to do for a client."""

    what: str
    client: str
    given: tuple[Any, ...]
    cost: float = 0.0
    """How many seconds it is likely to take; 0 if nobody knows."""
    deadline: float | None = None
    """How many it may take."""


@dataclass
class _Turn:
    """A task that has begun: since when it is running, unless it is paused, and how long it has run before."""

    task: Task
    worker: int
    since: float | None
    ran: float = 0.0
    attempt: int = 1

    @property
    def left(self) -> float:
        """How many seconds it may still take; no end of them while it is paused."""
        if self.task.deadline is None or self.since is None:
            return math.inf
        return self.task.deadline - self.ran - (time.perf_counter() - self.since)


LONGEST = 1e6
"""Seconds that can be waited for; there is no need to end a wait that is longer."""
OURS = "this machine's failure, not the client's own"

Do = Callable[[Task], Any]
Done = Callable[[Task, Any, Span], None]
Answer = tuple[Parcel | Exception, Span]


class Workers:
    """Does tasks by a function that the workers inherit with all that it holds, data included.

    Near the end of a list, where fewer than two tasks per core are left, all of them have begun and take turns on
    the cores, those first that have most left to do: five equal tasks take two cores two and a half times as long
    as one, not three. That is why there are nearly twice as many processes as cores.

    Where all cores are at work, each is given to one worker at a time: left to itself the system lets two share a
    core for a while beside an idle one. With fewer at work all may be anywhere, or two runs might choose the same
    cores.
    """

    def __init__(self, do: Do, number: int, most: int, device: str = "cpu") -> None:
        """`number` tasks at once, which use this device; never more than `most` in a list."""
        self.number = number
        self._work = do
        self._device = device
        # A GPU shares itself out, and every process that uses it takes some of its memory.
        processes = max(1, min(2 * number - 1 if device == "cpu" else number, most))
        self.arena = Arena(processes + 1)
        cores = list(os.sched_getaffinity(0))
        # With fewer workers than cores, nobody knows which of the cores others leave alone.
        self._free = cores if len(cores) == number else []
        self.mishaps: list[tuple[str, str]] = []
        """By client, what this machine failed in and did again."""
        self._settled: dict[int, int] = {}
        """Which core a worker has to itself."""
        self.lines: list[Connection] = []
        self.processes: list[ForkProcess] = []
        # Before the exit handler of multiprocessing, which would ask paused workers to end and wait for ever.
        atexit.register(self.close)
        try:
            for process in range(1, processes + 1):
                self._hire(process)
            for worker in range(processes):
                if self._greet(worker):
                    self._replace(worker)
        except BaseException:
            self.close()
            raise

    def do(self, tasks: Sequence[Task], done: Done) -> None:
        """Do the tasks, which begin in this order, and say `done` of each as it ends."""
        waiting = [(task, 1) for task in reversed(tasks)]
        idle = list(range(len(self.lines)))
        busy: dict[Connection, _Turn] = {}
        known: dict[int, Place] = {}  # every client's brief holds the same global, which crosses once
        blocks: list[Block | None] = []
        answers: list[tuple[Task, Parcel | Fault, Span]] = []
        failed: dict[str, Exception] = {}
        stopped: KeyboardInterrupt | None = None
        while waiting or busy or answers:
            left = len(waiting) + len(busy)
            while waiting and idle and len(busy) < (left if left < 2 * self.number else self.number):
                if waiting[-1][1] > 1 and busy:
                    break  # what failed is done again alone, with all the memory there is
                (task, attempt), worker = waiting.pop(), idle.pop()
                parcel = self.arena.pack(task, known=known)
                blocks.append(parcel.block)
                if left >= self.number:
                    self._settle(worker)
                self._send(worker, parcel)
                busy[self.lines[worker]] = _Turn(task, worker, time.perf_counter(), attempt=attempt)
            for task, answer, span in answers:  # now that nobody waits for work
                done(task, answer if isinstance(answer, Fault) else self.arena.unpack(answer), span)
            answers.clear()
            if not busy:
                break
            longest = self._take_turns(list(busy.values()))
            try:
                with signals.allowed():
                    ready = wait(list(busy), longest)
            except KeyboardInterrupt as asked:
                if stopped:
                    raise
                stopped, ready = asked, []
                signals.announce(str(asked) or "Ctrl-C")
            for line, turn in [(line, turn) for line, turn in busy.items() if line in ready or turn.left <= 0]:
                task, worker = turn.task, turn.worker
                self._pause(turn, False)  # it was done just as its turn was over
                found, span = self._receive(worker, task) if line in ready else self._end(turn)
                del busy[line]
                self._unsettle(worker)
                idle.append(worker)
                if isinstance(found, MachineFault) and turn.attempt < MAX_ATTEMPTS:
                    self.mishaps.append((task.client, found.reason))
                    waiting.insert(0, (task, turn.attempt + 1))
                elif isinstance(found, MachineFault):
                    answers.append((task, given_up(found), span))
                elif isinstance(found, Exception) and not isinstance(found, Fault):
                    failed[task.client] = found
                else:
                    answers.append((task, found, span))
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
        atexit.unregister(self.close)
        for line in self.lines:
            line.close()
        for worker in self.processes:
            worker.kill()  # one that is paused would not hear a request to end
        for worker in self.processes:
            worker.join()

    def _take_turns(self, turns: Sequence[_Turn]) -> float | None:
        """Let as many run as there are cores; how long, if others wait for their turn or one has a deadline."""
        now = time.perf_counter()
        for turn in turns:
            turn.ran += 0.0 if turn.since is None else now - turn.since
            turn.since = None if turn.since is None else now
        order = sorted(turns, key=lambda turn: turn.ran - turn.task.cost)
        for turn in order[self.number :]:  # first, so that their cores are free
            self._pause(turn, True)
        for turn in order[: self.number]:
            if len(turns) < self.number:
                self._unsettle(turn.worker)
            else:
                self._settle(turn.worker)
            self._pause(turn, False)
        # Switching costs a worker its caches: four times in a task, and not after less than 2 ms, is often enough.
        longest = max(max(turn.task.cost, turn.ran) for turn in turns)
        switch = max(0.002, longest / 4) if len(turns) > self.number else math.inf
        soonest = max(0.0, min([switch, *(turn.left for turn in turns)]))
        return None if soonest > LONGEST else soonest

    def _pause(self, turn: _Turn, pause: bool) -> None:
        if pause == (turn.since is not None):
            process = self.processes[turn.worker]
            assert process.pid is not None
            if process.exitcode is None:
                os.kill(process.pid, signal.SIGSTOP if pause else signal.SIGCONT)
            turn.since = None if pause else time.perf_counter()
        if pause:
            self._unsettle(turn.worker)

    def _settle(self, worker: int) -> None:
        """Give it a core of its own, if it has none and one is free."""
        if self._free and worker not in self._settled:
            core = self._settled[worker] = self._free.pop()
            self._allow(worker, {core})

    def _unsettle(self, worker: int) -> None:
        """Its core is free for another, and it may be anywhere."""
        if worker in self._settled:
            self._free.append(self._settled.pop(worker))
            self._allow(worker, os.sched_getaffinity(0))

    def _allow(self, worker: int, cores: set[int]) -> None:
        pid = self.processes[worker].pid
        assert pid is not None
        with suppress(OSError):  # the worker has died, or the core is no longer ours
            os.sched_setaffinity(pid, cores)

    def _send(self, worker: int, parcel: Parcel) -> None:
        freed, self.arena.released[worker + 1] = self.arena.released[worker + 1], []
        try:
            self.lines[worker].send_bytes(pickle.dumps((freed, parcel)))
        except OSError:  # it died while it had nothing to do
            self._replace(worker)
            self.lines[worker].send_bytes(pickle.dumps(([], parcel)))

    def _receive(self, worker: int, task: Task) -> Answer:
        try:
            answer: Answer = pickle.loads(self.lines[worker].recv_bytes())
            if isinstance(answer[0], Parcel):
                self.arena.claim(answer[0])
            return answer
        except (EOFError, OSError):
            code = self._replace(worker)
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        why = " (was memory short? use fewer workers)" if code == -signal.SIGKILL else ""
        return _fault(worker, task, f"its worker process ended {how}{why}", MachineFault)

    def _end(self, turn: _Turn) -> Answer:
        """End what has taken too long, with the process that it is in."""
        self.processes[turn.worker].kill()
        self._replace(turn.worker)
        return _fault(turn.worker, turn.task, f"it took longer than the deadline of {turn.task.deadline:g} s")

    def _hire(self, process: int) -> None:
        """Fork the worker of this number, which is its place in the lists and one more."""
        for patience in (0.1, 0.3, 1.0, None):
            try:
                return self._fork(process)
            except OSError as error:  # no more processes, memory or open files are to be had just now
                if patience is None:
                    raise RunError(f"workers: {error.strerror}; use fewer, with --workers") from None
                time.sleep(patience)

    def _fork(self, process: int) -> None:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        try:
            given = self._work, self.arena, process, there, [*self.lines, here], os.getpid(), self._device
            worker = context.Process(target=_serve, args=given, name=f"mutua-{process}", daemon=True)
            with warnings.catch_warnings(), signals.blocked():
                # Python warns of threads in this process, such as a progress bar's; workers need none of them.
                warnings.simplefilter("ignore", DeprecationWarning)
                worker.start()
        except OSError:
            here.close()
            raise
        finally:
            there.close()
        self.lines.insert(process - 1, here)
        self.processes.insert(process - 1, worker)

    def _replace(self, worker: int) -> int:
        """Have another process for one that is dead or dying; with which code it ended."""
        self._unsettle(worker)
        code: int | None = None
        for _ in range(MAX_ATTEMPTS):
            self.lines.pop(worker).close()
            process = self.processes.pop(worker)
            process.join()
            code = process.exitcode if code is None else code
            self._hire(worker + 1)
            if not (said := self._greet(worker)):
                return code or 0
        raise RunError(f"workers: {said}; use --workers 1")

    def _greet(self, worker: int) -> str:
        """Wait until it is ready: from then on it may be paused. Says what is wrong where it died at once."""
        try:
            said = self.lines[worker].recv_bytes().decode()
        except (EOFError, OSError):
            return "it ended at once"
        if said:
            raise RunError(f"workers: {said}; use --workers 1")
        return ""


def _fault(worker: int, task: Task, reason: str, kind: type[Fault] = Fault) -> Answer:
    now = time.perf_counter()
    where = f"client {task.client}, {task.what}"
    return kind(where, reason), Span(worker + 1, task.what, task.client, now, now, 0.0)


def given_up(fault: MachineFault) -> MachineFault:
    """The same fault, when it has come too often."""
    return MachineFault(fault.args[0], f"{fault.reason}, {MAX_ATTEMPTS} times: {OURS}")


def _serve(
    do: Do, arena: Arena, process: int, line: Connection, others: list[Connection], parent: int, device: str
) -> None:
    """A worker's life: until the line is closed."""
    signals.ignore()  # to stop in good order is the forking process's affair
    signals.unblock()
    for other in others:  # else a worker would keep its siblings' lines open after that process's death
        other.close()
    die_with(parent)
    arena.become(process)
    use_one_thread()
    keep_memory()
    line.send_bytes(_unfit(device).encode())
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
        for stream in (sys.stdout, sys.stderr):  # what a model printed would be lost with this process
            stream.flush()
        line.send_bytes(pickle.dumps((found, span)))


def _unfit(device: str) -> str:
    """Why this process cannot train, if it cannot: torch refuses after a fork that came too late beside a GPU."""
    try:
        torch.zeros((), device=device, requires_grad=True).backward()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return ""


def _portable(error: Exception) -> Exception:
    """The error itself where it can be sent to another process, else one that says the same."""
    if error.__cause__ or not isinstance(error, MutuaError):  # its trace would stay behind here
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:  # whatever a user's own exception does when it is copied
        return RunError(f"{type(error).__name__}: {error}")
