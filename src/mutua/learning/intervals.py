"""95 % intervals of what a client measures on its own test set, which may be small.

- accuracy and other shares of samples: exact (Clopper and Pearson 1934)
- AUROC of two classes: DeLong et al. 1988, on the scale of the log-odds, which keeps it in (0, 1)
- RMSE and MAE: Student's t of the logarithm of the mean squared or absolute error
- everything else: a bootstrap over the test samples, with a seed, between its 2.5 % and 97.5 % quantiles
- what two models differ by on the same samples: of accuracies Bonett and Price 2012; of everything else
  Student's t with the deviation of a bootstrap that draws the same samples for both
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from torch import Tensor

from mutua.support.quantiles import LEVEL, beta_quantile, t_quantile

Interval = tuple[float, float]
_TAIL = (1 - LEVEL) / 2
_Z = 1.959963984540054
_NORMAL = {1: math.sqrt(math.pi / 2 - 1), 2: math.sqrt(2)}
"""The deviation of |error| and of error², in units of their means, if errors are normal."""
DRAWS = 400
"""Samples of a bootstrap."""


def of_share(value: float | None, n: int) -> Interval | None:
    """Of a share of n samples; None for a mean of several shares, which no number of samples gives."""
    if value is None or not n or abs(value * n - (right := round(value * n))) > 1e-6 * n:
        return None
    low = beta_quantile(_TAIL, right, n - right + 1) if right else 0.0
    high = beta_quantile(1 - _TAIL, right + 1, n - right) if right < n else 1.0
    return low, high


def of_auroc(scores: np.ndarray, positive: np.ndarray) -> Interval | None:
    """Of the area under the ROC curve; if all pairs are in order, as of a share of the rarer class's samples."""
    ups, downs = scores[positive], scores[~positive]
    m, n = len(ups), len(downs)
    if not m or not n:
        return None
    # How many of the other side each sample is on the right side of, ties counted half (DeLong's components).
    above = _below(np.sort(downs), ups)
    under = 1 - _below(np.sort(ups), downs)
    area = float(above.mean())
    if area in (0.0, 1.0) or min(m, n) < 2:
        return of_share(round(area * min(m, n)) / min(m, n), min(m, n))
    deviation = math.sqrt(above.var(ddof=1) / m + under.var(ddof=1) / n)
    middle, half = math.log(area / (1 - area)), _Z * deviation / (area * (1 - area))
    return _expit(middle - half), _expit(middle + half)


def of_paired_shares(first: int, second: int, n: int) -> Interval | None:
    """Of the difference of two accuracies on the same n samples: how often only the first, or second, is right.

    Wald's interval after one sample was added to each of the two counts (Bonett and Price 2012), cut to ±1: it is
    good for few samples, and has a width where the models never differ.
    """
    if not n:
        return None
    ups, downs = (first + 1) / (n + 2), (second + 1) / (n + 2)
    half = _Z * math.sqrt((ups + downs - (ups - downs) ** 2) / (n + 2))
    return max(-1.0, ups - downs - half), min(1.0, ups - downs + half)


def of_mean_error(errors: np.ndarray, power: int) -> Interval | None:
    """Of (mean |error|^power)^(1/power): 1 is the MAE, 2 the RMSE."""
    each = np.abs(errors.astype(float)) ** power
    n, mean = len(each), float(each.mean()) if len(each) else 0.0
    if n < 2:
        return None
    if mean == 0 or not math.isfinite(mean):
        return (mean, mean) if mean == 0 else None
    # The spread of a few errors is mostly estimated too low: it counts as at least that of normal ones.
    relative = max(float(each.std(ddof=1)) / mean, _NORMAL[power])
    half = t_quantile(n - 1) * relative / math.sqrt(n)
    low, high = ((mean * math.exp(side * half)) ** (1 / power) for side in (-1, 1))
    return low, high


def by_bootstrap(
    measure: Callable[[Tensor, Tensor], float | None], predictions: Tensor, y: Tensor, seed: int = 0
) -> Interval | None:
    """Of any metric, by drawing the test samples anew; draws in which it has no meaning are left out."""
    if len(y) < 2 or not (found := _redrawn(lambda at: measure(predictions[at], y[at]), len(y), seed)):
        return None
    low, high = np.quantile(found, [_TAIL, 1 - _TAIL]).tolist()
    return low, high


def _redrawn(measure: Callable[[np.ndarray], float | None], n: int, seed: int) -> list[float]:
    """A measure of samples that are drawn from n each time; nothing if most draws have no meaning."""
    rng = np.random.default_rng(seed)
    drawn = (measure(rng.integers(n, size=n)) for _ in range(DRAWS))
    found = [value for value in drawn if value is not None]
    return found if len(found) >= DRAWS // 2 else []


def by_paired_bootstrap(
    measure: Callable[[Tensor, Tensor], float | None],
    first: Tensor,
    second: Tensor,
    y: Tensor,
    seed: int = 0,
) -> Interval | None:
    """Of measure(first) − measure(second) on the same samples, by drawing samples anew.

    Student's t around what was measured: the quantiles of a bootstrap of few samples would be too near. For a mean
    it is the paired t interval.
    """
    n = len(y)
    if n < 2 or (whole := _difference(measure, first, second, y)) is None:
        return None
    if not (found := _redrawn(lambda at: _difference(measure, first[at], second[at], y[at]), n, seed)):
        return None
    half = t_quantile(n - 1) * float(np.std(found)) * math.sqrt(n / (n - 1))
    return whole - half, whole + half


def _difference(
    measure: Callable[[Tensor, Tensor], float | None], first: Tensor, second: Tensor, y: Tensor
) -> float | None:
    one, other = measure(first, y), measure(second, y)
    return None if one is None or other is None else one - other


def _below(ranked: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Which share of the ranked numbers each value is above; ties count half."""
    twice = ranked.searchsorted(values, "left") + ranked.searchsorted(values, "right")
    return np.asarray(twice / (2 * len(ranked)))


def _expit(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
