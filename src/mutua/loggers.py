"""Loggers: a run's numbers for TensorBoard, or for anybody else's tool by two functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from mutua.errors import InputError
from mutua.imports import by_path
from mutua.rounds import Event, Finished, RoundEnded, Stopped


class Logger(Protocol):
    """What a tool must offer to follow a run. It is made with the run's folder."""

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Numbers of a round by name: split/metric/model/client, and bytes/up, bytes/down so far."""

    def close(self) -> None:
        """The run is over, or was stopped."""


class Logged:
    """A callback: gives a logger every number of a round when the round ends."""

    def __init__(self, logger: Logger) -> None:
        self.logger = logger

    def __call__(self, event: Event) -> None:
        """Pass on what the event brings."""
        match event:
            case RoundEnded():
                numbers: dict[str, float] = {
                    f"{row.split}/{row.metric}/{row.model}/{row.client}": row.value
                    for row in event.history
                    if row.round == event.round and row.value is not None
                }
                numbers |= {"bytes/up": event.ledger.bytes("up"), "bytes/down": event.ledger.bytes("down")}
                self.logger.log(event.round, numbers)
            case Finished() | Stopped():
                self.logger.close()


class TensorBoard:
    """Scalars in RUN/tensorboard: `tensorboard --logdir runs` shows them."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Write a scalar a number."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round)

    def close(self) -> None:
        """Write what is not yet written."""
        self._writer.close()


def known_logger(name: str) -> Callable[[Path], Logger]:
    """What makes a logger of a run's folder: `tensorboard`, or a class by "package.module:Class"."""
    if name != "tensorboard":
        return by_path(name, "--log")  # type: ignore[no-any-return]
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise InputError('--log: tensorboard is not installed; pip install "mutua[tensorboard]"') from None
    return TensorBoard
