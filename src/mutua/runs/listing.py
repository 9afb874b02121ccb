"""Which runs there are, how far each has come, and how much its checkpoints take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from mutua.errors import InputError, line
from mutua.learning.headline import ACCURACY
from mutua.methods import base
from mutua.recipe.checkpoint_settings import CheckpointSettings as Settings
from mutua.runs.folder import RunFolder, no_run
from mutua.runs.inputs import changed_fields
from mutua.support import safe_reading
from mutua.support.configuration import PathLike, explain, local_path, similar_path
from mutua.support.folders import folder_bytes, in_use

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class RunOverview:
    """What a run's folder says about it, finished or not."""

    folder: RunFolder
    recipe: Mapping[str, Any]
    """As it was executed."""
    text: str
    """The same in YAML."""
    edited: tuple[str, ...] = ()
    """Where recipe.yaml now differs from it."""

    @classmethod
    def of(cls, path: PathLike) -> RunOverview:
        """Look at a run's folder."""
        folder = RunFolder(path)  # this refuses links and devices
        try:
            text = safe_reading.read_text(folder.path / "recipe.yaml", safe_reading.MAX_YAML_CHARACTERS)
            found = safe_reading.from_yaml(text)
        except (OSError, ValueError):
            found = text = None
        recorded = folder.recorded
        if not isinstance(found, dict) or text is None:
            if recorded is None:
                raise no_run(folder.path, "has no readable recipe.yaml")
            way_out = f"remove it, and 'mutua run --resume {folder.path}' writes it again"
            raise InputError(f"RUN: {folder.path} has no readable recipe.yaml; {way_out}")
        try:
            recipe = found if recorded is None else safe_reading.from_yaml(recorded)
        except ValueError:
            recipe = None
        if not isinstance(recipe, dict):
            raise InputError(f"RUN: {path}: the recipe in its record cannot be read; it is damaged")
        return cls(folder, recipe, recorded or text, tuple(changed_fields(recorded or text, text)))

    @property
    def state(self) -> str:
        """finished, running or stopped."""
        if self.folder.finished:
            return "finished"
        return "running" if in_use(self.folder.path) else "stopped"

    @property
    def method(self) -> str:
        """The method's name."""
        found = self.recipe.get("method")
        name = str(found.get("name") if isinstance(found, dict) else found)
        if ":" in name:  # the user's own code, whose name was recorded when the run began
            begun = (event for event in self.folder.events.read() if event.get("event") == "begun")
            own = str(next(begun, {}).get("method") or name)
            name = name if own in base.method_names() else own  # otherwise it names the method it builds on
        return line(name)

    @property
    def rounds(self) -> int | None:
        """How many rounds the recipe plans."""
        found = self.recipe.get("rounds")
        return found if isinstance(found, int) else None

    @property
    def seed(self) -> int | None:
        """The seed of the recipe."""
        found = self.recipe.get("seed")
        return found if isinstance(found, int) else None

    @property
    def round(self) -> int | None:
        """The last round that is saved, if any."""
        if self.folder.finished:  # a budget may have paid for fewer rounds than the recipe plans
            ran = self.folder.record.summary.get("rounds")
            return ran if isinstance(ran, int) else self.rounds
        newest = self.folder.checkpoints.newest
        if newest is None or newest.round < 0:
            return None
        return newest.round if self.rounds is None else min(newest.round, self.rounds)

    @property
    def accuracy(self) -> float | None:
        """Mean accuracy of the clients' predictors on their own test data, if the run is finished."""
        return self._mean("accuracy")

    @property
    def score(self) -> float | None:
        """The same of the task's headline metric: accuracy, unless the task has another."""
        return self._mean(self.folder.headline.metric)

    def _mean(self, metric: str) -> float | None:
        if not self.folder.finished:
            return None
        mean = self.folder.record.summary.get("mean")
        try:
            value = mean["predictor"][metric] if mean else None
        except (TypeError, KeyError):
            return None
        return value if isinstance(value, float) else None

    @property
    def bytes(self) -> int:
        """How many bytes the folder takes."""
        return folder_bytes(self.folder.path)

    @property
    def settings(self) -> Settings:
        """How many checkpoints the recipe keeps."""
        found = self.recipe.get("checkpoints")
        try:
            return Settings.model_validate(found if isinstance(found, dict) else {})
        except ValidationError as error:
            raise InputError(f"RUN: {self.folder.path}: {explain(error, Settings, 'checkpoints')}") from None

    def checkpoints(self) -> list[dict[str, Any]]:
        """The run's checkpoints, oldest first."""
        held = self.folder.checkpoints
        whole = [
            {"round": m.round, "validation": m.validation, "best": m is held.best, "bytes": m.bytes, "whole": True}
            for m in held.kept.values()
        ]
        damaged = [{"file": path.name, "reason": why, "whole": False} for path, why in held.damaged.items()]
        return [*whole, *damaged]

    def summary(self) -> dict[str, Any]:
        """What `mutua runs list --json` prints about it."""
        return {
            "run": str(self.folder.path),
            "state": self.state,
            "method": self.method,
            "seed": self.seed,
            "round": self.round,
            "rounds": self.rounds,
            "accuracy": self.accuracy,
            **({} if self.folder.headline == ACCURACY else {self.folder.headline.metric: self.score}),
            "bytes": self.bytes,
        }


def find_runs(under: PathLike) -> tuple[list[RunOverview], list[str]]:
    """The runs in a folder and in the comparisons in it, by name; and what is wrong with others."""
    under = local_path(under, "DIR")
    if not under.is_dir():
        raise InputError(f"DIR: {under} is not a folder; {similar_path(under)}give one that holds runs")
    places = sorted([*under.glob("*/recipe.yaml"), *under.glob("*/*/recipe.yaml")])
    return _each(RunOverview.of, [place.parent for place in places])


def list_runs(under: PathLike) -> tuple[list[dict[str, Any]], list[str]]:
    """The summary of each of them, and what is wrong with others."""
    runs, wrong = find_runs(under)
    said, unsaid = _each(RunOverview.summary, runs)
    return said, wrong + unsaid


def _each(of: Callable[[A], B], things: Iterable[A]) -> tuple[list[B], list[str]]:
    """The results of a function, and the reasons for those that failed."""
    made, wrong = [], []
    for thing in things:
        try:
            made.append(of(thing))
        except InputError as error:
            wrong.append(str(error))
    return made, wrong
