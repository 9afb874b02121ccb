"""Inputs that stay in their file: the same values as in memory, and nothing is read that nobody asked for."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mutua import Federation, InputError, Samples, partitions
from mutua.data import mapped_rows
from mutua.data.mapped_rows import ArrayInFile, MappedRows, equal, joined, stored, taken
from mutua.data.samples import Preprocess, concatenate
from mutua.data.sources import _scaled
from mutua.data.transforms import rotate
from mutua.learning.evaluation import is_union

RNG = np.random.default_rng(5)
Mapped = Callable[..., np.memmap]


@pytest.fixture
def mapped(tmp_path: Path) -> Mapped:
    """`mapped(array, "x")`: the array in a file of that name, as NumPy maps it."""

    def save(array: np.ndarray, name: str = "x") -> np.memmap:
        np.save(tmp_path / f"{name}.npy", array)
        return np.load(tmp_path / f"{name}.npy", mmap_mode="r")

    return save


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads a row fails."""

    def refuse(self: ArrayInFile, rows: np.ndarray) -> torch.Tensor:
        raise AssertionError(f"{len(rows)} rows were read")

    monkeypatch.setattr(ArrayInFile, "read", refuse)


def rows_of(x: Any) -> MappedRows:
    rows = stored(x)
    assert isinstance(rows, MappedRows)
    return rows


# ---- rows, against NumPy


@pytest.mark.parametrize("chunk", [1, 100, 2**24])
def test_rows_are_those_of_numpy(mapped: Mapped, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(mapped_rows, "BYTES_AT_ONCE", chunk)
    array = RNG.integers(0, 256, (30, 4, 5), dtype=np.uint8)
    x = rows_of(mapped(array))
    assert (x.shape, x.dtype, x.dim(), len(x), x.nbytes) == ((30, 4, 5), torch.uint8, 3, 30, 600)
    for key in (3, -1, np.int64(7), slice(2, 9), slice(None, None, -4), [5, 5, 0], np.array([29, 1]), []):
        assert np.array_equal(x[key].numpy(), array[key])
        if isinstance(key, slice | list | np.ndarray):
            assert np.array_equal(x.take(key).in_memory().numpy(), array[key])
    mask = RNG.random(30) < 0.5
    assert np.array_equal(x[mask].numpy(), array[mask])
    assert np.array_equal(x[torch.from_numpy(mask)].numpy(), array[mask])
    assert np.array_equal(x[4, 2].numpy(), array[4, 2])
    assert np.array_equal(x[1:4, 2, 1:3].numpy(), array[1:4, 2, 1:3])
    assert np.array_equal(np.asarray(x), array)
    assert [len(part) for part in x.split(8)] == [8, 8, 8, 6]
    assert [len(part) for part in x.split([1, 0, 29])] == [1, 0, 29]
    assert [len(part) for part in x.take([]).split(8)] == [len(p) for p in torch.empty(0, 4).split(8)]
    assert np.array_equal(torch.cat(list(x.pieces())).numpy(), array)
    with pytest.raises(IndexError):
        x.take([30])


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[np.ndarray, Any]]:
    """Three arrays, and the same in two files and in memory."""
    folder, found = tmp_path_factory.mktemp("sources"), []
    for n in (4, 7, 5):
        array = np.arange(n * 3, dtype=np.float32).reshape(n, 3) + 100 * n
        np.save(folder / f"{n}.npy", array)
        mapped = np.load(folder / f"{n}.npy", mmap_mode="r")
        found.append((array, torch.from_numpy(array) if n == 5 else rows_of(mapped)))
    return found


