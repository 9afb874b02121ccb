"""Faults on purpose: which clients drop out, come late, break down or send what they should not, and when.

Whether one does is drawn from the seed, the client and the round alone, so a run that goes on after it was stopped
meets the faults that it would have met.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from mutua.errors import InputError
from mutua.federation.federation import Federation
from mutua.seeds import numpy_stream
from mutua.support.configuration import PathLike, Spec, explain, read_yaml

Kind = Literal["nan", "inf", "shape", "name", "dtype", "norm", "bytes", "raise"]


class Struck(Spec):
    """Whom a fault strikes and when: every client, in every round, for certain, unless said otherwise."""

    clients: tuple[str, ...] | None = Field(None, min_length=1)
    rounds: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(None, min_length=1)
    probability: float = Field(1.0, gt=0, le=1)

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.model_fields_set & Struck.model_fields.keys():
            raise ValueError("give clients, rounds or probability; without them it would be everybody, always")
        return self


class Dropout(Struck):
    """Not there: no brief comes, no reply goes."""


class Straggler(Struck):
    """Late by so many seconds."""

    seconds: float = Field(gt=0)


class Corruption(Struck):
    """A reply that is not as it should be, or an exception instead of one."""

    kind: Kind


F = TypeVar("F", bound=Struck)


class Faults(Spec):
    """What goes wrong in a run. Without a seed of their own, faults are drawn from the run's."""

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
        """Refuse faults of clients that are not there."""
        known = sorted(client.id for client in federation.clients)
        for section in ("dropout", "stragglers", "corruption"):
            for i, fault in enumerate(getattr(self, section)):
                strange = [client for client in fault.clients or () if client not in known]
                if strange:
                    where = f"faults.{section}.{i}.clients"
                    raise InputError(f"{where}: '{strange[0]}' is no client; known: {', '.join(known)}")

    def absent(self, seed: int, client: str, round: int) -> bool:
        """Whether the client is not there in this round; `seed` is the run's."""
        return any(self._met("dropout", self.dropout, seed, client, round))

    def delay(self, seed: int, client: str, round: int) -> float:
        """How many seconds late it is."""
        return sum(late.seconds for late in self._met("stragglers", self.stragglers, seed, client, round))

    def spoils(self, seed: int, client: str, round: int) -> list[Kind]:
        """What is wrong with its reply."""
        return [wrong.kind for wrong in self._met("corruption", self.corruption, seed, client, round)]

    def _met(self, section: str, faults: Sequence[F], seed: int, client: str, round: int) -> Iterator[F]:
        root = seed if self.seed is None else self.seed
        for i, fault in enumerate(faults):
            here = fault.clients is None or client in fault.clients
            now = fault.rounds is None or round in fault.rounds
            if here and now and numpy_stream(root, section, i, client, round).random() < fault.probability:
                yield fault
