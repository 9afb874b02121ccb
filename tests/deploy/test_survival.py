"""Deployments in which something breaks: they end with the bytes of a run in which nothing did."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import yaml
from real_deployment import RECIPE, SITES, RealDeployment, assert_same_as_local, wait_for_round, worked
from safetensors.torch import load_file

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


def test_a_site_that_comes_late_or_is_absent_or_refuses_does_not_stop_the_others(deployed: RealDeployment) -> None:
    """c2 is late: its model is wrong at first. c1 is away for some rounds. c0 lets two messages leave."""
    deployed.prepare({**RECIPE, "rounds": 12, "evaluate_every": 12}, SITES, "--wait", "0")
    size = 4 * parameters(deployed.place / "local")
    deployed.settle("c0", lambda told: told.update(policy={"bytes_in_all": 2 * (size + 4000)}))
    right = yaml.safe_load((deployed.site("c2") / "client.yaml").read_text())["model"]
    deployed.settle("c2", lambda told: told.update(model="lenet6"))
    deployed.start(*SITES)
    deployed.processes["c2"].wait_for("wrong: .*lenet6.*\n.*mend it")
    run = deployed.begin("run", "deploy", "run", "organiser")
    wait_for_round(deployed, "c1", 1)
    deployed.settle("c2", lambda told: told.update(model=right))
    wait_for_round(deployed, "c2", 2)
    deployed.processes["c1"].end(signal.SIGKILL)
    before = worked(deployed, "c1")
    wait_for_round(deployed, "c2", before + 2)
    deployed.begin("c1-again", "deploy", "client", deployed.site("c1"))
    said = run.done(900)
    assert "c2: refused: its data, model or settings are wrong" in said
    assert re.search(
        r"c0: .*the site refused: policy.bytes_in_all: \d+ bytes would leave after \d+; at most", said
    )
    assert re.search(r"round 3: refused: policy.bytes_in_all: .*; nothing is sent", deployed.processes["c0"].said)
    for client in ("c1", "c2"):
        rounds = rounds_of(deployed, client)
        assert rounds[-1] == 12
        assert len(rounds) < 12
    assert not {before + 2} & set(rounds_of(deployed, "c1"))
    assert rounds_of(deployed, "c0") == [1, 2]


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


def rounds_of(made: RealDeployment, client: str) -> list[int]:
    """The rounds in which a site has sent a message."""
    sent = entries(made.site(client) / "ledger.jsonl")
    return sorted({entry.round for entry in sent if entry.verb == "train" and entry.bytes})


def parameters(run: Path) -> int:
    """How many numbers the global of a run has."""
    return sum(array.numel() for array in load_file(run / "global" / "weights.safetensors").values())


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
