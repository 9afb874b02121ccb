"""Runs side by side: curves with bands over seeds, and what a study says of them."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from mutua.errors import line
from mutua.learning.headline import Headline
from mutua.reports.figures import method_colours
from mutua.studies.comparison_tables import comparison_tables
from mutua.studies.summaries import folder_names
from mutua.support import safe_reading
from mutua.support.text import Sheet
from mutua.watch.catalogue import Found, state_of
from mutua.watch.happened import LONGEST_NAME, LONGEST_REASON, Happened
from mutua.watch.inside import json_inside, open_inside, read_inside
from mutua.watch.measured import MeasuredRun, SeriesKey, few_rounds, five_digits
from mutua.watch.newest_first import NewestFirst
from mutua.watch.telling import metric_of

MOST_COMPARED = 60
"""How many runs are put into one picture."""
MOST_ROWS = 300
_OF_ONE = 1_000_000
"""How many numbers of a run without events are kept."""
_SEED = re.compile(r"^seed:.*$", re.MULTILINE)
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, StopIteration)


class Curves:
    """The curves of one run: its means by round, from its events or, if it was saved from Python, its history."""

    def __init__(self, root: Path, run: Found) -> None:
        self.root, self.run = root, run
        self.events, self._measured = Happened(), MeasuredRun(most=_OF_ONE)
        self._reader = NewestFirst(
            partial(open_inside, root, (*run.parts, "events.jsonl")),
            lambda *lines: self.events.take(*lines),
            self._again,
        )
        self._history: NewestFirst | None = None
        self._again()
        self.group = self._group()

    def _again(self) -> None:
        self.events = Happened()
        try:
            with open_inside(self.root, (*self.run.parts, "events.jsonl")) as file:
                self.events.head(file.read(2**20).partition(b"\n")[0])
        except (OSError, ValueError):
            return

    def _group(self) -> str:
        """What runs have in common that differ only in their seed: the recipe."""
        try:
            text = read_inside(self.root, (*self.run.parts, "recipe.yaml"), safe_reading.MAX_YAML_CHARACTERS)
        except (OSError, ValueError):
            return self.run.id
        return _SEED.sub("", text.decode(errors="replace"))

    def step(self) -> bool:
        """Read a piece; whether there was one."""
        more = self._reader.step()
        if not more and not self.events.ended and self.events.last in ("finished", ""):
            if self._history is None:
                opened = partial(open_inside, self.root, (*self.run.parts, "history.csv"))
                self._history = NewestFirst(opened, lambda *rows: self._measured.take(*rows), self._history_again)
            more = self._history.step()
        return more

    def _history_again(self) -> None:
        self._measured = MeasuredRun(most=_OF_ONE)

    @property
    def metric(self) -> str:
        """By what it is judged."""
        return self.events.metric or next(iter(self._measured.metrics), "accuracy")

    def curve(self, measure: str) -> dict[int, float]:
        """By round: of `clients` the mean of what they serve with, of `global` that on the common test set."""
        if self.events.ended:
            name = "own" if measure == "clients" else "shared"
            found = {round: getattr(told, name) for round, told in self.events.ended.items()}
            return {round: value for round, value in found.items() if value is not None}
        if measure == "global":
            return self._measured.common.get(self.metric, {})
        own = self._measured.series.get(SeriesKey("predictor", "test", self.metric))
        if own is None:
            return {}
        return {round: band.mean for round in own.rows if (band := own.band(round)) is not None}


class CompareView:
    """Several runs, followed together. Its methods may be called from any thread."""

    def __init__(self, root: Path, runs: Sequence[Found], study: Found | None = None) -> None:
        self.root, self.study = root, study
        self._lock = threading.Lock()
        self._curves: dict[str, Curves] = {}
        self._tables: tuple[Any, list[dict[str, Any]]] = (None, [])
        self._labels: dict[str, str] = {}
        self.update(runs)

    def update(self, runs: Sequence[Found]) -> None:
        """These are the runs now: those of a study become more."""
        self.left_out = len(runs) - min(len(runs), MOST_COMPARED)
        known = self._curves
        self._curves = {
            run.id: known[run.id] if run.id in known else Curves(self.root, run) for run in runs[:MOST_COMPARED]
        }

    def advance(self, seconds: float) -> bool:
        """Read on for about so long; whether there is more."""
        until = time.monotonic() + seconds
        with self._lock:
            more = True
            while more and time.monotonic() < until:
                more = sum(curves.step() for curves in self._curves.values()) > 0
            return more

    def parts(self) -> dict[str, Any]:
        """The page's parts by name."""
        with self._lock:
            groups = self._groups()
            metrics = list(dict.fromkeys(curves.metric for _, members in groups for curves in members))
            metric = metrics[0] if metrics else "accuracy"
            shown = [(label, members) for label, members in groups if members[0].metric == metric]
            colours = method_colours(label for label, _ in groups)
            notes = [f"Not in the picture, judged by another metric: {name}." for name in metrics[1:]]
            if self.left_out:
                notes.append(f"Only the first {MOST_COMPARED} runs are shown; {self.left_out} are left out.")
            return {
                "compare": {
                    "study": None if self.study is None else {"id": self.study.id, "name": self.study.name},
                    "folder": None if self.study is None else str(self.study.place),
                    "metric": metric_of(Headline(metric)),
                    "groups": [self._told(label, members, colours[label]) for label, members in shown],
                    "notes": notes,
                },
                "tables": self._study_tables(),
            }

    def _groups(self) -> list[tuple[str, list[Curves]]]:
        """Runs of one recipe, whatever their seed, by a label of their own."""
        found: dict[tuple[str, str], list[Curves]] = {}
        for curves in self._curves.values():
            found.setdefault((curves.run.study or "", curves.group), []).append(curves)
        labels: dict[str, list[Curves]] = {}
        named = self._named() if self.study is not None else {}
        methods = [members[0].events.method for members in found.values()]
        for members in found.values():
            first = members[0]
            label = named.get(_without_seed(first)) or first.events.method or first.run.name
            if methods.count(label) > 1 or label in labels:
                label = _without_seed(first)
            while label in labels:
                label += " (again)"
            labels[label] = members
        return list(labels.items())

    def _named(self) -> dict[str, str]:
        """By the beginning of a folder's name, what the study calls its runs."""
        self._study_tables()
        return self._labels

    def _told(self, label: str, members: list[Curves], colour: str) -> dict[str, Any]:
        return {
            "label": line(label, LONGEST_NAME),
            "colour": colour,
            "method": members[0].events.method,
            "seeds": [one.events.seed for one in members],
            "runs": [
                {
                    "id": one.run.id,
                    "name": one.run.name,
                    "seed": one.events.seed,
                    "round": max(one.events.round, 0),
                    "rounds": one.events.rounds,
                    "state": state_of(self.root, one.run.parts),
                }
                for one in members
            ],
            **{measure: band_over([one.curve(measure) for one in members]) for measure in ("clients", "global")},
        }

    def _study_tables(self) -> list[dict[str, Any]]:
        """What the study's own files say: tables with verdicts."""
        study, stamp = self.study, []
        if study is None:
            return []
        for name in ("comparison.json", "reproduction.json"):
            try:
                with open_inside(self.root, (*study.parts, name)) as file:
                    told = os.fstat(file.fileno())
                    stamp.append((told.st_ino, told.st_size, told.st_mtime_ns))
            except (OSError, ValueError):
                stamp.append((0, 0, 0))
        if self._tables[0] != stamp:
            self._tables = stamp, [*self._compared(study), *self._reproduced(study)]
        return self._tables[1]

    def _compared(self, study: Found) -> list[dict[str, Any]]:
        told = json_inside(self.root, (*study.parts, "comparison.json"), safe_reading.MAX_TEXT_BYTES)
        if not told or not told.get("summary"):
            return []
        try:
            tables = comparison_tables(told["summary"], told["runs"][0]["selection"])
            labels = [str(label) for label in told["summary"]]
            self._labels = dict(zip(folder_names(labels), labels, strict=True))
            # Differences first: they are the verdicts.
            return [_sheet(table) for table in (*tables[2:], *tables[:2])]
        except _DAMAGED:
            return [_sheet(Sheet("comparison.json is damaged: its numbers cannot be shown", (), ()))]

    def _reproduced(self, study: Found) -> list[dict[str, Any]]:
        """A paper's claims."""
        claims = json_inside(self.root, (*study.parts, "reproduction.json"), safe_reading.MAX_TEXT_BYTES).get(
            "claims"
        )
        if not isinstance(claims, list):
            return []
        rows = []
        for claim in claims[:MOST_ROWS]:
            if isinstance(claim, Mapping):
                ends = [_plain(claim.get(key)) for key in ("difference", "low", "high")]
                words = str(claim.get("text", "")), str(claim.get("measure", ""))
                rows.append([*words, ends[0], f"{ends[1]} to {ends[2]}", str(claim.get("verdict", ""))])
        heads = ("claim", "measure", "difference", "95 % interval", "verdict")
        return [_sheet(Sheet("the paper's claims in these runs", heads, rows, left=2))]


