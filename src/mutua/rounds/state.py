"""Where a run stands: all that it needs to go on to the same bytes."""

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
    """Where a run stands: all that it needs to go on to the same bytes."""

    round: int = -1
    """The last whole one; 0 is the clients' start, one more than the plan's their finish."""
    server: State = field(default_factory=dict)
    stores: Mapping[str, Store] = field(default_factory=dict)
    """As they are now: where a round was broken off, some clients have done its work already."""
    history: Sequence[Row] = ()
    ledger: Sequence[Entry] = ()
    seconds: float = 0.0
    participation: Sequence[ParticipationRow] = ()
    validation: float | None = None
    """Mean accuracy of the clients' predictors on validation data, where this round was evaluated.

    Where samples are opted out: of the global, on opted-in ones.
    """

    def unfinished(self, rounds: int) -> RunState:
        """The same before the clients' last work after so many rounds, but for the rows that came of that."""
        stores = {client: store.upto(rounds) for client, store in self.stores.items()}
        known = self.validation if self.round < rounds else None
        return replace(
            self, round=min(self.round, rounds), server=unfinished(self.server), stores=stores, validation=known
        )

    def __repr__(self) -> str:
        return f"RunState(after round {self.round}, {several(len(self.stores), 'client')}, {self.seconds:.1f} s)"
