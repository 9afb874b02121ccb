"""`mutua demo`: five clients, five architectures, non-IID data, in about a minute and without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RECIPE = {
    "name": "demo",
    # Few samples to learn from and many to judge by: 150 and 300 per client.
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
METHODS = {"alone": "independent", "fedavg": "fedavg", "fml": "fml"}
TITLES = {"alone": "each client alone", "fedavg": "FedAvg: one for all", "fml": "FML: mutual learning"}


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the runs.", metavar="DIR")] = Path(
        "mutua-demo"
    ),
) -> None:
    """See it work: five clients, five architectures, about a minute."""
    from mutua.recipe.recipe import Recipe
    from mutua.reports import console
    from mutua.reports.demo import show_demo
    from mutua.runs.execute import execute
    from mutua.runs.recording import Recorder
    from mutua.support.configuration import local_path

    out = local_path(out, "--out")
    recipes = {name: Recipe.of({**RECIPE, "method": method}) for name, method in METHODS.items()}
    federation = recipes["fml"].federation()
    console.say(
        "Five clients each hold four of the ten digits (real MNIST images, which come\n"
        "with mutua) and a model of their own design. They learn in three ways, from the\n"
        "same data and seed:"
    )
    results = {}
    with console.bars() as bars:
        for name, recipe in recipes.items():
            folder = Recorder.create(name, recipe.seed, under=out)
            progress = console.ProgressBar(TITLES[name], bars)
            results[name] = execute(recipe, federation, folder, callbacks=[progress])
    show_demo(results, out / "demo.png", folder.path)
