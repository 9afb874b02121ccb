"""Memory that a process shares with the workers it forks: arrays cross without going through a pipe.

Every process writes into a region of its own and may read all regions. A parcel is a pickle in which each array is
replaced by its place in shared memory. Parcels pass only between processes of one program: they are never written
to a file and never come from outside.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import pickle
import resource
import sys
import weakref
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mutua.errors import RunError
from mutua.support.tensor_files import ALIGNMENT

LARGEST, SMALLEST = 1 << 38, 1 << 28
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # a page counts when it is first written


ArrayPlace = tuple[int, int]
"""Where an array lies: the process that owns the region, and the offset in it, in bytes."""


class Block(NamedTuple):
    """A piece of one process's region that holds the arrays of one parcel; allocated and freed as a whole."""

    owner: int
    start: int
    length: int


class Parcel(NamedTuple):
    """A packed object: its pickle, and the block with those of its arrays that had to be copied."""

    content: bytes
    block: Block | None


class Arena:
    """The shared regions, one per process, made before workers are forked; process 0 is the one that forks.

    A block that process 0 has unpacked is not written again until the last of its arrays is gone there.
    """

    def __init__(self, processes: int) -> None:
        self.regions = _reserve(processes)
        self.bases = [ctypes.addressof(ctypes.c_ubyte.from_buffer(region)) for region in self.regions]
        self.process = 0
        self.released: dict[int, list[Block]] = defaultdict(list)
        self._free: dict[int, list[Block]] = defaultdict(list)
        self._end = 0
        self._known: dict[int, set[Block]] = defaultdict(set)  # in process 0: all blocks that others have sent
        self._in_use: set[Block] = set()  # and those of them that have arrays there

    def pack(self, what: Any, *, refer: bool = True, known: dict[int, ArrayPlace] | None = None) -> Parcel:
        """Pack an object; without `refer`, arrays that lie in the arena already are copied too.

        `known` gives, by identity, the places of arrays in earlier parcels, which are not copied again.
        """
        content = io.BytesIO()
        packer = _Packer(content, self, refer, {} if known is None else known)
        packer.dump(what)
        block = self._allocate(packer.length) if packer.length else None
        if block is not None:
            memory = self._memory(block)
            for start, array in packer.arrays.values():
                _array(memory, start, array.dtype, array.shape).copy_(array)
            if known is not None:
                known |= {i: (block.owner, block.start + start) for i, (start, _) in packer.arrays.items()}
        return Parcel(content.getvalue(), block)

    def claim(self, parcel: Parcel) -> None:
        """In process 0, when a parcel arrives: keep its block, even if its sender dies before it is unpacked."""
        if parcel.block is not None:
            self._known[parcel.block.owner].add(parcel.block)
            self._in_use.add(parcel.block)

    def unpack(self, parcel: Parcel) -> Any:
        """The object that was packed. Its arrays are views of the shared memory: nobody may write to them."""
        memory = None
        if parcel.block is not None:
            memory = self._memory(parcel.block)
            if self.process == 0:
                self.claim(parcel)
                weakref.finalize(memory, self._unused, parcel.block).atexit = False
        return _Unpacker(parcel.content, self, memory).load()

    def release(self, block: Block) -> None:
        """Let a block be written again: at once if this process owns it, else when its owner is told."""
        if block.owner == self.process:
            self._free[block.length].append(block)
        else:
            self.released[block.owner].append(block)

    def become(self, process: int) -> None:
        """In a process just forked from process 0: take this number, and write only where process 0 holds nothing.

        A process of the same number that died may have written there before.
        """
        self.process = process
        known = self._known[process]
        self._end = max((block.start + block.length for block in known), default=0)
        self._free.clear()
        for block in known - self._in_use - set(self.released[process]):  # it will be told of the released ones
            self._free[block.length].append(block)

    def _unused(self, block: Block) -> None:
        """The last array of a block is gone. This counts only in process 0, which had unpacked it."""
        if self.process == 0:
            self.release(block)
            self._in_use.discard(block)  # last: a process that is forked meanwhile must not take it for free

    def place(self, array: Tensor) -> ArrayPlace | None:
        """Where in the arena an array lies, if it does."""
        address = array.data_ptr()
        for owner, base in enumerate(self.bases):
            if base <= address < base + len(self.regions[owner]):
                return owner, address - base
        return None

    def _allocate(self, length: int) -> Block:
        if self._free[length]:
            return self._free[length].pop()
        if self._end + length > len(self.regions[self.process]):
            raise RunError(f"memory: {self._end:,} bytes of clients' states fill a worker; use fewer workers")
        self._end += length
        return Block(self.process, self._end - length, length)

    def _memory(self, block: Block) -> ctypes.Array[ctypes.c_ubyte]:
        """A block as an object, which the arrays in it keep alive."""
        return (ctypes.c_ubyte * block.length).from_buffer(self.regions[block.owner], block.start)


class _Packer(pickle.Pickler):
    """Pickles everything but arrays; these it notes, to be copied into one block."""

    def __init__(self, content: io.BytesIO, arena: Arena, refer: bool, known: Mapping[int, ArrayPlace]) -> None:
        super().__init__(content, protocol=5)
        self.arena, self.refer, self.known = arena, refer, known
        self.arrays: dict[int, tuple[int, Tensor]] = {}
        self.length = 0

    def reducer_override(self, thing: Any) -> Any:  # unlike persistent_id, not asked of every string and number
        if not isinstance(thing, Tensor):
            return NotImplemented
        place = self.known.get(id(thing))
        if place is None and self.refer and thing.is_contiguous():
            place = self.arena.place(thing)
        if place is not None:
            return _array_at, (*place, thing.dtype, tuple(thing.shape))
        if id(thing) not in self.arrays:
            self.arrays[id(thing)] = self.length, thing.detach()
            self.length += -(-thing.numel() * thing.element_size() // ALIGNMENT) * ALIGNMENT
        return _array_at, (None, self.arrays[id(thing)][0], thing.dtype, tuple(thing.shape))


class _Unpacker(pickle.Unpickler):
    def __init__(self, content: bytes, arena: Arena, memory: Any) -> None:
        super().__init__(io.BytesIO(content))
        # Not a method: this object would refer to itself and keep the block until the next garbage collection.
        self.array_at = partial(_array_at, arena.regions, memory)

    def find_class(self, module: str, name: str) -> Any:
        return self.array_at if name == _array_at.__name__ else super().find_class(module, name)


def _array_at(regions: list[mmap.mmap], memory: Any, owner: int | None, start: int, *kind: Any) -> Tensor:
    """The array at a place in a region or, without `owner`, in the parcel's block; parcels call this by name."""
    return _array(memory if owner is None else regions[owner], start, *kind)


def _array(memory: Any, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    count = torch.Size(shape).numel()
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=start).view(shape)


def _reserve(processes: int) -> list[mmap.mmap]:
    """As much address space per process as there is; memory is used only when it is written."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    # If address space is limited, leave most of it for everything else.
    length = LARGEST if limit == resource.RLIM_INFINITY else min(LARGEST, limit // (4 * processes))
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NO_RESERVE
    while length >= SMALLEST:
        try:
            return [mmap.mmap(-1, length, flags=flags) for _ in range(processes)]
        except (OSError, ValueError, OverflowError):
            length //= 2
    raise RunError("memory: none to share with workers; use --workers 1")
