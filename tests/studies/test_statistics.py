"""Statistics against SciPy, and where there is little to go by."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from mutua.studies.statistics import Difference, Spread, t_quantile


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 8, 9, 29, 30, 99, 1000])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_students_quantile(degrees: int, level: float) -> None:
    assert t_quantile(degrees, level) == pytest.approx(scipy_stats.t.ppf((1 + level) / 2, degrees), rel=1e-9)


@pytest.mark.parametrize("n", [2, 3, 5, 17])
def test_paired_differences(n: int) -> None:
    rng = np.random.default_rng(n)
    a, b = rng.normal(0.8, 0.1, n), rng.normal(0.7, 0.2, n)
    found, test = Difference.of_pairs(list(a), list(b)), scipy_stats.ttest_rel(a, b)
    interval = test.confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert (found.mean, found.sd, found.n) == (
        pytest.approx((a - b).mean()),
        pytest.approx((a - b).std(ddof=1)),
        n,
    )
    # The interval leaves out 0 exactly where the two-sided test finds a difference.
    assert (found.verdict == "cannot tell") == (test.pvalue >= 0.05)


def test_mean_and_deviation() -> None:
    values = [0.1, 0.5, 0.9]
    assert Spread.of(values) == Spread(pytest.approx(np.mean(values)), pytest.approx(np.std(values, ddof=1)), 3)
    assert Spread.of([0.3]) == Spread(0.3, None, 1)
    assert Spread.of([None, 0.3, 0.4]) == Spread(None, None, 2)  # a mean of fewer seeds would mislead
    assert Spread.of([]) == Spread.of([None]) == Spread(None, None, 0)


def test_what_one_more_value_would_be() -> None:
    values, rng = [0.1, 0.5, 0.9, 0.4], np.random.default_rng(0)
    wide = np.std(values, ddof=1) * np.sqrt(1 + 1 / 4)
    assert Spread.of(values).next == pytest.approx(scipy_stats.t.interval(0.95, 3, np.mean(values), wide))
    assert Spread.of([0.3]).next is None
    drawn = rng.normal(size=(4000, 6))  # by simulation: of 6 draws the first 5 tell where the last is
    ends = np.array([Spread.of(row[:5].tolist()).next for row in drawn])
    assert np.mean((ends[:, 0] <= drawn[:, 5]) & (drawn[:, 5] <= ends[:, 1])) == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize(
    ("a", "b", "verdict", "n"),
    [
        ([3, 4, 5], [1, 2, 3.1], "holds", 3),
        ([1, 2, 3.1], [3, 4, 5], "does not hold", 3),
        ([1, 2, 3], [3, 2, 1], "cannot tell", 3),
        ([2], [1], "cannot tell", 1),  # one seed says nothing about seeds
        ([2, 3], [1, 2], "holds", 2),  # the same difference every time
        ([1, 1, 1], [1, 1, 1], "cannot tell", 3),
        ([1, 2], [2, 3], "does not hold", 2),
        ([], [], "cannot tell", 0),
        ([1, None, 5, 6], [None, 2, 3, 4], "holds", 2),
        ([None], [None], "cannot tell", 0),
    ],
)
def test_verdicts(a: list[float | None], b: list[float | None], verdict: str, n: int) -> None:
    found = Difference.of_pairs(a, b)
    assert (found.verdict, found.n) == (verdict, n)


def test_pairs_are_pairs() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Difference.of_pairs([1, 2], [1])


def test_the_interval_of_two_shares_covers_as_often_as_it_says() -> None:
    """Exactly: summed over all outcomes of two binomials."""
    binom = pytest.importorskip("scipy.stats").binom
    for n, p, q in ((10, 0.5, 0.5), (10, 0.9, 0.7), (20, 0.95, 0.95), (50, 0.8, 0.6)):
        covered = 0.0
        for i in range(n + 1):
            for j in range(n + 1):
                found = Difference.of_shares(i / n, j / n, n)
                assert found.low is not None and found.high is not None
                if found.low <= p - q <= found.high:
                    covered += binom.pmf(i, n, p) * binom.pmf(j, n, q)
        assert 0.93 < covered < 0.999
    assert Difference.of_shares(1.0, 1.0, 5).verdict == "cannot tell"  # no width of zero where all is right
    assert Difference.of_shares(0.9, 0.1, 100).verdict == "holds"
    assert Difference.of_shares(0.1, 0.9, 100).verdict == "does not hold"


def test_an_interval_is_cut_to_what_is_possible() -> None:
    wide = Difference.of_pairs([0.9, 0.5], [0.1, 0.4])
    assert wide.low is not None and wide.low < -1 and wide.high is not None and wide.high > 1
    cut = wide.within(1)
    assert (cut.mean, cut.low, cut.high) == (wide.mean, -1, 1)
    narrow = Difference.of_pairs([0.5, 0.52, 0.54], [0.4, 0.41, 0.45])
    assert narrow.within(1) == narrow and narrow.verdict == "holds"
