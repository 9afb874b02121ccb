"""What a run promises, counted by what was sent and merged: against another accountant, and as users meet it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
import yaml

import mutua
from conftest import exact_epsilon
from mutua import Ledger, Message, Plan
from mutua.federation.privacy_accounting import Uses, epsilon, largest, rdp
from mutua.methods import FML, FMLU, FedAvg, FedDF, FedSEM, FineTuned, Independent, Participant, weights
from mutua.methods.base import Job
from mutua.rounds.participation import Participation
from mutua.rounds.privacy_guarantee import Guarantee, guarantee
from mutua.support.tensor_files import Tensors

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
    took_part = Participation()
    merged: dict[int, list[str]] = {}
    for round in range(1, rounds + 1):
        sending = [c.id for c in clients if rng.random() < 0.8]
        merged[round] = [c for c in sending if rng.random() < 0.6]
        for client in sending:
            ledger.record(round, client, "up", Message(meme=weights({})))
            took_part.add(round, client, "merged" if client in merged[round] else "refused")
    plan = Plan(rounds=rounds, privacy={"clip": 1, "noise": sigma})
    found = guarantee(Job(FML(), plan, None), clients, ledger, took_part)
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
    page = command("report", "refused")
    assert page.code == 0


@pytest.mark.parametrize("randomness", ["system", "seeded"])
def test_what_was_merged_and_the_budget_outlast_a_stop(
    randomness: str, command: Any, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in round 3 of the 4 that the budget pays for, with one of three replies refused in the first two."""
    tree = {
        **tiny,
        "rounds": 9,
        "partition": {"kind": "iid", "clients": 3},
        "privacy": {"clip": 1, "noise": 2, "budget": pld([2.0] * 4, 1e-5) + 0.01, "randomness": randomness},
        "faults": {"corruption": [{"clients": ["c0"], "rounds": [1, 2], "kind": "nan"}]},
    }
    Path("r.yaml").write_text(yaml.safe_dump(tree))
    assert command("run", "r.yaml", "--out", "whole", "--workers", "1").code == 0
    merge, merged = FML.merge, []

    def stopping(self: FML, server: Any, replies: Any) -> None:
        merged.append(len(replies))
        if len(merged) == 3:
            raise KeyboardInterrupt
        merge(self, server, replies)

    with monkeypatch.context() as patched:
        patched.setattr(FML, "merge", stopping)
        assert command("run", "r.yaml", "--out", "stopped", "--workers", "1").code == 1
    assert command("run", "--resume", "stopped", "--workers", "1").code == 0
    assert merged == [2, 2, 3]
    whole, stopped = (json.loads(Path(run, "run.json").read_text())["summary"] for run in ("whole", "stopped"))
    assert whole["rounds"] == stopped["rounds"] == 4 and whole["privacy"] == stopped["privacy"]
    noises = [2 * math.sqrt(m) for m in (2, 2, 3, 3)]
    assert stopped["privacy"]["epsilon"]["globals"] == pytest.approx(pld(noises, 1e-5), rel=1e-3)
    same = (
        Path("whole/global/weights.safetensors").read_bytes()
        == Path("stopped/global/weights.safetensors").read_bytes()
    )
    assert same == (randomness == "seeded")


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
    assert not FedDF(weights="uniform").averages and not FedSEM(weights="uniform").averages
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


# Randomness


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("level", ["client", "example"])
def test_noise_does_not_repeat_unless_it_is_asked_for(level: str, workers: int, federate: Any) -> None:
    """Neither between runs of one seed nor between workers, which are forked from one process."""

    def globals(**more: Any) -> list[Tensors]:
        privacy = {"level": level, "clip": 1, "noise": 1, **more}
        settings = {"rounds": 1, "batch_size": 4, "device": "cpu", "seed": 3, "workers": workers}
        return [mutua.run(UNIFORM, federate(), privacy=privacy, **settings).global_state for _ in range(2)]

    once, again = globals()
    assert all(not torch.equal(array, again[name]) for name, array in once.items())
    once, again = globals(randomness="seeded")
    assert all(torch.equal(array, again[name]) for name, array in once.items())


@pytest.mark.parametrize("randomness", ["system", "seeded"])
def test_workers_forked_from_one_process_draw_noise_of_their_own(
    randomness: str, federate: Any, simulate: Any
) -> None:
    """Clients that learn the same send the same but for their noise."""
    run = simulate(FML(), federate([6] * 3), rounds=2, privacy={"clip": 1, "noise": 1, "randomness": randomness})
    sent = [r.message.arrays("meme")["body.weight"].flatten()[:4] for r in run.engine.replies.values()]
    assert len({tuple(few.tolist()) for few in sent}) == len(sent) == 6


