"""What each client's run has found out about joining: its models side by side on its own test samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mutua.learning.benefit import Benefit, Finding
from mutua.reports.study import Study
from mutua.reports.tables import MOST_CLIENTS, CellValue, Table, difference_of, scores_of
from mutua.runs.saving import benefits
from mutua.studies.statistics import Spread

_WORDS: dict[Finding, str] = {"better": "better off", "worse": "worse off", "cannot tell": "cannot tell"}


def certificate_blocks(study: Study) -> Iterator[str | Table]:
    """Of each label with one run that knows it: how many are better off, a sentence and a table per client."""
    for label in study.labels:
        [run, *others] = study.of(label)
        found = {} if others else benefits(run.path)
        if not found:
            continue
        counted = Counter(_WORDS[one.finding] for one in found.values())
        told = ", ".join(f"{counted[word]} {word}" for word in _WORDS.values() if counted[word])
        yield f"{label}: of {len(found)} clients {told}, each by its own test samples."
        shown = dict(list(found.items())[:MOST_CLIENTS])
        for client, one in shown.items():
            yield f"{client}: {one.sentence} Serve: {one.serve}."
        yield _table(label, shown, len(found))


def _table(label: str, found: dict[str, Benefit], clients: int) -> Table:
    rows = [row for client, one in found.items() for row in _rows(client, one)]
    of = next(iter(found.values())).headline
    remarks = [
        f"{of.title} on the client's own test samples, and by how much it is better than alone, with 95 % "
        "intervals; that of a difference is paired, over the same samples",
        *dict.fromkeys(line for one in found.values() for line in one.trust[1:]),
    ]
    if clients > len(found):
        remarks.append(f"the first {len(found)} of {clients} clients; each one's folder has a benefit.json")
    title, heads = f"{label}: each client's models", (of.name, "from", "to", "over alone", "from ", "to ", "trust")
    return Table("certificates", title, ("client", "model"), heads, tuple(rows), tuple(remarks))


def _rows(client: str, one: Benefit) -> Iterator[tuple[CellValue, ...]]:
    gains = {gain.model: gain for gain in one.gains}
    for score in one.scores:
        values = (scores_of(one.headline, Spread.of([value])) for value in (score.value, score.low, score.high))
        gain = gains.get(score.model)
        against = (None, None, None) if gain is None else (gain.value, gain.low, gain.high)
        known = one.trusted.get(score.model)
        trust: CellValue = "" if known is None else Spread.of([known.weight])
        yield (client, score.model, *values, *(difference_of(one.headline, value) for value in against), trust)
