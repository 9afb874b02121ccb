"""Reproductions: an item's runs, its table beside the paper's, and a verdict for every claim."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from mutua.engines.choice import LOCAL, EngineChoice
from mutua.learning.headline import ACCURACY
from mutua.recipe.grid import Cell, Labels
from mutua.studies.measures import (
    BESIDE_ALONE,
    REACHING,
    Measure,
    RunNumbers,
    alone_counterpart,
    counted_in_all,
)
from mutua.studies.papers.items import Claim, Item, Scale, load_item
from mutua.studies.statistics import Difference, Spread, paired
from mutua.studies.sweep import PlannedRun, Sweep
from mutua.studies.sweep_runner import SweepOutcome, Watch, run_sweep
from mutua.support import safe_reading
from mutua.support.configuration import PathLike, local_path
from mutua.support.files import to_json, write_file

_Values = Sequence[float | None]
_RECORD = "reproduction.json"
_HOW = "how"
"""The axis of an item of kind `newcomer`: what the newcomer does with one and the same run's global."""


@dataclass(frozen=True)
class TableRow:
    """A number of the paper beside ours, in the unit printed."""

    cell: str
    measure: str
    paper: float | None
    paper_spread: float | None
    ours: float | None
    ours_sd: float | None
    seeds: int
    interval: tuple[float, float] | None = None
    """Of a paper that has the same data: what one more seed would give, to 95 %."""
    verdict: str | None = None
    """Whether the paper's number is in the interval."""


@dataclass(frozen=True)
class MeasuredCell:
    """A cell with what was chosen for it by validation, if anything, and its measures: mean and deviation."""

    cell: str
    chosen: str | None
    seeds: int
    values: dict[str, tuple[float | None, float | None]]


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim with both sides' means and deviations over the same seeds, the paired difference and the verdict."""

    text: str
    control: bool
    measure: str
    paper: tuple[float | None, float | None]
    ours: tuple[tuple[float | None, float | None], tuple[float | None, float | None]]
    difference: float | None
    low: float | None
    high: float | None
    seeds: int
    verdict: str


