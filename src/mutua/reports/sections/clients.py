"""Each client's accuracies, as bars and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mutua.reports import charts
from mutua.reports.figures import COLOURS, Picture, slug
from mutua.reports.study import Run, Study
from mutua.reports.tables import CellValue, Table
from mutua.studies.statistics import Spread


def client_blocks(study: Study, colour: Mapping[str, str]) -> Iterator[Table | Picture]:
    """Bars for every label that federates, then a row per client."""
    several = len(study.labels) > 1
    for label in study.labels:
        if study.clients(label) and not (several and study.method(label) in ("independent", "centralised")):
            yield _bars(study, label, colour[label])
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
    rows: list[tuple[CellValue, ...]] = [
        (c, *(column[k] for column in columns.values())) for k, c in enumerate(ids)
    ]
    title = "Accuracy in % of each client on its own test data"
    remark = "by the model that it serves with, or by the global where that is said"
    yield Table("clients", title, ("client",), tuple(columns), tuple(rows), (remark,))


def _bars(study: Study, label: str, colour: str) -> Picture:
    """Alone, with the global and with the client's own model, where they are known."""
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
    over = ", mean over seeds" if len(runs) > 1 else ""
    title = f"{label}: accuracy of each client on its own test data{over}"
    return charts.client_picture(f"clients-{slug(label)}", title, ids, bars)


def _served(run: Run) -> str:
    if run.method == "independent":
        return "alone"
    return "personal" if any(run.path.glob("clients/*/personal.safetensors")) else "predictor"
