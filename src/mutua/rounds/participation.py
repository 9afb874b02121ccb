"""Participation: who was asked in which round, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from mutua.support.row_log import Log
from mutua.support.text import some

Outcome = Literal[
    "merged", "answered", "idle", "refused", "undone", "failed", "trained", "unfinished", "unevaluated"
]
OUTCOMES: dict[Outcome, str] = {
    "merged": "it did its work and its reply was merged",
    "answered": "it did its work, and this method sends nothing",
    "idle": "it was asked and had nothing to do: it trains after the last round",
    "refused": "it did its work, but its reply was refused",
    "undone": "its reply was merged and taken out again: others diverged on what came of it; it counts as refused",
    "failed": "its work failed, or no reply came",
    "trained": "it trained at the start (round 0) or after the last round (one more than planned)",
    "unfinished": "its work after the last round failed",
    "unevaluated": "its evaluation failed",
}
WRONG = ("refused", "failed", "unfinished", "unevaluated")
"""The outcomes that have a reason."""
REASONS = 10
"""How many different reasons a summary lists for a client."""


class ParticipationRow(NamedTuple):
    """One row: what happened with one client in one round, and why if it went wrong."""

    round: int
    client: str
    outcome: Outcome
    reason: str = ""


Reasons = dict[str, list[int]]
"""By reason, the rounds."""


@dataclass(slots=True)
class Attendance:
    """One client's part in a run. Rounds count from 1; `asked` counts answered, refused and failed ones."""

    asked: int = 0
    answered: int = 0
    """Rounds in which its work was done and, if it was sent, merged."""
    refused: Reasons = field(default_factory=dict)
    failed: Reasons = field(default_factory=dict)
    unfinished: Reasons = field(default_factory=dict)
    unevaluated: Reasons = field(default_factory=dict)
    first: int | None = None
    """The first round in which its work was done; 0 is the start, one more than planned is the last work."""

    @property
    def trained(self) -> bool:
        """Whether any of its work was done."""
        return self.first is not None

    @property
    def flawless(self) -> bool:
        """Whether nothing went wrong."""
        return not any(getattr(self, what) for what in WRONG)

    def summary(self) -> dict[str, Any]:
        """A client's part of a run's JSON: the rounds of each reason, as text, since there may be thousands."""
        told = {
            what: {reason: spans(rounds) for reason, rounds in _few(getattr(self, what)).items()} for what in WRONG
        }
        return {"asked": self.asked, "answered": self.answered, **told}


class Participation(Log[ParticipationRow]):
    """A row for every client and round in which it was asked, with sums by client and by round."""

    kind: ClassVar[type[ParticipationRow]] = ParticipationRow

    def __init__(self) -> None:
        super().__init__()
        self.clients: dict[str, Attendance] = {}
        self.merged: dict[int, int] = {}
        """By round, how many replies were merged; rounds without any are left out."""

    def __repr__(self) -> str:
        wrong = [client for client, mine in self.clients.items() if not mine.flawless]
        return f"Participation({len(self.clients)} clients; something went wrong with {some(wrong) or 'none'})"

    def of(self, client: str) -> Attendance:
        """A client's part in the run; empty for one that was never asked."""
        return self.clients.get(client, Attendance())

    def add(self, round: int, client: str, outcome: Outcome, reason: str = "") -> None:
        """Add what happened with a client in a round."""
        self._append(ParticipationRow(round, client, outcome, reason))

    def _append(self, row: ParticipationRow) -> None:
        super()._append(row)
        round, client, outcome, reason = row
        mine = self.clients.setdefault(client, Attendance())
        if outcome == "merged":
            self.merged[round] = self.merged.get(round, 0) + 1
        if outcome == "undone":
            self.merged[round] -= 1
            mine.answered -= 1
            mine.refused.setdefault(reason, []).append(round)
            return
        if outcome in WRONG:
            getattr(mine, outcome).setdefault(reason, []).append(round)
        if outcome in ("merged", "answered", "refused", "trained") and mine.first is None:
            mine.first = round
        if outcome not in ("trained", "unfinished", "unevaluated"):
            mine.asked += 1
            mine.answered += outcome in ("merged", "answered", "idle")


def never_drawn(client: Mapping[str, Any]) -> bool:
    """Whether a client of a run's JSON never trained because no round asked for it, and nothing went wrong."""
    part = client.get("participation")
    return not client.get("trained", True) and part is not None and not any(map(part.get, ("asked", *WRONG)))


def left_out(clients: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line for each client of a run's JSON with which something went wrong or that never trained."""
    said = []
    for client in clients:
        part = client.get("participation") or {}
        wrong = [(what, reason, at) for what in WRONG for reason, at in part.get(what, {}).items()]
        if never_drawn(client):
            said.append(f"{client['id']}: never drawn, so its own model is out of the mean")
            continue
        told = [f"{client['id']}: answered {part.get('answered', 0)} of {part.get('asked', 0)} rounds"]
        told += [f"{what} ({'round' if at.isdecimal() else 'rounds'} {at}): {why}" for what, why, at in wrong]
        if not client.get("trained", True):
            told.append("never trained, so its own model is out of the mean")
        if len(told) > 1:
            said.append("; ".join(told))
    return said


def spans(rounds: Iterable[int]) -> str:
    """Rounds in short form: "1-3, 7"."""
    found: list[list[int]] = []
    for round in rounds:
        if found and round == found[-1][1] + 1:
            found[-1][1] = round
        else:
            found.append([round, round])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _few(reasons: Mapping[str, list[int]]) -> Reasons:
    """The first reasons, and all others as one."""
    first = dict(list(reasons.items())[:REASONS])
    rest = sorted(round for rounds in list(reasons.values())[REASONS:] for round in rounds)
    return first | ({"other reasons": rest} if rest else {})
