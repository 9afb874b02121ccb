"""The guard against a reply that would spoil the global for everybody.

Numbers can be finite and still so large that every client that trains on the merged global diverges. One bad reply
must not cost the others their models. So clients keep no state that is not finite (`Participant.finite`), a reply
that cannot be honest is refused, and if a reply is far longer than the others, the guard also keeps the server's
state without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median_low

import torch

from mutua.errors import Diverged, Fault, RunError
from mutua.federation.message import Message
from mutua.federation.store import State, copied, not_finite
from mutua.learning.merging import COMPARABLE
from mutua.methods.base import Job
from mutua.methods.checks import on_server
from mutua.methods.server import Server

LARGE_REPLY, HUGE_REPLY = 10.0, 1000.0
"""How many times as long as the median a reply is (its real numbers as one vector) to be suspect, or refused.

It is the length of what is sent, not of an update: memes are forked from one global, so all are about as long.
"""
UP, SUSPECTS, SPARE, UNDONE = "guard", "guard suspects", "guard spare ", "guard undone"
"""The groups of a saved server's state that hold the guard."""


class NotFinite(RunError):
    """The merged state would hold NaN or infinity."""


@dataclass(frozen=True)
class Guard:
    """What is known about the last merge. After a run was rescued once, suspect replies are refused at once."""

    up: bool = False
    """Whether suspect replies are refused at once."""
    suspects: Mapping[str, float] = field(default_factory=dict)
    """By client, how many times as long as the median its last reply was."""
    spare: State | None = None
    """The server's state without the suspects' replies."""

    def saved(self, state: State) -> State:
        """The server's state with the guard in it, as a checkpoint holds it."""
        mine: State = {UP: {}} if self.up else {}
        if self.suspects:
            mine[SUSPECTS] = {
                client: torch.tensor(times, dtype=torch.float64) for client, times in self.suspects.items()
            }
        return {**state, **mine, **{SPARE + group: arrays for group, arrays in (self.spare or {}).items()}}

    @staticmethod
    def loaded(saved: State) -> tuple[State, Guard]:
        """The server's state and the guard, from what `saved` returned."""
        spare = {group.removeprefix(SPARE): arrays for group, arrays in saved.items() if group.startswith(SPARE)}
        if UNDONE in saved:
            return spare, Guard(up=True)
        suspects = {client: float(times) for client, times in saved.get(SUSPECTS, {}).items()}
        mine = {UP, SUSPECTS, *(SPARE + group for group in spare)}
        state = {group: arrays for group, arrays in saved.items() if group not in mine}
        return state, Guard(UP in saved, suspects, spare or None)


def finished(saved: State, undone: bool) -> State:
    """The state saved before the clients' last work, marked if that work has undone the last merge."""
    return {**saved, UNDONE: {}} if undone else saved


def unfinished(saved: State) -> State:
    """Without that mark: a longer run has no last work at this round, and finds out for itself."""
    return {group: arrays for group, arrays in saved.items() if group != UNDONE}


def can_be_undone(saved: State) -> bool:
    """Whether the last merge may still be undone."""
    return any(group.startswith(SPARE) for group in saved)


