"""The server itself: its first words, its port, its token, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest

from mutua import InputError
from mutua.support import importing
from mutua.watch.serving import needed, serve_page

pytest.importorskip("uvicorn", reason='needs uvicorn: pip install "mutua[watch]"')


def served(place: Path, **given: Any) -> tuple[list[str], str, dict[str, Any]]:
    """Serve until a reader has read the page and pressed Ctrl-C: what was said, the address, what was read."""
    said: list[str] = []
    found: dict[str, Any] = {}

    def read(address: str) -> None:
        try:
            plain = address.partition("?")[0]
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
            try:
                found["bare"] = urllib.request.urlopen(plain, timeout=10).status
            except urllib.error.HTTPError as error:
                found["bare"] = error.code
            found["page"] = opener.open(address, timeout=10).read().decode()
            with opener.open(f"{plain}api/list", timeout=10) as stream:  # is open when Ctrl-C comes
                found["list"] = b"".join(stream.readline() for _ in range(4))
                os.kill(os.getpid(), signal.SIGINT)
                found["rest"] = stream.read()
        finally:
            if "list" not in found:
                os.kill(os.getpid(), signal.SIGINT)

    def opened(address: str) -> None:
        found["address"] = address
        reader.append(threading.Thread(target=read, args=[address]))
        reader[0].start()

    reader: list[threading.Thread] = []
    serve_page(place, said.append, opened=opened, **given)
    reader[0].join(10)
    return said, found["address"], found


def test_it_says_where_it_is_and_ends_with_ctrl_c(finished: Callable[..., tuple[Path, Any]]) -> None:
    said, address, found = served(finished("fml", rounds=2)[0])
    assert said[0] == f"the live page is at {address}" and said[-1] == "closed; runs go on"
    assert address.startswith("http://127.0.0.1:") and "token" not in address
    assert found["bare"] == 200 and "<title>mutua watch</title>" in found["page"]
    assert b'"method": "fml"' in found["list"]


def test_with_a_token_only_the_printed_address_opens_it(finished: Callable[..., tuple[Path, Any]]) -> None:
    _, address, found = served(finished("fml", rounds=2)[0], token=True)
    assert len(address.partition("?token=")[2]) >= 32
    assert found["bare"] == 401 and "<title>mutua watch</title>" in found["page"] and b"fml" in found["list"]


def test_a_port_that_is_taken_and_an_address_that_is_not_ours(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(InputError, match=r"^--port: \d+: Address"),
    ):
        serve_page(tmp_path, print, port=other.getsockname()[1])
    for host in ("no.such.host.invalid", "192.0.2.1"):
        with pytest.raises(InputError, match=r"^--host: "):
            serve_page(tmp_path, print, host=host)
    with pytest.raises(InputError, match=r"^RUNS: .*none is not a folder"):
        serve_page(tmp_path / "none", print)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importing.importlib, "import_module", missing)
    with pytest.raises(InputError, match=r'^watch: uvicorn is not installed; pip install "mutua\[watch\]"$'):
        needed("uvicorn")
