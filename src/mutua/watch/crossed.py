"""What ledger.csv and participation.csv say of every client: bytes by kind, and what came of being asked."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from mutua.errors import line
from mutua.rounds.participation import WRONG, spans
from mutua.watch.happened import LONGEST_NAME, LONGEST_REASON, MAX_CLIENTS
from mutua.watch.measured import MOST_KEYS

MOST_LEDGER_KINDS = 40
MOST_REASONS = 5
MOST_SPANS = 500
"""Of how many rounds with the same reason each is told."""
ENVELOPE = "envelope"


class Crossed:
    """Bytes that left each client, by kind; and how many came back to it."""

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        """The number of each kind, in the order in which they were met."""
        self.up: dict[str, list[int]] = {}
        self.down: dict[str, int] = {}
        self.damaged = 0
        self._known: dict[bytes, tuple[str, str, int] | None] = {}

    def take(self, block: bytes, _: int, __: bool) -> None:
        """Take in whole lines."""
        for text in block.split(b"\n"):
            key, _sep, size = text.partition(b",")[2].rpartition(b",")
            try:
                at = self._known[key]
            except KeyError:
                at = self._place(key)
                if len(self._known) < MOST_KEYS:
                    self._known[key] = at
            if at is None:
                continue
            if not size.isdigit() or len(size) > 18:
                self.damaged += 1
                continue
            client, way, kind = at
            if way == "down":
                if client in self.down or len(self.down) < MAX_CLIENTS:
                    self.down[client] = self.down.get(client, 0) + int(size)
                continue
            mine = self.up.get(client)
            if mine is None:
                if len(self.up) >= MAX_CLIENTS:
                    continue
                mine = self.up[client] = []
            if kind >= len(mine):
                mine.extend([0] * (kind + 1 - len(mine)))
            mine[kind] += int(size)

    def _place(self, key: bytes) -> tuple[str, str, int] | None:
        try:
            client, way, kind, name, _arrays, _values = next(csv.reader([key.decode()]))
        except (ValueError, StopIteration, csv.Error):
            self.damaged += key not in (b"", b"client,direction,kind,name,arrays,values")
            return None
        if way not in ("up", "down"):
            self.damaged += key != b"client,direction,kind,name,arrays,values"
            return None
        if way == "down":
            return client, way, 0
        called = line(kind if kind == ENVELOPE else f"{kind}: {name}", LONGEST_NAME)
        if called not in self.kinds:
            if len(self.kinds) >= MOST_LEDGER_KINDS:
                called = "others"
            self.kinds.setdefault(called, len(self.kinds))
        return client, way, self.kinds[called]


@dataclass
class Turns:
    """What came of asking one client."""

    asked: int = 0
    answered: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    """By outcome."""
    reasons: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """By outcome and reason, the rounds."""

    def told(self) -> list[list[str]]:
        """Outcome, reason and rounds, as text."""
        return [[what, why, spans(sorted(set(rounds)))] for (what, why), rounds in self.reasons.items()]


class TookPart:
    """Who was asked how often, and what went wrong."""

    def __init__(self) -> None:
        self.of: dict[str, Turns] = {}
        self.damaged = 0

    def take(self, block: bytes, _: int, __: bool) -> None:
        """Take in whole lines."""
        for cells in self._cells(block):
            if len(cells) != 4 or not cells[0].isdigit() or len(cells[0]) > 9:
                self.damaged += cells[:2] != ["round", "client"]
                continue
            told, client, outcome, why = cells
            mine = self.of.get(client)
            if mine is None:
                if len(self.of) >= MAX_CLIENTS:
                    continue
                mine = self.of[client] = Turns()
            if outcome == "undone":
                mine.answered -= 1
            elif outcome not in ("trained", "unfinished", "unevaluated"):
                mine.asked += 1
                mine.answered += outcome in ("merged", "answered", "idle")
            if outcome in (*WRONG, "undone"):
                mine.wrong[outcome] += 1
                reason = outcome, line(why, LONGEST_REASON)
                if reason not in mine.reasons and len(mine.reasons) >= MOST_REASONS:
                    reason = outcome, "other reasons"
                rounds = mine.reasons.setdefault(reason, [])
                if len(rounds) < MOST_SPANS:
                    rounds.append(int(told))

    def _cells(self, block: bytes) -> Iterator[list[str]]:
        for text in block.split(b"\n"):
            if not text:
                continue
            if b'"' not in text:
                yield text.decode(errors="replace").split(",")
                continue
            try:
                yield next(csv.reader([text.decode(errors="replace")]))
            except (csv.Error, StopIteration):
                self.damaged += 1
