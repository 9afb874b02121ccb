"""Is each client better off than alone? Verdicts and their intervals."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from mutua.reports.document import Report
from mutua.reports.html import html_page
from mutua.reports.report import compose as report
from mutua.reports.study import read_study
from mutua.reports.tables import Table
from reading_reports import METHODS, SEEDS


@pytest.mark.filterwarnings("ignore:Precision loss")
def test_a_report_opens_with_a_verdict_for_every_client(compared_report: Report, compared: Path) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert compared_report.sections[0].title == "Is each client better off than alone?"
    [table] = [block for block in compared_report.sections[0].blocks if isinstance(block, Table)]
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert [(row["method"], row["client"]) for row in rows] == [
        (method, client) for method in METHODS[:3] for client in ("c0", "c1", "c2")
    ]

    def own(method: str, client: str) -> list[float]:
        folders = [compared / f"{method.replace(':', '-')}-{seed}" for seed in SEEDS]
        held = [json.loads((folder / "run.json").read_text())["summary"]["clients"] for folder in folders]
        return [next(c["accuracy"]["predictor"] for c in one if c["id"] == client) for one in held]

    for row in rows:
        joined, alone = own(row["method"], row["client"]), own("independent", row["client"])
        difference = np.subtract(joined, alone)
        interval = (difference.mean(),) * 2
        if difference.std():
            found = stats.ttest_rel(joined, alone).confidence_interval(0.95)
            interval = tuple(np.clip((found.low, found.high), -1, 1))
        assert float(row["difference"]) == pytest.approx(difference.mean())
        assert (float(row["from"]), float(row["to"])) == pytest.approx(interval)
        below, above = interval[1] < 0, interval[0] > 0
        assert row["is"] == ("better off" if above else "worse off" if below else "cannot tell")
    for method in METHODS[:3]:
        words = [row["is"] for row in rows if row["method"] == method]
        counted = {word: words.count(word) for word in ("better off", "worse off", "cannot tell")}
        told = ", ".join(f"{n} {word}" for word, n in counted.items() if n)
        assert f"{method}: of 3 clients {told}." in compared_report.sections[0].blocks


def test_with_one_seed_a_verdict_rests_on_the_test_samples(compared_copy: Path) -> None:
    for folder in compared_copy.glob("*-1"):
        shutil.rmtree(folder)
    made = report(read_study(compared_copy))
    [table] = [table for table in made.tables if table.name == "verdicts"]
    row = next(csv.DictReader(io.StringIO(table.csv())))
    held = {
        method: json.loads((compared_copy / f"{method}-0" / "run.json").read_text())["summary"]["clients"][0]
        for method in ("fml", "independent")
    }
    n = sum(
        count
        for _, _, count in json.loads((compared_copy / "fml-0/clients/c0/confusion.json").read_text())["cells"]
    )
    assert held["fml"]["test_samples"] == n
    a, b = ((one["accuracy"]["predictor"] * n + 1) / (n + 2) for one in held.values())
    half = 1.959964 * np.sqrt((a * (1 - a) + b * (1 - b)) / (n + 2))
    assert (float(row["from"]), float(row["to"])) == pytest.approx((a - b - half, a - b + half), abs=1e-6)
    assert "over test samples" in " ".join(table.remarks)


def test_the_intervals_of_a_method_with_fewer_seeds_are_said_to_be_what_they_are(compared_copy: Path) -> None:
    shutil.rmtree(compared_copy / "fml-1")
    [table] = [table for table in report(read_study(compared_copy)).tables if table.name == "verdicts"]
    assert "Student's t over seeds or, where there is one seed, over test samples" in " ".join(table.remarks)
    for method in METHODS[1:3]:
        for seed in SEEDS[1:]:
            shutil.rmtree(compared_copy / f"{method.replace(':', '-')}-{seed}")
    [table] = [table for table in report(read_study(compared_copy)).tables if table.name == "verdicts"]
    assert "the 95 % interval is over test samples" in " ".join(table.remarks)


def test_a_run_without_one_alone_says_how_to_get_its_verdicts(compared: Path) -> None:
    made = report(read_study(compared / "fml-0"))
    [told] = made.sections[0].blocks
    assert "mutua compare RECIPE --methods fml,independent" in str(told)
    assert made.sections[0].title == "Is each client better off than alone?"


def test_sites_with_data_of_their_own_learn_who_opted_out_and_whether_alone_is_a_fair_rival(
    command: Callable[..., Any],
) -> None:
    rng = np.random.default_rng(0)
    for name in ("north", "south", "west"):
        x, y = rng.normal(size=(30, 5)).astype("float32"), np.arange(30) % 2
        np.savez(f"{name}.npz", x=x, y=y, withheld=np.full(30, name == "west"))
    clients = [
        {"id": name, "data": {"name": "arrays", "path": f"{name}.npz"}, "model": "mlp"}
        for name in ("north", "south", "west")
    ]
    recipe = {"clients": clients, "models": {"global": "mlp"}, "method": "finetuned", "rounds": 1}
    Path("sites.yaml").write_text(yaml.safe_dump({**recipe, "opt_out": {"mask": "withheld"}}))
    for out, alone in (("short", "independent"), ("fair", "independent:patience=10")):
        methods = ("--methods", f"finetuned,{alone}", "--seeds", "0,1")
        assert command("compare", "sites.yaml", *methods, "--out", out).code == 0
        text = html_page(report(read_study(Path(out))))
        assert "each client its own, some opted out (mask withheld)" in text
        assert "Training samples that are opted out, with seed 0: west 21 of 21." in text
        assert "two seeds make it very wide" in text
        assert ("finetuned: trained on after the last round" in text) == (out == "short")
