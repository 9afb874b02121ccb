"""The ledger: what crossed between clients and server, and the check of what may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from mutua.errors import Refused
from mutua.federation.message import NUMBERS, Kind, Message
from mutua.support.row_log import Log
from mutua.support.tensor_files import DTYPES
from mutua.support.text import size, some

Direction = Literal["up", "down"]
Shares = Mapping[Kind, str]


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
        """Enter a message; None is no message and no bytes."""
        if message is None:
            return
        for name, part in message.items():
            row = Entry(round, client, direction, part.kind, name, len(part.arrays), part.values, part.nbytes)
            self._append(row)
        self._append(Entry(round, client, direction, "envelope", "", 0, 0, message.envelope))

    def _append(self, row: Entry) -> None:
        # Sums are asked for after every round, and of every client: no entry is counted twice.
        super()._append(row)
        for who in (row.client, None):
            self._totals[row.direction, who] = self._totals.get((row.direction, who), 0) + row.bytes
            if row.kind != "envelope":
                mine = self._kinds.setdefault((row.direction, who), {})
                label = f"{row.kind}: {row.name}"
                mine[label] = mine.get(label, 0) + row.bytes

    def bytes(self, direction: Direction, client: str | None = None) -> int:
        """How many bytes crossed in this direction, of one client or of all."""
        return self._totals.get((direction, client), 0)

    def kinds(self, direction: Direction, client: str | None = None) -> dict[str, int]:
        """Bytes by what they were, such as {"weights: meme": 246824}."""
        return dict(self._kinds.get((direction, client), {}))


def may_leave(message: Message | None, shares: Shares, brief: Message | None) -> None:
    """Refuse, by name, a message that holds anything the method did not declare.

    Weights may carry only what the server's own have: the same names, shapes and types, and whole numbers as they
    came. A count, an entropy or an accuracy is one number. So neither an adaptor nor label counts can slip out
    inside a declared part.
    """
    if message is None:
        return
    sent = [part.arrays for part in (brief or {}).values() if part.kind is Kind.WEIGHTS]
    came = {key: array for arrays in sent for key, array in arrays.items()}
    for name, part in message.items():
        if shares.get(part.kind) != name:
            declared = ", ".join(f"{kind} '{what}'" for kind, what in shares.items()) or "nothing"
            raise Refused(f"{part.kind} '{name}' may not leave; the method declares {declared}")
        odd = next((array.dtype for array in part.arrays.values() if array.dtype not in DTYPES), None)
        if odd is not None:
            raise Refused(f"{part.kind} '{name}' may not leave; it is {odd}, which no message holds")
        if part.kind in NUMBERS and (list(part.arrays) != [""] or part.values != 1):
            raise Refused(f"{part.kind} '{name}' may not leave; it is not one number")
        if part.kind is Kind.COUNT:
            _is_count(name, part.arrays[""])
        elif part.kind is Kind.WEIGHTS:
            extra = sorted(set(part.arrays) - set(came))
            if extra:
                raise Refused(f"weights '{extra[0]}' may not leave; the global has no such name")
            for key, array in part.arrays.items():
                _is_as_it_came(key, array, came[key])
        elif not all(array.is_floating_point() for array in part.arrays.values()):
            raise Refused(f"{part.kind} '{name}' may not leave; it is whole numbers")


MOST = 2**53
"""The largest count: beyond it a weight, which is a float, could not be told from its neighbours."""


def _is_count(name: str, array: Tensor) -> None:
    if array.dtype != torch.int64 or not 0 <= int(array) <= MOST:
        raise Refused(f"count '{name}' may not leave; it is not a whole number (int64) from 0 to 2**53")


def _is_as_it_came(name: str, array: Tensor, came: Tensor) -> None:
    """Refuse an array that is not the global's in shape and type, or whole numbers that have changed.

    Those are counters and masks. Batch-norm's counter of batches would tell how many samples a client has; and
    nobody learns them, so whatever else is in them is smuggled.
    """
    if array.shape != came.shape or array.dtype != came.dtype:
        there = f"{came.dtype} {tuple(came.shape)}"
        raise Refused(f"weights '{name}' are {array.dtype} {tuple(array.shape)}, the global's {there}")
    if not array.is_floating_point() and not torch.equal(array, came):
        raise Refused(f"weights '{name}' may not leave; whole numbers go back as they came")
