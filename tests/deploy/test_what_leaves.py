"""What really leaves a site, taken at its SuperNode before TLS, against its ledger; whom its processes call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from real_deployment import RECIPE, SITES, RealDeployment, assert_same_as_local, first_in_path, in_file, kept_by

from mutua.federation.site_ledger import entries

pytestmark = pytest.mark.deploy

SPY = """
import os, sys, threading
place, lock = os.environ.get("MUTUA_TEST_SPY"), threading.Lock()

def told(event, given):
    if event in ("socket.connect", "socket.bind"):
        with lock, open(os.path.join(place, "sockets"), "a") as file:
            file.write(f"{event} {given[1]!r}\\n")

def keep(send):
    def sent(self, request, **more):
        body = request.read()
        with lock, open(os.path.join(place, "sent"), "ab") as file:
            file.write(len(body).to_bytes(8, "big") + body)
        return send(self, request, **more)
    return sent

if place:
    sys.addaudithook(told)
    if "supernode" in sys.orig_argv:
        import httpx
        httpx.Client.send = keep(httpx.Client.send)
"""
"""Python runs this at the start of every process of the sites and of the server."""


def pieces(path: Path) -> Iterator[bytes]:
    """The bodies of all requests."""
    with path.open("rb") as file:
        while head := file.read(8):
            yield file.read(int.from_bytes(head, "big"))


def files_in(body: bytes) -> list[tuple[int, int]]:
    """Where safetensors files may begin and end in these bytes: a length, then JSON of so many bytes."""
    found, at = [], body.find(b'{"')
    while at >= 0:
        size = int.from_bytes(body[at - 8 : at], "little") if at >= 8 else 0
        try:
            header = json.loads(body[at : at + size])
            ends = [told["data_offsets"][1] for name, told in header.items() if name != "__metadata__"]
            found.append((at - 8, at + size + max(ends, default=0)))
        except (ValueError, TypeError, KeyError, AttributeError):
            pass
        at = body.find(b'{"', at + 1)
    return found


def test_what_crosses_is_what_the_ledger_says_and_nothing_else(deployed: RealDeployment) -> None:
    for name in ("spy", "seen"):
        (deployed.place / name).mkdir()
    (deployed.place / "spy" / "sitecustomize.py").write_text(SPY)
    seen = deployed.place / "seen"
    deployed.environment = {"PYTHONPATH": first_in_path(deployed.place / "spy"), "MUTUA_TEST_SPY": str(seen)}
    deployed.prepare(RECIPE, SITES)
    deployed.start(*SITES)
    deployed.begin("run", "deploy", "run", "organiser").done()
    assert_same_as_local(deployed)
    for client in SITES:
        deployed.processes[client].end()

    bodies = list(pieces(seen / "sent"))
    crossed = [body[a:b] for body in bodies for a, b in files_in(body)]
    kept = [
        entry
        for client in SITES
        for entry in entries(deployed.site(client) / "ledger.jsonl")
        if entry.bytes and entry.verb == "train"
    ]
    assert len(kept) == 9
    by_ledger = sorted((entry.bytes, entry.sha256) for entry in kept)
    assert sorted((len(one), hashlib.sha256(one).hexdigest()) for one in crossed) == by_ledger

    messages, all_of_it = sum(entry.bytes for entry in kept), b"".join(bodies)
    print(f"{len(all_of_it)} bytes left in {len(bodies)} requests: {messages} of messages, the rest is framing")
    assert len(all_of_it) < 1.5 * messages
    for client in SITES:
        for group, arrays in kept_by(deployed, client).items():
            for name, array in arrays.items():
                assert len(array) <= 8 or array not in all_of_it, f"{group} {name}"
        for path in deployed.site(client).glob("*.npz"):
            with np.load(path) as held:
                for sample in held["x"]:
                    for stored in (sample, sample.astype(np.float32)):
                        assert stored.tobytes() not in all_of_it
    assert in_file(deployed.run_folder / "global" / "weights.safetensors")

    # Nobody but the server is called, by the server nobody, and nothing but ports of this machine is opened.
    sockets = {tuple(line.split(" ", 1)) for line in (seen / "sockets").read_text().splitlines()}
    called = {to for event, to in sockets if event == "socket.connect" and to.startswith("(")}
    opened = {at for event, at in sockets if event == "socket.bind" and at.startswith("(")}
    assert f"('127.0.0.1', {deployed.port})" in called & opened
    assert all(to.startswith(("('127.0.0.1', ", "('::1', ")) for to in called), called
    assert all(at.startswith(("('127.0.0.1', ", "('::1', ")) for at in opened), opened


def listening(pids: set[int]) -> set[tuple[str, int]]:
    """The addresses and ports at which these processes listen."""
    inodes: set[str] = set()
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(str(path.readlink()))
            except OSError:
                continue
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                host, port = fields[1].split(":")
                found.add((host, int(port, 16)))
    return found


def below(pid: int) -> set[int]:
    """A process and all that it has started."""
    found = {pid}
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found |= below(int(child))
    return found


def test_nothing_listens_but_what_is_documented(deployed: RealDeployment) -> None:
    """The server at its one port, a site at one of this machine alone; everything else is a socket in a folder."""
    deployed.prepare(RECIPE, SITES)
    deployed.start("c0")
    server = listening(below(deployed.processes["server"].process.pid))
    site = listening(below(deployed.processes["c0"].process.pid))
    assert server == {("0100007F", deployed.port)}
    assert len(site) <= 1
    assert {host for host, _ in site} <= {"0100007F"}
    place = deployed.site("c0") / "private"
    sockets = list(place.rglob("*.sock"))
    assert all(path.stat().st_mode & 0o077 == 0 for path in (place, *sockets))
