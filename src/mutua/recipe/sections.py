"""Sections of a recipe: when to save; and what changes a dealt federation, public and opted-out data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from mutua.data import formats
from mutua.data.public import Public, dealt
from mutua.data.samples import Samples, fitting, together
from mutua.data.splits import ClientData
from mutua.errors import InputError
from mutua.federation.federation import Client, Federation
from mutua.seeds import numpy_stream
from mutua.support.configuration import Spec
from mutua.support.importing import check_trusted, import_object


class Checkpoints(Spec):
    """When a run is saved so that it can go on, and how much of that is kept."""

    every: int = Field(1, ge=1)
    """Rounds."""
    seconds: float = Field(30.0, ge=0)
    """But not more often than this."""
    keep: int = Field(2, ge=1)
    best: bool = True


class PublicSet(Spec):
    """A set that everybody knows: a share of each client's data, or a file."""

    share: float | None = Field(None, gt=0, lt=1)
    path: Path | None = None
    labelled: bool = True

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.share is None) == (self.path is None):
            raise ValueError("give either share (of each client's data) or path (of a file)")
        return self

    def applied(
        self,
        federation: Federation,
        seed: int,
        whole: Callable[[Client], int],
        split: Literal["train", "test"] = "train",
    ) -> Federation:
        """The federation with its public set; `whole` is how many samples the share is of, taken from `split`."""
        if federation.opting:
            raise InputError("public: samples are opted out, and what is public cannot be; give one of the two")
        if self.path is not None:
            return replace(federation, public=self._read(federation, seed))
        federation = federation.sharing(self.share or 0, seed, whole, split, self.labelled)
        if split == "train" or federation.test is None:
            return federation
        return replace(federation, test=together([client.test for client in federation.clients]))

    def _read(self, federation: Federation, seed: int) -> Public:
        assert self.path is not None
        held = formats.npz_file(self.path)
        if "x" not in held:
            raise InputError(f"public.path: {self.path} has no array 'x' (it has {', '.join(held) or 'none'})")
        template = federation.clients[0].train
        labels = held.get("y")
        if labels is None and self.labelled:
            raise InputError(f"public.labelled: true, but {self.path} has no array 'y'; set it to false")
        names = None if (found := held.get("classes")) is None else found.tolist()
        samples = Samples.of(
            held["x"],
            np.zeros(len(held["x"])) if labels is None else labels,
            classes=template.classes if labels is None else names,
            preprocess=template.preprocess,
            name=str(self.path),
            **fitting(held["x"].shape, template.x.shape[1:]),
        )
        if samples.x.shape[1:] != template.x.shape[1:] or samples.x.dtype != template.x.dtype:
            raise InputError(
                f"public.path: inputs are {samples.x.dtype} {tuple(samples.x.shape[1:])}, "
                f"the clients' {template.x.dtype} {tuple(template.x.shape[1:])}"
            )
        samples = samples.relabelled(template.classes)
        owners = [client.id for client in federation.clients]
        return dealt(samples, owners, seed, self.labelled, "public.path")


class OptOut(Spec):
    """Data that may not change what leaves: whole clients, a part of each client's samples, or a mask."""

    fraction: float | None = Field(None, ge=0, le=1)
    samples: float | None = Field(None, ge=0, le=1)
    mask: str | None = None
    censor: str | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.censor is not None:
            check_trusted(self.censor, "opt_out.censor")
        given = [name for name in ("fraction", "samples", "mask") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                "give exactly one of fraction (of clients), samples (of each client's) and mask (a key)"
            )
        return self

    def applied(self, clients: Sequence[ClientData], seed: int) -> list[ClientData]:
        """The clients with some training samples marked as opted out."""
        ids = sorted(client.id for client in clients)
        drawn = numpy_stream(seed, "opt_out").permutation(ids).tolist()
        out = set(drawn[: int((self.fraction or 0) * len(ids) + 1e-9)])
        return [self._censored(self._marked(client, seed, out)) for client in clients]

    def _marked(self, client: ClientData, seed: int, out: set[str]) -> ClientData:
        if self.mask is not None:
            return client  # the data came with its marks
        n = len(client.train)
        opted_out = torch.full((n,), client.id in out)
        order = torch.from_numpy(numpy_stream(seed, "opt_out", client.id).permutation(n))
        opted_out[order[: int((self.samples or 0) * n + 1e-9)]] = True
        return client.opted_out(opted_out)

    def _censored(self, client: ClientData) -> ClientData:
        """Put a transformed copy of each opted-out sample in: what its owner is willing to show."""
        opted_out = client.train.opted_out
        if self.censor is None or opted_out is None or not bool(opted_out.any()):
            return client
        secret = client.train.take(opted_out.nonzero()[:, 0])
        shown = import_object(self.censor, "opt_out.censor")(secret.x.clone())
        if not isinstance(shown, Tensor) or (shown.shape, shown.dtype) != (secret.x.shape, secret.x.dtype):
            raise InputError(
                f"opt_out.censor: '{self.censor}' must give a tensor of the shape and type it was given"
            )
        train = together([client.train, replace(secret, x=shown)])
        marks = torch.cat([opted_out, torch.zeros(len(secret), dtype=torch.bool)])
        return replace(client, train=train).opted_out(marks)
