"""What crosses between a server and a site on a network: requests and answers, as a header and a body of bytes.

Nothing here knows of torch: the process that Flower starts for every message must be up quickly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Protocol, Self, get_args

SiteVerb = Literal["hello", "train", "finish", "evaluate", "join"]
"""`hello` asks whether the site is ready for this run; `join` brings a newcomer the last global of one that has
ended; the others are as for any client."""
Ending = Literal["done", "refused", "failed"]
"""`refused`: the site will not do or send it; `failed`: it could not."""
LONGEST_HEADER = 2**20
"""The most bytes of a header."""


class BadHeader(ValueError):
    """A header that is not one of ours."""


@dataclass(frozen=True)
class _Crossing:
    """Fields that cross as JSON, and a body that crosses as it is."""

    body: bytes = field(default=b"", kw_only=True, repr=False)

    @property
    def header(self) -> str:
        """All but the body."""
        told = asdict(self)
        del told["body"]
        return json.dumps(told, sort_keys=True)

    @classmethod
    def of(cls, header: str, body: bytes) -> Self:
        """What was sent; `BadHeader` if it is anything else."""
        try:
            told = json.loads(header) if len(header) <= LONGEST_HEADER else None
        except (ValueError, RecursionError):
            told = None
        known = {one.name for one in fields(cls)} - {"body"}
        if not isinstance(told, dict) or set(told) != known:
            raise BadHeader("it has a header of another kind; do both sides have the same version of mutua?")
        made = cls(**told, body=body)
        made.check()
        return made

    def check(self) -> None:
        """Raise `BadHeader` for a field of the wrong type."""


@dataclass(frozen=True)
class SiteRequest(_Crossing):
    """What a server asks of a site. The body is the brief, encoded; empty is no brief."""

    verb: SiteVerb
    run: str
    """The id of the run: a site keeps one store for each."""
    agreement: str
    """The checksum of what is run: method, plan, global model, classes, inputs and public set."""
    round: int = 0
    partners: int = 0
    """How many other sites work in this round, as the server says."""
    forget_after: int | None = None
    """Later rounds are to be worked again: the server had to undo a merge."""

    def check(self) -> None:
        """The types of all fields."""
        texts = isinstance(self.run, str) and isinstance(self.agreement, str)
        numbers = all(type(number) is int for number in (self.round, self.partners, self.forget_after or 0))
        if not texts or not numbers or self.verb not in get_args(SiteVerb):
            raise BadHeader(f"a request that no mutua sends: {self.header[:200]}")


@dataclass(frozen=True)
class SiteAnswer(_Crossing):
    """What a site answers. The body is the reply, encoded, or numbers as JSON; empty is neither."""

    ending: Ending
    reason: str = ""
    """In one line, why it was refused or failed."""
    diverged: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the site says of itself; `Site` in engines/site.py lists all of it."""

    def check(self) -> None:
        """The types of all fields."""
        good = isinstance(self.reason, str) and isinstance(self.facts, dict) and isinstance(self.diverged, bool)
        if not good or self.ending not in get_args(Ending):
            raise BadHeader(f"an answer that no mutua sends: {self.header[:200]}")


class SiteLine(Protocol):
    """How requests get to sites, and answers back."""

    def here(self) -> set[str]:
        """The sites that are connected now."""

    def ask(self, requests: Mapping[str, SiteRequest], wait: float) -> Mapping[str, SiteAnswer]:
        """Send each site its request and gather the answers; a site that goes is waited for, so many seconds.

        A request may be delivered more than once. A site that is missing in the answers is not there.
        """
