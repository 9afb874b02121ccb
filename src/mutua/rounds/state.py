"""The state of a run: all that it needs to be resumed with the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mutua.federation.ledger import Entry
from mutua.federation.store import State, Store
from mutua.rounds.guard import unfinished
from mutua.rounds.history import Row
from mutua.rounds.participation import ParticipationRow
from mutua.support.text import several


@dataclass(frozen=True, repr=False)
class RunState:
    """The state of a run: all that it needs to be resumed with the same bytes."""

    round: int = -1
    """The last complete round; 0 is the clients' start, one more than planned is their finish."""
    server: State = field(default_factory=dict)
    stores: Mapping[str, Store] = field(default_factory=dict)
    """As they are now: if a round was interrupted, some clients have already done its work."""
    history: Sequence[Row] = ()
    ledger: Sequence[Entry] = ()
    seconds: float = 0.0
    participation: Sequence[ParticipationRow] = ()
    validation: float | None = None
    """Mean accuracy of the clients' predictors on validation data, if this round was evaluated.

    If samples are opted out, it is the global's accuracy on opted-in samples. A task with another headline metric
    has that instead.
    """
    lower_is_better: bool = False
    """Whether a smaller `validation` is the better one."""

    def unfinished(self, rounds: int) -> RunState:
        """The state before the clients' last work after so many rounds; rows of that work are not removed."""
        stores = {client: store.upto(rounds) for client, store in self.stores.items()}
        known = self.validation if self.round < rounds else None
        return replace(
            self, round=min(self.round, rounds), server=unfinished(self.server), stores=stores, validation=known
        )

    def __repr__(self) -> str:
        return f"RunState(after round {self.round}, {several(len(self.stores), 'client')}, {self.seconds:.1f} s)"
