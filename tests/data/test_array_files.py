"""Array files whose inputs stay where they are: found in an .npz, in a folder of .npy, and checked like others."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mutua import Federation, InputError, load, partitions
from mutua.data import array_files
from mutua.data.mapped_rows import MappedRows

RNG = np.random.default_rng(3)
X = RNG.integers(0, 256, (12, 6, 5, 3), dtype=np.uint8)
Y = np.arange(12) % 3
MORE: dict[str, Any] = {
    "x_test": X[:4],
    "y_test": Y[:4],
    "classes": np.array(["p", "q", "r"]),
    "domain": np.arange(12) % 2,
    "domains": np.array(["d", "e"]),
    "out": np.arange(12) % 5 == 0,
}


def save_npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


def save_npy(folder: Path, **arrays: Any) -> Path:
    (folder / "a").mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / "a" / f"{name}.npy", array)
    return folder / "a"


Save = Callable[..., Path]
saved = pytest.mark.parametrize("save", [save_npz, save_npy])


@saved
@pytest.mark.parametrize("x", ["x", "x_train"])
def test_mapped_arrays_are_those_that_were_saved(tmp_path: Path, save: Save, x: str) -> None:
    path = save(tmp_path, **{x: X, x.replace("x", "y"): Y}, **MORE)
    lazy, plain = (load("arrays", path=path, mask="out", mapped=mapped) for mapped in (True, False))
    for mine, theirs in ((lazy.train, plain.train), (lazy.test, plain.test)):
        assert mine is not None and theirs is not None
        assert isinstance(mine.x, MappedRows) and isinstance(theirs.x, torch.Tensor)
        assert torch.equal(mine.inputs, theirs.inputs) and torch.equal(mine.y, theirs.y)
        assert (mine.classes, mine.domains, mine.preprocess) == (theirs.classes, theirs.domains, theirs.preprocess)
    assert np.array_equal(lazy.train.inputs.numpy(), X.transpose(0, 3, 1, 2))
    assert lazy.train.opted_out is not None and lazy.train.opted_out.tolist() == MORE["out"].tolist()
    assert lazy.train.domain is not None and lazy.train.domain.tolist() == MORE["domain"].tolist()
    small = load("arrays", path=path, image_size=4, mapped=True).train
    assert torch.equal(small.inputs, load("arrays", path=path, image_size=4).train.inputs)


@saved
def test_only_large_inputs_are_mapped_if_nobody_says(
    tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, x=X, y=Y, x_test=X[:2], y_test=Y[:2])
    assert isinstance(load("arrays", path=path).train.x, torch.Tensor)
    monkeypatch.setattr(array_files, "MAPPED_FROM", X.nbytes)
    source = load("arrays", path=path)
    assert source.test is not None
    assert isinstance(source.train.x, MappedRows) and isinstance(source.test.x, torch.Tensor)
    assert isinstance(load("arrays", path=path, mapped=False).train.x, torch.Tensor)


def test_what_cannot_be_mapped_says_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "MAPPED_FROM", 1)
    np.savez_compressed(tmp_path / "c.npz", x=X, y=Y)
    with pytest.raises(InputError, match=r"^mapped: true, but 'x' of .*c\.npz is compressed; .*numpy\.savez "):
        load("arrays", path=tmp_path / "c.npz", mapped=True)
    assert isinstance(load("arrays", path=tmp_path / "c.npz").train.x, torch.Tensor)
    for save in (save_npz, save_npy):
        path = save(tmp_path, x=np.asfortranarray(X), y=Y)
        with pytest.raises(InputError, match=r"^mapped: true, but .* is stored column by column; save numpy\.asc"):
            load("arrays", path=path, mapped=True)
        assert np.array_equal(load("arrays", path=path).train.inputs.numpy(), X.transpose(0, 3, 1, 2))
    for name in ("mnist5k", "folder"):
        with pytest.raises(InputError, match=f"mapped: true is for data 'arrays', not for '{name}'; leave it out"):
            load(name, path=None if name == "mnist5k" else tmp_path, mapped=True)
    with pytest.raises(InputError, match="mapped: 'yes'; give true, false or nothing"):
        load("arrays", path=tmp_path / "c.npz", mapped="yes")  # type: ignore[arg-type]


def test_a_folder_without_arrays_and_a_single_array_say_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"a folder, not a readable array file .* give an \.npz file, or a folder"
    ):
        load("arrays", path=tmp_path)
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(InputError, match="holds x; give x and y"):
        load("arrays", path=tmp_path)
    with pytest.raises(InputError, match=r"a single array; give an \.npz .* or a folder of x\.npy and y\.npy"):
        load("arrays", path=tmp_path / "x.npy")


# ---- files from strangers


def head(shape: tuple[int, ...], descr: str = "|u1") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def packed(tmp_path: Path, inputs: bytes) -> Path:
    """An .npz that is not compressed, with these bytes as x.npy."""
    labels = io.BytesIO()
    np.save(labels, Y)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as held:
        held.writestr("x.npy", inputs)
        held.writestr("y.npy", labels.getvalue())
    return tmp_path / "a.npz"


def loose(tmp_path: Path, inputs: bytes) -> Path:
    folder = save_npy(tmp_path, y=Y)
    (folder / "x.npy").write_bytes(inputs)
    return folder


made = pytest.mark.parametrize("make", [packed, loose])


@made
@pytest.mark.parametrize("mapped", [True, None])
@pytest.mark.parametrize(
    "inputs",
    [
        head((12, 2**40)) + bytes(100),
        head((2**62, 2**62)) + bytes(100),
        head((12, 4, 5)) + bytes(12 * 4 * 5 - 1),
        head((-12, -4)) + bytes(48),
        head((12, 4))[:20],
        b"",
        b"\x93NUMPY\x03\x00" + head((12, 4))[8:] + bytes(48),
        b"hello, this is no array",
        head((12, 4), "|O") + bytes(12 * 4 * 8),
        head((12, 4), ">f4") + bytes(12 * 4 * 4),
        head((12, 4), "<U4") + bytes(12 * 4 * 16),
        head((12, 4), "<c8") + bytes(12 * 4 * 8),
        head((12, 4), "|b1") + bytes(12 * 4),
        head((12, 0)),
        head((2**40, 0)),
        head((12,)) + bytes(12),
    ],
)
def test_bad_files_are_refused_in_one_line(
    tmp_path: Path, make: Any, inputs: bytes, mapped: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_files, "MAPPED_FROM", 1)
    path = make(tmp_path, inputs)
    with pytest.raises(InputError) as error:
        load("arrays", path=path, mapped=mapped)
    assert "\n" not in str(error.value) and "allow_pickle=True" not in str(error.value)


@made
def test_good_bytes_are_read_by_the_same_means(tmp_path: Path, make: Any) -> None:
    values = RNG.integers(0, 256, (12, 4), dtype=np.uint8)
    found = load("arrays", path=make(tmp_path, head((12, 4)) + values.tobytes()), mapped=True).train
    assert np.array_equal(found.inputs.numpy(), values)


def test_a_damaged_or_truncated_npz_is_refused(tmp_path: Path) -> None:
    path = save_npz(tmp_path, x=X, y=Y)
    good = path.read_bytes()
    at = good.index(X.tobytes()[:50]) + 20
    path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    with pytest.raises(InputError, match=r"a\.npz: not a readable array file .*Bad CRC-32"):
        load("arrays", path=path, mapped=True)
    for length in range(0, len(good), 97):
        path.write_bytes(good[:length])
        with pytest.raises(InputError, match=r"a\.npz: not a readable array file"):
            load("arrays", path=path, mapped=True)


def test_memory_is_counted_without_what_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUTUA_MAX_DATA", "0.00001")  # 10 kB
    big = np.zeros((12, 4000), np.uint8)
    for save in (save_npz, save_npy):
        path = save(tmp_path, x=big, y=Y)
        assert len(load("arrays", path=path, mapped=True).train) == 12
        with pytest.raises(InputError, match=r"MUTUA_MAX_DATA allows 0\.00001"):
            load("arrays", path=path)
        path = save(tmp_path, x=big, y=Y, domain=np.zeros(20000))
        with pytest.raises(InputError, match=r"MUTUA_MAX_DATA allows 0\.00001"):
            load("arrays", path=path, mapped=True)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    folder = save_npy(tmp_path, y=Y)
    os.mkfifo(folder / "x.npy")
    with pytest.raises(InputError, match="it is a pipe or a device"):
        load("arrays", path=folder, mapped=True)


# ---- in Python


def test_paths_of_arrays_stay_mapped(tmp_path: Path) -> None:
    folder = save_npy(tmp_path, x=X, y=Y, public=X[:6])
    how: Any = {"partition": partitions.IID(clients=2), "models": "cnn1", "global_model": "cnn1"}
    x, y = folder / "x.npy", str(folder / "y.npy")
    lazy = Federation.from_arrays(x, y, test=(str(x), y), public=(x, y), **how)
    plain = Federation.from_arrays(X, Y, test=(X, Y), public=(X, Y), **how)
    assert isinstance(lazy.clients[0].train.x, MappedRows) and lazy.test is not None and plain.test is not None
    for mine, theirs in zip(lazy.clients, plain.clients, strict=True):
        assert torch.equal(mine.train.inputs, theirs.train.inputs) and torch.equal(mine.train.y, theirs.train.y)
    assert torch.equal(lazy.test.inputs, plain.test.inputs)
    assert lazy.public is not None and isinstance(lazy.public.whole.x, MappedRows)
    with pytest.raises(InputError, match=r"nothing\.npy: not found"):
        Federation.from_arrays(folder / "nothing.npy", y, **how)
    np.savez(folder / "x.npz", x=X)
    with pytest.raises(InputError, match=r"x\.npz: not a readable array file \(\.npy\)"):
        Federation.from_arrays(folder / "x.npz", y, **how)
    np.save(folder / "f.npy", np.asfortranarray(X))
    with pytest.raises(InputError, match=r"x: .*f\.npy is stored column by column; save numpy\.ascontiguousarray"):
        Federation.from_arrays(folder / "f.npy", y, **how)
