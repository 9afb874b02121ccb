"""A model in a folder: weights as safetensors, and a card that says what it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import torch
from pydantic import ConfigDict, Discriminator, Field, PositiveInt, Tag, ValidationError, model_validator
from torch import nn

from mutua.data.model_input import ModelInput
from mutua.data.samples import Preprocess, Samples
from mutua.data.table_encoding import AppliedEncoding, TableEncoding
from mutua.data.text_encoding import TextEncoding
from mutua.errors import InputError, MutuaError
from mutua.learning.tasks import CLASSIFICATION, Aim, TaskSection, plain
from mutua.models import Architecture
from mutua.models.composite import COMPOSITE, build_composite, of_mixture
from mutua.models.splice import Share
from mutua.runs.predictor import Predictor
from mutua.support import safe_reading
from mutua.support.configuration import PathLike, Spec, explain, local_path
from mutua.support.files import FILE_NAME, AtomicFiles, reason, to_json
from mutua.support.importing import reading_untrusted_file
from mutua.support.tensor_files import Tensors, encode_tensors

_DTYPES: dict[torch.dtype, Literal["uint8", "int32"]] = {torch.uint8: "uint8", torch.int32: "int32"}
MOST_INPUTS = 2**26
"""The most numbers in one sample: images are resized to what a card says."""


def _kind_of(value: Any) -> str:
    """Which preprocessing a card describes."""
    for tag, key, kind in (("table", "columns", TableEncoding), ("text", "length", TextEncoding)):
        if isinstance(value, kind) or (isinstance(value, Mapping) and key in value):
            return tag
    if isinstance(value, AppliedEncoding) or (isinstance(value, Mapping) and "given" in value):
        return "applied"
    return "values"


CardEncoding = Annotated[
    Annotated[Preprocess, Tag("values")]
    | Annotated[TableEncoding, Tag("table")]
    | Annotated[TextEncoding, Tag("text")]
    | Annotated[AppliedEncoding, Tag("applied")],
    Discriminator(_kind_of),
]


class StoredJson(Spec):
    """The contents of a JSON file in a run folder; a newer mutua may have added fields."""

    model_config = ConfigDict(extra="ignore")


class ModelCard(StoredJson):
    """What a model is, expects and predicts: enough to rebuild it without mutua."""

    architecture: dict[str, Any]
    input: Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=3)]
    dtype: Literal["uint8", "float32", "int32"]
    classes: tuple[str, ...]
    preprocess: CardEncoding
    formula: str = "(x * scale - mean) / std, by channel"
    weights: str = Field(pattern=rf"^{FILE_NAME}\.safetensors$")
    share: Share = "all"
    client: str | None = None
    accuracy: float | None = None
    task: TaskSection | None = None
    """What the outputs are, where that is not one class of several."""
    score: float | None = None
    """Of the task's headline metric on the client's own test data, if that is not accuracy."""

    @model_validator(mode="after")
    def _fits_channels(self) -> Self:
        if math.prod(self.input) > MOST_INPUTS:
            raise ValueError(f"input: {self.input}; a sample has at most {MOST_INPUTS} numbers")
        match self.preprocess:
            case TableEncoding(columns=columns) if self.input != (len(columns),):
                raise ValueError(f"preprocess.columns: {len(columns)} for inputs {self.input}")
            case TextEncoding(length=length) if self.input != (length,):
                raise ValueError(f"preprocess.length: {length} for inputs {self.input}")
        for name in ("mean", "std") if isinstance(self.preprocess, Preprocess) else ():
            numbers = getattr(self.preprocess, name)
            if len(numbers) not in (1, self.input[0]):
                raise ValueError(f"preprocess.{name}: {len(numbers)} numbers for {self.input[0]} channels")
        return self

    @classmethod
    def of(cls, architecture: Mapping[str, Any], samples: Samples, **more: Any) -> ModelCard:
        """The card of a model that takes such samples."""
        own = samples.preprocess
        formula = {"formula": own.formula} if isinstance(own, TableEncoding | TextEncoding) else {}
        return cls(
            architecture=dict(architecture),
            input=tuple(samples.x.shape[1:]),
            dtype=_DTYPES.get(samples.x.dtype, "float32"),
            classes=samples.classes,
            preprocess=samples.preprocess,
            **{**formula, **more},
        )

    @property
    def aim(self) -> Aim:
        """What the model was to learn."""
        return self.task or CLASSIFICATION


class SavedModel:
    """A folder with weights and a card."""

    def __init__(self, path: PathLike) -> None:
        self.path = local_path(path, "RUN")
        self.card = read_json(self.path / "card.json", ModelCard)

    @property
    def weights(self) -> Tensors:
        """The arrays of the model that the card describes."""
        file = self.path / self.card.weights
        try:
            return safe_reading.read_arrays(file)
        except safe_reading.Unreadable as error:
            raise InputError(f"RUN: {file} cannot be read ({reason(error)}); it is damaged or missing") from None

    @property
    def offered(self) -> dict[str, Tensors]:
        """Other weights of the same design in its folder: of several globals all, for a newcomer to choose."""
        try:
            files = [file for file in sorted(self.path.glob("*.safetensors")) if file.name != self.card.weights]
            return {file.stem: safe_reading.read_arrays(file) for file in files}
        except safe_reading.Unreadable as error:
            raise InputError(f"RUN: {self.path} cannot be read ({reason(error)}); it is damaged") from None

    @property
    def architecture(self) -> Architecture:
        """The architecture, if it is a single model."""
        try:
            return self._named({**self.card.architecture, "share": self.card.share})
        except InputError as error:
            raise InputError(f"RUN: {self.path / 'card.json'}: {error}") from None

    @property
    def template(self) -> Samples:
        """The classes, preprocessing and shape that the model expects, without samples."""
        kind, names = self.card.aim.kind, self.card.classes
        one = kind == "classification"
        return Samples(
            torch.empty(0, *self.card.input, dtype=getattr(torch, self.card.dtype)),
            torch.empty(0, dtype=torch.long) if one else torch.empty(0, len(names)),
            names,
            self.card.preprocess,
            kind=kind,
        )

    @property
    def image_size(self) -> int | None:
        """The side to which images are resized for this model; None if it takes no square images."""
        _, *sides = self.card.input
        return sides[0] if len(sides) == 2 and sides[0] == sides[1] else None

    def predictor(self, model: Any = None) -> Predictor:
        """The model, ready for raw inputs; `model` is what it was, if that was an object in Python."""
        weights, like = self.weights, self.template
        try:
            if model is None:
                module = self._build(weights)
            else:
                build, classes = Architecture.of(model).build, len(like.classes)
                module = build(
                    channels=like.channels, size=like.size, classes=classes, seed=0, input=like.model_input
                )
            module.load_state_dict(weights)
        except MutuaError as error:
            raise InputError(f"RUN: {self.path / 'card.json'}: {error}") from None
        except Exception as error:  # whatever a damaged card or file makes torch raise
            raise InputError(f"RUN: {self.path}: weights and card do not fit ({reason(error)})") from error
        return Predictor(module.eval(), like, self.card.aim)

    def _build(self, weights: Tensors) -> nn.Module:
        spec, classes = self.card.architecture, len(self.card.classes)
        most = sum(array.nbytes for array in weights.values())
        if spec.get("name") == "mixture":  # of the first cards
            spec = of_mixture(spec)
        if spec.get("name") == COMPOSITE:
            return build_composite(
                spec, weights, lambda part: self._part(part, int(part.get("outputs", classes)), most)
            )
        return self._part(spec, classes, most)

    def _part(self, spec: Mapping[str, Any], classes: int, most: int) -> nn.Module:
        """One model; a model of the zoo that takes more bytes than `most` is refused, whatever its card says."""
        samples, architecture = self.template, self._named(spec)
        given = ModelInput.of(int(spec["inputs"]), 1) if "inputs" in spec else samples.model_input
        build = partial(
            architecture.build, channels=given.channels, size=given.size, classes=classes, seed=0, input=given
        )
        if architecture.registered:
            with torch.device("meta"):  # models there have shapes but take no memory
                takes = sum(array.nbytes for array in build().state_dict().values())
            if takes > most:
                raise ValueError(f"'{architecture.label}' takes {takes} bytes, the weights have {most}")
        return build()

    def _named(self, spec: Mapping[str, Any]) -> Architecture:
        with reading_untrusted_file(self.path / "card.json"):
            return Architecture.of({key: value for key, value in spec.items() if key not in ("outputs", "inputs")})


def scored(aim: Aim, score: float | None = None) -> dict[str, Any]:
    """A card's entries on what its model has learned, and how well."""
    found: dict[str, Any] = {} if plain(aim) else {"task": aim}
    return found | {"accuracy" if aim.headline == "accuracy" else "score": score}


def put_model(files: AtomicFiles, folder: Path, groups: Mapping[str, Tensors], card: ModelCard) -> None:
    """Write weights as safetensors, one file per group, and the card."""
    put_weights(files, folder, groups)
    files.write(folder / "card.json", to_json(card_json(card)) + "\n")


def card_json(card: ModelCard) -> dict[str, Any]:
    """A card as JSON: of tasks only what is not usual."""
    return {k: v for k, v in card.model_dump(mode="json").items() if v is not None or k not in ("task", "score")}


def put_weights(files: AtomicFiles, folder: Path, groups: Mapping[str, Tensors]) -> None:
    """Write weights as safetensors, one file per group."""
    for name, arrays in groups.items():
        files.write(folder / f"{name}.safetensors", *encode_tensors(arrays))


K = TypeVar("K", bound=StoredJson)


def read_json(path: Path, kind: type[K]) -> K:
    """Read and check such a file."""
    try:
        return kind.model_validate(safe_reading.from_json(safe_reading.read_text(path)))
    except ValidationError as error:
        raise InputError(f"RUN: {path}: {explain(error, kind)}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"RUN: {path} cannot be read ({reason(error)}); it is damaged or missing") from None
