"""Client-level privacy: what leaves, by hand; what is refused; and the accountant against closed forms."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from scipy import integrate, optimize, stats

import mutua
from mutua import InputError, Message, Plan, Privacy, Recipe
from mutua.federation.message import weights
from mutua.federation.privacy_accounting import Uses, epsilon, rdp
from mutua.learning.merging import mean
from mutua.methods import FML, FedAvg, Independent, of
from mutua.rounds.preparation import prepare
from mutua.rounds.privacy_guarantee import check_privacy
from mutua.seeds import private, torch_stream
from mutua.support.tensor_files import Tensors

Simulate = Callable[..., Any]
BEFORE: Tensors = {
    "w": torch.tensor([[1.0, -2.0], [0.5, 0.0]]),
    "norm.running_var": torch.tensor([0.2, 3.0]),
    "norm.num_batches_tracked": torch.tensor(7),
}
SEEDED = {"randomness": "seeded"}
BRIEF = Message(**{"global": weights(BEFORE)})


def reply(change: list[float]) -> Message:
    """The global moved by this vector."""
    moved = (
        BEFORE["w"] + torch.tensor(change[:4]).view(2, 2),
        BEFORE["norm.running_var"] + torch.tensor(change[4:]),
    )
    counted = torch.tensor(11)  # which would tell how many samples there are
    changed = {"w": moved[0], "norm.running_var": moved[1], "norm.num_batches_tracked": counted}
    return Message(meme=weights({**BEFORE, **changed}))


def flat(state: Tensors) -> np.ndarray:
    return torch.cat([a.reshape(-1).double() for a in state.values() if a.is_floating_point()]).numpy()


def stream(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# What leaves


@pytest.mark.parametrize(("clip", "scale"), [(2.5, 0.5), (5.0, 1.0), (10.0, 1.0)])
def test_clipping_and_noise_by_hand(clip: float, scale: float) -> None:
    change = np.array([3.0, 0.0, 0.0, 4.0, 0.0, 0.0])  # of norm 5
    for sigma in (0.0, 0.01):
        left = Privacy(clip=clip, noise=sigma).leaving(reply(change.tolist()), BRIEF, stream()).arrays("meme")
        noise = torch.randn(6, generator=stream(), dtype=torch.float64).numpy()
        by_hand = flat(BEFORE) + scale * change + sigma * clip * noise
        assert flat(left) == pytest.approx(by_hand, abs=1e-6)
        assert {n: (a.dtype, a.shape) for n, a in left.items()} == {
            n: (a.dtype, a.shape) for n, a in BEFORE.items()
        }
        assert left["norm.num_batches_tracked"] == 7


def test_noise_is_normal_of_deviation_sigma_times_clip_in_every_number() -> None:
    size = 20_000
    before = {"w": torch.zeros(size), "b": torch.zeros(3)}
    brief = Message(**{"global": weights(before)})
    change = {"w": torch.full((size,), 1.0), "b": torch.zeros(3)}
    left = Privacy(clip=0.5, noise=4.0).leaving(Message(meme=weights(change)), brief, stream()).arrays("meme")
    rest = (left["w"].numpy() - 0.5 / math.sqrt(size)) / 2.0
    assert stats.kstest(rest, "norm").pvalue > 0.01
    assert abs(np.corrcoef(rest[1:], rest[:-1])[0, 1]) < 0.03
    assert left["b"].abs().min() > 0


def test_a_diverged_update_is_sent_as_none_and_noise_falls_as_it_falls() -> None:
    for bad in (math.nan, math.inf):
        left = Privacy(clip=1, noise=0.1).leaving(reply([bad, 0, 0, 0, 0, 0]), BRIEF, stream())
        assert left == Privacy(clip=1, noise=0.1).leaving(reply([0.0] * 6), BRIEF, stream())
        assert np.isfinite(flat(left.arrays("meme"))).all()
    several = [Privacy(clip=1, noise=2).leaving(reply([0.0] * 6), BRIEF, stream(s)) for s in range(20)]
    variances = torch.stack([message.arrays("meme")["norm.running_var"] for message in several])
    assert (variances < 0).any()  # or the sum of messages would not be normal: the server cuts off what it merged
    assert any((message.arrays("meme")["w"] < -2.5).any() for message in several)


@pytest.mark.parametrize("method", [FML(), FedAvg(weights="uniform")], ids=lambda m: str(m.name))
def test_in_a_run_the_noised_update_leaves_and_nothing_else_changes(
    method: Any, federate: Any, simulate: Simulate, identical: Any, nets: SimpleNamespace
) -> None:
    federation = federate(models=nets.normed, global_model=nets.normed)
    plain, hidden = (
        simulate(method, federation, rounds=1, privacy=p) for p in (None, {"clip": 0.3, "noise": 0.5, **SEEDED})
    )
    for client in "abc":
        before = flat(plain.engine.briefs[1, client].arrays("global"))
        update = flat(plain.engine.replies[1, client].message.arrays("meme")) - before
        assert np.linalg.norm(update) > 0.3
        noise = torch.randn(
            len(update), generator=torch_stream(private(0, client), 1, "privacy"), dtype=torch.float64
        )
        by_hand = before + update * 0.3 / np.linalg.norm(update) + 0.15 * noise.numpy()
        sent = hidden.engine.replies[1, client].message.arrays("meme")
        assert flat(sent) == pytest.approx(by_hand, abs=1e-5)
        if "personal" in plain.engine.kept[1, client]:
            assert identical(*(run.engine.kept[1, client]["personal"] for run in (plain, hidden)))
    replies = [hidden.engine.replies[1, client].message.arrays("meme") for client in "abc"]
    merged = mean(replies, [1.0] * 3)
    merged["norm.running_var"] = merged["norm.running_var"].clamp_min(0)
    assert identical(hidden.globals[-1], merged)


def test_no_merged_variance_is_negative(federate: Any, simulate: Simulate, nets: SimpleNamespace) -> None:
    run = simulate(FML(), federate(models=nets.normed, global_model=nets.normed), privacy={"clip": 5, "noise": 2})
    sent = torch.cat([r.message.arrays("meme")["norm.running_var"] for r in run.engine.replies.values()])
    assert (sent < 0).any()
    assert all((shared["norm.running_var"] >= 0).all() for shared in run.globals)
    assert any((shared["norm.running_var"] == 0).any() for shared in run.globals)


def test_noise_is_new_in_every_round_and_client_and_the_same_in_every_run(
    federate: Any, simulate: Simulate
) -> None:
    runs = [simulate(FML(), federate(), privacy={"clip": 1, "noise": 1, **SEEDED}) for _ in range(2)]
    sent = [{key: r.message.encode() for key, r in run.engine.replies.items()} for run in runs]
    assert sent[0] == sent[1]
    run = runs[0]
    noises = {
        key: flat(r.message.arrays("meme")) - flat(run.engine.briefs[key].arrays("global"))
        for key, r in run.engine.replies.items()
    }
    assert len(noises) == 6
    corner = {tuple(np.round(noise[:4], 3)) for noise in noises.values()}
    assert len(corner) == 6


def test_of_a_partial_global_only_the_shared_part_is_noised_and_leaves(
    federate: Any, simulate: Simulate, nets: SimpleNamespace, identical: Any
) -> None:
    shared = mutua.Architecture.of(nets.plain).model_copy(update={"share": "body"})
    federation = federate(models=nets.plain, global_model=shared)
    plain, hidden = (simulate(FML(), federation, rounds=1, privacy=p) for p in (None, {"clip": 1, "noise": 1}))
    for client in "abc":
        assert set(hidden.engine.replies[1, client].message.arrays("meme")) == {"body.weight", "body.bias"}
        assert identical(*(run.engine.kept[1, client]["adaptor"] for run in (plain, hidden)))


@pytest.mark.parametrize("level", ["client", "example"])
def test_noise_is_the_same_for_any_number_of_workers(level: str, federate: Any, identical: Any) -> None:
    privacy = {"level": level, "clip": 1, "noise": 1, **SEEDED}
    method, settings = (
        FedAvg(weights="uniform"),
        {"rounds": 2, "batch_size": 4, "device": "cpu", "privacy": privacy},
    )
    one, two = (mutua.run(method, federate(), workers=workers, **settings).global_state for workers in (1, 2))
    assert identical(one, two)


# What is refused


@pytest.mark.parametrize(
    ("method", "said", "told", "way_out"),
    [
        ("fedavg", "sends 'samples' (count)", "set weights: uniform", {"weights": "uniform"}),
        ("mixture", "sends 'samples' (count)", "set weights: uniform", {"weights": "uniform"}),
        ("fmlu", "sends 'meme_entropy' (entropy)", "set uncertain_merge: false", {"uncertain_merge": False}),
        ("fedmd", "(scores)", "use a method that shares weights alone, such as fml", {"name": "fml"}),
        ("fedh2l", "(probabilities)", "use a method that shares weights alone, such as fml", {"name": "fml"}),
        ("centralised", "brings all data to one place", "", {"name": "independent"}),
    ],
)
def test_what_would_be_neither_noised_nor_counted_is_refused_with_a_way_out(
    method: str, said: str, told: str, way_out: dict[str, Any], federate: Any
) -> None:
    privacy = Privacy(clip=1, noise=1)
    with pytest.raises(InputError, match=f"^privacy: {method} ") as error:
        check_privacy(privacy, of({"name": method}), normed=False)
    assert said in str(error.value) and told in str(error.value)
    prepare(of({"name": method, **way_out}), federate(), Plan(privacy=privacy))


def test_a_run_and_a_comparison_are_refused_before_they_begin(command: Any, tmp_path: Path) -> None:
    given = ("--set", "privacy={clip: 1, noise: 1}")
    done = command("run", "tiny.yaml", "--set", "method=fedavg", *given, "--out", "out")
    assert (done.code, done.out) == (2, "")
    assert "privacy: fedavg sends 'samples' (count)" in done.err and "set weights: uniform" in done.err
    done = command("compare", "tiny.yaml", "--methods", "fml,fmlu", *given, "--seeds", "0", "--out", "out")
    assert done.code == 2
    assert "--methods: 'fmlu': privacy: fmlu sends 'meme_entropy'" in done.err
    assert not list(tmp_path.glob("out/*"))


def test_without_the_accountants_the_way_to_get_it_is_said(
    command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "dp_accounting"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert command("run", "tiny.yaml", "--out", "plain").code == 0
    done = command("run", "tiny.yaml", "--set", "privacy={clip: 1, noise: 1}", "--out", "out")
    assert done.code == 2
    assert 'pip install "mutua[dp]"' in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"clip": 0, "noise": 1}, "privacy.clip: 0; it must be above 0"),
        ({"clip": 1}, "privacy.noise: missing"),
        ({"clip": 1, "noise": -1}, "privacy.noise: -1; it must be at least 0"),
        (
            {"clip": 1, "noise": 1e-320},
            "privacy.noise: 1e-320 is too small for any accountant; give at least 0.001",
        ),
        ({"clip": 1, "noise": 0, "budget": 1}, "budget: without noise there is no ε"),
        ({"clip": 1, "noise": 1, "budget": 0}, "privacy.budget: 0; it must be above 0"),
        ({"clip": 1, "noise": 1, "randomness": "seed"}, "privacy.randomness: 'seed'; did you mean 'seeded'?"),
        ({"clip": 1e300, "noise": 1e300}, "noise × clip is inf"),
        ({"clip": 1, "noise": 1, "delta": 1e-320}, "privacy.delta: 1e-320; it must be at least"),
        ({"clip": math.inf, "noise": 1}, "privacy.clip: inf; it must be a finite number"),
        ({"clip": 1, "noise": 1, "delta": 1}, "privacy.delta: 1; it must be below 1"),
        ({"clip": 1, "noise": 1, "level": "clients"}, "privacy.level: 'clients'; did you mean 'client'?"),
        ({"clip": 1, "noise": 1, "epsilon": 1}, "privacy.epsilon: unknown key"),
    ],
)
def test_what_no_privacy_is(section: dict[str, Any], said: str, tiny: dict[str, Any]) -> None:
    with pytest.raises(InputError) as error:
        Recipe.of({**tiny, "privacy": section})
    assert said in str(error.value)


def test_a_recipe_keeps_it(tiny: dict[str, Any]) -> None:
    recipe = Recipe.of({**tiny, **yaml.safe_load("privacy: {clip: 1, noise: 0.5, delta: 1e-6}")})
    assert recipe.plan().privacy == Privacy(clip=1.0, noise=0.5, delta=1e-6)
    assert Recipe.of(yaml.safe_load(recipe.dump())) == recipe


# The accountant


def exact(sigma: float, times: int, delta: float) -> float:
    """ε of so many Gaussian mechanisms, which are one of noise σ/√times: Balle and Wang 2018, Theorem 8."""
    mu = math.sqrt(times) / sigma

    def spent(eps: float) -> float:
        return stats.norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * stats.norm.cdf(-mu / 2 - eps / mu) - delta

    return float(optimize.brentq(spent, 0, 500))


@pytest.mark.parametrize(("sigma", "times"), [(1.0, 1), (1.0, 20), (4.0, 100), (30.0, 20), (0.7, 3), (60.0, 1)])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_epsilon_is_a_bound_and_near_the_exact_one(sigma: float, times: int, delta: float) -> None:
    use, least = Uses(sigma, 1.0, times), exact(sigma, times, delta)
    assert epsilon([use], delta) == pytest.approx(least, rel=1e-6)
    assert least <= rdp([use], delta) <= 1.2 * least + 0.01


@pytest.mark.parametrize("use", [Uses(1.5, 0.1, 1000), Uses(0.8, 0.02, 500), Uses(3.0, 0.5, 40)])
def test_rdp_is_opacus_own(use: Uses) -> None:
    from opacus.accountants import RDPAccountant

    theirs = RDPAccountant()
    theirs.history = [use]
    assert rdp([use], 1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=0.01)
    assert 0.8 * rdp([use], 1e-5) < epsilon([use], 1e-5) < rdp([use], 1e-5)


@pytest.mark.parametrize(
    ("rate", "delta", "noises"),
    [
        (1.0, 0.5, (1e-3, 1.0, 1e9)),
        (1.0, 1e-100, (1e-3, 1.0, 1e9)),
        (0.5, 1e-5, (1e-3, 1.0, 1e9)),
        (0.01, 1e-100, (1.0,)),
    ],
)
def test_the_whole_range_is_accounted_for(rate: float, delta: float, noises: tuple[float, ...]) -> None:
    for noise in noises:
        for times in (1, 10**6):
            assert 0 <= epsilon([Uses(noise, rate, times)], delta) < math.inf


def test_uses_add_up_whatever_their_order() -> None:
    parts = [Uses(2.0, 1.0, 3), Uses(3.0, 1.0, 2), Uses(2.0, 1.0, 1)]
    alike = math.sqrt(1 / (4 / 4 + 2 / 9))  # the one Gaussian that they are together
    assert (
        epsilon(parts, 1e-5) == epsilon(parts[::-1], 1e-5) == pytest.approx(epsilon([Uses(alike, 1.0, 1)], 1e-5))
    )
    assert epsilon([], 1e-5) == epsilon([Uses(1.0, 1.0, 0)], 1e-5) == 0


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.1), (2.0, 0.5)])
def test_sampling_is_accounted_for_as_a_bound(sigma: float, rate: float) -> None:
    """One use: δ(ε) is an integral of the two densities' difference, and our ε leaves less than δ."""
    ours = epsilon([Uses(sigma, rate, 1)], 1e-5)
    assert ours < epsilon([Uses(sigma, 1.0, 1)], 1e-5)
    out, shifted = stats.norm(0, sigma).pdf, stats.norm(1, sigma).pdf

    def mixed(x: np.ndarray) -> np.ndarray:
        return np.asarray((1 - rate) * out(x) + rate * shifted(x))

    for p, q in ((mixed, out), (out, mixed)):
        x = np.linspace(-60, 60, 2_000_001)
        over = integrate.trapezoid(np.maximum(0.0, p(x) - math.exp(ours) * q(x)), x)
        assert over <= 1e-5


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
    assert found.epsilon.messages == pytest.approx(exact(2.0, 3, 1e-4), rel=1e-6)
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
