"""Quantiles of Student's t and of the beta distribution, which exact intervals need."""

from __future__ import annotations

import math
from functools import cache

LEVEL = 0.95
"""How sure intervals are."""


@cache
def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """Student's two-sided quantile: outside ± t lies a probability of 1 − level; found by bisection."""
    low, high = 0.0, 1.0
    while _within(high, degrees) < level:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _within(middle, degrees) < level else (low, middle)
    return middle


def _within(t: float, degrees: int) -> float:
    """P(−t < T < t): for whole degrees a finite sum in the angle atan(t / √ν)."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(1 + odd, degrees, 2):
        total += term
        term *= cosine**2 * k / (k + 1)
    return (angle + sine * total) * 2 / math.pi if odd else sine * total


@cache
def beta_quantile(p: float, a: int, b: int) -> float:
    """Below which number a beta-distributed one lies with this probability; found by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):  # to the last digit
        middle = (low + high) / 2
        low, high = (middle, high) if beta_below(middle, a, b) < p else (low, middle)
    return (low + high) / 2


def beta_below(x: float, a: float, b: float) -> float:
    """P(X < x) of a beta-distributed X: the regularised incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # on this side of its mean the fraction converges quickly
        return 1 - beta_below(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    tiny = 1e-300
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 100_000):  # about √(a + b) terms are needed
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = value
        for term in (even, odd):
            d = 1 / _away(1 + term * d, tiny)
            c = _away(1 + term / c, tiny)
            value *= c * d
        if abs(value - before) <= 1e-15 * abs(value):
            break
    return math.exp(log_front) * value / a


def _away(number: float, from_zero: float) -> float:
    return number if abs(number) > from_zero else from_zero
