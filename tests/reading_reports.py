"""Reports, read again: tables by title, all text, and the numbers of the `compared` runs calculated by hand."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from mutua.reports.document import Report

Runs = Callable[..., tuple[Path, Any]]
ODD = "<b>$x_{&\\"
SEEDS = (0, 1)
METHODS = ("fml", "fedavg", "fedprox:mu=0.1", "independent")


class Page(HTMLParser):
    """Tables by the id of their titles, images, every attribute that could load something, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.images: list[dict[str, str]] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        held = {key: value or "" for key, value in attrs}
        self.tags.append(tag)
        self.loads += [held[key] for key in ("src", "href", "srcset", "data", "action") if key in held]
        if tag == "table":
            self._rows = self.tables.setdefault(held["aria-labelledby"].removeprefix("table-"), [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
            self._cell = True
        elif tag == "img":
            self.images.append(held)

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._cell:
            self._rows[-1][-1] += data


def markdown_rows(text: str) -> list[list[str]]:
    lines = [line[2:-2] for line in text.splitlines() if line.startswith("|")]
    found = [re.split(r" (?<!\\)\| ", line) for line in lines]
    return [[re.sub(r"\\(.)", r"\1", cell) for cell in row] for row in [found[0], *found[2:]]]


def latex_rows(text: str) -> list[list[str]]:
    words = {r"\textless{}": "<", r"\textgreater{}": ">", r"$\pm$": "±", r"\textbackslash{}": "\\", "--": "–"}
    found = []
    for line in text.splitlines():
        if line.endswith(r" \\"):
            cells = re.split(r" (?<!\\)& ", line[:-3])
            for tex, plain in words.items():
                cells = [cell.replace(tex, plain) for cell in cells]
            found.append([re.sub(r"\\([&%$#_{}])", r"\1", cell) for cell in cells])
    return found


def said(made: Report) -> str:
    """All paragraphs."""
    return " ".join(block for section in made.sections for block in section.blocks if isinstance(block, str))


def by_hand(compared: Path) -> dict[str, dict[str, Any]]:
    """The results again, from the files of the runs and NumPy alone."""
    found: dict[str, dict[str, Any]] = {}
    summaries = {
        (method, seed): json.loads((compared / f"{method.replace(':', '-')}-{seed}" / "run.json").read_text())[
            "summary"
        ]
        for method in METHODS
        for seed in SEEDS
    }
    for method in METHODS:
        mine = [summaries[method, seed] for seed in SEEDS]
        own = np.array([[c["accuracy"]["predictor"] for c in one["clients"]] for one in mine])
        alone = np.array(
            [[c["accuracy"]["predictor"] for c in summaries["independent", seed]["clients"]] for seed in SEEDS]
        )
        sent = []
        for seed in SEEDS:
            with (compared / f"{method.replace(':', '-')}-{seed}" / "ledger.csv").open(newline="") as file:
                sent.append(sum(int(r["bytes"]) for r in csv.DictReader(file) if r["direction"] == "up"))
        found[method] = {
            "global": None if method == "independent" else [one["global"]["accuracy"] for one in mine],
            "predictor": own.mean(1),
            "worst": own.min(1),
            "spread": own.std(1),
            "better off": None if method == "independent" else (own > alone).mean(1),
            "sent": np.mean(sent),
        }
    return found


def told(value: Any) -> str:
    return "–" if value is None else f"{100 * np.mean(value):.1f} ± {100 * np.std(value, ddof=1):.1f}"
