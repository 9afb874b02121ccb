import gzip
import io
import os
import pickle
import struct
import tarfile
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from mutua import InputError
from mutua.data import array_files, formats


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


# ---- array files


def test_npz_reads_both_forms(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.integers(0, 256, (6, 5, 4), dtype=np.uint8)
    y = np.array([0, 1, 2, 0, 1, 2], np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=y, domain=y % 2, classes=np.array(["p", "q", "r"]), domains=["d", "e"])
    a = array_files.npz(tmp_path / "a.npz")
    assert np.array_equal(a.x, x)
    assert a.x.dtype == np.uint8
    assert np.array_equal(a.y, y)
    assert a.classes == ("p", "q", "r")
    assert a.domain is not None
    assert a.domain.tolist() == [0, 1, 0, 0, 1, 0]
    assert a.domains == ("d", "e")
    assert a.x_test is None

    np.savez(tmp_path / "b.npz", x_train=x[:4], y_train=y[:4], x_test=x[4:], y_test=y[4:])
    b = array_files.npz(tmp_path / "b.npz")
    assert b.x_test is not None
    assert b.y_test is not None
    assert np.array_equal(b.x_test, x[4:])
    assert b.y_test.tolist() == [1, 2]
    assert b.classes is None


@pytest.mark.parametrize(
    "keys", [("x",), ("y",), ("x_train",), ("x_train", "y_train", "x_test"), ("images", "labels")]
)
def test_npz_with_missing_keys_says_what_it_holds(tmp_path: Path, keys: tuple[str, ...]) -> None:
    np.savez(tmp_path / "a.npz", **{key: np.zeros(3) for key in keys})
    with pytest.raises(InputError, match=f"a.npz: holds {', '.join(keys)}; give x and y") as error:
        array_files.npz(tmp_path / "a.npz")
    assert "\n" not in str(error.value)


def test_npz_refuses_what_is_not_an_array_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with pytest.raises(InputError, match=r"a\.npz: not found"):
        array_files.npz(path)
    with pytest.raises(InputError, match="a folder, not a readable array file"):
        array_files.npz(tmp_path)
    path.write_text("hello")
    with pytest.raises(InputError, match=r"a\.npz: not a readable array file .*does not begin like one"):
        array_files.npz(path)
    np.savez(path, x=np.zeros((50, 9)), y=np.zeros(50))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"a\.npz: not a readable array file"):
        array_files.npz(path)
    np.save(tmp_path / "b.npy", np.zeros(3))
    with pytest.raises(InputError, match="a single array"):
        array_files.npz(tmp_path / "b.npy")


