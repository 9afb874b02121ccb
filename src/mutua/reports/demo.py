"""What people see of the demo: two methods, and what the second contains, as a table and a figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from mutua.reports import console, figures
from mutua.runs.result import Result
from mutua.support.text import percent, size

_COLUMNS = {"alone": "alone", "fedavg": "FedAvg's global", "fml": "FML personal", "no-regret": "no-regret"}
_WHERE = {
    "alone": ("no-regret", "personal"),
    "fedavg": ("no-regret", "global"),
    "fml": ("fml", "predictor"),
    "no-regret": ("no-regret", "predictor"),
}
"""The run and the model that a column is of: clients of no-regret also have FedAvg's global and a model alone."""
Results = Mapping[str, Result]


def show_demo(results: Results, figure: Path, run_folder: Path, samples: str = "images") -> None:
    """Draw the figure, print the table and what can be learned from it; `samples` says what clients hold."""
    curves = {name: results[run].history.curve(model) for name, (run, model) in _WHERE.items()}
    # The mixture is made after the last round: its curve is a point.
    curves["no-regret"] = curves["no-regret"][-1:]
    figures.write_demo_figure(_rows(results), curves, figure)
    title = f"Accuracy (%) on each client's own test {samples}, and bytes that left it:"
    first = results["no-regret"].clients[0]
    told = f"For client {first.id} in words: {first.benefit(noun=samples).sentence}"
    remarks = (*_what_left(results, samples), told, f"Figure: {figure}", _closing(results, run_folder))
    console.show_table(title, _table(results), *remarks)


def _rows(results: Results) -> list[figures.DemoRow]:
    return [
        figures.DemoRow(
            client=client.id,
            model=client.architecture.label,
            accuracy={
                name: results[run].clients[k].accuracy(model) or 0.0 for name, (run, model) in _WHERE.items()
            },
        )
        for k, client in enumerate(results["fml"].clients)
    ]


def _means(results: Results) -> dict[str, float | None]:
    return {name: results[run].mean_accuracy(model) for name, (run, model) in _WHERE.items()}


def _table(results: Results) -> Table:
    table = console.table(["client", "its model"], [*_COLUMNS.values(), "left it"])
    for row in _rows(results):
        left = size(results["no-regret"].ledger.bytes("up", row["client"]))
        table.add_row(row["client"], row["model"], *map(percent, row["accuracy"].values()), left)
    table.add_section()
    total = size(results["no-regret"].ledger.bytes("up"))
    table.add_row("mean", "", *map(percent, _means(results).values()), total)
    return table


def _what_left(results: Results, samples: str) -> tuple[str, str]:
    """What kinds of things left the clients: the table has the bytes."""
    left = {name: console.what_left(result) for name, result in results.items()}
    return (
        f"Left each client: alone nothing; FML {left['fml']}; no-regret, as FedAvg, {left['no-regret']}.",
        f"{samples.capitalize()} and personal models never leave. A meme is a client's copy of the shared model.",
    )


def _closing(results: Results, run_folder: Path) -> str:
    """What was learned, in the numbers of this run."""
    alone, fedavg, fml, mixed = (100 * (value or 0.0) for value in _means(results).values())
    return (
        f"Learned: with no-regret clients reach {mixed:.1f} %: {mixed - alone:+.1f} points against training "
        f"alone, {mixed - fedavg:+.1f} against one model for all, {mixed - fml:+.1f} against mutual learning. "
        f"Next: mutua compare {run_folder / 'recipe.yaml'} --methods no-regret,fml,independent --seeds 0,1,2"
    )
