"""How good predictions are: numbers from probabilities (N, C) and labels (N,).

Averages over classes are over those that occur in the labels: a client may hold only a few. Without samples
every number is None.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import numpy as np
from torch import Tensor

Array = np.ndarray
Metric = Callable[[Tensor | Array, Tensor | Array], float | None]

ECE_BINS = 15
SMALLEST = float(np.finfo(np.float32).tiny)


def _metric(function: Callable[[Array, Array], float | None]) -> Metric:
    """A metric written for NumPy, taking tensors; None without samples."""

    @wraps(function)
    def metric(probabilities: Tensor | Array, y: Tensor | Array) -> float | None:
        return function(*_arrays(probabilities, y)) if len(y) else None

    return metric


def _arrays(probabilities: Tensor | Array, y: Tensor | Array) -> tuple[Array, Array]:
    p = probabilities.detach().double().cpu().numpy() if isinstance(probabilities, Tensor) else probabilities
    return p, y.cpu().numpy() if isinstance(y, Tensor) else y


def _confusion(p: Array, y: Array) -> Array:
    classes = p.shape[1]
    return np.bincount(y * classes + p.argmax(1), minlength=classes**2).reshape(classes, classes)


def confusion(probabilities: Tensor, y: Tensor) -> Array:
    """Counts (C, C): the row is the true class, the column the predicted one; zeros without samples."""
    if len(y) == 0:
        return np.zeros((probabilities.shape[1],) * 2, dtype=np.int64)
    return _confusion(probabilities.detach().cpu().numpy(), y.cpu().numpy())


@_metric
def accuracy(p: Array, y: Array) -> float:
    """Share of samples whose most probable class is the label."""
    return float((p.argmax(1) == y).mean())


@_metric
def balanced_accuracy(p: Array, y: Array) -> float:
    """Mean recall over the classes that occur in y."""
    counts, present = _confusion(p, y), np.unique(y)
    return float((counts.diagonal() / counts.sum(1).clip(1))[present].mean())


@_metric
def macro_f1(p: Array, y: Array) -> float:
    """Mean F1 over the classes that occur in y (scikit-learn's default adds the classes only predicted)."""
    counts, present = _confusion(p, y), np.unique(y)
    f1 = 2 * counts.diagonal() / (counts.sum(0) + counts.sum(1)).clip(1)
    return float(f1[present].mean())


@_metric
def auroc(p: Array, y: Array) -> float | None:
    """Mean one-vs-rest area under the ROC curve, of classes with both positives and negatives; else None."""
    areas = []
    for c in np.unique(y):
        positives, negatives = p[y == c, c], np.sort(p[y != c, c])
        if len(negatives):
            # Negatives below each positive, ties counted half: the rank-sum statistic with mid-ranks.
            below, upto = (np.searchsorted(negatives, positives, side) for side in ("left", "right"))
            areas.append((below + upto).mean() / (2 * len(negatives)))
    return float(np.mean(areas)) if areas else None


@_metric
def log_loss(p: Array, y: Array) -> float:
    """Mean −ln of the label's probability, which counts as at least float32's smallest (a loss of 87.3)."""
    return float(-np.log(np.maximum(p[np.arange(len(y)), y], SMALLEST)).mean())


@_metric
def ece(p: Array, y: Array) -> float:
    """Expected calibration error: 15 bins of equal width, closed above, on the top probability."""
    top = p.max(1)
    # A diverged model's NaN falls into the first bin and makes the sum NaN, as it should.
    bins = np.nan_to_num(np.ceil(top * ECE_BINS) - 1).clip(0, ECE_BINS - 1).astype(int)
    gaps = np.bincount(bins, weights=(p.argmax(1) == y) - top, minlength=ECE_BINS)
    return float(np.abs(gaps).sum() / len(y))


SCALARS: dict[str, Metric] = {
    "accuracy": accuracy,
    "loss": log_loss,
    "balanced_accuracy": balanced_accuracy,
    "macro_f1": macro_f1,
    "auroc": auroc,
    "ece": ece,
}


def scalars(probabilities: Tensor, y: Tensor) -> dict[str, float | None]:
    """Every metric that is one number, by name; `loss` is the log-loss."""
    given = _arrays(probabilities, y)
    return {name: metric(*given) for name, metric in SCALARS.items()}
