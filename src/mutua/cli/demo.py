"""`mutua demo`: clients of many architectures, in about a minute and without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

_RECIPE = {
    "name": "demo",
    # Few samples to learn from and many to judge by: 150 and 300 per client.
    "data": {"name": "mnist5k", "samples_per_client": 500, "split": {"val": 0.1, "test": 0.6}},
    "partition": {"kind": "shards", "clients": 5, "shards_per_client": 4},
    "models": {
        "global": "lenet5",
        "clients": ["mlp", "lenet5", "cnn1", {"name": "cnn2", "width": 0.25}, {"name": "cnn-5x5", "width": 0.25}],
    },
    "method": "no-regret",
    "rounds": 15,
    "epochs": 2,
    "batch_size": 20,
    "evaluate_every": 3,
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
}
TABLES = {
    "name": "demo-tables",
    "data": {"name": "hospitals", "split": {"val": 0.1, "test": 0.6}},
    "partition": {"kind": "domains"},
    "models": {
        "global": {"name": "mlp", "width": 0.25},
        "clients": [{"name": "mlp", "width": 0.5}, "linear", {"name": "res-mlp", "width": 0.5}],
    },
    "method": "no-regret",
    "rounds": 12,
    "epochs": 2,
    "batch_size": 10,
    "evaluate_every": 3,
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
}
_ABOUT = {
    "images": "Five clients each hold four of the ten digits (real MNIST images, which come\n"
    "with mutua) and a model of their own design. They learn by no-regret, where\n"
    "each also learns alone and all share one model (FedAvg), and by mutual learning:",
    "tables": "Three hospitals have tables of patients (made up, they come with mutua). They do\n"
    "not measure the same, and each has a model of its own design. They learn by\n"
    "no-regret, in which each also learns alone and all share one model (FedAvg), and by\n"
    "mutual learning (FML):",
}
METHODS = {"fml": "FML: mutual learning", "no-regret": "no-regret: the default"}


def demo_command(
    data: Annotated[
        Literal["images", "tables"], typer.Option(help="Five clients with images, or three with tables.")
    ] = "images",
    out: Annotated[Path, typer.Option(help="Folder for the figure and the runs.", metavar="DIR")] = Path(
        "mutua-demo"
    ),
) -> None:
    """See it work: clients with models of their own design."""
    from mutua.recipe.recipe import Recipe
    from mutua.reports import console
    from mutua.reports.demo import show_demo
    from mutua.runs.execute import execute
    from mutua.runs.recording import Recorder
    from mutua.support.configuration import local_path

    out = local_path(out, "--out")
    chosen = TABLES if data == "tables" else _RECIPE
    recipes = {name: Recipe.of({**chosen, "method": name}) for name in METHODS}
    federation = recipes["no-regret"].federation()
    console.say(_ABOUT[data])
    results = {}
    with console.bars() as bars:
        for name, recipe in recipes.items():
            folder = Recorder.create(name, recipe.seed, under=out)
            progress = console.ProgressBar(METHODS[name], bars)
            results[name] = execute(recipe, federation, folder, callbacks=[progress])
    show_demo(results, out / "demo.png", folder.path, "images" if data == "images" else "rows")
