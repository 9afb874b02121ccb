"""Connecting to Ray: a cluster at an address, or one of this machine's cores; and what Ray's failures mean."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from mutua.errors import InputError, MutuaError, RunError
from mutua.support import signals
from mutua.support.files import reason

_PATIENCE = 5.0
"""Seconds until an address that does not answer is given up."""


def installed_ray() -> ModuleType:
    """Ray, which is an extra of its own."""
    # No statistics leave this machine.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Tries of about ten seconds each until a cluster that does not answer is given up; Ray's own number is 20.
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "3")
    # Workers on this machine have the priority that those of the local engine have; Ray's own number is 15.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Without a GPU of its own, a worker sees none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    try:
        import ray
    except ImportError:
        raise InputError("engine: 'ray' needs the package ray; pip install 'mutua[ray]'") from None
    found: ModuleType = ray
    return found


def connect(address: str | None, workers: int | None) -> bool:
    """Connect to the cluster at this address, or start Ray on this machine; False if Ray is connected already.

    Without an address, RAY_ADDRESS counts. Ray on this machine listens on 127.0.0.1 only.
    """
    address = address or os.environ.get("RAY_ADDRESS") or None
    ray = installed_ray()
    if address is not None:
        address = _reachable(address)
    if ray.is_initialized():
        there = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", there):
            first = f"this process is connected to {there}; call ray.shutdown() first"
            raise InputError(f"engine: ray at {address}: {first}")
        return False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": "mutua"}
    if address is None:
        options |= {"address": "local", "num_cpus": workers, "include_dashboard": False}
        options["_node_ip_address"] = "127.0.0.1"
    else:
        options["address"] = address
    with explained(address), signals.handlers_restored(), _quiet(), _loopback_only(_is_loopback(address)):
        ray.init(**options)
    # Ray prints dozens of lines of its log on stdout when it loses a node; what they mean is in our own messages.
    ray._private.worker.print_to_stdstream = lambda data, ignore_prefix: None
    return True


def disconnect() -> None:
    """Leave the cluster; Ray on this machine ends."""
    with signals.handlers_restored():
        installed_ray().shutdown()


def check_head() -> None:
    """Refuse to wait for a head that is gone: Ray itself would end this process after a minute, without a word."""
    address = installed_ray().get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                lost = f"ray at {address}: the head of the cluster is gone ({reason(error)})"
                raise RunError(f"engine: {lost}; start it again") from None
        time.sleep(0.5)


@contextmanager
def explained(address: str | None = None) -> Iterator[None]:
    """Ray's failures in this block, each as one line that says the way out."""
    ray = installed_ray()
    try:
        yield
    except MutuaError:
        raise
    except ray.exceptions.RayError as error:
        raise RunError(f"engine: {meaning(error)}") from error
    except Exception as error:  # Ray raises all kinds, and plain ones too
        kind, where = (RunError, "ray") if address is None else (InputError, f"ray at {address}")
        raise kind(f"engine: {where}: {meaning(error)}") from error


def meaning(error: BaseException) -> str:
    """What an error of Ray's means, in one line with the way out."""
    text = str(error)
    if found := re.search(r"No module named '([^']+)'", text):
        return (
            f"the package '{found[1].split('.')[0]}' is missing on a node; install on every node "
            "what this machine has, in the same versions"
        )
    if "Version mismatch" in text or "version mismatch" in text:
        return f"{_short(text)}; install the same versions of Python and ray on every node and on this machine"
    if "ObjectStoreFull" in type(error).__name__ or "OutOfDisk" in type(error).__name__:
        return (
            "Ray's object store is full: it holds all clients' data once per node; start Ray with a larger "
            "--object-store-memory, or leave the data in their files (data.mapped: true)"
        )
    if "OutOfMemory" in type(error).__name__:
        return "a node had no memory left; use fewer --workers"
    if "node_ip_address" in text or "No node info found" in text or "local raylet" in text.lower():
        return (
            "this machine is not a node of that cluster; run mutua on one, or join it with 'ray start --address'"
        )
    if "timed out during startup" in text:
        return "Ray did not start in time: is this machine overloaded? Try again when it has less to do"
    if isinstance(error, ConnectionError | TimeoutError) or "connect" in text.lower():
        return f"cannot connect ({_short(text)}); is the cluster running? 'ray start --head' begins one"
    return _short(text)


def how_it_died(error: Exception) -> str:
    """How a process of the cluster was lost."""
    text = str(error)
    if "OutOfMemory" in type(error).__name__ or "OOM" in text or "out of memory" in text.lower():
        return "its worker was ended because its node had no memory left (use fewer workers)"
    if "node" in text.lower() and ("died" in text.lower() or "dead" in text.lower()):
        return "its worker or the node of its worker was lost"
    return "its worker process ended"


def _short(text: str) -> str:
    """An error's text as one line of moderate length."""
    words = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
    return words if len(words) < 400 else f"{words[:400]} ..."


def _reachable(address: str) -> str:
    """The address, if somebody listens there: Ray itself would wait for minutes."""
    if address == "auto":
        return address
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise InputError(f"engine: ray at {address}: give HOST:PORT of the cluster's head, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        begin = "is the cluster running? 'ray start --head' begins one; without an address this machine is used"
        raise InputError(f"engine: ray at {address}: cannot connect ({why}); {begin}") from None
    return address


def _is_loopback(address: str | None) -> bool:
    """Whether a cluster is of this machine alone."""
    return address is None or address.rpartition(":")[0].strip("[]") in ("127.0.0.1", "localhost", "::1")


@contextmanager
def _loopback_only(wanted: bool) -> Iterator[None]:
    """Let Ray use 127.0.0.1 only, by its own switch; without it, it takes this for the machine's other address.

    Ray reads it when it is imported; the processes that it starts are told by the environment.
    """
    from ray._private import ray_constants

    name = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    before, given = ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(name)
    if wanted:
        ray_constants.ENABLE_RAY_CLUSTER, os.environ[name] = False, "0"
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        if given is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = given


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray's greeting off the terminal."""
    sys.stderr.flush()
    with Path(os.devnull).open("w") as nothing:
        before = os.dup(2)
        try:
            os.dup2(nothing.fileno(), 2)
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
