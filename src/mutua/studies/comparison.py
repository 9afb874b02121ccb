"""`compare`: methods over seeds in Python, each run's result in hand, and what they say together."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from mutua.engines.choice import EngineChoice
from mutua.errors import InputError, suggest
from mutua.federation.federation import Federation
from mutua.federation.plan import Plan
from mutua.methods import base
from mutua.methods.base import Method
from mutua.recipe.recipe import Recipe
from mutua.rounds.events import Callback
from mutua.rounds.preparation import Prepared, prepare
from mutua.rounds.progress import EndOfRun, ProgressBar, bars
from mutua.runs.result import Result
from mutua.runs.run import carry_out
from mutua.studies.comparison_tables import comparison_remarks, comparison_tables
from mutua.studies.contenders import Contender, read_contenders
from mutua.studies.measures import MethodRun, ResultNumbers
from mutua.studies.summaries import (
    RESULTS,
    compared,
    comparison_rows,
    folder_names,
    results_csv,
    run_summaries,
    summarise,
    write_comparison,
)
from mutua.support.configuration import PathLike, checked, whole_number
from mutua.support.data_frames import pandas_frame, polars_frame
from mutua.support.files import atomic_files
from mutua.support.folders import new_folder
from mutua.support.line_chart import line_chart
from mutua.support.text import Sheet

Given = Federation | Recipe | Callable[[int], Federation]


def compare(
    methods: str | Sequence[Method | str] | Mapping[str, Method | str],
    federation: Given,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    plan: Plan | None = None,
    engine: str | Mapping[str, Any] | EngineChoice = "local",
    workers: int | None = None,
    data_dir: PathLike | None = None,
    progress: bool = True,
    **settings: Any,
) -> Comparison:
    """Run every method with every seed on the same data.

    `methods` are objects or names, such as [FML(alpha=0.3), "fedavg"]; a mapping gives them labels. `federation`
    is a Federation (the same data for every seed), a function that makes one from a seed, or a Recipe, whose plan
    is used too. Settings are those of `mutua.run`. All results stay in memory; `mutua compare` keeps them on disk.
    """
    recipe = federation if isinstance(federation, Recipe) else None
    rivals = _contenders(methods, recipe)
    if isinstance(seeds, str) or not isinstance(seeds, Sequence | range) or not seeds:
        raise InputError(f"seeds: {seeds!r}; give different whole numbers, such as [0, 1, 2]")
    chosen = [whole_number(seed, "seeds", least=0) for seed in seeds]
    if len(set(chosen)) < len(chosen):
        raise InputError(f"seeds: {list(seeds)}; a seed is there twice, and would give the same run")
    agreed = _plan(plan, recipe, settings)
    make = _maker(federation, data_dir)
    found = []
    with ExitStack() as stack:
        shown = stack.enter_context(bars(progress))
        for seed in chosen:
            here, mine = make(seed), agreed.model_copy(update={"seed": seed})
            # All before any runs: what is refused should not cost the runs before it.
            for rival, prepared in [(rival, _prepared(rival, here, mine)) for rival in rivals]:
                label = f"{rival.label}, seed {seed}"
                watch: list[Callback] = []
                if progress:
                    watch = [ProgressBar(label, shown, keep=False)] if shown else [EndOfRun(label)]
                result = carry_out(prepared, engine=engine, workers=workers, callbacks=watch)
                found.append(Compared(rival.label, seed, result))
    return Comparison(tuple(found))


@dataclass(frozen=True)
class Compared(MethodRun):
    """One run of a comparison."""

    label: str
    seed: int
    result: Result

    @property
    def made_by(self) -> tuple[Method, Plan]:
        """The method and the plan."""
        return self.result.job.method, self.result.job.plan

    @property
    def cell_name(self) -> str:
        """The name of its row in a table."""
        return self.label

    @property
    def position(self) -> Mapping[str, str]:
        """Its label, by the one axis there is."""
        return {"method": self.label}

    @property
    def dealt(self) -> object:
        """Which data its clients have: with one seed all have the same."""
        return self.seed

    @cached_property
    def numbers(self) -> ResultNumbers:
        """Its measures."""
        return ResultNumbers("", self.result)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs of several methods over the same seeds, and their paired differences."""

    runs: tuple[Compared, ...]

    def __getitem__(self, label: str) -> list[Result]:
        """The results of a method, in the order of the seeds."""
        known = list(self.summary)
        if label not in known:
            raise InputError(f"comparison: '{label}' is not in it; {suggest(label, known)}")
        return [one.result for one in self.runs if one.label == label]

    @cached_property
    def _summaries(self) -> list[tuple[str, dict[str, Any]]]:
        return run_summaries((one.label, one, one.numbers) for one in self.runs)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """By method: accuracies, their differences to the first method's in the same seeds, bytes."""
        return summarise(self._summaries)

    def difference(self, label: str, measure: str = "predictor") -> dict[str, Any]:
        """A method minus the first in the same seeds: mean, std, values, and low and high of the 95 % interval."""
        _ = self[label]
        known = self.summary[label]["difference"]
        if measure not in known:
            raise InputError(f"measure: '{measure}' is not compared; {suggest(measure, known)}")
        return dict(known[measure])

    @property
    def _tables(self) -> list[Sheet]:
        selection = self.runs[0].result.job.plan.selection
        return comparison_tables(self.summary, selection, comparison_remarks(self.runs, self._summaries))

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self._tables))

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self._tables) + self._chart()

    def _chart(self) -> str:
        """By method the clients' mean over rounds, and its mean over seeds in the rounds that all seeds have."""
        lines = {}
        for label in self.summary:
            seeds = [dict(result.history.served_curve()) for result in self[label]]
            rounds = sorted(set.intersection(*map(set, seeds)))
            lines[label] = [(round, fmean(seed[round] for seed in seeds)) for round in rounds]
        of = self.runs[0].result.history.headline
        return line_chart(lines, "round", f"{of.heading}, mean over clients and seeds", of.shown)

    def to_pandas(self) -> Any:
        """A pandas DataFrame with a row for each method, seed, client and model."""
        return pandas_frame(comparison_rows(self._summaries), compared(self._summaries))

    def to_polars(self) -> Any:
        """A polars DataFrame with a row for each method, seed, client and model."""
        return polars_frame(comparison_rows(self._summaries), compared(self._summaries))

    def save(self, path: PathLike) -> Path:
        """Save all runs as the folder of a comparison: for `mutua.report` and the command line."""
        place = new_folder(path, field="path")
        labels = list(self.summary)
        names = dict(zip(labels, folder_names(labels), strict=True))
        try:
            for one in self.runs:
                one.result.save(place / f"{names[one.label]}-{one.seed}")
            with atomic_files() as files:
                runs = [(one.position, one.seed, one.numbers) for one in self.runs]
                files.write(place / RESULTS, results_csv(["method"], runs))
                write_comparison(files, place, self._summaries)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)  # it was new, so only our files are in it
            raise
        return place


