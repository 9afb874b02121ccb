"""Recipes: a whole experiment in a file, checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    field_serializer,
    field_validator,
    model_validator,
)

from mutua.data.partitions import Partition
from mutua.engines.faults import Faults
from mutua.errors import InputError
from mutua.federation.federation import Federation
from mutua.federation.plan import Plan
from mutua.federation.store_settings import StoreSettings, StoresSection
from mutua.learning.tasks import TaskSection, aim_of
from mutua.methods import base
from mutua.methods.base import Method
from mutua.methods.no_regret import NoRegret
from mutua.models import Architecture
from mutua.recipe.build_federation import make_federation
from mutua.recipe.checkpoint_settings import CheckpointSettings
from mutua.recipe.clients import ClientEntry, Data, ModelsSection
from mutua.recipe.grid import Axes, Cell, Grid, cells, changed, put
from mutua.recipe.opt_out import OptOut
from mutua.recipe.public_set import PublicSet
from mutua.support import safe_reading
from mutua.support.configuration import PathLike, checked, read_yaml
from mutua.support.files import FILE_NAME
from mutua.support.text import several

FEDERATION_FIELDS = ("data", "partition", "clients", "models", "public", "opt_out", "task")
"""The fields that describe the federation; the seed does too."""


class Recipe(Plan):
    """Data, partition, models, method and plan."""

    model_config = ConfigDict(populate_by_name=True, arbitrary_types_allowed=True)

    name: str = Field("run", pattern=f"^{FILE_NAME}$", max_length=80)
    data: Data | None = None
    partition: Partition | None = None
    models: ModelsSection = Field(default_factory=ModelsSection)
    clients: list[ClientEntry] | None = Field(None, min_length=1)
    task: TaskSection | None = None
    method: SerializeAsAny[Method] = Field(default_factory=NoRegret)
    public: PublicSet | None = None
    opt_out: OptOut | None = None
    faults: Faults | None = None
    checkpoints: CheckpointSettings = Field(default_factory=CheckpointSettings)
    stores: StoresSection = Field(default_factory=StoreSettings)
    grid: Grid | None = None

    @field_validator("method", mode="before")
    @classmethod
    def _read_method(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"name": value}
        return base.method_of(value) if isinstance(value, Mapping) else value

    @field_validator("task", mode="before")
    @classmethod
    def _read_task(cls, value: Any) -> Any:
        return None if value is None else aim_of(value)

    @field_serializer("method")
    def _write_method(self, method: Method) -> dict[str, Any]:
        return base.section_of(method)

    @model_validator(mode="after")
    def _check_sections(self) -> Recipe:
        if self.clients is not None:
            for field in ("data", "partition"):
                if getattr(self, field) is not None:
                    raise ValueError(f"clients and {field} are both given; a recipe has one of them")
            if self.models.clients is not None:
                raise ValueError("clients and models.clients are both given; each client names its own model")
        elif self.data is None or self.partition is None:
            missing = "data" if self.data is None else "partition"
            raise ValueError(f"{missing} is missing; give data and partition, or clients")
        elif self.models.clients is None and self.models.global_model is None:
            raise ValueError("models is missing; name models.global, models.clients or both")
        datas = [self.data, *(entry.data for entry in self.clients or [])]
        if self.selection == "best" and any(data and data.split.val_from == "test" for data in datas):
            raise ValueError("selection: best, but with val_from: test that would be best on test; use 'last'")
        if self.public is not None and self.opt_out is not None:
            raise ValueError("public and opt_out are both given; what is public cannot be opted out")
        return self

    def __repr__(self) -> str:
        who = several(len(self.clients), "client") if self.clients else repr(self.partition)
        data = "" if self.data is None else f", {self.data.name}"
        plan = f"{several(self.rounds, 'round')}, seed {self.seed}"
        return f"Recipe({self.name}: {self.method.name}{data}, {who}, {plan}; recipe.dump() is the whole)"

    __str__ = __repr__

    @classmethod
    def load(cls, path: PathLike, overrides: Sequence[str] = ()) -> Recipe:
        """The recipe in a YAML file, with `a.b=c` overrides."""
        return cls.of(read_recipe(path, overrides), path)

    @classmethod
    def of(cls, tree: Mapping[str, Any], path: PathLike | None = None) -> Recipe:
        """The recipe of a mapping such as YAML gives; `path` is where it was read, for complaints."""
        return checked(cls, tree, path)

    def with_(self, **changes: Any) -> Recipe:
        """The same recipe with some fields changed."""
        return self.model_copy(update=changes)

    def plan(self) -> Plan:
        """How long, how fast and with which seed."""
        return Plan(**{name: getattr(self, name) for name in Plan.model_fields})

    def federation(self, data_dir: PathLike | None = None) -> Federation:
        """The clients, with their data loaded and dealt, the public set and what is opted out."""
        return make_federation(self.seed, data_dir, **{name: getattr(self, name) for name in FEDERATION_FIELDS})

    @property
    def code(self) -> list[str]:
        """The code from outside mutua that it names, each "package.module:name"."""
        each = self.models.clients or []
        models = [self.models.global_model, *(each if isinstance(each, list) else [each])]
        models += [*(entry.model for entry in self.clients or []), *models_in(self.method)]
        names = [base.section_of(self.method)["name"], *(model.spec()["name"] for model in models if model)]
        names += [self.opt_out.censor or ""] if self.opt_out else []
        return list(dict.fromkeys(name for name in names if ":" in name))

    def dump(self) -> str:
        """The full recipe as YAML, defaults filled in but for those of `clients`: there may be thousands."""
        tree = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"clients"})
        if self.clients is not None:
            tree["clients"] = [
                entry.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
                for entry in self.clients
            ]
        # What is done, then how long and how fast: as people write it.
        order = sorted(tree, key=lambda field: field in Plan.model_fields)
        return yaml.safe_dump({field: tree[field] for field in order}, sort_keys=False, allow_unicode=True)


def models_in(value: object) -> Iterator[Architecture]:
    """The models that a method's options name, such as a gate."""
    if isinstance(value, Architecture):
        yield value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from models_in(getattr(value, name))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from models_in(one)


