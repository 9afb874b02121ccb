"""What a run promises, counted by what was sent and merged: against another accountant, and as users meet it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import yaml

import mutua
from mutua.ledger import Ledger
from mutua.message import Message, weights
from mutua.methods import FML, FMLU, FedAvg, FineTuned
from mutua.participant import Job
from mutua.plan import Plan
from mutua.privacy import guarantee

UNIFORM = FedAvg(weights="uniform")


def pld(noises: list[float], delta: float) -> float:
    """ε of one Gaussian mechanism each, by privacy loss distributions."""
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    for noise in noises:
        accountant.compose(dp_accounting.GaussianDpEvent(noise))
    return float(accountant.get_epsilon(delta))


# What was merged


@pytest.mark.parametrize("seed", range(8))
def test_epsilon_in_the_globals_is_plds_for_any_pattern_of_refusals(seed: int, federate: Any) -> None:
    rng = np.random.default_rng(seed)
    clients = federate([5] * int(rng.integers(2, 7))).clients
    sigma, rounds, ledger = float(rng.uniform(0.8, 4)), int(rng.integers(1, 6)), Ledger()
    merged: dict[int, list[str]] = {}
    for round in range(1, rounds + 1):
        sending = [c.id for c in clients if rng.random() < 0.8]
        merged[round] = [c for c in sending if rng.random() < 0.6]
        for client in sending:
            ledger.record(round, client, "up", Message(meme=weights({})))
            if client not in merged[round]:
                ledger.refuse(round, client)
    plan = Plan(rounds=rounds, privacy={"clip": 1, "noise": sigma})
    found = guarantee(Job(FML(), plan, None), clients, ledger)
    assert found is not None
    mine = [
        [sigma * math.sqrt(len(those)) for those in merged.values() if client.id in those] for client in clients
    ]
    assert found.epsilon.globals == pytest.approx(
        max(pld(m, 1e-5) if m else 0.0 for m in mine), rel=2e-3, abs=1e-3
    )
    assert found.rdp is not None and found.rdp.globals >= found.epsilon.globals


def test_refused_replies_take_their_noise_with_them(command: Callable[..., Any], tiny: dict[str, Any]) -> None:
    """Three of four refused, σ = 1.3, five rounds: 3.98 would be promised if four were merged."""
    tree = {**tiny, "rounds": 5, "partition": {"kind": "iid", "clients": 4}, "privacy": {"clip": 1, "noise": 1.3}}
    ids = sorted(client.id for client in mutua.Recipe.of(tree).federation().clients)
    faults = {"corruption": [{"clients": ids[:3], "kind": "nan"}]}
    Path("refused.yaml").write_text(yaml.safe_dump({**tree, "faults": faults}))
    told = json.loads(command("run", "refused.yaml", "--out", "refused", "--json").out)["privacy"]["epsilon"]
    assert told["globals"] == pytest.approx(pld([1.3] * 5, 1e-5), rel=1e-3)
    assert told["globals"] == told["messages"] == pytest.approx(8.315, abs=1e-3)
    rows = [line.split(",") for line in Path("refused/ledger.csv").read_text().splitlines()]
    refused = [(int(row[0]), row[1]) for row in rows[1:] if row[3] == "refused"]
    assert sorted(refused) == [(round, client) for round in range(1, 6) for client in ids[:3]]
    page = command("report", "refused")
    assert page.code == 0


class Weighted(FML):
    """A method with weights of its own, which the server might choose by what was sent."""

    def merge_weights(self, replies: Any) -> list[float]:
        return [float(i + 1) for i in range(len(replies))]


class Choosy(FML):
    def outliers(self, server: Any, replies: Any) -> dict[str, str]:
        return {}


def test_a_method_that_weighs_or_chooses_promises_nothing_of_its_globals(federate: Any) -> None:
    assert not Weighted().averages and not Choosy().averages
    assert not FedAvg().averages and not FMLU().averages
    assert FML().averages and UNIFORM.averages and FMLU(uncertain_merge=False).averages
    assert FineTuned(weights="uniform").averages
    run = mutua.run(Weighted(), federate(), rounds=1, privacy={"clip": 1, "noise": 2}, device="cpu")
    assert run.guarantee.epsilon.messages == pytest.approx(pld([2.0], 1e-5), rel=1e-3)
    assert run.guarantee.epsilon.globals is None


# Opted out whole


@pytest.mark.parametrize("level", ["client", "example"])
def test_who_has_opted_out_whole_has_nothing_to_account_for(
    level: str, command: Any, tiny: dict[str, Any]
) -> None:
    tree = {
        **tiny,
        "partition": {"kind": "iid", "clients": 4},
        "models": {"global": "mlp"},
        "method": {"name": "mixture", "weights": "uniform", "mixture_epochs": 1},
        "opt_out": {"fraction": 0.25},
        "privacy": {"level": level, "clip": 1, "noise": 1.5},
    }
    Path("out.yaml").write_text(yaml.safe_dump(tree))
    done = command("run", "out.yaml", "--out", "out", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["privacy"]["epsilon"]["messages"] > 0
