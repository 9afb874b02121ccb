"""Reports: their numbers are those of the folder, names stay text, nothing is loaded from elsewhere or trained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mutua import InputError, Recipe
from mutua.reports.html import html_page
from mutua.reports.report import compose as report
from mutua.reports.study import read_study
from mutua.support.text import percent
from reading_reports import Page, Runs, said


def test_one_run_has_a_report_too(finished: Runs) -> None:
    folder, result = finished("fml", rounds=2)
    made = report(read_study(folder))
    page = Page(html_page(made))
    mean = percent(result.summary()["mean"]["predictor"]["accuracy"])
    assert page.tables["accuracies"][1][3] == mean
    rows = {row[0]: row[1:] for row in page.tables["clients"][1:]}
    for client in result.summary()["clients"]:
        assert rows[client["id"]] == [percent(client["accuracy"][m]) for m in ("predictor", "global")]
    assert "fml was run with seed 0." in page.text
    assert "there is no run of method independent" in page.text


def test_nothing_is_loaded_unless_asked(compared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recipe, "federation", lambda *_: pytest.fail("data was loaded"))
    report(read_study(compared))


def test_an_unfinished_run_tells_what_it_has(finished: Runs, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished("fml", rounds=2)[0], tmp_path / "run"))
    (folder / "run.json").unlink()
    with (folder / "history.csv").open("a") as file:
        file.write("2,c0,pre")  # torn
    made = report(read_study(folder))
    assert [table.name for table in made.tables] == ["left"]
    assert "stopped after round 2 of 2; its tables come when it is finished" in said(made)
    assert next(made.pictures).alt.startswith("Mean accuracy")


@pytest.mark.parametrize("value", [None, "x", [1], pytest.param(10**400, id="too large")])
def test_a_folder_of_a_stranger_gives_a_report_or_a_line(compared_copy: Path, value: Any) -> None:
    def spoil(file: Path, load: Callable[[str], Any]) -> None:
        whole = file.read_text()
        for key in load(whole):
            for inner in [None, *(load(whole)[key] if isinstance(load(whole)[key], dict) else [])]:
                tree = load(whole)
                if inner is None:
                    tree[key] = value
                else:
                    tree[key][inner] = value
                file.write_text(json.dumps(tree))
                try:
                    made = report(read_study(compared_copy / "fml-0"))
                    for table in made.tables:
                        table.markdown()
                except InputError as error:
                    lines.append(str(error))
        file.write_text(whole)

    lines: list[str] = []
    spoil(compared_copy / "fml-0" / "run.json", json.loads)
    spoil(compared_copy / "fml-0" / "recipe.yaml", yaml.safe_load)
    late = compared_copy / "fml-0" / "newcomers" / "late"
    late.mkdir(parents=True)
    (late / "join.json").write_text(json.dumps({"how": "mutual", "accuracy": {"predictor": 0.5, "alone": None}}))
    spoil(late / "join.json", json.loads)
    assert lines and not any("\n" in line for line in lines)


def test_where_nothing_is_sent_there_is_no_trade_off_to_speak_of(finished: Runs) -> None:
    titles = [section.title for section in report(read_study(finished("independent")[0])).sections]
    assert "What left each client" in titles and "Accuracy against bytes sent" not in titles
