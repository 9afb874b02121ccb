"""Commands to the SuperLink on this machine: who is registered, who is here, and a run to begin."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from mutua.errors import RunError


class RegisteredNode(NamedTuple):
    """A SuperNode that may connect."""

    node: int
    key: bytes
    status: str
    """registered, online, offline or unregistered."""


class ServerGone(RunError):
    """The SuperLink does not answer."""


@contextmanager
def control(port: int, authority: Path) -> Iterator[Any]:
    """A client of the SuperLink's commands; `ServerGone` if it does not answer."""
    import httpx
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    client = ControlHttpClient.from_server_address(
        server_address=f"127.0.0.1:{port}",
        insecure=False,
        root_certificates=authority.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield client
    except httpx.TransportError as error:
        raise ServerGone(f"the server does not answer ({error})") from error
    finally:
        client.close()


def nodes(client: Any) -> list[RegisteredNode]:
    """All SuperNodes that are registered."""
    from flwr.proto.control_pb2 import ListNodesRequest

    found = client.ListNodes(ListNodesRequest()).nodes_info
    return [RegisteredNode(node.node_id, bytes(node.public_key), str(node.status)) for node in found]


def register_keys(client: Any, keys: Mapping[str, bytes]) -> tuple[list[str], int]:
    """Let exactly these keys in; who is new, and how many are no longer let in."""
    from flwr.proto.control_pb2 import RegisterNodeRequest, UnregisterNodeRequest

    known = {node.key: node for node in nodes(client) if node.status != "unregistered"}
    new = [name for name, key in keys.items() if key not in known]
    for name in new:
        client.RegisterNode(request=RegisterNodeRequest(public_key=keys[name], name=name))
    gone = [node for key, node in known.items() if key not in keys.values()]
    for node in gone:
        client.UnregisterNode(request=UnregisterNodeRequest(node_id=node.node))
    return new, len(gone)


def start_run(client: Any, app: Path, settings: Mapping[str, str]) -> int:
    """Begin a run of the app in this folder."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.serde import fab_to_proto, user_config_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab

    data = build_fab_from_disk(app)
    request = StartRunRequest(
        fab=fab_to_proto(Fab(hashlib.sha256(data).hexdigest(), data, {})),
        override_config=user_config_to_proto(dict(settings)),
    )
    answer = client.StartRun(request)
    if not answer.HasField("run_id"):
        raise RunError("the SuperLink has not started the run; its log says why")
    return int(answer.run_id)


class RunStatus(NamedTuple):
    """How a Flower run stands."""

    status: str
    details: str


def run_status(client: Any, run: int) -> RunStatus | None:
    """How this run stands, or None if the SuperLink does not know it."""
    from flwr.proto.control_pb2 import ListRunsRequest

    found = client.ListRuns(ListRunsRequest(run_id=run)).run_dict
    if run not in found:
        return None
    status = found[run].status
    return RunStatus(f"{status.status}:{status.sub_status}".rstrip(":"), str(status.details))


def stop_run(client: Any, run: int) -> None:
    """End a run."""
    from flwr.proto.control_pb2 import StopRunRequest

    client.StopRun(StopRunRequest(run_id=run))


def listens(host: str, port: int, within: float = 0.0) -> bool:
    """Whether anybody listens there, or begins to within so many seconds."""
    until = time.monotonic() + within
    while True:
        try:
            socket.create_connection((host, port), timeout=2).close()
            return True
        except OSError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.2)


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
