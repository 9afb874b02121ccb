"""`mutua data`: list, download and show data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mutua.cli.grouped_help import GroupedCommands
from mutua.cli.options import AsJson, DataDir, RecipeFile, Seed, Sets, load_recipe, print_json

app = typer.Typer(cls=GroupedCommands, rich_markup_mode=None)


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
    from mutua.reports.labels import columns_by_client, counts_by_client, show_columns, show_counts

    loaded = load_recipe(recipe, sets, seed)
    federation = loaded.federation(data_dir)
    counts, columns = counts_by_client(federation), columns_by_client(federation)
    if as_json:
        print_json({**counts.summary(), **({"columns": columns} if columns else {})}, indent=None)
        return
    target = out or Path(f"{loaded.name}-labels.png")
    counts.draw(target, f"{loaded.name}: training samples by client and class")
    show_counts(counts, federation.notes)
    if columns:
        show_columns(columns)
    console.say(f"picture in {target}")


@app.command("columns")
def data_columns_command(
    file: Annotated[Path, typer.Argument(help="A table: .csv, .jsonl, .parquet or .npz.", metavar="FILE")],
    without: Annotated[
        list[str] | None,
        typer.Option(help="A column that is no input: the target, a client, a group. Repeatable.", metavar="NAME"),
    ] = None,
) -> None:
    """Print the columns of a table as a recipe declares them, to be checked and put into it."""
    import yaml

    from mutua.data.column_specs import declaration
    from mutua.data.table_files import read_table
    from mutua.reports.console import download_bar
    from mutua.support.configuration import local_path

    with download_bar(str(file)) as progress:
        table = read_table(local_path(file, "FILE"), lambda done, total: progress(done, total))
    tree = {"columns": declaration(table, without or [])}
    typer.echo(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, default_flow_style=None).rstrip())
