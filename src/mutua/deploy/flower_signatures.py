"""Every request of a site is signed whole, and counts once.

Flower's own signature is of the time alone: with its headers, another request could be sent, or the same again,
for five minutes. Here a site also signs what it asks, and a number that comes once. Whoever is refused is named
in the server's log, with the reason. Nothing here knows of torch.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from datetime import datetime
from pathlib import Path
from typing import Any

KEYS_VARIABLE = "MUTUA_DEPLOYMENT_KEYS"
"""The environment variable that says where the public keys of the clients are."""
NONCE, SIGNATURE = "mutua-nonce", "mutua-signature"
FLOWER_KEY, FLOWER_TIME = "flwr-public-key", "flwr-timestamp"
OLDEST, NEWEST = 300.0, 5.0
"""So many seconds may a site's clock be behind, or ahead: as Flower has it."""
REFUSED = "refused: "
"""How a line in the server's log begins that says who was refused, and why."""
AGAIN = 60.0
"""Seconds after which the same refusal is worth another line."""

Scope = MutableMapping[str, Any]


class Turned(Exception):
    """A request is refused: who sent it, and why."""


def signed_text(path: str, timestamp: str, nonce: str, body: bytes) -> bytes:
    """What is signed."""
    return "\n".join([path, timestamp, nonce, hashlib.sha256(body).hexdigest()]).encode()


LINE = "line: "
"""How a line in a site's connection log begins that says whether the server answers."""


NOT_LET_IN = "the server does not let this site in; its terminal says why, and perhaps `mutua deploy check` does"


class LineLog:
    """Whether the server answers: a line whenever that changes."""

    def __init__(self, write: Callable[[str], object] = sys.stderr.write) -> None:
        self.write = write
        self.connected = False
        """Whether the server has answered at least once."""
        self._told = ""

    def tell(self, text: str) -> None:
        """Write it down, if it is new."""
        if text != self._told:
            self._told = text
            self.write(f"{LINE}{text}\n")


def sign_requests(line: LineLog | None = None) -> None:
    """Have this process's SuperNode sign its requests whole, and tell whether they are answered."""
    import httpx
    from flwr.supercore.primitives.asymmetric import sign_message
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    interceptor: Any = NodeAuthHttpInterceptor
    given = interceptor.intercept

    def intercept(self: Any, context: Any, call_next: Callable[[Any], Any]) -> Any:
        def signed(ready: Any) -> Any:
            request, nonce = ready.request, os.urandom(16).hex()
            text = signed_text(request.url.path, request.headers[FLOWER_TIME], nonce, request.read())
            request.headers[NONCE] = nonce
            request.headers[SIGNATURE] = base64.b64encode(sign_message(self._private_key, text)).decode()
            return call_next(ready)

        try:
            response = given(self, context, signed)
        except Exception as error:
            told.tell(f"the server does not answer ({type(error).__name__}); trying until it does")
            if told.connected and isinstance(error, httpx.TransportError):
                # Of TLS errors, as a meddler causes them, Flower would drop the message; of this it tries again.
                raise httpx.ConnectError("the line is disturbed") from error
            raise
        told.tell("connected" if response.status_code != 401 else NOT_LET_IN)
        told.connected = True
        return response

    told = line or LineLog()
    interceptor.intercept = intercept


class RefusalLog:
    """Refusals, a line each; one that repeats itself is not told again for a while."""

    def __init__(self, write: Callable[[str], object] = sys.stderr.write) -> None:
        self.write = write
        self._told: OrderedDict[str, float] = OrderedDict()

    def tell(self, who: str, why: str) -> None:
        """Write it down."""
        line, now = f"{REFUSED}{who}: {why}", time.monotonic()
        if now - self._told.get(who + why.split(" (")[0], -math.inf) < AGAIN:
            return
        self._told[who + why.split(" (")[0]] = now
        while len(self._told) > 1000:
            self._told.popitem(last=False)
        self.write(f"{line}\n")


class SignedRequests:
    """An ASGI middleware: of what sites send, only that gets through which a known site has signed, and once."""

    def __init__(self, app: Callable[..., Awaitable[None]], keys: Path, log: RefusalLog, prefix: str) -> None:
        self.app, self.keys, self.log, self.prefix = app, keys, log, prefix
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._began = time.time()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass a request on, or say that it is not let in."""
        if scope["type"] != "http" or not str(scope.get("path", "")).startswith(self.prefix):
            await self.app(scope, receive, send)
            return
        pieces, more = [], True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            pieces.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = b"".join(pieces)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self.check(str(scope["path"]), headers, body)
        except Turned as turned:
            who, why = turned.args
            address = (scope.get("client") or ("somebody",))[0]
            self.log.tell(who or f"a stranger at {address}", why)
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> Any:
            return next(given, None) or await receive()

        await self.app(scope, again, send)

    def check(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """Raise `Turned` unless a known site has signed this request, just now and for the first time."""
        from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

        try:
            key = base64.b64decode(headers[FLOWER_KEY], validate=True)
            signature = base64.b64decode(headers[SIGNATURE], validate=True)
            timestamp, nonce = headers[FLOWER_TIME], headers[NONCE]
            signed_at = datetime.fromisoformat(timestamp).timestamp()
        except KeyError as error:
            raise Turned("", f"its request has no header {error.args[0]}") from None
        except (ValueError, binascii.Error):
            raise Turned("", "its request has headers that are none") from None
        who, held = self._owner(key)
        if who is None:
            raise Turned("", f"its key is not known here ({hashlib.sha256(key).hexdigest()[:16]})")
        if not verify_signature(bytes_to_public_key(key), signed_text(path, timestamp, nonce, body), signature):
            raise Turned(who, "its request was altered on the way: the signature does not fit")
        if not held:
            raise Turned(who, "its key was revoked")
        now = time.time()
        if not -NEWEST < now - signed_at < OLDEST + NEWEST:
            off, side = abs(now - signed_at), "ahead of" if signed_at > now else "behind"
            raise Turned(who, f"its clock is wrong ({off:.0f} s {side} the server's); set it right")
        if signed_at < self._began - NEWEST:
            raise Turned(who, "its request is from before the server began")
        if nonce in self._seen:
            raise Turned(who, "its request came before: it was replayed")
        self._seen[nonce] = now
        while self._seen and next(iter(self._seen.values())) < now - OLDEST - 2 * NEWEST:
            self._seen.popitem(last=False)

    def _owner(self, key: bytes) -> tuple[str | None, bool]:
        """Whose key this is, and whether it counts. Read anew each time: keys come and go."""
        from mutua.deploy.keys import registered_form

        for path in sorted(self.keys.glob("*.pub")):
            if registered_form(path.read_bytes()) == key:
                return path.stem, True
        for path in sorted(self.keys.glob("revoked/*.pub")):
            if registered_form(path.read_bytes()) == key:
                return path.stem.partition("-")[2], False
        return None, False


def tell_of_broken_tls(log: RefusalLog) -> None:
    """Have this process tell of connections that are no TLS, or that trust another authority."""
    from asyncio import sslproto

    protocol: Any = sslproto.SSLProtocol
    given = protocol._fatal_error

    def fatal(self: Any, error: BaseException, message: str = "") -> None:
        transport = self._transport
        peer = None if transport is None else transport.get_extra_info("peername")
        reason = getattr(error, "reason", None)
        if reason:
            log.tell(f"a stranger at {(peer or ('somebody',))[0]}", f"no TLS of this deployment: {reason}")
        given(self, error, message)

    protocol._fatal_error = fatal
