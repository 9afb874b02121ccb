"""Who is not let in: unknown keys and certificates, plain HTTP, what was altered or replayed.

All of it comes while a run is going on, which it does not change.
"""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from real_deployment import RECIPE, SITES, RealDeployment, assert_same_as_local, first_in_path, wait_for_round

from mutua.deploy import keys
from mutua.deploy.organiser import Organiser, certify, write_secret

pytestmark = pytest.mark.deploy

SIGN = """
import sys
from mutua.deploy.flower_signatures import sign_requests
sign_requests()
import httpx
from cryptography.hazmat.primitives import serialization as to
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
key = to.load_ssh_private_key(open(sys.argv[1], "rb").read(), None)
request = httpx.Request("POST", "https://h:1/v1/fleet/pull-messages", content=b"")
answered = lambda context: httpx.Response(200)
NodeAuthHttpInterceptor(key, key.public_key()).intercept(ProtobufRequestContext("", None, request), answered)
print(*[f"{name}: {value}" for name, value in request.headers.items()], sep="\\n")
"""
CLOCK = """
import os, sys
if os.environ.get("MUTUA_TEST_CLOCK") and "supernode" in sys.orig_argv:
    from datetime import timedelta
    import flwr.supercore.date as date
    right = date.now
    date.now = lambda: right() - timedelta(hours=1)
"""


@dataclass
class Meddler:
    """A machine between a site and the server: it passes bytes on, keeps them, and alters one when it is told."""

    to: int
    alter: bool = False
    altered: int = 0
    taken: list[bytes] = field(default_factory=list)
    """What the site sent, connection by connection."""

    def __post_init__(self) -> None:
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.door.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.door.accept()
                far = socket.create_connection(("127.0.0.1", self.to))
                self.taken.append(b"")
                number = len(self.taken) - 1
                for pair in ((near, far, number), (far, near, None)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, near: socket.socket, far: socket.socket, number: int | None) -> None:
        with suppress(OSError):
            while data := near.recv(2**16):
                if number is not None:
                    self.taken[number] += data
                    if self.alter and len(data) > 100:
                        self.alter, self.altered = False, self.altered + 1
                        data = data[:50] + bytes([data[50] ^ 1]) + data[51:]
                far.sendall(data)
        for end in (near, far):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def replay(self) -> bytes:
        """Send again what a connection has brought; what the server says to it."""
        longest = max(self.taken, key=len)
        with socket.create_connection(("127.0.0.1", self.to), timeout=10) as line:
            line.settimeout(10)
            answer = b""
            with suppress(OSError):
                line.sendall(longest)
                line.shutdown(socket.SHUT_WR)
                while piece := line.recv(2**16):
                    answer += piece
        return answer


@pytest.fixture
def impostor(deployed: RealDeployment) -> Iterator[Callable[[str, str], Path]]:
    """A copy of a site's folder for somebody who is not that site."""

    def copy(client: str, name: str) -> Path:
        place = deployed.place / name
        shutil.copytree(deployed.site(client), place, ignore=shutil.ignore_patterns("private", "state"))
        return place

    return copy


