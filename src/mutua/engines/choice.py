"""Which engine a run uses, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mutua.engines.protocol import Engine
from mutua.errors import InputError, suggest
from mutua.support.configuration import whole_number

ENGINES = ["local", "ray"]


@dataclass(frozen=True)
class EngineChoice:
    """An engine by name. `address` and `gpus_per_worker` are for Ray."""

    name: str = "local"
    address: str | None = None
    gpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise InputError(f"engine: '{self.name}' is not an engine; {suggest(str(self.name), ENGINES)}")
        given = {"address": self.address, "gpus_per_worker": self.gpus_per_worker}
        for option, value in given.items():
            if value is not None and self.name != "ray":
                raise InputError(
                    f"{option}: {value}: engine '{self.name}' has no such option; choose 'ray' or leave it out"
                )
        share = self.gpus_per_worker
        if share is not None and (
            isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1e6
        ):
            raise InputError(f"gpus_per_worker: {share!r}; give a number such as 0.5 or 1")

    @classmethod
    def of(cls, given: object) -> EngineChoice:
        """The choice that a user made: a name, or a mapping like {"name": "ray", "address": "10.0.0.1:6379"}."""
        if isinstance(given, cls):
            return given
        if isinstance(given, str):
            return cls(given)
        if not isinstance(given, Mapping) or not (set(given) <= {"name", "address", "gpus_per_worker"}):
            raise InputError(
                f"engine: {given!r}; give {' or '.join(ENGINES)}, or name, address and gpus_per_worker"
            )
        options: dict[str, Any] = dict(given)
        return cls(**options)

    def make(self, workers: int | None) -> Engine:
        """The engine."""
        if workers is not None:
            whole_number(workers, "workers")
        if self.name == "ray":
            from mutua.engines.ray_engine import RayEngine

            return RayEngine(workers=workers, address=self.address, gpus_per_worker=self.gpus_per_worker or 0.0)
        from mutua.engines.local import LocalEngine

        return LocalEngine(workers=workers)


LOCAL = EngineChoice()
