"""Faults on purpose: which clients drop out, come late, break down or send what they should not, and when.

They are drawn from the seed, the client and the round alone, so a resumed run meets the same faults as one that
was never stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from mutua.errors import InputError, suggest
from mutua.federation.federation import Federation
from mutua.seeds import numpy_stream
from mutua.support.configuration import PathLike, Spec, explain, read_yaml

CorruptionKind = Literal["nan", "inf", "shape", "name", "dtype", "norm", "bytes", "raise"]


class _PlannedFault(Spec):
    """Which clients a fault strikes, in which rounds and how likely; by default all of them, for certain."""

    clients: tuple[str, ...] | None = Field(None, min_length=1)
    rounds: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(None, min_length=1)
    probability: float = Field(1.0, gt=0, le=1)

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.model_fields_set & _PlannedFault.model_fields.keys():
            raise ValueError("give clients, rounds or probability; without them it would be everybody, always")
        return self


class Dropout(_PlannedFault):
    """The client is absent: it gets no brief and sends no reply."""


class Straggler(_PlannedFault):
    """The client is late by so many seconds."""

    seconds: float = Field(gt=0)


class Corruption(_PlannedFault):
    """The client's reply is corrupt, or it raises an exception instead of replying."""

    kind: CorruptionKind


F = TypeVar("F", bound=_PlannedFault)


class Faults(Spec):
    """What goes wrong in a run. Without a `seed` of their own, faults are drawn from the run's seed."""

    seed: int | None = Field(None, ge=0, lt=2**63)
    dropout: tuple[Dropout, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    corruption: tuple[Corruption, ...] = ()

    @classmethod
    def load(cls, path: PathLike) -> Faults:
        """The faults in a YAML file."""
        try:
            return cls.model_validate(read_yaml(path, "faults"))
        except ValidationError as error:
            raise InputError(f"{path}: {explain(error, cls, 'faults')}") from None

    def check(self, federation: Federation) -> None:
        """Refuse faults of unknown clients."""
        known = sorted(client.id for client in federation.clients)
        for section in ("dropout", "stragglers", "corruption"):
            for i, fault in enumerate(getattr(self, section)):
                strange = [client for client in fault.clients or () if client not in known]
                if strange:
                    where = f"faults.{section}.{i}.clients"
                    raise InputError(f"{where}: '{strange[0]}' is no client; {suggest(strange[0], known)}")

    def absent(self, seed: int, client: str, round: int) -> bool:
        """Whether the client is absent in this round; `seed` is the run's."""
        return any(self._striking("dropout", self.dropout, seed, client, round))

    def delay(self, seed: int, client: str, round: int) -> float:
        """How many seconds late the client is."""
        return sum(late.seconds for late in self._striking("stragglers", self.stragglers, seed, client, round))

    def corruptions(self, seed: int, client: str, round: int) -> list[CorruptionKind]:
        """In which ways its reply is corrupt."""
        return [wrong.kind for wrong in self._striking("corruption", self.corruption, seed, client, round)]

    def _striking(self, section: str, faults: Sequence[F], seed: int, client: str, round: int) -> Iterator[F]:
        root = seed if self.seed is None else self.seed
        for i, fault in enumerate(faults):
            here = fault.clients is None or client in fault.clients
            now = fault.rounds is None or round in fault.rounds
            if here and now and numpy_stream(root, section, i, client, round).random() < fault.probability:
                yield fault
