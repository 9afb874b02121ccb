"""Sweeps: every cell with every seed in processes of their own, stopped and taken up again, failing in part."""

import csv
import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import yaml

from conftest import csv_rows
from mutua import Federation, Method, Plan
from mutua.methods import FedAvg, Independent
from mutua.recipe.recipe import expand
from mutua.reports.sections.better_off import better_off_blocks
from mutua.reports.sections.results import difference_tables
from mutua.reports.study import read_study
from mutua.rounds.preparation import Prepared, prepare
from mutua.studies import sweep_work
from mutua.studies.sweep import PlannedRun, Sweep
from mutua.studies.sweep_runner import run_sweep
from mutua.support import signals
from mutua.support.folders import FolderLock, in_use
from mutua.support.processes import can_fork

Command = Callable[..., Any]
GRID = {
    "method": {"fedavg": {"method": "fedavg"}, "alone": {"method": "independent"}},
    "model": {"small": {}, "large": {"models.global.width": 0.2}},
}
COMPARE = ("compare", "grid.yaml", "--seeds", "0,1", "--workers", "2", "--out", "x")


@pytest.fixture
def gridded(command: Command, tmp_path: Path, tiny: dict[str, Any]) -> Command:
    """The command, in a folder with grid.yaml (four cells)."""
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({**tiny, "grid": GRID}, sort_keys=False))
    return command


def runs(folder: Path) -> dict[str, tuple[float, bytes]]:
    """Of every finished run, when it ended and what it measured."""
    ended = sorted(folder.glob("*/run.json"))
    return {p.parent.name: (p.stat().st_mtime, (p.parent / "history.csv").read_bytes()) for p in ended}


def test_a_grid_over_seeds(gridded: Command, tmp_path: Path) -> None:
    done = gridded(*COMPARE)
    assert done.code == 0, done.err
    names = ["fedavg-small", "fedavg-large", "alone-small", "alone-large"]
    assert set(runs(tmp_path / "x")) == {f"{name}-{seed}" for name in names for seed in (0, 1)}
    assert "8 of 8 runs" in done.err
    for said in ("worst client", "better off", "minus fedavg, small", "95 % interval"):
        assert said in done.out

    rows = csv_rows(tmp_path / "x" / "results.csv")
    # The axis `model` gives way to the column of that name.
    assert list(rows[0]) == ["method", "grid.model", "seed", "client", "model", "split", "metric", "value"]
    assert {(r["method"], r["grid.model"], r["seed"]) for r in rows} == {
        (method, model, seed) for method in ("fedavg", "alone") for model in ("small", "large") for seed in "01"
    }
    key = ("client", "model", "split", "metric")
    mine = {
        tuple(r[k] for k in key): r["value"]
        for r in rows
        if (r["method"], r["grid.model"], r["seed"]) == ("alone", "large", "1")
    }
    history = csv_rows(tmp_path / "x" / "alone-large-1" / "history.csv")
    last = {tuple(r[k] for k in key): r["value"] for r in history if r["split"] != "train"}
    assert last.items() <= mine.items()
    own = [float(last[c, "predictor", "test", "accuracy"]) for c in ("c0", "c1")]
    assert float(mine["mean", "predictor", "test", "accuracy"]) == pytest.approx(fmean(own))
    assert mine["c0", "", "", "bytes_up"] == "0"

    report = json.loads((tmp_path / "x" / "comparison.json").read_text())
    assert list(report["summary"]) == ["fedavg, small", "fedavg, large", "alone, small", "alone, large"]
    assert [run["cell"]["model"] for run in report["runs"]] == ["small", "large"] * 4
    # Alone of the same cell otherwise: the small ones by the small one.
    [shared, other] = [
        next(r for r in report["runs"] if r["cell"] == {"method": method, "model": "small"} and r["seed"] == 0)
        for method in ("fedavg", "alone")
    ]
    better = [
        a["accuracy"]["predictor"] > b["accuracy"]["predictor"]
        for a, b in zip(shared["clients"], other["clients"], strict=True)
    ]
    assert shared["over_clients"]["better_off"] == fmean(better) and other["over_clients"]["better_off"] is None

    # A cell is the run that its recipe describes, to the byte.
    gridded("run", "x/fedavg-large-1/recipe.yaml", "--out", "alone", "--json")
    assert (tmp_path / "alone" / "history.csv").read_bytes() == runs(tmp_path / "x")["fedavg-large-1"][1]
    # All is there: nothing runs again.
    before = runs(tmp_path / "x")
    assert gridded(*COMPARE).code == 0 and runs(tmp_path / "x") == before


