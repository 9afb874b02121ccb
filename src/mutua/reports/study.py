"""What a report knows: the runs of a folder, from their files. Nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mutua.data.sources import PYTHON
from mutua.errors import InputError, line
from mutua.federation.ledger import Ledger
from mutua.learning.headline import Headline
from mutua.recipe.grid import facets
from mutua.rounds.history import History
from mutua.rounds.privacy_guarantee import Guarantee
from mutua.runs.listing import RunOverview, find_runs
from mutua.runs.newcomer import JoinRecord, read_joined
from mutua.studies.measures import (
    Measure,
    RunNumbers,
    alone_counterpart,
    alone_of_other_length,
    training_length,
    uses_global_alone,
)
from mutua.studies.statistics import Spread
from mutua.support import safe_reading
from mutua.support.configuration import PathLike, local_path, similar_path
from mutua.support.files import reason

Value = float | None
COMPARISON = "comparison.json"


@dataclass(frozen=True)
class Run:
    """One run: its recipe, its rows and, where it is finished, its numbers."""

    overview: RunOverview
    label: str
    history: History
    ledger: Ledger
    numbers: RunNumbers | None
    versions: Mapping[str, str]
    notes: Sequence[str] = ()
    """What a reader should know about its data."""
    command: str | None = None
    """What was typed to start it, where that is known."""
    newcomers: Mapping[str, JoinRecord] = field(default_factory=dict)
    """By folder, the clients that joined after training."""
    position: Mapping[str, str] = field(default_factory=dict)
    """Its labels by axis, where a grid was run."""

    @classmethod
    def of(cls, overview: RunOverview) -> Run:
        """Read its folder."""
        folder = overview.folder
        begun = [event for event in folder.events.read() if "versions" in event]  # and resumed
        typed = [line(event["command"]) for event in begun if isinstance(event.get("command"), str)]
        command = typed[0] if typed else None
        if folder.finished:
            numbers, record = RunNumbers(folder.path), folder.record
            rows, known = (numbers.history, numbers.ledger), (record.versions, record.notes)
            joined = sorted(file.parent for file in folder.path.glob("newcomers/*/join.json"))
            newcomers = {line(place.name): read_joined(place) for place in joined}
            return cls(overview, overview.method, *rows, numbers, *known, command, newcomers)
        versions = begun[-1]["versions"] if begun else {}
        return cls(overview, overview.method, *folder.rows(), None, versions, (), command)

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.overview.folder.path

    @property
    def method(self) -> str:
        """The method's name."""
        return self.overview.method

    @property
    def alone(self) -> bool:
        """Whether its clients train alone, in every round; older runs, without `drawn_only`, did not."""
        options = self.section("method")
        drawn_only = options.get("drawn_only", True) if isinstance(options, Mapping) else True
        return self.method == "independent" and (
            not drawn_only or self.section("client_fraction") in (None, 1, 1.0)
        )

    @property
    def length(self) -> str | None:
        """How long a client was to train; None where it trained alone until validation said stop."""
        options = self.section("method")
        if self.alone and isinstance(options, Mapping) and options.get("patience") is not None:
            return None
        return training_length(self.section("rounds"), self.section("epochs"), self.section("steps"))

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.overview.seed or 0

    @property
    def summary(self) -> Mapping[str, Any] | None:
        """What a finished run says of its results."""
        return None if self.numbers is None else self.numbers.summary

    @property
    def headline(self) -> Headline:
        """The metric that its numbers are of: accuracy, unless its task has another."""
        return self.history.headline

    @property
    def untrained(self) -> set[str]:
        """Clients that serve with a model that was never trained."""
        return set() if self.numbers is None else self.numbers.untrained

    def section(self, key: str) -> Any:
        """A section of its recipe."""
        return self.overview.recipe.get(key)

    @cached_property
    def clients(self) -> dict[str, dict[str, Value]]:
        """By client, the headline metric of predictor and global on its own test data, and the size of that."""
        if self.summary is None:
            return {}
        return {
            str(c["id"]): {model: _number(c[self.headline.metric][model]) for model in ("predictor", "global")}
            | {"test_samples": _number(c.get("test_samples"))}
            for c in self.summary["clients"]
        }

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """By client, the 95 % interval of its predictor's headline metric on its own test data, if known."""
        of_clients = (self.summary or {}).get("clients", ())
        found = {str(c["id"]): (c.get("interval") or {}).get("predictor") for c in of_clients}
        return {client: (float(ends[0]), float(ends[1])) for client, ends in found.items() if ends}

    def measure(self, name: str, alone: Run | None = None, among: Collection[str] | None = None) -> Value:
        """One of the run's numbers, by the measure's name; `alone` is the same clients' run without others.

        Numbers over clients are over all that count, or over those `among` these.
        """
        if self.numbers is None:
            return None
        return _number(self.numbers.measure(Measure(name), alone.numbers if alone else None, among))

    def curve(self, measure: str) -> dict[int, float]:
        """By round, the global on the common test set, or the mean over clients of their predictors."""
        if measure == "global":
            return dict(self.history.global_curve())
        return dict(self.history.curve("predictor", metric=None if measure == "predictor" else measure))

    def sent(self) -> dict[int, int]:
        """By round, the bytes that had left all clients by then."""
        rounds: dict[int, int] = {0: 0}
        for entry in self.ledger:
            if entry.direction == "up":
                rounds[entry.round] = rounds.get(entry.round, 0) + entry.bytes
        return dict(zip(sorted(rounds), np.cumsum([rounds[at] for at in sorted(rounds)]).tolist(), strict=True))

    @property
    def privacy(self) -> str:
        """What its messages promise."""
        told = (self.summary or {}).get("privacy")
        if self.summary is None and self.section("privacy"):
            return "asked for; what it is worth is known when the run is finished"
        if told is None:
            return "none"
        return str(Guarantee.of(told))

    @cached_property
    def confusions(self) -> dict[str, tuple[list[str], np.ndarray]]:
        """By client, its classes and its predictor's confusion matrix without zeros: true, predicted, count."""
        found = {}
        for file in sorted(self.path.glob("clients/*/confusion.json")):
            held = safe_reading.from_json(safe_reading.read_text(file))
            classes = list(map(str, held["classes"]))
            if "confusion" in held:  # the whole matrix, as older versions wrote it
                matrix = np.asarray(held["confusion"], int)
                cells = np.column_stack([*matrix.nonzero(), matrix[matrix.nonzero()]])
            else:
                cells = np.asarray(held["cells"], int).reshape(-1, 3)
            if cells.min(initial=0) < 0 or cells[:, :2].max(initial=0) >= len(classes):
                raise ValueError(f"{file.name} counts what is not among its classes")
            found[file.parent.name] = classes, cells
        return found

    def labels(self) -> tuple[np.ndarray, list[str], list[str]] | None:
        """Test samples by client and class, from the clients' confusion matrices; clients; classes."""
        counts = {
            client: dict(zip(classes, _summed(cells[:, 0], cells[:, 2], len(classes)), strict=True))
            for client, (classes, cells) in self.confusions.items()
        }
        if not counts:
            return None
        classes = list(dict.fromkeys(name for mine in counts.values() for name in mine))
        table = np.array([[mine.get(name, 0) for name in classes] for mine in counts.values()])
        return table, list(counts), classes

    @property
    def serves_global(self) -> bool:
        """Whether its clients have no models of their own, as with FedAvg."""
        alike = all(scores["predictor"] == scores["global"] for scores in self.clients.values())
        return alike and uses_global_alone(self.path)

    @property
    def made_in_python(self) -> bool:
        """Whether its data were objects, which no file holds."""
        return any(str(entry["data"]["name"]).startswith(PYTHON) for entry in self.section("clients") or [])

    @property
    def dealt(self) -> list[Any]:
        """Which data its clients have."""
        entries = [(entry["id"], entry["data"]) for entry in self.section("clients") or []]
        return [self.seed, self.section("data"), self.section("partition"), entries]


