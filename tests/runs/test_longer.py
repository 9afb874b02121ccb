"""A run becomes longer: the same bytes as a run planned so long, or one line that says why not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import killing
import mutua
from killing import RECIPE, begin, stop_at
from method_needs import needs_of
from mutua import InputError, Recipe, RunError
from mutua.methods import base
from mutua.runs.checkpoints import CheckpointFolder
from mutua.runs.execute import execute
from mutua.runs.folder import RunFolder
from mutua.runs.recording import Recorder
from mutua.runs.resuming import ResumedRecorder

Command = Callable[..., Any]

TINY = {key: value for key, value in RECIPE.items() if key not in ("rounds", "checkpoints")}
NEEDS: dict[str, dict[str, Any]] = {
    **killing.NEEDS,
    "fedkd": {"method": {"name": "fedkd", "energy": 0.9}},  # by default a schedule over all rounds
    "fedmd": {"public": {"share": 0.3}, "evaluate_every": 2},
    "finetuned": {"method": {"name": "finetuned", "tune_epochs": 2}, "evaluate_every": 3},
    "independent": {"partition": {"kind": "majority", "clients": 3, "p": 0.6}},
    "fmlu": {"optimizer": {"name": "adam", "lr": [0.01, 0.002]}, "checkpoints": {"keep": 1}},
    "fml": {},
}


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mutua.engines.local.cores", lambda: 1)


def recipe_of(method: str, rounds: int, **more: Any) -> Recipe:
    return Recipe.of(
        {**TINY, "method": method, **needs_of(method), **NEEDS.get(method, {}), "rounds": rounds, **more}
    )


def longer(place: Path, rounds: int | None) -> RunFolder:
    folder = ResumedRecorder(place, rounds=rounds)
    recipe = folder.recipe
    execute(recipe, recipe.federation(), folder)
    return folder


def left(place: Path) -> dict[str, Any]:
    """All that a run has left but for times, and how its last checkpoint can be made longer."""
    newest = CheckpointFolder(place / "checkpoints").newest
    assert newest is not None
    return {**killing.left(place), "longer": (newest.before, newest.unfinished)}


@pytest.mark.parametrize("method", base.method_names())
def test_every_method_made_longer_has_the_bytes_of_a_run_planned_so_long(method: str, tmp_path: Path) -> None:
    begin(recipe_of(method, 5), tmp_path / "planned")
    begin(recipe_of(method, 2), tmp_path / "run")
    longer(tmp_path / "run", 4)
    longer(tmp_path / "run", 5)
    assert left(tmp_path / "run") == left(tmp_path / "planned")


@pytest.mark.parametrize(
    ("method", "seconds", "commits"),
    [
        ("fml", 0, 3),
        ("fml", 1000, 1),
        ("fml", 1000, 9),
        ("mixture", 0, 5),
        ("mixture", 0, 9),
        ("mixture", 1000, 8),
    ],
)
def test_a_stopped_run_becomes_longer_too(
    method: str, seconds: int, commits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the clients' start, in rounds, and in their last work, with some of them done."""
    settings = {"checkpoints": {"seconds": seconds}}
    begin(recipe_of(method, 4, **settings), tmp_path / "planned")
    stop_at(commits, monkeypatch)
    with pytest.raises(RunError, match="stopped by Ctrl-C"):
        begin(recipe_of(method, 2, **settings), tmp_path / "run")
    longer(tmp_path / "run", 4)
    assert left(tmp_path / "run") == left(tmp_path / "planned")


