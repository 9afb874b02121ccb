"""A model that predicts from raw inputs: with the preprocessing and the class names that belong to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mutua.data.layouts import fitting
from mutua.data.mapped_rows import MappedRows
from mutua.data.samples import Samples
from mutua.data.tabular_reading import unlabelled
from mutua.data.tabular_sources import KINDS
from mutua.errors import InputError
from mutua.learning.evaluation import predictions
from mutua.learning.tasks import CLASSIFICATION, Aim
from mutua.support.text import some


@dataclass(frozen=True, repr=False)
class Predictor:
    """A trained model with the preprocessing and class names that belong to it."""

    model: nn.Module
    samples: Samples
    """A template without samples: classes, preprocessing and the shape of an input."""
    aim: Aim = CLASSIFICATION

    def __repr__(self) -> str:
        weights = sum(p.numel() for p in self.model.parameters())
        return f"Predictor({_kind(self.samples.x)} to {some(self.classes)}; {weights:,} parameters)"

    @property
    def classes(self) -> tuple[str, ...]:
        """What the columns of a prediction stand for."""
        return self.samples.classes

    def __call__(self, x: Any) -> Tensor:
        """Class probabilities (N, classes) for inputs as the client has them: bytes of images, a table, texts.

        Of a multi-label task they are the probabilities of the labels, of a regression the values.
        """
        template = self.samples
        if template.model_input.kind in KINDS:
            return predictions(self.model, unlabelled(x, template, "x"), self.aim.of(template))
        given = Samples.of(
            x,
            template.unknown(len(x)),
            classes=template.classes,
            preprocess=template.preprocess,
            kind=template.kind,
            name="x",
            **fitting(np.shape(x), template.x.shape[1:]),
        )
        expect(template, given, "x")
        return predictions(self.model, given, self.aim.of(template))

    def labels(self, x: Any) -> list[str]:
        """The most probable class of each input, by name; of several labels those from a probability of ½ on."""
        return named(self(x), self.samples)


def named(predictions: Tensor, template: Samples) -> list[str]:
    """What is predicted for each sample, in words: a class, labels (with "; " between them) or values."""
    names = template.classes
    if template.kind == "classification":
        return [names[i] for i in predictions.argmax(1).tolist()]
    if template.kind == "multi-label":
        return ["; ".join(n for n, p in zip(names, row, strict=True) if p >= 0.5) for row in predictions.tolist()]
    return ["; ".join(f"{value:.6g}" for value in row) for row in predictions.tolist()]


def expect(template: Samples, given: Samples, name: str) -> None:
    """Refuse inputs whose shape or type differs from what the model was trained on."""
    if (given.x.shape[1:], given.x.dtype) != (template.x.shape[1:], template.x.dtype):
        raise InputError(f"{name}: samples are {_kind(given.x)}; the model takes {_kind(template.x)}")


def _kind(x: Tensor | MappedRows) -> str:
    """The shape and type of a sample in words."""
    return f"{tuple(x.shape[1:])} {'bytes (0 to 255)' if x.dtype == torch.uint8 else 'floating numbers'}"
