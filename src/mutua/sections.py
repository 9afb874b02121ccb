"""Sections of a recipe: when to save; and what changes a dealt federation, public and opted-out data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from mutua.data import formats
from mutua.data.public import Public, carve
from mutua.data.samples import Samples, together
from mutua.errors import InputError
from mutua.federation import Client, Federation
from mutua.imports import by_path, permit
from mutua.seeds import numpy_stream, public
from mutua.spec import Spec


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
        if self.path is not None:
            return replace(federation, public=self._read(federation, seed))
        clients, parts = [], {}
        for client in federation.clients:
            number = round((self.share or 0) * whole(client))
            kept, parts[client.id] = carve(getattr(client, split), number, seed, client.id)
            clients.append(replace(client, train=kept) if split == "train" else replace(client, test=kept))
        federation = replace(federation, clients=tuple(clients), public=Public(parts, self.labelled))
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
        )
        if samples.x.shape[1:] != template.x.shape[1:] or samples.x.dtype != template.x.dtype:
            raise InputError(
                f"public.path: inputs are {samples.x.dtype} {tuple(samples.x.shape[1:])}, "
                f"the clients' {template.x.dtype} {tuple(template.x.shape[1:])}"
            )
        samples = samples.relabelled(template.classes)
        ids = sorted(client.id for client in federation.clients)
        if len(samples) < len(ids):
            raise InputError(f"public.path: {len(samples)} samples for {len(ids)} clients; each must own one")
        order = numpy_stream(public(seed), "public owners").permutation(len(samples))
        return Public({owner: samples.take(order[k :: len(ids)]) for k, owner in enumerate(ids)}, self.labelled)


class OptOut(Spec):
    """Data that may not change what leaves: whole clients, a part of each client's samples, or a mask."""

    fraction: float | None = Field(None, ge=0, le=1)
    samples: float | None = Field(None, ge=0, le=1)
    mask: str | None = None
    censor: str | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.censor is not None:
            permit(self.censor, "opt_out.censor")
        given = [name for name in ("fraction", "samples", "mask") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                "give exactly one of fraction (of clients), samples (of each client's) and mask (a key)"
            )
        return self

    def applied(self, federation: Federation, seed: int) -> Federation:
        """The federation with some training samples opted out."""
        ids = sorted(client.id for client in federation.clients)
        drawn = numpy_stream(seed, "opt_out").permutation(ids).tolist()
        out = set(drawn[: int((self.fraction or 0) * len(ids) + 1e-9)])
        clients = [self._censored(replace(c, opt_in=self._opt_in(c, seed, out))) for c in federation.clients]
        return replace(federation, clients=tuple(clients))

    def _opt_in(self, client: Client, seed: int, out: set[str]) -> Tensor | None:
        n = len(client.train)
        if self.mask is not None:
            return client.opt_in  # the recipe reads the mask with the data
        if self.fraction is not None:
            return torch.full((n,), client.id not in out)
        order = torch.from_numpy(numpy_stream(seed, "opt_out", client.id).permutation(n))
        opt_in = torch.ones(n, dtype=torch.bool)
        opt_in[order[: int((self.samples or 0) * n + 1e-9)]] = False
        return opt_in

    def _censored(self, client: Client) -> Client:
        """Put a transformed copy of each opted-out sample in: what its owner is willing to show."""
        if self.censor is None or client.opt_in is None or bool(client.opt_in.all()):
            return client
        secret = client.train.take((~client.opt_in).nonzero()[:, 0])
        shown = by_path(self.censor, "opt_out.censor")(secret.x.clone())
        if not isinstance(shown, Tensor) or (shown.shape, shown.dtype) != (secret.x.shape, secret.x.dtype):
            raise InputError(
                f"opt_out.censor: '{self.censor}' must give a tensor of the shape and type it was given"
            )
        train = together([client.train, replace(secret, x=shown)])
        return replace(
            client, train=train, opt_in=torch.cat([client.opt_in, torch.ones(len(secret), dtype=torch.bool)])
        )
