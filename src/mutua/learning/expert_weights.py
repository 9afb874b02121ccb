"""How much to trust each of several experts by what they say of validation samples, and what that cannot lose.

The weights are the posterior mean under a prior that gives half of its mass to single experts and half to their
mixtures. Bayes' rule then bounds the log-loss of the sequence of predictions: Vovk 1990, "Aggregating strategies";
Cesa-Bianchi and Lugosi 2006, "Prediction, learning, and games".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product

import numpy as np
import torch
from torch import Tensor

SMOOTHING = 0.01
"""ε: how much of every prediction is spread over all classes, so that no sample costs more than ln(C/ε)."""
FINENESS = {2: 200, 3: 50, 4: 20}
"""By number of experts, in how many steps the grid of mixtures divides each weight."""
_CONCENTRATIONS = np.geomspace(0.1, 1e4, 60)
_SPREADS, _NEWTON = (0.125, 0.25, 0.5, 1.0), 50
_BLOCK = 4096
"""How many validation samples are weighed at once."""


def label_prior(counts: np.ndarray) -> np.ndarray:
    """π: how often a client sees each class, its counts shrunk towards all alike by the likeliest Dirichlet.

    A is the sum of the Dirichlet's parameters, which are alike: of 60 values the one under which the counts are
    most probable, and of equally good ones, as with a single sample, the largest.
    """
    n, A, C = counts.sum(), _CONCENTRATIONS, len(counts)
    alone = _lgamma(counts[:, None] + A / C) - _lgamma(A / C)
    evidence = _lgamma(A) - _lgamma(A + n) + alone.sum(0)
    best = A[evidence >= evidence.max() - 1e-9].max()
    return np.asarray((counts + best / C) / (n + best))


def fitted_shift(p: np.ndarray, y: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """A shift of the scores that also fits how a model sees the classes: its own label mix may not be uniform.

    p (n, C) is what it says of samples with labels y. To `shift` comes a γ ~ N(0, τ²) for each class, at its
    mode; τ is the one of five under which the labels are most probable, by Laplace's approximation.
    """
    scores, counts = np.log(np.maximum(p, 1e-12)) + shift, np.bincount(y, minlength=p.shape[1])
    best, found = -_cross_entropy(scores, y), shift
    for tau in _SPREADS:
        gamma = np.zeros_like(shift)
        for _ in range(_NEWTON):  # strictly convex: a Newton step, halved until it goes down
            q = _softmax(scores + gamma)
            curvature = np.diag(q.sum(0)) - q.T @ q
            slope = q.sum(0) - counts + gamma / tau**2
            step = np.linalg.solve(curvature + np.eye(len(gamma)) / tau**2, slope)
            before, size = _penalised(scores, y, gamma, tau), 1.0
            while _penalised(scores, y, gamma - size * step, tau) > before and size > 1e-6:
                size /= 2
            gamma = gamma - size * step
            if np.abs(step).max() < 1e-10:
                break
        _, volume = np.linalg.slogdet(np.eye(len(gamma)) + tau**2 * curvature)
        if (evidence := -_penalised(scores, y, gamma, tau) - volume / 2) > best:
            best, found = evidence, shift + gamma
    return found


def likelihoods(said: Sequence[Tensor], y: Tensor) -> np.ndarray:
    """q (n, M): what each expert gave to the labels of n samples, smoothed."""
    p = torch.stack([one.double() for one in said], 1)
    return smoothed(p[range(len(y)), :, y].numpy(), p.shape[2])


def smoothed(p: np.ndarray, classes: int) -> np.ndarray:
    """q = (1−ε)·p + ε/C."""
    return np.asarray((1 - SMOOTHING) * p + SMOOTHING / classes)


def weigh(q: np.ndarray, mu: Sequence[float]) -> np.ndarray:
    """The posterior mean of the experts' weights; q (n, M) is what each gave to the labels of n samples.

    The prior is ½·Σ μ_m·δ(e_m) + ½·Dirichlet(Mμ), the latter on a grid. Without samples the weights are μ.
    """
    if len(mu) == 1 or not len(q):
        return np.asarray(mu, dtype=float)
    points, log_prior = _prior(tuple(mu))
    log_posterior = log_prior.copy()
    for start in range(0, len(q), _BLOCK):
        log_posterior += np.log(points @ q[start : start + _BLOCK].T).sum(1)
    posterior = np.exp(log_posterior - log_posterior.max())
    return np.asarray(posterior @ points / posterior.sum())


def regret_bounds(mu: Sequence[float]) -> list[float]:
    """By expert, how many nats more than its own log-loss on the validation samples the mixture's can be in all.

    It is that of the sequence in which each sample is predicted by the weights of those before it.
    """
    return [0.0 if len(mu) == 1 else math.log(2 / share) for share in mu]


@lru_cache(maxsize=16)
def _prior(mu: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The points that have mass, one row each, and the logarithms of their masses."""
    M, parameters = len(mu), len(mu) * np.array(mu)
    K = FINENESS[M]
    whole = [(*a, K - sum(a)) for a in product(range(K + 1), repeat=M - 1) if sum(a) <= K]
    grid = (np.array(whole) + 1 / M) / (K + 1)
    density = ((parameters - 1) * np.log(grid)).sum(1)
    spread = density - density.max() - math.log(np.exp(density - density.max()).sum())
    return np.vstack([np.eye(M), grid]), np.concatenate([np.log(mu), spread]) - math.log(2)


def _cross_entropy(scores: np.ndarray, y: np.ndarray) -> float:
    most = scores.max(1, keepdims=True)
    return float((most[:, 0] + np.log(np.exp(scores - most).sum(1)) - scores[np.arange(len(y)), y]).sum())


def _penalised(scores: np.ndarray, y: np.ndarray, gamma: np.ndarray, tau: float) -> float:
    return _cross_entropy(scores + gamma, y) + float(gamma @ gamma) / (2 * tau**2)


def _softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def _lgamma(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.vectorize(math.lgamma, otypes=[float])(x))
