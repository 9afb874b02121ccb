"""Models by name: the zoo's, and those that users add with `@register`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import nn

from mutua.data.model_input import NAMES, InputKind, ModelInput
from mutua.errors import InputError, suggest

Factory = TypeVar("Factory", bound=Callable[..., Any])
_factories: dict[str, Callable[..., nn.Module]] = {}
_takes: dict[str, tuple[InputKind, ...]] = {}


def register_model(name: str, takes: Sequence[InputKind] = tuple(NAMES)) -> Callable[[Factory], Factory]:
    """Give a factory or class a model name; its docstring's first line describes it.

    `takes` says which kinds of inputs it is for; other data is refused.
    """

    def add(factory: Factory) -> Factory:
        if ":" in name or not name:
            raise InputError(f"models: '{name}' cannot be a model's name; give one without a colon")
        # A notebook cell that runs again defines the same thing again; anything else is a mistake.
        if name in _factories and _origin(_factories[name]) != _origin(factory):
            raise InputError(f"models: '{name}' is taken; register under another name")
        _factories[name] = factory
        _takes[name] = tuple(takes)
        return factory

    return add


def _origin(factory: Callable[..., Any]) -> tuple[str, str]:
    return factory.__module__, getattr(factory, "__qualname__", "")


def model_names() -> list[str]:
    """The names of all registered models, sorted."""
    return sorted(_factories)


def find_model(name: str) -> Callable[..., nn.Module]:
    """The factory registered under this name."""
    if name not in _factories:
        raise InputError(f"models: '{name}' is not a model; {suggest(name, model_names())}")
    return _factories[name]


def describe_model(name: str) -> str:
    """One line about the model of this name."""
    return (inspect.getdoc(find_model(name)) or "").partition("\n")[0]


def check_input(name: str, given: ModelInput) -> None:
    """Refuse a registered model whose inputs are of another kind than the data."""
    if given.kind not in _takes[name]:
        fit = ", ".join(other for other in model_names() if given.kind in _takes[other])
        theirs = " or ".join(NAMES[kind] for kind in _takes[name])
        raise InputError(f"models: '{name}' takes {theirs}, and the data is {NAMES[given.kind]}; use {fit}")


def taken_by(name: str) -> tuple[InputKind, ...]:
    """Which kinds of inputs a registered model is for."""
    return _takes[name]
