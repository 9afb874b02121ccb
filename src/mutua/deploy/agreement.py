"""What all sides of a deployment have agreed on: the recipe, classes, inputs, public set, and where the server is.

The organiser and every site have the same files: recipe.yaml, deployment.yaml, ca.pem, perhaps public.npz. A site
takes nothing of this from the network: it refuses a run whose checksum of all this is another.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml
from pydantic import Field, PositiveInt

from mutua.data.array_files import npz_file
from mutua.data.public import Public
from mutua.data.samples import Preprocess, Samples
from mutua.data.table_encoding import TableEncoding
from mutua.data.tabular_sources import declared_encoding
from mutua.data.targets import TaskKind
from mutua.data.text_encoding import TextEncoding
from mutua.errors import InputError
from mutua.federation.client import Client
from mutua.federation.federation import Federation
from mutua.learning.tasks import CLASSIFICATION, Aim
from mutua.methods import base
from mutua.methods.base import Job
from mutua.models import Architecture
from mutua.recipe.recipe import Recipe, read_recipe
from mutua.rounds.preparation import Prepared, prepare
from mutua.runs.saved_models import CardEncoding
from mutua.support.configuration import PathLike, Spec, checked, read_yaml
from mutua.support.files import AtomicFiles
from mutua.support.importing import reading_untrusted_file

RECIPE, DEPLOYMENT, PUBLIC, CA = "recipe.yaml", "deployment.yaml", "public.npz", "ca.pem"
SITE_DATA = "at-its-site"
"""The name of the data of every client in a deployment's recipe."""


class InputShape(Spec):
    """What every site's samples are like."""

    shape: tuple[PositiveInt, ...] = Field(min_length=1, max_length=3)
    """(features,), (channels, height, width), (columns,) of a table, or (words,) of a text."""
    dtype: Literal["uint8", "float32", "int32"] = "uint8"
    preprocess: CardEncoding = Preprocess()
    """How samples become a model's input; of a table, its columns. Nothing that is fitted on data."""

    @staticmethod
    def of(samples: Samples) -> InputShape:
        """What samples like these are."""
        kind: Any = str(samples.x.dtype).removeprefix("torch.")
        like = tuple(samples.x.shape[1:])
        return InputShape(shape=like, dtype=kind, preprocess=samples.preprocess.declared)

    @staticmethod
    def declared(recipe: Recipe) -> InputShape | None:
        """What a recipe says of a table or of texts, if that is all there is to know."""
        encoding = None if recipe.data is None else declared_encoding(recipe.data.name, recipe.data.tabular)
        if encoding is None:
            return None
        if isinstance(encoding, TextEncoding):
            return InputShape(shape=(encoding.length,), dtype="int32", preprocess=encoding)
        return InputShape(shape=(len(encoding.columns),), dtype="float32", preprocess=encoding)

    @property
    def tabular(self) -> bool:
        """Whether a site gives a table or texts."""
        return isinstance(self.preprocess, TableEncoding | TextEncoding)


class DeploymentFile(Spec):
    """What deployment.yaml says."""

    server: str = Field(pattern=r"^[A-Za-z0-9_.:\[\]-]+:[0-9]+$")
    """HOST:PORT, as sites reach it."""
    clients: tuple[str, ...] = Field(min_length=1)
    classes: tuple[str, ...] = Field(min_length=1)
    input: InputShape
    public_sha256: str | None = None
    public_labelled: bool = True
    wait: float = Field(180.0, ge=0)
    """Seconds for which a round waits for a site that has gone."""
    needed: int = Field(1, ge=1)
    """How many sites must be here before a run begins."""


