"""On guard against a reply that spoils what everybody is sent next.

Numbers can be finite and still so large that whoever trains on what is merged of them diverges. One bad reply must
not cost the others their models: clients keep no state that is not finite (`participant.py`), a reply that cannot
be honest is refused, and where one is far larger than the others, the loop remembers what the server's state would
be without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median_low

import torch
from torch import Tensor

from mutua.message import Message
from mutua.store import State

LARGE, HUGE = 10.0, 1000.0
"""A reply, its real numbers as one vector, is suspect or refused if it is so many times as long as the median's.

It is the length of what is sent, not of an update: memes are forked from one global and are all about as long.
"""
UP, SUSPECTS, SPARE = "guard", "guard suspects", "guard spare "
"""Groups of a saved server's state in which the guard is."""


@dataclass(frozen=True)
class Guard:
    """What is remembered of the last merge; and, once a run was rescued, that such replies are refused at once."""

    up: bool = False
    suspects: Mapping[str, float] = field(default_factory=dict)
    """By client, how many times as long as the median its last reply was."""
    spare: State | None = None
    """The server's state without the suspects' replies."""

    @property
    def limit(self) -> float:
        """How many times as long as the median a reply may be."""
        return LARGE if self.up else HUGE

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
        """The server's state and the guard of what `saved` has made of them."""
        spare = {group.removeprefix(SPARE): arrays for group, arrays in saved.items() if group.startswith(SPARE)}
        suspects = {client: float(times) for client, times in saved.get(SUSPECTS, {}).items()}
        mine = {UP, SUSPECTS, *(SPARE + group for group in spare)}
        state = {group: arrays for group, arrays in saved.items() if group not in mine}
        return state, Guard(UP in saved, suspects, spare or None)


def too_long(replies: Mapping[str, Message], limit: float) -> dict[str, float]:
    """By client, how many times as long as the median a reply is, where that is over the limit."""
    lengths = {client: _length(reply) for client, reply in replies.items()}
    usual = median_low(lengths.values()) if lengths else 0.0
    times = {client: length / usual for client, length in lengths.items() if 0 < usual < math.inf}
    return {client: many for client, many in times.items() if many > limit}


def not_finite(state: State, before: State) -> str | None:
    """The first array with NaN, or with infinity where `before` was finite: one that nobody should keep.

    What has not changed is not looked at. A model may have infinite numbers from the start, as masks have.
    """
    for group, arrays in state.items():
        old = before.get(group, {})
        for name, array in arrays.items():
            if array is not old.get(name) and _broken(array, old.get(name)):
                return f"{group} '{name}'" if name else group
    return None


def _broken(array: Tensor, old: Tensor | None) -> bool:
    # NaN and infinity show in a sum, which is ten times as fast as a look at every number. It may overflow too.
    if not array.is_floating_point() or math.isfinite(float(array.sum())):
        return False
    if bool(array.isnan().any()):
        return True
    return old is not None and old.shape == array.shape and bool((array.isinf() & ~old.isinf()).any())


def _length(message: Message) -> float:
    """Its real numbers as one vector: how long that is."""
    parts = [a for part in message.values() for a in part.arrays.values() if a.is_floating_point() and a.numel()]
    norms = torch._foreach_norm(parts) if parts else ()
    if not all(math.isfinite(norm) for norm in norms):  # squares overflow: the slow way
        norms = tuple(torch.linalg.vector_norm(array, dtype=torch.float64) for array in parts)
    return math.hypot(*map(float, norms))
