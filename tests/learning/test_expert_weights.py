"""Weights of experts against a second implementation in plain Python, and the bound on what they can lose."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from scipy.special import gammaln
from scipy.stats import dirichlet

from mutua.learning.expert_weights import (
    FINENESS,
    SMOOTHING,
    fitted_shift,
    label_prior,
    regret_bounds,
    smoothed,
    weigh,
)

PRIORS = [(0.5, 0.25, 0.25), (0.5, 0.5), (1 / 3, 1 / 3, 1 / 3), (0.4, 0.3, 0.2, 0.1)]


def drawn(seed: int, n: int, M: int) -> np.ndarray:
    """Likelihoods of which one expert is mostly better."""
    rng = np.random.default_rng(seed)
    return np.asarray(smoothed(rng.beta(rng.uniform(0.3, 3, M), 1, size=(n, M)), 10))


def second(q: np.ndarray, mu: Sequence[float]) -> list[float]:
    """The same in plain Python, mass by mass; the grid by scipy's density of the Dirichlet."""
    M, K = len(mu), FINENESS[len(mu)]
    grid: list[list[float]] = []

    def fill(head: list[int]) -> None:
        if len(head) == M - 1:
            whole = [*head, K - sum(head)]
            grid.append([(a + 1 / M) / (K + 1) for a in whole])
            return
        for a in range(K - sum(head) + 1):
            fill([*head, a])

    fill([])
    masses = [float(dirichlet.pdf(np.array(u) / sum(u), [M * m for m in mu])) for u in grid]
    total = math.fsum(masses)
    prior = [(list(np.eye(M)[m]), mu[m] / 2) for m in range(M)]
    prior += [(u, mass / total / 2) for u, mass in zip(grid, masses, strict=True)]
    logs = [
        math.log(mass) + math.fsum(math.log(math.fsum(a * b for a, b in zip(u, row, strict=True))) for row in q)
        for u, mass in prior
    ]
    weights = [math.exp(log - max(logs)) for log in logs]
    evidence = math.fsum(weights)
    return [math.fsum(w * u[m] for w, (u, _) in zip(weights, prior, strict=True)) / evidence for m in range(M)]


@pytest.mark.parametrize("mu", PRIORS, ids=len)
@pytest.mark.parametrize("n", [1, 7, 40])
def test_the_weights_are_those_of_a_second_implementation(mu: tuple[float, ...], n: int) -> None:
    q = drawn(n, n, len(mu))
    assert weigh(q, mu) == pytest.approx(second(q, mu), abs=1e-12)


def test_thousands_of_samples_are_weighed_in_parts_to_the_same_weights() -> None:
    q, mu = drawn(5, 9000, 3), PRIORS[0]
    assert weigh(q, mu).sum() == pytest.approx(1, abs=1e-12)
    assert weigh(q[::-1], mu) == pytest.approx(weigh(q, mu), abs=1e-12)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.sampled_from(PRIORS))
def test_the_order_of_the_samples_does_not_matter(seed: int, n: int, mu: tuple[float, ...]) -> None:
    q = drawn(seed, n, len(mu))
    assert weigh(q[np.random.default_rng(seed).permutation(n)], mu) == pytest.approx(weigh(q, mu), abs=1e-12)


