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

    settings = {name: str(value) for name, value in context.run_config.items()}
    place, folder = Path(settings["deployment"]), Path(settings["run"])
    serve(lambda keys, note: FlowerLine(grid, keys, note), place, folder, settings["join"] or None)
