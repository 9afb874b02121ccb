"""Memory that a process shares with the workers it forks: arrays cross without going through a pipe.

Every process writes into a region of its own and may read all of them. A parcel is a pickle whose arrays are
replaced by their places. It passes between processes of one program only: it is never a file and never comes from
outside.
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

ALIGNMENT = 64  # a cache line, so that no kernel meets an odd address
LARGEST, SMALLEST = 1 << 38, 1 << 28
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # a page counts when it is first written


Place = tuple[int, int]
"""The process whose region it is, and where it begins there."""


class Block(NamedTuple):
    """A stretch of one process's region."""

    owner: int
    start: int
    length: int


class Parcel(NamedTuple):
    """What was packed: its content, and the block that holds those of its arrays that had to be copied."""

    content: bytes
    block: Block | None


class Arena:
    """Regions for `processes` processes, made before they are forked; process 0 is the one that forks.

    A block that process 0 has opened stays as it is until the last of its arrays is gone there.
    """

    def __init__(self, processes: int) -> None:
        self.regions = _reserve(processes)
        self.bases = [ctypes.addressof(ctypes.c_ubyte.from_buffer(region)) for region in self.regions]
        self.process = 0
        self.released: dict[int, list[Block]] = defaultdict(list)
        self._free: dict[int, list[Block]] = defaultdict(list)
        self._end = 0
        self._known: dict[int, set[Block]] = defaultdict(set)  # in process 0: all blocks that others have sent
        self._open: set[Block] = set()  # and those of them that have arrays there

    def pack(self, what: Any, *, refer: bool = True, known: dict[int, Place] | None = None) -> Parcel:
        """A parcel; without `refer` also arrays that lie in the arena already are copied.

        `known` is where earlier parcels have put arrays, by identity: those are not copied again.
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
        """In process 0, where a parcel has come: it will be unpacked, whatever becomes of who sent it."""
        if parcel.block is not None:
            self._known[parcel.block.owner].add(parcel.block)
            self._open.add(parcel.block)

    def unpack(self, parcel: Parcel) -> Any:
        """What was packed. Its arrays are the very memory they were packed into: nobody may write to them."""
        memory = None
        if parcel.block is not None:
            memory = self._memory(parcel.block)
            if self.process == 0:
                self.claim(parcel)
                weakref.finalize(memory, self._closed, parcel.block).atexit = False
        return _Opener(parcel.content, self, memory).load()

    def release(self, block: Block) -> None:
        """Let a block be written again: at once where it is this process's own, else when its owner is told."""
        if block.owner == self.process:
            self._free[block.length].append(block)
        else:
            self.released[block.owner].append(block)

    def become(self, process: int) -> None:
        """Be this process from now on, just forked from process 0, and write where that one holds nothing.

        One that died may have written there before.
        """
        self.process = process
        known = self._known[process]
        self._end = max((block.start + block.length for block in known), default=0)
        self._free.clear()
        for block in known - self._open - set(self.released[process]):  # of the last it will be told
            self._free[block.length].append(block)

    def _closed(self, block: Block) -> None:
        """The last array of a block is gone, and that says something only in process 0, which had opened it."""
        if self.process == 0:
            self.release(block)
            self._open.discard(block)  # last: a process that is forked meanwhile must not think it free

    def place(self, array: Tensor) -> Place | None:
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
        """A block as an object that its arrays keep alive."""
        return (ctypes.c_ubyte * block.length).from_buffer(self.regions[block.owner], block.start)


class _Packer(pickle.Pickler):
    """Pickles all but arrays; those it notes, to be copied into one block."""

    def __init__(self, content: io.BytesIO, arena: Arena, refer: bool, known: Mapping[int, Place]) -> None:
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
            return _laid, (*place, thing.dtype, tuple(thing.shape))
        if id(thing) not in self.arrays:
            self.arrays[id(thing)] = self.length, thing.detach()
            self.length += -(-thing.numel() * thing.element_size() // ALIGNMENT) * ALIGNMENT
        return _laid, (None, self.arrays[id(thing)][0], thing.dtype, tuple(thing.shape))


class _Opener(pickle.Unpickler):
    def __init__(self, content: bytes, arena: Arena, memory: Any) -> None:
        super().__init__(io.BytesIO(content))
        # Not a method of this object: it would hold itself, and the block, until somebody collects garbage.
        self.laid = partial(_laid, arena.regions, memory)

    def find_class(self, module: str, name: str) -> Any:
        return self.laid if name == _laid.__name__ else super().find_class(module, name)


def _laid(regions: list[mmap.mmap], memory: Any, owner: int | None, start: int, *kind: Any) -> Tensor:
    """The array at a place of a region, or of the parcel's own memory; a parcel names this and the place."""
    return _array(memory if owner is None else regions[owner], start, *kind)


def _array(memory: Any, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    count = torch.Size(shape).numel()
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=start).view(shape)


def _reserve(processes: int) -> list[mmap.mmap]:
    """As much address space for each as there is to have; memory is taken only as it is written."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    # Where address space is limited, most of it is left for everything else.
    length = LARGEST if limit == resource.RLIM_INFINITY else min(LARGEST, limit // (4 * processes))
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NO_RESERVE
    while length >= SMALLEST:
        try:
            return [mmap.mmap(-1, length, flags=flags) for _ in range(processes)]
        except (OSError, ValueError, OverflowError):
            length //= 2
    raise RunError("memory: none to share with workers; use --workers 1")
