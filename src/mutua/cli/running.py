"""`mutua run`: run a recipe, or resume a run."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mutua.cli.options import (
    AsJson,
    DataDir,
    Device,
    EngineName,
    GpusPerWorker,
    OptionalRecipe,
    RayAddress,
    Seed,
    Sets,
    TrustCode,
    WorkersOption,
    chosen_engine,
    load_recipe,
    print_json,
    trust_names,
)
from mutua.errors import InputError

if TYPE_CHECKING:
    from mutua.federation.federation import Federation
    from mutua.recipe.recipe import Recipe
    from mutua.rounds.events import Callback
    from mutua.rounds.preparation import Prepared
    from mutua.runs.recording import Recorder


def run_command(
    recipe: OptionalRecipe = None,
    sets: Sets = None,
    seed: Seed = None,
    engine: EngineName = "local",
    ray_address: RayAddress = None,
    gpus_per_worker: GpusPerWorker = None,
    faults: Annotated[
        Path | None,
        typer.Option(
            help="Make clients fail on purpose: a YAML file of dropout, stragglers and corruption.", metavar="FILE"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the run's files. Default: runs/NAME-DATE-SEED.", metavar="DIR"),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue the run in this folder; the result has the same bytes. No RECIPE.", metavar="DIR"
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(help="With --resume: run until round N, even if the run is finished.", min=0, metavar="N"),
    ] = None,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="With --resume: continue although the recipe or an input has changed. The run notes it.",
        ),
    ] = False,
    data_dir: DataDir = None,
    device: Device = None,
    workers: WorkersOption = None,
    log: Annotated[
        str | None,
        typer.Option(
            help="Log the run's numbers: tensorboard, or package.module:Class of your own.", metavar="NAME"
        ),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print where the time went; write a trace into the run's folder.")
    ] = False,
    trust_code: TrustCode = None,
    as_json: AsJson = False,
) -> None:
    """Run a recipe, or continue a run that was stopped."""
    from mutua.reports import console
    from mutua.reports.loggers import known_logger
    from mutua.runs.execute import execute
    from mutua.support.processes import cores
    from mutua.support.profiling import Profile

    trust_names(trust_code)
    chosen = chosen_engine(engine, ray_address, gpus_per_worker)
    with Profile(workers or cores()).active() if profile else nullcontext() as times:
        logger = None if log is None else known_logger(log)
        if resume is not None:
            given = {"RECIPE": recipe, "--set": sets, "--seed": seed, "--out": out, "--device": device}
            given["--faults"] = faults
            for name, value in given.items():
                if value is not None:
                    raise InputError(f"{name}: a run goes on with its own recipe; leave it out beside --resume")
            if _is_finished(resume, rounds, as_json):
                return
            loaded, federation, folder = _resumed(resume, rounds, accept, data_dir)
        elif accept or rounds is not None:
            wrong = "--accept-changes" if accept else f"--rounds: {rounds}"
            raise InputError(f"{wrong}: it is for --resume; a new run is as its recipe says (--set rounds=N)")
        elif recipe is None:
            raise InputError("RECIPE: missing; give a YAML file, or --resume with the folder of a run")
        else:
            loaded, federation, folder = _new(load_recipe(recipe, sets, seed, device), faults, out, data_dir)
        with console.bars(not as_json) as bars:
            callbacks: list[Callback] = [] if as_json else [console.ProgressBar(loaded.name, bars)]
            callbacks += [] if logger is None else [logger(folder.path)]
            result = execute(
                loaded,
                federation,
                folder,
                engine=chosen,
                workers=workers,
                callbacks=callbacks,
                show=console.Hashing(bars),
            )
        if as_json:
            print_json(result.report())
        else:
            console.show_result(result)
        console.say(saved_text(folder.path), console.err if as_json else console.out)
    if times is not None:
        times.write(folder.path / "trace.json")
        console.show_profile(times, console.err if as_json else console.out)


def _is_finished(place: Path, rounds: int | None, as_json: bool) -> bool:
    """Whether a run has nothing left to do; if so, say it."""
    from mutua.reports import console
    from mutua.runs.folder import RunFolder

    if not RunFolder(place).finished or rounds not in (None, RunFolder.open(place).plan.rounds):
        return False
    folder = RunFolder.open(place)
    console.show_notes(folder.restore_recipe())
    if as_json:
        print_json(folder.report())
    console.say(f"{place} is finished; to make it longer: --rounds N", console.err)
    return True


def _resumed(
    place: Path, rounds: int | None, accept: bool, data_dir: Path | None
) -> tuple[Recipe, Federation | Prepared, Recorder]:
    from mutua.reports import console
    from mutua.runs.resuming import ResumedRecorder
    from mutua.support.profiling import timed

    recorder = ResumedRecorder(place, accept, rounds)
    console.show_notes(recorder.notes)
    with timed("data"):
        return recorder.recipe, recorder.recipe.federation(data_dir), recorder


def _new(
    recipe: Recipe, faults: Path | None, out: Path | None, data_dir: Path | None
) -> tuple[Recipe, Prepared, Recorder]:
    from mutua.engines.faults import Faults
    from mutua.reports import console
    from mutua.rounds.preparation import prepare
    from mutua.runs.recording import Recorder
    from mutua.support.profiling import timed

    if recipe.grid is not None:
        raise InputError("grid: a grid is many runs; use 'mutua compare', or leave it out by --set grid=null")
    if faults is not None:
        recipe = recipe.with_(faults=Faults.load(faults))
    with timed("data"):
        federation = recipe.federation(data_dir)
    prepared = prepare(recipe.method, federation, recipe.plan())
    console.show_notes(prepared.notes)
    if recipe.faults is not None:
        console.show_notes(["clients fail on purpose in this run (faults)"])
    return recipe, prepared, Recorder.create(recipe.name, recipe.seed, out)


def saved_text(place: Path) -> str:
    """Where a run or comparison is saved, and how to get a page of it."""
    return f"saved in {place}\na page of it: mutua report {shlex.quote(str(place))}"