@dataclass(frozen=True)
class Study:
    """All runs of a report, by label in the order of the comparison; what is missing, and why."""

    path: Path
    runs: tuple[Run, ...]
    missing: list[str] = field(default_factory=list)

    @property
    def headline(self) -> Headline:
        """The metric that its numbers are of; runs of several tasks have that of the first."""
        return self.runs[0].headline

    @property
    def labels(self) -> list[str]:
        """What is compared."""
        return list(dict.fromkeys(run.label for run in self.runs))

    def of(self, label: str) -> list[Run]:
        """Its runs, by seed."""
        return sorted((run for run in self.runs if run.label == label), key=lambda run: run.seed)

    def clients(self, label: str) -> list[str]:
        """The ids of its clients."""
        return list(dict.fromkeys(client for run in self.of(label) for client in run.clients))

    def client(self, label: str, client: str, model: str) -> Spread:
        """A client's headline metric over seeds, by its predictor or the global; empty where it took no part."""
        runs = self.of(label) if client in self.clients(label) else []
        return Spread.of([run.clients.get(client, {}).get(model) for run in runs])

    def method(self, label: str) -> str:
        """The method behind a label."""
        return self.of(label)[0].method

    def contender(self, label: str) -> str:
        """The label's part that names the method, where a grid has other axes too."""
        return self.of(label)[0].position.get("method", label)

    @property
    def facets(self) -> dict[str, list[str]]:
        """The labels of each picture, by what they have in common on the axes other than the method."""
        return facets({label: self.of(label)[0].position for label in self.labels})

    @property
    def seeds(self) -> list[int]:
        """All seeds."""
        return sorted({run.seed for run in self.runs})

    def alone(self, run: Run) -> Run | None:
        """The run in which the same clients train alone."""
        return alone_counterpart(run, self.runs)

    def alone_of_other_length(self, label: str) -> tuple[Run, Run] | None:
        """A run of this label and one of its clients alone that is longer or shorter: they are not compared."""
        pairs = ((run, alone_of_other_length(run, self.runs)) for run in self.of(label))
        return next(((run, rival) for run, rival in pairs if rival is not None), None)

    def over_seeds(self, label: str, value: Callable[[Run], Value]) -> Spread:
        """A number of each run of this label."""
        return Spread.of([value(run) for run in self.of(label)])


