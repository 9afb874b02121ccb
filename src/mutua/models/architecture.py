"""Architecture: what a recipe or a user says about one model, and how it is built."""

from __future__ import annotations

import copy
import inspect
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from torch import Tensor, nn

from mutua.data.model_input import ModelInput
from mutua.errors import InputError, suggest
from mutua.models import registry
from mutua.models.gaussian import Gaussian
from mutua.models.parts import Size, sides
from mutua.models.splice import Pooled, Share
from mutua.support import safe_reading
from mutua.support.configuration import BOOL_FOR_NUMBER, Spec, local_path
from mutua.support.importing import check_trusted, import_factory, path_of, trust_object
from mutua.support.text import of_width

_EXPECTED = {
    "name": "a model's name, 'package.module:factory', a factory or an nn.Module",
    "width": "a number above 0",
    "init": "the path of a safetensors or state_dict file",
    "share": "all, body, head or a list of names",
    "features": "a whole number above 0",
    "gaussian": "a number from -50 to 50",
}


class Architecture(Spec):
    """A model by name, by factory or as an object, with its width, starting weights and shared part."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: str | nn.Module | Callable[..., Any]
    width: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    init: Path | None = None
    share: Share = "all"
    features: int | None = Field(default=None, ge=1)
    """To how many numbers the head's input is pooled, before a new linear head."""
    gaussian: float | None = Field(default=None, ge=-50, le=50)
    """The ρ that all weights start with, if they are distributions N(μ, softplus(ρ)²)."""

    @classmethod
    def of(cls, value: Any) -> Architecture:
        """The architecture that a name, factory, class, module, dict or Architecture stands for."""
        return cls.model_validate(value)

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, value: Any, handler: ModelWrapValidatorHandler[Architecture]) -> Architecture:
        if not isinstance(value, dict | Architecture):
            value = {"name": value}
        try:
            made = handler(value)
        except ValidationError as error:
            raise InputError(_one_line(error)) from None
        if made.registered:
            registry.find_model(str(made.name))
        elif made.width != 1:
            raise InputError(f"models.width: {made.width} for '{made.label}'; only registered models take one")
        elif isinstance(made.name, str):
            check_trusted(made.name, "models")  # now, while the file that names it is known; imported when built
        elif not isinstance(made.name, nn.Module):
            trust_object(made.name)
        return made

    @property
    def label(self) -> str:
        """A readable name: the zoo's, 'package.module:factory', or that of the function or class."""
        if isinstance(self.name, str):
            return self.name
        return str(getattr(self.name, "__name__", type(self.name).__name__))

    @property
    def title(self) -> str:
        """The label, and the width where it is not 1: what tables show."""
        return of_width(self.label, self.width)

    def same_design(self, other: Architecture) -> bool:
        """Whether both are built alike, however much of each is shared."""
        return self == other.model_copy(update={"share": self.share})

    def spec(self) -> dict[str, Any]:
        """Name and width as a recipe says them; an importable function or class by its path."""
        name = self.label
        if not isinstance(self.name, str) and hasattr(self.name, "__qualname__"):
            name = path_of(self.name)
        wrapped = {"features": self.features, "gaussian": self.gaussian}
        return {
            "name": name,
            "width": self.width,
            **{key: value for key, value in wrapped.items() if value is not None},
        }

    @property
    def registered(self) -> bool:
        """Whether it is of the zoo, or of what users have added to it."""
        return isinstance(self.name, str) and ":" not in self.name

    def build(
        self, *, channels: int, size: Size, classes: int, seed: int, input: ModelInput | None = None
    ) -> nn.Module:
        """The model for such inputs and classes, initialised by `seed` alone; the global RNG is untouched.

        `input` says more of tables and texts; without it they are images or, of size 1, plain features.
        """
        if min(channels, classes, *sides(size)) < 1:
            raise InputError(
                f"models: channels {channels}, size {size}, classes {classes}; each must be 1 or more"
            )
        input = input or ModelInput.of(channels, size)
        if self.registered:
            registry.check_input(str(self.name), input)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed queues calls for a GPU that is not there
            module = self._make({"channels": channels, "size": size, "classes": classes}, input)
            if self.features is not None:
                module = Pooled(module, self.features, classes)
            if self.gaussian is not None:
                module = Gaussian(module, self.gaussian)
        if self.init is not None:
            _load(module, self.init)
        return module

    def _make(self, given: dict[str, Any], input: ModelInput) -> nn.Module:
        source = _resolve(self.name)
        if isinstance(source, nn.Module):
            return copy.deepcopy(source)
        if self.registered:
            given["width"] = self.width
        arguments = _accepted(source, given, input, self.label)
        if self.width != 1 and "width" not in arguments:
            raise InputError(f"models.width: {self.width}, but '{self.label}' takes no width; leave it out")
        try:
            module = source(**arguments)
        except InputError as error:
            raise InputError(f"models: '{self.label}': {error}") from None
        if not isinstance(module, nn.Module):
            raise InputError(f"models: '{self.label}' made a {type(module).__name__}; it must make an nn.Module")
        return module


