"""Using a result: predictions of a saved model."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from torch import Tensor

from mutua.data import formats, sources
from mutua.data.samples import Samples
from mutua.errors import InputError
from mutua.runs.folder import SavedModel


@dataclass(frozen=True)
class Predictions:
    """Labels by name and probabilities by class; accuracy where the data had labels."""

    classes: tuple[str, ...]
    probabilities: Tensor
    labels: list[str]
    accuracy: float | None

    def summary(self) -> dict[str, Any]:
        """What `mutua predict --json` prints."""
        return {
            "classes": list(self.classes),
            "labels": self.labels,
            "probabilities": [[round(p, 6) for p in row] for row in self.probabilities.tolist()],
            "accuracy": self.accuracy,
        }


def predict(model: SavedModel, path: Path, image_size: int | None = None) -> Predictions:
    """What the model says of the samples in an .npz file or a folder of images."""
    samples, truth = _read(path, image_size)
    predictor, template = model.predictor(), model.template
    model.expects(samples)
    found = predictor(samples.x)
    labels = [template.classes[i] for i in found.argmax(1).tolist()]
    right = None if truth is None else sum(a == b for a, b in zip(labels, truth, strict=True)) / len(labels)
    return Predictions(template.classes, found, labels, right)


def _read(path: Path, image_size: int | None) -> tuple[Samples, list[str] | None]:
    """Samples, and the names of their labels where they have any."""
    if path.is_dir() and (plain := formats.plain_images(path, image_size)) is not None:
        return Samples.of(plain, np.zeros(len(plain)), name=str(path)), None
    if path.is_dir():
        samples = sources.load("folder", path=path, image_size=image_size).train
    else:
        held = formats.npz_file(path)
        key = next((key for key in ("x", "x_test") if key in held), None)
        if key is None:
            raise InputError(f"--data: {path} has no array 'x' (it has {', '.join(held) or 'none'})")
        labels = held.get(key.replace("x", "y", 1))
        if labels is None:
            return Samples.of(held[key], np.zeros(len(held[key])), name=str(path)), None
        samples = Samples.of(
            held[key],
            labels,
            classes=None if (names := held.get("classes")) is None else names.tolist(),
            name=str(path),
        )
    return samples, [samples.classes[i] for i in samples.y.tolist()]


def write_predictions(predictions: Predictions, file: TextIO) -> None:
    """CSV: sample, label, and a column a class."""
    writer = csv.writer(file)
    writer.writerow(["sample", "label", *predictions.classes])
    for i, (label, row) in enumerate(zip(predictions.labels, predictions.probabilities.tolist(), strict=True)):
        writer.writerow([i, label, *(f"{p:.6f}" for p in row)])
