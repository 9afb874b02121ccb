"""A task: what a client's labels mean, and how its models are taught and judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mutua.errors import InputError
from mutua.learning import losses, metrics
from mutua.learning.headline import ACCURACY, Headline
from mutua.learning.intervals import Interval, by_bootstrap, of_auroc, of_mean_error, of_share


@dataclass(frozen=True)
class Task:
    """Single-label classification among classes known by name; the other kinds of task derive from it."""

    classes: tuple[str, ...]
    """The names of a model's outputs."""
    headline: Headline = ACCURACY
    """The metric by which models are shown, selected and compared."""
    weights: tuple[float, ...] | None = None
    """How much a sample of each class counts in the loss; None: all the same."""
    positive: str | None = None
    """Which of two classes is the positive one; None is the last."""
    specificity: float = 0.9

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy, mean over the batch."""
        if self.weights is None:
            return losses.cross_entropy(logits, y)
        return losses.weighted_cross_entropy(logits, y, logits.new_tensor(self.weights))

    def divergence(self, teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
        """KL(teacher ‖ student) of two models' logits; no gradient reaches the teacher."""
        return losses.kl(teacher, student, temperature)

    def taught(
        self,
        student: Tensor,
        y: Tensor,
        teacher: Tensor,
        by_label: float,
        by_teacher: float,
        temperature: float = 1.0,
    ) -> Tensor:
        """by_label · loss(student, y) + by_teacher · divergence(teacher, student); no gradient to the teacher."""
        if type(self) is Task and self.weights is None:
            return losses.taught(student, y, teacher, by_label, by_teacher, temperature)
        return by_label * self.loss(student, y) + by_teacher * self.divergence(teacher, student, temperature)

    def divergences(self, teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
        """`divergence` of every sample."""
        return losses.kl_each(teacher, student, temperature)

    def entropies(self, probabilities: Tensor) -> Tensor:
        """How uncertain each row of class probabilities is: −Σ p ln p."""
        entropies: Tensor = torch.special.entr(probabilities).sum(dim=1)
        return entropies

    def probabilities(self, logits: Tensor) -> Tensor:
        """Class probabilities of a model's output."""
        return torch.softmax(logits, dim=1)

    def predictions(self, outputs: Tensor) -> Tensor:
        """What a model's outputs say: probabilities of classes or of labels, or values in their own unit."""
        return self.probabilities(outputs)

    def intervals(self, predictions: Tensor, y: Tensor) -> dict[str, float | None]:
        """95 % intervals, as METRIC_low and METRIC_high: of the headline and, of two classes, of the AUROC.

        That of an accuracy follows from the accuracy and the number of samples, and is not among them.
        """
        shown = [self.headline.metric, *(["auroc"] if self._positive is not None else [])]
        found: dict[str, float | None] = {}
        for metric in dict.fromkeys(shown):
            if (metric, type(self)) != ("accuracy", Task):
                ends = self.interval(metric, predictions, y) or (None, None)
                found |= {f"{metric}_{end}": value for end, value in zip(("low", "high"), ends, strict=True)}
        return found

    def interval(self, metric: str, predictions: Tensor, y: Tensor) -> Interval | None:
        """The 95 % interval of one metric; None where the samples are too few for one."""
        if (metric, type(self)) == ("accuracy", Task):
            return of_share(self.metrics(predictions, y)[metric], len(y))
        if metric == "auroc" and (k := self._positive) is not None:
            return of_auroc(predictions[:, k].double().numpy(), (y == k).numpy())
        return by_bootstrap(lambda said, true: self.metrics(said, true)[metric], predictions, y)

    @property
    def _positive(self) -> int | None:
        """Which of two classes is the positive one."""
        if type(self) is not Task or len(self.classes) != 2:
            return None
        return 1 if self.positive is None else self.classes.index(self.positive)

    def metrics(self, predictions: Tensor, y: Tensor) -> dict[str, float | None]:
        """Every scalar metric; None where it has no meaning (no samples, one class)."""
        found = metrics.scalars(predictions, y)
        if self.weights is not None and len(y):
            found["loss"] = metrics.weighted_log_loss(predictions, y, self.weights)
        if (k := self._positive) is not None:
            found |= metrics.binary_scalars(predictions[:, k], y == k, self.specificity)
        return found


@dataclass(frozen=True)
class LabelTask(Task):
    """Multi-label: any number of the labels is true of a sample, each independently of the others."""

    label_weights: tuple[tuple[float, ...], ...] | None = None
    """By label, how much its absence and its presence count in the loss; None: all the same."""

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Binary cross-entropy: mean over the batch of the sum over labels."""
        given = self.label_weights
        return losses.binary_cross_entropy(logits, y, None if given is None else logits.new_tensor(given))

    def divergence(self, teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
        """KL of Bernoulli distributions: mean over the batch of the sum over labels; none to the teacher."""
        return self.divergences(teacher, student, temperature).mean()

    def divergences(self, teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
        """`divergence` of every sample."""
        return losses.bernoulli_kl_each(teacher, student, temperature)

    def entropies(self, probabilities: Tensor) -> Tensor:
        """How uncertain each row is: the sum over labels of −p ln p − (1 − p) ln(1 − p)."""
        entropies: Tensor = (torch.special.entr(probabilities) + torch.special.entr(1 - probabilities)).sum(dim=1)
        return entropies

    def probabilities(self, logits: Tensor) -> Tensor:
        """The probability of each label."""
        return torch.sigmoid(logits)

    def metrics(self, predictions: Tensor, y: Tensor) -> dict[str, float | None]:
        """Means over labels, and what matters of each label."""
        found = metrics.label_scalars(predictions, y, self.classes, self.specificity)
        if self.label_weights is not None and len(y):
            # As it is trained: logits give back the probabilities they are made of.
            found["loss"] = float(self.loss(torch.logit(predictions.double(), 1e-7), y.double()))
        return found


@dataclass(frozen=True)
class ValueTask(Task):
    """Regression. A model's outputs are values less their declared mean, in units of their standard deviation."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    delta: float | None = None
    """Up to which error Huber's loss is squared; None: everywhere."""

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Half the squared error, or Huber's loss, of scaled values: mean over the batch, sum over values."""
        wanted = (y - outputs.new_tensor(self.mean)) / outputs.new_tensor(self.std)
        return losses.squared(outputs, wanted) if self.delta is None else losses.huber(outputs, wanted, self.delta)

    def divergence(self, teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
        """Half the squared difference: KL of Gaussians of variance 1. Temperature changes nothing in it."""
        return losses.squared_each(teacher, student).mean()

    def divergences(self, teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
        """`divergence` of every sample."""
        return losses.squared_each(teacher, student)

    def entropies(self, probabilities: Tensor) -> Tensor:
        """A value has none."""
        raise InputError("task: regression, whose predictions have no entropy; use a method that needs none")

    def probabilities(self, logits: Tensor) -> Tensor:
        """A value has none."""
        raise InputError("task: regression, whose predictions are values; use task.predictions")

    def predictions(self, outputs: Tensor) -> Tensor:
        """Values in their own unit."""
        return outputs * outputs.new_tensor(self.std) + outputs.new_tensor(self.mean)

    def interval(self, metric: str, predictions: Tensor, y: Tensor) -> Interval | None:
        """The 95 % interval of one metric; None where the samples are too few for one."""
        if metric in ("rmse", "mae") and len(self.classes) == 1:
            errors = (predictions.double() - y).numpy()[:, 0]
            return of_mean_error(errors, 2 if metric == "rmse" else 1)
        return super().interval(metric, predictions, y)

    def metrics(self, predictions: Tensor, y: Tensor) -> dict[str, float | None]:
        """Errors in the values' own unit; the loss as it is trained."""
        found = metrics.value_scalars(predictions, y, self.classes)
        scaled = (predictions - predictions.new_tensor(self.mean)) / predictions.new_tensor(self.std)
        return {"loss": float(self.loss(scaled, y.to(scaled))) if len(y) else None, **found}


def balanced_weights(counts: Sequence[int] | Any) -> list[float]:
    """n / (classes that occur · count): all classes weigh the same together, a sample 1 on average.

    A class that does not occur weighs 1.
    """
    known = [int(count) for count in counts]
    occurring = sum(count > 0 for count in known)
    return [sum(known) / (occurring * count) if count else 1.0 for count in known]