def read_recipe(path: PathLike, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What a recipe's file says, with `a.b=c` overrides; not yet checked."""
    tree = read_yaml(path, "recipe")
    for override in overrides:
        _set(tree, override)
    return tree


def expand(tree: Mapping[str, Any], grid: Axes, path: Path | None = None) -> list[tuple[Cell, Recipe]]:
    """Every cell of a grid with its recipe; no two are the same run, as where an axis undoes another's changes."""
    plain = {key: value for key, value in tree.items() if key != "grid"}
    found = []
    for cell in cells(grid):
        where = f"{path}: grid: '{cell.name}'" if path else f"grid: '{cell.name}'"
        try:
            found.append((cell, Recipe.of(changed(plain, cell.changes, "changes"))))
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    known: dict[str, Cell] = {}
    for cell, recipe in found:
        twin = known.setdefault(recipe.dump(), cell)
        if twin is not cell:
            raise InputError(
                f"{path or 'recipe'}: grid: '{twin.name}' and '{cell.name}' are the same run; put an axis that "
                "changes less, such as method.alpha, after one that changes more, such as method"
            )
    return found


def _set(tree: dict[str, Any], override: str) -> None:
    """Apply `a.b=c`; c is read as YAML."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise InputError(f"--set {override}: write it as key.key=value, such as method.alpha=0.3")
    try:
        value = safe_reading.from_yaml(text)
    except safe_reading.Unreadable:
        raise InputError(f"--set {override}: '{text}' is not a YAML value") from None
    put(tree, path, value, f"--set {override}")
