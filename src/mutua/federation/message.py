"""Messages: the named arrays and numbers that cross between a client and the server.

A message is made of parts, each of a declared kind. As bytes it is one safetensors file, so reading
one can never run code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from mutua.errors import Refused
from mutua.support import safe_reading
from mutua.support.tensor_files import DTYPES, Tensors, encode_tensors, header_bytes
from mutua.support.text import several, some


class Kind(StrEnum):
    """What a part of a message is."""

    WEIGHTS = "weights"
    COUNT = "count"
    ENTROPY = "entropy"
    PROBABILITIES = "probabilities"
    SCORES = "scores"
    ACCURACY = "accuracy"
    METRIC = "metric"
    LOSS = "loss"
    CHOICE = "choice"
    PROTOTYPES = "prototypes"
    CONTROL = "control"
    FACTORS = "factors"
    FEATURES = "features"
    LABELS = "labels"


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """Arrays of one kind. A single number is an array without dimensions under the empty name."""

    kind: Kind
    arrays: Tensors

    @property
    def values(self) -> int:
        """How many numbers it holds."""
        return sum(array.numel() for array in self.arrays.values())

    @property
    def nbytes(self) -> int:
        """The bytes of its numbers, computed from shapes alone."""
        return sum(array.numel() * array.element_size() for array in self.arrays.values())


class Message(Mapping[str, Part]):
    """Parts by name, such as "meme" (weights) and "samples" (a count)."""

    __slots__ = ("_parts",)

    def __init__(self, /, **parts: Part) -> None:
        for name in parts:
            if "/" in name:
                raise ValueError(f"a part's name must have no '/', which separates names in a message: '{name}'")
        self._parts = parts

    def __getitem__(self, name: str) -> Part:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __repr__(self) -> str:
        parts = [f"{part.kind} '{name}' of {several(part.values, 'value')}" for name, part in self.items()]
        return f"Message({some(parts) or 'nothing'})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.encode() == other.encode()

    def arrays(self, name: str) -> Tensors:
        """The arrays of the part of this name."""
        return self._parts[name].arrays

    def number(self, name: str) -> float:
        """The number in the part of this name; `Refused` if it is not a single number."""
        arrays = self._parts[name].arrays
        if list(arrays) != [""] or arrays[""].dim():
            raise Refused(f"'{name}' is not one number")
        return arrays[""].item()

    @property
    def envelope(self) -> int:
        """Bytes of the safetensors header, which holds names and shapes."""
        signature = tuple(
            (key, DTYPES[array.dtype], tuple(array.shape), array.element_size())
            for key, array in self._flat().items()
        )
        return header_bytes(signature)

    @property
    def nbytes(self) -> int:
        """Length of the encoded message, computed from names and shapes."""
        return self.envelope + sum(part.nbytes for part in self.values())

    def encode(self) -> bytes:
        """The message as one safetensors file."""
        return b"".join(encode_tensors(self._flat()))

    @staticmethod
    def decode(data: bytes) -> Message:
        """The message in these bytes; `Refused` if they are not a message."""
        try:
            flat, _ = safe_reading.parse_arrays(data)
        except safe_reading.Unreadable as error:
            raise Refused(f"not a message: {error}") from None
        parts: dict[str, Part] = {}
        for key, array in flat.items():
            kind, _, rest = key.partition("/")
            name, slash, array_name = rest.partition("/")
            if kind not in Kind.__members__.values() or not slash:
                raise Refused(f"not a message: entry '{key}' has no known kind")
            if array.dtype not in DTYPES:
                raise Refused(f"not a message: entry '{key}' is {array.dtype}, which no message holds")
            part = parts.setdefault(name, Part(Kind(kind), {}))
            if part.kind != kind:
                raise Refused(f"not a message: part '{name}' has two kinds")
            part.arrays[array_name] = array
        return Message(**parts)

    def _flat(self) -> Tensors:
        return {
            f"{part.kind}/{name}/{key}": array
            for name, part in self._parts.items()
            for key, array in part.arrays.items()
        }


NUMBERS = {
    Kind.COUNT: torch.tensor(0),
    Kind.CHOICE: torch.tensor(0),
    Kind.ENTROPY: torch.tensor(0.0),
    Kind.ACCURACY: torch.tensor(0.0),
    Kind.LOSS: torch.tensor(0.0),
}
"""Kinds that are one number, with a number of the type in which each is sent."""


def weights(state: Mapping[str, Tensor]) -> Part:
    """A part that holds a model's weights and buffers."""
    return Part(Kind.WEIGHTS, dict(state))


def count(number: int) -> Part:
    """A part that holds one whole number."""
    return Part(Kind.COUNT, {"": torch.tensor(number, dtype=torch.int64)})


def number(kind: Kind, value: float) -> Part:
    """A part that holds one number: a whole one for counts and choices, else a real one."""
    if kind in NUMBERS and not NUMBERS[kind].is_floating_point():
        return Part(kind, {"": torch.tensor(int(value), dtype=torch.int64)})
    return Part(kind, {"": torch.tensor(value, dtype=torch.get_default_dtype())})


# What may leave

Shares = Mapping[str, Kind]
"""All that may leave a client: the name of each part and its kind."""


