"""Each client's accuracies, as bars and as a table."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex

from mutua.reports.document import Report
from mutua.reports.figures import COLOURS
from reading_reports import SEEDS


def test_clients_have_their_own_numbers(compared_report: Report, compared: Path) -> None:
    [table] = [table for table in compared_report.tables if table.name == "clients"]
    for k, row in enumerate(csv.DictReader(io.StringIO(table.csv()))):
        for column, method, model in (
            ("fml", "fml", "predictor"),
            ("fml, global", "fml", "global"),
            ("independent", "independent", "predictor"),
        ):
            held = [json.loads((compared / f"{method}-{seed}" / "run.json").read_text()) for seed in SEEDS]
            values = [one["summary"]["clients"][k]["accuracy"][model] for one in held]
            assert float(row[column]) == pytest.approx(np.mean(values))
    assert "fedavg, global" not in table.heads  # which is what FedAvg's clients serve with


def test_bars_are_alone_global_and_personal(compared_report: Report) -> None:
    [picture] = [picture for picture in compared_report.pictures if picture.name == "clients-fml"]
    figure = picture.figure()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["alone", "global", "personal"]
    [table] = [table for table in compared_report.tables if table.name == "clients"]
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    [axes] = figure.axes
    for bars, column in zip(axes.containers, ("independent", "fml, global", "fml"), strict=True):
        assert [bar.get_width() for bar in bars] == pytest.approx([float(row[column]) for row in rows])
    alone, _, own = axes.containers
    assert to_hex(alone[0].get_facecolor()).upper() == COLOURS["alone"]
    assert to_hex(own[0].get_facecolor()).upper() == COLOURS["fml"]
