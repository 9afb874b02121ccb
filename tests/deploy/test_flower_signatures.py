"""A site's requests: signed whole, let in once, and whoever is refused is named with the reason."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

flwr = pytest.importorskip("flwr", reason="Flower is not installed")

from mutua.deploy.flower_signatures import LineLog, RefusalLog, SignedRequests, sign_requests  # noqa: E402
from mutua.deploy.keys import KeyPair, client_keys  # noqa: E402

PATH, BODY = "/v1/fleet/push-object", b"what a site sends" * 1000
CODE = """
import sys
from mutua.deploy.flower_signatures import sign_requests
sign_requests()
import httpx
from cryptography.hazmat.primitives import serialization as to
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
key = to.load_ssh_private_key(open(sys.argv[1], "rb").read(), None)
request = httpx.Request("POST", "https://h:1" + sys.argv[2], content=open(sys.argv[3], "rb").read())
answered = lambda context: httpx.Response(200)
NodeAuthHttpInterceptor(key, key.public_key()).intercept(ProtobufRequestContext("", None, request), answered)
print(*[f"{name}: {value}" for name, value in request.headers.items()], sep="\\n")
"""


@pytest.fixture(scope="module")
def pair() -> KeyPair:
    return client_keys()


@pytest.fixture
def door(tmp_path: Path, pair: KeyPair) -> Any:
    """The middleware before an app that keeps what gets through; what was refused is in `told`."""
    (tmp_path / "keys" / "revoked").mkdir(parents=True)
    (tmp_path / "keys" / "north.pub").write_bytes(pair.public)
    reached: list[bytes] = []
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append((await receive())["body"])

    made = SignedRequests(app, tmp_path / "keys", RefusalLog(told.append), "/v1/fleet/")
    return made, reached, told


@pytest.fixture
def headers(tmp_path: Path, pair: KeyPair) -> dict[str, str]:
    """Those that a site's own SuperNode puts on a request, in a process of its own."""
    for name, data in (("key", pair.private), ("body", BODY)):
        (tmp_path / name).write_bytes(data)
    words = [sys.executable, "-c", CODE, tmp_path / "key", PATH, tmp_path / "body"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def ask(made: SignedRequests, headers: Mapping[str, str], body: bytes = BODY, path: str = PATH) -> int:
    """The status that comes back; 0 if the request got through."""
    half = len(body) // 2
    given = [
        {"type": "http.request", "body": body[:half], "more_body": True},
        {"type": "http.request", "body": body[half:], "more_body": False},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return given.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "headers": raw, "client": ("192.0.2.7", 4711)}
    asyncio.run(made(scope, receive, send))
    return int(sent[0]["status"]) if sent else 0


def test_a_signed_request_gets_through_once(door: Any, headers: dict[str, str]) -> None:
    made, reached, told = door
    assert ask(made, headers) == 0
    assert reached == [BODY]
    assert ask(made, headers) == 401
    assert reached == [BODY]
    assert told == ["refused: north: its request came before: it was replayed\n"]


def test_a_site_is_told_when_the_server_answers_and_when_not(
    pair: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx
    from cryptography.hazmat.primitives import serialization
    from flwr.supercore.protobuf.client import ProtobufRequestContext
    from flwr.supernode import node_auth_http_interceptor as flower

    told: list[str] = []
    one = flower.NodeAuthHttpInterceptor
    monkeypatch.setattr(one, "intercept", one.intercept)  # so that it is put back
    sign_requests(LineLog(told.append))
    key = serialization.load_ssh_private_key(pair.private, None)

    def ask_for(answer: int | Exception) -> None:
        def call(context: Any) -> httpx.Response:
            if isinstance(answer, Exception):
                raise answer
            return httpx.Response(answer)

        request = httpx.Request("POST", f"https://h:1{PATH}", content=BODY)
        one(key, key.public_key()).intercept(ProtobufRequestContext("", None, request), call)

    with pytest.raises(httpx.ConnectError, match="certificate"):  # of the first contact it is the end
        ask_for(httpx.ConnectError("certificate verify failed"))
    told.clear()
    for answer in (200, 200, httpx.ConnectTimeout("no"), httpx.ConnectTimeout("no"), 200, 401):
        with suppress(httpx.TransportError):
            ask_for(answer)
    with pytest.raises(httpx.ConnectError, match=r"^the line is disturbed$"):  # Flower tries again
        ask_for(httpx.ConnectError("[SSL: INVALID_SESSION_ID] invalid session id"))
    assert [line.split(" (")[0].split(";")[0] for line in told[:4]] == [
        "line: connected\n",
        "line: the server does not answer",
        "line: connected\n",
        "line: the server does not let this site in",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"body": BODY[:-1] + b"!"},
        {"body": b""},
        {"path": "/v1/fleet/pull-messages"},
        {"mutua-nonce": "0" * 32},
        {"flwr-timestamp": "a second later"},
    ],
    ids=str,
)
def test_an_altered_request_is_refused(door: Any, headers: dict[str, str], change: dict[str, Any]) -> None:
    made, reached, told = door
    if "flwr-timestamp" in change:
        change = {"flwr-timestamp": (datetime.now(UTC) + timedelta(seconds=1)).isoformat()}
    more = {name: change[name] for name in ("body", "path") if name in change}
    assert ask(made, {**headers, **{n: v for n, v in change.items() if n not in more}}, **more) == 401
    assert reached == []
    assert told == ["refused: north: its request was altered on the way: the signature does not fit\n"]
    assert ask(made, headers) == 0  # the true one still counts