def declared(shares: Shares) -> str:
    """What is declared, in words."""
    return ", ".join(f"{kind} '{name}'" for name, kind in shares.items()) or "nothing"


def may_leave(message: Message | None, shares: Shares, brief: Message | None) -> None:
    """Refuse, by name, a message that holds anything the method did not declare.

    Weights and controls must have names, shapes and types of the server's own, and whole numbers as they came;
    factors are pairs whose product is as one of those weights. Counts, choices, entropies, accuracies and losses
    are one number each. Prototypes are one vector per class, features one row per sample, labels one whole number
    per sample. So neither an adaptor nor label counts can leave inside a declared part.
    """
    if message is None:
        return
    sent = [part.arrays for part in (brief or {}).values() if part.kind is Kind.WEIGHTS]
    came = {key: array for arrays in sent for key, array in arrays.items()}
    for name, part in message.items():
        if shares.get(name) != part.kind:
            raise Refused(f"{part.kind} '{name}' may not leave; the method declares {declared(shares)}")
        odd = next((array.dtype for array in part.arrays.values() if array.dtype not in DTYPES), None)
        if odd is not None:
            raise Refused(f"{part.kind} '{name}' may not leave; it is {odd}, which no message holds")
        if part.kind in NUMBERS and (list(part.arrays) != [""] or part.values != 1):
            raise Refused(f"{part.kind} '{name}' may not leave; it is not one number")
        if part.kind in (Kind.COUNT, Kind.CHOICE):
            _is_whole_number(part.kind, name, part.arrays[""])
        elif part.kind in (Kind.WEIGHTS, Kind.CONTROL):
            extra = sorted(set(part.arrays) - set(came))
            if extra:
                raise Refused(f"{part.kind} '{extra[0]}' may not leave; the global has no such name")
            for key, array in part.arrays.items():
                _is_as_it_came(part.kind, key, array, came[key])
        elif part.kind is Kind.LABELS:
            _are_labels(name, part.arrays)
        elif not all(array.is_floating_point() for array in part.arrays.values()):
            raise Refused(f"{part.kind} '{name}' may not leave; it is whole numbers")
        elif part.kind is Kind.FACTORS:
            _are_factors(name, part.arrays, came)
        elif part.kind is Kind.PROTOTYPES:
            _are_one_vector_each(name, part.arrays)
        elif part.kind is Kind.FEATURES and (list(part.arrays) != [""] or part.arrays[""].dim() < 2):
            raise Refused(f"features '{name}' may not leave; they are not one row for each sample")


MAX_COUNT = 2**53
"""The largest count: above it, weights, which are floats, could not represent every whole number."""


def _is_whole_number(kind: Kind, name: str, array: Tensor) -> None:
    if array.dtype != torch.int64 or not 0 <= int(array) <= MAX_COUNT:
        raise Refused(f"{kind} '{name}' may not leave; it is not a whole number (int64) from 0 to 2**53")


def _are_labels(name: str, arrays: Tensors) -> None:
    labels = arrays.get("")
    if (
        labels is None
        or len(arrays) != 1
        or (labels.dtype, labels.dim()) != (torch.int64, 1)
        or (labels < 0).any()
    ):
        raise Refused(f"labels '{name}' may not leave; they are not one whole number (int64) for each sample")


def _are_one_vector_each(name: str, arrays: Tensors) -> None:
    if any(array.dim() != 1 for array in arrays.values()) or len({array.shape for array in arrays.values()}) > 1:
        raise Refused(
            f"prototypes '{name}' may not leave; they are not one vector for each class, all of one length"
        )


def _are_factors(name: str, arrays: Tensors, came: Tensors) -> None:
    names = {key.rpartition(".")[0] for key in arrays}
    if arrays.keys() != {f"{of}.{side}" for of in names for side in ("left", "right")}:
        raise Refused(f"factors '{name}' may not leave; they are not a NAME.left and a NAME.right for each weight")
    for of in sorted(names):
        if of not in came:
            raise Refused(f"factors '{of}' may not leave; the global has no such name")
        left, right, whole = arrays[f"{of}.left"], arrays[f"{of}.right"], came[of]
        rows, columns = len(whole) if whole.dim() else 0, whole[:1].numel() if whole.dim() else 0
        fit = (*left.shape, *right.shape) == (rows, *left.shape[1:], *left.shape[1:], columns)
        if not fit or left.dim() != 2 or {left.dtype, right.dtype} != {whole.dtype}:
            there = f"{whole.dtype} {tuple(whole.shape)}"
            raise Refused(f"factors '{of}' are {tuple(left.shape)} and {tuple(right.shape)}, the global's {there}")


def _is_as_it_came(kind: Kind, name: str, array: Tensor, came: Tensor) -> None:
    """Refuse an array that is not the global's in shape and type, or whole numbers that have changed.

    Whole numbers are counters and masks, which are not learned. Batch-norm's counter of batches would tell how
    many samples a client has, and any other change could carry hidden data.
    """
    if array.shape != came.shape or array.dtype != came.dtype:
        there = f"{came.dtype} {tuple(came.shape)}"
        raise Refused(f"{kind} '{name}' are {array.dtype} {tuple(array.shape)}, the global's {there}")
    if not array.is_floating_point() and not torch.equal(array, came):
        raise Refused(f"{kind} '{name}' may not leave; whole numbers go back as they came")
