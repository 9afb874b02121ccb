"""The private store: all that a client keeps between rounds, changed in transactions only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from mutua.errors import RunError
from mutua.federation.message import Message, Part
from mutua.support.tensor_files import Tensors

State = dict[str, Tensors]
"""Groups of named arrays: "personal", "personal.optimizer", "adaptor", ... Never data."""


def copied(state: State) -> State:
    """A copy of the names only: arrays are replaced, never changed in place."""
    return {group: dict(arrays) for group, arrays in state.items()}


def not_finite(state: State, before: State) -> str | None:
    """The first array with NaN, or with infinity where `before` was finite: it must not be kept.

    Unchanged arrays are skipped. A model may have infinite numbers from the start, such as masks.
    """
    for group, arrays in state.items():
        old = before.get(group, {})
        for name, array in arrays.items():
            if array is not old.get(name) and _broken(array, old.get(name)):
                return f"{group} '{name}'" if name else group
    return None


def _broken(array: Tensor, old: Tensor | None) -> bool:
    # A sum shows NaN and infinity, ten times as fast as checking every number. It may also overflow.
    if not array.is_floating_point() or math.isfinite(float(array.sum())):
        return False
    if bool(array.isnan().any()):
        return True
    return old is not None and old.shape == array.shape and bool((array.isinf() & ~old.isinf()).any())


class Committed(Protocol):
    """What a client kept and what it replied in one round: always both together."""

    @property
    def round(self) -> int:
        """The round of the work; 0 is its start."""

    @property
    def state(self) -> State:
        """What the client kept."""

    @property
    def reply(self) -> Message | None:
        """What the client sent."""

    @property
    def terms(self) -> dict[str, float]:
        """What the observer of a simulation saw of the work: the means of the objective's terms."""

    @property
    def keeps(self) -> bool:
        """Whether there is anything in its state."""


@dataclass(frozen=True)
class Commit:
    """A commit in memory."""

    round: int
    state: State
    reply: Message | None
    terms: dict[str, float] = field(default_factory=dict)

    @property
    def keeps(self) -> bool:
        """Whether there is anything in its state."""
        return bool(self.state)


class CommitWriter(Protocol):
    """Where a store on disk writes its commits."""

    def write(self, commit: Commit) -> Committed:
        """Write it; the commit to keep in its place."""


@dataclass(slots=True)
class Store:
    """The last two commits of a client, so that a server one round behind can still be answered."""

    commits: list[Committed] = field(default_factory=list)
    files: CommitWriter | None = None
    """Where it writes its commits before they count; None keeps them in memory."""

    def copy_arrays(self) -> None:
        """Copy all arrays out of shared memory; an array of two commits is copied once."""
        made: dict[int, Tensor] = {}

        def own(arrays: Tensors) -> Tensors:
            for array in arrays.values():
                if id(array) not in made:
                    made[id(array)] = array.clone()
            return {name: made[id(array)] for name, array in arrays.items()}

        def copied(commit: Committed) -> Committed:
            if not isinstance(commit, Commit):
                return commit
            state = {group: own(arrays) for group, arrays in commit.state.items()}
            parts = None if commit.reply is None else commit.reply.items()
            reply = None if parts is None else Message(**{n: Part(p.kind, own(p.arrays)) for n, p in parts})
            return replace(commit, state=state, reply=reply)

        self.commits = [copied(commit) for commit in self.commits]

    def committed(self, round: int) -> Committed | None:
        """The commit of this round, if its work is done."""
        return next((commit for commit in self.commits if commit.round == round), None)

    def stage(self, round: int) -> State:
        """A copy of the newest state from before this round, to work on."""
        before = [commit for commit in self.commits if commit.round < round]
        if self.commits and not before:
            oldest = self.commits[0].round
            raise RunError(f"round {round}: the client's store goes back to the end of round {oldest} only")
        return copied(before[-1].state) if before else {}

    def commit(
        self, round: int, state: State, reply: Message | None, terms: dict[str, float] | None = None
    ) -> None:
        """Keep state and reply together; commits of this round or later are replaced."""
        before = [commit for commit in self.commits if commit.round < round]
        commit = Commit(round, state, reply, terms or {})
        self.commits = [*before[-1:], commit if self.files is None else self.files.write(commit)]

    def back_to(self, round: int) -> None:
        """Forget the work of later rounds, so that it is repeated; unless there is nothing earlier."""
        self.commits = [commit for commit in self.commits if commit.round <= round] or self.commits

    @property
    def changed(self) -> bool:
        """Whether the newest commit has changed the state; False if there is only one commit."""
        if len(self.commits) < 2:
            return False
        old, new = self.commits[-2].state, self.commits[-1].state
        if [(group, list(arrays)) for group, arrays in old.items()] != [(g, list(a)) for g, a in new.items()]:
            return True
        return not all(_same(array, new[group][name]) for group, a in old.items() for name, array in a.items())

    def upto(self, round: int) -> Store:
        """The store as it was after this round. A later commit without an earlier one has changed no state."""
        before = [commit for commit in self.commits if commit.round <= round]
        unchanged: list[Committed] = [Commit(round, commit.state, None) for commit in self.commits[-1:]]
        return replace(self, commits=before or unchanged)

    @property
    def state(self) -> State:
        """The newest committed state."""
        return self.commits[-1].state if self.commits else {}

    @property
    def keeps(self) -> bool:
        """Whether there is anything in the newest state."""
        return bool(self.commits) and self.commits[-1].keeps


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two arrays have the same bytes."""
    if a is b:
        return True
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return torch.equal(*(array.detach().cpu().contiguous().view(-1).view(torch.uint8) for array in (a, b)))
