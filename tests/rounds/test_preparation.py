"""Before a run: it is prepared once, and budgets cut the rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mutua import Architecture, Federation, InputError, Method, Plan, Samples, run
from mutua.data.public import Public
from mutua.methods import FedAvg, FedH2L, FedMD, Hub
from mutua.rounds.loop import Rounds
from mutua.rounds.preparation import prepare

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


@pytest.mark.parametrize(
    ("sets", "builds"),
    [
        ([], 3),  # the personal model and the global are tried, and a reply is measured
        (["method=independent"], 1),  # the personal model is tried; nothing is sent
        (["method={name: fedavg, weights: uniform}", "privacy={clip: 1, noise: 1}"], 4),  # is it batch-normed?
    ],
)
def test_a_run_from_the_command_line_is_prepared_once(
    sets: list[str], builds: int, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How often the method arranges the federation and says how long a reply is, and how many models are built."""
    calls: Counter[str] = Counter()

    def count(owner: type, name: str) -> None:
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **more: (calls.update([name]), real(*given, **more))[1])

    before_the_first_round: list[dict[str, int]] = []
    go = Rounds.run
    monkeypatch.setattr(Rounds, "run", lambda self: (before_the_first_round.append(dict(calls)), go(self))[1])
    for kind in (Method, Hub):
        for name in {"arrange", "reply_bytes"} & {*vars(kind)}:
            count(kind, name)
    count(Architecture, "build")
    changes = [word for one in sets for word in ("--set", one)]
    done = command("run", "tiny.yaml", *changes, "--workers", 1)
    assert done.code == 0, done.err
    assert before_the_first_round == [{"arrange": 1, "reply_bytes": 1, "build": builds}]


def test_shares_give_every_name_a_kind(federate: Any) -> None:
    class Old(FedAvg):
        shares = property(lambda self: {"weights": "meme"})  # type: ignore[assignment]

    with pytest.raises(InputError, match=r"^Old.shares: 'weights' is declared as 'meme'; give each name a kind"):
        prepare(Old(), federate(), Plan())
