"""`mutua compare` and `mutua reproduce`: many runs that say something together."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mutua.cli.options import (
    AsJson,
    DataDir,
    Device,
    EngineName,
    GpusPerWorker,
    Minutes,
    ParallelRuns,
    RayAddress,
    RecipeFile,
    Sets,
    chosen_engine,
    print_json,
)
from mutua.cli.running import saved_text
from mutua.errors import InputError, RunError

if TYPE_CHECKING:
    from mutua.engines.choice import EngineChoice
    from mutua.studies.sweep import Sweep
    from mutua.studies.sweep_runner import SweepOutcome


def compare_command(
    recipe: RecipeFile,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods with options: fml,fedprox:mu=0.1,independent. Without it, the recipe needs a grid.",
            metavar="LIST",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds.", metavar="LIST")] = "0,1,2",
    sets: Sets = None,
    engine: EngineName = "local",
    ray_address: RayAddress = None,
    gpus_per_worker: GpusPerWorker = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for all runs; finished ones are not run again. Default: runs/NAME-compare-DATE.",
            metavar="DIR",
        ),
    ] = None,
    data_dir: DataDir = None,
    device: Device = None,
    workers: ParallelRuns = None,
    minutes: Minutes = None,
    as_json: AsJson = False,
) -> None:
    """Compare methods, or the cells of a grid, over the same seeds."""
    from mutua.reports import console
    from mutua.runs.summary import reported
    from mutua.studies.comparison_tables import comparison_tables
    from mutua.studies.contenders import compared_cells, read_seeds
    from mutua.studies.summaries import summarise
    from mutua.studies.sweep import Sweep
    from mutua.studies.sweep_runner import run_sweep
    from mutua.support.folders import dated_folder

    place = chosen_engine(engine, ray_address, gpus_per_worker)
    chosen = read_seeds(seeds)
    cells = compared_cells(recipe, [*(sets or []), *([f"device={device}"] if device else [])], methods)
    sweep = Sweep(out or dated_folder(f"{cells[0][1].name}-compare"), cells, chosen)
    with sweep.locked():
        sweep.check(data_dir, "--methods" if methods else "grid")
        with console.bars(not as_json) as bars:
            watch = console.SweepBars(len(sweep.runs), len(sweep.finished), bars, notes_only=as_json)
            outcome = run_sweep(sweep, watch, workers=workers, data_dir=data_dir, engine=place, minutes=minutes)
    runs = sweep.summaries()
    summary = summarise(runs)
    if as_json and not outcome.interrupted:
        print_json({"runs": [{**reported(run), "method": label} for label, run in runs], "summary": summary})
    elif runs and not outcome.interrupted:
        console.show_sheets(*comparison_tables(summary, cells[0][1].selection, _remarks(sweep)))
    if not outcome.interrupted:
        console.say(saved_text(sweep.place), console.err if as_json else console.out)
    if outcome.stopped:
        raise RunError(f"{_stopped(sweep, outcome)} with --out {sweep.place}")
    if outcome.failed:
        told = "; ".join(f"{label}: {why}" for label, why in outcome.failed.items())
        raise RunError(f"{len(outcome.failed)} of {len(sweep.runs)} runs failed: {told}")


def _remarks(sweep: Sweep) -> list[str]:
    """What a reader of the numbers must know: shared models, options, privacy, unequal training."""
    from mutua.reports.console import method_options
    from mutua.rounds.privacy_guarantee import Guarantee
    from mutua.studies.comparison_tables import comparison_remarks
    from mutua.studies.measures import uses_global_alone

    done, runs = {run.cell_name: run for run in sweep.finished}, sweep.summaries()
    shared = [name for name, run in done.items() if uses_global_alone(run.path)]
    remarks = [f"{', '.join(shared)}: every client uses models.global, not a model of its own"] if shared else []
    options = {name: method_options(run.recipe.method) for name, run in done.items()}
    remarks += [f"{name}: {text}" for name, text in options.items() if text]
    for label, run in {label: run for label, run in runs if run["privacy"] is not None}.items():
        remarks.append(f"{label}, seed {run['seed']}: differential privacy {Guarantee.of(run['privacy'])}")
    return remarks + comparison_remarks(sweep.finished, runs)


def _stopped(sweep: Sweep, outcome: SweepOutcome) -> str:
    done = f"{len(sweep.finished)} of {len(sweep.runs)} runs are finished"
    return f"{outcome.stopped}; {done}; to go on: the same command"


def _items(incomplete: str) -> list[str]:
    """For the shell, which cannot wait for torch: the files of all items."""
    files = (Path(__file__).parents[1] / "studies" / "papers").glob("*/*.yaml")
    return sorted(name for file in files if (name := f"{file.parent.name}/{file.stem}").startswith(incomplete))


def reproduce_command(
    items: Annotated[
        list[str] | None,
        typer.Argument(
            help="PAPER/ITEM, such as fedh2l/table-2, or PAPER for all of its items.",
            metavar="ITEM",
            autocompletion=_items,
        ),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the items of all papers.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All items.")] = False,
    scale: Annotated[
        Literal["laptop", "paper"], typer.Option(help="Minutes on two cores, or the paper's own settings.")
    ] = "laptop",
    seeds: Annotated[int, typer.Option(help="How many seeds, from the item's first.", min=1, metavar="N")] = 3,
    minutes: Minutes = None,
    workers: ParallelRuns = None,
    engine: EngineName = "local",
    ray_address: RayAddress = None,
    gpus_per_worker: GpusPerWorker = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path, typer.Option(help="Folder for all runs; finished ones are not run again.", metavar="DIR")
    ] = Path("runs/reproduction"),
    page: Annotated[
        Path | None,
        typer.Option("--write", help="Write a page of all results in --out, and run nothing.", metavar="FILE"),
    ] = None,
) -> None:
    """Run a paper's table or figure, beside the paper's numbers."""
    from mutua.reports import console
    from mutua.reports.reproduction_tables import reproduction_page, show_items
    from mutua.studies.papers.items import chosen_items, item_names
    from mutua.support.files import cannot_write

    if show_list:
        show_items(item_names())
        return
    if page is not None:
        try:
            page.write_text(reproduction_page(out), encoding="utf-8")
        except OSError as error:
            raise InputError(f"--write: {cannot_write(page, error)}; name another file") from None
        console.say(f"written to {page}", console.err)
        return
    names = item_names() if everything else chosen_items(items or [])
    if not names:
        raise InputError("ITEM: none given; name some, such as fedh2l/table-2, or give --all; --list shows them")
    place = chosen_engine(engine, ray_address, gpus_per_worker)
    wrong = _reproduce(names, scale, seeds, minutes, workers, place, data_dir, out)
    if wrong:
        raise RunError(f"{len(wrong)} of {len(names)} items are not whole: {'; '.join(wrong)}")


def _reproduce(
    names: list[str],
    scale: Literal["laptop", "paper"],
    seeds: int,
    minutes: float | None,
    workers: int | None,
    engine: EngineChoice,
    data_dir: Path | None,
    out: Path,
) -> list[str]:
    """Run and show the items; a line for each that is not complete."""
    from mutua.reports import console
    from mutua.reports.reproduction_tables import show_reproduction
    from mutua.studies.papers.items import load_item
    from mutua.studies.reproduction import Reproduction, read_record

    until = None if minutes is None else time.monotonic() + 60 * minutes
    wrong = []
    for name in names:
        left = None if until is None else max(0.0, (until - time.monotonic()) / 60)
        first = load_item(name).first_seed
        one = Reproduction(name, scale, range(first, first + seeds), out)
        try:
            with console.bars() as bars:
                watch = console.SweepBars(len(one.sweep.runs), len(one.sweep.finished), bars)
                outcome = one.run(watch, minutes=left, workers=workers, engine=engine, data_dir=data_dir)
        except InputError as error:  # missing data, for example: the other items still run
            console.say(f"{name}: {error}", console.err)
            wrong.append(f"{name}: {error}")
            continue
        if outcome.interrupted:
            raise RunError(f"{name}: {_stopped(one.sweep, outcome)}")
        show_reproduction(one, (read_record(one.sweep.place) or {})["minutes"])
        if outcome.stopped or outcome.failed:
            wrong.append(f"{name}: {outcome.stopped or '; '.join(outcome.failed.values())}")
    return wrong
