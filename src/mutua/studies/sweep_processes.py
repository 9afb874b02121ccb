"""Runs of a sweep in processes of this machine, one each."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import Any

from mutua.rounds.preparation import Prepared
from mutua.studies.sweep import PlannedRun
from mutua.studies.sweep_work import News, do_run
from mutua.support import signals
from mutua.support.configuration import PathLike
from mutua.support.processes import can_fork, cores


@dataclass(frozen=True)
class Ended:
    """A run's process is gone: how it ended, and whether its machine rather than the run is likely to be why."""

    why: str
    machine: bool


class RunProcesses:
    """One process per run, and a pipe from it."""

    def __init__(self, data_dir: PathLike | None, prepared: dict[Path, Prepared]) -> None:
        """`prepared` is taken out as the runs begin: a forked process inherits what it needs."""
        self._data_dir, self._prepared = data_dir, prepared
        self._processes: dict[Connection, tuple[PlannedRun, BaseProcess]] = {}

    @property
    def places(self) -> int:
        """How many runs may well work at once."""
        return cores()

    def begin(self, run: PlannedRun) -> None:
        """Begin a run; an OSError says that the system gives no process now."""
        context: Any = multiprocessing.get_context("fork" if can_fork() else "spawn")
        line, end = context.Pipe(duplex=False)
        # A worker that keeps this end open would not see the pipe break when the sweep is killed.
        register_after_fork(line, Connection.close)
        prepared = self._prepared.get(run.path) if can_fork() else None
        process = context.Process(target=do_run, args=(run, self._data_dir, end, prepared), name=run.label)
        try:
            with signals.blocked():
                process.start()
        except OSError:
            line.close()
            raise
        finally:
            end.close()  # so that the pipe ends when the process does
        self._prepared.pop(run.path, None)
        self._processes[line] = run, process

    def heard(self, timeout: float | None) -> list[tuple[PlannedRun, News | Ended]]:
        """What runs reported; wait for so many seconds if there is nothing yet."""
        found: list[tuple[PlannedRun, News | Ended]] = []
        for line in wait(list(self._processes), timeout):
            assert isinstance(line, Connection)
            run, process = self._processes[line]
            try:
                found.append((run, line.recv()))
            except (EOFError, OSError):
                del self._processes[line]
                line.close()
                process.join()
                found.append((run, _ended(process.exitcode or 0)))
        return found

    def stop(self) -> None:
        """Ask all runs to save and stop."""
        for _, process in self._processes.values():
            process.terminate()

    def close(self) -> None:
        """End what is still at work, at once."""
        for _, process in self._processes.values():
            process.kill()
            process.join()
        self._processes.clear()


def _ended(code: int) -> Ended:
    if code >= 0:
        return Ended(f"its process ended with code {code}", machine=False)
    memory = " (was memory short? use fewer --workers)" if code == -signal.SIGKILL else ""
    return Ended(f"its process ended by signal {-code}{memory}", machine=True)
