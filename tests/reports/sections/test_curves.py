"""Accuracy over rounds, and against the bytes that were sent."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from mutua.reports.document import Report
from mutua.reports.figures import COLOURS
from reading_reports import METHODS, SEEDS, by_hand


def test_curves_are_means_and_deviations_over_seeds_in_the_methods_colours(
    compared_report: Report, compared: Path
) -> None:
    [picture] = [picture for picture in compared_report.pictures if picture.name == "curve-predictor"]
    [axes] = picture.figure().axes
    for line, band, method in zip(axes.lines, axes.collections, METHODS, strict=True):
        curves = []
        for seed in SEEDS:
            with (compared / f"{method.replace(':', '-')}-{seed}" / "history.csv").open(newline="") as file:
                rows = [r for r in csv.DictReader(file) if (r["split"], r["metric"]) == ("test", "accuracy")]
            own = [r for r in rows if r["model"] == "predictor"]
            curves.append([np.mean([float(r["value"]) for r in own if r["round"] == str(t)]) for t in range(4)])
        mean, std = np.mean(curves, 0), np.std(curves, 0, ddof=1)
        assert np.allclose(line.get_ydata(), mean) and list(line.get_xdata()) == [0, 1, 2, 3]
        edges = band.get_paths()[0].vertices
        assert edges[:, 1].max() == pytest.approx((mean + std).max())
        assert edges[:, 1].min() == pytest.approx((mean - std).min())
        assert line.get_color() == COLOURS[method.partition(":")[0]]


def test_the_trade_off_is_against_bytes_sent_so_far(compared_report: Report, compared: Path) -> None:
    [picture] = [picture for picture in compared_report.pictures if picture.name == "trade-off-predictor"]
    [axes] = picture.figure().axes
    with (compared / "fml-0" / "ledger.csv").open(newline="") as file:
        rows = [(int(r["round"]), int(r["bytes"])) for r in csv.DictReader(file) if r["direction"] == "up"]
    sent = [sum(size for round, size in rows if round <= t) for t in range(4)]  # the same with every seed
    assert list(axes.lines[0].get_xdata()) == sent
    alone = axes.lines[3]
    assert alone.get_linestyle() == "--" and alone.get_color() == COLOURS["independent"]
    assert alone.get_ydata()[0] == pytest.approx(by_hand(compared)["independent"]["predictor"].mean())
