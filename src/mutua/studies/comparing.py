"""Fair comparisons: methods, or other cells of a grid, over the same data, splits and seeds."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from mutua.errors import InputError
from mutua.methods import base
from mutua.methods.base import Method
from mutua.recipe.grid import Cell, facets
from mutua.recipe.recipe import Recipe, expand, read_recipe
from mutua.studies.measures import Finished
from mutua.studies.statistics import Difference, Spread
from mutua.support import safe_reading
from mutua.support.files import Together, to_json
from mutua.support.text import Rows, some

MEASURES = ("global", "predictor")
DOMAINS = ("wdp", "cdp", "acc")
OVER_CLIENTS = ("worst", "spread_clients", "better_off")
COMPARED = ("method", "seed", "client", "model", "selection", "accuracy")
COLUMNS = ("seed", "client", "model", "split", "metric", "value")
MARK = "results.csv"
"""The file by which the folder of many runs is known."""
OUTSIDE_BRACKETS = r"{}(?![^\[{{]*[\]}}])"


@dataclass(frozen=True)
class Contender:
    """A method under the words by which it was named, such as "fedprox:mu=0.1"; a user's own by its own name."""

    label: str
    method: Method
    text: str = ""
    """As it was given."""

    @staticmethod
    def of(text: str, recipe: Recipe | None) -> Contender:
        """Read `name` or `name:key=value:key=value`; the recipe's own method keeps the recipe's options."""
        name, *parts = _split(":", text.strip())
        if name.lower() not in base.method_names() and parts and "=" not in parts[0]:
            name = f"{name}:{parts.pop(0)}"  # a user's own: package.module:Class
        own = {} if recipe is None else base.section_of(recipe.method)
        options = dict(own) if name == own.get("name") else {"name": name}
        for part in parts:
            key, equals, value = part.partition("=")
            if not equals or not key:
                raise InputError(f"--methods: '{text}': write options as name:key=value, such as fedprox:mu=0.1")
            try:
                options[key] = safe_reading.from_yaml(value)
            except safe_reading.Unreadable:
                raise InputError(f"--methods: '{text}': '{value}' is not a YAML value") from None
        try:
            method = base.method_of(options)
            label = ":".join([method.name, *parts]) if ":" in name else text.strip()
            return Contender(label, method, text.strip())
        except InputError as error:
            raise InputError(f"--methods: '{text}': {error}") from None


def contenders(text: str, recipe: Recipe | None) -> list[Contender]:
    """The methods of a list such as "fml,fedprox:mu=0.1,independent"."""
    found = [Contender.of(part, recipe) for part in _split(",", text) if part.strip()]
    if not found:
        raise InputError("--methods: none given; name them as fml,fedavg,independent")
    labels = [c.label for c in found]
    # A class of the user's own may have the name of a method that it is made of.
    found = [c if labels.count(c.label) == 1 or not c.text else Contender(c.text, c.method) for c in found]
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


def cells(path: Path, overrides: Sequence[str], methods: str | None) -> list[tuple[Cell, Recipe]]:
    """What a comparison runs: the cells of the recipe's grid, each with every method that is named."""
    tree = read_recipe(path, overrides)
    recipe = Recipe.of(tree, path)
    found = expand(tree, recipe.grid or {}, path)
    if methods is None and recipe.grid is None:
        raise InputError("--methods: missing; name them as fml,fedavg,independent, or give the recipe a grid")
    if methods is None:
        return found
    if recipe.grid and "method" in recipe.grid:
        raise InputError(f"--methods: {path} has a grid with an axis 'method'; leave --methods out")
    named = []
    for cell, one in found:
        for rival in contenders(methods, one):
            changes = {"method": base.section_of(rival.method), **cell.changes}
            named.append((Cell({"method": rival.label, **cell.labels}, changes), one.with_(method=rival.method)))
    return named


def uses_global_alone(run: Path) -> bool:
    """Whether a finished run's clients have no model of their own design: FedAvg and its like."""
    return (run / "global").is_dir() and not any(run.glob("clients/*/personal.safetensors"))