def test_runs_of_no_round_and_of_drawn_evaluations_become_longer(tmp_path: Path) -> None:
    begin(recipe_of("fml", 3, evaluate_every=2), tmp_path / "planned")
    begin(recipe_of("fml", 0, evaluate_every=2), tmp_path / "run")
    for rounds in (1, 2, 3):
        longer(tmp_path / "run", rounds)
    assert left(tmp_path / "run") == left(tmp_path / "planned")


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.long)])
def test_killed_while_it_becomes_longer_it_is_as_it_was_or_goes_on(step: int, tmp_path: Path) -> None:
    """Before every so many file operations: the same command ends in the same bytes."""
    begin(recipe_of("mixture", 3), tmp_path / "planned")
    expected = left(tmp_path / "planned")
    begin(recipe_of("mixture", 2), tmp_path / "short")
    names = ("unlink", "replace", "rmdir", "truncate", "fsync")
    recipe = recipe_of("mixture", 3)
    federation = recipe.federation()
    moment, died = 1 - step, True
    while died:
        moment += step
        place = tmp_path / "run"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(tmp_path / "short", place)
        child = os.fork()
        if child == 0:
            left_over = moment

            def count(name: str) -> Callable[..., Any]:
                real = getattr(os, name)

                def call(*given: Any, **more: Any) -> Any:
                    nonlocal left_over
                    left_over -= 1
                    if not left_over:
                        os._exit(9)
                    return real(*given, **more)

                return call

            for name in names:
                setattr(os, name, count(name))
            folder = ResumedRecorder(place, rounds=3)
            folder.begin(recipe, federation)
            os._exit(0)
        died = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        folder = ResumedRecorder(place, rounds=3)
        execute(folder.recipe, federation, folder)
        assert left(place) == expected, moment
    assert moment > 23


# By the command


def written(rounds: int = 2, **more: Any) -> None:
    Path("r.yaml").write_text(yaml.safe_dump({**TINY, "method": "fml", "rounds": rounds, **more}))


def test_the_command_makes_a_run_longer(command: Command, tmp_path: Path) -> None:
    written()
    command("run", "r.yaml", "--out", "x")
    done = command("run", "--resume", "x", "--rounds", "3")
    assert done.code == 0 and "tiny: round 2/3" in done.err and "tiny: round 3/3" in done.err
    command("run", "r.yaml", "--set", "rounds=3", "--out", "y")
    assert left(tmp_path / "x") == left(tmp_path / "y")
    assert json.loads(command("runs", "show", "x", "--json").out)["rounds"] == 3
    for words in (["--rounds", "3"], []):
        again = command("run", "--resume", "x", *words)
        assert (again.code, again.err) == (0, "x is finished; to make it longer: --rounds N\n")
    resumed = [event for event in RunFolder(tmp_path / "x").events.read() if event["event"] == "resumed"]
    assert [(event["round"], event["rounds"]) for event in resumed] == [(2, 3)]


SCHEDULE = {"schedule": "linear", "start": 0.1, "end": 0.3}


@pytest.mark.parametrize(
    ("more", "words", "said"),
    [
        ({}, "--rounds 1", "--rounds: 1, but the run has 2 already; give more"),
        (
            {"optimizer": {"name": "sgd", "lr": SCHEDULE}},
            "--rounds 3",
            "--rounds: 3, but optimizer.lr is a schedule over all rounds: in round 2 it was 0.3, and of 3 rounds "
            "it would have been 0.2; begin a new run",
        ),
        (
            {"method": {"name": "fml", "alpha": SCHEDULE}},
            "--rounds 4",
            "--rounds: 4, but method.alpha is a schedule over all rounds: in round 2 it was 0.3, and of",
        ),
        ({"steps": 2, "budget": {"bytes_up": 10**9}}, "--rounds 4", "--rounds: 4, but a budget has set how many"),
    ],
)
def test_what_would_have_been_another_run_is_refused(
    more: dict[str, Any], words: str, said: str, command: Command, tmp_path: Path
) -> None:
    written(**more)
    assert command("run", "r.yaml", "--out", "x").code == 0
    before = left(tmp_path / "x")
    done = command("run", "--resume", "x", *words.split())
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1) and said in done.err
    assert left(tmp_path / "x") == before


def test_constant_schedules_and_lists_allow_it(command: Command, tmp_path: Path) -> None:
    flat = {"schedule": "cosine", "start": 0.05, "end": 0.05}
    written(optimizer={"name": "sgd", "lr": flat}, method={"name": "fml", "alpha": [0.9, 0.5, 0.1]})
    command("run", "r.yaml", "--out", "x")
    command("run", "--resume", "x", "--rounds", "4")
    command("run", "r.yaml", "--set", "rounds=4", "--out", "y")
    assert left(tmp_path / "x") == left(tmp_path / "y")


