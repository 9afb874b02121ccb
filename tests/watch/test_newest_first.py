"""A growing file is read newest first, every whole line once, whatever is done to it meanwhile."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mutua.support.safe_reading import Unreadable
from mutua.watch import newest_first
from mutua.watch.inside import open_inside, read_inside
from mutua.watch.newest_first import NewestFirst


class Lines:
    """What a reader has given, by offset."""

    def __init__(self, path: Path, piece: int = 64) -> None:
        self.found: dict[int, bytes] = {}
        self.order: list[int] = []
        self.forgotten = 0
        self.reader = NewestFirst(
            partial(open_inside, path.parent, (path.name,)), self._take, self._forget, piece=piece
        )

    def _take(self, block: bytes, offset: int, older: bool) -> None:
        assert block.endswith(b"\n")
        for line in block.splitlines(keepends=True):
            assert offset not in self.found
            self.found[offset] = line
            self.order.append(offset)
            offset += len(line)

    def _forget(self) -> None:
        self.found, self.order, self.forgotten = {}, [], self.forgotten + 1

    def all(self) -> bytes:
        for _ in range(10_000):
            if not self.reader.step():
                break
        return b"".join(self.found[at] for at in sorted(self.found))


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.binary(max_size=30).filter(lambda text: b"\n" not in text), max_size=12), max_size=6),
    st.integers(40, 90),
)
def test_every_whole_line_comes_once(
    tmp_path_factory: pytest.TempPathFactory, bursts: list[list[bytes]], piece: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.csv"
    path.write_bytes(b"")
    lines = Lines(path, piece)
    written = b""
    for burst in bursts:
        text = b"".join(line + b"\n" for line in burst)
        torn = len(text) // 2
        for part in (text[:torn], text[torn:]):
            with path.open("ab") as file:
                file.write(part)
            written += part
            assert lines.all() == written[: written.rfind(b"\n") + 1]
    assert lines.forgotten == 0 and lines.reader.left == 0


def test_what_is_newest_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"".join(b"%05d\n" % n for n in range(1000)))
    lines = Lines(path, piece=600)
    lines.reader.step()
    assert sorted(lines.found)[0] == 900 * 6 and len(lines.found) == 100
    lines.reader.step()
    assert min(lines.found) == 800 * 6
    with path.open("ab") as file:
        file.write(b"new\n")
    lines.reader.step()
    assert lines.found[6000] == b"new\n"  # before the older ones
    assert lines.all() == path.read_bytes()


def test_a_file_that_was_cut_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\ntwo\nthree\n")
    lines = Lines(path)
    assert lines.all() == b"one\ntwo\nthree\n"
    path.write_bytes(b"one\nTWO\nthree and more\n")  # cut, and grown again, between two looks
    assert lines.all() == b"one\nTWO\nthree and more\n"
    path.write_bytes(b"one\n")
    assert lines.all() == b"one\n"
    path.unlink()
    assert lines.all() == b"" and lines.forgotten == 3


def test_a_line_that_is_too_long_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\n" + b"x" * 500 + b"\ntwo\n")
    assert Lines(path, piece=64).all() == b"one\ntwo\n"
    lines = Lines(path, piece=64)
    with path.open("ab") as file:
        file.write(b"y" * 300)
    assert lines.all() == b"one\ntwo\n"
    with path.open("ab") as file:
        file.write(b"y" * 100 + b"\nthree\n")
    assert lines.all() == b"one\ntwo\nthree\n"


def test_of_a_very_long_file_only_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_first, "MOST", 1000)
    path = tmp_path / "a"
    path.write_bytes(b"12345678\n" * 1000)
    lines = Lines(path)
    assert 1000 <= len(lines.all()) < 1100
    assert lines.reader.cut_off and lines.reader.left == 0


def test_nothing_outside_is_opened(tmp_path: Path) -> None:
    root, secret = tmp_path / "runs", tmp_path / "secret"
    (root / "mine").mkdir(parents=True)
    (root / "mine" / "plain").write_text("here")
    (secret).mkdir()
    (secret / "file").write_text("secret")
    (root / "mine" / "link").symlink_to(secret / "file")
    (root / "folder").symlink_to(secret)
    (root / "mine" / "twice").hardlink_to(secret / "file")
    import os

    os.mkfifo(root / "mine" / "pipe")
    assert read_inside(root, ("mine", "plain"), 10) == b"here"
    names = [("mine", "link"), ("folder", "file"), ("mine", "twice"), ("mine", "pipe"), ("..", "secret", "file")]
    names += [("mine", "../../secret/file"), ("mine",), (), ("mine", ""), ("mine", "a\0b"), (".", "mine", "plain")]
    for parts in names:
        with pytest.raises((OSError, Unreadable)):
            open_inside(root, parts)
    with pytest.raises(Unreadable, match="more than 3 bytes"):
        read_inside(root, ("mine", "plain"), 3)
