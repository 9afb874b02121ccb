"""What is opted out reaches nothing shared: no byte that leaves, not the global, no number that selects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mutua import partitions
from mutua.data.samples import Samples
from mutua.federation import Federation
from mutua.history import History
from mutua.methods import FedAvg
from mutua.rounds import Event, Reached, Standing
from mutua.runner import run

Blobs = Callable[..., Samples]
Federate = Callable[..., Federation]
Simulate = Callable[..., Any]


# What selects


def opted_out_whole(federation: Federation, *who: str) -> Federation:
    out = {i: torch.zeros(len(federation[i].train), dtype=torch.bool) for i in who}
    return replace(
        federation,
        clients=tuple(replace(c, opt_in=out[c.id]) if c.id in out else c for c in federation.clients),
    )


def test_the_global_is_selected_by_opted_in_validation_samples_alone(federate: Federate, blobs: Blobs) -> None:
    """Against the mean by hand of NumPy accuracies, a client wholly out, another with half of its val out."""
    federation = opted_out_whole(federate([20, 20, 20], held=30), "b")
    marks = torch.arange(30) % 2 == 0
    a = replace(federation["a"], val=replace(federation["a"].val, opted_out=marks))
    federation = replace(federation, clients=(a, *federation.clients[1:]))
    reached: list[Standing] = []

    def watch(event: Event) -> None:
        if isinstance(event, Reached):
            reached.append(event.standing)

    result = run(FedAvg(), federation, rounds=3, batch_size=5, callbacks=[watch])
    last = result.clients[0].predictor
    by_hand = []
    for client, kept in ((a, ~marks), (federation["c"], torch.ones(30, dtype=torch.bool))):
        said = np.asarray(last(client.val.x[kept]).argmax(1))
        by_hand.append(float((said == client.val.y[kept].numpy()).mean()))
    assert result.history.validation("global", 3) == pytest.approx(np.mean(by_hand))
    assert reached[-1].validation == pytest.approx(np.mean(by_hand))  # by which the best checkpoint is kept
    assert result.history.select(client="b", model="global", split="val", metric="opted_in")[-1].value is None
    assert result.history.last("b", "global", "val", "accuracy") is not None  # its own number, at home


def test_best_is_chosen_without_the_opted_out(federate: Federate) -> None:
    """By hand: the opted-out client's validation would choose another round."""
    history = History()
    for at, (a, b, kept) in enumerate([(0.1, 0.1, 0.1), (0.6, 0.2, 0.6), (0.5, 1.0, 0.4)]):
        history.add(at, "a", "global", "val", "accuracy", a)
        history.add(at, "a", "global", "val", "opted_in", kept)
        history.add(at, "b", "global", "val", "accuracy", b)
        history.add(at, "b", "global", "val", "opted_in", None)
        history.add(at, "global", "global", "test", "accuracy", at / 10)
    assert [history.validation("global", at) for at in range(3)] == [0.1, 0.6, 0.4]
    assert history.best_rounds()["global", "global"] == 1
    assert history.selected("best", "global", "global", "test", "accuracy") == pytest.approx(0.1)
    assert history.best_rounds()["b", "global"] == 2  # a client's own number is selected at home, by its own data


def test_other_domains_opted_out_samples_do_not_judge_a_client(blobs: Blobs, nets: SimpleNamespace) -> None:
    """ACC on val selects a client's round where clients are domains."""
    federation = Federation.from_samples(
        replace(blobs(90), domain=torch.arange(90) % 3, domains=("u", "v", "w")),
        partition=partitions.Domains(),
        models=nets.plain,
    )
    others = opted_out_whole(federation, "v").others("u")
    assert others is not None
    for split in ("val", "test"):
        assert torch.equal(others[split].x, getattr(federation["w"], split).x)
