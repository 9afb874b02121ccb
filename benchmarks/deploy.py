"""What a round of a deployment costs beyond the sites' own work, beside a bare Flower app, in one run.

Three sites and a server on this machine, with TLS and keys. The bare app has Flower's own programs, a ClientApp
that sends back what it gets, and messages of the same size. Of mutua's rounds the longest of the sites' own work
is taken off. Both are started, warmed up and measured one after the other, several times in turn.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from mutua.deploy import server
from mutua.deploy.agreement import CA
from mutua.deploy.flower_control import control, free_port, listens, nodes, register_keys, run_status, start_run
from mutua.deploy.flower_processes import FLOWER_SETTINGS
from mutua.deploy.organiser import Organiser
from mutua.support.growing_files import EventLog

SITES = ("c0", "c1", "c2")
MOST_RATIO, MOST_SECONDS = 1.2, 5.0
WARM_UP = 2
"""Rounds that are not counted."""
RECIPE: dict[str, Any] = {
    "name": "bench",
    "data": {"name": "mnist5k", "samples_per_client": 40},
    "partition": {"kind": "iid", "clients": len(SITES)},
    "models": {"global": "mlp", "clients": "linear"},
    "method": "fml",
    "batch_size": 40,
}
BARE = """\
import time
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()

@client.query()
def echo(message, context):
    return Message(message.content, reply_to=message)

@server.main()
def main(grid, context):
    config = context.run_config
    while len(nodes := [node.node_id for node in grid.get_nodes()]) < 3:
        time.sleep(0.2)
    body = Array(dtype="uint8", shape=(config["bytes"],), stype="bytes", data=bytes(config["bytes"]))
    with open(config["times"], "a") as file:
        for _ in range(config["rounds"]):
            print(time.time(), file=file, flush=True)
            content = RecordDict({"body": ArrayRecord({"body": body})})
            waiting = set(grid.push_messages([Message(content, node, "query") for node in nodes]))
            while waiting:
                for reply in grid.pull_messages(list(waiting)):
                    waiting.discard(reply.metadata.reply_to_message_id)
                if waiting:
                    time.sleep(0.2)
        print(time.time(), file=file, flush=True)
"""


@contextmanager
def running(place: Path, programs: Sequence[tuple[str, Sequence[object], dict[str, str]]]) -> Iterator[None]:
    """These programs, until the block ends; each has a log."""
    made = []
    try:
        for name, words, environment in programs:
            with (place / f"{name}.log").open("ab") as log:
                made.append(
                    subprocess.Popen(
                        [str(word) for word in words],
                        stdout=log,
                        stderr=log,
                        stdin=subprocess.DEVNULL,
                        env=os.environ | environment,
                        start_new_session=True,
                    )
                )
        yield
    finally:
        for process in reversed(made):
            process.terminate()
        for process in made:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until(true: Callable[[], object], what: str, seconds: float = 600) -> None:
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            sys.exit(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.5)


def mutua(*words: object) -> list[object]:
    return [sys.executable, "-m", "mutua", *words]


def deployment(place: Path, rounds: int) -> Organiser:
    """A deployment in this folder; its sites take their folders."""
    (place / "recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "rounds": rounds}))
    given = ("--recipe", place / "recipe.yaml", "--clients", ",".join(SITES), "--simulate")
    host = f"127.0.0.1:{free_port()}"
    words = mutua("deploy", "init", place / "organiser", *given, "--host", host)
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)
    for site in SITES:
        shutil.move(place / "organiser" / "hand-out" / site, place / site)
    return Organiser.open(place / "organiser")


def ours(place: Path, rounds: int) -> tuple[list[float], int]:
    """Seconds of each round beyond the sites' own work, and the bytes of a message."""
    organiser = deployment(place, rounds + WARM_UP)
    programs = [("server", mutua("deploy", "server", organiser.path), {})]
    programs += [(site, mutua("deploy", "client", place / site), {}) for site in SITES]
    with running(place, programs):
        wait_until(lambda: all_here(organiser), "all sites here")
        folder = server.run_and_watch(organiser, lambda text: None)
    events = EventLog(folder / "events.jsonl").read()
    began = [datetime.fromisoformat(e["time"]).timestamp() for e in events if e["event"] == "round"]
    [size] = {e["bytes"] for e in events if e["event"] == "trained"}
    found = []
    for number in range(WARM_UP, len(began) - 1):
        work = max(own_work(place / site, number + 1) for site in SITES)
        found.append(began[number + 1] - began[number] - work)
    return found, size


