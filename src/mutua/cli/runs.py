"""`mutua runs`: list, show and tidy up runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mutua.cli.grouped_help import GroupedCommands
from mutua.cli.options import AsJson, RunDir, print_json
from mutua.errors import InputError

app = typer.Typer(cls=GroupedCommands, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _runs(context: typer.Context) -> None:
    """Runs: list them, show one, remove checkpoints."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list")
def runs_list_command(
    under: Annotated[Path, typer.Argument(help="The folder that holds runs.", metavar="DIR")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List runs: method, state, last saved round, accuracy and size."""
    from mutua.reports import console, listings
    from mutua.runs.listing import list_runs

    runs, wrong = list_runs(under)
    console.show_notes(wrong)
    if as_json:
        print_json({"runs": runs})
    else:
        listings.show_runs(runs, under)


@app.command("show")
def runs_show_command(run_dir: RunDir, as_json: AsJson = False) -> None:
    """Show a run: its state, its checkpoints and its last events."""
    from mutua.reports import listings
    from mutua.runs.listing import RunOverview

    run = RunOverview.of(run_dir)
    if as_json:
        more = {"edited": run.edited, "checkpoints": run.checkpoints(), "events": run.folder.events.read()[-10:]}
        print_json({**run.summary(), **more})
    else:
        listings.show_run(run)


@app.command("prune")
def runs_prune_command(
    run_dir: RunDir,
    keep: Annotated[
        int | None,
        typer.Option(
            help="Keep the last N checkpoints, and the best. Default: as many as the recipe says.",
            min=0,
            metavar="N",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
    """Remove old and damaged checkpoints of a run.

    A finished run needs none: --keep 0 removes them all. Its models stay.
    """
    from mutua.reports import console
    from mutua.runs.listing import RunOverview
    from mutua.support.files import cannot_write
    from mutua.support.folders import FolderLock
    from mutua.support.text import size

    RunOverview.of(run_dir)  # refuses a folder that is no run's, before a lock file is left in it
    lock = FolderLock(run_dir, "RUN")
    try:
        run = RunOverview.of(run_dir)  # again: until now a run may have been at work there
        settings = run.settings
        if keep == 0 and not run.folder.finished:
            raise InputError(f"--keep: 0, but {run_dir} is not finished: it goes on from a checkpoint; keep 1")
        gone, freed = run.folder.checkpoints.sweep(settings.keep if keep is None else keep, settings.best, dry_run)
    except OSError as error:
        raise InputError(f"RUN: {cannot_write(run_dir, error)}") from None
    finally:
        lock.release()
    did = "would be removed" if dry_run else "removed"
    rounds = ", ".join(map(str, gone)) or "none"
    console.say(f"{run_dir}: checkpoints {did}: {rounds}; {size(freed)} freed")
