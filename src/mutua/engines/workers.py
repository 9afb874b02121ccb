"""Workers: processes forked for a run, one thread each, that do lists of work items.

`scheduling` decides which items run; this module forks, greets, pauses, replaces and ends the processes.
"""

from __future__ import annotations

import atexit
import gc
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
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

import torch

from mutua.engines.scheduling import Scheduler, WorkItem, WorkTurn, given_up
from mutua.engines.simulation import Done
from mutua.errors import Fault, MachineFault, MutuaError, RunError
from mutua.support import signals
from mutua.support.processes import MAX_ATTEMPTS, die_with, keep_memory, prepare_to_fork, use_one_thread
from mutua.support.profiling import Span
from mutua.support.shared_memory import Arena, ArrayPlace, Block, Parcel

Do = Callable[[WorkItem], Any]
_Answer = tuple[Parcel | Exception, Span]


class Workers:
    """Does work items by a function that the workers inherit together with all that it holds, data included.

    There are nearly twice as many processes as items that run at once: the last items of a list take turns.
    """

    def __init__(self, do: Do, number: int, most: int, device: str = "cpu") -> None:
        """`number` items run at once, on this device; a list never has more than `most`."""
        self.number = number
        self._do = do
        self._device = device
        # A GPU shares itself out, and every process that uses it takes some of its memory.
        processes = max(1, min(2 * number - 1 if device == "cpu" else number, most))
        self.arena = Arena(processes + 1)
        cores = list(os.sched_getaffinity(0))
        # With fewer workers than cores, nobody knows which cores other programs leave free.
        self._cores = cores if len(cores) == number else []
        self.mishaps: list[tuple[str, str]] = []
        """By client, what this machine failed in and did again."""
        self._pinned: dict[int, int] = {}
        """By worker, the core that it has to itself."""
        self._paused: set[int] = set()
        self.lines: list[Connection] = []
        self.processes: list[ForkProcess] = []
        # Before the exit handler of multiprocessing, which would ask paused workers to end and wait forever.
        atexit.register(self.close)
        prepare_to_fork()
        try:
            for process in range(1, processes + 1):
                self._start(process)
            for worker in range(processes):
                if self._greet(worker):
                    self._replace(worker)
        except BaseException:
            self.close()
            raise

    def do(self, items: Sequence[WorkItem], done: Done) -> None:
        """Do the items, the longest first, and call `done` with each result as it comes."""
        with signals.deferred():
            self._do_items(sorted(items, key=lambda item: item.cost, reverse=True), done)

    def _do_items(self, items: Sequence[WorkItem], done: Done) -> None:
        scheduler = Scheduler(items, self.number, len(self.processes), self._cores)
        known: dict[int, ArrayPlace] = {}  # every client's brief holds the same global, which crosses once
        blocks: list[Block | None] = []
        answers: list[tuple[WorkItem, Parcel | Fault, Span]] = []
        failed: dict[str, Exception] = {}
        stopped: KeyboardInterrupt | None = None
        while True:
            while turn := scheduler.begin():
                parcel = self.arena.pack(turn.item, known=known)
                blocks.append(parcel.block)
                self._pin(turn.worker, turn.core)
                self._send(turn.worker, parcel)
                turn.run()
            for item, answer, span in answers:  # only now, so that no worker waits for work meanwhile
                done(item, answer if isinstance(answer, Fault) else self.arena.unpack(answer), span)
            answers.clear()
            if not scheduler.turns:
                break
            seconds = self._share_cores(scheduler)
            turns = {self.lines[worker]: turn for worker, turn in scheduler.turns.items()}
            try:
                with signals.allowed():
                    ready = wait(list(turns), seconds)
            except KeyboardInterrupt as interrupt:
                if stopped:
                    raise
                stopped, ready = interrupt, []
                signals.announce(str(interrupt) or "Ctrl-C")
            for line, turn in [(line, turn) for line, turn in turns.items() if line in ready or turn.left <= 0]:
                item = turn.item
                self._pause(turn.worker, False)  # it may have ended just as it was paused
                found, span = self._receive(turn) if line in ready else self._end(turn)
                finished = scheduler.end(turn, found)
                self._pin(turn.worker, None)
                if isinstance(found, MachineFault) and not finished:
                    self.mishaps.append((item.client, found.reason))
                elif isinstance(found, MachineFault):
                    answers.append((item, given_up(found), span))
                elif isinstance(found, Exception) and not isinstance(found, Fault):
                    failed[item.client] = found
                else:
                    answers.append((item, found, span))
            if stopped or failed:
                scheduler.stop()
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
            worker.kill()  # a paused one would not hear a request to end
        for worker in self.processes:
            worker.join()
        gc.unfreeze()

    def _share_cores(self, scheduler: Scheduler) -> float | None:
        """Pause and continue workers as planned; for how many seconds, unless a turn ends before."""
        shares = scheduler.share()
        for turn in shares.paused:  # first, so that their cores are free
            self._pause(turn.worker, True)
            self._pin(turn.worker, None)
        for turn in shares.running:
            self._pin(turn.worker, turn.core)
            self._pause(turn.worker, False)
        return shares.seconds

    def _pause(self, worker: int, pause: bool) -> None:
        if pause == (worker in self._paused):
            return
        process = self.processes[worker]
        assert process.pid is not None
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGSTOP if pause else signal.SIGCONT)
        (self._paused.add if pause else self._paused.remove)(worker)

    def _pin(self, worker: int, core: int | None) -> None:
        """Let it run on this core only; with None, on any core."""
        if core == self._pinned.get(worker):
            return
        pid = self.processes[worker].pid
        assert pid is not None
        with suppress(OSError):  # the worker has died, or the core is no longer ours
            os.sched_setaffinity(pid, os.sched_getaffinity(0) if core is None else {core})
        if core is None:
            del self._pinned[worker]
        else:
            self._pinned[worker] = core

    def _send(self, worker: int, parcel: Parcel) -> None:
        freed, self.arena.released[worker + 1] = self.arena.released[worker + 1], []
        try:
            self.lines[worker].send_bytes(pickle.dumps((freed, parcel)))
        except OSError:  # it died while it had nothing to do
            self._replace(worker)
            self.lines[worker].send_bytes(pickle.dumps(([], parcel)))

    def _receive(self, turn: WorkTurn) -> _Answer:
        try:
            answer: _Answer = pickle.loads(self.lines[turn.worker].recv_bytes())
            if isinstance(answer[0], Parcel):
                self.arena.claim(answer[0])
            return answer
        except (EOFError, OSError):
            code = self._replace(turn.worker)
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        why = " (was memory short? use fewer workers)" if code == -signal.SIGKILL else ""
        return _fault(turn, f"its worker process ended {how}{why}", MachineFault)

    def _end(self, turn: WorkTurn) -> _Answer:
        """End an item that has taken too long, together with its process."""
        self.processes[turn.worker].kill()
        self._replace(turn.worker)
        return _fault(turn, f"it took longer than the deadline of {turn.item.deadline:g} s")

    def _start(self, process: int) -> None:
        """Fork the worker of this number, which is its index in the lists plus one; try again for a while."""
        for patience in (0.1, 0.3, 1.0, None):
            try:
                return self._fork(process)
            except OSError as error:  # the system has no process, memory or open file left just now
                if patience is None:
                    raise RunError(f"workers: {error.strerror}; use fewer, with --workers") from None
                time.sleep(patience)

    def _fork(self, process: int) -> None:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        try:
            given = self._do, self.arena, process, there, [*self.lines, here], os.getpid(), self._device
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
        """Start another process for one that is dead or dying; the exit code of the old one."""
        self._pinned.pop(worker, None)
        code: int | None = None
        for _ in range(MAX_ATTEMPTS):
            self.lines.pop(worker).close()
            process = self.processes.pop(worker)
            process.join()
            code = process.exitcode if code is None else code
            self._start(worker + 1)
            if not (problem := self._greet(worker)):
                return code or 0
        raise RunError(f"workers: {problem}; use --workers 1")

    def _greet(self, worker: int) -> str:
        """Wait until it is ready: from then on it may be paused. The problem, if it died at once."""
        try:
            problem = self.lines[worker].recv_bytes().decode()
        except (EOFError, OSError):
            return "it ended at once"
        if problem:
            raise RunError(f"workers: {problem}; use --workers 1")
        return ""