def test_secret_batches_are_drawn_by_the_system_too(federate: Any, modules: Any) -> None:
    federation = federate([400])

    def drawn(randomness: str) -> list[list[int]]:
        privacy = {"level": "example", "clip": 1, "noise": 1, "randomness": randomness}
        job = Job(UNIFORM, Plan(rounds=1, batch_size=100, privacy=privacy, device="cpu"), federation.global_model)
        participant = Participant(job, federation.clients[0], {}, 1, modules)
        model = modules.get("meme", job.global_architecture, federation.clients[0], first(modules, federation))
        return [batch.index.tolist() for batch in participant.loader(models={"meme": model}).epochs(2)]

    assert drawn("seeded") == drawn("seeded")
    batches = drawn("system")
    assert batches != drawn("system")
    assert len(batches) == 8 and 60 < np.mean([len(b) for b in batches]) < 140


def first(modules: Any, federation: Any) -> Tensors:
    return dict(modules._module("meme", federation.global_model, federation.clients[0]).state_dict())


def test_a_report_says_where_noise_came_from(command: Any) -> None:
    given = "privacy={clip: 1, noise: 3, randomness: seeded}"
    said = command("run", "tiny.yaml", "--set", given, "--out", "seeded").out
    assert "; noise from the seed, which whoever knows the seed can take off\n" in said
    told = json.loads(Path("seeded/run.json").read_text())["summary"]["privacy"]
    old = {key: value for key, value in told.items() if key not in ("randomness", "budget", "rdp")}
    assert str(Guarantee.of(old)).endswith("noise from the seed, which whoever knows the seed can take off")
    assert "Rényi" not in str(Guarantee.of(old))


# A budget of ε


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_a_run_ends_with_the_last_round_that_its_budget_pays_for(fraction: float, federate: Any) -> None:
    settings = {"batch_size": 4, "device": "cpu", "client_fraction": fraction}
    privacy = {"clip": 1, "noise": 4, "randomness": "seeded"}
    limit = pld([4.0] * 3, 1e-5) + 0.01  # three messages of a client, and not four
    kept = mutua.run(FML(), federate([6] * 4), rounds=30, privacy={**privacy, "budget": limit}, **settings)
    rounds = kept.job.plan.rounds
    sent = Counter(e.client for e in kept.ledger if e.direction == "up" and e.kind == "weights")
    assert max(sent.values()) == 3 and (rounds == 3 if fraction == 1 else 3 < rounds < 30)
    assert kept.guarantee.epsilon.messages <= limit
    assert kept.summary()["rounds"] == rounds == kept.history.rows[-1].round
    assert (
        f"privacy.budget: ε = {limit:g} pays for {rounds} of 30 rounds; the run ends with"
        in kept.federation.notes[-1]
    )
    planned = mutua.run(FML(), federate([6] * 4), rounds=rounds, privacy=privacy, **settings)
    assert planned.history.rows == kept.history.rows
    assert all(torch.equal(array, kept.global_state[name]) for name, array in planned.global_state.items())
    more = mutua.run(FML(), federate([6] * 4), rounds=rounds + 1, privacy=privacy, **settings)
    assert more.guarantee.epsilon.messages > limit


def test_a_budget_for_examples(federate: Any) -> None:
    privacy = {"level": "example", "clip": 1, "noise": 2, "budget": 5}
    settings = {"rounds": 40, "epochs": 2, "batch_size": 5, "device": "cpu", "evaluate_every": 100}
    kept = mutua.run(UNIFORM, federate([10, 30]), privacy=privacy, **settings)
    rounds = kept.job.plan.rounds
    spent = [
        largest([(Uses(2.0, 0.5, n * 4),), (Uses(2.0, 1 / 6, n * 12),)], 1e-5, epsilon)
        for n in (rounds, rounds + 1)
    ]
    assert spent[0] <= 5 < spent[1]
    assert kept.guarantee.epsilon.messages == pytest.approx(spent[0])


def test_a_budget_at_the_command_line(command: Any, tmp_path: Path) -> None:
    too_little = command("run", "tiny.yaml", "--set", "privacy={clip: 1, noise: 1, budget: 2}", "--out", "none")
    assert (too_little.code, too_little.out) == (2, "")
    assert "privacy.budget: 2, but one round spends ε = 4.38; raise it, or privacy.noise" in too_little.err
    assert not (tmp_path / "none").exists()
    given = ("--set", "rounds=9", "--set", "privacy={clip: 1, noise: 1, budget: 7}")
    done = command("run", "tiny.yaml", *given, "--out", "kept", "--json")
    assert "note: privacy.budget: ε = 7 pays for 2 of 9 rounds; the run ends with round 2\n" in done.err
    assert json.loads(done.out)["rounds"] == 2 and json.loads(done.out)["privacy"]["budget"] == 7
    listed = json.loads(command("runs", "list", ".", "--json").out)["runs"]
    assert [(run["state"], run["round"], run["rounds"]) for run in listed] == [("finished", 2, 9)]
    alone = command("run", "tiny.yaml", *given, "--set", "method=independent", "--out", "alone", "--json")
    assert json.loads(alone.out)["rounds"] == 9  # it sends nothing


