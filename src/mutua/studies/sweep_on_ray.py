"""Runs of a sweep on a Ray cluster: each is a task of its own, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mutua.data.sources import data_folder
from mutua.engines.choice import EngineChoice
from mutua.engines.ray_cluster import (
    check_head,
    connect,
    disconnect,
    explained,
    how_it_died,
    installed_ray,
    meaning,
)
from mutua.engines.ray_worker import NodeNeeds, join_cluster
from mutua.studies.sweep import PlannedRun
from mutua.studies.sweep_processes import Ended
from mutua.studies.sweep_work import News, do_run
from mutua.support.configuration import PathLike
from mutua.support.processes import cores


class RunsOnRay:
    """One task per run. News go to a desk, an actor, which also passes on that all are to stop."""

    def __init__(self, engine: EngineChoice, place: Path, workers: int | None, data_dir: PathLike | None) -> None:
        self._connected = connect(engine.address, workers or cores())
        self._ray = ray = installed_ray()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._gpus = engine.gpus_per_worker or 0.0
        self._probe = place / f".seen-{uuid.uuid4().hex}"
        self._probe.touch()
        self._given = NodeNeeds.here(), str(data_folder(data_dir).absolute()), str(self._probe.absolute())
        with explained():
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            self._desk = ray.remote(NewsDesk).options(num_cpus=0, scheduling_strategy=here).remote()
            self._mail = self._desk.mail.remote()
        # A process that has done one run is not used again: whatever a run leaves behind is no other run's.
        options = {"num_cpus": 1, "num_gpus": self._gpus, "max_retries": 0, "max_calls": 1}
        self._do = ray.remote(scheduling_strategy="SPREAD", **options)(_do_run)
        self._tasks: dict[Any, PlannedRun] = {}

    @property
    def places(self) -> int:
        """How many runs may well work at once."""
        there = self._ray.cluster_resources()
        free = there.get("GPU", 0.0) / self._gpus if self._gpus else there.get("CPU", 1.0)
        return max(1, int(free))

    def begin(self, run: PlannedRun) -> None:
        """Begin a run; it waits where the cluster has no free core."""
        there = replace(run, path=run.path.absolute())
        self._tasks[self._do.remote(there, self._desk, *self._given)] = run

    def heard(self, timeout: float | None) -> list[tuple[PlannedRun, News | Ended]]:
        """What runs reported; wait for so many seconds if there is nothing yet."""
        found: list[tuple[PlannedRun, News | Ended]] = []
        with explained():
            ready, _ = self._ray.wait([self._mail, *self._tasks], timeout=timeout)
            ended = [ref for ref in ready if ref != self._mail]
            if ended:  # what they said last is there, even if the desk has not answered yet
                self._desk.answer.remote()
            if ended or self._mail in ready:
                news: list[News] = self._ray.get(self._mail)
                self._mail = self._desk.mail.remote()
                by_label = {run.label: run for run in self._tasks.values()}
                found += [(by_label[one.run.label], one) for one in news if one.run.label in by_label]
        for ref in ended:
            found.append((self._tasks.pop(ref), self._end_of(ref)))
        return found

    def stop(self) -> None:
        """Ask all runs to save and stop."""
        self._desk.stop.remote()

    def close(self) -> None:
        """End what is still at work, at once, and leave the cluster."""
        for ref in self._tasks:
            self._ray.cancel(ref, force=True)
        self._tasks.clear()
        self._probe.unlink(missing_ok=True)
        if self._connected:
            disconnect()
            self._connected = False

    def _end_of(self, ref: Any) -> Ended:
        try:
            problem: str = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            return Ended(meaning(error.cause or error), machine=False)
        except self._ray.exceptions.RayError as error:
            check_head()
            return Ended(how_it_died(error), machine=True)
        return Ended(problem or "its process ended without a word", machine=False)


class NewsDesk:
    """An actor between runs and their sweep."""

    def __init__(self) -> None:
        self._news: list[News] = []
        self._any, self._stopped = asyncio.Event(), asyncio.Event()

    async def tell(self, news: News) -> None:
        """Take news of a run."""
        self._news.append(news)
        self._any.set()

    async def mail(self) -> list[News]:
        """All news since the last time; it waits until there are some."""
        await self._any.wait()
        self._any.clear()
        found, self._news = self._news, []
        return found

    async def answer(self) -> None:
        """Let `mail` answer, even with nothing."""
        self._any.set()

    async def stop(self) -> None:
        """All runs are to save and stop."""
        self._stopped.set()

    async def until_stopped(self) -> None:
        """Wait until all runs are to stop."""
        await self._stopped.wait()


class _DeskLine:
    """To the desk, from a run."""

    def __init__(self, desk: Any) -> None:
        self.desk, self.ray = desk, installed_ray()

    def send(self, news: News) -> None:
        """Send news; when this returns, the desk has them."""
        try:
            self.ray.get(self.desk.tell.remote(news))
        except self.ray.exceptions.RayError as error:
            raise OSError(str(error)) from None

    def pass_on_the_stop(self) -> None:
        """In a thread: what Ctrl-C is to a sweep, SIGTERM is to its runs."""
        with suppress(self.ray.exceptions.RayError):  # where the desk is gone, so is the sweep
            self.ray.get(self.desk.until_stopped.remote())
        os.kill(os.getpid(), signal.SIGTERM)


def _do_run(run: PlannedRun, desk: Any, needs: NodeNeeds, data_dir: str, probe: str) -> str:
    """A run, in a process of a node; why it could not be begun there, if it could not."""
    node = installed_ray().util.get_node_ip_address()
    if problem := join_cluster(needs):
        return f"node {node}: {problem}"
    if not Path(probe).exists():
        place = Path(probe).parent
        return f"node {node}: it does not see the folder {place}; give --out a folder that all nodes share"
    line = _DeskLine(desk)
    threading.Thread(target=line.pass_on_the_stop, daemon=True).start()
    do_run(run, data_dir, line)
    return ""