@dataclass(frozen=True)
class Agreement:
    """The files that all sides have."""

    recipe: Recipe
    file: DeploymentFile
    public: Public | None = None

    @classmethod
    def read(cls, folder: Path, *, trusted: bool) -> Agreement:
        """The files in a folder; if somebody else wrote them, code that they name must be trusted."""
        file = checked(DeploymentFile, read_yaml(folder / DEPLOYMENT, "FOLDER"), folder / DEPLOYMENT)
        path = folder / RECIPE
        if trusted:
            recipe = Recipe.load(path)
        else:
            with reading_untrusted_file(path):
                recipe = Recipe.load(path)
        public = None
        if file.public_sha256 is not None:
            data = (folder / PUBLIC).read_bytes() if (folder / PUBLIC).is_file() else b""
            if hashlib.sha256(data).hexdigest() != file.public_sha256:
                raise InputError(
                    f"FOLDER: {folder / PUBLIC} is missing or is not the public set that all agreed on"
                )
            public = _read_public(folder / PUBLIC, file, (recipe.task or CLASSIFICATION).kind)
        return cls(recipe, file, public)

    def write(self, files: AtomicFiles, folder: Path, public: bytes | None) -> None:
        """Write them."""
        text = yaml.safe_dump(self.file.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        files.write(folder / DEPLOYMENT, "# What all sides of this deployment have agreed on.\n" + text)
        files.write(folder / RECIPE, self.recipe.dump())
        if public is not None:
            files.write(folder / PUBLIC, public)

    @cached_property
    def checksum(self) -> str:
        """The checksum of all that decides what is computed and what leaves; not of who takes part, or where."""
        recipe = self.recipe
        told = {
            "method": base.section_of(recipe.method),
            "plan": recipe.plan().model_dump(mode="json"),
            "global": recipe.models.model_dump(mode="json")["global_model"],
            "classes": self.file.classes,
            "input": self.file.input.model_dump(mode="json"),
            "task": None if recipe.task is None else recipe.task.model_dump(mode="json"),
            "public": [self.file.public_sha256, self.file.public_labelled],
        }
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def roster(self, facts: Mapping[str, Mapping[str, object]] | None = None) -> Federation:
        """The federation as the server knows it: who there is, what inputs and classes are like, and no data.

        `facts` are what sites have said of themselves: whether they take part, and whether anything is opted out.
        """
        clients = []
        for client in self.file.clients:
            one = self.sample_like(1)
            said = (facts or {}).get(client, {})
            opt_in = None
            if said.get("opting"):
                opt_in = torch.tensor([bool(said.get("takes_part"))])
            clients.append(Client(client, one, one, one, self.stand_in, opt_in=opt_in, aim=self.aim))
        return Federation(tuple(clients), self.recipe.models.global_model, None, (), self.public)

    def prepared(self, facts: Mapping[str, Mapping[str, object]] | None = None) -> Prepared:
        """The run as it is prepared from the roster; its notes would be about data that is not there."""
        found = prepare(self.recipe.method, self.roster(facts), self.recipe.plan())
        return replace(found, federation=replace(found.federation, notes=()))

    @cached_property
    def job(self) -> Job:
        """What every side knows of the run."""
        return self.prepared().job

    @property
    def stand_in(self) -> Architecture:
        """What the roster has for the sites' own models, which the server does not know."""
        shared = self.recipe.models.global_model
        return Architecture.of("mlp") if shared is None else shared.model_copy(update={"share": "all"})

    def sample_like(self, number: int) -> Samples:
        """Samples of zeros, as the sites' are."""
        told, kind = self.file.input, self.aim.kind
        x = torch.zeros(number, *told.shape, dtype=getattr(torch, told.dtype))
        named = torch.zeros(number, dtype=torch.long)
        y = named if kind == "classification" else torch.zeros(number, len(self.file.classes))
        return Samples(x, y, self.file.classes, told.preprocess, kind=kind)

    @property
    def aim(self) -> Aim:
        """What every site learns."""
        return self.recipe.task or CLASSIFICATION


def public_bytes(public: Public) -> bytes:
    """A public set as an .npz file, its samples by owner."""
    held: dict[str, Any] = {}
    for number, (owner, part) in enumerate(sorted(public.parts.items())):
        held |= {
            f"owner{number}": np.array(owner),
            f"x{number}": part.inputs.numpy(),
            f"y{number}": part.y.numpy(),
        }
    text = io.BytesIO()
    np.savez(text, **held)
    return text.getvalue()


def _read_public(path: Path, file: DeploymentFile, kind: TaskKind) -> Public:
    held = npz_file(path)
    parts: dict[str, Samples] = {}
    for number in range(len(held) // 3):
        x, y = torch.from_numpy(held[f"x{number}"]), torch.from_numpy(held[f"y{number}"])
        parts[str(held[f"owner{number}"])] = Samples(x, y, file.classes, file.input.preprocess, kind=kind)
    return Public(parts, file.public_labelled)


def recipe_for_sites(path: PathLike, clients: Sequence[str], overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in an organiser's file: it need not say where data is, how it is dealt or who has which model."""
    tree = read_recipe(path, overrides)
    if tree.get("clients") is None:
        if tree.get("data") is not None:
            tree.setdefault("partition", {"kind": "iid", "clients": len(clients)})
        else:
            tree.pop("partition", None)
            models = tree.get("models")
            if isinstance(models, dict):
                tree["models"] = {name: model for name, model in models.items() if name != "clients"}
            tree["clients"] = [{"id": client, "data": {"name": SITE_DATA}, "model": "mlp"} for client in clients]
    return Recipe.of(tree, path)


def data_is_elsewhere(recipe: Recipe) -> bool:
    """Whether a recipe says nothing of the data."""
    return recipe.clients is not None and all(entry.data.name == SITE_DATA for entry in recipe.clients)


def deployed_recipe(recipe: Recipe, clients: Sequence[str]) -> Recipe:
    """The recipe of a deployment: its clients have their data and models at their sites."""
    tree = recipe.model_dump(mode="json", by_alias=True, exclude_none=True)
    for gone in ("data", "partition", "public", "opt_out", "faults", "grid", "stores"):
        tree.pop(gone, None)
    shared = tree.get("models", {}).get("global")
    stand_in = "mlp" if shared is None else {key: value for key, value in shared.items() if key != "share"}
    tree["models"] = {} if shared is None else {"global": shared}
    tree["clients"] = [{"id": client, "data": {"name": SITE_DATA}, "model": stand_in} for client in clients]
    # A site keeps two rounds only, so the server must not fall back further.
    tree["checkpoints"] = {**tree.get("checkpoints", {}), "every": 1, "seconds": 0}
    return Recipe.of(tree)
