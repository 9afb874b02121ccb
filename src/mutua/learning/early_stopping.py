"""When training beside the rounds ends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EarlyStopping:
    """Train until the validation loss of the model `watch` has not improved for `patience` epochs."""

    watch: str
    patience: int = 10
    epochs: int = 200