@contextmanager
def damage_as_input_error(path: Path) -> Iterator[None]:
    """Around code that expects files as mutua writes them: where they are not, the error is one line."""
    try:
        yield
    except (OSError, LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{reason(error)} is missing" if isinstance(error, KeyError) else reason(error)
        raise InputError(f"RUN: {path} cannot be read ({what}); it is damaged") from error


def read_study(path: PathLike) -> Study:
    """The run, or the runs of the comparison, in this folder."""
    path = local_path(path, "RUN")
    with damage_as_input_error(path):
        if not (path / "recipe.yaml").is_file():
            return _comparison(path)
        run = Run.of(RunOverview.of(path))
        study = Study(path, (run,))
        if run.summary is None:
            study.missing.append(f"{path}: {_unfinished(run.overview)}; its tables come when it is finished")
        return study


def _summed(places: np.ndarray, counts: np.ndarray, length: int) -> list[int]:
    return list(map(int, np.bincount(places, counts, length)))


def _number(value: Any) -> Value:
    return None if value is None else float(value)


def _comparison(path: Path) -> Study:
    if not path.is_dir():
        raise InputError(f"RUN: {path} is not a folder; {similar_path(path)}give one that mutua named")
    study = Study(path, ())
    told = _listed_runs(path / COMPARISON)
    if not told:
        study.missing.append(f"{COMPARISON} is not there: runs are named by their methods")
    order = {str(one["method"]): place for place, one in reversed(list(enumerate(told)))}
    runs = []
    overviews, wrong = find_runs(path)
    for overview in overviews:
        try:
            with damage_as_input_error(overview.folder.path):
                run = Run.of(overview)
        except InputError as error:
            wrong.append(str(error))
            continue
        if run.summary is None:
            study.missing.append(f"{run.path.name}: {_unfinished(overview)}; it is left out")
        else:
            runs.append(_relabelled(run, told))
    study.missing.extend(f"{why}; it is left out" for why in wrong)
    if not runs:
        raise InputError(
            f"RUN: {path} holds no finished run; give a folder that 'mutua run' or 'mutua compare' named"
        )
    runs = _with_unique_labels(runs, path)
    return replace(study, runs=tuple(sorted(runs, key=lambda run: order.get(run.label, len(told)))))


def _listed_runs(file: Path) -> list[Mapping[str, Any]]:
    """What comparison.json says of its runs; nothing where there is none."""
    if not file.is_file():
        return []
    try:
        # It repeats what its runs' own files say, each of which is no longer than the limit.
        told = sum(min(run.stat().st_size, safe_reading.MAX_TEXT_BYTES) for run in file.parent.glob("*/run.json"))
        return list(
            safe_reading.from_json(safe_reading.read_text(file, safe_reading.MAX_TEXT_BYTES + 2 * told))["runs"]
        )
    except (OSError, LookupError, TypeError, ValueError) as error:
        why = f"cannot be read ({reason(error)}); remove it, and runs are named by their methods"
        raise InputError(f"RUN: {file} {why}") from None


def _with_unique_labels(runs: Sequence[Run], path: Path) -> list[Run]:
    """Runs of one label that are not one recipe with different seeds are named by folder: CELL or CELL-SEED."""

    def folder(run: Run) -> str:
        return line(str(run.path.relative_to(path)))

    for name in (lambda run: folder(run).removesuffix(f"-{run.seed}"), folder):
        by_label: dict[str, list[Run]] = {}
        for run in runs:
            by_label.setdefault(run.label, []).append(run)
        mixed = {label for label, mine in by_label.items() if not _seeds_of_one(mine)}
        runs = [replace(run, label=name(run)) if run.label in mixed else run for run in runs]
    return list(runs)


def _seeds_of_one(runs: Sequence[Run]) -> bool:
    recipes = [{**run.overview.recipe, "seed": 0} for run in runs]
    return common_value(recipes) is not None and len({run.seed for run in runs}) == len(runs)


def _relabelled(run: Run, told: Sequence[Mapping[str, Any]]) -> Run:
    """The run with the label that the comparison gives to one with the same numbers."""
    own = {key: value for key, value in (run.summary or {}).items() if key != "method"}
    for one in told:
        if all(one.get(key) == value for key, value in own.items()):
            return replace(run, label=str(one["method"]), position=one.get("cell", {}))
    return run


def _unfinished(overview: RunOverview) -> str:
    at = "before round 0" if overview.round is None else f"after round {overview.round}"
    return f"{overview.state} {at} of {overview.rounds}"


def common_value(values: Iterable[Any]) -> Any:
    """The one value that all have, else None."""
    seen = list(values)
    return seen[0] if seen and all(value == seen[0] for value in seen) else None
