"""`mutua runs`: lists, shows and prunes."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mutua.runs.folder import RunFolder
from mutua.runs.resuming import ResumedRecorder
from mutua.support.folders import FolderLock

Command = Callable[..., Any]


def test_runs_are_listed_with_what_became_of_them(command: Command, broken_off: Path) -> None:
    command("run", "tiny.yaml", "--out", "sets/done", "--seed", "4")
    listed = json.loads(command("runs", "list", ".", "--json").out)["runs"]
    report = json.loads((broken_off.parent / "sets/done/run.json").read_text())
    assert [(r["run"], r["state"], r["round"], r["rounds"], r["seed"]) for r in listed] == [
        ("sets/done", "finished", 1, 1, 4),
        ("x", "stopped", 1, 3, 0),
    ]
    assert listed[0]["accuracy"] == report["summary"]["mean"]["predictor"]["accuracy"]
    assert listed[1]["bytes"] == sum(path.stat().st_size for path in broken_off.rglob("*") if path.is_file())
    done = command("runs", "list", ".")
    assert re.search(r"^x +fml +stopped +0 +1/3 +– ", done.out, re.MULTILINE)
    assert done.out.endswith("to continue a stopped run: mutua run --resume DIR\n")
    assert command("runs", "list", "sets").out.endswith("kB\n\n")
    assert command("runs", "list").err == "mutua: DIR: runs is not a folder; give one that holds runs\n"
    held = ResumedRecorder(broken_off)
    assert json.loads(command("runs", "show", "x", "--json").out)["state"] == "running"
    del held


def test_a_folder_that_cannot_be_read_does_not_hide_the_others(command: Command, broken_off: Path) -> None:
    """A pipe would keep its reader waiting for ever."""
    for name in ("a", "b"):
        shutil.copytree(broken_off, broken_off.with_name(name))
    (broken_off.parent / "a" / "recipe.yaml").unlink()
    os.mkfifo(broken_off.parent / "a" / "recipe.yaml")
    (broken_off.parent / "b" / "run.json").write_text("{")
    done = command("runs", "list", ".", "--json")
    assert [run["run"] for run in json.loads(done.out)["runs"]] == ["x"]
    assert re.fullmatch(
        r"note: RUN: a/recipe.yaml is a link.*\nnote: RUN: b/run.json cannot be read.*\n", done.err
    )
    assert command("runs", "show", "a").err.startswith("mutua: RUN: a/recipe.yaml is a link or a device; ")


def test_a_run_is_shown_with_its_checkpoints(command: Command, broken_off: Path) -> None:
    told = json.loads(command("runs", "show", "x", "--json").out)
    assert [(c["round"], c["whole"]) for c in told["checkpoints"]] == [(0, True), (1, True)]
    assert sum(c["best"] for c in told["checkpoints"]) == 1
    assert told["events"][-1]["reason"] == "stopped by Ctrl-C"
    (broken_off / "checkpoints" / "000000.json").write_text("{")
    shown = command("runs", "show", "x").out
    assert shown.startswith("x: fml, seed 0, stopped, round 1 of 3\n")
    assert re.search(r"^000000.json +damaged: it is not JSON: ", shown, re.MULTILINE)
    assert re.search(r"^after round 1 +whole, best on validation data", shown, re.MULTILINE)
    assert "stopped: reason stopped by Ctrl-C\nto go on: mutua run --resume x\n" in shown
    assert "RUN: nothing is not a folder" in command("runs", "show", "nothing").err
    unfinished = command("predict", "x", "--client", "c0", "--data", "mine.npz").err
    assert "RUN: x: the run is not finished; to go on: mutua run --resume x\n" in unfinished


def test_checkpoints_are_pruned(command: Command, broken_off: Path) -> None:
    def rounds() -> list[int]:
        return [int(path.stem) for path in sorted((broken_off / "checkpoints").glob("*.json"))]

    assert "not finished: it goes on from a checkpoint; keep 1" in command("runs", "prune", "x", "--keep", "0").err
    held = ResumedRecorder(broken_off)
    assert "x is in use by another run" in command("runs", "prune", "x").err
    del held
    command("run", "--resume", "x")
    assert rounds()[-2:] == [3, 4]
    shown = command("runs", "show", "x").out
    assert re.search(r"^after round 3 +whole", shown, re.MULTILINE)
    assert re.search(r"^after round 4, the last work +whole", shown, re.MULTILINE)
    would = command("runs", "prune", "x", "--keep", "0", "--dry-run").out
    assert would.startswith("x: checkpoints would be removed: ") and rounds()[-2:] == [3, 4]
    assert command("runs", "prune", "x", "--keep", "0").out == would.replace("would be removed", "removed")
    assert rounds() == [] and not list(broken_off.glob("checkpoints/**/*.safetensors"))
    assert RunFolder.open(broken_off).client("c0").predictor()
    assert command("runs", "prune", "x").out == "x: checkpoints removed: none; 0 B freed\n"


def test_prune_looks_at_a_run_only_when_it_has_it_alone(
    command: Command, broken_off: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is at work when prune begins replaces all checkpoints before prune has the lock."""

    def late(folder: Path, field: str) -> FolderLock:
        monkeypatch.undo()
        monkeypatch.chdir(broken_off.parent)
        assert command("run", "--resume", "x").code == 0
        return FolderLock(folder, field)

    monkeypatch.setattr("mutua.support.folders.FolderLock", late)
    assert command("runs", "prune", "x", "--keep", "1").code == 0
    held = RunFolder(broken_off).checkpoints
    assert 4 in held.kept and held.load(held.kept[4])
    assert command("runs", "prune", str(broken_off.parent)).code == 2
    assert not (broken_off.parent / "lock").exists()