class Merger:
    """Merges replies into the server's state, and undoes a merge if other clients diverge on its result."""

    def __init__(self, job: Job, server: Server, saved: State) -> None:
        self.job, self.server = job, server
        self.server.state, self.guard = Guard.loaded(copied(saved))
        self.undone = False
        """Whether the last merge was undone after clients had trained on it."""
        self.weights: Mapping[str, float] = {}
        """By client, how much its reply counted in the last merge, if the method has said it."""

    @property
    def saved(self) -> State:
        """The server's state with the guard in it, as a checkpoint holds it."""
        return self.guard.saved(copied(self.server.state))

    def refused(self, replies: Mapping[str, Message]) -> dict[str, str]:
        """By client, why its reply is refused when compared with the others.

        Nothing is refused under privacy, where updates are bounded and a missing reply would say something about
        the client's data; nor if there are too few replies to compare.
        """
        if self.job.plan.privacy is not None or len(replies) < COMPARABLE:
            return {}
        long = too_long(replies, LARGE_REPLY if self.guard.up else HUGE_REPLY)
        return {client: f"its reply is {times:.3g} times as long as the median" for client, times in long.items()}

    def merge(self, replies: Mapping[str, Message]) -> dict[str, str]:
        """Make the server's next state; by client, why its reply was left out in the end."""
        before, self.undone, self.weights = self.server.state, False, {}
        self.guard = Guard(self.guard.up, large := too_long(replies, LARGE_REPLY))
        if not replies:  # clients have worked on the last merge and not diverged, so it stays
            return {}
        merged = self._merged(before, replies)
        self.server.state, self.weights = merged.state, merged.weights
        rest = {client: reply for client, reply in replies.items() if client not in large}
        # Under privacy no merge is undone: clients have seen it, so both globals would have to be counted.
        enough = len(replies) >= COMPARABLE and len(rest) >= self.job.plan.min_replies
        if large and enough and self.job.plan.privacy is None:
            self.guard = replace(self.guard, spare=self._merged(before, rest).state)
        wrong = not_finite(self.server.state, before)
        if wrong is None:
            return {}
        if left_out := self._undo(f"so {wrong} would hold NaN or infinity"):
            return left_out
        self.server.state = before
        sent = ", ".join(f"{client}: {times:.3g} times" for client, times in large.items()) or "none far"
        raise NotFinite(
            f"{wrong} of the merged would hold NaN or infinity, and nothing was merged; "
            f"longer than the median reply: {sent}"
        )

    def shares(self, clients: Iterable[str]) -> dict[str, float | None]:
        """By client whose reply was merged, its share of the last merge; None if there is no one number for it."""
        given = {client: self.weights.get(client) for client in clients}
        total = sum(weight or 0.0 for weight in given.values())
        return {c: weight / total if weight is not None and total > 0 else None for c, weight in given.items()}

    def undo(self, found: Mapping[str, object]) -> dict[str, str]:
        """By client, why its reply is taken out again: clients that sent nothing suspect diverged on the merge."""
        others = [client for client in found if client not in self.guard.suspects]
        diverged = sum(isinstance(found[client], Diverged) for client in others)
        if not diverged:
            return {}
        gone = self._undo(f"{diverged} of {len(others)} clients diverged on what was merged of it")
        self.undone = self.undone or bool(gone)
        return gone

    def blame(self, faults: Iterable[Fault]) -> str:
        """If all clients diverged: which of their last replies were far longer than the median."""
        if not all(isinstance(fault, Diverged) for fault in faults) or not self.job.method.shares:
            return ""
        large = ", ".join(f"{client}'s {times:.3g} times" for client, times in self.guard.suspects.items())
        return f"; of the replies merged before, {large or 'none'} is far longer than the median"

    def _undo(self, why: str) -> dict[str, str]:
        """Use the state without the suspects' replies, if there is one; by client, why its reply is left out."""
        suspects, spare = self.guard.suspects, self.guard.spare
        if spare is None:
            return {}
        self.server.state, self.guard = spare, Guard(up=True)
        return {
            client: f"its reply is {times:.3g} times as long as the median; {why}"
            for client, times in suspects.items()
        }

    def _merged(self, state: State, replies: Mapping[str, Message]) -> Server:
        server = replace(self.server, state=copied(state))
        with on_server("merge", server):
            self.job.method.merge(server, replies)
        if (privacy := self.job.plan.privacy) is not None:
            server.state = privacy.merged(server.state)
        return server


def too_long(replies: Mapping[str, Message], limit: float) -> dict[str, float]:
    """By client, how many times as long as the median its reply is; only clients over the limit."""
    lengths = {client: _length(reply) for client, reply in replies.items()}
    usual = median_low(lengths.values()) if lengths else 0.0
    times = {client: length / usual for client, length in lengths.items() if 0 < usual < math.inf}
    return {client: many for client, many in times.items() if many > limit}


def _length(message: Message) -> float:
    """The length of its real numbers as one vector."""
    parts = [a for part in message.values() for a in part.arrays.values() if a.is_floating_point() and a.numel()]
    norms = torch._foreach_norm(parts) if parts else ()
    if not all(math.isfinite(norm) for norm in norms):  # squares overflow, so take the slow way
        norms = tuple(torch.linalg.vector_norm(array, dtype=torch.float64) for array in parts)
    return math.hypot(*map(float, norms))
