"""Combiners against NumPy, and against attacks that the mean does not withstand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

import mutua
from mutua import InputError, Message, Recipe
from mutua.learning.merging import Clip, Krum, Mean, Median, TrimmedMean, mean, overlong_updates, update_norms
from mutua.methods import FML, FedAvg, weights
from mutua.methods.base import method_of, section_of
from mutua.reports.console import method_options
from mutua.rounds.events import Rejected
from mutua.support.tensor_files import Tensors

COMBINERS = [Mean(), TrimmedMean(share=0.25), Median(), Clip(), Clip(norm=2.0), Krum(share=0.25), Krum(keep=3)]
ROBUST = [TrimmedMean(share=0.25), Median(), Clip(), Krum(share=0.25), Krum(share=0.25, keep=4)]


def name(combiner: Any) -> str:
    return "-".join(map(str, combiner.model_dump().values()))


def states(values: np.ndarray) -> list[Tensors]:
    """A state a row: a matrix, a bias, a running mean and a counter."""
    return [
        {
            "w": torch.tensor(row[:4]).reshape(2, 2),
            "b": torch.tensor(row[4:5]),
            "norm.running_mean": torch.tensor(row[5:]),
            "norm.num_batches_tracked": torch.tensor(10 + i),
        }
        for i, row in enumerate(values)
    ]


def flat(state: Tensors) -> np.ndarray:
    parts = [array.reshape(-1) for array in state.values() if array.is_floating_point()]
    return torch.cat(parts).double().numpy()


def drawn(clients: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(clients, 8)), rng.normal(size=8), rng.integers(1, 50, clients).astype(float)


# By hand


@pytest.mark.parametrize(
    ("clients", "share", "cut"), [(5, 0.2, 1), (10, 0.2, 2), (7, 0.3, 3), (3, 0.1, 1), (6, 0.0, 0)]
)
def test_trimmed_mean_by_hand(clients: int, share: float, cut: int) -> None:
    values, before, n_k = drawn(clients)
    combine = TrimmedMean(share=share)
    rest = np.sort(values, axis=0)[cut : clients - cut]
    [start] = states(before[None])
    assert flat(combine(states(values), [1.0] * clients, start)) == pytest.approx(rest.mean(0), abs=1e-12)
    order = np.argsort(values, axis=0)[cut : clients - cut]
    by_hand = np.average(np.take_along_axis(values, order, 0), axis=0, weights=n_k[order])
    assert flat(combine(states(values), n_k.tolist(), start)) == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize("clients", [1, 2, 3, 8, 9])
def test_median_is_numpys_whatever_the_weights(clients: int) -> None:
    values, before, n_k = drawn(clients)
    [start] = states(before[None])
    for given_weights in (n_k.tolist(), [1.0] * clients):
        assert flat(Median()(states(values), given_weights, start)) == pytest.approx(
            np.median(values, 0), abs=1e-12
        )


@pytest.mark.parametrize("most", [0.5, 3.5, 1e9, None])
def test_clipping_by_hand(most: float | None) -> None:
    values, before, n_k = drawn(9)
    updates = values - before
    norms = np.linalg.norm(updates, axis=1)
    limit = np.median(norms) if most is None else most
    assert most in (0.5, 1e9) or 0 < (norms > limit).sum() < 9
    clipped = updates * np.minimum(1, limit / norms)[:, None]
    [start] = states(before[None])
    by_hand = before + np.average(clipped, axis=0, weights=n_k)
    assert flat(Clip(norm=most)(states(values), n_k.tolist(), start)) == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize(
    ("clients", "share", "keep"), [(7, 0.2, 1), (9, 0.3, 1), (9, 0.3, 4), (10, 0.1, 10), (5, 0.4, 2)]
)
def test_krum_by_hand(clients: int, share: float, keep: int) -> None:
    values, before, n_k = drawn(clients, seed=clients)
    bad = int(np.ceil(round(share * clients, 9)))
    scores = []
    for i in range(clients):
        distances = sorted(((values[i] - values[j]) ** 2).sum() for j in range(clients) if j != i)
        scores.append(sum(distances[: max(1, clients - bad - 2)]))
    chosen = np.argsort(scores)[:keep]
    by_hand = np.average(values[chosen], axis=0, weights=n_k[chosen])
    [start] = states(before[None])
    assert flat(Krum(share=share, keep=keep)(states(values), n_k.tolist(), start)) == pytest.approx(
        by_hand, abs=1e-9
    )


# What holds for all


@pytest.mark.parametrize("combiner", COMBINERS, ids=name)
@given(clients=st.integers(1, 7), value=st.floats(-50, 50))
def test_clients_that_agree_are_believed(combiner: Any, clients: int, value: float) -> None:
    values = np.full((clients, 8), value)
    [start] = states(values[:1] + 0.01)
    assert flat(combiner(states(values), [1.0] * clients, start)) == pytest.approx(values[0], abs=1e-9)


@pytest.mark.parametrize("combiner", COMBINERS, ids=name)
def test_types_names_and_counters_are_kept_and_nothing_given_is_changed(combiner: Any) -> None:
    values, before, n_k = drawn(8)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        given_states = [
            {n: a.to(dtype) if a.is_floating_point() else a for n, a in state.items()} for state in states(values)
        ]
        [start] = states(before[None])
        start = {n: a.to(dtype) if a.is_floating_point() else a for n, a in start.items()}
        copies = [{n: a.clone() for n, a in state.items()} for state in (*given_states, start)]
        merged = combiner(given_states, n_k.tolist(), start)
        assert list(merged) == list(start)
        assert {n: (a.dtype, a.shape) for n, a in merged.items()} == {
            n: (a.dtype, a.shape) for n, a in start.items()
        }
        for array in merged.values():
            array.zero_()
        for state, copy in zip((*given_states, start), copies, strict=True):
            assert all(torch.equal(state[n], copy[n]) for n in copy)


@pytest.mark.parametrize("combiner", COMBINERS, ids=name)
def test_whole_numbers_are_the_servers_own_whatever_clients_say(combiner: Any) -> None:
    merged = combiner([{"n": torch.tensor(4)}, {"n": torch.tensor(9)}], [1.0, 1.0], {"n": torch.tensor(7)})
    assert merged["n"].item() == 7


def test_whose_numbers_count_when_only_the_weightless_are_left() -> None:
    values = [{"w": torch.tensor([v])} for v in (1.0, 2.0, 4.0, 9.0)]
    merged = TrimmedMean(share=0.25)(values, [1.0, 0.0, 0.0, 1.0], {"w": torch.zeros(1)})
    assert merged["w"].item() == 3.0


# Attacks


@pytest.mark.parametrize("combiner", ROBUST, ids=name)
@pytest.mark.parametrize("size", [1e2, 1e6, 1e30, 3e38])
def test_two_liars_among_eight_move_the_mean_and_nothing_else(combiner: Any, size: float) -> None:
    rng = np.random.default_rng(1)
    honest, lies = 1 + 0.1 * rng.normal(size=(6, 8)), np.full((2, 8), -size)
    given_states = [{"w": torch.tensor(v, dtype=torch.float32)} for v in (*lies, *honest)]
    before = {"w": torch.zeros(8)}
    merged = combiner(given_states, [1.0] * 8, before)["w"].double().numpy()
    away = np.abs(merged - honest.mean(0)).max()
    # A clipped lie still counts: with a quarter of liars half of the way is lost, and no more whatever they send.
    assert away < (0.6 if isinstance(combiner, Clip) else 0.25)
    assert np.abs(mean(given_states, [1.0] * 8)["w"].double().numpy() - honest.mean(0)).max() > 20


def test_liars_beyond_what_can_be_squared_are_nobodys_neighbours() -> None:
    given_states = [{"w": torch.tensor([v, v], dtype=torch.float64)} for v in (-1e200, -1e200, 1.0, 1.1, 1.2, 1.3)]
    merged = Krum(share=0.3)(given_states, [1.0] * 6, {"w": torch.zeros(2, dtype=torch.float64)})
    assert 1 <= merged["w"][0] <= 1.3


@pytest.mark.parametrize("combiner", [TrimmedMean(share=0.25), Median()], ids=name)
def test_no_number_leaves_the_range_of_the_honest_even_with_invented_weights(combiner: Any) -> None:
    rng = np.random.default_rng(2)
    honest = rng.normal(size=(6, 50))
    lies = rng.choice([-1e9, 1e9, 0.0], size=(2, 50))
    given_states = [{"w": torch.tensor(v)} for v in (*lies, *honest)]
    merged = combiner(given_states, [1e12] * 2 + [1.0] * 6, {"w": torch.zeros(50, dtype=torch.float64)})[
        "w"
    ].numpy()
    assert (honest.min(0) <= merged).all() and (merged <= honest.max(0)).all()


def accuracy(run: Any) -> float:
    return run.history.last("global", "global", "test", "accuracy")


def reversed_and_longer(
    times: float, liars: str, run: Callable[[], Any]
) -> Callable[[int, str, Message], Message]:
    """What a network could do: send the global minus `times` the client's own update."""

    def tamper(round: int, client: str, message: Message) -> Message:
        if client not in liars:
            return message
        shared = run().server.state["global"]
        meme = message.arrays("meme")
        turned = {n: a - times * (meme[n] - a) if a.is_floating_point() else a for n, a in shared.items()}
        return Message(**{**message, "meme": weights(turned)})

    return tamper


