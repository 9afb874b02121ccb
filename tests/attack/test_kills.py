"""Killed at random: the run itself, one of its workers, or all of its processes; it ends in the same bytes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from killing import (
    PAPERS,
    RECIPE,
    begin,
    children,
    counting,
    forked,
    kill_and_go_on,
    left,
    onward,
    recipe_of,
    shot,
    waited,
)
from mutua import Federation, Recipe
from mutua.methods import base
from mutua.support.processes import can_fork

pytestmark = [pytest.mark.long, pytest.mark.skipif(not can_fork(), reason="kills processes that it forks")]

Figure = Callable[[str, int, str], None]

SEED = 23
SHARES = {"public": {"share": 0.3}}
SEEDED = {"clip": 1.0, "noise": 0.5, "randomness": "seeded"}
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"{name}, plain": (name, {}) for name in base.method_names()},
    "fedavg, adam and cosine": (
        "fedavg",
        {"optimizer": {"name": "adam", "lr": {"schedule": "cosine", "start": 0.01, "end": 0.001}}},
    ),
    "fedavg, trimmed mean of dirichlet clients": (
        "fedavg",
        {
            "method": {"name": "fedavg", "combine": {"name": "trimmed-mean", "share": 0.2}},
            "partition": {"kind": "dirichlet", "clients": 4, "alpha": 1.0, "min_size": 5},
            "client_fraction": 1.0,
        },
    ),
    "fml, krum and faults": (
        "fml",
        {
            "method": {"name": "fml", "combine": "krum", "max_norm_ratio": 50},
            "faults": {"dropout": [{"probability": 0.2}], "corruption": [{"kind": "nan", "clients": ["c1"]}]},
            "client_fraction": 1.0,
        },
    ),
    "fml, private clients": ("fml", {"privacy": {"level": "client", **SEEDED}, **RECIPE}),
    "fedavg, private examples": (
        "fedavg",
        {
            "privacy": {"level": "example", **SEEDED},
            "steps": 2,
            "method": {"name": "fedavg", "weights": "uniform"},
        },
    ),
    "finetuned, opted out and augmented": ("finetuned", {"opt_out": {"samples": 0.3}, "augment": ["crop"]}),
    "fedh2l, ring": ("fedh2l", {"topology": "ring", **SHARES, "evaluate_every": 2}),
    "fml, deadline and best": (
        "fml",
        {"deadline": 1000, "selection": "best", "checkpoints": {"seconds": 0, "keep": 1}},
    ),
    "fedprox, bfloat16 and few checkpoints": (
        "fedprox",
        {"precision": "bfloat16", "checkpoints": {"seconds": 0, "every": 2}},
    ),
    "fml, shards and a budget": (
        "fml",
        {
            "partition": {"kind": "shards", "clients": 3, "shards_per_client": 2},
            "steps": 2,
            "budget": {"bytes_up": 10**9},
        },
    ),
}
KILLS = 6
"""Of each of them."""
MOMENTS = 25
"""Of each of the papers' methods."""


def test_there_are_150_kills_and_more() -> None:
    """Each test counts those that met a process alive, and fails if it has fewer."""
    assert KILLS * len(OPTIONS) + MOMENTS * len(PAPERS) + KILLS >= 150


def made(name: str) -> Recipe:
    method, changes = OPTIONS[name]
    return recipe_of(method, **changes)


class Attack:
    """A recipe's run under attack: how long it takes, what it must leave, and what was done to it."""

    def __init__(self, recipe: Recipe, place: Path, rng: random.Random) -> None:
        self.recipe, self.place, self.rng = recipe, place, rng
        self.federation: Federation = recipe.federation()
        self.told = place / "told.txt"
        self.killed: Counter[str] = Counter()
        began = time.monotonic()
        assert waited(forked(lambda: self.go(place / "whole"), self.told)) == 0, self.told.read_text()
        self.seconds = time.monotonic() - began
        self.expected = left(place / "whole")

    def go(self, run: Path) -> None:
        onward(self.recipe, run, self.federation, workers=2)

    def strike(self, run: Path, target: str) -> bool:
        """Let the run go on and kill at some moment; whether it lived until then."""
        child = forked(lambda: self.go(run), self.told)
        until = time.monotonic() + self.seconds
        while target == "worker" and not children(child) and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(self.rng.uniform(0, self.seconds / (2 if target == "worker" else 1)))
        if target == "worker":
            victims = children(child)
            alive = bool(victims) and shot(self.rng.choice(victims))
            code = waited(child)
        else:
            with suppress(ProcessLookupError):  # it may have no group of its own yet
                (os.killpg if target == "group" else os.kill)(child, signal.SIGKILL)
            code = waited(child)
            alive = code == -signal.SIGKILL
        assert code in ((0,) if target == "worker" else (0, -signal.SIGKILL)), self.told.read_text()
        self.killed[target] += alive
        return alive

    def once(self, number: int) -> None:
        """Kill, perhaps again on the way, go on to the end, and compare."""
        run = self.place / str(number)
        target = ("run", "worker", "group")[number % 3]
        if not self.strike(run, target):
            self.seconds *= 0.9  # it came too late
        if number % 2:
            self.strike(run, "run")
        assert waited(forked(lambda: self.go(run), self.told)) == 0, self.told.read_text()
        assert left(run) == self.expected, (number, target)
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        for event in events:  # a dead worker is nobody's fault
            assert event["event"] != "rejected" or "worker" not in event["reason"]