_BySeed = Mapping[int, dict[str, Any]]


def summarise(runs: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """By cell: mean and standard deviation over seeds, and the paired difference to the cell that it names.

    That is the first cell or, where a grid has other axes beside `method`, the first of the same labels there.
    """
    beside = facets({label: run["cell"] for label, run in runs}).values()
    first = {label: members[0] for members in beside for label in members}
    measures = MEASURES + (DOMAINS if runs and all(run["domains"] for _, run in runs) else ())
    of: dict[str, dict[int, dict[str, Any]]] = {}
    for label, run in runs:
        of.setdefault(label, {})[run["seed"]] = run
    return {label: {"minus": first[label], **_row(mine, of[first[label]], measures)} for label, mine in of.items()}


def _row(mine: _BySeed, first: _BySeed, measures: Sequence[str]) -> dict[str, Any]:
    both, runs = [seed for seed in mine if seed in first], list(mine.values())
    differences = {
        model: _difference([(_accuracy(mine[seed], model), _accuracy(first[seed], model)) for seed in both])
        for model in measures
    }
    return {
        "accuracy": {model: _spread([_accuracy(run, model) for run in runs]) for model in measures},
        "difference": differences,
        "clients": {name: _spread([run["over_clients"][name] for run in runs]) for name in OVER_CLIENTS},
        "bytes": {way: fmean([run["bytes"][way] for run in runs]) for way in ("up", "down")},
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
    found = Spread.of(values)
    return {"mean": found.mean, "std": found.sd, "values": list(values)}


def _difference(pairs: Sequence[tuple[float | None, float | None]]) -> dict[str, Any]:
    found = Difference.of_pairs([a for a, _ in pairs], [b for _, b in pairs]).within(1)
    values = [None if a is None or b is None else a - b for a, b in pairs]
    return {"mean": found.mean, "std": found.sd, "values": values, "low": found.low, "high": found.high}


def results(axes: Sequence[str], runs: Iterable[tuple[Mapping[str, str], int, Finished]]) -> str:
    """results.csv: of runs by their labels on the axes and seed, a row a number."""
    text = io.StringIO(newline="")
    writer = Rows(text)
    writer.writerow([*(f"grid.{axis}" if axis in COLUMNS else axis for axis in axes), *COLUMNS])
    for labels, seed, numbers in runs:
        writer.writerows([*(labels[axis] for axis in axes), seed, *row] for row in numbers.rows)
    return text.getvalue()


def rows(runs: Sequence[tuple[str, dict[str, Any]]]) -> list[tuple[Any, ...]]:
    """Of every run the accuracy of the global, and of predictor and global at every client."""
    made = []
    for label, run in runs:
        found = [("global", "global", run["global"]["accuracy"])]
        found += [(c["id"], model, value) for c in run["clients"] for model, value in c["accuracy"].items()]
        made += [(label, run["seed"], client, model, run["selection"], value) for client, model, value in found]
    return made


def never_trained(runs: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """A line for each run with clients whose own model never trained."""
    found = []
    for label, run in runs:
        if out := [client["id"] for client in run["clients"] if not client.get("trained", True)]:
            found.append(f"{label}, seed {run['seed']}: {some(out)} never trained: out of the predictors' means")
    return found


def folders(names: Sequence[str]) -> list[str]:
    """A folder's name for each cell, all different."""
    plain = [re.sub(r"[^\w.=-]+", "-", name)[:80] for name in names]
    return [name if plain.count(name) == 1 else f"{name}-{i}" for i, name in enumerate(plain)]


def write(files: Together, folder: Path, runs: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """comparison.csv, a row a cell, seed and client, and comparison.json with the summary."""
    text = io.StringIO(newline="")
    writer = Rows(text)
    writer.writerow(COMPARED)
    writer.writerows(rows(runs))
    report = {"runs": [{**run, "method": label} for label, run in runs], "summary": summarise(runs)}
    files.write(folder / "comparison.csv", text.getvalue())
    files.write(folder / "comparison.json", to_json(report) + "\n")
