"""Fair comparisons: several methods over the same data, splits and seeds."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from mutua import untrusted
from mutua.errors import InputError
from mutua.federation import Federation
from mutua.methods import base
from mutua.methods.base import Method
from mutua.plan import Plan
from mutua.recipe import Recipe
from mutua.result import Result
from mutua.runner import prepared
from mutua.runs.files import to_json

MEASURES = ("global", "predictor")
DOMAINS = ("wdp", "cdp", "acc")
OUTSIDE_BRACKETS = r"{}(?![^\[{{]*[\]}}])"


@dataclass(frozen=True)
class Contender:
    """A method under the words by which it was named, such as "fedprox:mu=0.1"."""

    label: str
    method: Method

    @staticmethod
    def of(text: str, recipe: Recipe) -> Contender:
        """Read `name` or `name:key=value:key=value`; the recipe's own method keeps the recipe's options."""
        name, *parts = _split(":", text.strip())
        if name.lower() not in base.names() and parts and "=" not in parts[0]:
            name = f"{name}:{parts.pop(0)}"  # a user's own: package.module:Class
        own = base.spec(recipe.method)
        options = dict(own) if name == own["name"] else {"name": name}
        for part in parts:
            key, equals, value = part.partition("=")
            if not equals or not key:
                raise InputError(f"--methods: '{text}': write options as name:key=value, such as fedprox:mu=0.1")
            try:
                options[key] = untrusted.from_yaml(value)
            except untrusted.Unreadable:
                raise InputError(f"--methods: '{text}': '{value}' is not a YAML value") from None
        try:
            return Contender(text.strip(), base.of(options))
        except InputError as error:
            raise InputError(f"--methods: '{text}': {error}") from None


def contenders(text: str, recipe: Recipe) -> list[Contender]:
    """The methods of a list such as "fml,fedprox:mu=0.1,independent"."""
    found = [Contender.of(part, recipe) for part in _split(",", text) if part.strip()]
    if not found:
        raise InputError("--methods: none given; name them as fml,fedavg,independent")
    labels = [c.label for c in found]
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise InputError(f"--methods: '{twice}' is named twice; name each method once, or with other options")
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


def _split(mark: str, text: str) -> list[str]:
    """Split at a mark, but not inside the brackets of a value such as [0.9, 0.5]."""
    return re.split(OUTSIDE_BRACKETS.format(mark), text)


Runner = Callable[[Recipe, Federation, str], Result]


def compare(
    recipe: Recipe,
    methods: Sequence[Contender],
    seeds: Sequence[int],
    runner: Runner,
    data_dir: Path | None = None,
) -> Iterator[tuple[str, Result]]:
    """Every method with every seed; the seed fixes data, split, partition and starting weights for all."""
    for seed in seeds:
        seeded = recipe.with_(seed=seed)
        federation = seeded.federation(data_dir)
        for contender in methods if seed == seeds[0] else ():  # before the first has run for an hour
            _check(contender, federation, seeded)
        for contender in methods:
            yield contender.label, runner(seeded.with_(method=contender.method), federation, contender.label)


def _check(contender: Contender, federation: Federation, plan: Plan) -> None:
    try:
        prepared(contender.method, federation, plan)
    except InputError as error:
        raise InputError(f"--methods: '{contender.label}': {error}") from None


def uses_global_alone(result: Result) -> bool:
    """Whether clients have no model of their own design: FedAvg and its like."""
    return result.global_state is not None and all("personal" not in client.state for client in result.clients)


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
                        for a, b in zip(values[label][model], first[model], strict=False)
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
    """Mean and standard deviation (n − 1); one seed has no deviation, and a missing value leaves no mean."""
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return {"mean": None, "std": None, "values": list(values)}
    return {"mean": fmean(known), "std": stdev(known) if len(known) > 1 else None, "values": known}


def write(folder: Path, runs: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """comparison.csv, a row a method, seed and client, and comparison.json with the summary."""
    with (folder / "comparison.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "seed", "client", "model", "selection", "accuracy"])
        for label, run in runs:
            found = [("global", "global", run["global"]["accuracy"])]
            found += [(c["id"], model, value) for c in run["clients"] for model, value in c["accuracy"].items()]
            for client, model, accuracy in found:
                writer.writerow([label, run["seed"], client, model, run["selection"], accuracy])
    report = {"runs": [{**run, "method": label} for label, run in runs], "summary": summarise(runs)}
    (folder / "comparison.json").write_text(to_json(report) + "\n", encoding="utf-8")
