"""Deployments in which something breaks: they end with the bytes of a run in which nothing did."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from real_deployment import RECIPE, SITES, RealDeployment, assert_same_as_local, wait_for_round, worked

from mutua.federation.site_ledger import entries

pytestmark = pytest.mark.deploy

LONGER = {**RECIPE, "rounds": 5, "evaluate_every": 5}


def test_a_site_that_is_killed_goes_on_where_it_was(deployed: RealDeployment) -> None:
    deployed.prepare(LONGER, SITES, "--wait", "400")
    deployed.start(*SITES)
    run = deployed.begin("run", "deploy", "run", "organiser")
    wait_for_round(deployed, "c1", 2)
    deployed.processes["c1"].end(signal.SIGKILL)
    deployed.begin("c1-again", "deploy", "client", deployed.site("c1"))
    run.done(900)
    assert_same_as_local(deployed)


def test_a_server_that_is_killed_goes_on_from_its_checkpoint(deployed: RealDeployment) -> None:
    deployed.prepare(LONGER, SITES)
    deployed.start(*SITES)
    run = deployed.begin("run", "deploy", "run", "organiser")
    wait_for_round(deployed, "c0", 3)
    deployed.processes["server"].end(signal.SIGKILL)
    run.process.wait(120)
    assert "to go on: mutua deploy run" in run.said
    again = deployed.begin("server-again", "deploy", "server", "organiser")
    again.wait_for("let in: ")
    said = deployed.begin("run-again", "deploy", "run", "organiser").done(900)
    assert "going on with" in said
    assert_same_as_local(deployed)


def test_a_site_that_comes_late_takes_part(deployed: RealDeployment) -> None:
    deployed.prepare(LONGER, SITES, "--wait", "0")
    deployed.start("c0", "c1")
    run = deployed.begin("run", "deploy", "run", "organiser")
    wait_for_round(deployed, "c0", 1)
    deployed.begin("c2", "deploy", "client", deployed.site("c2"))
    said = run.done(900)
    assert "c2: it is not here" in said
    assert worked(deployed, "c2") == 5


def test_a_site_that_is_added_after_a_run_joins_it(deployed: RealDeployment) -> None:
    deployed.prepare({**RECIPE, "rounds": 1, "evaluate_every": 1}, SITES)
    deployed.start(*SITES)
    deployed.begin("run", "deploy", "run", "organiser").done()
    deployed.command("deploy", "add", "organiser", "late")
    (deployed.place / "organiser" / "hand-out" / "late").rename(deployed.site("late"))
    shutil.copy(deployed.site("c0") / "train.npz", deployed.site("late") / "data.npz")
    deployed.begin("late", "deploy", "client", deployed.site("late"))
    deployed.processes["server"].wait_for("late is here")
    said = deployed.begin("join", "deploy", "join", "organiser", "late").done()
    assert "late has joined" in said
    said = deployed.command("deploy", "benefit", deployed.site("late"))
    assert "serve: " in said
    [entry] = entries(deployed.site("late") / "ledger.jsonl")
    assert (entry.verb, entry.bytes) == ("join", 0)


def test_nothing_is_left_running(deployed: RealDeployment) -> None:
    """Whatever a site has started ends with it, also when it is killed."""
    deployed.prepare(RECIPE, SITES)
    deployed.start("c0")
    folder = str(deployed.site("c0"))
    deployed.processes["c0"].end(signal.SIGKILL)
    until = time.monotonic() + 30
    while (left := processes_of(folder)) and time.monotonic() < until:
        time.sleep(0.5)
    assert left == []


def processes_of(folder: str) -> list[int]:
    """The processes whose command line or environment names this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            told = (path / "cmdline").read_bytes() + (path / "environ").read_bytes()
        except OSError:
            continue
        if folder.encode() in told and int(path.name) != os.getpid():
            found.append(int(path.name))
    return found
