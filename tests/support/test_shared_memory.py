"""Shared memory: arrays come out as they went in and stay while somebody has them."""

from __future__ import annotations

import gc
import os
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mutua import RunError
from mutua.support import shared_memory as module
from mutua.support.shared_memory import ALIGNMENT, Arena, Parcel

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool]


@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3), st.booleans()), max_size=6
    )
)
def test_what_is_packed_comes_out_the_same(drawn: list[tuple[torch.dtype, list[int], bool]]) -> None:
    arena = Arena(1)
    arrays = []
    for dtype, shape, turned in drawn:
        array = torch.randint(0, 2, shape).to(dtype)
        arrays.append(array.transpose(0, -1) if turned and len(shape) > 1 else array)
    what = {"arrays": arrays, "words": ("a", 1.5, None)}
    found = arena.unpack(arena.pack(what))
    assert found["words"] == what["words"]
    for before, after in zip(arrays, found["arrays"], strict=True):
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        assert torch.equal(after, before)
        assert after.is_contiguous() and after.data_ptr() % ALIGNMENT == 0


def test_the_same_array_is_copied_once_and_one_that_is_there_not_at_all() -> None:
    arena, array = Arena(1), torch.arange(1000.0)
    parcel = arena.pack([array, array])
    assert parcel.block is not None and parcel.block.length == -(-4000 // ALIGNMENT) * ALIGNMENT
    first, second = arena.unpack(parcel)
    assert first.data_ptr() == second.data_ptr() != array.data_ptr()
    again = arena.pack({"x": first[10:20]})
    assert again.block is None
    assert arena.unpack(again)["x"].tolist() == list(range(10, 20))
    assert arena.pack(first, refer=False).block is not None


def test_a_block_is_used_again_only_when_its_last_array_is_gone() -> None:
    arena = Arena(1)
    opened = arena.unpack(arena.pack([torch.zeros(100), torch.ones(50)]))
    start = arena.place(opened[0])
    ones = opened[1]
    del opened
    gc.collect()
    other = arena.unpack(arena.pack([torch.full((100,), 7.0), torch.full((50,), 7.0)]))
    assert arena.place(other[0]) != start
    assert ones.tolist() == [1.0] * 50
    del ones
    gc.collect()
    assert arena.place(arena.unpack(arena.pack([torch.zeros(100), torch.zeros(50)]))[0]) == start


def test_another_process_reads_and_writes_without_copies_through_a_pipe() -> None:
    arena, (out, into) = Arena(2), os.pipe()
    sent = arena.pack(torch.arange(6.0))
    child = os.fork()
    if child == 0:
        arena.process = 1
        parcel = arena.pack(2 * arena.unpack(sent), refer=False)
        os.write(into, pickle.dumps(tuple(parcel)))
        os._exit(0)
    os.close(into)
    parcel = Parcel(*pickle.loads(os.read(out, 10_000)))
    os.close(out)
    os.waitpid(child, 0)
    assert parcel.block is not None and parcel.block.owner == 1
    found = arena.unpack(parcel)
    assert found.tolist() == [0, 2, 4, 6, 8, 10]
    del found
    gc.collect()
    assert arena.released[1] == [parcel.block]


def test_a_full_region_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 1 << 16)
    monkeypatch.setattr(module, "SMALLEST", 1 << 16)
    arena = Arena(1)
    kept = arena.unpack(arena.pack(torch.zeros(10_000)))
    with pytest.raises(RunError, match="use fewer workers"):
        arena.pack(torch.zeros(10_000))
    assert len(kept) == 10_000


def test_without_any_memory_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def none(_: int, length: int, **__: object) -> None:
        asked.append(length)
        raise OSError

    monkeypatch.setattr(module.mmap, "mmap", none)
    with pytest.raises(RunError, match="--workers 1"):
        Arena(1)
    assert asked[0] == module.LARGEST and asked[-1] == module.SMALLEST