def test_a_federation_learns_in_spite_of_reversed_updates(federate: Any, simulate: Any) -> None:
    federation = federate([24] * 10, common=200)

    def run(combine: Any, liars: str = "") -> float:
        made: list[Any] = []
        method, tamper = (
            FedAvg(weights="uniform", combine=combine),
            reversed_and_longer(20, liars, lambda: made[0]),
        )
        made.append(simulate(method, federation, tamper=tamper, go=False, rounds=6, evaluate_every=6))
        made[0].run()
        made[0].engine.close()
        return accuracy(made[0])

    honest = run(Mean())
    assert honest > 0.85
    assert run(Mean(), "ab") < 0.5
    assert {name(combiner): run(combiner, "ab") > honest - 0.05 for combiner in ROBUST} == dict.fromkeys(
        map(name, ROBUST), True
    )


# An update far longer than the others'


def test_norms_are_of_all_floating_numbers_as_one_vector() -> None:
    values, before, _ = drawn(4)
    [start] = states(before[None])
    assert update_norms(states(values), start) == pytest.approx(np.linalg.norm(values - before, axis=1))


def test_which_updates_are_too_long() -> None:
    def found(*norms: float, ratio: float = 100) -> list[int]:
        return list(overlong_updates([{"w": torch.tensor([n, 0.0])} for n in norms], {"w": torch.zeros(2)}, ratio))

    assert found(1, 2, 3, 1000, 200) == [3]  # the median is 3
    assert found(1, 1, 100) == []
    assert found(1, 1, 101, 101) == [2, 3]  # of two in the middle the lower counts
    assert found(5) == found(1, 101) == []  # which of two is wrong nobody knows
    assert found(0, 0, 1) == []  # nothing to compare with
    assert found(1, 2, 2, 7, ratio=3) == [3]
    assert found(1, 1, 3e38) == [2]


