"""Fair comparisons: several methods over the same data, splits and seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

from mutua.errors import InputError
from mutua.methods import base
from mutua.methods.base import Method
from mutua.recipe import Recipe
from mutua.result import Result

MEASURES = ("global", "predictor")
DOMAINS = ("wdp", "cdp", "acc")


@dataclass(frozen=True)
class Contender:
    """A method under the words by which it was named, such as "fedprox:mu=0.1"."""

    label: str
    method: Method

    @staticmethod
    def of(text: str, recipe: Recipe) -> Contender:
        """Read `name` or `name:key=value:key=value`; the recipe's own method keeps the recipe's options."""
        parts = text.strip().split(":")
        first = next((i for i, part in enumerate(parts) if "=" in part), len(parts))
        name = ":".join(parts[:first])
        own = base.spec(recipe.method)
        options = dict(own) if name == own["name"] else {"name": name}
        for part in parts[first:]:
            key, equals, value = part.partition("=")
            if not equals or not key:
                raise InputError(f"--methods: '{text}': write options as name:key=value, such as fedprox:mu=0.1")
            options[key] = yaml.safe_load(value)
        return Contender(text.strip(), base.of(options))


def contenders(text: str, recipe: Recipe) -> list[Contender]:
    """The methods of a list such as "fml,fedprox:mu=0.1,independent"."""
    found = [Contender.of(part, recipe) for part in text.split(",") if part.strip()]
    if not found:
        raise InputError("--methods: none given; name them as fml,fedavg,independent")
    labels = [c.label for c in found]
    if len(set(labels)) < len(labels):
        raise InputError(f"--methods: '{next(x for x in labels if labels.count(x) > 1)}' is named twice")
    return found


def seeds(text: str) -> list[int]:
    """The seeds of a list such as "0,1,2"."""
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"--seeds: '{text}'; give whole numbers such as 0,1,2") from None
    if not found or min(found) < 0 or len(set(found)) < len(found):
        raise InputError(f"--seeds: '{text}'; give different whole numbers from 0 on, such as 0,1,2")
    return found


Runner = Callable[[Recipe, str], Result]


def compare(
    recipe: Recipe, methods: Sequence[Contender], seeds: Sequence[int], runner: Runner
) -> Iterator[tuple[str, Result]]:
    """Every method with every seed; the seed fixes data, split, partition and starting weights for all."""
    for seed in seeds:
        for contender in methods:
            yield contender.label, runner(recipe.with_(seed=seed, method=contender.method), contender.label)


def summarise(runs: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """By method: mean and standard deviation over seeds, and the paired difference to the first method."""
    labels = list(dict.fromkeys(label for label, _ in runs))
    measures = MEASURES + (DOMAINS if all(run["domains"] for _, run in runs) else ())
    values = {
        label: {model: [_accuracy(run, model) for name, run in runs if name == label] for model in measures}
        for label in labels
    }
    first = values[labels[0]]
    return {
        label: {
            "accuracy": {model: _spread(values[label][model]) for model in measures},
            "difference": {
                model: _spread(
                    [
                        None if a is None or b is None else a - b
                        for a, b in zip(values[label][model], first[model], strict=True)
                    ]
                )
                for model in measures
            },
            "bytes": {
                direction: fmean([run["bytes"][direction] for name, run in runs if name == label])
                for direction in ("up", "down")
            },
        }
        for label in labels
    }


def _accuracy(run: dict[str, Any], model: str) -> float | None:
    """The global on the common test set; predictors on their clients' own test data, mean over clients.

    Where clients have domains, also their predictors within, across and over all domains.
    """
    if model in DOMAINS:
        return None if run["domains"][model] is None else float(run["domains"][model])
    found = run["global"]["accuracy"] if model == "global" else run["mean"]["predictor"]["accuracy"]
    return None if found is None else float(found)


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return {"mean": None, "std": None, "values": list(values)}
    return {"mean": fmean(known), "std": stdev(known) if len(known) > 1 else 0.0, "values": known}


def write(path: Path, runs: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """One tidy CSV: a row a method, seed and client."""
    import csv

    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "seed", "client", "model", "accuracy"])
        for label, run in runs:
            writer.writerow([label, run["seed"], "global", "global", run["global"]["accuracy"]])
            for client in run["clients"]:
                for model, accuracy in client["accuracy"].items():
                    writer.writerow([label, run["seed"], client["id"], model, accuracy])
