"""What checkpoints cost: the part of a run's time that goes into writing them, at the default interval.

Run it on a quiet machine: `python benchmarks/checkpoints.py`. It takes some minutes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from mutua.recipe.recipe import Recipe
from mutua.runs.execute import execute
from mutua.runs.recording import Recorder

COMMON: dict[str, Any] = {
    "data": {"name": "mnist5k", "samples_per_client": 200},
    "method": "fml",
    "batch_size": 50,
}
RUNS: dict[str, dict[str, Any]] = {
    "10 clients, lenet5, momentum": {
        "partition": {"kind": "iid", "clients": 10},
        "models": {"global": "lenet5"},
        "rounds": 150,
        "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
    },
    "10 clients, resnet18 at half width, Adam": {
        "partition": {"kind": "iid", "clients": 10},
        "models": {"global": "lenet5", "clients": {"name": "resnet18", "width": 0.5}},
        "rounds": 3,
        "optimizer": {"name": "adam"},
    },
    "100 clients, a tenth drawn, lenet5": {
        "data": {"name": "mnist5k", "samples_per_client": 50},
        "partition": {"kind": "iid", "clients": 100},
        "models": {"global": "lenet5"},
        "rounds": 200,
        "client_fraction": 0.1,
        "evaluate_every": 10,
    },
}


def main() -> None:
    for name, changes in RUNS.items():
        recipe = Recipe.of({**COMMON, **changes})
        with tempfile.TemporaryDirectory(dir=".") as place:
            folder = Recorder.create("benchmark", 0, Path(place) / "run")
            result = execute(recipe, recipe.federation(), folder)
            saved = [event for event in folder.events.read() if event["event"] == "checkpoint"]
        seconds, size = sum(event["seconds"] for event in saved), max(event["bytes"] for event in saved)
        print(
            f"{name}: {len(saved)} checkpoints of up to {size / 1e6:.1f} MB in {result.seconds:.0f} s; "
            f"they took {seconds:.2f} s, {100 * seconds / result.seconds:.2f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