# The guarantee of a run


def made(federation: Any, method: Any, **settings: Any) -> Any:
    privacy = {"clip": 0.1, "noise": 2.0, "delta": 1e-4, **settings.pop("privacy", {})}
    return mutua.run(method, federation, batch_size=4, device="cpu", privacy=privacy, **settings)


def test_what_is_promised_by_hand(federate: Any) -> None:
    run = made(federate([6] * 4), FML(), rounds=3)
    found = run.guarantee
    assert found.epsilon.messages == epsilon([Uses(2.0, 1.0, 3)], 1e-4)
    assert found.epsilon.globals == epsilon([Uses(4.0, 1.0, 3)], 1e-4)  # the noise of four is twice that of one
    assert found.epsilon.sampled is None
    assert found.epsilon.messages == pytest.approx(exact_epsilon(2.0, 3, 1e-4), rel=1e-6)
    assert found.rdp.messages == rdp([Uses(2.0, 1.0, 3)], 1e-4)
    assert found.rdp.globals == rdp([Uses(4.0, 1.0, 3)], 1e-4)


def test_a_client_counts_as_often_as_it_was_drawn(federate: Any) -> None:
    run = made(federate([6] * 5), FML(), rounds=6, client_fraction=0.4)
    drawn = Counter(e.client for e in run.ledger if e.direction == "up" and e.kind == "weights")
    assert sum(drawn.values()) == 12 and 1 < max(drawn.values()) < 6
    found = run.guarantee
    assert found.epsilon.messages == epsilon([Uses(2.0, 1.0, max(drawn.values()))], 1e-4)
    assert found.epsilon.globals == epsilon([Uses(2.0 * math.sqrt(2), 1.0, max(drawn.values()))], 1e-4)
    assert found.epsilon.sampled == epsilon([Uses(2.0 * math.sqrt(2), 0.4, 6)], 1e-4)


class Own(FML):
    def merge(self, server: Any, replies: Any) -> None:
        server.state["global"] = next(iter(replies.values())).arrays("meme")


@pytest.mark.parametrize("method", [FML(combine="median"), FML(max_norm_ratio=100), Own()], ids=repr)
def test_only_a_mean_of_all_adds_the_noises_up(method: Any, federate: Any) -> None:
    found = made(federate(), method, rounds=1).guarantee
    assert (found.epsilon.messages, found.epsilon.globals) == (epsilon([Uses(2.0, 1.0, 1)], 1e-4), None)


def test_where_there_is_no_guarantee(federate: Any) -> None:
    assert mutua.run(FML(), federate(), rounds=1).guarantee is None
    none = made(federate(), FML(), rounds=1, privacy={"noise": 0})
    assert (none.guarantee.epsilon.messages, str(none.guarantee)) == (None, "none, since privacy.noise is 0")
    assert made(federate(), Independent(), rounds=1).guarantee.epsilon.messages == 0


def test_a_report_says_what_is_promised_or_that_nothing_is(command: Any) -> None:
    settings = ("--set", "privacy={clip: 1, noise: 3, delta: 1e-4}")
    said = command("run", "tiny.yaml", *settings, "--out", "a").out
    numbers = epsilon([Uses(3.0, 1.0, 1)], 1e-4), epsilon([Uses(3.0 * math.sqrt(2), 1.0, 1)], 1e-4)
    by_rdp = rdp([Uses(3.0, 1.0, 1)], 1e-4), rdp([Uses(3.0 * math.sqrt(2), 1.0, 1)], 1e-4)
    line = "of a client's data, ε = {:.3g} in all messages, {:.3g} in the globals alone, at δ = 0.0001; "
    line = (line + "by Rényi accounting {:.3g}, {:.3g}; ").format(*numbers, *by_rdp)
    line += "noise from the system's random source, so the run does not repeat"
    assert f"differential privacy: {line}\n" in said
    assert "differential privacy: none\n" in command("run", "tiny.yaml", "--out", "b").out
    assert json.loads(command("run", "tiny.yaml", "--out", "c", "--json").out)["privacy"] is None
    assert json.loads(command("run", "tiny.yaml", *settings, "--out", "d", "--json").out)["privacy"] == {
        "level": "client",
        "clip": 1.0,
        "noise": 3.0,
        "delta": 1e-4,
        "budget": None,
        "randomness": "system",
        "epsilon": {"messages": numbers[0], "globals": numbers[1], "sampled": None},
        "rdp": {"messages": by_rdp[0], "globals": by_rdp[1], "sampled": None},
    }
    assert json.loads(Path("d/run.json").read_text())["summary"]["privacy"]["epsilon"]["messages"] == numbers[0]
    table = command(
        "compare", "tiny.yaml", *settings, "--methods", "fml,independent", "--seeds", "0", "--out", "e"
    ).out
    assert f"fml, seed 0: differential privacy {line}" in table
    assert "independent, seed 0: differential privacy of a client's data, ε = 0 in all messages" in table
