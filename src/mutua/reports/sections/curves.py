"""Accuracy over rounds, and against the bytes that were sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mutua.reports import charts
from mutua.reports.figures import Picture, named_by
from mutua.reports.study import Study

_CURVES = {
    "predictor": "Mean {} of the clients' predictors on their own test data",
    "global": "{} of the global on the common test set",
    "acc": "Mean {} of the clients' predictors over all domains",
}
"""Titles, in which the metric has a place."""


def curve_blocks(study: Study, colour: Mapping[str, str]) -> Iterator[str | Picture]:
    """Learning curves, one picture per measure and facet."""
    drawn = [
        charts.curve_picture(name, title, lines, study.headline)
        for measure in _CURVES
        for name, title, lines in _lines(study, measure, colour)
        if any(len(line.x) > 1 for line in lines.values())
    ]
    yield from drawn
    if drawn and len(study.seeds) > 1:
        yield "A band is one standard deviation over seeds to each side."


def _lines(
    study: Study, measure: str, colour: Mapping[str, str], sent: bool = False
) -> Iterator[tuple[str, str, dict[str, charts.Line]]]:
    """Name, title and lines of each picture: several where a grid has more axes than the method."""
    for facet, members in study.facets.items():
        found = {}
        for label in members:
            runs = study.of(label)
            at = [run.sent() for run in runs] if sent else None
            line = charts.Line.of([run.curve(measure) for run in runs], colour[label], at)
            if line is not None:
                found[study.contender(label) if facet else label] = line
        kind, against = ("trade-off", ", against bytes sent") if sent else ("curve", "")
        of = study.headline
        title = _CURVES[measure].format(of.name_first if _CURVES[measure][0] == "{" else of.name)
        yield *named_by(f"{kind}-{measure}", title + against, facet), found


def trade_off_blocks(study: Study, colour: Mapping[str, str]) -> Iterator[str | Picture]:
    """The same against bytes, where anything was sent."""
    drawn = [
        charts.trade_off_picture(name, title, lines, study.headline)
        for measure in ("predictor", "global")
        for name, title, lines in _lines(study, measure, colour, sent=True)
        if any(not line.flat for line in lines.values())
    ]
    yield from drawn
    if drawn and any(not run.ledger.bytes("up") for run in study.runs):
        yield f"A dashed line sends no message: it is the {study.headline.name} after the last round."
