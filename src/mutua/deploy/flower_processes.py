"""Flower's programs with what a deployment needs: `python -m mutua.deploy.flower_processes PROGRAM ...`.

superlink   accepts sites from anywhere, but commands (a run, a key) from this machine alone: on its one port,
            Flower would take them from everybody. It takes each request once, and only if a site has signed it
supernode   signs its requests whole
clientapp   runs mutua's own ClientApp and no other: code that a server ships is neither unpacked nor imported
launcher    has all imported that a clientapp needs, and forks one for every message: a start takes no second then

Each ends when the process that started it does. Nothing here knows of torch.
"""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mutua.deploy.flower_signatures import (
    KEYS_VARIABLE,
    RefusalLog,
    Scope,
    SignedRequests,
    sign_requests,
    tell_of_broken_tls,
)

FLOWER_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "PYTHONUNBUFFERED": "1",
}
"""No outside connection, and no second of waiting where a tenth will do."""
OPEN_PATHS = ("/v1/fleet/",)
"""What sites use: Flower checks their signatures there."""


def flower_environment(home: Path, bin_folder: Path | None = None) -> dict[str, str]:
    """The environment of Flower's processes: a home of their own, and our programs first."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    places = [str(bin_folder)] if bin_folder else []
    places += [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {**os.environ, **FLOWER_SETTINGS, "FLWR_HOME": str(home), "PATH": os.pathsep.join(places)}


LAUNCHER_VARIABLE = "MUTUA_SITE_LAUNCHER"
"""The environment variable that says where the launcher's socket is."""
CALL_LAUNCHER = f'''\
import json, os, socket, sys
try:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(os.environ["{LAUNCHER_VARIABLE}"])
        line.sendall(json.dumps(sys.argv[1:]).encode())
        line.shutdown(socket.SHUT_WR)
        taken = line.recv(1)
except (KeyError, OSError):
    taken = b""
if not taken:
    os.execv(sys.executable, [sys.executable, "-m", "mutua.deploy.flower_processes", "clientapp", *sys.argv[1:]])
'''


def install_clientapp(folder: Path) -> None:
    """Put a program where a SuperNode finds it before Flower's own of that name."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "call_launcher.py").write_text(CALL_LAUNCHER)
    path = folder / "flwr-clientapp"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{folder}/call_launcher.py" "$@"\n')
    path.chmod(0o700)


def program(name: str, *words: str) -> list[str]:
    """The command line of one of these programs."""
    return [sys.executable, "-m", "mutua.deploy.flower_processes", name, *words]


def end_with_parent() -> None:
    """End this process when the one that started it ends, however that happens."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class LocalCommands:
    """An ASGI middleware: from another machine, only what sites use is there."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass a request on, or say that there is nothing."""
        if scope["type"] == "lifespan" or _allowed(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})


def _allowed(scope: Scope) -> bool:
    if scope["type"] == "http" and str(scope.get("path", "")).startswith(OPEN_PATHS):
        return True
    host = (scope.get("client") or ("",))[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def superlink() -> None:
    """The SuperLink, behind `LocalCommands` and `SignedRequests`."""
    import uvicorn
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    log = RefusalLog()
    tell_of_broken_tls(log)
    keys = Path(os.environ[KEYS_VARIABLE])
    signed = Middleware(SignedRequests, keys=keys, log=log, prefix=OPEN_PATHS[0])
    given, run = extensions.get_middleware, uvicorn.run
    extensions.get_middleware = lambda: (Middleware(LocalCommands), signed, *given())
    # Of the loops, asyncio's says who has no TLS. A line for every request would fill the disk.
    uvicorn.run = lambda **more: run(**{**more, "loop": "asyncio", "access_log": False})
    flower_superlink()


def supernode() -> None:
    """The SuperNode."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    sign_requests()
    flower_supernode()


def clientapp() -> None:
    """What a SuperNode starts for a message: always mutua's own ClientApp."""
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp as flower

    from mutua.engines.flower_client_app import app

    flower.install_from_fab = lambda *given, **more: None
    flower.get_load_client_app_fn = lambda **given: lambda *which: app
    flwr_clientapp()


def launcher() -> None:
    """Fork a clientapp for every message that a SuperNode gets."""
    import flwr.supernode.runtime.run_clientapp  # noqa: F401

    import mutua.engines.flower_client_app  # noqa: F401
    from mutua.engines.site_socket import private_door

    place = Path(os.environ[LAUNCHER_VARIABLE])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for what is forked
    with private_door(place, waiting=16) as door:
        print("ready", flush=True)
        while True:
            line, _ = door.accept()
            with line, suppress(OSError, ValueError):  # whoever called has gone
                words = json.loads(_all_of(line))
                line.sendall(b"!")
                if os.fork() == 0:
                    line.close()
                    door.close()
                    _forked(words)


def _all_of(line: socket.socket) -> bytes:
    data = b""
    while piece := line.recv(2**16):
        data += piece
    return data


def _forked(words: list[str]) -> None:
    """One message, in a process of its own."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        end_with_parent()
        sys.argv = ["flwr-clientapp", *words]
        clientapp()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


PROGRAMS = {"superlink": superlink, "supernode": supernode, "clientapp": clientapp, "launcher": launcher}


def run_program(words: list[str]) -> None:
    """Run a program under its own words."""
    name, *rest = words
    end_with_parent()
    sys.argv = [name, *rest]
    PROGRAMS[name]()


if __name__ == "__main__":
    run_program(sys.argv[1:])