def own_work(site: Path, round: int) -> float:
    """How long a site has worked in this round."""
    log = (site / "private" / "logs" / "worker.log").read_text()
    return sum(float(found) for found in re.findall(rf"train {round}: done, \d+ bytes, ([\d.]+) s", log))


def all_here(organiser: Organiser) -> bool:
    if not listens("127.0.0.1", organiser.port):
        return False
    with control(organiser.port, organiser.path / CA) as client:
        return server.online(organiser, client) == set(SITES)


def bare(place: Path, rounds: int, size: int) -> list[float]:
    """Seconds of each round of a Flower app that does nothing."""
    organiser = deployment(place, 1)  # for its certificates and keys
    tools = Path(sys.executable).parent
    quiet = {name: FLOWER_SETTINGS[name] for name in FLOWER_SETTINGS if "POLL" not in name}
    quiet |= {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    certificates = ("--ssl-ca-certfile", organiser.path / CA)
    certificates += ("--ssl-certfile", organiser.private / "server.pem")
    certificates += ("--ssl-keyfile", organiser.private / "server.key")
    link = [tools / "flower-superlink", "--host", "127.0.0.1", "--port", organiser.port, *certificates]
    link += ["--enable-supernode-auth", "--database", place / "link.db"]
    programs = [("link", link, quiet | {"FLWR_HOME": str(place / "home")})]
    for site in SITES:
        node = [tools / "flower-supernode", "--superlink", f"127.0.0.1:{organiser.port}"]
        node += ["--root-certificates", organiser.path / CA, "--host", "127.0.0.1", "--port", free_port()]
        node += ["--auth-supernode-private-key", place / site / "client.key"]
        programs.append((site, node, quiet | {"FLWR_HOME": str(place / f"home-{site}")}))
    app, times = place / "app", place / "times"
    app.mkdir()
    (app / "pyproject.toml").write_text(
        server.APP.replace("mutua_deployment", "bare").replace(
            'deployment = ""\nrun = ""',
            f'bytes = {size}\nrounds = {rounds + WARM_UP}\ntimes = "{times}"',
        )
    )
    (app / "bare.py").write_text(BARE)
    with running(place, programs[:1]):
        wait_until(lambda: listens("127.0.0.1", organiser.port), "the SuperLink")
        with control(organiser.port, organiser.path / CA) as client:
            register_keys(client, organiser.keys())
            with running(place, programs[1:]):
                wait_until(lambda: len([n for n in nodes(client) if n.status == "online"]) == 3, "the SuperNodes")
                number = start_run(client, app, {})

                def ended() -> bool:
                    status = run_status(client, number)
                    return status is not None and status.status.startswith("finished")

                wait_until(ended, "the bare run", 1800)
    began = [float(line) for line in times.read_text().split()]
    return [b - a for a, b in zip(began[WARM_UP:], began[WARM_UP + 1 :], strict=False)]


def main() -> None:
    """Both in turn; fails if mutua takes longer than it may."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--times", type=int, default=3)
    options.add_argument("--no-check", action="store_true", help="on a busy machine: only show")
    given = options.parse_args()
    mine: list[float] = []
    theirs: list[float] = []
    size = 0
    for number in range(given.times):
        with tempfile.TemporaryDirectory(prefix="mutua-bench-") as folder:
            for name in ("ours", "bare"):
                (Path(folder) / name).mkdir()
            rounds, size = ours(Path(folder) / "ours", given.rounds)
            mine += rounds
            beside = bare(Path(folder) / "bare", given.rounds, size)
            theirs += beside
        middle = statistics.median(rounds), statistics.median(beside)
        print(
            f"{number + 1} of {given.times}: mutua {middle[0]:.2f} s, bare Flower {middle[1]:.2f} s per round",
            flush=True,
        )
    own, other = statistics.median(mine), statistics.median(theirs)
    low, high = min(mine), max(mine)
    print(f"messages of {size} bytes, {len(mine)} and {len(theirs)} rounds, {len(SITES)} sites")
    print(f"seconds per round beyond the sites' own work: mutua {own:.2f} ({low:.2f} to {high:.2f})")
    print(f"bare Flower {other:.2f} ({min(theirs):.2f} to {max(theirs):.2f}); ratio {own / other:.2f}")
    if not given.no_check and (own > MOST_RATIO * other or own > MOST_SECONDS):
        sys.exit(f"more than {MOST_RATIO} times the bare one, or than {MOST_SECONDS:.0f} s")


if __name__ == "__main__":
    main()
