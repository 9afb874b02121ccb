"""What left each client, and what its privacy is worth."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from mutua.reports.document import Report
from mutua.reports.report import compose as report
from mutua.reports.study import read_study
from reading_reports import Page, Runs, by_hand, said


def test_what_left_adds_up_to_the_ledger(compared_report: Report, compared_page: str, compared: Path) -> None:
    [table] = [table for table in compared_report.tables if table.name == "left"]
    found = list(csv.DictReader(io.StringIO(table.csv())))
    for method, numbers in by_hand(compared).items():
        mine = [row for row in found if row["method"] == method]
        total = sum(float(row["bytes"]) * len(row["clients"].split(", ")) for row in mine)
        assert total == pytest.approx(numbers["sent"])
    kinds = {(row["method"], row["kind"], row["name"]) for row in found}
    assert ("fedavg", "count", "samples") in kinds
    assert ("independent", "nothing", "") in kinds
    assert not any(method == "fml" and kind == "count" for method, kind, _ in kinds)
    assert "Differential privacy: none." in Page(compared_page).text


def test_privacy_is_told_with_its_guarantee(finished: Runs) -> None:
    pytest.importorskip("opacus")
    folder, result = finished("fml", privacy={"clip": 1.0, "noise": 2.0})
    assert f"Differential privacy: {result.guarantee}." in said(report(read_study(folder)))


def test_pooled_data_is_not_called_nothing(finished: Runs) -> None:
    [table] = [table for table in report(read_study(finished("centralised")[0])).tables if table.name == "left"]
    assert table.rows[0][:3] == ("centralised", "all", "all data")


def test_data_that_was_made_public_is_told_though_no_message_held_it(finished: Runs) -> None:
    aggregated, _ = finished("aggregated", public={"share": 0.2})
    words = "in aggregated a public set, 0.2 of each client's data, with labels, was known to all beforehand."
    assert words in said(report(read_study(aggregated)))
    assert "known to all beforehand" not in said(report(read_study(finished("fml", rounds=2)[0])))
