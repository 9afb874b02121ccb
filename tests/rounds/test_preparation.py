"""Before a run: budgets cut the rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mutua import Federation, Samples, run
from mutua.data.public import Public
from mutua.methods import FedAvg, FedH2L, FedMD

Federate = Callable[..., Federation]
Blobs = Callable[..., Samples]


@pytest.mark.parametrize(
    ("method", "labelled"), [(FedH2L(), True), (FedH2L(), False), (FedMD(subset=5), True), (FedAvg(), True)]
)
def test_a_budget_binds_every_method_whose_clients_send(
    method: Any, labelled: bool, federate: Federate, blobs: Blobs
) -> None:
    federation = federate((9, 12, 7))
    public = Public({client.id: blobs(6, seed=50 + k) for k, client in enumerate(federation.clients)}, labelled)
    federation = replace(federation, public=public)
    settings: dict[str, Any] = {"rounds": 12, "steps": 1, "batch_size": 4, "evaluate_every": 12, "device": "cpu"}
    free = run(method, federation, **settings)
    sent = free.ledger.bytes("up")
    assert run(method, federation, **settings, budget={"bytes_up": sent}).ledger.bytes("up") == sent
    bound = run(method, federation, **settings, budget={"bytes_up": sent // 2})
    assert (bound.job.plan.rounds, bound.job.plan.steps, bound.ledger.bytes("up")) == (6, 2, sent // 2)


def test_a_budget_counts_only_clients_that_can_be_drawn(federate: Federate) -> None:
    """Three of four have opted out whole: a fourth of the bytes pays for all rounds."""
    federation = federate((9, 9, 9, 9))
    out = [replace(c, opt_in=torch.full((9,), c.id == "a")) for c in federation.clients]
    settings: dict[str, Any] = {"rounds": 12, "steps": 1, "batch_size": 4, "evaluate_every": 12, "device": "cpu"}
    sent = run(FedAvg(), replace(federation, clients=tuple(out)), **settings).ledger.bytes("up")
    bound = run(FedAvg(), replace(federation, clients=tuple(out)), **settings, budget={"bytes_up": sent})
    assert (bound.job.plan.rounds, bound.ledger.bytes("up")) == (12, sent)
