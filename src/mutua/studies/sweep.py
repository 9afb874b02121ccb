"""The plan of a sweep: every cell of a grid with every seed, each an ordinary run in a folder of its own.

A sweep is its folder: runs that are finished there are skipped, those that have begun go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutua.errors import InputError
from mutua.federation.federation import Federation
from mutua.methods.base import Method
from mutua.recipe.grid import Cell
from mutua.recipe.recipe import FEDERATION_FIELDS, Recipe
from mutua.rounds.preparation import Prepared, prepare
from mutua.runs.folder import RunFolder
from mutua.runs.inputs import first_changes, hash_inputs
from mutua.runs.newcomer import HOWS, read_joined, without_last
from mutua.studies.measures import MethodRun, RunNumbers, alone_counterpart
from mutua.studies.summaries import (
    COLUMNS,
    RESULTS,
    folder_names,
    results_csv,
    run_summaries,
    summarise,
    write_comparison,
)
from mutua.support.configuration import PathLike, local_path
from mutua.support.files import ASIDE, atomic_files
from mutua.support.folders import FolderLock, new_folder, refuse_links


@dataclass(frozen=True)
class PlannedRun(MethodRun):
    """One run of a sweep: a cell with a seed."""

    cell: Cell
    recipe: Recipe
    path: Path
    newcomer: bool = False
    """Whether the last client joins after the others have trained, in every way there is."""

    @property
    def label(self) -> str:
        """The run in words."""
        return f"{self.cell.name}, seed {self.recipe.seed}"

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.recipe.seed

    @property
    def finished(self) -> bool:
        """Whether it is finished, its newcomers included."""
        joined = not self.newcomer or all((self.path / "newcomers" / how / "join.json").is_file() for how in HOWS)
        return (self.path / "run.json").is_file() and joined

    def joined(self, how: str) -> float | None:
        """A newcomer's accuracy on its own test data: alone, or after it joined in this way."""
        found = read_joined(self.path / "newcomers" / (how if how in HOWS else HOWS[0]))
        return found.accuracy.get("predictor" if how in HOWS else "alone")

    def check_inputs(self, federation: Federation) -> None:
        """Refuse inputs that have changed since this run began: its numbers would not be comparable."""
        was = RunFolder(self.path).made_of if self.path.is_dir() else None
        if was is None:
            return
        learned = without_last(federation)[0] if self.newcomer else federation
        if changes := was.changed(hash_inputs(self.recipe, learned)):
            raise InputError(
                f"--out: {self.path} had other inputs: {first_changes(changes)}; name another folder for it"
            )

    @property
    def made_by(self) -> tuple[Method, Recipe]:
        """The method, and the recipe, which says how long it trains."""
        return self.recipe.method, self.recipe

    @property
    def cell_name(self) -> str:
        """The name of its row in a table."""
        return self.cell.name

    @property
    def position(self) -> Mapping[str, str]:
        """Its labels by axis."""
        return self.cell.labels

    @property
    def dealt(self) -> tuple[Any, ...]:
        """Which data its clients get."""
        recipe = self.recipe
        return self.seed, recipe.data, recipe.partition, [(entry.id, entry.data) for entry in recipe.clients or []]


class Sweep:
    """A folder with one run per cell and seed; seeds are the outer loop, so that finished runs are comparable."""

    def __init__(
        self,
        place: PathLike,
        cells: Sequence[tuple[Cell, Recipe]],
        seeds: Sequence[int],
        newcomer: bool = False,
    ) -> None:
        place = self.place = local_path(place, "--out")
        self.axes = list(cells[0][0].labels)
        names = folder_names([cell.name for cell, _ in cells])
        self.runs = [
            PlannedRun(cell, recipe.with_(seed=seed), place / f"{folder}-{seed}", newcomer)
            for seed in seeds
            for (cell, recipe), folder in zip(cells, names, strict=True)
        ]
        self._numbers: dict[Path, RunNumbers] = {}
        self.prepared: dict[Path, Prepared] = {}
        """By folder, runs that `check` has prepared: those of the first federation, so that only one is kept."""

    @property
    def finished(self) -> list[PlannedRun]:
        """The runs that are finished."""
        return [run for run in self.runs if run.finished]

    def numbers(self, run: PlannedRun) -> RunNumbers:
        """A finished run's numbers."""
        return self._numbers.setdefault(run.path, RunNumbers(run.path))

    def alone(self, run: PlannedRun) -> RunNumbers | None:
        """The numbers of the finished run in which the same clients train alone."""
        found = alone_counterpart(run, [other for other in self.runs if other.seed == run.seed and other.finished])
        return None if found is None else self.numbers(found)

    def check_recipes(self) -> None:
        """Refuse a folder that has runs of other recipes."""
        for run in self.runs:
            if RunFolder.begun(run.path) and RunFolder(run.path).recipe.dump() != run.recipe.dump():
                raise InputError(f"--out: {run.path} is of another recipe; name another folder or remove it")

    def check(self, data_dir: PathLike | None, field: str) -> None:
        """Refuse what cannot run, before anything does; `field` is where the cells come from."""
        self.check_recipes()
        if len(self.finished) == len(self.runs):
            return
        first: Federation | None = None
        held: tuple[Any, Federation | None] = None, None
        for run in self.runs:
            if run.seed != self.runs[0].seed:
                continue
            key = [getattr(run.recipe, name) for name in FEDERATION_FIELDS]
            if held[0] != key:
                held = key, run.recipe.federation(data_dir)
            assert held[1] is not None
            first = first or held[1]
            run.check_inputs(held[1])
            if run.finished:
                continue
            try:
                prepared = prepare(run.recipe.method, held[1], run.recipe.plan())
            except InputError as error:
                raise InputError(f"{field}: '{run.cell.name}': {error}") from None
            if held[1] is first:
                self.prepared[run.path] = prepared

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder, new or of the same sweep; at the end remove a folder that stayed empty."""
        refuse_links(self.place)
        held = [path.name for path in self.place.iterdir()] if self.place.is_dir() else ["nothing"]
        # A sweep that was killed before its first results leaves these.
        begun = all(name == "lock" or name.endswith(ASIDE) for name in held)
        if not begun and not _marked(self.place / RESULTS):
            new_folder(self.place)
        lock = FolderLock(self.place, "--out")
        try:
            yield
        finally:
            lock.release()
            with suppress(OSError):
                if not (self.place / RESULTS).is_file():
                    (self.place / "lock").unlink()
                    self.place.rmdir()

    def write(self) -> None:
        """results.csv, one row per number of every finished run; comparison.csv and comparison.json."""
        runs = [(run.cell.labels, run.seed, self.numbers(run)) for run in self.finished]
        with atomic_files() as files:
            files.write(self.place / RESULTS, results_csv(self.axes, runs))
            write_comparison(files, self.place, self.summaries())

    def summary(self) -> dict[str, Any]:
        """By cell, mean and deviation over seeds and the differences to the first cell."""
        return summarise(self.summaries())

    def summaries(self) -> list[tuple[str, dict[str, Any]]]:
        """Of every finished run the name of its cell, its own summary and its numbers over clients."""
        return run_summaries((run.cell.name, run, self.numbers(run)) for run in self.finished)


def _marked(file: Path) -> bool:
    """Whether it is a sweep's file of results, and not another file of that name."""
    with suppress(OSError, ValueError), file.open(encoding="utf-8") as lines:
        return lines.readline(2**16).rstrip("\n").endswith(",".join(COLUMNS))
    return False