class Reproduction:
    """An item at one scale, in a folder of its own."""

    def __init__(self, name: str, scale: Scale, seeds: Sequence[int], out: PathLike) -> None:
        self.name, self.scale, self.seeds = name, scale, seeds
        self.item: Item = load_item(name)
        self.cells = self.item.cells(scale)
        self._newcomer = self.item.kind == "newcomer"
        runs = {
            self._run(cell): (Cell(dict(self._run(cell)), cell.changes), recipe) for cell, recipe in self.cells
        }
        place = reproduction_folder(name, scale, out)
        self.sweep = Sweep(place, list(runs.values()), seeds, newcomer=self._newcomer)
        self._planned = {(tuple(run.cell.labels.items()), run.seed): run for run in self.sweep.runs}

    def _run(self, cell: Cell) -> tuple[tuple[str, str], ...]:
        """The labels that make a run: without what a newcomer does after it."""
        return tuple((axis, label) for axis, label in cell.labels.items() if not (self._newcomer and axis == _HOW))

    def run(
        self,
        watch: Watch,
        *,
        minutes: float | None = None,
        workers: int | None = None,
        engine: EngineChoice = LOCAL,
        data_dir: PathLike | None = None,
    ) -> SweepOutcome:
        """Run what is not finished, and write the record."""
        with self.sweep.locked():
            self.sweep.check(data_dir, "grid")
            before, began = self._minutes(), time.monotonic()
            try:
                return run_sweep(
                    self.sweep, watch, workers=workers, engine=engine, data_dir=data_dir, minutes=minutes
                )
            finally:
                took = before + (time.monotonic() - began) / 60
                write_file(self.sweep.place / _RECORD, to_json(self.record(took)) + "\n")

    def _minutes(self) -> float:
        found = read_record(self.sweep.place)
        return 0.0 if found is None else float(found["minutes"])

    def record(self, minutes: float) -> dict[str, Any]:
        """Everything about the item, as its record holds it."""
        return {
            "item": self.name,
            "title": self.item.title,
            "where": self.item.where,
            "scale": self.scale,
            "seeds": list(self.seeds),
            "runs": {"finished": len(self.sweep.finished), "planned": len(self.sweep.runs)},
            "minutes": minutes,
            "cut": self.cut,
            "selection": {"paper": self.item.published.selection, "ours": self.cells[0][1].selection},
            "doubt": self.item.published.doubt,
            "values": [asdict(row) for row in self.table],
            "measured": [asdict(row) for row in self.measured],
            "claims": [asdict(claim) for claim in self.claims],
            "clients": self._over_clients(),
        }

    def _over_clients(self) -> dict[str, Any]:
        """By cell, what `compare` says of clients; nothing where the item's own measures say it."""
        return {} if self.item.measures else {c: row["clients"] for c, row in self.sweep.summary().items()}

    @property
    def cut(self) -> list[str]:
        """What this scale leaves out of the paper's settings."""
        return list(self.item.laptop.cut) if self.scale == "laptop" else []

    def values(
        self, labels: Labels, measure: str, beside: Labels | None = None, whole: bool = False
    ) -> dict[int, float | None]:
        """By seed, as printed, the mean over all cells that agree with the labels.

        Seeds with a missing run are left out. If they are compared with the cells `beside` them, numbers over
        clients are of those that count in both. `whole` is what the runs took altogether.
        """
        asked = Measure.of(measure)
        found: dict[int, float | None] = {}
        for seed in self.seeds:
            runs = self._finished(labels, seed)
            rivals = [] if beside is None else self._finished(beside, seed)
            among = (
                counted_in_all(*(self.sweep.numbers(run).summary for run, _ in [*runs, *rivals]))
                if rivals
                else None
            )
            if runs:
                mean = _mean([self._value(run, how, asked, among, whole) for run, how in runs])
                found[seed] = None if mean is None else mean * asked.unit
        return found

    def _finished(self, labels: Labels, seed: int) -> list[tuple[PlannedRun, str | None]]:
        """The runs of all cells that agree with the labels, and what a newcomer does after each.

        None, if one is missing.
        """
        cells = [cell for cell, _ in self.cells if cell.agrees(labels) and self._is_chosen(cell)]
        runs = [(self._planned[self._run(cell), seed], cell.labels.get(_HOW)) for cell in cells]
        return runs if all(run.finished for run, _ in runs) else []

    def _value(
        self, run: PlannedRun, how: str | None, measure: Measure, among: set[str] | None, whole: bool
    ) -> float | None:
        if run.newcomer and how is not None and measure.name == "predictor":
            return run.joined(how)
        numbers = self.sweep.numbers(run)
        if whole:
            return numbers.whole(measure)
        return numbers.measure(measure, self._alone(run) if measure.name in BESIDE_ALONE else None, among)

    def _alone(self, run: PlannedRun) -> RunNumbers | None:
        if self.item.choose is None:
            return self.sweep.alone(run)
        others = [o for o in self.sweep.runs if o.seed == run.seed and o.finished and self._is_chosen(o.cell)]
        found = alone_counterpart(run, others)
        return None if found is None else self.sweep.numbers(found)

    def _others(self, cell: Cell) -> tuple[tuple[str, str], ...]:
        """A cell's labels without the one that is chosen."""
        return tuple((axis, label) for axis, label in cell.labels.items() if axis != self.item.choose)

    @cached_property
    def chosen(self) -> dict[tuple[tuple[str, str], ...], str]:
        """By the other labels, the label of the axis `choose` that is best on validation, by the mean over seeds.

        None of them is chosen before all of their runs are finished. Nobody looks at test data.
        """
        found: dict[tuple[tuple[str, str], ...], list[tuple[str, float]]] = {}
        axis = self.item.choose
        for cell, _ in self.cells if axis is not None else ():
            runs = [self._planned[self._run(cell), seed] for seed in self.seeds]
            told = [self.sweep.numbers(run).validated if run.finished else None for run in runs]
            if (mean := _mean(told)) is not None:
                found.setdefault(self._others(cell), []).append((cell.labels[axis or ""], mean))
        every = len({cell.labels[axis] for cell, _ in self.cells}) if axis is not None else 0
        headline = self.sweep.numbers(self.sweep.finished[0]).headline if found else ACCURACY
        return {rest: headline.best(rivals) for rest, rivals in found.items() if len(rivals) == every}

    def _is_chosen(self, cell: Cell) -> bool:
        axis = self.item.choose
        return axis is None or self.chosen.get(self._others(cell)) == cell.labels[axis]

    @cached_property
    def measured(self) -> list[MeasuredCell]:
        """The item's measures of every cell."""
        rows = []
        for labels in dict.fromkeys(self._others(cell) for cell, _ in self.cells) if self.item.measures else ():
            found = {m: Spread.of(list(self.values(dict(labels), m).values())) for m in self.item.measures}
            seeds = max(spread.n for spread in found.values())
            numbers = {measure: (spread.mean, spread.sd) for measure, spread in found.items()}
            name = ", ".join(label for _, label in labels) or "all"
            rows.append(MeasuredCell(name, self.chosen.get(labels), seeds, numbers))
        return rows

    @cached_property
    def table(self) -> list[TableRow]:
        """What the paper prints beside ours; then what claims measure in cells for which it prints nothing."""
        printed = [(v.cell, v.measure, v.value, v.spread) for v in self.item.published.values]
        told = {(frozenset(cell.items()), measure) for cell, measure, *_ in printed}
        claimed = dict.fromkeys(m for claim in self.item.claims for m in (claim.measure, claim.than_measure) if m)
        claimed = {measure: None for measure in claimed if measure not in self.item.measures}
        silent = [
            (cell.labels, measure, None, None)
            for measure in claimed
            for cell, _ in self.cells
            if (frozenset(cell.labels.items()), measure) not in told
        ]
        rows = []
        for labels, measure, value, spread in [*printed, *silent]:
            name = self._name(labels)
            ours = Spread.of(list(self.values(labels, measure).values()))
            if name is not None and (value, ours.mean) != (None, None):
                row = TableRow(name, measure, value, spread, ours.mean, ours.sd, ours.n)
                rows.append(self._beside(row, ours) if self.item.published.same_data else row)
        return rows

    def _beside(self, row: TableRow, ours: Spread) -> TableRow:
        """The row with what one more seed, and so one more split, would give; and whether theirs is like that."""
        if ours.next is None:
            return row
        low, high = ours.next
        if Measure.of(row.measure).unit != 1:  # a share
            low, high = max(low, 0.0), min(high, 100.0)
        told = None if row.paper is None else "holds" if low <= row.paper <= high else "does not hold"
        return replace(row, interval=(low, high), verdict=told)

    def _name(self, labels: Labels) -> str | None:
        """Cells in words; None where this scale has none of them."""
        agree = [cell for cell, _ in self.cells if cell.agrees(labels)]
        return None if not agree else agree[0].name if len(agree) == 1 else ", ".join(labels.values()) or "all"

    @property
    def left_out(self) -> int:
        """How many of the paper's numbers are of cells that this scale leaves out."""
        return sum(self._name(value.cell) is None for value in self.item.published.values)

    @cached_property
    def claims(self) -> list[ClaimVerdict]:
        """Every claim with its verdict."""
        return [self._judged(claim) for claim in self.item.claims]

    def _judged(self, claim: Claim) -> ClaimVerdict:
        than = claim.better if claim.than is None else claim.than
        sides = (claim.better, claim.measure, than), (than, claim.than_measure or claim.measure, claim.better)
        a, b = self.values(*sides[0]), self.values(*sides[1])
        first, second = paired(a, b)
        ours = Spread.of(first), Spread.of(second)
        if Measure.of(claim.measure).name in REACHING:
            # A run that never got there took at least its whole length, which counts if the other one got there.
            all_first, all_second = paired(self.values(*sides[0], whole=True), self.values(*sides[1], whole=True))
            first, second = _reached(first, second, all_first), _reached(second, first, all_second)
        second = [None if value is None else claim.times * value for value in second]
        found = Difference.of_pairs(second, first) if claim.lower else Difference.of_pairs(first, second)
        there = all(self._name(labels) is not None for labels, *_ in sides)
        return ClaimVerdict(
            text=claim.text,
            control=claim.control,
            measure=claim.measure,
            paper=(self._printed(*sides[0][:2]), self._printed(*sides[1][:2])),
            ours=((ours[0].mean, ours[0].sd), (ours[1].mean, ours[1].sd)),
            difference=found.mean,
            low=found.low,
            high=found.high,
            seeds=found.n,
            verdict=found.shifted(claim.margin).verdict if first else "not run" if there else "not at this scale",
        )

    def _printed(self, labels: Labels, measure: str) -> float | None:
        """The mean of what the paper prints for these cells, or for those of them that run at this scale."""
        values = self.item.published.values
        mine = [v for v in values if v.measure == measure and labels.items() <= v.cell.items()]
        run = [v for v in mine if self._name(v.cell) is not None]
        asked = Measure.of(measure)
        if not mine and len(asked.clients) > 1:  # printed one by one
            return _mean([self._printed(labels, f"{asked.name}({client})") for client in asked.clients])
        return _mean([v.value for v in run or mine])


def reproduction_folder(name: str, scale: Scale, out: PathLike) -> Path:
    """Where an item's runs are."""
    return local_path(out, "--out") / (name if scale == "laptop" else f"{name}-{scale}")


def read_record(folder: PathLike) -> dict[str, Any] | None:
    """The record of a reproduction; None where there is none."""
    try:
        found = safe_reading.from_json(safe_reading.read_text(local_path(folder, "--out") / _RECORD))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"seeds", "minutes"} <= found.keys() else None


def recomputed_record(name: str, scale: Scale, out: PathLike) -> dict[str, Any] | None:
    """The record of the item as it is now, from the runs that are there; None where there are none."""
    found = read_record(reproduction_folder(name, scale, out))
    if found is None:
        return None
    one = Reproduction(name, scale, found["seeds"], out)
    one.sweep.check_recipes()
    return one.record(found["minutes"])


def _mean(values: _Values) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _reached(values: _Values, others: _Values, whole: _Values) -> list[float | None]:
    """Values with the whole length in place of those that are missing beside the other's."""
    rows = zip(values, others, whole, strict=True)
    return [most if value is None and other is not None else value for value, other, most in rows]
