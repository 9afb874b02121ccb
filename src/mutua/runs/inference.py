"""Using a saved model: its predictions, and a copy of it for use elsewhere."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from torch import Tensor

from mutua.data import array_files, image_folders, sources
from mutua.data.layouts import fitting
from mutua.data.samples import Samples
from mutua.data.tabular_reading import read_like
from mutua.data.tabular_sources import KINDS
from mutua.errors import InputError
from mutua.learning.headline import Headline
from mutua.learning.tasks import CLASSIFICATION, Aim
from mutua.runs.predictor import Predictor, expect, named
from mutua.runs.saved_models import SavedModel, card_json
from mutua.support.configuration import PathLike, local_path
from mutua.support.files import to_json
from mutua.support.folders import fill_folder
from mutua.support.text import spreadsheet_csv


@dataclass(frozen=True)
class PredictionTable:
    """Predicted labels and the probability of each class; accuracy if the data has labels that the model knows.

    It is of the samples that have a label.

    Of a regression, `probabilities` are values; `score` is the headline metric of tasks that have another one.
    """

    samples: list[str]
    classes: tuple[str, ...]
    probabilities: Tensor
    labels: list[str]
    accuracy: float | None
    aim: Aim = CLASSIFICATION
    score: float | None = None

    @property
    def headline(self) -> Headline:
        """What `score` is."""
        return Headline(self.aim.headline)

    def summary(self) -> dict[str, Any]:
        """What `mutua predict --json` prints."""
        found: dict[str, Any] = {"classes": list(self.classes), "samples": self.samples}
        if self.aim.kind == "regression":
            found["values"] = self.probabilities.tolist()
        else:
            found["labels"] = self.labels
            found["probabilities"] = [[round(p, 6) for p in row] for row in self.probabilities.tolist()]
        metric = "accuracy" if self.aim.kind == "classification" else self.headline.metric
        return found | {metric: self.accuracy if metric == "accuracy" else self.score}

    def write(self, file: TextIO) -> None:
        """CSV: sample, predicted class, and a column per class; of a regression sample and values."""
        if self.aim.kind == "regression":
            values = zip(self.samples, self.probabilities.tolist(), strict=True)
            table = [["sample", *self.classes], *([name, *(f"{v:.9g}" for v in row)] for name, row in values)]
            file.write(spreadsheet_csv(table))
            return
        found = zip(self.samples, self.labels, self.probabilities.tolist(), strict=True)
        rows = ([name, label, *(f"{p:.6f}" for p in row)] for name, label, row in found)
        file.write(spreadsheet_csv([["sample", "predicted", *self.classes], *rows]))


def predict(model: SavedModel, path: PathLike) -> PredictionTable:
    """Predict the samples in an .npz file or a folder of images (resized to the model's input)."""
    predictor = model.predictor()
    try:
        samples, truth, names = _read(local_path(path, "path"), model)
    except InputError as error:
        raise InputError(f"--data: {error}") from None
    expect(model.template, samples, "--data")
    found = predictor(samples.x)
    labels = named(found, model.template)
    if predictor.aim.kind != "classification":
        return _of_matrix(predictor, samples if truth else None, found, labels, names)
    right = None
    if truth is not None and set(truth) & set(predictor.classes):
        known = [(said, true) for said, true in zip(labels, truth, strict=True) if true]
        right = sum(said == true for said, true in known) / len(known)
    return PredictionTable(names, predictor.classes, found, labels, right)


def _of_matrix(
    predictor: Predictor, known: Samples | None, found: Tensor, labels: list[str], names: list[str]
) -> PredictionTable:
    """The predictions of several labels or of values; measured if the data has them too."""
    aim, score = predictor.aim, None
    if known is not None and {*known.classes} == {*predictor.classes}:
        held = known.relabelled(predictor.classes)
        score = aim.of(predictor.samples).metrics(found, held.y)[aim.headline]
    return PredictionTable(names, predictor.classes, found, labels, None, aim, score)


def _read(path: Path, model: SavedModel) -> tuple[Samples, list[str] | None, list[str]]:
    """Samples, the names of their labels if they have any, and their own names: of files, or numbers."""
    image_size, wanted, kind = model.image_size, model.card.input, model.card.aim.kind
    if model.template.model_input.kind in KINDS:
        samples, truth = read_like(path, model.template)
        return samples, truth, [str(i) for i in range(len(samples))]
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
        if kind != "classification":
            columns = np.shape(labels)[1] if np.ndim(labels) == 2 else 1
            if classes is None and columns == len(model.card.classes):
                classes = list(model.card.classes)
            samples = Samples.of(x, labels, classes=classes, kind=kind, name=str(path), **read)
            return samples, list(samples.classes), names
        samples = Samples.of(x, labels, classes=classes, name=str(path), **read)
    return samples, [samples.classes[i] for i in samples.y.tolist()], names


def export(model: SavedModel, out: PathLike) -> tuple[Path, Path]:
    """Copy weights and card to a new folder: safetensors and JSON, readable without mutua."""
    _ = model.weights  # refuses a damaged file
    with fill_folder(out) as folder:
        weights, told = folder / "model.safetensors", folder / "card.json"
        shutil.copyfile(model.path / model.card.weights, weights)
        card = model.card.model_copy(update={"weights": weights.name})
        told.write_text(to_json(card_json(card)) + "\n", encoding="utf-8")
    return weights, told
