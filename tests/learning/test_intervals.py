"""Intervals: against SciPy, by hand, and by how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from mutua.data.samples import Samples
from mutua.learning.intervals import (
    by_bootstrap,
    by_paired_bootstrap,
    of_auroc,
    of_mean_error,
    of_paired_shares,
    of_share,
)
from mutua.learning.task_behaviour import Task
from mutua.learning.tasks import Regression
from mutua.support.quantiles import beta_below, beta_quantile, t_quantile


@pytest.mark.parametrize("n", [1, 2, 16, 303, 20_000])
def test_shares_have_clopper_and_pearsons_interval(n: int) -> None:
    for right in {0, 1, n // 3, n // 2, n - 1, n}:
        low, high = of_share(right / n, n) or (None, None)
        wanted = stats.binomtest(right, n).proportion_ci(0.95, method="exact")
        assert low == pytest.approx(wanted.low, abs=1e-9)
        assert high == pytest.approx(wanted.high, abs=1e-9)


def test_a_hospital_with_sixteen_patients() -> None:
    low, high = of_share(12 / 16, 16) or (0, 0)
    assert (round(100 * low), round(100 * high)) == (48, 93)


def test_a_mean_of_several_shares_has_no_exact_interval() -> None:
    assert of_share(0.71, 16) is None
    assert of_share(None, 16) is None
    assert of_share(0.5, 0) is None


def test_shares_hold_the_truth_at_least_as_often_as_they_say() -> None:
    n = 16
    ends = [of_share(k / n, n) or (0, 0) for k in range(n + 1)]
    for p in np.linspace(0.01, 0.99, 99):  # exactly, over all that can happen
        held = sum(stats.binom.pmf(k, n, p) for k, (low, high) in enumerate(ends) if low <= p <= high)
        assert held >= 0.95


def test_quantiles_equal_scipys() -> None:
    for a, b in ((1, 1), (1, 40), (13, 4), (500, 3), (7_000, 9_000)):
        for p in (1e-3, 0.025, 0.5, 0.975):
            assert beta_quantile(p, a, b) == pytest.approx(stats.beta.ppf(p, a, b), rel=1e-9)
    assert beta_below(0.3, 2.5, 4.5) == pytest.approx(stats.beta.cdf(0.3, 2.5, 4.5))
    assert t_quantile(15) == pytest.approx(stats.t.ppf(0.975, 15))


def test_the_variance_of_an_auroc_is_delongs() -> None:
    scores, positive = np.array([0.1, 0.4, 0.35, 0.8, 0.7, 0.35]), np.array([0, 0, 1, 1, 1, 0], bool)
    ups, downs = scores[positive], scores[~positive]
    wins = (ups[:, None] > downs) + 0.5 * (ups[:, None] == downs)  # by hand: every pair
    area = wins.mean()
    deviation = np.sqrt(wins.mean(1).var(ddof=1) / 3 + wins.mean(0).var(ddof=1) / 3)
    middle, half = np.log(area / (1 - area)), 1.959963984540054 * deviation / (area * (1 - area))
    wanted = [1 / (1 + np.exp(-(middle + side * half))) for side in (-1, 1)]
    assert of_auroc(scores, positive) == pytest.approx(tuple(wanted))


def test_an_auroc_without_a_mistake_is_as_sure_as_its_rarer_class() -> None:
    scores, positive = np.arange(9.0), np.arange(9) >= 6
    assert of_auroc(scores, positive) == of_share(1.0, 3)
    assert of_auroc(-scores, positive) == of_share(0.0, 3)
    assert of_auroc(scores, np.ones(9, bool)) is None


@pytest.mark.parametrize(("positives", "negatives", "apart"), [(8, 8, 1.0), (6, 30, 1.5)])
def test_aurocs_hold_the_truth_about_as_often_as_they_say(positives: int, negatives: int, apart: float) -> None:
    rng, held, runs = np.random.default_rng(0), 0, 400
    truth, which = stats.norm.cdf(apart / np.sqrt(2)), np.arange(positives + negatives) < positives
    for _ in range(runs):
        low, high = of_auroc(rng.normal(which * apart, 1), which) or (1, 0)
        held += low <= truth <= high
    assert held / runs > 0.91


@pytest.mark.parametrize("n", [5, 16])
@pytest.mark.parametrize(("power", "truth"), [(1, np.sqrt(2 / np.pi)), (2, 1.0)])
def test_errors_hold_the_truth_where_they_are_normal(n: int, power: int, truth: float) -> None:
    rng, runs = np.random.default_rng(1), 400
    ends = [of_mean_error(rng.normal(size=n), power) or (1, 0) for _ in range(runs)]
    assert sum(low <= truth <= high for low, high in ends) / runs > 0.93
    assert of_mean_error(np.array([1.0]), power) is None
    assert of_mean_error(np.zeros(4), power) == (0.0, 0.0)


def test_an_interval_of_errors_is_in_their_unit() -> None:
    errors = np.random.default_rng(2).normal(size=20)
    small, large = (of_mean_error(scale * errors, 2) for scale in (1, 1000))
    assert small is not None
    assert large == pytest.approx(tuple(1000 * end for end in small))


def test_the_bootstrap_is_seeded_and_near_the_exact_interval() -> None:
    y = torch.arange(200) % 2
    p = torch.where(torch.rand(200, generator=torch.Generator().manual_seed(0)) < 0.8, y, 1 - y).double()

    def accuracy(said: torch.Tensor, true: torch.Tensor) -> float:
        return float((said == true).double().mean())

    found = by_bootstrap(accuracy, p, y)
    assert found is not None
    assert found == by_bootstrap(accuracy, p, y)
    assert found == pytest.approx(of_share(accuracy(p, y), 200), abs=0.03)
    assert by_bootstrap(lambda *_: None, p, y) is None


def test_tasks_measure_the_interval_of_what_they_show() -> None:
    y, p = torch.tensor([0, 1, 1, 0, 1]), torch.tensor([0.2, 0.4, 0.9, 0.5, 0.7])
    two = Task(("a", "b")).intervals(torch.stack([1 - p, p], 1), y)
    assert tuple(two.values()) == of_auroc(p.double().numpy(), y.numpy() == 1)
    assert Task(("a", "b", "c")).intervals(torch.eye(3), torch.arange(3)) == {}
    said, true = torch.tensor([[1.0], [3.0], [2.0]]), torch.tensor([[2.0], [3.0], [0.0]])
    values = Regression().of(Samples.of(np.zeros((3, 1)), true.numpy(), kind="regression"))
    assert tuple(values.intervals(said, true).values()) == of_mean_error((said - true).numpy(), 2)


def test_paired_shares_hold_the_truth_nearly_as_often_as_they_say() -> None:
    """Exactly, over all that can happen with 16 samples."""
    n, held = 16, []
    for ups, downs in ((0.1, 0.1), (0.3, 0.1), (0.05, 0.2), (0.4, 0.4)):
        chances = stats.multinomial(n, [ups, downs, 1 - ups - downs])
        found = 0.0
        for first in range(n + 1):
            for second in range(n + 1 - first):
                low, high = of_paired_shares(first, second, n) or (0, 0)
                if low <= ups - downs <= high:
                    found += chances.pmf([first, second, n - first - second])
        held.append(found)
    assert min(held) > 0.94
    assert of_paired_shares(0, 0, 0) is None


def test_a_paired_bootstrap_of_a_mean_is_the_paired_t_interval() -> None:
    rng = np.random.default_rng(1)
    a, b = (torch.from_numpy(rng.normal(size=40)) for _ in "ab")
    low, high = by_paired_bootstrap(lambda said, y: float(said.mean()), a, b, torch.zeros(40)) or (0, 0)
    wanted = stats.ttest_rel(a.numpy(), b.numpy()).confidence_interval(0.95)
    width = wanted.high - wanted.low
    assert (low + high) / 2 == pytest.approx((wanted.low + wanted.high) / 2)
    assert high - low == pytest.approx(width, rel=0.08)
    assert by_paired_bootstrap(lambda said, y: None, a, b, torch.zeros(40)) is None