def test_other_changes_are_refused_and_so_is_a_run_without_checkpoints(command: Command, tmp_path: Path) -> None:
    written()
    command("run", "r.yaml", "--out", "x")
    path = tmp_path / "x" / "recipe.yaml"
    text = path.read_text()
    path.write_text(text.replace("batch_size: 7", "batch_size: 9"))
    assert "recipe.yaml: batch_size was 7, is 9; a run" in command("run", "--resume", "x", "--rounds", "3").err
    path.write_text(text)
    assert RunFolder.open(tmp_path / "x").plan.rounds == 2
    command("runs", "prune", "x", "--keep", "0")
    tables = {table: table.read_bytes() for table in (tmp_path / "x").glob("*.csv")}
    done = command("run", "--resume", "x", "--rounds", "3")
    assert (
        done.err == "mutua: --rounds: x cannot become longer, because its checkpoints are gone; begin a new run\n"
    )
    assert len(tables) == 3 and all(table.read_bytes() == was for table, was in tables.items())
    assert "--rounds: 3: it is for --resume" in command("run", "r.yaml", "--rounds", "3").err


def test_what_is_refused_keeps_its_rows_also_where_its_newest_checkpoint_is_damaged(
    command: Command, tmp_path: Path
) -> None:
    written(optimizer={"name": "sgd", "lr": {"schedule": "linear", "start": 0.1, "end": 0.01}})
    command("run", "r.yaml", "--set", "checkpoints.seconds=0", "--out", "x")
    newest = max((tmp_path / "x" / "checkpoints").glob("*.json"))
    newest.write_text(newest.read_text()[:-9])
    tables = {table: table.read_bytes() for table in (tmp_path / "x").glob("*.csv")}
    assert "is a schedule over all rounds" in command("run", "--resume", "x", "--rounds", "3").err
    assert len(tables) == 3 and all(table.read_bytes() == was for table, was in tables.items())


def test_newcomers_of_the_shorter_run_are_told(command: Command, tmp_path: Path) -> None:
    written()
    command("run", "r.yaml", "--out", "x")
    (tmp_path / "x" / "newcomers" / "eve").mkdir(parents=True)
    command("run", "--resume", "x", "--rounds", "3")
    notes = [event["text"] for event in RunFolder(tmp_path / "x").events.read() if event["event"] == "note"]
    assert notes == ["newcomers/: they joined the shorter run, and know nothing of the rounds to come"]


def test_a_run_that_was_killed_before_its_first_checkpoint_becomes_longer(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written()
    monkeypatch.setattr(Recorder, "save", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        command("run", "r.yaml", "--set", "checkpoints.seconds=0", "--out", "x")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert command("run", "--resume", "x", "--rounds", "3").code == 0
    assert RunFolder(tmp_path / "x").recipe.rounds == 3
    assert yaml.safe_load((tmp_path / "x" / "recipe.yaml").read_text())["rounds"] == 3


# In Python


@pytest.mark.parametrize("workers", [1, 2])
def test_a_result_becomes_longer(workers: int, federate: Any) -> None:
    federation = federate()
    method = base.method_of({"name": "finetuned", "tune_epochs": 2})
    plan: dict[str, Any] = {"client_fraction": 0.7, "workers": workers, "progress": False, "device": "cpu"}
    short = mutua.run(method, federation, rounds=2, **plan)
    before = list(short.history)
    found = short.extend(rounds=3).extend(rounds=5, progress=False)
    planned = mutua.run(method, federation, rounds=5, **plan)
    assert list(found.history) == list(planned.history) and list(found.ledger) == list(planned.ledger)
    assert list(found.participation) == list(planned.participation)
    for one, other in zip(found.clients, planned.clients, strict=True):
        assert one.state.keys() == other.state.keys()
        assert all(torch.equal(one.state[g][n], a) for g, named in other.state.items() for n, a in named.items())
    assert list(short.history) == before and found.summary().keys() == planned.summary().keys()
    with pytest.raises(InputError, match="rounds: 1, but the run has 2 already; give more"):
        short.extend(rounds=1)
