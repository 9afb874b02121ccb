"""What the organiser runs: the SuperLink, and a run that it watches."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mutua.deploy.agreement import CA
from mutua.deploy.flower_control import (
    ServerGone,
    control,
    listens,
    nodes,
    register_keys,
    run_status,
    start_run,
    stop_run,
)
from mutua.deploy.flower_processes import flower_environment, program
from mutua.deploy.flower_signatures import KEYS_VARIABLE, REFUSED
from mutua.deploy.keys import expires
from mutua.deploy.organiser import Organiser, certify
from mutua.deploy.supervisor import Kept, NewLines, Stop, _stop
from mutua.errors import InputError, RunError, suggest
from mutua.runs.folder import RunFolder
from mutua.support.files import write_file
from mutua.support.folders import FolderLock
from mutua.support.growing_files import EventLog

APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "mutua-deployment"
version = "1.0.0"
description = "A run of a mutua deployment"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "mutua"

[tool.flwr.app.components]
serverapp = "mutua_deployment:server"
clientapp = "mutua_deployment:client"

[tool.flwr.app.config]
deployment = ""
run = ""
join = ""
"""
CODE = '''\
"""What Flower runs: at the server this; a site runs what it has installed itself."""

try:
    from mutua.deploy.flower_server_app import app as server
except ImportError:
    server = None
from mutua.engines.flower_client_app import app as client
'''
STARTS_WITHIN = 90.0
RENEW_DAYS = 40
"""So long before its end a certificate is made anew; a site says so 30 days before."""


def serve_forever(organiser: Organiser, say: Callable[[str], None], bind: str | None = None) -> None:
    """Keep the SuperLink running, and let exactly the clients in that have a key, until a signal comes."""
    lock = FolderLock(organiser.private, "DIR")
    host = bind or _bound(organiser.host)
    link = Kept(
        "the server",
        program(
            "superlink",
            "--host",
            host,
            "--port",
            str(organiser.port),
            "--ssl-ca-certfile",
            str(organiser.path / CA),
            "--ssl-certfile",
            str(organiser.private / "server.pem"),
            "--ssl-keyfile",
            str(organiser.private / "server.key"),
            "--enable-supernode-auth",
            "--database",
            str(organiser.private / "superlink.db"),
        ),
        flower_environment(organiser.private / "flower")
        | {KEYS_VARIABLE: str(organiser.path.absolute() / "keys")},
        organiser.private / "logs" / "server.log",
        say,
    )
    if listens("127.0.0.1", organiser.port):
        lock.release()
        raise InputError(
            f"server: port {organiser.port} of this machine is in use; stop what uses it, or init another port"
        )
    _renew(organiser, say)
    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, _stop) for number in handled}
    try:
        starts, known, here = 0, b"", set[str]()
        log = NewLines(link.log)
        while True:
            if _renew(organiser, say):
                link.end()  # it is started again with the new one
            link.watch()
            for line in log.take():
                if line.startswith(REFUSED.encode()):
                    say(line.decode(errors="replace"))
            if link.starts != starts and link.process is not None:
                if not listens("127.0.0.1", organiser.port, 0.5):
                    if time.monotonic() - link._began > STARTS_WITHIN:
                        raise RunError(f"the server does not listen: {link.last_words()}")
                    continue
                starts, known = link.starts, b""
                say(f"listening on {host}:{organiser.port}, reached by sites as {organiser.agreed.file.server}")
            listed = repr(sorted(organiser.keys().items())).encode()
            if link.process is not None and starts == link.starts:
                with suppress(ServerGone), control(organiser.port, organiser.path / CA) as client:
                    if listed != known:
                        new, gone = register_keys(client, organiser.keys())
                        known = listed
                        say(
                            f"let in: {', '.join(organiser.keys()) or 'nobody'}"
                            + (f"; no longer: {gone}" if gone else "")
                        )
                        if starts == 1 and new:
                            say(f"now hand out the folders in {organiser.path / 'hand-out'}")
                            say(f"then: mutua deploy run {organiser.path}")
                    here = _tell_who(organiser, client, here, say)
            time.sleep(1.0)
    except Stop:
        say("stopping; the same command goes on, and so does a run: mutua deploy run")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        link.end()
        lock.release()


def _bound(host: str) -> str:
    """Where to listen: on this machine alone if sites reach it as that, else on all of its addresses."""
    return "127.0.0.1" if host in ("127.0.0.1", "localhost") else "0.0.0.0"


def _renew(organiser: Organiser, say: Callable[[str], None]) -> bool:
    """Make the server a new certificate before its own ends."""
    if expires((organiser.private / "server.pem").read_bytes()) > datetime.now(UTC) + timedelta(days=RENEW_DAYS):
        return False
    certify(organiser.path, organiser.authority(), organiser.host)
    say("the server's certificate was about to end, or had: there is a new one")
    return True


def _tell_who(organiser: Organiser, client: Any, before: set[str], say: Callable[[str], None]) -> set[str]:
    here = online(organiser, client)
    for name in sorted(here ^ before):
        say(f"{name} {'is here' if name in here else 'has gone'}")
    return here


def online(organiser: Organiser, client: Any) -> set[str]:
    """The clients that are connected."""
    owners = {key: name for name, key in organiser.keys().items()}
    return {owners[node.key] for node in nodes(client) if node.status == "online" and node.key in owners}


