"""Who may talk to the page's server, and what a browser may do with its answers.

A page of another site cannot read answers of this one, but it can have a browser ask. So the name by which the
server was asked must be its own, since a stranger's name may be made to lead here; and whatever changes something
must come from the page itself.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlencode

AsgiScope = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[MutableMapping[str, Any]]]
AsgiSend = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[AsgiScope, AsgiReceive, AsgiSend], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Gatekeeper:
    """Lets requests through to an application that come to the right name, with the token if there is one."""

    def __init__(self, app: AsgiApp, host: str, port: int, token: str | None = None) -> None:
        self._app, self._host, self._port, self._token = app, host, port, token
        self._cookie = f"mutua-watch-{port}"  # a browser keeps cookies by host, whatever the port

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Answer, or refuse."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        asked = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, method = asked.get(b"host", ""), scope["method"]
        if not self._known(host):
            await refuse(send, 421, "This server is not known by that name.")
        elif method not in ("GET", "HEAD", "POST"):
            await refuse(send, 405, "Only GET, HEAD and POST.")
        elif method == "POST" and not self._from_the_page(asked, host):
            await refuse(send, 403, "Only the page itself may ask for this.")
        elif self._token is not None and not self._admitted(asked.get(b"cookie", "")):
            await self._admit(scope, send)
        else:
            await self._app(scope, receive, _with_headers(send))

    def _known(self, host: str) -> bool:
        """Whether the name is ours: an address, or a name of this machine; not one that a stranger could own."""
        name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "")
        if (port or "80") != str(self._port):
            return False
        name = name.lower()
        if is_loopback(self._host):
            return name in ("127.0.0.1", "localhost", "[::1]", self._host)
        if name in (self._host.lower(), socket.gethostname().lower(), socket.getfqdn().lower(), "localhost"):
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _from_the_page(self, asked: dict[bytes, str], host: str) -> bool:
        same = asked.get(b"origin") == f"http://{host}"
        return same and asked.get(b"sec-fetch-site", "same-origin") == "same-origin"

    def _admitted(self, cookies: str) -> bool:
        try:
            found = SimpleCookie(cookies).get(self._cookie)
        except CookieError:
            return False
        return found is not None and self._right(found.value)

    def _right(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())

    async def _admit(self, scope: AsgiScope, send: AsgiSend) -> None:
        """The address that was printed has the token; the browser keeps it in a cookie that no script reads."""
        query = parse_qs(scope["query_string"].decode("latin-1"))
        given = query.pop("token", [""])[0]
        if scope["method"] == "GET" and scope["path"] == "/" and self._right(given):
            cookie = f"{self._cookie}={given}; Path=/; HttpOnly; SameSite=Strict"
            rest = f"?{urlencode(query, doseq=True)}" if query else ""
            more = [(b"location", f"/{rest}".encode()), (b"set-cookie", cookie.encode())]
            await refuse(send, 303, "", more)
            return
        await refuse(send, 401, "Open the whole address that 'mutua watch' printed: it ends with the token.")


async def refuse(send: AsgiSend, status: int, text: str, more: list[tuple[bytes, bytes]] | None = None) -> None:
    """Answer with a line of text."""
    body = text.encode()
    about = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*about, *HEADERS, *(more or [])]})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: AsgiSend) -> AsgiSend:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *HEADERS]
        await send(message)

    return sending
