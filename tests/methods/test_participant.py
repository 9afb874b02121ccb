"""A client at work, as a method sees it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from mutua import Federation, Plan
from mutua.federation.module_pool import Modules
from mutua.methods import FedAvg, Participant
from mutua.methods.base import Job


def test_a_methods_own_random_numbers_are_apart_from_those_of_training(
    federate: Callable[..., Federation], nets: SimpleNamespace, modules: Modules
) -> None:
    """Even if an author calls the purpose as mutua calls the shuffling of batches."""
    federation = federate(models=nets.linear)

    def participant(client: str = "a", round: int = 1, seed: int = 0) -> Participant:
        job = Job(FedAvg(), Plan(seed=seed, batch_size=4, device="cpu"), federation.global_model)
        return Participant(job, federation[client], {}, round, modules)

    def drawn(at_work: Participant, *purpose: Any) -> list[int]:
        return torch.randperm(100, generator=at_work.stream(*purpose)).tolist()

    batches = participant().loader().generator
    shuffled = torch.randperm(100, generator=batches).tolist()
    one = drawn(participant(), "batches")
    assert one == drawn(participant(), "batches")
    others = [
        shuffled,
        drawn(participant(), "masks"),
        drawn(participant(), "batches", 1),
        drawn(participant("b"), "batches"),
        drawn(participant(round=2), "batches"),
        drawn(participant(seed=1), "batches"),
    ]
    assert all(one != other for other in others)
