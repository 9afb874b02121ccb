"""The tables of results, differences and newcomers: their numbers are those of the folder."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from mutua.reports.document import Report
from mutua.reports.html import html_page
from mutua.reports.report import compose as report
from mutua.reports.study import read_study
from mutua.support.text import size
from reading_reports import METHODS, ODD, Page, Runs, by_hand, latex_rows, markdown_rows, told


def test_results_are_those_of_the_folder_in_every_form(
    compared_report: Report, compared_page: str, compared: Path
) -> None:
    expected = by_hand(compared)
    [table] = [table for table in compared_report.tables if table.name == "accuracies"]
    rows = [["method", "seeds", "global", "predictor", "worst", "spread", "better off", "sent"]]
    for method, numbers in expected.items():
        *accuracies, sent = numbers.values()
        rows.append([method, "2", *map(told, accuracies), size(sent)])
    assert Page(compared_page).tables["accuracies"] == rows
    assert markdown_rows(table.markdown()) == rows
    assert latex_rows(table.latex()) == rows
    for row in csv.DictReader(io.StringIO(table.csv())):
        for name, values in expected[row["method"]].items():
            if values is None:
                assert row[name] == row[f"{name} sd"] == ""
            elif name == "sent":
                assert float(row[name]) == pytest.approx(values)
            else:
                assert float(row[name]) == pytest.approx(np.mean(values))
                assert float(row[f"{name} sd"]) == pytest.approx(np.std(values, ddof=1), abs=1e-12)
    assert len({str(row) for row in rows}) == 5  # methods do differ


@pytest.mark.filterwarnings("ignore:Precision loss")
def test_differences_to_the_first_have_scipys_intervals(compared_report: Report, compared: Path) -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = by_hand(compared)
    [table] = [table for table in compared_report.tables if table.name == "differences"]
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert [(row["method"], row["measure"]) for row in rows] == [
        (method, name)
        for method in METHODS[1:]
        for name in ("global", "predictor")
        if expected[method][name] is not None
    ]
    for row in rows:
        ours, first = expected[row["method"]][row["measure"]], expected["fml"][row["measure"]]
        interval = stats.ttest_rel(ours, first).confidence_interval(0.95)
        assert int(row["seeds"]) == len(ours)
        assert float(row["difference"]) == pytest.approx(np.subtract(ours, first).mean())
        possible = np.clip((interval.low, interval.high), -1, 1)  # of two seeds it is wider than any difference
        assert (float(row["from"]), float(row["to"])) == pytest.approx(tuple(possible))
        assert row["is"] == ("better" if interval.low > 0 else "worse" if interval.high < 0 else "cannot tell")


def test_newcomers_are_told_over_seeds(compared_copy: Path) -> None:
    given = {0: (0.5, 0.75, 0.25), 1: (0.7, 0.65, 0.35)}
    for seed, accuracy in given.items():
        folder = compared_copy / f"fml-{seed}" / "newcomers" / "late"
        folder.mkdir(parents=True)
        numbers = dict(zip(("global", "predictor", "alone"), accuracy, strict=True))
        (folder / "join.json").write_text(json.dumps({"client": "late", "how": "mutual", "accuracy": numbers}))
        other = folder.parent / "other"
        other.mkdir()
        ways = {"how": ("global", "finetune")[seed], "accuracy": {"global": 0.5}}
        (other / "join.json").write_text(json.dumps(ways))
    rows = Page(html_page(report(read_study(compared_copy)))).tables["newcomers"]
    assert rows[0] == ["method", "newcomer", "how", "global", "joined", "alone"]
    expected = [
        f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}"
        for values in zip(*given.values(), strict=True)
    ]
    assert rows[1:] == [["fml", "late", "mutual", *expected], ["fml", "other", "–", "50.0 ± 0.0", "–", "–"]]


def test_newcomers_of_one_run(finished: Runs, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished("fml", rounds=2)[0], tmp_path / "run"))
    for name, how, accuracy in (
        (ODD, "mutual", {"global": None, "predictor": 0.75, "alone": 0.25}),
        ("body", "finetune", {"predictor": 0.5, "alone": 0.6}),  # a partial global predicts nothing by itself
    ):
        folder = run / "newcomers" / name
        folder.mkdir(parents=True)
        (folder / "join.json").write_text(json.dumps({"how": how, "accuracy": accuracy}))
    made = report(read_study(run))
    [table] = [table for table in made.tables if table.name == "newcomers"]
    expected = [
        ["fml", ODD, "mutual", "–", "75.0", "25.0"],
        ["fml", "body", "finetune", "–", "50.0", "60.0"],
    ]
    assert Page(html_page(made)).tables["newcomers"][1:] == expected
    assert markdown_rows(table.markdown())[1:] == latex_rows(table.latex())[1:] == expected
