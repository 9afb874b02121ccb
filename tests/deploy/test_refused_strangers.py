"""Who is not let in: keys and certificates that are not of the deployment, plain HTTP, unsigned requests."""

from __future__ import annotations

import http.client
import ssl

import pytest
from real_deployment import RECIPE, SITES, RealDeployment

from mutua.deploy import keys
from mutua.deploy.organiser import Organiser, certify, write_secret

pytestmark = pytest.mark.deploy


@pytest.fixture
def running(deployed: RealDeployment) -> RealDeployment:
    deployed.prepare(RECIPE, SITES, "--wait", "5")
    deployed.start("c0")
    return deployed


def assert_not_let_in(made: RealDeployment, client: str) -> None:
    stranger = made.begin(f"{client}-stranger", "deploy", "client", made.site(client))
    stranger.wait_for("the connection has ended|the connection is not let in")
    assert f"{client} is here" not in made.processes["server"].said
    stranger.end()


def test_an_unknown_key_is_refused(running: RealDeployment) -> None:
    write_secret(running.site("c1") / "client.key", keys.client_keys().private)
    assert_not_let_in(running, "c1")


def test_a_revoked_key_is_refused_and_the_run_goes_on_without_it(running: RealDeployment) -> None:
    running.begin("c1", "deploy", "client", running.site("c1"))
    running.processes["server"].wait_for("c1 is here")
    running.command("deploy", "revoke", "organiser", "c1")
    running.processes["server"].wait_for("no longer: 1")
    said = running.begin("run", "deploy", "run", "organiser").done()
    assert "finished:" in said
    assert not (running.site("c1") / "state").exists()
    assert "c1: revoked" in running.command("deploy", "status", "organiser")


def test_a_server_of_another_authority_is_not_trusted(running: RealDeployment) -> None:
    other = keys.new_authority("other")
    (running.site("c1") / "ca.pem").write_bytes(other.certificate)
    said = running.command("deploy", "check", running.site("c1"), code=1)
    assert "its certificate is not of this deployment" in said


def test_an_expired_certificate_is_refused(deployed: RealDeployment) -> None:
    deployed.prepare(RECIPE, SITES)
    organiser = Organiser.open(deployed.place / "organiser")
    certify(organiser.path, organiser.authority(), organiser.host, days=-1)
    server = deployed.begin("server", "deploy", "server", "organiser")
    assert "certificate" in server.wait_for("expired|certificate")
    server.end()


def test_plain_http_is_refused(running: RealDeployment) -> None:
    line = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    line.request("GET", "/health")
    with pytest.raises((http.client.HTTPException, OSError)):
        line.getresponse()


def test_a_request_without_a_signature_is_refused(running: RealDeployment) -> None:
    context = ssl.create_default_context(cafile=str(running.place / "organiser" / "ca.pem"))
    line = http.client.HTTPSConnection("127.0.0.1", running.port, timeout=10, context=context)
    line.request("POST", "/v1/fleet/pull-messages", body=b"")
    assert line.getresponse().status in (400, 401, 403, 422)
