"""What runs in a Ray actor: a `ClientWorker` with all data, and the arrays that it may be told of by name."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mutua import __version__
from mutua.engines.client_worker import ClientWorker, device
from mutua.engines.ray_transfer import ArrayBundle, bundled, flattened, unbundled, unflattened
from mutua.engines.scheduling import WorkItem
from mutua.errors import MachineFault, MutuaError, RunError
from mutua.support.processes import keep_memory, use_one_thread

Stamp = tuple[int, int]
"""A file's length and when it was last changed, in nanoseconds."""
ArrayPlan = list[tuple[str, int]]
"""For each array of an object, where it is: "new", "shared" or "warm", and its number there."""


class NodeNeeds(NamedTuple):
    """What must be on every node as it is where the run was begun."""

    versions: dict[str, str]
    paths: list[str]
    """Where modules are found."""
    folder: str
    """The current folder, to which paths are relative."""

    @classmethod
    def here(cls) -> NodeNeeds:
        """As it is in this process."""
        return cls(_versions(), sys.path, str(Path.cwd()))


class ClusterJob(NamedTuple):
    """What every worker of a run needs; it is in the object store once per node."""

    content: bytes
    """The job and the federation, without their arrays."""
    data: ArrayBundle
    node: NodeNeeds
    files: dict[str, Stamp]
    """The files that clients' data stay in."""
    probe: str | None
    """A file in the folder of the stores, which all workers must see if they are to use that folder."""


class Hello(NamedTuple):
    """What a worker says when it is ready."""

    node: str
    missing: frozenset[str]
    """Which files of clients' data are not on its node."""
    sees_stores: bool
    problem: str
    """Why it cannot work; empty if it can."""


class Answer(NamedTuple):
    """What came of an item. The arrays of the client's new state come first, `kept` of them; -1: no new state."""

    content: bytes
    plan: ArrayPlan
    arrays: ArrayBundle
    kept: int
    began: float
    ended: float
    cpu: float


class RayWorker:
    """An actor. It keeps the states of a few clients, so that they need not cross again."""

    def __init__(self, job: ClusterJob) -> None:
        use_one_thread()
        keep_memory()
        self.probe, self.files = job.probe, job.files
        self.warm: dict[str, list[Tensor]] = {}
        self.problem = join_cluster(job.node)
        if self.problem:
            return
        try:
            found, federation = unflattened(job.content, unbundled(job.data, copy=False))
            self.worker = ClientWorker(found, federation, device(found.plan.device))
        except ImportError as error:
            missing = str(error.name or error).partition(".")[0]
            self.problem = f"the package '{missing}' is missing there; install on every node what this machine has"
        except MutuaError as error:
            self.problem = str(error)

    def hello(self) -> Hello:
        """Who is ready, and what is within its reach."""
        import ray

        missing = frozenset(path for path, stamp in self.files.items() if file_stamp(path) != stamp)
        sees = self.probe is not None and Path(self.probe).exists()
        return Hello(ray.util.get_node_ip_address(), missing, sees, self.problem)

    def do(
        self,
        client: str | None,
        content: bytes,
        plan: ArrayPlan,
        new: ArrayBundle,
        forget: Sequence[str],
        *shared: ArrayBundle,
    ) -> Answer | Exception:
        """Do an item for a client. Its arrays are new, shared by many items, or warm: here from its last item."""
        for name in forget:
            self.warm.pop(name, None)
        places: Mapping[str, list[Tensor]] = {
            "new": unbundled(new, copy=True),
            "shared": [array for bundle in shared for array in unbundled(bundle, copy=True)],
            "warm": self.warm.get(client, []) if client is not None else [],
        }
        given = [places[place][number] for place, number in plan]
        item: WorkItem = unflattened(content, given)
        began, cpu = time.perf_counter(), time.process_time()
        try:
            found = self.worker.do(item)
        except MachineFault as fault:
            return fault
        except Exception as error:
            return error if isinstance(error, MutuaError) else RunError(f"{type(error).__name__}: {error}")
        ended, cpu = time.perf_counter(), time.process_time() - cpu
        answer, arrays = flattened(found)
        known = {id(array): number for number, array in enumerate(given)}
        fresh = [array for array in arrays if id(array) not in known]
        numbers = {id(array): number for number, array in enumerate(fresh)}
        where = [("given", known[i]) if (i := id(array)) in known else ("new", numbers[i]) for array in arrays]
        state = _new_state(item, found)
        kept = -1 if state is None else len({id(array) for group in state.values() for array in group.values()})
        if client is not None:
            self.warm[client] = warm_arrays(plan, given, arrays, kept)
        return Answer(answer, where, bundled(fresh), kept, began, ended, cpu)


def warm_arrays(plan: ArrayPlan, given: Sequence[Tensor], arrays: Sequence[Tensor], kept: int) -> list[Tensor]:
    """Which arrays of an item stay with the worker; the driver knows them in the same order."""
    if kept >= 0:
        return list(arrays[:kept])
    return [array for array, (place, _) in zip(given, plan, strict=True) if place != "shared"]


def _new_state(item: WorkItem, found: Any) -> dict[str, dict[str, Tensor]] | None:
    """The client's new state, which stands first in what comes of its work; None if its state stays as it was."""
    if item.what in ("assess", "score") or not isinstance(found, tuple) or not isinstance(found[0], dict):
        return None
    state: dict[str, dict[str, Tensor]] = found[0]
    return state


def file_stamp(path: str) -> Stamp | None:
    """Whether a file is the same here as elsewhere; None if it is not here."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def join_cluster(needs: NodeNeeds) -> str:
    """In a process of a node: be like the process that began the run; or why that cannot be."""
    here = _versions()
    if wrong := [f"{name} {here[name]} for {was}" for name, was in needs.versions.items() if here[name] != was]:
        return f"it has {', '.join(wrong)}; install the same versions on every node"
    sys.path += [path for path in needs.paths if path not in sys.path and Path(path).exists()]
    if Path(needs.folder).is_dir():
        os.chdir(needs.folder)
    return ""


def _versions() -> dict[str, str]:
    """What must be the same on all nodes."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "mutua": __version__, "torch": torch.__version__.partition("+")[0]}
