"""What people see of the demo: three methods on the same five clients, as a table and a figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from mutua.reports import console, figures
from mutua.runs.result import Result
from mutua.support.text import percent, size

_COLUMNS = {"alone": "alone", "fedavg": "FedAvg's global", "fml": "FML personal"}
Results = Mapping[str, Result]


def show_demo(results: Results, figure: Path, run_folder: Path, samples: str = "images") -> None:
    """Draw the figure, print the table and what can be learned from it; `samples` says what clients hold."""
    curves = {name: result.history.curve("predictor") for name, result in results.items()}
    figures.write_demo_figure(_rows(results), curves, figure)
    title = f"Accuracy (%) on each client's own test {samples}, and bytes that left it:"
    remarks = (*_what_left(results, samples), f"Figure: {figure}", _closing(results, run_folder))
    console.show_table(title, _table(results), *remarks)


def _rows(results: Results) -> list[figures.DemoRow]:
    def accuracy(name: str, client: int) -> float:
        return results[name].clients[client].accuracy() or 0.0

    return [
        figures.DemoRow(
            client=client.id,
            model=client.architecture.label,
            alone=accuracy("alone", k),
            fedavg=accuracy("fedavg", k),
            fml=accuracy("fml", k),
        )
        for k, client in enumerate(results["fml"].clients)
    ]


def _table(results: Results) -> Table:
    table = console.table(["client", "its model"], [*_COLUMNS.values(), "left: FedAvg", "left: FML"])
    for k, row in enumerate(_rows(results)):
        scores = [percent(results[name].clients[k].accuracy()) for name in _COLUMNS]
        left = [size(results[name].ledger.bytes("up", row["client"])) for name in ("fedavg", "fml")]
        table.add_row(row["client"], row["model"], *scores, *left)
    table.add_section()
    means = [percent(results[name].mean_accuracy()) for name in _COLUMNS]
    totals = [size(results[name].ledger.bytes("up")) for name in ("fedavg", "fml")]
    table.add_row("mean", "", *means, *totals)
    return table


def _what_left(results: Results, samples: str) -> tuple[str, str]:
    """What kinds of things left the clients: the table has the bytes."""
    left = {name: console.what_left(result) for name, result in results.items()}
    return (
        f"Left each client: alone {left['alone']}; FedAvg {left['fedavg']}; FML {left['fml']}.",
        f"{samples.capitalize()} and personal models never leave. A meme is a client's copy of the shared model.",
    )


def _closing(results: Results, run_folder: Path) -> str:
    """What was learned, in the numbers of this run."""
    alone, fedavg, fml = (100 * (results[name].mean_accuracy() or 0.0) for name in _COLUMNS)
    return (
        f"Learned: by mutual learning the clients' own models reach {fml:.1f} %: {fml - alone:+.1f} points "
        f"against training alone, {fml - fedavg:+.1f} against one model for all. "
        f"Next: mutua compare {run_folder / 'recipe.yaml'} --methods fml,fedavg,independent --seeds 0,1,2"
    )
