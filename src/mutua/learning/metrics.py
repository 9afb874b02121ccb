"""How good predictions are: numbers from probabilities (N, C) and labels (N,), and from other kinds of both.

Averages over classes are over those that occur in the labels: a client may hold only a few. Without samples
every number is None, and so is each that has no meaning, such as an AUROC where all labels are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray
Metrics = Mapping[str, float | None]
"""By name; None is what could not be measured."""

ECE_BINS = 15
LEAST_PROBABILITY = float(np.finfo(np.float32).tiny)


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
    return _mean([binary_auroc(predictions.p[:, c], predictions.y == c) for c in predictions.present])


def log_loss(predictions: Predictions) -> float:
    """Mean −ln of the label's probability, which counts as at least float32's smallest (a loss of 87.3)."""
    return float(
        -np.log(
            np.maximum(
                predictions.p[np.arange(len(predictions.y)), predictions.y].astype(float), LEAST_PROBABILITY
            )
        ).mean()
    )


def weighted_log_loss(probabilities: Tensor, y: Tensor, weights: Sequence[float]) -> float:
    """`log_loss` with each sample counted by its class's weight, as it is trained; divided by the samples."""
    truth = y.cpu().numpy()
    said = np.maximum(_doubles(probabilities)[np.arange(len(truth)), truth], LEAST_PROBABILITY)
    return float((-np.log(said) * np.asarray(weights)[truth]).mean())


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


# Of two classes, one of which is positive


def binary_auroc(scores: Array, positive: Array) -> float | None:
    """How likely a positive sample scores above a negative one; ties count half. None without one of the two."""
    n, others = int(positive.sum()), int((~positive).sum())
    if not n or not others:
        return None
    ranked, mine = np.sort(scores), scores[positive]
    # Twice how many a positive is above, ties counted half: n² of it is above positives, itself included.
    pairs = ranked.searchsorted(mine, "left") + ranked.searchsorted(mine, "right")
    return float((pairs.sum() - n * n) / (2 * n * others))


def average_precision(scores: Array, positive: Array) -> float | None:
    """Σ (R_i − R_{i−1})·P_i over the thresholds, from the highest score down; samples that tie pass together."""
    if positive.all() or not positive.any():
        return None
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    hits = np.cumsum(positive[order])[ends]
    return float((np.diff(hits, prepend=0) * hits / (ends + 1)).sum() / hits[-1])


def sensitivity(scores: Array, positive: Array, specificity: float) -> float | None:
    """The largest share of positives found by a threshold that clears this share of the negatives."""
    if positive.all() or not positive.any():
        return None
    negatives = np.sort(scores[~positive])[::-1]
    allowed = int(np.floor((1 - specificity) * len(negatives) + 1e-9))
    if allowed >= len(negatives):
        return 1.0
    return float((scores[positive] > negatives[allowed]).mean())


def binary_scalars(scores: Tensor, positive: Tensor, specificity: float) -> dict[str, float | None]:
    """What two classes have beside `scalars`: numbers of the positive one."""
    given = _doubles(scores), positive.cpu().numpy().astype(bool)
    return {"average_precision": average_precision(*given), "sensitivity": sensitivity(*given, specificity)}


# Of several labels at once


def label_scalars(
    probabilities: Tensor, y: Tensor, labels: Sequence[str], specificity: float
) -> dict[str, float | None]:
    """Metrics of independent labels (N, L), means over the labels that have a value, and some of each label.

    A label counts as predicted from a probability of ½ on. `accuracy` is the share of single decisions that are
    right, `exact_match` that of samples with all of them right; `ece` is over all decisions.
    """
    p, there = _doubles(probabilities), y.cpu().numpy() > 0.5
    if not len(there):
        return dict.fromkeys((*_OF_LABELS, *(f"{m}[{label}]" for m in _EACH_LABEL for label in labels)))
    said = p >= 0.5
    columns = list(zip(p.T, there.T, said.T, strict=True))
    each = {
        "balanced_accuracy": [_recalls(true, guess) for _, true, guess in columns],
        "macro_f1": [_f1(true, guess) for _, true, guess in columns],
        "auroc": [binary_auroc(scores, true) for scores, true, _ in columns],
        "average_precision": [average_precision(scores, true) for scores, true, _ in columns],
        "sensitivity": [sensitivity(scores, true, specificity) for scores, true, _ in columns],
    }
    loss = -np.log(np.maximum(np.where(there, p, 1 - p), LEAST_PROBABILITY)).sum(1).mean()
    found: dict[str, float | None] = {
        "accuracy": float((said == there).mean()),
        "loss": float(loss),
        **{metric: _mean(values) for metric, values in each.items()},
        "exact_match": float((said == there).all(1).mean()),
        "ece": _calibration(p.ravel(), there.ravel()),
    }
    single = {f"{m}[{label}]": v for m in _EACH_LABEL for label, v in zip(labels, each[m], strict=True)}
    return found | single


_EACH_LABEL = ("auroc", "average_precision", "sensitivity")
_OF_LABELS = (
    *("accuracy", "loss", "balanced_accuracy", "macro_f1", "auroc", "average_precision", "sensitivity"),
    *("exact_match", "ece"),
)


def _recalls(true: Array, guess: Array) -> float | None:
    """The mean of sensitivity and specificity."""
    if true.all() or not true.any():
        return None
    return float((guess[true].mean() + (~guess[~true]).mean()) / 2)


def _f1(true: Array, guess: Array) -> float | None:
    return float(2 * (true & guess).sum() / (true.sum() + guess.sum())) if true.any() else None


def _calibration(p: Array, there: Array) -> float:
    """How far the probability of a label is from the share that has it, in 15 bins of equal width."""
    bins = np.nan_to_num(np.ceil(p * ECE_BINS) - 1).clip(0, ECE_BINS - 1).astype(int)
    return float(np.abs(np.bincount(bins, weights=there - p, minlength=ECE_BINS)).sum() / len(p))


# Of values


def value_scalars(predicted: Tensor, y: Tensor, names: Sequence[str]) -> dict[str, float | None]:
    """Root mean square and mean absolute error, and R²; of several values (N, T) their means, and those of each.

    R² has no meaning where all values are alike.
    """
    given, true = _doubles(predicted), _doubles(y)
    each: dict[str, list[float | None]] = dict.fromkeys(("rmse", "mae", "r2"), [None] * len(names))
    if len(true):
        error = given - true
        spread = np.square(true - true.mean(0)).sum(0)
        off = np.square(error).sum(0)
        each["rmse"] = np.sqrt(off / len(true)).tolist()
        each["mae"] = np.abs(error).mean(0).tolist()
        differ = (true != true[0]).any(0).tolist()
        found_r2 = zip(off.tolist(), spread.tolist(), differ, strict=True)
        each["r2"] = [1 - a / b if several and b else None for a, b, several in found_r2]
    found = {metric: _mean(values) for metric, values in each.items()}
    if len(names) > 1:
        found |= {f"{m}[{name}]": v for m, of in each.items() for name, v in zip(names, of, strict=True)}
    return found


def _doubles(given: Tensor) -> Array:
    return given.detach().cpu().double().numpy()


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
