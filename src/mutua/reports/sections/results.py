"""The accuracies of each method, their differences in the same seeds, and newcomers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from mutua.reports.study import Run, Study, Value, common_value
from mutua.reports.tables import Bytes, CellValue, Table, difference_of, scores_of
from mutua.studies.measures import ABOUT, counted_in_all, counts
from mutua.studies.statistics import Difference, Spread, better_or_worse
from mutua.studies.summaries import OVER_BOTH

_MEASURES = {
    "global": "global",
    "predictor": "predictor",
    "wdp": "wdp",
    "cdp": "cdp",
    "acc": "acc",
    "worst": "worst",
    "spread_clients": "spread",
    "better_off": "better off",
}
"""The measures of the table of results, and the names of their columns."""


def result_tables(study: Study) -> Iterator[Table]:
    """One row per label, one column per measure."""
    if all(run.summary is None for run in study.runs):
        return

    found = {
        name: [study.over_seeds(label, partial(_measured, study, name)) for label in study.labels]
        for name in _MEASURES
    }
    known = {name: column for name, column in found.items() if any(value.mean is not None for value in column)}
    rows: list[tuple[CellValue, ...]] = []
    for i, label in enumerate(study.labels):
        runs = study.of(label)
        sent = sum(run.ledger.bytes("up") for run in runs) / len(runs)
        cells = (_cell(study, name, column[i]) for name, column in known.items())
        rows.append((label, len(runs), *cells, Bytes(sent)))
    remarks = [f"{_MEASURES[name]}: {ABOUT[name]}" for name in known]
    remarks.append("sent: bytes that left all clients together")
    title = study.headline.heading + (": mean ± standard deviation over seeds" if len(study.seeds) > 1 else "")
    heads = ("seeds", *(_MEASURES[name] for name in known), "sent")
    yield Table("accuracies", title, ("method",), heads, tuple(rows), tuple(remarks))


def _cell(study: Study, name: str, found: Spread) -> Spread:
    return found if name == "better_off" else scores_of(study.headline, found)


def _measured(study: Study, name: str, run: Run) -> float | None:
    return run.measure(name, study.alone(run))


def difference_tables(study: Study) -> Iterator[Table]:
    """Each label's numbers minus those of the first label of its facet, in the seeds that both have."""
    rows: list[tuple[CellValue, ...]] = []
    of = study.headline
    for first, label in ((members[0], label) for members in study.facets.values() for label in members[1:]):
        for name in ("global", "predictor", "acc"):
            found = Difference.of_pairs(*_over_both(name, study.of(label), study.of(first)))
            found = found.within(1) if of.in_percent else found
            if found.low is not None and found.high is not None:
                tells = better_or_worse(found.low, found.high, of.lower_is_better)
                points = (difference_of(of, value) for value in (found.mean, found.low, found.high))
                rows.append((label, first, name, tells, found.n, *points))
    if rows:
        unit = "percentage points" if of.in_percent else of.title
        title = f"Differences in the same seeds, in {unit}, with 95 % intervals"
        heads = ("seeds", "difference", "from", "to")
        remarks = ["the interval is Student's t over seeds; better or worse: all of it is above or below 0"]
        if not all(counts(client) for run in study.runs for client in (run.summary or {}).get("clients", ())):
            remarks.append(OVER_BOTH)
        yield Table("differences", title, ("method", "minus", "measure", "is"), heads, tuple(rows), tuple(remarks))


def _over_both(name: str, mine: Sequence[Run], theirs: Sequence[Run]) -> tuple[list[Value], list[Value]]:
    """A measure in the seeds that both labels have, over the clients that count in both runs of a seed."""
    beside = {run.seed: run for run in theirs if run.summary is not None}
    pairs = [(run, beside[run.seed]) for run in mine if run.summary is not None and run.seed in beside]
    both = [(*pair, counted_in_all(*(run.summary or {} for run in pair))) for pair in pairs]
    return [a.measure(name, among=among) for a, _, among in both], [
        b.measure(name, among=among) for _, b, among in both
    ]


def newcomer_tables(study: Study) -> Iterator[Table]:
    """One row per newcomer and label."""
    rows: list[tuple[CellValue, ...]] = []
    for label in study.labels:
        runs = study.of(label)
        for name in dict.fromkeys(name for run in runs for name in run.newcomers):
            joined = [run.newcomers[name] for run in runs if name in run.newcomers]
            numbers = (
                scores_of(study.headline, Spread.of([one.accuracy.get(of) for one in joined]))
                for of in ("global", "predictor", "alone")
            )
            rows.append((label, name, common_value(one.how for one in joined) or "–", *numbers))
    if rows:
        title = f"{study.headline.heading} of newcomers on their own test data"
        remark = "joined: by what they made of the global, as it is, fine-tuned or adapted by mutual learning"
        heads = ("method", "newcomer", "how"), ("global", "joined", "alone")
        yield Table("newcomers", title, *heads, tuple(rows), (remark,))
