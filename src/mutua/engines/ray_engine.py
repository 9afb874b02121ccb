"""The Ray engine: clients on the cores of a cluster. Ray schedules, moves objects and restarts."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mutua.data.mapped_rows import MappedRows
from mutua.data.samples import Samples
from mutua.engines.ray_cluster import connect, disconnect, installed_ray
from mutua.engines.ray_pool import RayPool
from mutua.engines.ray_transfer import bundled, flattened
from mutua.engines.ray_worker import ClusterJob, NodeNeeds, Stamp
from mutua.engines.simulation import SimulationEngine
from mutua.errors import InputError
from mutua.federation.commit_files import CommitFiles
from mutua.federation.federation import Federation
from mutua.federation.store import Store
from mutua.methods.base import Job
from mutua.support.processes import cores


@dataclass
class RayEngine(SimulationEngine):
    """Clients on a cluster: data is in the object store once per node; only messages and changed state travel."""

    workers: int | None = field(default=None, kw_only=True)
    """How many clients work at once; None is one per core of the cluster, or as many as share its GPUs."""
    address: str | None = field(default=None, kw_only=True)
    """HOST:PORT of the cluster's head; None starts Ray on this machine."""
    gpus_per_worker: float = field(default=0.0, kw_only=True)

    def open(
        self,
        job: Job,
        federation: Federation,
        stores: Mapping[str, Store] | None = None,
        files: CommitFiles | None = None,
    ) -> None:
        """Take the job, connect to Ray and begin the workers."""
        self._take(job, federation, stores, files)
        self._connected = connect(self.address, self.workers or cores())
        self._probe = None if files is None or files.folder is None else files.folder / f".seen-{uuid.uuid4().hex}"
        content, arrays = flattened((job, federation))
        clients = {client.id: _files((client.train, client.val, client.test)) for client in federation.clients}
        clients[""] = _files([federation.test])
        stamps = {path: stamp for found in clients.values() for path, stamp in found.items()}
        if self._probe is not None:
            self._probe.parent.mkdir(parents=True, exist_ok=True)
            self._probe.touch()
        probe = None if self._probe is None else str(self._probe.absolute())
        given = ClusterJob(content, bundled(arrays), NodeNeeds.here(), stamps, probe)
        self.pool: RayPool = RayPool(
            given,
            self._number(),
            gpus=self.gpus_per_worker,
            cache=4 if files is None else files.cache,
            files={client: frozenset(found) for client, found in clients.items() if found},
        )
        # Where a node does not see the run's folder, this process reads and writes the stores.
        self.pool.stores_on_disk = self._probe is not None and all(
            hello.sees_stores for hello in self.pool.greetings
        )

    @property
    def _on_disk(self) -> bool:
        shared = super()._on_disk
        return shared and (self._probe is None or self.pool.stores_on_disk)

    def close(self) -> None:
        """End the workers, and Ray too if it was started for this run."""
        if (pool := getattr(self, "pool", None)) is not None:
            pool.close()
        if (probe := getattr(self, "_probe", None)) is not None:
            probe.unlink(missing_ok=True)
        if getattr(self, "_connected", False):
            disconnect()
            self._connected = False

    def _number(self) -> int:
        """How many workers there are."""
        there = installed_ray().cluster_resources()
        if self.gpus_per_worker:
            gpus = there.get("GPU", 0.0)
            if gpus < self.gpus_per_worker:
                raise InputError(f"gpus_per_worker: {self.gpus_per_worker:g}; the cluster has {gpus:g} GPUs")
            most = int(gpus / self.gpus_per_worker)
        else:
            most = int(there.get("CPU", 1.0))
        return max(1, min(self.workers or most, len(self.stores)))


def _files(samples: Iterable[Samples | None]) -> dict[str, Stamp]:
    """The files in which these samples stay, by path."""
    rows = [one.x for one in samples if one is not None and isinstance(one.x, MappedRows)]
    return {str(Path(path)): stamp for x in rows for path, stamp in x.files.items()}