@given(data=st.data())
def test_rows_taken_joined_and_taken_again(sources: list[tuple[np.ndarray, Any]], data: st.DataObject) -> None:
    """Of two files and an array in memory, in any order: as NumPy does it."""
    arrays, parts = [], []
    for k in data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=5)):
        array, x = sources[k]
        index = np.array(data.draw(st.lists(st.integers(0, len(array) - 1), max_size=6)), int)
        arrays.append(array[index])
        parts.append(taken(x, torch.from_numpy(index)))
    whole, together = np.concatenate(arrays), joined(parts)
    assert np.array_equal(np.asarray(together), whole)
    order = np.array(data.draw(st.permutations(range(len(whole)))), int)[: data.draw(st.integers(0, len(whole)))]
    again = taken(together, torch.from_numpy(order))
    assert np.array_equal(np.asarray(again), whole[order])
    assert equal(again, torch.from_numpy(whole[order])) and equal(again, taken(together, torch.from_numpy(order)))
    assert equal(pickle.loads(pickle.dumps(again)), again)


@pytest.mark.parametrize("chunk", [2000, 2**24])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_what_is_done_on_reading_gives_the_bits_of_what_is_done_in_memory(
    mapped: Mapped, monkeypatch: pytest.MonkeyPatch, chunk: int, dtype: Any
) -> None:
    monkeypatch.setattr(mapped_rows, "BYTES_AT_ONCE", chunk)
    array = (RNG.random((40, 12, 10, 3)) * 255).astype(dtype)
    plain, lazy = (Samples.of(x, np.zeros(40)) for x in (array, mapped(array)))
    assert isinstance(plain.x, torch.Tensor) and isinstance(lazy.x, MappedRows)
    assert plain.x.shape == lazy.x.shape == (40, 3, 12, 10)
    steps: list[tuple[Any, ...]] = [(rotate, 30.0), (rotate, 90.0), (_scaled, 7), (_scaled, 23)]
    for function, *more in [*steps, (Preprocess(1 / 255, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)),)]:
        done = lazy.x.then(function, *more)
        wanted = function(plain.x, *more)
        assert done.shape == wanted.shape and done.dtype == wanted.dtype
        assert torch.equal(done.in_memory(), wanted)
        assert torch.equal(done[[3, 1]], wanted[[3, 1]])


@pytest.mark.parametrize(
    ("shape", "given"),
    [
        ((9, 6), {}),
        ((9, 6, 5), {}),
        ((9, 6, 5), {"channels": 3}),
        ((9, 6, 5, 3), {}),
        ((9, 3, 6, 6), {}),
        ((9, 6, 5, 13), {"layout": "channels-last"}),
    ],
)
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "f2"])
def test_samples_of_mapped_arrays_are_those_of_arrays(
    mapped: Mapped, shape: tuple[int, ...], given: dict[str, Any], dtype: str
) -> None:
    array = (RNG.random(shape) * 200).astype(dtype)
    plain, lazy = (Samples.of(x, np.arange(9) % 3, **given) for x in (array, mapped(array)))
    assert isinstance(lazy.x, MappedRows)
    assert (lazy.x.shape, lazy.x.dtype, lazy.preprocess) == (plain.x.shape, plain.x.dtype, plain.preprocess)
    assert torch.equal(lazy.inputs, plain.inputs) and lazy.inputs.is_contiguous()
    assert torch.equal(lazy.in_memory().inputs, plain.inputs)
    assert (lazy.channels, lazy.size) == (plain.channels, plain.size)
    assert torch.equal(lazy.preprocess(lazy.x), plain.preprocess(plain.x))
    assert repr(lazy) == f"{repr(plain)[:-1]}, mapped)"
    part = lazy.take([4, 2])
    assert isinstance(part.x, MappedRows) and torch.equal(part.inputs, plain.take([4, 2]).inputs)


def test_nan_is_found_and_counted(mapped: Mapped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_rows, "BYTES_AT_ONCE", 64)
    array = np.ones((50, 4), np.float64)
    array[[3, 40], 1] = np.nan
    array[17] = 1e300  # too large for float32
    with pytest.raises(InputError, match=r"data\.x: NaN or infinity in 3 of 50 samples"):
        Samples.of(mapped(array), np.zeros(50))


