"""The public set of a federation: a share of each client's data, or a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from mutua.data import array_files
from mutua.data.layouts import fitting
from mutua.data.public import Public, dealt
from mutua.data.samples import Samples, concatenate
from mutua.errors import InputError
from mutua.federation.federation import Federation
from mutua.support.configuration import Spec


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


def with_public_set(
    federation: Federation,
    section: PublicSet,
    seed: int,
    *,
    split: Literal["train", "test"] = "train",
    given_test: bool = False,
) -> Federation:
    """The federation with its public set; a share is taken from `split` as `Federation.sharing` says."""
    if federation.opting:
        raise InputError("public: samples are opted out, and what is public cannot be; give one of the two")
    if section.path is not None:
        return replace(federation, public=_read(section.path, section.labelled, federation, seed))
    federation = federation.sharing(
        section.share or 0, seed, split=split, given_test=given_test, labelled=section.labelled
    )
    if split == "train" or federation.test is None:
        return federation
    return replace(federation, test=concatenate([client.test for client in federation.clients]))


def _read(path: Path, labelled: bool, federation: Federation, seed: int) -> Public:
    inputs, held = array_files.named_arrays(path, None)
    x = inputs.get("x", held.get("x"))
    if x is None:
        raise InputError(f"public.path: {path} has no array 'x' (it has {', '.join(held) or 'none'})")
    template = federation.clients[0].train
    labels = held.get("y")
    if labels is None and labelled:
        raise InputError(f"public.labelled: true, but {path} has no array 'y'; set it to false")
    names = None if (found := held.get("classes")) is None else found.tolist()
    samples = Samples.of(
        x,
        template.unknown(len(x)) if labels is None else labels,
        classes=template.classes if labels is None else names,
        preprocess=template.preprocess.declared,
        kind=template.kind,
        name=str(path),
        **fitting(x.shape, template.x.shape[1:]),
    )
    if samples.x.shape[1:] != template.x.shape[1:] or samples.x.dtype != template.x.dtype:
        raise InputError(
            f"public.path: inputs are {samples.x.dtype} {tuple(samples.x.shape[1:])}, "
            f"the clients' {template.x.dtype} {tuple(template.x.shape[1:])}"
        )
    samples = samples.relabelled(template.classes)
    owners = [client.id for client in federation.clients]
    return dealt(samples, owners, seed, labelled, "public.path")