def _contenders(methods: Any, recipe: Recipe | None) -> list[Contender]:
    if isinstance(methods, str):
        return read_contenders(methods, recipe)
    if isinstance(methods, Method) or not isinstance(methods, Sequence | Mapping) or not methods:
        raise InputError(f"methods: {methods!r}; give a list, such as [mutua.methods.FML(), 'fedavg']")
    named = methods.items() if isinstance(methods, Mapping) else [(None, method) for method in methods]
    found = []
    for label, method in named:
        if isinstance(method, str):
            read = Contender.of(method, recipe)
            found.append(Contender(str(label), read.method) if label else read)
        elif isinstance(method, Method):
            found.append(Contender(str(label or base.shown_name(method)), method))
        else:
            raise InputError(f"methods: {method!r}; give objects or names, such as mutua.methods.FML() or 'fml'")
    return _told_apart(found)


def _told_apart(rivals: list[Contender]) -> list[Contender]:
    """Methods with the same label are told apart by the options in which they differ: fml:alpha=0.3."""
    labels = [rival.label for rival in rivals]
    made = []
    for rival in rivals:
        twins = [other.method for other in rivals if other.label == rival.label and other is not rival]
        own, others = base.section_of(rival.method), [base.section_of(twin) for twin in twins]
        differ = [key for key in own if any(other.get(key) != own[key] for other in others)]
        made.append(Contender(":".join([rival.label, *(f"{key}={own[key]}" for key in differ)]), rival.method))
    again = [rival.label for rival in made]
    if len(set(again)) < len(again):
        twice = next(label for label in labels if again.count(label) > 1)
        raise InputError(f"methods: '{twice}' is there twice; give each once, or a mapping of labels to methods")
    return made


def _plan(plan: Plan | None, recipe: Recipe | None, settings: Mapping[str, Any]) -> Plan:
    if "seed" in settings:
        raise InputError("seed: a comparison is over several; give seeds=[0, 1, 2]")
    if plan is not None and not isinstance(plan, Plan):
        raise InputError(f"plan: a {type(plan).__name__}; give a Plan, such as mutua.Plan(rounds=20)")
    if plan is not None and settings:
        raise InputError(f"compare: give either a plan or single settings, not both ({', '.join(settings)})")
    if plan is not None or recipe is None:
        return plan or checked(Plan, settings)
    return checked(Plan, {**dict(recipe.plan()), **settings})


def _maker(given: Any, data_dir: PathLike | None) -> Callable[[int], Federation]:
    if isinstance(given, Federation):
        return lambda _: given
    if isinstance(given, Recipe):
        return lambda seed: given.with_(seed=seed).federation(data_dir)
    if not callable(given):
        raise InputError(
            f"federation: a {type(given).__name__}; give a Federation, a Recipe or a function of a seed"
        )

    def make(seed: int) -> Federation:
        made = given(seed)
        if not isinstance(made, Federation):
            raise InputError(f"federation: the function of a seed made a {type(made).__name__}, not a Federation")
        return made

    return make


def _prepared(rival: Contender, federation: Federation, plan: Plan) -> Prepared:
    try:
        return prepare(rival.method, federation, plan)
    except InputError as error:
        raise InputError(f"methods: '{rival.label}': {error}") from None
