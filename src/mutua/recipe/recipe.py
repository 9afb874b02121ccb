"""Recipes: a whole experiment in a file, checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SerializeAsAny,
    Tag,
    field_serializer,
    field_validator,
    model_validator,
)

from mutua.data.partitions import IID, Partition, dealt_by
from mutua.data.samples import Layout
from mutua.data.sources import Source, load
from mutua.data.splits import ClientData, Dealt, Split, split_and_deal
from mutua.engines.faults import Faults
from mutua.errors import InputError
from mutua.federation.federation import Client, Federation
from mutua.federation.plan import Plan
from mutua.methods import base
from mutua.methods.base import Method
from mutua.models import Architecture
from mutua.recipe.grid import Axes, Cell, Grid, cells, changed, put
from mutua.recipe.sections import Checkpoints, OptOut, PublicSet
from mutua.seeds import derive
from mutua.support import safe_reading
from mutua.support.configuration import PathLike, Spec, checked, read_yaml
from mutua.support.text import several


class _Section(Spec):
    model_config = ConfigDict(populate_by_name=True, arbitrary_types_allowed=True)


class Data(_Section):
    """Where samples come from and how many are used."""

    name: str
    path: Path | None = None
    image_size: int | None = Field(None, ge=1, le=8192)
    classes: tuple[str, ...] | None = Field(None, min_length=1)
    layout: Layout | None = None
    channels: Literal[3] | None = None
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

    def source(self, data_dir: PathLike | None, at: str = "data", opt_out: OptOut | None = None) -> Source:
        """The samples, loaded; `at` is where in the recipe this stands, and a path counts from where you are."""
        mask = None if opt_out is None else opt_out.mask
        given: dict[str, Any] = {"path": self.path, "image_size": self.image_size, "classes": self.classes}
        given |= {"layout": self.layout, "channels": self.channels}
        try:
            return load(self.name, data_dir=data_dir, mask=mask, **given)
        except InputError as error:
            raise InputError(f"{at}: {str(error).removeprefix('data: ')}") from None


# Told apart by hand: tried in turn, a list would be refused as a model before it is seen as several.
OneOrEach = Annotated[
    Annotated[Architecture, Tag("one")] | Annotated[list[Architecture], Tag("each")],
    Discriminator(lambda value: "each" if isinstance(value, list) else "one"),
]


class Models(_Section):
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


class Recipe(Plan):
    """Data, partition, models, method and plan."""

    model_config = ConfigDict(populate_by_name=True, arbitrary_types_allowed=True)

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=80)
    data: Data | None = None
    partition: Partition | None = None
    models: Models = Field(default_factory=Models)
    clients: list[ClientEntry] | None = Field(None, min_length=1)
    method: SerializeAsAny[Method]
    public: PublicSet | None = None
    opt_out: OptOut | None = None
    faults: Faults | None = None
    checkpoints: Checkpoints = Field(default_factory=Checkpoints)
    grid: Grid | None = None

    @field_validator("method", mode="before")
    @classmethod
    def _read_method(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"name": value}
        return base.method_of(value) if isinstance(value, Mapping) else value

    @field_serializer("method")
    def _write_method(self, method: Method) -> dict[str, Any]:
        return base.section_of(method)

    @model_validator(mode="after")
    def _one_way(self) -> Recipe:
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
        seed = dealt_by(self.partition, self.seed)
        if self.clients is not None:
            federation, sources = self._of_clients(data_dir)
        else:
            assert self.data is not None and self.partition is not None
            source = self.data.source(data_dir, opt_out=self.opt_out)
            dealt = _deal(source, self.data, self.partition, seed)
            if self.opt_out is not None:
                dealt = replace(dealt, clients=self.opt_out.applied(dealt.clients, seed))
            federation = Federation.of(dealt, self.models.clients, self.models.global_model)
            sources = [source]
        if self.public is not None and all(source.lists for source in sources):
            # FedH2L's PACS: a share of the listed test images, and all listed training images stay private.
            federation = self.public.applied(federation, seed, lambda client: len(client.test), "test")
        elif self.public is not None:
            # A share of all data: a test set that came with the data is not the client's to give.
            given_test = any(source.test is not None for source in sources)

            def whole(client: Client) -> int:
                return len(client.train) + len(client.val) + (0 if given_test else len(client.test))

            federation = self.public.applied(federation, seed, whole)
        return federation

    def _of_clients(self, data_dir: PathLike | None) -> tuple[Federation, list[Source]]:
        assert self.clients is not None
        groups: dict[Data, list[str]] = {}
        for entry in self.clients:
            groups.setdefault(entry.data, []).append(entry.id)
        sources: dict[tuple[Any, ...], Source] = {}
        parts: dict[str, ClientData] = {}
        notes: list[str] = []
        for data, members in groups.items():
            ids = sorted(members)
            key = data.name, data.path, data.image_size, data.classes, data.layout, data.channels
            at, who = f"clients.{ids[0]}.data", ", ".join(ids)
            if key in sources:
                notes.append(f"{who}: the same data as others, differently drawn: they may have samples in common")
            source = sources.get(key) or sources.setdefault(key, data.source(data_dir, at, self.opt_out))
            # Clients that name the same data share it out: no sample is in two clients' hands.
            dealt = _deal(source, data, IID(clients=len(ids)), derive(self.seed, *ids), at, alone=True)
            parts |= {name: replace(part, id=name) for name, part in zip(ids, dealt.clients, strict=False)}
            notes += [f"{who}: {note}" for note in dealt.notes]
        ordered = [parts[entry.id] for entry in self.clients]
        if self.opt_out is not None:
            ordered = self.opt_out.applied(ordered, self.seed)
        models = [entry.model for entry in self.clients]
        federation = Federation.of_clients(ordered, models, self.models.global_model, tuple(notes))
        return federation, list(sources.values())

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


def _deal(
    source: Source, data: Data, partition: Partition, seed: int, at: str = "data", *, alone: bool = False
) -> Dealt:
    """The samples, split and dealt; `alone`: others have data too, so that all of this may be opted out."""
    train, val, test = source.train, None, source.test
    if source.lists is not None:
        if data.split.val_from == "test":
            raise InputError(f"{at}.split.val_from: test, but list files say what is val; leave it out")
        train, val, test = (source.train.take(source.lists[part]) for part in ("train", "val", "test"))
    whole = alone and train.opted_out is not None and bool(train.opted_out.all())
    if whole:  # so there is nothing else to keep it from
        train = replace(train, opted_out=None)
        val, test = (None if part is None else replace(part, opted_out=None) for part in (val, test))
    try:
        dealt = split_and_deal(
            train,
            test,
            partition,
            data.split,
            val=val,
            samples_per_client=data.samples_per_client,
            test_samples=data.test_samples,
            seed=seed,
        )
    except InputError as error:
        raise InputError(str(error) if str(error).startswith("partition") else f"{at}.{error}") from None
    if whole:
        dealt = replace(dealt, clients=[part.opted_out() for part in dealt.clients])
    return replace(dealt, notes=[*dealt.notes, source.note]) if source.note else dealt


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
