import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from mutua import InputError, RunError
from mutua.data import download, sources
from mutua.data.download import File, get

BODY = np.random.default_rng(5).bytes(300_000)


class Server(ThreadingHTTPServer):
    """Serves `files`; can ignore ranges, refuse them, hang up after some bytes, or leave the length out."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.ranges = "served"
        self.hang_up_after: int | None = None
        self.length = True
        self.asked: list[tuple[str, str | None]] = []
        self.sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers["Range"]
        server.asked.append((self.path, wanted))
        body = server.files.get(self.path.lstrip("/"))
        if body is None:
            return self.send_error(404)
        if wanted and server.ranges == "refused":
            return self.send_error(416)
        start = 0
        if wanted and server.ranges == "served":
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        if server.length:
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        content = body[start:][: server.hang_up_after]
        server.sent += len(content)  # before the write: the test reads it as soon as the last byte has come
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


def publish(
    monkeypatch: pytest.MonkeyPatch, server: Server, name: str, *contents: tuple[str, bytes], unpacks_to: str = ""
) -> None:
    files = []
    for filename, body in contents:
        server.files[filename] = body
        files.append(File(filename, server.url, len(body), hashlib.md5(body).hexdigest(), unpacks_to))
    monkeypatch.setitem(download.FILES, name, tuple(files))


@pytest.fixture
def one_file(monkeypatch: pytest.MonkeyPatch, server: Server) -> str:
    publish(monkeypatch, server, "cifar10", ("cifar-10-python.tar.gz", BODY))
    return "cifar-10-python.tar.gz"


def test_get_several_files_with_progress(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    publish(monkeypatch, server, "mnist", ("a.gz", BODY), ("b.gz", b"tiny"))
    told: list[tuple[int, int | None]] = []
    paths = get("mnist", tmp_path, progress=lambda done, total: told.append((done, total)))
    assert paths == [tmp_path / "mnist" / "a.gz", tmp_path / "mnist" / "b.gz"]
    assert [path.read_bytes() for path in paths] == [BODY, b"tiny"]
    assert told == sorted(told)
    assert told[-1] == (300_004, 300_004)
    assert len({done for done, _ in told}) > 3
    assert sorted(p.name for p in (tmp_path / "mnist").iterdir()) == ["a.gz", "b.gz"]

    server.asked.clear()
    assert get("mnist", tmp_path) == paths
    assert server.asked == []


def test_mnist_from_a_mirror_loads(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    head = {
        "images": bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28]),
        "labels": bytes([0, 0, 8, 1, 0, 0, 0, 2]),
    }
    bodies = {"images": head["images"] + bytes(2 * 784), "labels": head["labels"] + b"\x03\x07"}
    names = [file.name for file in download.FILES["mnist"]]
    publish(monkeypatch, server, "mnist", *((n, bodies["images" if "images" in n else "labels"]) for n in names))
    elsewhere = tuple(replace(file, base_url="http://127.0.0.1:1/") for file in download.FILES["mnist"])
    monkeypatch.setitem(download.FILES, "mnist", elsewhere)
    get("mnist", tmp_path, base_url=server.url + "/")
    assert sources.load("mnist", data_dir=tmp_path).train.y.tolist() == [3, 7]


def test_interrupted_then_resumed_with_only_the_rest(server: Server, tmp_path: Path, one_file: str) -> None:
    server.hang_up_after = 120_000
    part = tmp_path / "cifar10" / f"{one_file}.part"
    with pytest.raises(RunError, match=r"closed; .*\.part keeps 120,000 of 300,000 bytes: run again") as error:
        get("cifar10", tmp_path)
    assert f"{server.url}/{one_file}" in str(error.value)
    assert part.read_bytes() == BODY[:120_000]
    server.hang_up_after, server.sent = None, 0
    told: list[int] = []
    (path,) = get("cifar10", tmp_path, progress=lambda done, total: told.append(done))
    assert path.read_bytes() == BODY
    assert server.asked[-1] == (f"/{one_file}", "bytes=120000-")
    assert server.sent == 180_000
    assert told[0] == 120_000
    assert not part.exists()


@pytest.mark.parametrize(("ranges", "requests"), [("ignored", 1), ("refused", 2)])
def test_a_server_without_ranges_sends_the_whole(
    server: Server, tmp_path: Path, one_file: str, ranges: str, requests: int
) -> None:
    server.ranges = ranges
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / f"{one_file}.part").write_bytes(b"x" * 1000)
    (path,) = get("cifar10", tmp_path)
    assert path.read_bytes() == BODY
    assert len(server.asked) == requests


def test_a_part_that_is_whole_or_too_long(server: Server, tmp_path: Path, one_file: str) -> None:
    part = tmp_path / "cifar10" / f"{one_file}.part"
    part.parent.mkdir()
    part.write_bytes(BODY)
    (path,) = get("cifar10", tmp_path)
    assert server.asked == []
    path.unlink()
    part.write_bytes(BODY + b"more")
    (path,) = get("cifar10", tmp_path)
    assert server.asked == [(f"/{one_file}", None)]
    assert path.read_bytes() == BODY


def test_a_wrong_checksum_deletes_what_came(server: Server, tmp_path: Path, one_file: str) -> None:
    server.files[one_file] = wrong = BODY[:-1] + bytes([BODY[-1] ^ 1])
    with pytest.raises(RunError) as error:
        get("cifar10", tmp_path)
    assert hashlib.md5(BODY).hexdigest() in str(error.value)
    assert hashlib.md5(wrong).hexdigest() in str(error.value)
    assert list((tmp_path / "cifar10").iterdir()) == []


def test_another_length_is_refused_before_it_is_taken(server: Server, tmp_path: Path, one_file: str) -> None:
    server.files[one_file] = BODY + b"more"
    with pytest.raises(RunError, match="serves 300,004 bytes, not 300,000 as published"):
        get("cifar10", tmp_path)
    part = tmp_path / "cifar10" / f"{one_file}.part"
    part.write_bytes(BODY[:1000])
    with pytest.raises(RunError, match="serves 300,004 bytes"):
        get("cifar10", tmp_path)
    assert part.read_bytes() == BODY[:1000]
    server.files[one_file] = BODY[:500]
    with pytest.raises(RunError, match="serves 500 bytes"):
        get("cifar10", tmp_path)


def test_a_server_that_tells_no_length(server: Server, tmp_path: Path, one_file: str) -> None:
    server.length = False
    (path,) = get("cifar10", tmp_path)
    assert path.read_bytes() == BODY
    path.unlink()
    server.files[one_file] = BODY + b"more"  # takes no more than was published
    (path,) = get("cifar10", tmp_path)
    assert path.read_bytes() == BODY


def test_an_existing_file_is_checked_and_never_overwritten(server: Server, tmp_path: Path, one_file: str) -> None:
    path = tmp_path / "cifar10" / one_file
    path.parent.mkdir()
    path.write_bytes(b"mine")
    with pytest.raises(InputError, match=r"not .* as published; remove it to get it again"):
        get("cifar10", tmp_path)
    assert path.read_bytes() == b"mine"
    assert server.asked == []


def test_not_found_and_no_connection_are_one_clear_line(server: Server, tmp_path: Path, one_file: str) -> None:
    server.files.clear()
    with pytest.raises(RunError, match="404 Not Found; nothing was fetched"):
        get("cifar10", tmp_path)
    part = tmp_path / "cifar10" / f"{one_file}.part"
    part.write_bytes(BODY[:1000])
    with pytest.raises(RunError, match=r"127.0.0.1:1/cifar-10.*refused.*keeps 1,000 of 300,000 bytes") as error:
        get("cifar10", tmp_path, base_url="http://127.0.0.1:1")
    assert "\n" not in str(error.value)
    assert part.read_bytes() == BODY[:1000]


def test_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one_file: str) -> None:
    import socket

    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(RunError, match="timed out"):
        get("cifar10", tmp_path, base_url=f"http://127.0.0.1:{silent.getsockname()[1]}")


def zip_of(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name, body in members.items():
            packed.writestr(name, body)
    return out.getvalue()


def test_eurosat_is_unpacked_and_loads(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    from PIL import Image

    picture = io.BytesIO()
    Image.new("RGB", (64, 64), (9, 8, 7)).save(picture, "PNG")
    body = zip_of(**{f"EuroSAT_RGB/{c}/1.png": picture.getvalue() for c in ("River", "Forest")})
    publish(monkeypatch, server, "eurosat", ("EuroSAT_RGB.zip", body), unpacks_to="EuroSAT_RGB")
    assert get("eurosat", tmp_path) == [tmp_path / "eurosat" / "EuroSAT_RGB"]
    assert [p.name for p in (tmp_path / "eurosat").iterdir()] == ["EuroSAT_RGB"]
    train = sources.load("eurosat", data_dir=tmp_path).train
    assert train.classes == ("Forest", "River")
    assert train.x[:, :, 0, 0].tolist() == [[9, 8, 7]] * 2
    server.asked.clear()
    get("eurosat", tmp_path)
    assert server.asked == []


@pytest.mark.parametrize("evil", ["../../evil.txt", "EuroSAT_RGB/../../../evil.txt", "/tmp/mutua-evil.txt"])
def test_an_archive_that_points_out_of_its_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path, evil: str
) -> None:
    body = zip_of(**{"EuroSAT_RGB/River/1.png": b"fine", evil: b"evil"})
    publish(monkeypatch, server, "eurosat", ("EuroSAT_RGB.zip", body), unpacks_to="EuroSAT_RGB")
    with pytest.raises(RunError, match="points out of its folder"):
        get("eurosat", tmp_path)
    assert not list(tmp_path.rglob("evil.txt"))
    assert not Path("/tmp/mutua-evil.txt").exists()
    assert not (tmp_path / "eurosat" / "EuroSAT_RGB").exists()


def test_names_that_cannot_be_got(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'mnist'"):
        get("mnits", tmp_path)
    with pytest.raises(InputError, match=r"does not download pacs: .*https://.*pacs/DOMAIN/CLASS"):
        get("pacs", tmp_path)
    with pytest.raises(InputError, match="does not download mnist5k: it comes with mutua"):
        get("mnist5k", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--data-dir: cannot make"):
        get("mnist", tmp_path / "file")


def test_what_the_catalogue_promises_can_be_got() -> None:
    promised = {name for name, known in sources.KNOWN.items() if known.how.startswith("mutua data get")}
    assert promised == set(download.FILES)
    for name, files in download.FILES.items():
        places = {place.path for place in sources.KNOWN[name].places}
        for file in files:
            assert file.base_url.startswith("http")
            sums = [file.md5] if file.size else [md5 for _, md5 in file.members]
            assert sums and all(len(bytes.fromhex(md5)) == 16 for md5 in sums)
            assert places & {name, f"{name}/{file.name}", f"{name}/{file.unpacks_to}"}
