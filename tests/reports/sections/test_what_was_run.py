"""What was run, in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mutua.reports.report import compose as report
from mutua.reports.study import read_study
from reading_reports import Page, Runs, said


def test_what_was_run_is_said(compared_page: str) -> None:
    page = Page(compared_page)
    said = " ".join(page.text.split())
    for words in (
        "fml, fedavg, fedprox:mu=0.1 and independent were compared over seeds 0 and 1.",
        "The 3 clients (c0, c1 and c2) learned from mnist5k (60 samples per client), dealt by shards",
        "Their own models: mlp; the global: mlp.",
        "With fedavg and fedprox:mu=0.1 every client serves with the global.",
        "3 rounds of 1 epoch, batches of 7, optimizer sgd (lr 0.1, momentum 0.9).",
        "after the last round; nothing was selected on test data",
        "fml-0/recipe.yaml",
        "torch ",
    ):
        assert words in said
    settings = dict(page.tables["settings"])
    assert "method.mu 0.1" in settings["fedprox:mu=0.1"]
    assert "rounds" not in "".join(settings.values())  # which are the same for all


def test_the_datas_path_is_named(command: Callable[..., Any]) -> None:
    raw = np.random.default_rng(0)
    np.savez("mine.npz", x=raw.integers(0, 256, (60, 8, 8), np.uint8), y=np.arange(60) % 2)
    data = ("--set", "data={name: arrays, path: mine.npz}", "--set", "partition={kind: iid, clients: 2}")
    assert command("run", "tiny.yaml", *data, "--out", "out").code == 0
    assert "learned from arrays mine.npz, dealt by iid" in said(report(read_study(Path("out"))))


def test_one_runs_options_are_said(finished: Runs) -> None:
    folder, _ = finished({"name": "fml", "beta": {"schedule": "linear", "start": 0.3, "end": 0.7}})
    options = "combine mean, temperature 1.0, init own, alpha 0.5, beta linear (start 0.3, end 0.7)"
    assert f"Its options: {options}." in said(report(read_study(folder)))
