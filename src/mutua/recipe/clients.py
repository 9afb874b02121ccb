"""What a recipe says of its clients: their data and their models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from mutua.data.layouts import Layout
from mutua.data.splits import Split
from mutua.data.tabular_sources import Tabular
from mutua.errors import InputError
from mutua.models import Architecture
from mutua.support.configuration import Spec


class _Section(Spec):
    model_config = ConfigDict(populate_by_name=True, arbitrary_types_allowed=True)


class Data(_Section, Tabular):
    """Where samples come from and how many are used."""

    name: str
    path: Path | None = None
    image_size: int | None = Field(None, ge=1, le=8192)
    classes: tuple[str, ...] | None = Field(None, min_length=1)
    layout: Layout | None = None
    channels: Literal[3] | None = None
    mapped: bool | None = None
    samples_per_client: int | None = Field(None, ge=1)
    test_samples: int | None = Field(None, ge=1)
    split: Split = Field(default_factory=Split)

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("classes", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return [str(name) for name in value] if isinstance(value, list) else value


# Told apart by hand: tried in turn, a list would be refused as a model before it is seen as several.
OneOrEach = Annotated[
    Annotated[Architecture, Tag("one")] | Annotated[list[Architecture], Tag("each")],
    Discriminator(lambda value: "each" if isinstance(value, list) else "one"),
]


class ModelsSection(_Section):
    """The global's architecture, and one for all clients or one per client."""

    global_model: Architecture | None = Field(None, alias="global")
    clients: OneOrEach | None = None

    @field_validator("global_model", mode="before")
    @classmethod
    def _read_global(cls, value: Any) -> Any:
        return _architecture(value, "models.global")

    @field_validator("clients", mode="before")
    @classmethod
    def _read_clients(cls, value: Any) -> Any:
        if isinstance(value, list):
            return [_architecture(one, f"models.clients.{i}") for i, one in enumerate(value)]
        return _architecture(value, "models.clients")


class ClientEntry(_Section):
    """One client with data and a model of its own."""

    id: str
    data: Data
    model: Architecture

    @model_validator(mode="before")
    @classmethod
    def _read_model(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "model" not in values:
            return values
        return {**values, "model": _architecture(values["model"], f"clients.{values.get('id')}.model")}


def _architecture(value: Any, at: str) -> Architecture | None:
    """The architecture at this place of the recipe, which a complaint names."""
    try:
        return None if value is None else Architecture.of(value)
    except InputError as error:
        raise InputError(f"{at}{str(error).removeprefix('models')}") from None