def unfinished_run(organiser: Organiser) -> Path | None:
    """The newest run that has begun and is not finished."""
    runs = sorted(path for path in organiser.path.glob("runs/*") if path.is_dir() and RunFolder.begun(path))
    return runs[-1] if runs and not RunFolder(runs[-1]).finished else None


def join_and_watch(organiser: Organiser, client: str, say: Callable[[str], None], run: str | None = None) -> Path:
    """Let a client that took no part join the newest run that is over, or this one."""
    if client not in [*organiser.keys()]:
        known = suggest(client, sorted(organiser.keys()), f"first: mutua deploy add {organiser.path} {client}")
        raise InputError(f"CLIENT: '{client}' has no key here; {known}")
    over = sorted(path for path in organiser.path.glob("runs/*") if path.is_dir() and RunFolder(path).finished)
    folder = next((path for path in reversed(over) if run in (None, path.name)), None)
    if folder is None:
        there = suggest(run or "", [path.name for path in over])
        raise InputError(f"--run: no finished run {run or 'to join'}; {there}")
    _watch(organiser, folder, say, f"bringing {client} the global of {folder}", join=client)
    return folder


def run_and_watch(organiser: Organiser, say: Callable[[str], None], *, new: bool = False) -> Path:
    """Begin a run, or go on with the one that was stopped, and tell what happens until it ends."""
    folder = None if new else unfinished_run(organiser)
    goes_on = folder is not None
    if folder is None:
        folder = organiser.path / "runs" / f"{organiser.agreed.recipe.name}-{datetime.now():%Y%m%d-%H%M%S}"
    folder.parent.mkdir(exist_ok=True)
    _watch(organiser, folder, say, f"{'going on with' if goes_on else 'beginning'} {folder}; waiting for sites")
    return folder


def _watch(organiser: Organiser, folder: Path, say: Callable[[str], None], begins: str, join: str = "") -> None:
    try:
        _follow(organiser, folder, say, begins, join)
    except ServerGone as gone:
        raise RunError(
            f"{gone}; start it again if it has ended: mutua deploy server {organiser.path}; "
            f"to go on: mutua deploy run {organiser.path}"
        ) from None


def _follow(organiser: Organiser, folder: Path, say: Callable[[str], None], begins: str, join: str) -> None:
    if not listens("127.0.0.1", organiser.port):
        raise InputError(
            f"DIR: the server is not running; in another terminal: mutua deploy server {organiser.path}"
        )
    app = organiser.private / "app"
    app.mkdir(exist_ok=True)
    write_file(app / "pyproject.toml", APP)
    write_file(app / "mutua_deployment.py", CODE)
    log = EventLog(folder.with_name(f"{folder.name}.log"))
    seen = len(log.read())
    events = EventLog(folder / "events.jsonl")
    told = len(events.read()) if events.path.is_file() else 0
    with control(organiser.port, organiser.path / CA) as client:
        settings = {"deployment": str(organiser.path.absolute()), "run": str(folder.absolute()), "join": join}
        number = start_run(client, app, settings)
        say(begins)
        try:
            while True:
                ended = False
                for entry in (entries := log.read())[seen:]:
                    seen = len(entries)
                    if entry["event"] == "note":
                        say(str(entry["text"]))
                    elif entry["event"] == "failed":
                        how = (
                            ""
                            if "to go on: " in str(entry["reason"])
                            else f"; to go on: mutua deploy run {organiser.path}"
                        )
                        raise RunError(f"{entry['reason']}{how}")
                    ended = ended or entry["event"] == "finished"
                told += _tell(events, told, say)
                if ended:
                    return
                status = run_status(client, number)
                if status is not None and status.status.startswith("finished"):
                    if any(entry["event"] == "finished" for entry in log.read()[seen:]):
                        continue
                    if not log.read()[seen:]:
                        why = status.details or status.status
                        raise RunError(f"the run ended: {why}; to go on: mutua deploy run {organiser.path}")
                time.sleep(0.5)
        except KeyboardInterrupt:
            stop_run(client, number)
            raise


def _tell(events: EventLog, told: int, say: Callable[[str], None]) -> int:
    """Tell what is new in a run's events; how many there were."""
    if not events.path.is_file():
        return 0
    new = events.read()[told:]
    for entry in new:
        for text in _words(entry):
            say(text)
    return len(new)


def _words(entry: dict[str, Any]) -> Iterator[str]:
    match entry["event"]:
        case "round":
            yield f"round {entry['round']}: {', '.join(entry['clients'])}"
        case "trained":
            yield f"  {entry['client']}: {entry['bytes']} bytes, {entry['seconds']:.1f} s"
        case "rejected" | "retried":
            yield f"  {entry['client']}: {entry['reason']}"
        case "ended":
            numbers = {name: value for name, value in entry["accuracy"].items() if value is not None}
            if numbers:
                yield "  " + ", ".join(
                    f"accuracy of {name}: {100 * value:.1f} %" for name, value in numbers.items()
                )


def standing(organiser: Organiser) -> str:
    """How the newest run stands, in a line."""
    runs = sorted(path for path in organiser.path.glob("runs/*") if path.is_dir() and RunFolder.begun(path))
    if not runs:
        return f"runs: none yet; to begin one: mutua deploy run {organiser.path}"
    newest = RunFolder(runs[-1])
    if newest.finished:
        return f"newest run: {newest.path}, finished; next: mutua report {newest.path}"
    done = newest.checkpoints.newest
    reached = "no round" if done is None else f"round {max(done.round, 0)}"
    return f"newest run: {newest.path}, {reached} of {organiser.agreed.recipe.rounds} complete"