@pytest.mark.parametrize("gone", ["mutua-signature", "mutua-nonce", "flwr-timestamp", "flwr-public-key"])
def test_what_is_not_signed_whole_is_refused(door: Any, headers: dict[str, str], gone: str) -> None:
    made, reached, told = door
    assert ask(made, {name: value for name, value in headers.items() if name != gone}) == 401
    assert ask(made, {**headers, gone: "no such thing!"}) == 401
    assert reached == []
    assert told[0] == f"refused: a stranger at 192.0.2.7: its request has no header {gone}\n"


def test_unknown_and_revoked_keys_are_told_apart(door: Any, headers: dict[str, str], pair: KeyPair) -> None:
    made, reached, told = door
    path = made.keys / "north.pub"
    path.rename(made.keys / "revoked" / "0000-north.pub")
    assert ask(made, headers) == 401
    (made.keys / "revoked" / "0000-north.pub").write_bytes(client_keys().public)
    assert ask(made, headers) == 401
    assert reached == []
    assert told[0] == "refused: north: its key was revoked\n"
    assert told[1].startswith("refused: a stranger at 192.0.2.7: its key is not known here (")


@pytest.mark.parametrize(("off", "side"), [(-4000, "ahead of"), (4000, "behind")])
def test_a_wrong_clock_is_said_by_name(
    door: Any, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch, off: float, side: str
) -> None:
    from mutua.deploy import flower_signatures

    made, reached, told = door
    now = flower_signatures.time.time()
    monkeypatch.setattr(flower_signatures.time, "time", lambda: now + off)
    assert ask(made, headers) == 401
    assert reached == []
    assert told[0].startswith("refused: north: its clock is wrong (")
    assert f" {side} the server's); set it right" in told[0]


def test_a_request_from_before_the_server_began_is_refused(door: Any, headers: dict[str, str]) -> None:
    """Then it is not known which have come before."""
    made, _, told = door
    made._began += 100
    assert ask(made, headers) == 401
    assert "from before the server began" in told[0]


def test_other_paths_are_not_its_business(door: Any) -> None:
    made, reached, _ = door
    assert ask(made, {}, path="/v1/control/start-run") == 0
    assert reached == [BODY[: len(BODY) // 2]]


def test_a_refusal_that_repeats_itself_is_told_once(door: Any, headers: dict[str, str]) -> None:
    made, _, told = door
    for _ in range(5):
        ask(made, {**headers, "mutua-nonce": "0" * 32})
    assert len(told) == 1