def test_an_update_a_thousand_times_as_long_is_refused_by_name_and_the_round_goes_on(
    federate: Any, simulate: Any, identical: Any
) -> None:
    """Without the option it is merged; with it the round is that of the others."""
    federation = federate([8, 8, 8, 8])

    def run(limit: float | None, liars: str, **settings: Any) -> Any:
        made: list[Any] = []
        tamper = reversed_and_longer(1000, liars, lambda: made[0])
        made.append(simulate(FML(max_norm_ratio=limit), federation, tamper=tamper, go=False, rounds=1, **settings))
        made[0].run()
        made[0].engine.close()
        return made[0]

    guarded = run(100, "b")
    [refused] = [event for event in guarded.events if isinstance(event, Rejected)]
    assert (refused.round, refused.client) == (1, "b")
    assert "is over 100 times the round's median" in refused.reason
    others = [guarded.engine.replies[1, client].message.arrays("meme") for client in "acd"]
    assert identical(guarded.globals[-1], mean(others, [1.0] * 3))
    assert not [event for event in run(None, "b").events if isinstance(event, Rejected)]
    with pytest.raises(
        mutua.RunError, match=r"round 1: 3 of 4 replies could be merged.*refused: b: its update's norm"
    ):
        run(100, "b", min_replies=4)


