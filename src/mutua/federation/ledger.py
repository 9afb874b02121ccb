"""The ledger: what crossed between clients and server."""

from __future__ import annotations

from array import array
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


class _Sums:
    """Bytes by client's number, eight bytes for each, and of all together."""

    def __init__(self) -> None:
        self._all = 0
        self._by_client = array("q")

    def add(self, client: int, size: int) -> None:
        if (missing := client + 1 - len(self._by_client)) > 0:
            self._by_client.extend([-1] * missing)
        try:
            self._by_client[client] = max(0, self._by_client[client]) + size
        except OverflowError:  # of a spoilt file
            raise ValueError(f"{size} bytes are more than can be counted") from None
        self._all += size

    def of(self, client: int | None) -> int | None:
        """The sum; None if nothing has been added."""
        if client is None:
            return self._all if self._by_client else None
        found = self._by_client[client] if client < len(self._by_client) else -1
        return None if found < 0 else found


class Ledger(Log[Entry]):
    """Every part of every message that crossed. The entries of a message add up to its encoded length."""

    kind: ClassVar[type[Entry]] = Entry

    def __init__(self) -> None:
        super().__init__()
        self._totals: dict[str, _Sums] = {"up": _Sums(), "down": _Sums()}
        self._kinds: dict[str, dict[str, _Sums]] = {"up": {}, "down": {}}

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
        client = self._whose[-1]
        self._totals[row.direction].add(client, row.bytes)
        if row.kind != "envelope":
            self._kinds[row.direction].setdefault(f"{row.kind}: {row.name}", _Sums()).add(client, row.bytes)

    def bytes(self, direction: Direction, client: str | None = None) -> int:
        """How many bytes crossed in this direction, for one client or for all."""
        return self._totals[direction].of(self._number(client)) or 0

    def kinds(self, direction: Direction, client: str | None = None) -> dict[str, int]:
        """Bytes by what they were, such as {"weights: meme": 246824}."""
        found = {kind: sums.of(self._number(client)) for kind, sums in self._kinds[direction].items()}
        return {kind: sum for kind, sum in found.items() if sum is not None}

    def _number(self, client: str | None) -> int | None:
        """A client's number; that of a stranger, of whom there is nothing, is beyond all others."""
        return None if client is None else self._client_numbers.get(client, len(self._clients))
