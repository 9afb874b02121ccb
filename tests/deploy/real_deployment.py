"""A real deployment on loopback: the organiser's and the sites' commands as processes, all ended by their ids."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from mutua.federation.saved_state import decode_state
from mutua.federation.site_ledger import entries

pytest.importorskip("flwr", reason="Flower is not installed")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def first_in_path(folder: Path) -> str:
    """PYTHONPATH with this folder first."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))


@dataclass
class Running:
    """A command that runs; what it has said so far is in a file."""

    process: subprocess.Popen[bytes]
    out: Path

    @property
    def said(self) -> str:
        return self.out.read_text()

    def wait_for(self, pattern: str, seconds: float = 300) -> str:
        """Until it has said this."""
        until = time.monotonic() + seconds
        while not re.search(pattern, self.said):
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.said}"
            assert time.monotonic() < until, f"it has not said {pattern!r} in {seconds} s: {self.said}"
            time.sleep(0.2)
        return self.said

    def done(self, seconds: float = 600) -> str:
        """Until it has ended well."""
        code = self.process.wait(seconds)
        assert code == 0, self.said
        return self.said

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@dataclass
class RealDeployment:
    """The commands of an organiser and its sites in one folder."""

    place: Path
    processes: dict[str, Running] = field(default_factory=dict)
    within: Callable[[str], list[str]] = lambda name: []
    """What is typed before a command, by who types it: a site, or else the organiser."""
    environment: dict[str, str] = field(default_factory=dict)
    """More variables for what keeps running: sites, server, run."""
    host: str = "127.0.0.1"

    def command(self, *words: object, code: int = 0) -> str:
        """A command that ends by itself."""
        done = subprocess.run(
            [*self.within("organiser"), sys.executable, "-m", "mutua", *map(str, words)],
            cwd=self.place,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def begin(self, name: str, *words: object) -> Running:
        """A command that runs until it is ended."""
        out = self.place / f"{name}.out"
        with out.open("wb") as file:
            process = subprocess.Popen(
                [*self.within(name), sys.executable, "-m", "mutua", *map(str, words)],
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | self.environment,
            )
        self.processes[name] = Running(process, out)
        return self.processes[name]

    def prepare(self, recipe: dict[str, object], clients: Sequence[str], *more: object) -> None:
        """Run the recipe here, for comparison, and make a deployment of it; each site takes its folder."""
        (self.place / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        self.command("run", "recipe.yaml", "--out", "local", "--workers", "1", "--json")
        self.port = free_port()
        host = f"{self.host}:{self.port}"
        given = ("--recipe", "recipe.yaml", "--clients", ",".join(clients), "--host", host, "--simulate", *more)
        self.command("deploy", "init", "organiser", *given)
        for client in clients:
            shutil.move(self.place / "organiser" / "hand-out" / client, self.site(client))

    def site(self, client: str) -> Path:
        return self.place / f"site-{client}"

    def start(self, *clients: str) -> None:
        """The server, and these sites; they are connected when this returns."""
        server = self.begin("server", "deploy", "server", "organiser")
        server.wait_for("let in: ")
        for client in clients:
            self.begin(client, "deploy", "client", self.site(client))
        for client in clients:
            server.wait_for(f"{client} is here")

    def settle(self, client: str, change: Callable[[dict[str, object]], None]) -> None:
        """Change a site's settings."""
        path = self.site(client) / "client.yaml"
        told = yaml.safe_load(path.read_text())
        change(told)
        path.write_text(yaml.safe_dump(told))

    @property
    def run_folder(self) -> Path:
        [found] = [path for path in (self.place / "organiser" / "runs").iterdir() if path.is_dir()]
        return found

    def close(self) -> None:
        for running in reversed(self.processes.values()):
            running.end()


NARROW = {"name": "mlp", "width": 0.1}
RECIPE = {
    "name": "trial",
    "data": {"name": "mnist5k", "samples_per_client": 40},
    "partition": {"kind": "iid", "clients": 3},
    "models": {"global": NARROW, "clients": [NARROW, "lenet5", "cnn1"]},
    "method": "fml",
    "rounds": 3,
    "batch_size": 20,
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "evaluate_every": 3,
}
"""Three sites with three architectures."""
SITES = ("c0", "c1", "c2")


def kept_by(made: RealDeployment, client: str) -> dict[str, dict[str, bytes]]:
    """By group, the arrays of a site's newest state, as bytes; what has no name of its own is left out."""
    newest = sorted((made.site(client) / "state").glob("*/clients/*/*.safetensors"))[-1]
    state, _, _ = decode_state(newest)
    return {
        group: {name: array.numpy().tobytes() for name, array in arrays.items()}
        for group, arrays in state.items()
        if group.isidentifier() and arrays
    }


def in_file(path: Path) -> dict[str, bytes]:
    """The arrays of a file, as bytes."""
    return {name: array.numpy().tobytes() for name, array in load_file(path).items()}


def assert_same_as_local(made: RealDeployment, sites: Sequence[str] = SITES) -> None:
    """The global, what every site keeps, and the rows of the ledger: the bytes of a run on one machine."""
    local, run = made.place / "local", made.run_folder
    if (local / "global").exists():
        mine, theirs = (in_file(folder / "global" / "weights.safetensors") for folder in (local, run))
        assert mine == theirs
    assert (local / "ledger.csv").read_bytes() == (run / "ledger.csv").read_bytes()
    for client in sites:
        own = {path.stem: in_file(path) for path in (local / "clients" / client).glob("*.safetensors")}
        own.pop("predictor", None)
        assert kept_by(made, client) == own


def worked(made: RealDeployment, client: str) -> int:
    """The last round that a site has answered."""
    path = made.site(client) / "ledger.jsonl"
    return max((entry.round for entry in entries(path) if entry.verb == "train"), default=0)


def wait_for_round(made: RealDeployment, client: str, round: int) -> None:
    until = time.monotonic() + 400
    while worked(made, client) < round:
        assert time.monotonic() < until
        time.sleep(0.1)
