"""Each client's accuracies, as bars and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mutua.reports import charts
from mutua.reports.figures import COLOURS, Picture, slug
from mutua.reports.study import Run, Study
from mutua.reports.tables import MOST_CLIENTS, CellValue, Table, scores_of
from mutua.studies.statistics import Spread


def client_blocks(study: Study, colour: Mapping[str, str]) -> Iterator[Table | Picture]:
    """Bars for every label that federates, then a row per client."""
    several = len(study.labels) > 1
    for label in study.labels:
        alone = several and study.method(label) in ("independent", "centralised")
        picture = None if alone or not study.clients(label) else _bars(study, label, colour[label])
        if picture is not None:
            yield picture
    ids = list(dict.fromkeys(client for label in study.labels for client in study.clients(label)))
    columns = {}
    for label in study.labels:
        columns[label if several else "predictor"] = [study.client(label, c, "predictor") for c in ids]
        shared = [study.client(label, c, "global") for c in ids]
        if any(value.mean is not None for value in shared) and not all(
            run.serves_global for run in study.of(label)
        ):
            columns[f"{label}, global" if several else "global"] = shared
    if not ids:
        return
    of = study.headline
    rows: list[tuple[CellValue, ...]] = [
        (c, *(scores_of(of, column[k]) for column in columns.values())) for k, c in enumerate(ids)
    ]
    title = f"{of.heading} of each client on its own test data"
    remark = "by the model that it serves with, or by the global where that is said"
    yield Table("clients", title, ("client",), tuple(columns), tuple(rows), (remark,))


def interval_tables(study: Study) -> Iterator[Table]:
    """How sure each client's number is on so few test samples; over several seeds nothing is said of it."""
    if len(study.seeds) > 1:
        return
    of, rows = study.headline, list[tuple[CellValue, ...]]()
    for run in (study.of(label)[0] for label in study.labels):
        for client, ends in list(run.intervals.items())[:MOST_CLIENTS]:
            known = run.clients[client]
            cells = (scores_of(of, Spread.of([value])) for value in (known["predictor"], *ends))
            rows.append((client, run.label, *cells, int(known["test_samples"] or 0)))
    if rows:
        title = f"{of.heading} of each client, with its 95 % interval"
        remarks = [f"the interval is over the client's own test samples: {_WAYS.get(of.metric, _BOOTSTRAP)}"]
        if any(len(study.of(label)[0].intervals) > MOST_CLIENTS for label in study.labels):
            remarks.append(f"of methods with more clients the first {MOST_CLIENTS} are listed")
        heads = (of.name, "from", "to", "test samples")
        yield Table("intervals", title, ("client", "method"), heads, tuple(rows), tuple(remarks))


_BOOTSTRAP = "a bootstrap"
_WAYS = {
    "accuracy": "exact (Clopper and Pearson)",
    "auroc": "by DeLong's variance for two classes, a bootstrap for labels",
    "rmse": "Student's t of the logarithm of the mean squared error; too narrow if errors have heavy tails",
    "mae": "Student's t of the logarithm of the mean error",
}
"""How the interval of a metric is made."""


def _bars(study: Study, label: str, colour: str) -> Picture | None:
    """Alone, with the global and with the client's own model, where they are known: sites may tell nothing."""
    ids, runs = study.clients(label), study.of(label)

    def means(of: Sequence[Run], model: str) -> list[float | None]:
        return [Spread.of([run.clients.get(c, {}).get(model) for run in of]).mean for c in ids]

    alone = [rival for run in runs if (rival := study.alone(run)) is not None]
    bars = {}
    if alone and len(alone) == len(runs):
        bars["alone"] = charts.Bars(means(alone, "predictor"), COLOURS["alone"])
    own = not all(run.serves_global for run in runs)
    if any(value is not None for value in means(runs, "global")):
        bars["global"] = charts.Bars(means(runs, "global"), colour, hatched=own)
    if own:
        bars[_served(runs[0])] = charts.Bars(means(runs, "predictor"), colour)
    if all(value is None for one in bars.values() for value in one.values):
        return None
    over = ", mean over seeds" if len(runs) > 1 else ""
    title = f"{label}: {study.headline.name} of each client on its own test data{over}"
    return charts.client_picture(f"clients-{slug(label)}", title, ids, bars, study.headline)


def _served(run: Run) -> str:
    if run.method == "independent":
        return "alone"
    return "personal" if any(run.path.glob("clients/*/personal.safetensors")) else "predictor"
