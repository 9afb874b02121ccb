"""What comes in from the network: sites' requests; commands from this machine alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mutua.deploy.flower_processes import LocalCommands


def passed(path: str, client: Any, kind: str = "http") -> bool:
    """Whether the middleware passes a request on; what it says otherwise is checked."""
    reached, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(LocalCommands(app)({"type": kind, "path": path, "client": client}, None, send))
    assert reached or sent[0].get("status") == 403 or sent[0]["type"] == "websocket.close"
    return bool(reached)


AWAY, HERE = ("192.0.2.7", 4711), ("127.0.0.1", 4711)
STRANGERS = [AWAY, ("::ffff:192.0.2.7", 1), ("2001:db8::1", 1), ("localhost.example.org", 1), None, ("", 0)]


@pytest.mark.parametrize("path", ["/v1/fleet/pull-messages", "/v1/fleet/register-node"])
def test_sites_may_come_from_anywhere(path: str) -> None:
    assert passed(path, AWAY) and passed(path, HERE)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/docs",
        "/health",
        "/",
        "",
    ],
)
def test_commands_come_from_this_machine_alone(path: str) -> None:
    assert passed(path, HERE) and passed(path, ("::1", 1)) and passed(path, ("::ffff:127.0.0.1", 1))
    assert not any(passed(path, stranger) for stranger in STRANGERS)


def test_a_socket_is_no_way_around() -> None:
    assert not passed("/v1/fleet/x", AWAY, "websocket")


def test_what_a_message_starts_imports_no_torch() -> None:
    """Flower itself imports NumPy; mutua's part of it imports neither."""
    flower = pytest.importorskip("flwr", reason="Flower is not installed")
    assert flower
    code = (
        "import sys, flwr.app, flwr.clientapp; before = set(sys.modules)\n"
        "import mutua.engines.flower_client_app, mutua.deploy.flower_processes\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "mutua" in done.stdout.split()
    assert not {"torch", "numpy", "pandas", "pydantic", "safetensors"} & set(done.stdout.split())
    alone = "import sys, mutua.engines.site_socket, mutua.engines.site_requests; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy"} & set(done.stdout.split())


def test_flower_finds_the_parts_of_the_example_app() -> None:
    """It looks for them in the text, without an import: an import of the names alone is not enough."""
    pytest.importorskip("flwr", reason="Flower is not installed")
    from flwr.supercore.object_ref import validate

    app = Path(__file__).parents[2] / "examples" / "flower-app"
    parts = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["components"]
    assert set(parts) == {"serverapp", "clientapp"}
    for name in parts.values():
        assert validate(name, check_module=True, project_dir=app) == (True, None)