def _one_line(error: ValidationError) -> str:
    """The first complaint of pydantic, in our words."""
    first = error.errors()[0]
    if first["type"] == BOOL_FOR_NUMBER:
        return f"models.{first['msg']}"
    field = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return f"models.{field}: no such field; {suggest(field, list(_EXPECTED))}"
    if first["type"] == "missing":
        return f"models.{field}: missing; give {_EXPECTED[field]}"
    return f"models.{field}: {reprlib.repr(first['input'])}; give {_EXPECTED[field]}"


def _resolve(name: str | nn.Module | Callable[..., Any]) -> Any:
    """The module, factory or class behind a name."""
    if not isinstance(name, str):
        return name
    if ":" not in name:
        return registry.find_model(name)
    return import_factory(name, "models")


def _accepted(factory: Callable[..., Any], given: dict[str, Any], input: ModelInput, label: str) -> dict[str, Any]:
    """Those of the given arguments that a factory takes by keyword; `input` only if it names it."""
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some builtins have none
        return {}
    kinds = {p.name: p.kind for p in signature.parameters.values()}
    everything = inspect.Parameter.VAR_KEYWORD in kinds.values()
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    arguments = {k: v for k, v in given.items() if everything or kinds.get(k) in by_keyword}
    if kinds.get("input") in by_keyword:
        arguments["input"] = input
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise InputError(
            f"models: '{label}': {error}; mutua gives channels, size, classes and input by keyword, "
            "so give other parameters a default"
        ) from None
    return arguments


def _load(module: nn.Module, path: Path) -> None:
    """Put the weights of a file into a model; names and shapes must be the model's."""
    weights = _read(local_path(path, "models.init"))
    expected = module.state_dict()
    for name, value in expected.items():
        if name not in weights:
            raise InputError(f"models.init: {path} has no entry '{name}', which the model needs")
        if weights[name].shape != value.shape:
            found, wanted = tuple(weights[name].shape), tuple(value.shape)
            raise InputError(f"models.init: '{name}' in {path} has shape {found}, the model's has {wanted}")
    for name in weights:
        if name not in expected:
            raise InputError(f"models.init: {path} has an entry '{name}', which the model lacks")
    try:
        module.load_state_dict(weights)
    except RuntimeError:
        kinds = ", ".join(sorted({str(array.dtype) for array in weights.values()}))
        raise InputError(f"models.init: {path} holds {kinds}, which the model cannot take") from None


def _read(path: Path) -> dict[str, Tensor]:
    """The named tensors of a safetensors or torch state_dict file."""
    if not path.is_file():
        raise InputError(f"models.init: no file {path}")
    try:
        return safe_reading.read_arrays(path)
    except safe_reading.Unreadable as error:
        raise InputError(f"models.init: {path} holds no readable weights ({error})") from None