# ---- arrays that NumPy has mapped


def test_a_part_of_a_mapped_array_is_found_in_its_file(tmp_path: Path, mapped: Mapped) -> None:
    array = RNG.normal(size=(5000, 7)).astype(np.float32)
    whole = mapped(array)
    for part, wanted in ((whole[1234:1300], array[1234:1300]), (whole[4999:], array[4999:])):
        assert np.array_equal(np.asarray(rows_of(part)), wanted)
    raw = np.memmap(tmp_path / "raw", np.float32, "w+", offset=12345 * 4, shape=(60, 5))
    raw[:] = array[:60, :5]
    assert np.array_equal(np.asarray(rows_of(raw)), array[:60, :5])
    assert np.array_equal(np.asarray(rows_of(raw[7:])), array[7:60, :5])


def test_what_is_not_in_a_file_as_it_is_becomes_a_tensor(tmp_path: Path, mapped: Mapped) -> None:
    array = RNG.normal(size=(20, 6)).astype(np.float32)
    whole = mapped(array)
    own = np.load(tmp_path / "x.npy", mmap_mode="c")
    own[0] = 7  # in memory only
    for x, wanted in (
        (whole[::2], array[::2]),
        (whole[:, 1:3], array[:, 1:3]),
        (whole * 2, array * 2),
        (own, np.asarray(own)),
        (np.asarray(whole), array),
        (mapped(np.asfortranarray(array), "f"), array),
    ):
        found = stored(x)
        assert isinstance(found, torch.Tensor)
        assert np.array_equal(found.numpy(), wanted)


def test_a_file_that_has_changed_or_is_gone_is_named(tmp_path: Path, mapped: Mapped) -> None:
    array = np.ones((20, 6), np.float32)
    x = rows_of(mapped(array))
    sent = pickle.loads(pickle.dumps(x))
    assert torch.equal(sent[:], torch.ones(20, 6))
    path = tmp_path / "x.npy"
    os.utime(path, ns=(0, 0))
    with pytest.raises(InputError, match=r"x\.npy: it has changed since the federation was made.*again$"):
        sent[0]
    path.unlink()
    with pytest.raises(InputError, match=r"x\.npy: not found; .* at the same path on every machine$") as error:
        sent[0]
    assert "\n" not in str(error.value)
    os.mkfifo(path)
    with pytest.raises(InputError, match=r"x\.npy: it is a pipe or a device"):
        sent[0]


def test_a_pickle_is_small_and_is_read_in_another_process(tmp_path: Path, mapped: Mapped) -> None:
    array = RNG.integers(0, 256, (400, 40, 40, 3), dtype=np.uint8)
    lazy = Samples.of(mapped(array), np.zeros(400), layout="channels-last").take([7, 399])
    (tmp_path / "sent").write_bytes(pickle.dumps(lazy))
    assert (tmp_path / "sent").stat().st_size < 3000
    code = "import pickle, sys; print(int(pickle.load(open('sent', 'rb')).inputs.double().sum()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout) == array[[7, 399]].sum(dtype=int)


# ---- what reads nothing


def test_a_federation_is_made_and_shown_without_reading(unread: None, mapped: Mapped) -> None:
    array, y = np.zeros((300, 6, 6, 3), np.uint8), np.arange(300) % 3
    x = mapped(array)
    for how in (
        {"partition": partitions.Dirichlet(clients=5, alpha=0.5)},
        {"partition": partitions.IID(clients=5), "public": 0.1},
        {"partition": partitions.IID(clients=5), "opted_out": np.arange(300) % 4 == 0},
        {"partition": partitions.Domains(), "domain": np.repeat(["p", "q"], 150)},
        {"partition": partitions.Rotated(angles=(0, 20))},
        {"partition": partitions.IID(clients=5), "test": (x[:30], y[:30])},
    ):
        made = Federation.from_arrays(x, y, models="cnn1", global_model="cnn1", **how)
        assert "Federation of" in repr(made) and "mapped" in repr(made.clients[0].train)
        assert isinstance(made.test and made.test.x, MappedRows)
        assert isinstance(made.pooled().clients[0].train.x, MappedRows)
        made.others(made.clients[0].id)


