"""The socket between the process that Flower starts for a message and the site's worker: one request, one answer.

It is a file in a folder that only its owner may enter. Nothing here knows of torch.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mutua.engines.site_requests import LONGEST_HEADER, BadHeader, SiteAnswer, SiteRequest

SOCKET_VARIABLE = "MUTUA_SITE_SOCKET"
"""The environment variable that says where the socket is."""
LONGEST_BODY = 16 * 2**30
_LENGTHS = struct.Struct(">IQ")
_PEER = struct.Struct("3i")


class NoWorker(OSError):
    """The site's worker is not there, or has gone in the middle of an answer."""


def ask_worker(place: str, request: SiteRequest) -> SiteAnswer:
    """Hand a request to the worker, and wait for its answer."""
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(place)
            _send(line, request.header, request.body)
            return SiteAnswer.of(*_receive(line))
        except (OSError, EOFError) as error:
            raise NoWorker(str(error)) from error


def serve_worker(place: Path, answer: Callable[[SiteRequest], SiteAnswer]) -> None:
    """Answer requests, one after the other, until the process ends. Other users get no answer."""
    _check_private(place.parent)
    with private_door(place, waiting=4) as door:
        while True:
            line, _ = door.accept()
            with line, suppress(OSError, EOFError, BadHeader):  # whoever asked has gone, or was no mutua
                if _peer(line) == os.getuid():
                    made = answer(SiteRequest.of(*_receive(line)))
                    _send(line, made.header, made.body)


@contextmanager
def private_door(place: Path, waiting: int) -> Iterator[socket.socket]:
    """A socket that listens at this path, which only its owner may use; so many may wait there."""
    place.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as door:
        before = os.umask(0o177)
        try:
            door.bind(str(place))
        finally:
            os.umask(before)
        door.listen(waiting)
        yield door


def _check_private(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{folder} must not be open to other users; chmod 700 {folder}")


def _peer(line: socket.socket) -> int:
    """The user at the other end."""
    if not hasattr(socket, "SO_PEERCRED"):  # not on macOS, where the folder's mode alone keeps others out
        return os.getuid()
    return int(_PEER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1])


def _send(line: socket.socket, header: str, body: bytes) -> None:
    data = header.encode()
    line.sendall(_LENGTHS.pack(len(data), len(body)) + data)
    line.sendall(body)


def _receive(line: socket.socket) -> tuple[str, bytes]:
    header, body = _LENGTHS.unpack(_exactly(line, _LENGTHS.size))
    if header > LONGEST_HEADER or body > LONGEST_BODY:
        raise BadHeader("it is too long")
    return _exactly(line, header).decode(errors="replace"), _exactly(line, body)


def _exactly(line: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = line.recv(min(size - len(data), 2**20))
        if not piece:
            raise EOFError("the other end has gone")
        data += piece
    return bytes(data)
