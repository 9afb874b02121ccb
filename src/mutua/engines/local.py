"""The local engine: every client in this process, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from mutua.errors import InputError
from mutua.federation import Federation
from mutua.history import Metrics
from mutua.learning.evaluation import measure
from mutua.message import Tensors
from mutua.participant import Job, Modules, Reply, assess, work
from mutua.rounds import Briefs
from mutua.store import Store


class LocalEngine:
    """Clients take turns on one thread, so a run's bytes do not depend on the number of cores."""

    def open(self, job: Job, federation: Federation, stores: Mapping[str, Store] | None = None) -> None:
        """Take the job; stores live in memory."""
        self.job, self.federation = job, federation
        self.modules = Modules(device(job.plan.device))
        self.stores = {client.id: (stores or {}).get(client.id, Store()) for client in federation.clients}
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def start(self) -> None:
        """Every client's `start`, as round 0."""
        self._work("start", 0, dict.fromkeys(self.stores))

    def train(self, round: int, briefs: Briefs) -> Mapping[str, Reply]:
        """The briefed clients' `train`."""
        return self._work("train", round, briefs)

    def finish(self, round: int, briefs: Briefs) -> None:
        """The briefed clients' `finish`."""
        self._work("finish", round, briefs)

    def evaluate(self, round: int, briefs: Briefs) -> Mapping[str, Mapping[tuple[str, str], Metrics]]:
        """Each briefed client's models on its own data."""
        return {
            client: assess(
                self.job,
                self.federation[client],
                self.stores[client],
                round,
                brief,
                self.modules,
                self.federation.others(client),
            )
            for client, brief in briefs.items()
        }

    def evaluate_global(self, state: Tensors) -> Metrics:
        """The global on the common test set."""
        client = self.federation.clients[0]
        assert self.federation.test is not None
        model = self.modules.get("meme", self.job.global_architecture, client, state)
        return measure(model, self.federation.test, client.task, self.modules.device)

    def close(self) -> None:
        """Give the threads back."""
        torch.set_num_threads(self._threads)

    def _work(self, verb: Literal["start", "train", "finish"], round: int, briefs: Briefs) -> dict[str, Reply]:
        return {
            client: work(self.job, self.federation[client], self.stores[client], verb, round, brief, self.modules)
            for client, brief in briefs.items()
        }


def device(name: str) -> torch.device:
    """The device of this name; `auto` is the best there is."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(name for name in ("cuda", "mps", "cpu") if there[name])
    if not there[name]:
        raise InputError(f"device: '{name}' is not on this machine; use 'auto' or 'cpu'")
    return torch.device(name)