class Attack:
    """Pickles as a call that makes a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def test_npz_runs_no_pickle(tmp_path: Path) -> None:
    x = np.empty(1, object)
    x[0] = Attack(tmp_path / "ran")
    np.savez(tmp_path / "a.npz", x=x, y=np.zeros(1))
    with pytest.raises(InputError, match="pickle"):
        array_files.npz(tmp_path / "a.npz")
    assert not (tmp_path / "ran").exists()


# ---- IDX


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, x: np.ndarray, y: np.ndarray, zipped: set[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, n in (("train", len(x) - 2), ("t10k", 2)):
        for kind, array in (("images-idx3", x), ("labels-idx1", y)):
            raw = idx_bytes(array[:n] if part == "train" else array[-n:])
            name = f"{part}-{kind}-ubyte"
            if part in zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(raw))
            else:
                (folder / name).write_bytes(raw)


@pytest.mark.parametrize("zipped", [set(), {"train", "t10k"}, {"train"}])
def test_idx_with_and_without_gzip(tmp_path: Path, rng: np.random.Generator, zipped: set[str]) -> None:
    x = rng.integers(0, 256, (5, 6, 7), dtype=np.uint8)
    y = np.array([3, 1, 4, 1, 5], np.uint8)
    write_idx(tmp_path, x, y, zipped)
    a = formats.idx(tmp_path)
    assert np.array_equal(a.x, x[:3])
    assert a.y.tolist() == [3, 1, 4]
    assert a.x_test is not None
    assert a.y_test is not None
    assert np.array_equal(a.x_test, x[3:])
    assert a.y_test.tolist() == [1, 5]
    assert a.x.flags.writeable


def test_idx_refuses_damaged_files(tmp_path: Path, rng: np.random.Generator) -> None:
    x, y = rng.integers(0, 256, (5, 6, 7), dtype=np.uint8), np.arange(5, dtype=np.uint8)
    write_idx(tmp_path, x, y, {"train"})
    labels, images = tmp_path / "t10k-labels-idx1-ubyte", tmp_path / "train-images-idx3-ubyte.gz"
    whole, packed = labels.read_bytes(), images.read_bytes()
    labels.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=r"labels-idx1-ubyte: not a whole IDX file \(9 bytes, .* promises 10"):
        formats.idx(tmp_path)
    labels.write_bytes(b"\0\0\x0d\x01" + whole[4:])
    with pytest.raises(InputError, match="starts with 00 00 0d 01, not 00 00 08 01"):
        formats.idx(tmp_path)
    labels.unlink()
    with pytest.raises(InputError, match="t10k-labels-idx1-ubyte: missing"):
        formats.idx(tmp_path)
    images.write_bytes(packed[:-20])
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz: not a whole IDX file"):
        formats.idx(tmp_path)


# ---- CIFAR


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes text, bytes and NumPy's names as Python 2 did when the CIFAR files were made."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_text(self, text: str | bytes) -> None:
        raw = text.encode() if isinstance(text, str) else text
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)
        self.memoize(text)

    dispatch[str] = dispatch[bytes] = save_text

    def save_global(self, thing: Any, name: str | None = None) -> None:
        if getattr(thing, "__name__", "") == "_reconstruct":
            self.write(b"cnumpy.core.multiarray\n_reconstruct\n")
        else:
            super().save_global(thing, name)

    dispatch[type] = dispatch[type(os.getcwd)] = save_global


def python2_pickle(thing: Any) -> bytes:
    out = io.BytesIO()
    Python2Pickler(out, 2).dump(thing)
    raw = out.getvalue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pickle.loads(raw, encoding="bytes")  # it is a pickle that NumPy itself reads back
    return raw


def cifar_files(name: str, x: np.ndarray, y: list[int]) -> dict[str, bytes]:
    """Six images as CIFAR-10 (five training batches of one) or CIFAR-100, in one of the published forms."""
    labels = ["apple", "bear", "crab"]
    flat = x.reshape(len(x), 3072)
    rows = [bytes([label]) + image.tobytes() for image, label in zip(flat, y, strict=True)]
    if name == "cifar-10-batches-py":
        batches = {f"data_batch_{i + 1}": slice(i, i + 1) for i in range(5)} | {"test_batch": slice(5, 6)}
        held = {
            batch: python2_pickle(
                {"batch_label": "b", "labels": y[part], "data": flat[part], "filenames": ["f.png"]}
            )
            for batch, part in batches.items()
        }
        return held | {"batches.meta": python2_pickle({"label_names": labels, "num_vis": 3072})}
    if name == "cifar-100-python":
        parts = {"train": slice(0, 5), "test": slice(5, 6)}
        held = {
            batch: python2_pickle({"coarse_labels": [9] * 5, "fine_labels": y[part], "data": flat[part]})
            for batch, part in parts.items()
        }
        meta = {"fine_label_names": labels, "coarse_label_names": ["food"]}
        return held | {"meta": python2_pickle(meta)}
    text = "\n".join(labels).encode() + b"\n"
    if name == "cifar-10-batches-bin":
        held = {f"data_batch_{i + 1}.bin": rows[i] for i in range(5)}
        return held | {"test_batch.bin": rows[5], "batches.meta.txt": text + b"\n"}
    coarse = [b"\x09" + row for row in rows]
    return {"train.bin": b"".join(coarse[:5]), "test.bin": coarse[5], "fine_label_names.txt": text}


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    (folder / "readme.html").write_text("not data")
    return folder


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "name", ["cifar-10-batches-py", "cifar-100-python", "cifar-10-batches-bin", "cifar-100-binary"]
)
def test_cifar_in_every_published_form(tmp_path: Path, rng: np.random.Generator, name: str, packed: bool) -> None:
    x, y = rng.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8), [2, 0, 1, 1, 0, 2]
    path = write_files(tmp_path / name, cifar_files(name, x, y))
    if packed:
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
            archive.add(path, name)
        path = tmp_path / "a.tar.gz"
    a = formats.cifar(path)
    assert np.array_equal(a.x, x[:5])
    assert a.x.dtype == np.uint8
    assert a.y.tolist() == y[:5]
    assert a.x_test is not None
    assert a.y_test is not None
    assert np.array_equal(a.x_test, x[5:])
    assert a.y_test.tolist() == [2]
    assert a.classes == ("apple", "bear", "crab")
    assert a.x_test.flags.writeable


def test_cifar_data_stored_by_columns(tmp_path: Path, rng: np.random.Generator) -> None:
    x, y = rng.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8), [2, 0, 1, 1, 0, 2]
    files = cifar_files("cifar-100-python", x, y)
    files["train"] = python2_pickle({"fine_labels": y[:5], "data": np.asfortranarray(x[:5].reshape(5, 3072))})
    assert np.array_equal(formats.cifar(write_files(tmp_path / "c", files)).x, x[:5])


def test_cifar_incomplete_or_damaged(tmp_path: Path, rng: np.random.Generator) -> None:
    x, y = rng.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8), [0] * 6
    folder = write_files(tmp_path / "c", cifar_files("cifar-10-batches-py", x, y))
    whole = (folder / "data_batch_3").read_bytes()
    (folder / "data_batch_3").unlink()
    with pytest.raises(InputError, match="without data_batch_3"):
        formats.cifar(folder)
    (folder / "data_batch_3").write_bytes(whole[:1000])
    with pytest.raises(InputError, match="not a CIFAR archive or folder"):
        formats.cifar(folder)
    (tmp_path / "a.tar.gz").write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"a\.tar\.gz: not a CIFAR archive"):
        formats.cifar(tmp_path / "a.tar.gz")


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_runs_code_is_refused_unrun(tmp_path: Path, rng: np.random.Generator, protocol: int) -> None:
    raw = pickle.dumps({"data": Attack(tmp_path / "ran")}, protocol)
    pickle.loads(raw)
    assert (tmp_path / "ran").is_dir()  # the attack works where nothing stops it
    (tmp_path / "ran").rmdir()
    files = cifar_files("cifar-100-python", rng.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8), [0] * 6)
    for i, name in enumerate(("train", "test", "meta")):
        folder = write_files(tmp_path / str(i), files | {name: raw})
        with pytest.raises(InputError, match=r"refused: it asks to run .*mkdir"):
            formats.cifar(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name", ["builtins eval", "numpy.testing._private.utils runstring", "numpy load", "numpy.core.multiarray load"]
)
def test_no_other_name_passes_the_unpickler(name: str) -> None:
    module, attribute = name.split()
    raw = f"c{module}\n{attribute}\n(S'1'\ntR.".encode()
    with pytest.raises(pickle.UnpicklingError, match=f"refused: it asks to run {module}.{attribute}"):
        formats._unpickled("x", raw)


def test_names_that_are_bytes_are_text(tmp_path: Path) -> None:
    x, y = np.zeros((4, 3, 3), np.uint8), np.array([0, 1, 0, 1])
    np.savez(
        tmp_path / "d.npz", x=x, y=y, classes=np.array([b"caf\xc3\xa9", b"\xff"]), domains=np.array([b"\xfe"])
    )
    held = array_files.npz(tmp_path / "d.npz")
    assert held.classes == ("café", "\\xff") and held.domains == ("\\xfe",)