def test_a_sweep_that_is_stopped_goes_on_to_the_same_bytes(
    gridded: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "compare",
        "tiny.yaml",
        "--methods",
        "fml,fedavg",
        "--seeds",
        "0",
        "--set",
        "rounds=3",
        "--workers",
        "1",
    )
    assert gridded(*words, "--out", "whole").code == 0
    merge = FedAvg.merge

    calls = []

    def stop(self: Any, server: Any, replies: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:  # Ctrl-C at the one who watches, which is passed on
            os.kill(os.getppid(), signal.SIGINT)
            until = time.monotonic() + 60
            while not signals._state.pending and time.monotonic() < until:
                time.sleep(0.01)
        return merge(self, server, replies)

    monkeypatch.setattr(FedAvg, "merge", stop)
    done = gridded(*words, "--out", "x", "--json")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines() == [
        "Ctrl-C: finishing what has begun, then saving; once more does not wait",
        "mutua: stopped by Ctrl-C; 1 of 2 runs are finished; to go on: the same command with --out x",
    ]
    kept = json.loads((tmp_path / "x" / "comparison.json").read_text())
    assert [run["method"] for run in kept["runs"]] == ["fml"] and list(kept["summary"]) == ["fml"]
    assert list((tmp_path / "x" / "fedavg-0" / "checkpoints").iterdir())

    monkeypatch.setattr(FedAvg, "merge", merge)
    before = runs(tmp_path / "x")["fml-0"]
    assert gridded(*words, "--out", "x").code == 0
    assert runs(tmp_path / "x")["fml-0"] == before
    assert {name: data for name, (_, data) in runs(tmp_path / "x").items()} == {
        name: data for name, (_, data) in runs(tmp_path / "whole").items()
    }
    events = [
        json.loads(line)["event"] for line in (tmp_path / "x/fedavg-0/events.jsonl").read_text().splitlines()
    ]
    assert events.count("begun") == events.count("resumed") == 1


def test_workers_end_with_the_sweep_that_is_killed(gridded: Command, tmp_path: Path) -> None:
    words = ["compare", "tiny.yaml", "--methods", "fml,fedavg", "--seeds", "0", "--out", "x", "--workers", "2"]
    main = "from mutua.cli.app import command_line; command_line()"
    program = [sys.executable, "-c", main, *words, "--set", "rounds=1000000"]
    sweep = subprocess.Popen(program, stderr=subprocess.PIPE, text=True, start_new_session=True)
    both = [tmp_path / "x" / name for name in ("fml-0", "fedavg-0")]

    def until(true: Callable[[Path], bool]) -> None:
        end = time.monotonic() + 60
        while not all(map(true, both)) and time.monotonic() < end:
            time.sleep(0.01)
        assert all(map(true, both))

    try:
        until(lambda run: (run / "recipe.yaml").is_file() and in_use(run))
        sweep.kill()
        until(lambda run: not in_use(run))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(sweep.pid, signal.SIGKILL)
    assert "Traceback" not in sweep.communicate()[1]


SIGNALLED = """
import os, signal
fork = os.fork
def signalled():
    child = fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGTERM)  # before it is anybody
    return child
os.fork = signalled
from mutua.cli.app import command_line
command_line()
"""


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "tiny.yaml", "--methods", "fml,fedavg", "--seeds", "0", "--workers", "2"),
        ("run", "tiny.yaml", "--workers", "2"),
    ],
)
def test_a_signal_at_birth_makes_no_second_copy_of_the_parent(gridded: Command, words: tuple[str, ...]) -> None:
    program = [sys.executable, "-c", SIGNALLED, *words, "--out", "x"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    if words[0] == "compare":
        assert done.returncode == 1 and done.stderr.count("to go on: ") == 1
        assert "mutua: stopped by SIGTERM; 0 of 2 runs are finished" in done.stderr
    else:  # its workers leave signals to the process that has forked them
        assert done.returncode == 0 and done.stdout.count("saved in x") == 1


def test_a_run_that_was_stopped_after_its_last_round_tells_its_numbers_too(
    gridded: Command, tmp_path: Path
) -> None:
    words = ("compare", "tiny.yaml", "--methods", "fml", "--seeds", "0", "--out", "x")
    first = gridded(*words)
    (tmp_path / "x" / "fml-0" / "run.json").unlink()
    again = gridded(*words)
    [said, said_again] = [re.findall(r"fml, seed 0: round 1/1, .*%.*", done.err) for done in (first, again)]
    assert said and said == said_again


def test_a_time_budget(gridded: Command, tmp_path: Path) -> None:
    done = gridded(*COMPARE, "--minutes", "0")
    assert done.code == 1
    said = r"mutua: the time budget of 0 minutes is used up; \d of 8 runs are finished; to go on: .* --out x\n"
    assert re.search(said, done.err)
    assert gridded(*COMPARE, "--minutes", "60").code == 0
    assert len(runs(tmp_path / "x")) == 8


def test_what_fails_is_said_and_the_others_go_on(
    gridded: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def fail(*_: Any) -> None:
        raise ValueError("no luck")

    monkeypatch.setattr(FedAvg, "merge", die)
    monkeypatch.setattr(Independent, "train", fail)
    words = ("compare", "tiny.yaml", "--methods", "fml,fedavg,independent", "--seeds", "0", "--out", "x")
    done = gridded(*words)
    assert done.code == 1 and "fml" in done.out
    assert "mutua: 2 of 3 runs failed: " in done.err
    assert (
        "fedavg, seed 0: its process ended by signal 9 (was memory short? use fewer --workers), 3 times"
        in done.err
        and "no luck" in done.err
    )
    assert set(runs(tmp_path / "x")) == {"fml-0"}
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert gridded(*words).code == 0 and len(runs(tmp_path / "x")) == 3


def test_a_run_whose_process_is_killed_goes_on_to_the_same_bytes(
    gridded: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("compare", "tiny.yaml", "--methods", "fml,fedavg", "--seeds", "0", "--set", "rounds=3", "--out")
    assert gridded(*words, "whole").code == 0
    merge, fork, refused = FedAvg.merge, os.fork, []

    def die_once(self: Any, server: Any, replies: Any) -> Any:
        if not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return merge(self, server, replies)

    def seldom() -> int:
        refused.append(1)
        if len(refused) % 2:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(FedAvg, "merge", die_once)
    monkeypatch.setattr(os, "fork", seldom)
    done = gridded(*words, "x")
    assert done.code == 0 and (tmp_path / "killed").exists() and len(refused) >= 6
    assert "fedavg, seed 0: its process ended by signal 9 (was memory short? use fewer --workers); it goes on" in (
        done.err
    )
    assert {name: data for name, (_, data) in runs(tmp_path / "x").items()} == {
        name: data for name, (_, data) in runs(tmp_path / "whole").items()
    }

    def never() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", never)
    done = gridded(*words, "y")
    assert done.code == 1
    said = "mutua: workers: Resource temporarily unavailable; to go on: the same command with --out y"
    assert done.err.splitlines()[-1] == said


def test_a_folder_of_another_recipe_is_refused(gridded: Command, tmp_path: Path) -> None:
    words = ("compare", "tiny.yaml", "--methods", "fml", "--seeds", "0", "--out", "x")
    assert gridded(*words).code == 0
    done = gridded(*words, "--set", "rounds=2")
    assert (done.code, done.out) == (2, "")
    assert done.err == "mutua: --out: x/fml-0 is of another recipe; name another folder or remove it\n"
    held = FolderLock(tmp_path / "x", "--out")
    assert re.match(r"mutua: --out: x is in use by another run \(process \d+\)", gridded(*words).err)
    held.release()
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "mine.txt").touch()
    assert "y is there already and not empty" in gridded(*words[:-1], "y").err
    (tmp_path / "y" / "results.csv").write_text("mine,too\n")
    assert "y is there already and not empty" in gridded(*words[:-1], "y").err
    assert (tmp_path / "y" / "results.csv").read_text() == "mine,too\n"
    # One that was killed before it had written its recipe begins anew.
    shutil.rmtree(tmp_path / "x" / "fml-0")
    (tmp_path / "x" / "fml-0").mkdir()
    (tmp_path / "x" / "fml-0" / "lock").touch()
    assert gridded(*words).code == 0
    # So does a sweep that was killed while it wrote its first results.
    (tmp_path / "z").mkdir()
    for name in ("lock", "results.csv.aside"):
        (tmp_path / "z" / name).touch()
    assert gridded(*words[:-1], "z").code == 0


@pytest.mark.skipif(not can_fork(), reason="only a forked process inherits what its parent has prepared")
@pytest.mark.parametrize("newcomer", [False, True])
def test_a_run_is_prepared_once(
    newcomer: bool, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found before the sweep is handed to the runs with the first federation; the bytes are the same."""
    told = tmp_path / "told"

    def prepared_there(method: Method, federation: Federation, plan: Plan) -> Prepared:
        with told.open("a") as file:  # a process of its own adds a line
            file.write(f"{vars(method)['alpha']} {plan.seed}\n")
        return prepare(method, federation, plan)

    monkeypatch.setattr(sweep_work, "prepare", prepared_there)
    tree = {**tiny, "partition": {"kind": "iid", "clients": 3}}
    data = {"20": {}, "30": {"data.samples_per_client": 30}}
    grid = {"data": data, "alpha": {"low": {"method.alpha": 0.2}, "high": {"method.alpha": 0.8}}}
    found: list[tuple[list[str], dict[str, bytes]]] = []
    for checked in (False, True):
        told.write_text("")
        sweep = Sweep(tmp_path / str(checked), expand(tree, grid), [0, 1], newcomer=newcomer)
        with sweep.locked():
            if checked:
                sweep.check(None, "grid")
                assert len({id(one.given) for one in sweep.prepared.values()}) == 1
            outcome = run_sweep(sweep, lambda news: None, workers=2)
        assert not outcome.failed and not sweep.prepared
        histories = {name: history for name, (_, history) in runs(sweep.place).items()}
        found.append((sorted(told.read_text().splitlines()), histories))
    (all_of_them, one), (rest, other) = found
    assert all_of_them == sorted(["0.2 0", "0.2 1", "0.8 0", "0.8 1"] * 2)
    # The others are those of the second federation, and of seed 1.
    assert rest == sorted(["0.2 0", "0.8 0", *["0.2 1", "0.8 1"] * 2])
    assert len(one) == 8 and one == other


def test_alone_is_the_same_data_and_the_nearest_cell(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlannedRun, "finished", True)
    grid = {**GRID, "data.samples_per_client": {"20": {}, "30": {"data.samples_per_client": 30}}}
    sweep = Sweep(tmp_path, expand(tiny, grid), [0, 1])
    for run in sweep.runs:
        found, own = sweep.alone(run), run.path.name
        expected = None if own.startswith("alone") else tmp_path / own.replace("fedavg", "alone")
        assert (found and found.path) == expected
    few = Sweep(tmp_path, [cell for cell in expand(tiny, grid) if cell[0].labels["method"] == "fedavg"], [0])
    assert all(few.alone(run) is None for run in few.runs)
    other = [cell for cell in expand(tiny, grid) if tuple(cell[0].labels.values())[::2] != ("alone", "30")]
    lonely = next(r for r in Sweep(tmp_path, other, [0]).runs if r.cell.labels["data.samples_per_client"] == "30")
    assert Sweep(tmp_path, other, [0]).alone(lonely) is None


class Mine(Independent):
    """A user's own, which inherits the name."""


def test_a_users_own_method_is_not_alone_by_an_inherited_name(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlannedRun, "finished", True)
    grid = {"method": {"fedavg": {"method": "fedavg"}, "mine": {"method": f"{__name__}:Mine"}}}
    sweep = Sweep(tmp_path, expand(tiny, grid), [0])
    assert all(sweep.alone(run) is None for run in sweep.runs)
    grid["method"]["alone"] = {"method": "independent"}
    found = {
        run.cell.name: sweep.alone(run)
        for sweep in [Sweep(tmp_path, expand(tiny, grid), [0])]
        for run in sweep.runs
    }
    assert {name: rival and rival.path.name for name, rival in found.items()} == {  # type: ignore[union-attr]
        "fedavg": "alone-0",
        "mine": "alone-0",
        "alone": None,
    }


def test_runs_of_other_lengths_are_not_compared_and_that_is_said(gridded: Command, tmp_path: Path) -> None:
    grid = {
        "fewer": {"method": "fedavg", "rounds": 1, "epochs": 2},  # as long: fewer rounds of more epochs
        "longer": {"method": "fedavg", "rounds": 3},
        "alone": {"method": "independent", "rounds": 2},
    }
    recipe = yaml.safe_load((tmp_path / "tiny.yaml").read_text())
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({**recipe, "grid": {"method": grid}}))
    done = gridded("compare", "grid.yaml", "--seeds", "0", "--out", "x")
    assert done.code == 0, done.err
    line = (
        "longer: not compared with its clients alone, who train for 2 epochs instead of 3 epochs; compare runs of"
    )
    assert line in done.out and done.out.count("not compared") == 1
    summary = json.loads((tmp_path / "x" / "comparison.json").read_text())["summary"]
    assert summary["longer"]["clients"]["better_off"]["mean"] is None
    assert summary["fewer"]["clients"]["better_off"]["mean"] is not None
    # One that is made longer afterwards is not as long any more.
    assert gridded("run", "--resume", "x/fewer-0", "--rounds", "2").code == 0
    assert gridded("report", "x", "--tables", "t").code == 0
    study = read_study(tmp_path / "x")
    assert all(study.alone(run) is None for run in study.runs)
    [said, *_] = [text for text in better_off_blocks(study) if "fewer" in str(text) or "fedavg" in str(text)]
    assert "who train for 2 epochs instead of 4 epochs" in str(said)
    assert gridded("run", "--resume", "x/alone-0", "--rounds", "4").code == 0
    study = read_study(tmp_path / "x")
    assert [run.path.name for run in study.runs if study.alone(run) is not None] == ["fewer-0"]


def test_the_terminal_says_who_never_trained_and_that_alone_trained_less(gridded: Command) -> None:
    words = ("compare", "tiny.yaml", "--methods", "finetuned,fml,independent", "--seeds", "0")
    done = gridded(*words, "--set", "client_fraction=0.5")
    assert done.code == 0, done.err
    text = " ".join(done.out.split())
    assert text.count("finetuned: trained on after the last round until validation says stop; alone did not") == 1
    assert re.search(r"fml, seed 0: c[01] never trained: out of the predictors' means", text)


def test_methods_are_compared_over_the_clients_that_count_in_both(gridded: Command, tmp_path: Path) -> None:
    words = ("compare", "tiny.yaml", "--methods", "fml,fedavg", "--seeds", "0,1", "--out", "half", "--json")
    sets = ("--set", "client_fraction=0.25", "--set", "rounds=1", "--set", "partition.clients=4")
    done = gridded(*words, *sets)
    assert done.code == 0, done.err
    by_hand = []
    for seed in (0, 1):
        fml, fedavg = (
            json.loads((tmp_path / "half" / f"{name}-{seed}" / "run.json").read_text())["summary"]["clients"]
            for name in ("fml", "fedavg")
        )
        assert [client["trained"] for client in fedavg] == [True] * 4  # they serve with the global
        [only] = [client["id"] for client in fml if client["trained"]]
        own = [next(c["accuracy"]["predictor"] for c in mine if c["id"] == only) for mine in (fedavg, fml)]
        by_hand.append(own[0] - own[1])
    told = json.loads(done.out)["summary"]["fedavg"]["difference"]["predictor"]
    assert told["values"] == pytest.approx(by_hand)
    [differences] = difference_tables(read_study(tmp_path / "half"))
    [row] = [row for row in csv.DictReader(io.StringIO(differences.csv())) if row["measure"] == "predictor"]
    assert float(row["difference"]) == pytest.approx(fmean(by_hand))
    for remarks in (differences.remarks, " ".join(gridded(*words[:-1], *sets).out.split())):
        assert "over the clients whose predictors count in both runs" in str(remarks)


def test_a_link_in_a_comparisons_folder_is_refused(gridded: Command, tmp_path: Path) -> None:
    """Its lock, a link, had the file that it leads to cut to nothing."""
    outside = tmp_path / "outside"
    outside.write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "lock").symlink_to(outside)
    done = gridded("compare", "grid.yaml", "--seeds", "0", "--out", "out")
    assert done.code == 2 and "out/lock is a link or a device" in done.err
    assert outside.read_text() == "precious"


def test_other_data_than_the_finished_runs_had_is_refused(command: Command) -> None:
    """New runs trained on the new data beside finished ones on the old, and nobody was told."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 8, 8), np.uint8), np.arange(60) % 2
    np.savez("mine.npz", x=x, y=y)
    data = ("--set", "data={name: arrays, path: mine.npz}", "--set", "partition={kind: iid, clients: 2}")
    words = ("compare", "tiny.yaml", *data, "--workers", "1", "--out", "x", "--methods", "fml,fedavg")
    assert command(*words, "--seeds", "0").code == 0
    assert command(*words, "--seeds", "0,1").code == 0  # the same data: the rest is run
    x[7, 0, 0] ^= 1
    np.savez("mine.npz", x=x, y=y)
    done = command(*words, "--seeds", "0,1,2")
    assert done.code == 2 and done.err.count("\n") == 1
    assert "--out: x/fml-0 had other inputs: the " in done.err and "has changed; name another folder" in done.err