@settings(max_examples=300)
@given(st.integers(0, 2**32 - 1), st.integers(1, 25), st.sampled_from(PRIORS[:2]))
def test_one_after_the_other_no_expert_is_ahead_by_more_than_its_bound(
    seed: int, n: int, mu: tuple[float, ...]
) -> None:
    """Σ −ln(w_{<i}·q_i) ≤ Σ −ln q_mi + ln(2/μ_m) for every m: each sample is predicted by those before it.

    Without samples the mean of the prior on its grid is not quite μ; so much is allowed for.
    """
    q = drawn(seed, n, len(mu))
    if seed % 3 == 0:  # the worst there is: who was right until now is wrong from now on
        q = np.where((np.arange(n)[:, None] // 5 + np.arange(len(mu))) % len(mu) == 0, 0.99, SMOOTHING / 10)
    loss = math.fsum(-math.log(float(weigh(q[:i], mu) @ q[i])) for i in range(n))
    for m, bound in enumerate(regret_bounds(mu)):
        assert loss <= -np.log(q[:, m]).sum() + bound + 0.01


def test_the_bounds_in_nats() -> None:
    assert regret_bounds((0.5, 0.25, 0.25)) == pytest.approx([math.log(4), math.log(8), math.log(8)])
    assert regret_bounds((1.0,)) == [0.0]


def test_without_samples_the_weights_are_the_priors_and_one_expert_has_all() -> None:
    for mu in PRIORS:
        assert weigh(np.empty((0, len(mu))), mu).tolist() == list(mu)
    assert weigh(drawn(1, 9, 1), (1.0,)).tolist() == [1.0]


def test_an_expert_that_is_always_right_gets_nearly_all() -> None:
    q = smoothed(np.tile([0.1, 0.99, 0.1], (200, 1)), 10)
    assert weigh(q, PRIORS[0])[1] > 0.98


# π


def by_hand(counts: np.ndarray) -> np.ndarray:
    n, C = counts.sum(), len(counts)

    def evidence(A: float) -> float:
        own = gammaln(counts + A / C) - gammaln(A / C)
        return float(gammaln(A) - gammaln(A + n) + own.sum())

    A = max((10 ** (-1 + 5 * i / 59) for i in range(60)), key=evidence)
    return np.asarray((counts + A / C) / (n + A))


@pytest.mark.parametrize("counts", [[80, 80, 0, 0, 0], [30, 25, 40, 1, 0], [0, 160], [3] * 10])
def test_the_label_prior_by_hand(counts: list[int]) -> None:
    found = label_prior(np.array(counts))
    assert found == pytest.approx(by_hand(np.array(counts)), abs=1e-12)
    assert found.sum() == pytest.approx(1) and (found > 0).all()


def test_counts_that_are_all_alike_give_a_prior_that_shifts_nothing() -> None:
    for C in (2, 3, 7, 10):
        assert np.log(C * label_prior(np.full(C, 16))) == pytest.approx(np.zeros(C), abs=1e-12)


def test_a_single_sample_says_next_to_nothing() -> None:
    assert label_prior(np.array([1, 0, 0])) == pytest.approx(np.full(3, 1 / 3), abs=1e-4)


def test_the_concentration_is_near_the_likeliest() -> None:
    counts = np.array([50, 30, 15, 4, 1])

    def negative(log_a: float) -> float:
        A = math.exp(log_a)
        own = gammaln(counts + A / 5) - gammaln(A / 5)
        return -float(gammaln(A) - gammaln(A + 100) + own.sum())

    A = math.exp(optimize.minimize_scalar(negative, bounds=(-3, 9), method="bounded").x)
    assert label_prior(counts) == pytest.approx((counts + A / 5) / (100 + A), abs=2e-3)


# The shift that also fits how a model sees the classes


def told(seed: int, n: int = 120, C: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a model says that has learned on another label mix than these samples have."""
    rng = np.random.default_rng(seed)
    mix = rng.dirichlet([2.0] * C)
    y = rng.choice(C, size=n, p=mix)
    scores = rng.normal(size=(n, C)) + 2 * np.eye(C)[y] + rng.normal(scale=0.8, size=C)
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return p, y, np.log(C * label_prior(np.bincount(y, minlength=C)))


@pytest.mark.parametrize("seed", range(4))
def test_the_fitted_shift_is_that_of_a_general_minimiser(seed: int) -> None:
    p, y, shift = told(seed)
    C = len(shift)
    best, found = -math.inf, shift
    for tau in (0.125, 0.25, 0.5, 1.0):

        def penalised(gamma: np.ndarray, tau: float = tau) -> float:
            z = np.log(p) + shift + gamma
            loss = -(z[np.arange(len(y)), y] - np.logaddexp.reduce(z, axis=1)).sum()
            return float(loss + gamma @ gamma / (2 * tau**2))

        gamma = optimize.minimize(penalised, np.zeros(C), tol=1e-12).x
        z = np.log(p) + shift + gamma
        q = np.exp(z - np.logaddexp.reduce(z, axis=1)[:, None])
        hessian = sum(np.diag(row) - np.outer(row, row) for row in q)
        evidence = -penalised(gamma) - np.linalg.slogdet(np.eye(C) + tau**2 * hessian)[1] / 2
        if evidence > best:
            best, found = evidence, shift + gamma
        plain = -penalised(np.zeros(C))
    if plain > best:
        found = shift
    assert fitted_shift(p, y, shift) == pytest.approx(found, abs=1e-4)


def test_a_model_that_sees_the_classes_as_they_are_is_left_as_it_is() -> None:
    rng = np.random.default_rng(3)
    scores = 3 * rng.normal(size=(400, 3))
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    y = np.array([rng.choice(3, p=row) for row in p])
    assert fitted_shift(p, y, np.zeros(3)) == pytest.approx(np.zeros(3), abs=0.1)
    moved = fitted_shift(p, y, np.array([1.5, 0.0, -1.5]))
    assert moved - moved.mean() == pytest.approx(np.zeros(3), abs=0.3)  # it finds back


def test_classes_without_samples_and_certain_models_give_finite_shifts() -> None:
    p = np.tile([1.0, 0.0, 0.0], (9, 1))
    for y in (np.zeros(9, int), np.full(9, 2)):
        assert np.isfinite(fitted_shift(p, y, np.log(3 * label_prior(np.bincount(y, minlength=3))))).all()
    assert fitted_shift(np.empty((0, 3)), np.empty(0, int), np.zeros(3)).tolist() == [0.0, 0.0, 0.0]
