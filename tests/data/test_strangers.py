"""Data files that anybody may have made: what they claim is compared with what there is before memory is taken."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mutua import InputError, Recipe, Samples, load
from mutua.data import array_files, formats, image_folders
from mutua.federation.topology import Topology
from mutua.runs.folder import RunFolder
from mutua.runs.inference import predict
from mutua.support import safe_reading

GIB = 2**30


def npy(shape: tuple[int, ...], data: bytes = b"") -> bytes:
    """An array file's bytes with this shape in its head, whatever follows it."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return head.getvalue() + data


def packed(path: Path, name: str, data: bytes, times: int) -> None:
    """A zip file with one entry: `data`, `times` over."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as held, held.open(name, "w") as entry:
        for _ in range(times):
            entry.write(data)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which 1 MB is much."""
    monkeypatch.delenv(safe_reading.MEMORY_VARIABLE, raising=False)
    monkeypatch.setattr(safe_reading, "ALWAYS_ALLOWED_BYTES", 2**20)


def test_a_small_file_that_unpacks_to_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, with no limit changed: 3 MB on the disk, 3 GiB in memory."""
    monkeypatch.delenv(safe_reading.MEMORY_VARIABLE, raising=False)
    path = tmp_path / "bomb.npz"
    packed(path, "x.npy", npy((3 * 2**10, 2**20), bytes(24 * 2**20)), 1)
    raw = bytearray(path.read_bytes())  # what the central directory claims is believed by nobody
    at = raw.rfind(b"PK\1\2") + 24
    raw[at : at + 4] = struct.pack("<I", 3 * GIB)
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"it takes 3\.0 GiB of memory, \d+ times its length.*set MUTUA_MAX_DATA"):
        array_files.npz_file(path)


def test_packed_arrays_and_the_way_out(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, x=np.zeros((40, 256, 256), np.uint8), y=np.zeros(40, np.uint8))
    with pytest.raises(InputError, match="times its length"):
        load("arrays", path=path)
    monkeypatch.setenv(safe_reading.MEMORY_VARIABLE, "0.1")
    assert len(load("arrays", path=path).train) == 40
    monkeypatch.setenv(safe_reading.MEMORY_VARIABLE, "0.001")
    with pytest.raises(InputError, match=r"MUTUA_MAX_DATA allows 0\.001"):
        load("arrays", path=path)
    monkeypatch.setenv(safe_reading.MEMORY_VARIABLE, "much")
    with pytest.raises(InputError, match="MUTUA_MAX_DATA: 'much'; give a number of GiB"):
        load("arrays", path=path)


@pytest.mark.parametrize("shape", [(2**46,), (2**23, 2**23), (2**62, 2**62), (2**64,)])
def test_a_head_that_promises_more_than_there_is(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "head.npz"
    packed(path, "x.npy", npy(shape, bytes(100)), 1)
    with pytest.raises(InputError, match=r"is said to be .* which is more than it holds"):
        array_files.npz_file(path)


def test_idx_and_cifar_that_unpack_to_much(small: None, tmp_path: Path) -> None:
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 40, 256, 256) + bytes(40 * 2**16)))
    with pytest.raises(InputError, match="times its length"):
        formats.idx(tmp_path)
    file.write_bytes(gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 2**31, 2**15, 2**15)))
    with pytest.raises(InputError, match="this machine has"):
        formats.idx(tmp_path)
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        member.size = 2**22
        archive.addfile(member, io.BytesIO(bytes(2**22)))
    with pytest.raises(InputError, match="times its length"):
        formats.cifar(tmp_path / "cifar.tar.gz")


def png(width: int, height: int) -> bytes:
    """A picture's beginning: its head says how large it is."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100)))


def test_pictures_that_take_too_much_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(safe_reading.MEMORY_VARIABLE, "4")
    for i in range(80):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{i}.png").write_bytes(png(13_000, 13_000))
    with pytest.raises(InputError, match=r"it takes 37\.8 GiB of memory; MUTUA_MAX_DATA allows 4") as error:
        load("folder", path=tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"0\.png: not a whole image"):  # one at a time they fit
        load("folder", path=tmp_path, image_size=8)
    with pytest.raises(InputError, match="it takes"):
        load("folder", path=tmp_path, image_size=100_000)
    (tmp_path / "a" / "0.png").write_bytes(png(2**30, 2**30))
    with pytest.raises(InputError, match=r"0\.png: not an image"):
        load("folder", path=tmp_path)


@pytest.mark.parametrize("kind", ["EPS", "PPM", "TIFF", "ICO", "PDF"])
def test_only_listed_formats_are_opened_whatever_the_name(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").mkdir()
    Image.new("RGB", (16, 16)).save(tmp_path / "a" / "1.png", format=kind)
    with pytest.raises(InputError, match=r"1\.png: not an image"):
        load("folder", path=tmp_path)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP", "GIF"])
def test_listed_formats_are(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").mkdir()
    Image.new("RGB", (16, 16)).save(tmp_path / "a" / "1.png", format=kind)
    assert load("folder", path=tmp_path).train.x.shape == (1, 3, 16, 16)


def soon(work: Callable[[], Any]) -> list[Exception]:
    """What it raises within seconds; a pipe that it waits for is left to a thread."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits"
    return raised


READERS: dict[str, Callable[[Path], Any]] = {
    "arrays": array_files.npz_file,
    "cifar": formats.cifar,
    "text": safe_reading.read_text,
    "weights": safe_reading.read_arrays,
    "recipe": Recipe.load,
    "graph": lambda path: Topology(str(path)).graph,
    "image": lambda path: image_folders._head(path),
    "idx": lambda path: formats.idx(path.parent),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_pipes_and_devices_are_refused_not_waited_for(read: Callable[[Path], Any], tmp_path: Path) -> None:
    pipe = tmp_path / "train-images-idx3-ubyte"
    os.mkfifo(pipe)
    device = tmp_path / "device" / pipe.name
    device.parent.mkdir()
    device.symlink_to("/dev/zero")
    for path in (pipe, device):
        (error,) = soon(lambda path=path: read(path))
        assert isinstance(error, InputError | safe_reading.Unreadable) and "\n" not in str(error)


def test_a_pipe_among_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "1.png")
    (error,) = soon(lambda: load("folder", path=tmp_path))
    assert "it is a pipe or a device" in str(error)


def test_labels_and_domains_do_not_make_lists_of_their_height() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(InputError, match=r"data\.y: label 1099511627776; .* name the classes"):
        Samples.of(x, np.array([0, 2**40]))
    with pytest.raises(InputError, match=r"data\.domain: 1099511627776; .* name the domains"):
        Samples.of(x, np.array([0, 1]), domain=np.array([0, 2**40]))
    assert len(Samples.of(x, np.array([0, 9_999])).classes) == 10_000


def test_an_empty_array_of_great_length(tmp_path: Path, finished: Callable[..., tuple[Path, Any]]) -> None:
    """x of (2**40, 0) takes no byte; nothing counts to its length."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as held:
        held.writestr("x.npy", npy((2**40, 0)))
    model = RunFolder.open(finished()[0]).client("c0")
    with pytest.raises(InputError, match=r"x: shape \(1099511627776, 0\)"):
        predict(model, tmp_path / "a.npz")
