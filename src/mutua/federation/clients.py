"""The clients of a federation, packed: they take little memory, and each is made when somebody asks for it."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from mutua.data.mapped_rows import MappedRows
from mutua.data.samples import Samples
from mutua.federation.client import Client

_SMALL = 1 << 14
"""Bytes. Smaller arrays are packed with their client; larger ones stay as they are."""
_PACKED = {torch.uint8, torch.int64, torch.bool, torch.float32, torch.float64}
_OWN = {Client, Samples, MappedRows, dict, str, bytes, int, float, bool, type(None), pickle.PickleBuffer}
"""What a pickle of one client holds itself. Anything else may be many clients', and is kept once."""


class Clients(Sequence[Client]):
    """A list of clients. Asking twice for one gives two objects with the same content.

    What differs from client to client is one array of bytes, and what they have in common is there once. Worker
    processes that are forked share the array for good: reading an object would write to its count of references,
    and so copy the page of memory that it is on.
    """

    def __init__(self, clients: Iterable[Client]) -> None:
        self._common: list[Any] = []
        content, ends, known = io.BytesIO(), [0], dict[int, int]()
        for client in clients:
            _Packer(content, self._common, known).dump(client)
            ends.append(content.tell())
        self._content = torch.frombuffer(content.getbuffer(), dtype=torch.uint8).clone()
        self._ends = torch.tensor(ends)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, number: int) -> Client: ...

    @overload
    def __getitem__(self, number: slice) -> list[Client]: ...

    def __getitem__(self, number: int | slice) -> Client | list[Client]:
        if isinstance(number, slice):
            return [self[one] for one in range(len(self))[number]]
        start, end = self._ends[range(len(self))[number] :][:2].tolist()
        made: Client = _Unpacker(io.BytesIO(self._content[start:end].numpy().data), self._common).load()
        return made

    def __iter__(self) -> Iterator[Client]:
        return (self[number] for number in range(len(self)))

    def __repr__(self) -> str:
        return repr(list(self))


class _Packer(pickle.Pickler):
    """Pickles one client, but for what may be others' too: that goes into the list, once."""

    def __init__(self, content: io.BytesIO, common: list[Any], known: dict[int, int]) -> None:
        super().__init__(content, protocol=5)
        self.common, self.known = common, known

    def persistent_id(self, thing: Any) -> int | None:
        if type(thing) in _OWN or _is_small(thing) or (type(thing) is tuple and not _is_names(thing)):
            return None
        if id(thing) not in self.known:
            self.known[id(thing)] = len(self.common)
            self.common.append(thing)
        return self.known[id(thing)]

    def reducer_override(self, thing: Any) -> Any:
        return (_tensor, (thing.numpy(),)) if type(thing) is Tensor else NotImplemented


class _Unpacker(pickle.Unpickler):
    def __init__(self, content: io.BytesIO, common: Sequence[Any]) -> None:
        super().__init__(content)
        self.common = common

    def persistent_load(self, number: int) -> Any:
        return self.common[number]


def _is_small(thing: Any) -> bool:
    """Whether it is an array to be packed."""
    if type(thing) is Tensor:
        plain = thing.dtype in _PACKED and thing.device.type == "cpu" and not thing.requires_grad
        return plain and thing.nbytes < _SMALL and thing.is_contiguous()
    return type(thing) is np.ndarray and thing.nbytes < _SMALL and not thing.dtype.hasobject


def _is_names(thing: tuple[Any, ...]) -> bool:
    """Whether a tuple is names, such as those of classes; others belong to what is pickled."""
    return bool(thing) and all(type(one) is str for one in thing)


def _tensor(array: np.ndarray) -> Tensor:
    """A tensor in memory of its own, which begins where torch's arrays do: so sums have the same bytes."""
    return torch.from_numpy(array).clone()