def test_the_union_of_the_clients_is_seen_without_reading(unread: None, mapped: Mapped) -> None:
    first, second = (mapped(RNG.integers(0, 256, (40, 6), dtype=np.uint8), name) for name in "ab")
    samples = [Samples.of(x, np.arange(40) % 3) for x in (first, second)]
    parts = [samples[0].take([3, 1, 2]), samples[1].take([0, 5]), samples[0].take([9])]
    assert is_union(concatenate(parts), parts)
    assert not is_union(concatenate(parts[:2]), parts)
    assert not is_union(concatenate([parts[1], parts[0], parts[2]]), parts)  # the labels say so


def test_a_union_of_equal_values_elsewhere_is_one_too(mapped: Mapped) -> None:
    """As of tensors: what counts is the values."""
    array = RNG.integers(0, 256, (40, 6), dtype=np.uint8)
    y = np.zeros(40)
    parts = [Samples.of(mapped(array), y).take(range(20)), Samples.of(array, y).take(range(20, 40))]
    assert is_union(Samples.of(mapped(array, "copy"), y), parts)
    assert not is_union(Samples.of(mapped(array[::-1], "turned"), y), parts)


def test_samples_of_different_shapes_cannot_be_joined(mapped: Mapped) -> None:
    with pytest.raises(InputError, match=r"x: samples of \(6,\), \(5,\) cannot be put together"):
        joined([rows_of(mapped(np.zeros((3, 6)))), torch.zeros(2, 5)])
    both = joined([rows_of(mapped(np.ones((3, 6), np.uint8), "u")), torch.full((2, 6), 0.5)])
    assert torch.equal(both[:], torch.cat([torch.ones(3, 6, dtype=torch.uint8), torch.full((2, 6), 0.5)]))


# ---- memory

MEMORY = """
import sys
import numpy as np
import torch
import mutua
from mutua.data.mapped_rows import MappedRows

def held():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:")) // 1024

mutua.run("fedavg", mutua.Federation.from_arrays(  # so that all is imported
    np.zeros((40, 4), np.float32), np.arange(40) % 2, partition=mutua.partitions.IID(clients=2),
    models="mlp", global_model="mlp"), rounds=1, workers=1, progress=False)
import resource
data = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmData:")) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (data + 100 * 2**20,) * 2)  # private memory; not what is mapped
start = held()
source = mutua.load("arrays", path=sys.argv[1], mapped=True)
assert isinstance(source.train.x, MappedRows) and source.train.x.nbytes == 400 * 2**20
federation = mutua.Federation.from_samples(
    source.train, partition=mutua.partitions.IID(clients=200), models={"name": "mlp", "width": 0.05},
    global_model={"name": "mlp", "width": 0.05})
repr(federation)
print(held() - start)
mutua.run("fml", federation, rounds=1, client_fraction=3 / 200, batch_size=64, workers=1, progress=False)
print(held() - start)
try:
    mutua.load("arrays", path=sys.argv[1], mapped=False)
except MemoryError:
    sys.exit()
sys.exit("there was no limit")
"""


def test_four_hundred_megabytes_take_less_than_a_hundred_of_memory(tmp_path: Path) -> None:
    """Loaded, dealt to 200 clients, and 3 of them trained and all evaluated, with 100 MB to spare for all that."""
    folder = tmp_path / "data"
    folder.mkdir()
    rows = 400 * 2**20 // 4 // 1024
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, 1024))
    x[:, 0] = np.arange(rows) % 2
    x.flush()
    np.save(folder / "y.npy", np.arange(rows) % 2)
    done = subprocess.run([sys.executable, "-c", MEMORY, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(int(line) < 100 for line in done.stdout.split()), done.stdout
