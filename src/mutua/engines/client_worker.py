"""What a worker does for the clients of a simulation, in whichever process or machine it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mutua.engines.assessment import Assessment, assess
from mutua.engines.scheduling import WorkItem
from mutua.engines.work import Entrusted, HandIn, Performed, Reply, Staged, Verb, Worked, perform, work
from mutua.errors import NO_MEMORY, Fault, InputError, MachineFault, short_of_memory
from mutua.federation.commit_files import FiledCommit
from mutua.federation.federation import Federation
from mutua.federation.module_pool import Modules
from mutua.learning.evaluation import evaluation_batch, predictions
from mutua.methods.base import Job
from mutua.support.tensor_files import Tensors


class ClientWorker:
    """Does work items: it has the clients' data and a set of modules, and keeps nothing from item to item."""

    def __init__(self, job: Job, federation: Federation, device: torch.device) -> None:
        self.job, self.federation = job, federation
        self.modules = Modules(device)

    def do(self, item: WorkItem) -> Any:
        """What comes of an item; a client's `Fault` too. A `MachineFault` is raised: the caller may try again."""
        if item.what == "score":
            return self._score(int(item.client), *item.given)
        try:
            if item.what == "assess":
                return self._assess(item.client, *item.given)
            return self._perform(item.what, item.client, *item.given)  # type: ignore[arg-type]
        except MachineFault:
            raise
        except Fault as fault:
            return fault

    def _perform(self, verb: Verb, client: str, round: int, given: Staged | Entrusted) -> Performed | Worked:
        if isinstance(given, Staged):
            return perform(self.job, self.federation[client], verb, round, given, self.modules)

        def performer(staged: Mapping[str, Staged], hand_in: HandIn) -> None:
            for name, one in staged.items():
                try:
                    hand_in(name, perform(self.job, self.federation[name], verb, round, one, self.modules))
                except MachineFault:
                    raise
                except Fault as fault:
                    hand_in(name, fault)

        brief, store = given
        reply = work({client: store}, round, {client: brief}, performer)[client]
        if (
            isinstance(reply, Reply)
            and isinstance(newest := store.commits[-1], FiledCommit)
            and newest.files.folder
        ):
            reply = replace(reply, message=None)  # who asked reads it from the file
        return Worked(reply, store.commits)

    def _assess(self, client: str, round: int, given: Staged | Entrusted) -> Assessment:
        if isinstance(given, Entrusted):
            given = Staged(given.brief, given.store.stage(round + 1))
        others = self.federation.others(client)
        return assess(self.job, self.federation[client], round, given, self.modules, others)

    def _score(self, number: int, state: Tensors) -> Tensor:
        """The global's probabilities on one batch of the common test set."""
        client = self.federation.clients[0]
        assert self.federation.test is not None
        try:
            model = self.modules.get("meme", self.job.global_architecture, client, state)
            batch = evaluation_batch(self.federation.test, number)
            return predictions(model, batch, client.task, self.modules.device)
        except Exception as error:
            if short_of_memory(error):
                raise MachineFault("the common test set", NO_MEMORY) from error
            raise


def device(name: str, *, forks: bool = False) -> torch.device:
    """The device of this name; `auto` is the best there is. `forks`: forked workers will use it."""
    with _asking_the_driver() if forks else nullcontext():
        cuda = torch.cuda.is_available()
    there = {"cpu": True, "cuda": cuda, "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(name for name in ("cuda", "mps", "cpu") if there[name])
    if not there[name]:
        raise InputError(f"device: '{name}' is not on this machine; use 'auto' or 'cpu'")
    return torch.device(name)


@contextmanager
def _asking_the_driver() -> Iterator[None]:
    """Let torch ask the GPU's driver what there is: a process that asked CUDA cannot fork workers for it."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
