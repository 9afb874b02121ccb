"""The ledger: what crossed between clients and server."""

from __future__ import annotations

from sys import intern
from typing import ClassVar, Literal, NamedTuple

from mutua.federation.message import Message
from mutua.support.row_log import Log
from mutua.support.text import size, some

Direction = Literal["up", "down"]


class Entry(NamedTuple):
    """One part of one message: `values` numbers in `arrays` arrays. Up is from client to server."""

    round: int
    client: str
    direction: Direction
    kind: str
    name: str
    arrays: int
    values: int
    bytes: int


class Ledger(Log[Entry]):
    """Every part of every message that crossed. The entries of a message add up to its encoded length."""

    kind: ClassVar[type[Entry]] = Entry

    def __init__(self) -> None:
        super().__init__()
        self._totals: dict[tuple[str, str | None], int] = {}
        self._kinds: dict[tuple[str, str | None], dict[str, int]] = {}

    @property
    def entries(self) -> list[Entry]:
        """All entries, oldest first."""
        return list(self)

    def __repr__(self) -> str:
        left = (
            some([f"{kind} ({name})" for kind, name in (k.split(": ", 1) for k in self.kinds("up"))]) or "nothing"
        )
        crossed = f"{size(self.bytes('up'))} up: {left}; {size(self.bytes('down'))} down"
        return f"Ledger({len(self):,} entries; {crossed})"

    def record(self, round: int, client: str, direction: Direction, message: Message | None) -> None:
        """Add a message; None is no message and no bytes."""
        if message is None:
            return
        for name, part in message.items():
            row = Entry(round, client, direction, part.kind, name, len(part.arrays), part.values, part.nbytes)
            self._append(row)
        self._append(Entry(round, client, direction, "envelope", "", 0, 0, message.envelope))

    def _append(self, row: Entry) -> None:
        # Sums are needed after every round and for every client: each entry is counted once, here.
        super()._append(row)
        for who in (row.client, None):
            self._totals[row.direction, who] = self._totals.get((row.direction, who), 0) + row.bytes
            if row.kind != "envelope":
                mine = self._kinds.setdefault((row.direction, who), {})
                label = intern(f"{row.kind}: {row.name}")  # thousands of clients have the same
                mine[label] = mine.get(label, 0) + row.bytes

    def bytes(self, direction: Direction, client: str | None = None) -> int:
        """How many bytes crossed in this direction, for one client or for all."""
        return self._totals.get((direction, client), 0)

    def kinds(self, direction: Direction, client: str | None = None) -> dict[str, int]:
        """Bytes by what they were, such as {"weights: meme": 246824}."""
        return dict(self._kinds.get((direction, client), {}))
