"""The accountants against closed forms and other libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from conftest import exact_epsilon
from mutua.federation.privacy_accounting import Uses, epsilon, rdp


@pytest.mark.parametrize(("sigma", "times"), [(1.0, 1), (1.0, 20), (4.0, 100), (30.0, 20), (0.7, 3), (60.0, 1)])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_epsilon_is_a_bound_and_near_the_exact_one(sigma: float, times: int, delta: float) -> None:
    use, least = Uses(sigma, 1.0, times), exact_epsilon(sigma, times, delta)
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
