"""Flower's ServerApp: it conducts the run that its settings name."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def conduct_run(grid: Grid, context: Context) -> None:
    """Conduct the run."""
    from mutua.deploy.conduct import serve
    from mutua.engines.flower_line import FlowerLine

    serve(
        lambda keys, note: FlowerLine(grid, keys, note),
        Path(str(context.run_config["deployment"])),
        Path(str(context.run_config["run"])),
    )
