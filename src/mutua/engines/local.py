"""The local engine: all clients on this machine, in this process or in one worker per core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from mutua.engines.client_worker import ClientWorker, device
from mutua.engines.simulation import HerePool, SimulationEngine
from mutua.engines.workers import Workers
from mutua.errors import InputError, RunError
from mutua.federation.commit_files import CommitFiles
from mutua.federation.federation import Federation
from mutua.federation.store import Store
from mutua.methods.base import Job
from mutua.support.processes import can_fork, cores, use_one_thread


@dataclass
class LocalEngine(SimulationEngine):
    """Clients on this machine: forked workers inherit their data, and arrays cross in shared memory."""

    workers: int | None = field(default=1, kw_only=True)
    """How many clients work at once; None is one per core, or one at a time on a GPU."""

    def open(
        self,
        job: Job,
        federation: Federation,
        stores: Mapping[str, Store] | None = None,
        files: CommitFiles | None = None,
    ) -> None:
        """Take the job and fork the workers."""
        self._take(job, federation, stores, files)
        self._threads = use_one_thread()
        deadline = job.plan.deadline
        forks = can_fork() and (deadline is not None or (self.workers or 1) > 1)
        worker = ClientWorker(job, federation, device(job.plan.device, forks=forks))
        place = worker.modules.device.type
        if deadline is not None and not can_fork():
            raise InputError(
                f"deadline: {deadline:g}, but only a worker process can be ended, on Linux; leave it out"
            )
        # Without a deadline, a single worker or client is faster in this process.
        number = (cores() if place == "cpu" else 1) if self.workers is None else self.workers
        wanted = can_fork() and (deadline is not None or (number > 1 and len(self.stores) > 1))
        self.pool = HerePool(worker)
        try:
            if wanted:
                self.pool = Workers(worker.do, number, len(self.stores), place)
        except RunError:  # no processes or memory for workers; this process gives the same bytes
            if self.workers is not None or deadline is not None:
                raise

    def close(self) -> None:
        """End the workers and restore the number of threads; the stores stay, in memory of this process."""
        pool = getattr(self, "pool", None)  # there is none if workers could not be started
        if pool is not None and not isinstance(pool, HerePool):
            pool.close()
            for store in self.stores.values():
                store.copy_arrays()
            del self.pool, pool  # and with them the shared memory
        torch.set_num_threads(self._threads)
