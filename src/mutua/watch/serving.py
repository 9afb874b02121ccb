"""`mutua watch`: the server of the live page, from its first word to its last."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from mutua.errors import InputError, RunError
from mutua.support.configuration import PathLike
from mutua.support.importing import import_optional
from mutua.watch.guard import Gatekeeper, is_loopback
from mutua.watch.pages import Pages, catalogue_of

FIRST_PORT = 8765
NEEDS = 'pip install "mutua[watch]"'


def serve_page(
    given: PathLike,
    say: Callable[[str], None],
    host: str = "127.0.0.1",
    port: int | None = None,
    token: bool = False,
    opened: Callable[[str], None] | None = None,
) -> None:
    """Serve the page until Ctrl-C. `opened` is called with its address once it can be opened."""
    uvicorn = needed("uvicorn")
    needed("starlette")
    pages = Pages(catalogue_of(given))
    listening = _listen(host, port)
    at = listening.getsockname()[1]
    secret = secrets.token_urlsafe(24) if token or not is_loopback(host) else None
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else host
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{at}/"
    if secret is not None:
        address += f"?token={secret}"
    config = uvicorn.Config(
        Gatekeeper(pages.app(), host, at, secret),
        log_level="error",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=1,
        limit_concurrency=128,
        proxy_headers=False,
    )
    server = _Server(uvicorn, config, pages, lambda: _ready(say, address, opened))
    with suppress(KeyboardInterrupt), listening:
        server.run(listening)
    say("closed; runs go on")


@contextmanager
def page_in_background(given: PathLike) -> Iterator[str]:
    """Serve the page in a thread of this process, at a free port of this machine alone; its address."""
    uvicorn = needed("uvicorn")
    needed("starlette")
    pages = Pages(catalogue_of(given))
    listening = _listen("127.0.0.1", 0)
    at = listening.getsockname()[1]
    guarded = Gatekeeper(pages.app(), "127.0.0.1", at)
    server = uvicorn.Server(uvicorn.Config(guarded, log_level="error", lifespan="off", ws="none"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{at}/"
    finally:
        pages.closing = server.should_exit = True
        thread.join()
        listening.close()


class _Server:
    """uvicorn's server, which says when it is ready and tells streams when it ends."""

    def __init__(self, uvicorn: Any, config: Any, pages: Pages, ready: Callable[[], None]) -> None:
        class Serving(uvicorn.Server):  # type: ignore[misc]
            async def startup(self, sockets: Any = None) -> None:
                await super().startup(sockets)
                if self.started:
                    ready()

            def handle_exit(self, sig: int, frame: Any) -> None:
                pages.closing = True
                super().handle_exit(sig, frame)

        self._server = Serving(config)

    def run(self, listening: socket.socket) -> None:
        """Serve until a signal comes."""
        self._server.run([listening])
        if not self._server.started:
            raise RunError("watch: the server could not start")


def _ready(say: Callable[[str], None], address: str, opened: Callable[[str], None] | None) -> None:
    say(f"the live page is at {address}")
    say("Ctrl-C closes the page; runs go on")
    if opened is not None:
        opened(address)


def needed(package: str) -> Any:
    """A package that only the page needs."""
    try:
        return import_optional(package, "watch")
    except InputError:
        raise InputError(f"watch: {package} is not installed; {NEEDS}") from None


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket at the port; at another one if none was asked for and the usual one is taken."""
    try:
        family, _, _, _, place = socket.getaddrinfo(
            host, FIRST_PORT if port is None else port, type=socket.SOCK_STREAM
        )[0]
    except (OSError, UnicodeError):
        raise InputError(f"--host: '{host}' is not an address of this machine") from None
    for at in (place, (place[0], 0, *place[2:])):
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(at)
            return made
        except OSError as error:
            made.close()
            if port is not None or at[1] == 0:
                what = f"--port: {port}" if port is not None else f"--host: {host}"
                raise InputError(f"{what}: {error.strerror}; name another") from None
    raise AssertionError
