"""The socket to a site's worker: whole requests and answers, for its owner only, whatever else comes."""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
from pathlib import Path

import pytest

from mutua.engines.site_requests import LONGEST_HEADER, BadHeader, SiteAnswer, SiteRequest
from mutua.engines.site_socket import NoWorker, ask_worker, serve_worker

BODY = os.urandom(3_000_000)  # more than a socket takes at once
REQUEST = SiteRequest("train", "0123456789abcdef", "sum", 3, 2, 1, body=BODY)


def echo(request: SiteRequest) -> SiteAnswer:
    return SiteAnswer("done", facts={"round": request.round, "verb": request.verb}, body=request.body[::-1])


@pytest.fixture
def door(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    place = tmp_path / "door"
    threading.Thread(target=serve_worker, args=(place, echo), daemon=True).start()
    for _ in range(200):
        if place.exists():
            break
        threading.Event().wait(0.05)
    return place


def test_a_request_and_its_answer_come_whole(door: Path) -> None:
    answer = ask_worker(str(door), REQUEST)
    assert answer == SiteAnswer("done", facts={"round": 3, "verb": "train"}, body=BODY[::-1])
    assert stat.S_IMODE(door.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize(
    "sent", [b"", b"\x00\x00", struct.pack(">IQ", LONGEST_HEADER + 1, 0), struct.pack(">IQ", 2, 0) + b"{}"]
)
def test_who_says_something_else_is_left_and_the_next_one_is_answered(sent: bytes, door: Path) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(door))
        line.sendall(sent)
        line.shutdown(socket.SHUT_WR)
        assert line.recv(100) == b""
    assert ask_worker(str(door), REQUEST).ending == "done"


def test_nobody_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoWorker):
        ask_worker(str(tmp_path / "door"), REQUEST)


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(PermissionError, match="must not be open to other users; chmod 700"):
        serve_worker(tmp_path / "door", echo)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "[]",
        "{}",
        REQUEST.header.replace('"train"', '"steal"'),
        REQUEST.header.replace(": 3", ": true"),
        "1" * 99,
        REQUEST.header[:-1] + ', "more": 1}',
        "[" * 100_000,
    ],
)
def test_a_header_of_another_kind_is_refused(header: str) -> None:
    assert SiteRequest.of(REQUEST.header, BODY) == REQUEST
    with pytest.raises(BadHeader):
        SiteRequest.of(header, b"")
