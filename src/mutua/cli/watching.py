"""`mutua watch`: the live page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def watch_command(
    runs: Annotated[
        Path, typer.Argument(help="A folder of runs, a study's folder, or one run's.", metavar="RUNS")
    ] = Path("runs"),
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen at. Any but this machine's own demands a token, which is printed.",
            metavar="HOST",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(help="Port. Default: 8765, or any free one if that is taken.", min=1, max=65535, metavar="N"),
    ] = None,
    token: Annotated[
        bool, typer.Option("--token", help="Demand a token on this machine too, where others have accounts.")
    ] = False,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in your browser.")] = False,
) -> None:
    """Watch runs in a browser, live.

    It shows all runs and studies in a folder: curves, clients, rounds, comparisons. It only reads.
    """
    import webbrowser

    from mutua.watch.serving import serve_page

    def opened(address: str) -> None:
        webbrowser.open(address)

    serve_page(runs, typer.echo, host, port, token, opened if browser else None)
