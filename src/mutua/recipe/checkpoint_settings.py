"""When a run is saved."""

from __future__ import annotations

from pydantic import Field

from mutua.support.configuration import Spec


class CheckpointSettings(Spec):
    """When a run is saved so that it can go on, and how many checkpoints are kept."""

    every: int = Field(1, ge=1)
    """Rounds."""
    seconds: float = Field(30.0, ge=0)
    """But not more often than this."""
    keep: int = Field(2, ge=1)
    best: bool = True