def signed_by(key: Path) -> dict[str, str]:
    """The headers of a request that the owner of this key has signed."""
    done = subprocess.run([sys.executable, "-c", SIGN, key], capture_output=True, text=True, check=True)
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def test_strangers_are_refused_and_named_while_a_run_goes_on(
    deployed: RealDeployment, impostor: Callable[[str, str], Path]
) -> None:
    deployed.prepare({**RECIPE, "rounds": 8, "evaluate_every": 8}, SITES, "--wait", "400")
    organiser = deployed.place / "organiser"
    context = ssl.create_default_context(cafile=str(organiser / "ca.pem"))

    def post(headers: dict[str, str], body: bytes = b"") -> int:
        line = http.client.HTTPSConnection("127.0.0.1", deployed.port, timeout=20, context=context)
        line.request("POST", "/v1/fleet/pull-messages", body=body, headers=headers)
        return line.getresponse().status

    middle = Meddler(deployed.port)
    told = deployed.site("c2") / "deployment.yaml"
    told.write_text(told.read_text().replace(f":{deployed.port}", f":{middle.port}"))
    deployed.start(*SITES)
    server = deployed.processes["server"]
    run = deployed.begin("run", "deploy", "run", "organiser")
    wait_for_round(deployed, "c2", 1)

    # Between c2 and the server: a byte altered, and all of a connection sent again. TLS refuses both.
    middle.alter = True
    wait_for_round(deployed, "c2", 2)
    assert middle.altered == 1
    assert len(middle.replay()) < 2**14

    # Within TLS: a request of c0 that comes twice, with another body, and with what Flower alone would sign.
    headers = signed_by(deployed.site("c0") / "client.key")
    post(headers)
    assert post(headers) == 401
    server.wait_for("refused: c0: its request came before: it was replayed")
    assert post({**signed_by(deployed.site("c0") / "client.key"), "content-length": "1"}, b"!") == 401
    server.wait_for("refused: c0: its request was altered on the way")
    assert post({name: value for name, value in headers.items() if not name.startswith("mutua-")}) == 401
    server.wait_for("refused: a stranger at 127.0.0.1: its request has no header mutua-signature")

    # Plain HTTP, and a client that trusts another authority.
    plain = http.client.HTTPConnection("127.0.0.1", deployed.port, timeout=20)
    plain.request("GET", "/health")
    with pytest.raises((http.client.HTTPException, OSError)):
        plain.getresponse()
    server.wait_for("refused: a stranger at 127.0.0.1: no TLS of this deployment: HTTP_REQUEST")
    (deployed.place / "other.pem").write_bytes(keys.new_authority("other").certificate)
    other = ssl.create_default_context(cafile=str(deployed.place / "other.pem"))
    with pytest.raises(ssl.SSLError), socket.create_connection(("127.0.0.1", deployed.port), timeout=20) as line:
        other.wrap_socket(line, server_hostname="127.0.0.1")
    server.wait_for("refused: a stranger at 127.0.0.1: no TLS of this deployment: .*UNKNOWN_CA")

    # A site with a key that nobody has registered, and one with another authority's certificate.
    unknown = impostor("c1", "unknown")
    (unknown / "client.key").unlink()
    write_secret(unknown / "client.key", keys.client_keys().private)
    strange = deployed.begin("unknown", "deploy", "client", unknown)
    server.wait_for("refused: a stranger at 127.0.0.1: its key is not known here")
    strange.wait_for("the connection has ended")
    strange.end()
    wrong = impostor("c1", "wrong")
    shutil.copy(deployed.place / "other.pem", wrong / "ca.pem")
    said = deployed.command("deploy", "check", wrong, code=1)
    assert "its certificate is not of this deployment" in said

    assert run.process.poll() is None, "the run ended before all strangers had come: give it more rounds"
    run.done(900)
    assert_same_as_local(deployed)
    for name in ("unknown", "wrong"):
        assert not (deployed.place / name / "state").exists()


def test_revoked_and_wrong_by_the_clock(deployed: RealDeployment) -> None:
    """Both are named, and the run goes on without them."""
    deployed.prepare(RECIPE, SITES, "--wait", "5")
    deployed.start("c0", "c1")
    server = deployed.processes["server"]
    deployed.command("deploy", "revoke", "organiser", "c1")
    server.wait_for("no longer: 1")
    server.wait_for("refused: c1: its key was revoked")
    (deployed.place / "spy").mkdir()
    (deployed.place / "spy" / "sitecustomize.py").write_text(CLOCK)
    deployed.environment = {"PYTHONPATH": first_in_path(deployed.place / "spy"), "MUTUA_TEST_CLOCK": "wrong"}
    deployed.begin("c2", "deploy", "client", deployed.site("c2"))
    server.wait_for(r"refused: c2: its clock is wrong \(36\d\d s behind the server's\); set it right")
    said = deployed.begin("run", "deploy", "run", "organiser").done()
    assert "finished:" in said
    assert "c1: it is not here" in said
    assert "c2: it is not here" in said
    for client in ("c1", "c2"):
        assert not (deployed.site(client) / "state").exists()
    assert "c1: revoked" in deployed.command("deploy", "status", "organiser")


def test_a_certificate_that_has_expired_is_not_trusted_and_is_renewed(deployed: RealDeployment) -> None:
    deployed.prepare(RECIPE, SITES)
    organiser = Organiser.open(deployed.place / "organiser")
    certify(organiser.path, organiser.authority(), organiser.host, days=-1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(organiser.private / "server.pem", organiser.private / "server.key")
    with socket.create_server(("127.0.0.1", deployed.port)) as door:

        def serve() -> None:
            with suppress(OSError):
                context.wrap_socket(door.accept()[0], server_side=True)

        threading.Thread(target=serve, daemon=True).start()
        said = deployed.command("deploy", "check", deployed.site("c0"), code=1)
    assert "its certificate is not of this deployment (certificate has expired); ask the organiser" in said
    deployed.start("c0")
    assert (
        "the server's certificate was about to end, or had: there is a new one"
        in deployed.processes["server"].said
    )