@pytest.mark.parametrize("name", OPTIONS)
def test_killed_at_random(name: str, tmp_path: Path, figure: Figure) -> None:
    attack = Attack(made(name), tmp_path, random.Random(f"{SEED} {name}"))
    number = 0
    while sum(attack.killed.values()) < KILLS:
        assert number < 4 * KILLS, "the run is too short to be hit"
        attack.once(number)
        number += 1
    done = ", ".join(f"{count} of the {target}" for target, count in sorted(attack.killed.items()))
    figure("kills", sum(attack.killed.values()), f"{name}: {done}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """`whole("fml")`: the federation, what an unbroken run leaves, and the moments it is made of."""

    def make(method: str) -> Any:
        recipe, place = recipe_of(method), tmp_path_factory.mktemp("whole")
        federation = recipe.federation()
        begin(recipe, place / "run", federation, workers=1)
        with counting() as moments:  # after torch has loaded what it loads at first use
            begin(recipe, place / "counted", federation, workers=1)
        return federation, left(place / "run"), moments

    return make


@pytest.mark.parametrize("method", PAPERS)
def test_killed_at_25_moments(
    method: str, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    monkeypatch.setattr("mutua.engines.local.cores", lambda: 1)
    kills = kill_and_go_on(method, MOMENTS, whole, tmp_path)
    assert kills >= MOMENTS
    figure("kills", kills, f"{method}, at calls drawn among all")


def test_a_comparison_is_killed(tmp_path: Path, figure: Figure) -> None:
    """The command itself, its runs one by one, or all at once; the same command goes on."""
    rng, kills = random.Random(SEED), Counter[str]()
    tree = {**RECIPE, "method": "fml", "rounds": 20}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(tree))
    program = [sys.executable, "-m", "mutua", "compare", "r.yaml", "--methods", "fml,fedavg", "--seeds", "0,1"]

    def start(out: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*program, "--out", out, "--workers", "2"],
            cwd=tmp_path,
            start_new_session=True,
            stderr=subprocess.PIPE,
        )

    def end(process: subprocess.Popen[bytes]) -> None:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err.decode()

    end(start("whole"))
    number = -1
    while sum(kills.values()) < KILLS:
        number += 1
        assert number < 4 * KILLS, "the comparison is too short to be hit"
        process, out = start(str(number)), tmp_path / str(number)
        until = time.monotonic() + 60
        while not list(out.glob("*/checkpoints")) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 1))
        target = ("command", "run", "group")[number % 3]
        if target == "run":
            victims = children(process.pid)
            kills[target] += bool(victims) and shot(rng.choice(victims))
            process.communicate(timeout=300)
        else:
            if process.poll() is None:
                (os.killpg if target == "group" else os.kill)(process.pid, signal.SIGKILL)
            process.communicate(timeout=300)
            kills[target] += process.returncode == -signal.SIGKILL
        until = time.monotonic() + 60
        while (again := start(str(number))) and again.wait() == 2 and time.monotonic() < until:
            assert b"in use by another run" in (again.stderr.read() if again.stderr else b"")
            time.sleep(0.2)  # runs that outlived the command are saving themselves
        assert again.returncode == 0, again.stderr and again.stderr.read().decode()
        for run in ("fml-0", "fml-1", "fedavg-0", "fedavg-1"):
            assert left(out / run) == left(tmp_path / "whole" / run), (number, run)
    figure("kills", sum(kills.values()), f"a comparison: {dict(kills)}")
