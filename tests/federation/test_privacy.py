"""Client-level privacy: what leaves, by hand, and what is refused."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from scipy import stats

import mutua
from mutua import InputError, Message, Plan, Privacy, Recipe
from mutua.federation.message import weights
from mutua.learning.merging import mean
from mutua.methods import FML, FedAvg, of
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
