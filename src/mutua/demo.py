"""The demo: five clients, five architectures, non-IID data, in about a minute and without a download."""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table

from mutua.errors import InputError
from mutua.methods import FML, FedAvg, Independent
from mutua.methods.base import Method
from mutua.recipe import Recipe
from mutua.reports import console, figures
from mutua.result import Result
from mutua.run import run
from mutua.runs.folder import RunFolder

RECIPE = {
    "name": "demo",
    "data": {"name": "mnist5k", "samples_per_client": 200},
    "partition": {"kind": "dirichlet", "clients": 5, "alpha": 1.0},
    "models": {
        "global": "lenet5",
        "clients": ["mlp", "lenet5", "cnn1", {"name": "cnn2", "width": 0.25}, {"name": "cnn-5x5", "width": 0.25}],
    },
    "method": "fml",
    "rounds": 15,
    "epochs": 2,
    "batch_size": 20,
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
    "evaluate_every": 1,
}

METHODS: dict[str, Method] = {"alone": Independent(), "fedavg": FedAvg(), "fml": FML()}
TITLES = {"alone": "each client alone", "fedavg": "FedAvg, one model for all", "fml": "FML, mutual learning"}


def demo(out: Path) -> dict[str, Result]:
    """Run the three methods on the same clients, show what came of it, save figure and runs in `out`."""
    recipe = Recipe.of(RECIPE)
    federation = recipe.federation()
    console.out.print(
        "Five clients hold different digits (5,000 real MNIST images come with mutua) and each has a model of its "
        "own design.\nThey learn in three ways, from the same data and seed:",
        highlight=False,
    )
    folder = RunFolder.create("demo", recipe.seed, _fresh(out))
    results: dict[str, Result] = {}
    with console.progress() as bars:
        for name, method in METHODS.items():
            place = RunFolder.create(name, recipe.seed, folder.path / name)
            place.write_recipe(recipe.with_(method=method))
            bar = console.ProgressBar(f"{TITLES[name]:26}", bars)
            results[name] = run(method, federation, plan=recipe.plan(), callbacks=[place, bar])
            place.write(results[name])
    figure = out / "demo.png"
    figures.demo_figure(_rows(results), _curves(results), figure)
    console.out.print(_table(results))
    console.out.print(_what_left(results))
    console.out.print(_closing(results, figure), highlight=False)
    return results
