"""Getting published sets: from their canonical addresses, with checksums, resumable."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from mutua.data.known_sets import KNOWN
from mutua.data.sources import data_folder
from mutua.errors import InputError, RunError, suggest
from mutua.support.configuration import PathLike

TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 18
MOST_UNKNOWN = 1 << 26
"""The longest file whose length is not known beforehand."""

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class File:
    """A published file; `unpacks_to` is the folder in a zip archive that replaces it after the download."""

    name: str
    base_url: str
    size: int
    """0 if it is not known beforehand: then the files that are unpacked from it are checked."""
    md5: str = ""
    unpacks_to: str = ""
    members: tuple[tuple[str, str], ...] = ()
    """Files that a zip archive holds, in whatever folder, with their checksums: these replace it."""


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"  # the authors' own address no longer serves them
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_EUROSAT = "https://zenodo.org/records/7711810/files/"  # where the authors keep it now

_HEART = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
_SENTENCES = "https://archive.ics.uci.edu/static/public/331/"

FILES: dict[str, tuple[File, ...]] = {
    "mnist": (
        File("train-images-idx3-ubyte.gz", _MNIST, 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        File("train-labels-idx1-ubyte.gz", _MNIST, 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        File("t10k-images-idx3-ubyte.gz", _MNIST, 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        File("t10k-labels-idx1-ubyte.gz", _MNIST, 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    "fashion-mnist": (
        File("train-images-idx3-ubyte.gz", _FASHION, 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        File("train-labels-idx1-ubyte.gz", _FASHION, 29_515, "25c81989df183df01b3e8a0aad5dffbe"),
        File("t10k-images-idx3-ubyte.gz", _FASHION, 4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
        File("t10k-labels-idx1-ubyte.gz", _FASHION, 5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    "cifar10": (File("cifar-10-python.tar.gz", _CIFAR, 170_498_071, "c58f30108f718f92721af3b95e74349a"),),
    "cifar100": (File("cifar-100-python.tar.gz", _CIFAR, 169_001_437, "eb9058c3a382ffc7106e4002c42a8d85"),),
    "heart-disease": (
        File("processed.cleveland.data", _HEART, 18_473, "de67707bac7104c7230c1b0f440d1d97"),
        File("processed.hungarian.data", _HEART, 10_557, "c7b30961776a6507c913d4b51bd699ed"),
        File("processed.switzerland.data", _HEART, 4_232, "c9e68ee0e5b9a126f82c18d1749cf27f"),
        File("processed.va.data", _HEART, 6_937, "36c6fa5c616b1b5f117de28aa4082680"),
    ),
    "sentiment-sentences": (
        File(
            "sentiment+labelled+sentences.zip",
            _SENTENCES,
            0,
            members=(
                ("amazon_cells_labelled.txt", "f737b1e64487b2d2518fcefdb0257e63"),
                ("imdb_labelled.txt", "ccea809cf06938e64b783737778f5ca0"),
                ("yelp_labelled.txt", "a751a7c1ce00c1f138928767125f786c"),
            ),
        ),
    ),
    "eurosat": (File("EuroSAT_RGB.zip", _EUROSAT, 94_658_721, "f46e308c4d50d4bf32fedad2d3d62f3b", "EuroSAT_RGB"),),
}


def get(
    name: str,
    data_dir: PathLike | None = None,
    *,
    progress: Progress | None = None,
    base_url: str | None = None,
) -> list[Path]:
    """Download a set into its folder below the data folder; files that are already complete are kept.

    `progress` is told the bytes so far and in all, over the set's files. `base_url` is another address that
    serves the same files.
    """
    if name not in FILES:
        if name in KNOWN:
            raise InputError(f"data: mutua does not download {name}: {KNOWN[name].how}")
        raise InputError(f"data: '{name}' is not known; {suggest(name, list(FILES))}")
    folder = data_folder(data_dir) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--data-dir: cannot make {folder} ({error.strerror}); choose another") from None
    total = sum(file.size for file in FILES[name])

    def telling(before: int) -> Callable[[int], None]:
        return lambda done: progress(before + done, total or None) if progress else None

    paths, before = [], 0
    for file in FILES[name]:
        url = (base_url or file.base_url).rstrip("/") + "/" + file.name
        paths.append(_get_file(file, folder, url, telling(before)))
        before += file.size
        telling(before)(0)
    return paths


def _get_file(file: File, folder: Path, url: str, tell: Callable[[int], None]) -> Path:
    if file.members:
        return _get_members(file, folder, url, tell)
    target = folder / (file.unpacks_to or file.name)
    if target.is_dir():
        return target
    if target.exists():
        if (found := _md5(target)) != file.md5:
            raise InputError(f"{target}: MD5 {found}, not {file.md5} as published; remove it to get it again")
        return target
    part = folder / (file.name + ".part")
    _fetch(url, part, file.size, tell)
    if (found := _md5(part)) != file.md5:
        part.unlink()
        raise RunError(f"{url}: MD5 {found}, not {file.md5} as published; what came was deleted")
    if file.unpacks_to:
        _unzip(part, file.unpacks_to, target)
        part.unlink()
    else:
        part.rename(target)
    return target


def _get_members(file: File, folder: Path, url: str, tell: Callable[[int], None]) -> Path:
    """Get an archive and unpack the files that are wanted of it, each checked; they are complete or not there."""
    there = {name: folder / name for name, _ in file.members}
    sums = dict(file.members)
    for name, path in there.items():
        if path.exists() and (found := _md5(path)) != sums[name]:
            raise InputError(f"{path}: MD5 {found}, not {sums[name]} as published; remove it to get it again")
    if all(path.exists() for path in there.values()):
        return folder
    part = folder / (file.name + ".part")
    part.unlink(missing_ok=True)  # its length is not known, so that it cannot be continued
    try:
        request, done = Request(url, headers={"User-Agent": "mutua"}), 0
        with urlopen(request, timeout=TIMEOUT) as response, part.open("wb") as out:
            while chunk := response.read(_CHUNK):
                out.write(chunk)
                tell(done := done + len(chunk))
                if done > MOST_UNKNOWN:
                    raise RunError(f"{url}: more than {MOST_UNKNOWN:,} bytes; nothing was kept")
        with zipfile.ZipFile(part) as packed:
            inside = {Path(name).name: name for name in packed.namelist() if "__MACOSX" not in name}
            for name, path in there.items():
                if name not in inside:
                    raise RunError(f"{url}: the archive has no {name}; nothing was kept")
                content = packed.read(inside[name])
                found = hashlib.md5(content, usedforsecurity=False).hexdigest()
                if found != sums[name]:
                    raise RunError(
                        f"{url}: {name} has MD5 {found}, not {sums[name]} as published; it was not kept"
                    )
                staged = path.with_name(f".{name}.unpacking")
                staged.write_bytes(content)
                staged.rename(path)
    except (OSError, http.client.HTTPException, zipfile.BadZipFile) as error:
        raise RunError(f"{url}: {getattr(error, 'reason', '') or error}; nothing was fetched") from None
    finally:
        part.unlink(missing_ok=True)
    return folder


def _fetch(url: str, part: Path, size: int, tell: Callable[[int], None]) -> None:
    """Add the missing bytes of `url` to `part`, until it has `size` bytes."""
    done = part.stat().st_size if part.exists() else 0
    if done > size:  # of another file
        part.unlink()
        done = 0
    if done == size:
        return
    headers = {"User-Agent": "mutua"} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        with urlopen(Request(url, headers=headers), timeout=TIMEOUT) as response:
            if response.status != 206:  # the server sends the whole file, even if asked for the rest
                done = 0
            length = done + int(response.headers["Content-Length"] or size - done)
            if length != size:
                raise RunError(f"{url}: serves {length:,} bytes, not {size:,} as published; nothing was kept")
            with part.open("ab" if done else "wb") as out:
                tell(done)
                while chunk := response.read(min(_CHUNK, size - done)):
                    out.write(chunk)
                    done += len(chunk)
                    tell(done)
        if done < size:
            raise ConnectionError("the connection was closed")
    except (OSError, http.client.HTTPException) as error:
        code = error.code if isinstance(error, HTTPError) else ""
        if code == 416 and done:  # it cannot send the rest, so ask for the whole file
            part.unlink()
            return _fetch(url, part, size, tell)
        reason = getattr(error, "reason", "") or str(error) or type(error).__name__
        kept = f"{part} keeps {done:,} of {size:,} bytes: run again to go on" if done else "nothing was fetched"
        raise RunError(f"{url}: {code} {reason}; {kept}".replace(":  ", ": ")) from None


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _unzip(archive: Path, inside: str, target: Path) -> None:
    """Unpack the folder `inside` of an archive as `target`: complete or not at all."""
    staging = target.with_name(f".{target.name}.unpacking")
    shutil.rmtree(staging, ignore_errors=True)
    with zipfile.ZipFile(archive) as packed:
        for member in packed.namelist():
            if not (staging / member).resolve().is_relative_to(staging.resolve()):
                raise RunError(f"{archive}: refused, it holds {member}, which points out of its folder")
        packed.extractall(staging)
    (staging / inside).rename(target)
    shutil.rmtree(staging)
