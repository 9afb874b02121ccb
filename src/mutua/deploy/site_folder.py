"""A site's folder: the files that all sides have, its own settings, its key, and what it keeps.

FOLDER/recipe.yaml, deployment.yaml, ca.pem, public.npz   what all sides have
FOLDER/client.yaml      the site's own settings: its data, its model, what may leave
FOLDER/client.key       its private key
FOLDER/private/         its seed, and what Flower keeps
FOLDER/state/           what its model has learned, run by run
FOLDER/ledger.jsonl     what it has sent
"""

from __future__ import annotations

import secrets
import stat
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, ConfigDict, Field

from mutua.data import sources
from mutua.data.partitions import IID
from mutua.data.samples import Samples
from mutua.data.splits import Split, split_and_deal
from mutua.data.tabular_reading import read_labelled
from mutua.deploy.agreement import RECIPE, Agreement
from mutua.engines.client_worker import device
from mutua.engines.site import Site
from mutua.errors import InputError, suggest
from mutua.federation.client import Client
from mutua.federation.model_checks import check_models
from mutua.federation.site_policy import SitePolicy
from mutua.models import Architecture
from mutua.seeds import numpy_stream
from mutua.support.configuration import PathLike, Spec, checked, local_path, read_yaml

SETTINGS, KEY = "client.yaml", "client.key"


class SiteData(Spec):
    """Where a site's samples are: one place that is split, or a file for each of train, val and test.

    The target, columns and words of tables and texts are the deployment's.
    """

    name: Literal["arrays", "folder", "table", "text"] | None = None
    path: Path
    val: Path | Literal[False] | None = None
    test: Path | Literal[False] | None = None
    """False: there is none."""
    classes: tuple[str, ...] | None = None
    split: Split = Field(default_factory=Split)


def _placed(given: object) -> object:
    return {"path": given} if isinstance(given, str) else given


