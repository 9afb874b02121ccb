"""`mutua data`: list, download and show data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mutua.cli.options import AsJson, DataDir, RecipeFile, Seed, Sets, load_recipe, print_json

app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _data(context: typer.Context) -> None:
    """Data sets: list them, download one, show who gets what."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list")
def data_list_command(data_dir: DataDir = None) -> None:
    """List the data sets known by name and where they are."""
    from mutua.reports import listings

    listings.show_data_sets(data_dir)


@app.command("get")
def data_get_command(
    name: Annotated[str, typer.Argument(help="The data set's name.", metavar="NAME")], data_dir: DataDir = None
) -> None:
    """Download a data set into the data folder, checked and resumable."""
    from mutua.data.download import get
    from mutua.reports.console import download_bar

    with download_bar(name) as progress:
        paths = get(name, data_dir, progress=progress)
    for path in paths:
        typer.echo(path)


@app.command("show")
def data_show_command(
    recipe: RecipeFile,
    sets: Sets = None,
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option(help="PNG file for the picture. Default: NAME-labels.png.", metavar="FILE")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Draw and print how many samples of each class every client has."""
    from mutua.reports import console
    from mutua.reports.labels import counts_by_client, show_counts

    loaded = load_recipe(recipe, sets, seed)
    federation = loaded.federation(data_dir)
    counts = counts_by_client(federation)
    if as_json:
        print_json(counts.summary(), indent=None)
        return
    target = out or Path(f"{loaded.name}-labels.png")
    counts.draw(target, f"{loaded.name}: training samples by client and class")
    show_counts(counts, federation.notes)
    console.say(f"picture in {target}")