# From outside


def test_a_combiner_is_chosen_by_one_key() -> None:
    assert FedAvg().combine == Mean()
    assert (
        FML(combine="median").combine
        == method_of({"name": "fml", "combine": {"name": "median"}}).combine
        == Median()
    )
    method = method_of(
        {"name": "fedavg", "combine": {"name": "trimmed-mean", "share": 0.3}, "max_norm_ratio": 100}
    )
    assert (method.combine, method.max_norm_ratio) == (TrimmedMean(share=0.3), 100)
    assert method_of(section_of(method)) == method


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"combine": "medium"}, "method.combine.name: 'medium'; did you mean 'median'?"),
        ({"combine": {"name": "trimmed-mean", "share": 0.5}}, "method.combine.share: 0.5; it must be below 0.5"),
        ({"combine": {"name": "median", "share": 0.1}}, "method.combine.share: unknown key"),
        ({"combine": {"name": "clip", "norm": 0}}, "method.combine.norm: 0; it must be above 0"),
        ({"combine": {"name": "krum", "keep": 0}}, "method.combine.keep: 0; it must be at least 1"),
        ({"max_norm_ratio": 1}, "method.max_norm_ratio: 1; it must be above 1"),
    ],
)
def test_what_no_combiner_is(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        method_of({"name": "fml", **options})
    assert said in str(error.value)
    with pytest.raises(InputError, match="unknown key"):
        method_of({"name": "independent", **options})  # which merges nothing


def test_combiners_compared_from_the_command_line(command: Any, tmp_path: Any) -> None:
    listed = ["fml", "fml:combine=median", "fml:combine={name: krum, share: 0.3}:max_norm_ratio=100"]
    done = command("compare", "tiny.yaml", "--methods", ",".join(listed), "--seeds", "0", "--out", "out", "--json")
    assert done.code == 0, done.err
    kept = [Recipe.load(path).method.combine for path in sorted((tmp_path / "out").glob("*/recipe.yaml"))]
    assert sorted(kept, key=name) == [Krum(share=0.3), Mean(), Median()]
    [guarded] = [yaml.safe_load(p.read_text()) for p in (tmp_path / "out").glob("*krum*/recipe.yaml")]
    assert guarded["method"]["max_norm_ratio"] == 100


def test_a_report_names_the_combiner_and_its_options() -> None:
    assert method_options(FML(combine="median")).startswith("combine median, temperature")
    assert method_options(FML(combine=TrimmedMean(share=0.3), max_norm_ratio=100)).startswith(
        "combine trimmed-mean (share 0.3), max_norm_ratio 100.0, "
    )


def test_every_pair_of_combiners_differs_somewhere() -> None:
    values, before, n_k = drawn(9)
    [start] = states(before[None])
    merged = [flat(combiner(states(values), n_k.tolist(), start)) for combiner in COMBINERS]
    assert all(not np.allclose(a, b) for a, b in combinations(merged, 2))


def test_krum_of_clients_without_weight_is_their_mean() -> None:
    values, before, _ = drawn(4, seed=0)
    [start] = states(before[None])
    none, alike = (Krum(share=0.25, keep=2)(states(values), [w] * 4, start) for w in (0.0, 1.0))
    assert flat(none) == pytest.approx(flat(alike), abs=1e-12)
