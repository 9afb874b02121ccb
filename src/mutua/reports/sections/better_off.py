"""Is each client better off in the federation than alone? The first thing that a site wants to know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mutua.learning.headline import ACCURACY, Headline
from mutua.reports.sections.what_was_run import enumerated
from mutua.reports.study import Run, Study
from mutua.reports.tables import MOST_CLIENTS, CellValue, Table, difference_of, scores_of
from mutua.runs.saving import benefits
from mutua.studies.comparison_tables import trained_longer
from mutua.studies.measures import not_compared
from mutua.studies.statistics import Difference, Spread, better_or_worse

_WORDS = {"better": "better off", "worse": "worse off", "equal": "equal", "cannot tell": "cannot tell"}
_ALONE = ("independent", "centralised")
"""Methods without a federation that could be compared with training alone."""


class ClientVerdict(NamedTuple):
    """What a client serves with, minus the same client alone, on its own test data."""

    client: str
    joined: Spread
    alone: Spread
    difference: Difference
    headline: Headline = ACCURACY

    @property
    def word(self) -> str:
        """Better or worse off where the whole interval is on one side of 0; equal where it is nothing but 0."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return "cannot tell"
        return _WORDS[better_or_worse(low, high, self.headline.lower_is_better)]


def client_verdicts(study: Study, label: str) -> list[ClientVerdict]:
    """One verdict per client of this label; none where no run has the same clients alone."""
    pairs = [(run, rival) for run in study.of(label) if (rival := study.alone(run)) is not None]
    found = []
    for client in study.clients(label) if pairs else ():
        both = [(_accuracy(run, client), _accuracy(rival, client)) for run, rival in pairs]
        known = [(joined, alone) for joined, alone in both if joined is not None and alone is not None]
        if not known:
            continue
        joined, alone = ([pair[i] for pair in known] for i in (0, 1))
        only = next(run for (run, _), pair in zip(pairs, both, strict=True) if None not in pair)
        samples = only.clients[client].get("test_samples")
        if len(known) == 1 and samples and study.headline == ACCURACY:
            difference = Difference.of_shares(joined[0], alone[0], int(samples))
        else:
            difference = Difference.of_pairs(joined, alone)
            if study.headline.in_percent:
                difference = difference.within(1)
        found.append(ClientVerdict(client, Spread.of(joined), Spread.of(alone), difference, study.headline))
    return found


def _accuracy(run: Run, client: str) -> float | None:
    return None if client in run.untrained else run.clients.get(client, {}).get("predictor")


def _trains_longer(study: Study, label: str) -> bool:
    """Whether clients train on until validation says stop, and those alone do not."""
    run = study.of(label)[0]
    rival = study.alone(run)
    return rival is not None and bool(_patience(run)) and not _patience(rival)


def _patience(run: Run) -> Any:
    method = run.section("method")
    return method.get("patience") if isinstance(method, Mapping) else None


def better_off_blocks(study: Study) -> Iterator[str | Table]:
    """The blocks of the report's first section: a sentence per label, then a row per client."""
    labels = [label for label in study.labels if study.method(label) not in _ALONE and study.clients(label)]
    found = {label: client_verdicts(study, label) for label in labels}
    otherwise = {label: pair for label in labels if (pair := study.alone_of_other_length(label)) is not None}
    for label, (run, rival) in otherwise.items():
        yield f"{not_compared(label, run, rival)}."
    if not any(found.values()):
        # A run of a method that keeps what clients would have alone says so by itself, in what follows.
        if labels and not otherwise and not any(benefits(run.path) for run in study.runs):
            yield (
                "Not known: no run has the same clients train alone. Compare with them: "
                f"mutua compare RECIPE --methods {study.method(labels[0])},independent."
            )
        return
    rows: list[tuple[CellValue, ...]] = []
    for label, mine in found.items():
        counted = Counter(one.word for one in mine)
        told = ", ".join(f"{counted[word]} {word}" for word in _WORDS.values() if counted[word])
        if mine or label not in otherwise:
            yield f"{label}: of {len(mine)} clients {told}." if mine else f"{label}: no run alone to compare with."
        for one in mine if len(mine) <= MOST_CLIENTS else [one for one in mine if one.word == "worse off"]:
            ends = one.difference.mean, one.difference.low, one.difference.high
            points = (difference_of(study.headline, value) for value in ends)
            scored = (scores_of(study.headline, value) for value in (one.joined, one.alone))
            rows.append((one.client, label, one.word, *scored, *points))
    if rows:
        seeds = {one.difference.n for mine in found.values() for one in mine}
        ways = ["Student's t over seeds"] * (max(seeds) > 1)
        of = study.headline
        ways += ["over test samples (Agresti and Caffo)"] * (1 in seeds and of == ACCURACY)
        over = " or, where there is one seed, ".join(ways)
        what = f"{of.title}, difference in points" if of.in_percent else f"{of.title}, and the difference"
        told = f"the 95 % interval is {over}; better or worse off: all of it is above or below 0"
        if not ways:
            told = f"one seed gives no interval of a difference in {of.name}: compare over several seeds"
        remarks = [f"by the model that it serves with, on its own test data: {what}", told]
        if len(study.seeds) == 2:
            remarks.append("two seeds make it very wide: with three or more it can tell smaller differences")
        longer = [label for label, mine in found.items() if mine and _trains_longer(study, label)]
        if longer:
            remarks.append(trained_longer(enumerated(longer)))
        if any(len(mine) > MOST_CLIENTS for mine in found.values()):
            remarks.append(
                f"of methods with more than {MOST_CLIENTS} clients only those that are worse off are listed"
            )
        heads = ("joined", "alone", "difference", "from", "to")
        title = "Each client in the federation and alone"
        yield Table("verdicts", title, ("client", "method", "is"), heads, tuple(rows), tuple(remarks))
