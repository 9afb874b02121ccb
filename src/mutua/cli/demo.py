"""The demo: five clients, five architectures, non-IID data, in about a minute and without a download."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from mutua.methods import FML, FedAvg, Independent
from mutua.methods.base import Method
from mutua.recipe.recipe import Recipe
from mutua.reports import console, figures
from mutua.runs.execute import execute
from mutua.runs.folder import RunFolder
from mutua.runs.result import Result
from mutua.support.configuration import PathLike, local_path

RECIPE = {
    "name": "demo",
    # Few samples to learn from and many to judge by: 150 and 300 a client.
    "data": {"name": "mnist5k", "samples_per_client": 500, "split": {"val": 0.1, "test": 0.6}},
    "partition": {"kind": "shards", "clients": 5, "shards_per_client": 4},
    "models": {
        "global": "lenet5",
        "clients": ["mlp", "lenet5", "cnn1", {"name": "cnn2", "width": 0.25}, {"name": "cnn-5x5", "width": 0.25}],
    },
    "method": "fml",
    "rounds": 15,
    "epochs": 2,
    "batch_size": 20,
    "evaluate_every": 3,
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
}

METHODS: dict[str, Method] = {"alone": Independent(), "fedavg": FedAvg(), "fml": FML()}
COLUMNS = {"alone": "alone", "fedavg": "FedAvg's global", "fml": "FML personal"}
TITLES = {"alone": "each client alone", "fedavg": "FedAvg: one for all", "fml": "FML: mutual learning"}


def demo(out: PathLike) -> dict[str, Result]:
    """Run the three methods on the same clients, show what came of it, save figure and runs in `out`."""
    out = local_path(out, "--out")
    recipe = Recipe.of(RECIPE)
    federation = recipe.federation()
    console.say(
        "Five clients each hold four of the ten digits (real MNIST images, which come\n"
        "with mutua) and a model of their own design. They learn in three ways, from the\n"
        "same data and seed:"
    )
    results: dict[str, Result] = {}
    with console.bars() as bars:
        for name, method in METHODS.items():
            folder = RunFolder.create(name, recipe.seed, under=out)
            progress = console.ProgressBar(TITLES[name], bars)
            results[name] = execute(recipe.with_(method=method), federation, folder, callbacks=[progress])
    figure = out / "demo.png"
    curves = {name: result.history.curve("predictor") for name, result in results.items()}
    figures.demo_figure(_rows(results), curves, figure)
    title = "Accuracy (%) on each client's own test images, and bytes that left it:"
    remarks = (*_what_left(results), f"Figure: {figure}", _closing(results, folder.path))
    console.show(title, _table(results), *remarks)
    return results


def _rows(results: dict[str, Result]) -> list[figures.DemoRow]:
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


def _table(results: dict[str, Result]) -> Table:
    table = console.table(["client", "its model"], [*COLUMNS.values(), "left: FedAvg", "left: FML"])
    for k, row in enumerate(_rows(results)):
        scores = [console.percent(results[name].clients[k].accuracy()) for name in COLUMNS]
        left = [console.size(results[name].ledger.bytes("up", row["client"])) for name in ("fedavg", "fml")]
        table.add_row(row["client"], row["model"], *scores, *left)
    table.add_section()
    means = [console.percent(results[name].mean_accuracy()) for name in COLUMNS]
    totals = [console.size(results[name].ledger.bytes("up")) for name in ("fedavg", "fml")]
    table.add_row("mean", "", *means, *totals)
    return table


def _what_left(results: dict[str, Result]) -> tuple[str, str]:
    """In kind, beside the table's bytes."""
    left = {name: console.what_left(result) for name, result in results.items()}
    return (
        f"Left each client: alone {left['alone']}; FedAvg {left['fedavg']}; FML {left['fml']}.",
        "Images and personal models never leave. A meme is a client's copy of the shared model.",
    )


def _closing(results: dict[str, Result], run_folder: Path) -> str:
    """What was learned, in numbers of this very run."""
    alone, fedavg, fml = (100 * (results[name].mean_accuracy() or 0.0) for name in METHODS)
    return (
        f"Learned: by mutual learning the clients' own models reach {fml:.1f} %: {fml - alone:+.1f} points "
        f"against training alone, {fml - fedavg:+.1f} against one model for all. "
        f"Next: mutua compare {run_folder / 'recipe.yaml'} --methods fml,fedavg,independent --seeds 0,1,2"
    )
