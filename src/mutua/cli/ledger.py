"""`mutua ledger`: what a site has sent, and whether its ledger is as it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mutua.cli.grouped_help import GroupedCommands
from mutua.errors import InputError, RunError

app = typer.Typer(
    cls=GroupedCommands, help="What a site has sent, from the ledger on its own disk.", no_args_is_help=True
)

LedgerDir = Annotated[Path, typer.Argument(help="A site's folder, or its ledger.jsonl.", metavar="FOLDER")]


@app.command("show")
def show_command(folder: LedgerDir) -> None:
    """List what was sent: round by round, with the SHA-256 of the bytes."""
    from mutua.federation.site_ledger import entries
    from mutua.support.text import printable, size

    total = 0
    for entry in entries(_ledger(folder)):
        total += entry.bytes
        held = ", ".join(f"{what} {size(number)}" for what, number in entry.parts.items()) or "no data"
        line = f"{entry.entry:>5}  {entry.time}  {entry.verb} {entry.round}: {held}"
        typer.echo(printable(line + (f"  sha256 {entry.sha256}" if entry.bytes else "")))
    typer.echo(f"{size(total)} in all")


@app.command("verify")
def verify_command(folder: LedgerDir) -> None:
    """Check that no entry was changed, removed, added or moved."""
    from mutua.federation.site_ledger import check_chain
    from mutua.support.text import several, size

    path = _ledger(folder)
    found = check_chain(path)
    if found.wrong is not None:
        raise RunError(
            f"{path}: {found.wrong}; the {several(found.good, 'line')} before it are as they were written"
        )
    typer.echo(f"{several(found.good, 'entry', 'entries')}, {size(found.bytes)}: all as they were written")
    typer.echo(f"last checksum: {found.last}; note it elsewhere to notice if entries are cut off at the end")


def _ledger(folder: Path) -> Path:
    path = folder / "ledger.jsonl" if folder.is_dir() else folder
    if not path.is_file():
        raise InputError(f"FOLDER: {path} is not there; a site has a ledger once it has answered the server")
    return path
