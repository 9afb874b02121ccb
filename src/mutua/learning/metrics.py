"""How good predictions are: numbers from probabilities (N, C) and labels (N,).

Averages over classes are over those that occur in the labels: a client may hold only a few. Without samples
every number is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray
Metrics = Mapping[str, float | None]
"""By name; None is what could not be measured."""

ECE_BINS = 15
SMALLEST = float(np.finfo(np.float32).tiny)


class Predictions:
    """Probabilities beside labels, and what several metrics need of them, found once."""

    def __init__(self, probabilities: Tensor, y: Tensor) -> None:
        p = probabilities.detach().cpu()
        # Not all of it as float64: with thousands of classes that alone would be gigabytes.
        self.p: Array = (p if p.dtype in (torch.float32, torch.float64) else p.float()).numpy()
        self.y: Array = y.cpu().numpy()

    @cached_property
    def predicted(self) -> Array:
        """Every sample's most probable class."""
        predicted: Array = self.p.argmax(1)
        return predicted

    @cached_property
    def present(self) -> Array:
        """The classes that occur in the labels."""
        return np.unique(self.y)

    @cached_property
    def sums(self) -> tuple[Array, Array, Array]:
        """By class, how often it is right, true and predicted: the confusion matrix's diagonal and sums."""
        classes = self.p.shape[1]
        right = np.bincount(self.y[self.predicted == self.y], minlength=classes)
        return right, np.bincount(self.y, minlength=classes), np.bincount(self.predicted, minlength=classes)


def confusion_matrix(probabilities: Tensor, y: Tensor) -> Array:
    """Counts (C, C): the row is the true class, the column the predicted one."""
    classes = probabilities.shape[1]
    matrix = np.zeros((classes, classes), int)
    for true, predicted, count in confusion_counts(probabilities, y):
        matrix[true, predicted] = count
    return matrix


def confusion_counts(probabilities: Tensor, y: Tensor) -> list[list[int]]:
    """The confusion matrix without its zeros: true class, predicted class, count; never more than samples."""
    predictions, classes = Predictions(probabilities, y), probabilities.shape[1]
    places, counts = np.unique(predictions.y * classes + predictions.predicted, return_counts=True)
    return np.stack([places // classes, places % classes, counts], 1).tolist()  # type: ignore[no-any-return]


def accuracy(predictions: Predictions) -> float:
    """Share of samples whose most probable class is the label."""
    return float((predictions.predicted == predictions.y).mean())


def balanced_accuracy(predictions: Predictions) -> float:
    """Mean recall over the classes that occur in y."""
    right, true, _ = predictions.sums
    recall = right / true.clip(1)
    return float(recall[predictions.present].mean())


def macro_f1(predictions: Predictions) -> float:
    """Mean F1 over the classes that occur in y (scikit-learn's default adds the classes only predicted)."""
    right, true, predicted = predictions.sums
    f1 = 2 * right / (predicted + true).clip(1)
    return float(f1[predictions.present].mean())


def auroc(predictions: Predictions) -> float | None:
    """Mean one-vs-rest area under the ROC curve, of classes with both positives and negatives; else None."""
    total, areas = len(predictions.y), []
    for c in predictions.present:
        ranked = np.sort(predictions.p[:, c])
        positives = predictions.p[predictions.y == c, c]
        n = len(positives)
        if n < total:
            # Twice how many a positive is above, ties counted half: n² of it is above positives, itself included.
            pairs = ranked.searchsorted(positives, "left") + ranked.searchsorted(positives, "right")
            areas.append((pairs.sum() - n * n) / (2 * n * (total - n)))
    return float(np.mean(areas)) if areas else None


def log_loss(predictions: Predictions) -> float:
    """Mean −ln of the label's probability, which counts as at least float32's smallest (a loss of 87.3)."""
    return float(
        -np.log(
            np.maximum(predictions.p[np.arange(len(predictions.y)), predictions.y].astype(float), SMALLEST)
        ).mean()
    )


def ece(predictions: Predictions) -> float:
    """Expected calibration error: 15 bins of equal width, closed above, on the top probability."""
    top = predictions.p.max(1).astype(float)
    # A diverged model's NaN falls into the first bin and makes the sum NaN, as it should.
    bins = np.nan_to_num(np.ceil(top * ECE_BINS) - 1).clip(0, ECE_BINS - 1).astype(int)
    gaps = np.bincount(bins, weights=(predictions.predicted == predictions.y) - top, minlength=ECE_BINS)
    return float(np.abs(gaps).sum() / len(predictions.y))


SCALARS: dict[str, Callable[[Predictions], float | None]] = {
    "accuracy": accuracy,
    "loss": log_loss,
    "balanced_accuracy": balanced_accuracy,
    "macro_f1": macro_f1,
    "auroc": auroc,
    "ece": ece,
}


def scalars(probabilities: Tensor, y: Tensor) -> dict[str, float | None]:
    """Every metric that is one number, by name; `loss` is the log-loss."""
    predictions = Predictions(probabilities, y)
    return {name: metric(predictions) if len(y) else None for name, metric in SCALARS.items()}