def _fault(turn: WorkTurn, reason: str, kind: type[Fault] = Fault) -> _Answer:
    now, item = time.perf_counter(), turn.item
    fault = kind(f"client {item.client}, {item.what}", reason)
    return fault, Span(turn.worker + 1, item.what, item.client, now, now, 0.0)


def _serve(
    do: Do, arena: Arena, process: int, line: Connection, others: list[Connection], parent: int, device: str
) -> None:
    """What a worker does until its line is closed."""
    signals.ignore()  # the process that forked this one stops the work in good order
    signals.unblock()
    for other in others:  # or they would stay open here when the process that forked us dies
        other.close()
    die_with(parent)
    arena.become(process)
    use_one_thread()
    keep_memory()
    line.send_bytes(_problem(device).encode())
    while True:
        try:
            freed, parcel = pickle.loads(line.recv_bytes())
        except (EOFError, OSError):
            return
        for block in freed:
            arena.release(block)
        item: WorkItem = arena.unpack(parcel)
        began, cpu = time.perf_counter(), time.process_time()
        try:
            found: Parcel | Exception = arena.pack(do(item), refer=False)
        except Exception as error:
            found = _portable(error)
        span = Span(process, item.what, item.client, began, time.perf_counter(), time.process_time() - cpu)
        for stream in (sys.stdout, sys.stderr):  # or what a model printed would be lost with this process
            stream.flush()
        line.send_bytes(pickle.dumps((found, span)))


def _problem(device: str) -> str:
    """Why this process cannot train, if so: torch refuses in a process forked after the GPU was first used."""
    try:
        torch.zeros((), device=device, requires_grad=True).backward()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return ""


def _portable(error: Exception) -> Exception:
    """The error itself if it can be sent to another process, else one that says the same."""
    if error.__cause__ or not isinstance(error, MutuaError):  # else its traceback would be lost
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:  # whatever a user's own exception does when it is copied
        return RunError(f"{type(error).__name__}: {error}")
