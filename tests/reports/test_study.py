"""What a report knows of a folder: which runs are in it, their labels, and what is missing or damaged."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from mutua import InputError
from mutua.reports.report import compose as report
from mutua.reports.study import read_study
from mutua.support import safe_reading
from mutua.support.files import to_json
from reading_reports import METHODS, Runs, said


def test_a_matrix_as_it_was_once_written_is_read_too(compared: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(compared / "fml-0", tmp_path / "run"))
    new = read_study(run).runs[0].confusions
    for file in run.glob("clients/*/confusion.json"):
        held = json.loads(file.read_text())
        whole = np.zeros((len(held["classes"]),) * 2, int)
        for true, predicted, count in held.pop("cells"):
            whole[true, predicted] = count
        file.write_text(json.dumps({**held, "confusion": whole.tolist()}))
    old = read_study(run).runs[0].confusions
    assert new.keys() == old.keys()
    for client, (classes, cells) in new.items():
        assert old[client][0] == classes and np.array_equal(old[client][1], cells)


def test_second_labels_of_a_method_take_another_colour(compared: Path, compared_copy: Path) -> None:
    told = json.loads((compared_copy / "comparison.json").read_text())
    for one in told["runs"]:
        one["cell"] = {"method": one["method"], "data": "here"}
    (compared_copy / "comparison.json").write_text(json.dumps(told))
    titles = [
        picture.title for picture in report(read_study(compared_copy)).pictures if picture.name.startswith("curve")
    ]
    assert titles and all(title.endswith(": data here") for title in titles)  # a picture for each of other axes
    for one in told["runs"]:
        one["method"] = one["method"].replace("fedavg", "fedprox:mu=0.2")
    (compared_copy / "comparison.json").write_text(json.dumps(told))
    run = json.loads((compared_copy / "fedavg-0" / "run.json").read_text())
    assert run["summary"]["method"] == "fedavg"
    labels = read_study(compared_copy).labels
    assert labels == ["fml", "fedprox:mu=0.2", "fedprox:mu=0.1", "independent"]


def test_what_a_comparison_lacks_is_left_out_and_said(compared_copy: Path) -> None:
    (compared_copy / "fedavg-1" / "run.json").unlink()
    (compared_copy / "comparison.json").unlink()
    made = report(read_study(compared_copy))
    assert "comparison.json is not there: runs are named by their methods" in said(made)
    assert "fedavg-1: stopped after round 3 of 3; it is left out" in said(made)
    [table] = [table for table in made.tables if table.name == "accuracies"]
    assert {row[0]: row[1] for row in table.rows} == {"fedavg": 1, "fedprox": 2, "fml": 2, "independent": 2}


def test_a_comparison_is_read_however_many_clients_its_runs_have(compared_copy: Path) -> None:
    """Its file repeats what its runs say: together they may be longer than the limit for one."""
    told = json.loads((compared_copy / "comparison.json").read_text())
    for folder in sorted(compared_copy.glob("*/run.json")):
        record = json.loads(folder.read_text())
        for client in record["summary"]["clients"]:
            client["participation"]["failed"] = {"x" * 10**6: "1"}
        folder.write_text(to_json(record))
        mine = record["summary"]
        for run in told["runs"]:  # as `mutua compare` would have written it
            if (run["seed"], run["bytes"], run["seconds"]) == (mine["seed"], mine["bytes"], mine["seconds"]):
                run["clients"] = mine["clients"]
    (compared_copy / "comparison.json").write_text(to_json(told))
    assert (compared_copy / "comparison.json").stat().st_size > safe_reading.MAX_TEXT_BYTES
    assert read_study(compared_copy).labels == list(METHODS)


def test_a_ledger_that_is_not_whole_never_says_that_less_has_left(finished: Runs, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished("fml", rounds=2)[0], tmp_path / "run"))
    ledger = folder / "ledger.csv"
    whole = ledger.read_text()
    for text in (None, "", "x,y\n", "".join(whole.splitlines(keepends=True)[:-1]), whole.rstrip("\n")):
        ledger.unlink() if text is None else ledger.write_text(text)
        with pytest.raises(InputError, match=r"^RUN: .*ledger\.csv"):
            report(read_study(folder))
        ledger.touch()


def test_runs_that_a_name_does_not_tell_apart_go_by_their_folders(compared_copy: Path) -> None:
    (compared_copy / "comparison.json").unlink()
    shutil.copytree(compared_copy / "fml-0", compared_copy / "again")
    (compared_copy / "inner").mkdir()
    shutil.copytree(compared_copy / "fml-0", compared_copy / "inner" / "again")
    study = read_study(compared_copy)
    seeds = {label: [run.seed for run in study.of(label)] for label in study.labels}
    assert seeds.pop("again") == seeds.pop("inner/again") == [0]
    assert seeds == {label: [0, 1] for label in ("fml", "fedavg", "fedprox", "independent")}


def test_runs_of_different_recipes_are_never_taken_for_seeds_of_one(finished: Runs, tmp_path: Path) -> None:
    shutil.copytree(finished("fml", rounds=2)[0], tmp_path / "long-0")
    shutil.copytree(finished("fml", rounds=2, seed=1)[0], tmp_path / "long-1")
    assert read_study(tmp_path).labels == ["fml"]
    shutil.copytree(finished("fml", rounds=1, seed=2)[0], tmp_path / "short")
    assert read_study(tmp_path).labels == ["long", "short"]


def test_a_damaged_run_is_left_out_of_a_comparison_and_said(compared_copy: Path) -> None:
    (compared_copy / "fml-0" / "run.json").write_text("{")
    (compared_copy / "fml-1" / "ledger.csv").unlink()
    (compared_copy / "fedavg-0" / "recipe.yaml").write_text("[")
    late = compared_copy / "fedavg-1" / "newcomers" / "late"
    late.mkdir(parents=True)
    (late / "join.json").write_text("{}")
    made = report(read_study(compared_copy))
    for name in (
        "fml-0/run.json cannot be read",
        "fml-1: ledger.csv is damaged",
        "fedavg-0 has no readable",
        "late/join.json: how: missing",
    ):
        assert re.search(rf"{name}.*; it is left out", said(made))
    (compared_copy / "comparison.json").write_text("{")
    with pytest.raises(InputError, match=r"comparison\.json cannot be read .*; remove it, and runs are named"):
        read_study(compared_copy)