def band_over(curves: Sequence[Mapping[int, float]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds, in the rounds that all of those have that have any."""
    begun = [curve for curve in curves if curve]
    shared = sorted(set.intersection(*map(set, begun))) if begun else []
    rounds = few_rounds(shared or sorted({round for curve in begun for round in curve}))
    values = [[curve[round] for curve in begun if round in curve] for round in rounds]
    return {
        "rounds": rounds,
        "mean": [five_digits(fmean(found)) for found in values],
        "sd": [five_digits(stdev(found)) if len(found) > 1 else None for found in values],
        "seeds": len(begun),
    }


def _without_seed(one: Curves) -> str:
    return one.run.name.removesuffix(f"-{one.events.seed}")


def _sheet(table: Sheet) -> dict[str, Any]:
    """A table as data; its texts may be anybody's."""
    return {
        "title": line(table.title, LONGEST_REASON),
        "heads": [line(head, LONGEST_NAME) for head in table.heads],
        "rows": [[line(str(cell), LONGEST_REASON) for cell in row] for row in table.body[:MOST_ROWS]],
        "remarks": [line(remark, LONGEST_REASON) for remark in table.remarks[:20]],
        "left": table.left,
    }


def _plain(value: object) -> str:
    return f"{value:+.4g}" if isinstance(value, int | float) and abs(value) < 1e12 else "–"
