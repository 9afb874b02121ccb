"""The events of a run, for callbacks: whatever is not the algorithm (progress, files, pages) listens to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mutua.engines.work import Reply
from mutua.federation.federation import Federation
from mutua.federation.ledger import Ledger
from mutua.methods.base import Job
from mutua.rounds.history import History
from mutua.rounds.state import RunState


@dataclass(frozen=True)
class Started:
    """The run begins, or is resumed."""

    job: Job = field(repr=False)
    federation: Federation = field(repr=False)


@dataclass(frozen=True)
class RoundStarted:
    """These clients were drawn."""

    round: int
    clients: tuple[str, ...]


@dataclass(frozen=True)
class Trained:
    """A client's work of a round is done."""

    round: int
    client: str
    reply: Reply


@dataclass(frozen=True)
class Rejected:
    """A client is left out: its reply was refused or did not come, or its last work or evaluation failed."""

    round: int
    client: str
    reason: str
    trace: str = ""
    """The traceback of what the client's side raised."""


@dataclass(frozen=True)
class Retried:
    """The machine failed during a client's work and repeated it, with the same bytes."""

    round: int
    client: str
    reason: str


@dataclass(frozen=True)
class Merged:
    """The accepted replies of a round are merged."""

    round: int
    weights: Mapping[str, float | None]
    """By client, its share of the merge; None if the method gives it no one weight."""


@dataclass(frozen=True)
class RoundEnded:
    """The round is merged and, if due, evaluated; with everything that is known so far."""

    round: int
    history: History
    ledger: Ledger


@dataclass(frozen=True)
class Reached:
    """A round is complete: the run could be resumed from here."""

    run_state: RunState


@dataclass(frozen=True)
class Stopped:
    """The run was stopped: it can be resumed from here."""

    run_state: RunState


@dataclass(frozen=True)
class Finished:
    """The run is over."""


Event = Started | RoundStarted | Trained | Rejected | Retried | Merged | RoundEnded | Reached | Stopped | Finished
Callback = Callable[[Event], None]
