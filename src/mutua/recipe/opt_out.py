"""Opting out: which data may not change what leaves a client."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from mutua.data.samples import concatenate
from mutua.data.splits import ClientData
from mutua.errors import InputError
from mutua.seeds import numpy_stream
from mutua.support.configuration import Spec
from mutua.support.importing import check_trusted, import_object


class OptOut(Spec):
    """Data that may not change what leaves: whole clients, a part of each client's samples, or a mask."""

    fraction: float | None = Field(None, ge=0, le=1)
    samples: float | None = Field(None, ge=0, le=1)
    mask: str | None = None
    censor: str | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.censor is not None:
            check_trusted(self.censor, "opt_out.censor")
        given = [name for name in ("fraction", "samples", "mask") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                "give exactly one of fraction (of clients), samples (of each client's) and mask (a key)"
            )
        return self


def mark_opted_out(clients: Sequence[ClientData], section: OptOut, seed: int) -> list[ClientData]:
    """The clients with some training samples marked as opted out."""
    ids = sorted(client.id for client in clients)
    drawn = numpy_stream(seed, "opt_out").permutation(ids).tolist()
    out = set(drawn[: int((section.fraction or 0) * len(ids) + 1e-9)])
    marked = [_marked(client, section, seed, out) for client in clients]
    return marked if section.censor is None else [_censored(client, section.censor) for client in marked]


def _marked(client: ClientData, section: OptOut, seed: int, out: Collection[str]) -> ClientData:
    if section.mask is not None:
        return client  # the data came with its marks
    n = len(client.train)
    opted_out = torch.full((n,), client.id in out)
    order = torch.from_numpy(numpy_stream(seed, "opt_out", client.id).permutation(n))
    opted_out[order[: int((section.samples or 0) * n + 1e-9)]] = True
    return client.opted_out(opted_out)


def _censored(client: ClientData, censor: str) -> ClientData:
    """Add a transformed copy of each opted-out sample: what its owner is willing to show."""
    opted_out = client.train.opted_out
    if opted_out is None or not bool(opted_out.any()):
        return client
    secret = client.train.take(opted_out.nonzero()[:, 0])
    shown = import_object(censor, "opt_out.censor")(secret.inputs.clone())
    if not isinstance(shown, Tensor) or (shown.shape, shown.dtype) != (secret.x.shape, secret.x.dtype):
        raise InputError(f"opt_out.censor: '{censor}' must give a tensor of the shape and type it was given")
    train = concatenate([client.train, replace(secret, x=shown)])
    marks = torch.cat([opted_out, torch.zeros(len(secret), dtype=torch.bool)])
    return replace(client, train=train).opted_out(marks)
