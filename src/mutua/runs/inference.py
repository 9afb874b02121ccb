"""Using a saved model: its predictions, and a copy of it for use elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from torch import Tensor

from mutua.data import array_files, image_folders, sources
from mutua.data.layouts import fitting
from mutua.data.samples import Samples
from mutua.errors import InputError
from mutua.runs.predictor import expect
from mutua.runs.saved_models import SavedModel
from mutua.support.configuration import PathLike, local_path
from mutua.support.files import to_json
from mutua.support.folders import fill_folder
from mutua.support.text import spreadsheet_csv


@dataclass(frozen=True)
class PredictionTable:
    """Predicted labels and the probability of each class; accuracy if the data has labels that the model knows."""

    samples: list[str]
    classes: tuple[str, ...]
    probabilities: Tensor
    labels: list[str]
    accuracy: float | None

    def summary(self) -> dict[str, Any]:
        """What `mutua predict --json` prints."""
        return {
            "classes": list(self.classes),
            "samples": self.samples,
            "labels": self.labels,
            "probabilities": [[round(p, 6) for p in row] for row in self.probabilities.tolist()],
            "accuracy": self.accuracy,
        }

    def write(self, file: TextIO) -> None:
        """CSV: sample, predicted class, and a column per class."""
        found = zip(self.samples, self.labels, self.probabilities.tolist(), strict=True)
        rows = ([name, label, *(f"{p:.6f}" for p in row)] for name, label, row in found)
        file.write(spreadsheet_csv([["sample", "predicted", *self.classes], *rows]))


def predict(model: SavedModel, path: PathLike) -> PredictionTable:
    """Predict the samples in an .npz file or a folder of images (resized to the model's input)."""
    predictor = model.predictor()
    try:
        samples, truth, names = _read(local_path(path, "path"), model.image_size, model.card.input)
    except InputError as error:
        raise InputError(f"--data: {error}") from None
    expect(model.template, samples, "--data")
    found = predictor(samples.x)
    labels = [predictor.classes[i] for i in found.argmax(1).tolist()]
    right = None
    if truth is not None and set(truth) & set(predictor.classes):
        right = sum(a == b for a, b in zip(labels, truth, strict=True)) / len(labels)
    return PredictionTable(names, predictor.classes, found, labels, right)


def _read(
    path: Path, image_size: int | None, wanted: Sequence[int]
) -> tuple[Samples, list[str] | None, list[str]]:
    """Samples, the names of their labels if they have any, and their own names: of files, or numbers."""
    if path.is_dir():
        names = [str(file.relative_to(path)) for file in image_folders.image_files(path)]
        if (plain := image_folders.plain_images(path, image_size)) is not None:
            read = fitting(plain.shape, wanted)
            return Samples.of(plain, np.zeros(len(plain)), name=str(path), **read), None, names
        samples = sources.load("folder", path=path, image_size=image_size, fits=wanted).train
    else:
        held = array_files.npz_file(path)
        key = next((key for key in ("x", "x_test") if key in held), None)
        if key is None:
            raise InputError(f"{path} has no array 'x' or 'x_test' (it has {', '.join(held) or 'none'})")
        x, labels = held[key], held.get(key.replace("x", "y", 1))
        if 0 in x.shape[1:]:  # it takes no memory, however many samples there are said to be
            raise InputError(f"{path}: x: shape {x.shape}: samples without values")
        names, read = [str(i) for i in range(len(np.atleast_1d(x)))], fitting(x.shape, wanted)
        if labels is None:
            return Samples.of(x, np.zeros(len(names)), name=str(path), **read), None, names
        classes = None if (found := held.get("classes")) is None else found.tolist()
        samples = Samples.of(x, labels, classes=classes, name=str(path), **read)
    return samples, [samples.classes[i] for i in samples.y.tolist()], names


def export(model: SavedModel, out: PathLike) -> tuple[Path, Path]:
    """Copy weights and card to a new folder: safetensors and JSON, readable without mutua."""
    _ = model.weights  # refuses a damaged file
    with fill_folder(out) as folder:
        weights, card = folder / "model.safetensors", folder / "card.json"
        shutil.copyfile(model.path / model.card.weights, weights)
        described = model.card.model_copy(update={"weights": weights.name})
        card.write_text(to_json(described.model_dump(mode="json")) + "\n", encoding="utf-8")
    return weights, card
