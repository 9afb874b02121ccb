"""mutua's methods in a Flower federation that is there already: the example app, by `flwr run`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from real_deployment import RECIPE, SITES, RealDeployment, Running, assert_same_as_local, free_port

pytestmark = pytest.mark.deploy

APP = Path(__file__).parents[2] / "examples" / "flower-app"
TOOLS = Path(sys.executable).parent


def start(made: RealDeployment, name: str, *words: object) -> Running:
    """One of Flower's own programs, which has no word of mutua."""
    out = made.place / f"{name}.out"
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    home = {"FLWR_HOME": str(made.place / f"home-{name}"), "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}"}
    with out.open("wb") as file:
        process = subprocess.Popen(
            [str(word) for word in words],
            cwd=made.place,
            env=os.environ | quiet | home,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    made.processes[name] = Running(process, out)
    return made.processes[name]


def test_flwr_run_ends_with_the_same_bytes(deployed: RealDeployment) -> None:
    deployed.prepare({**RECIPE, "rounds": 2, "evaluate_every": 2}, SITES)
    port = free_port()
    start(deployed, "link", TOOLS / "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", port)
    time.sleep(5)
    for site in SITES:
        words = ("--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1", "--port", free_port())
        told = ("--node-config", f'site="{deployed.site(site)}"')
        start(deployed, site, TOOLS / "flower-supernode", *words, *told)
    home = deployed.place / "home-run"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "mine"\n\n[superlink.mine]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    settings = f'deployment="{deployed.place / "organiser"}" run="one"'
    said = start(deployed, "run", TOOLS / "flwr", "run", APP, "--run-config", settings).done()
    assert re.search(r"[Rr]un", said)
    log = deployed.place / "organiser" / "runs" / "one.log"
    until = time.monotonic() + 600
    while not log.is_file() or '"finished"' not in log.read_text():
        assert time.monotonic() < until, log.read_text() if log.is_file() else deployed.processes["link"].said
        assert not log.is_file() or '"failed"' not in log.read_text(), log.read_text()
        time.sleep(1)
    assert_same_as_local(deployed)