class SiteSettings(Spec):
    """What client.yaml says."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    client: str
    data: Annotated[SiteData, BeforeValidator(_placed)]
    model: Any
    policy: SitePolicy = Field(default_factory=SitePolicy)
    opt_out: Annotated[float, Field(ge=0, le=1)] | str = 0.0
    """Which training samples the federation may not learn from: a share, or an array that is true for each."""
    seed: int | None = Field(None, ge=0, lt=2**63)
    device: str | None = None


@dataclass(frozen=True)
class SiteFolder:
    """A site's folder."""

    path: Path

    @classmethod
    def open(cls, path: PathLike) -> SiteFolder:
        """The folder that the organiser has handed out."""
        found = cls(local_path(path, "FOLDER").absolute())
        if not (found.path / SETTINGS).is_file() or not (found.path / KEY).is_file():
            missing = f"{found.path} has no {SETTINGS} or no {KEY}"
            raise InputError(f"FOLDER: {missing}; give the folder that the organiser handed out")
        key = found.path / KEY
        if stat.S_IMODE(key.stat().st_mode) & 0o077:
            raise InputError(f"FOLDER: other users may read {key}; take that away: chmod 600 {key}")
        return found

    @cached_property
    def agreed(self) -> Agreement:
        """What all sides have agreed on; the organiser wrote it."""
        return Agreement.read(self.path, trusted=False)

    @cached_property
    def settings(self) -> SiteSettings:
        """The site's own settings."""
        path = self.path / SETTINGS
        found = checked(SiteSettings, read_yaml(path, "FOLDER"), path)
        if found.client not in self.agreed.file.clients:
            known = suggest(found.client, self.agreed.file.clients)
            raise InputError(f"{path}: client: '{found.client}' is not of this deployment; {known}")
        return found

    @cached_property
    def client(self) -> Client:
        """The site as a client: its data and model, loaded and checked against what is agreed on."""
        settings, agreed = self.settings, self.agreed
        train, val, test = self._samples()
        opt_in = None
        if train.opted_out is not None:
            opt_in = ~train.opted_out
        elif isinstance(settings.opt_out, float) and settings.opt_out:
            order = numpy_stream(self.seed, "opt_out").permutation(len(train))
            opt_in = torch.ones(len(train), dtype=torch.bool)
            opt_in[torch.from_numpy(order[: round(settings.opt_out * len(train))])] = False
        try:
            model = Architecture.of(settings.model)
        except InputError as error:
            raise InputError(f"{self.path / SETTINGS}: model: {str(error).removeprefix('models: ')}") from None
        made = Client(settings.client, train, val, test, model, opt_in=opt_in, seed=self.seed, aim=agreed.aim)
        roster = agreed.roster()
        if not roster.partial or set(train.classes) == set(agreed.file.classes):
            try:
                made = made.relabelled(agreed.file.classes)
            except InputError as error:
                raise InputError(
                    f"{self.path / SETTINGS}: data: {error}; the deployment's classes are fixed"
                ) from None
        among = replace(roster, clients=tuple(made if c.id == made.id else c for c in roster.clients))
        check_models(replace(roster, clients=(made,)), agreed.recipe.method.needs_global)
        return agreed.recipe.method.arrange(among)[made.id]

    def site(self) -> Site:
        """The site, ready for requests."""
        privacy = self.agreed.recipe.privacy
        if privacy is not None and privacy.randomness == "seeded" and self.settings.seed is None:
            raise InputError(
                f"{self.path / RECIPE}: privacy.randomness: seeded, but noise must come from this site's system; "
                "ask the organiser for another recipe"
            )
        place = device(self.settings.device or self.agreed.recipe.device)
        return Site(self.agreed.job, self.client, self.settings.policy, self.agreed.checksum, self.path, place)

    @cached_property
    def seed(self) -> int:
        """The root of all its random numbers: drawn once, known to this site alone, or as the settings say."""
        if self.settings.seed is not None:
            return self.settings.seed
        path = self.private / "seed"
        if not path.is_file():
            from mutua.deploy.organiser import write_secret

            write_secret(path, str(secrets.randbits(63)).encode())
        return int(path.read_text())

    @property
    def private(self) -> Path:
        """What nobody else may read."""
        place = self.path / "private"
        place.mkdir(mode=0o700, exist_ok=True)
        return place

    def _samples(self) -> tuple[Samples, Samples, Samples]:
        data = self.settings.data
        if (data.val is None) != (data.test is None):
            raise InputError(
                f"{self.path / SETTINGS}: data: give val and test, or neither; false is for a part without samples"
            )
        mask = self.settings.opt_out if isinstance(self.settings.opt_out, str) else None
        train, given = self._load(data.path, data.classes, mask)
        if data.val is not None and data.test is not None:
            classes = train.classes if train.kind == "classification" else None
            val, test = (
                self._load(path, classes)[0] if path else train.take([]) for path in (data.val, data.test)
            )
            return train, val, test
        try:
            dealt = split_and_deal(train, given, IID(clients=1), data.split, seed=self.seed).clients[0]
        except InputError as error:
            raise InputError(f"{self.path / SETTINGS}: data: {error}") from None
        return dealt.train, dealt.val, dealt.test

    def _load(
        self, path: Path, classes: tuple[str, ...] | None, mask: str | None = None
    ) -> tuple[Samples, Samples | None]:
        wanted, data, like = self.agreed.file.input, self.settings.data, self.agreed.sample_like(0)
        at = path if path.is_absolute() else self.path / path
        where = f"{self.path / SETTINGS}: data: {at}"
        kind = like.model_input.kind
        sides = wanted.shape[1:]
        images = at.is_dir() and not any(at.glob("*.npy"))
        size = sides[0] if images and len(sides) == 2 and sides[0] == sides[1] else None
        expected = kind if wanted.tabular else "folder" if images else "arrays"
        if data.name not in (None, expected):
            raise InputError(f"{where}: name: {data.name}, but this is {expected}; leave name out")
        try:
            if wanted.tabular and not (kind == "text" and at.suffix == ".npz"):  # there words are numbers already
                source = read_labelled(at, like, classes=classes, mask=mask)
                self.notes.extend(note for note in source.notes if note not in self.notes)
                return self._fitting(source.samples, where), None
            found = sources.load(
                "folder" if images else "arrays",
                path=at,
                classes=classes,
                image_size=size,
                fits=wanted.shape,
                mask=mask,
                kind=self.agreed.aim.kind,
            )
        except InputError as error:
            raise InputError(f"{where}: {str(error).removeprefix('data: ')}") from None
        return self._fitting(found.train, where), found.test and self._fitting(found.test, where)

    @cached_property
    def notes(self) -> list[str]:
        """What the site should know of its data, once it is loaded."""
        return []

    def _fitting(self, samples: Samples, where: str) -> Samples:
        wanted = self.agreed.file.input
        if wanted.dtype == "int32":  # the numbers of words: reading arrays has made them floating
            samples = replace(samples, x=samples.inputs.to(torch.int32))
        kind = str(samples.x.dtype).removeprefix("torch.")
        if tuple(samples.x.shape[1:]) != wanted.shape or kind != wanted.dtype:
            raise InputError(
                f"{where}: inputs are {kind} {tuple(samples.x.shape[1:])}, but in this deployment "
                f"{wanted.dtype} {wanted.shape}"
            )
        return replace(samples, preprocess=wanted.preprocess)
