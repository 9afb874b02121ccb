"""Loggers: a run's numbers for TensorBoard, or for any other tool that has two functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from mutua.errors import InputError, line, suggest
from mutua.reports.console import show_notes
from mutua.rounds.events import Callback, Event, Finished, RoundEnded, Started, Stopped
from mutua.support.configuration import PathLike, local_path
from mutua.support.importing import import_object


class Logger(Protocol):
    """What a tool must have to log a run. Its class is called with the run's folder."""

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of a round by name: split/metric/model/client, and bytes/up, bytes/down so far."""

    def close(self) -> None:
        """The run is over, or was stopped."""


class Logged:
    """A callback: gives a logger every number of a round when the round ends.

    A logger only watches: if it fails, a note says so and the run continues without it.
    """

    def __init__(self, logger: Logger) -> None:
        self.logger: Logger | None = logger

    def __call__(self, event: Event) -> None:
        """Log the numbers of a round that ended; close the logger at the end."""
        if self.logger is None:
            return
        try:
            match event:
                case RoundEnded():
                    self.logger.log(event.round, _numbers(event))
                case Finished() | Stopped():
                    self.logger.close()
        except Exception as error:  # any error of a foreign tool
            self.logger = None
            show_notes([f"the logger failed ({_told(error)}); the run goes on without it"])


def _numbers(event: RoundEnded) -> dict[str, float]:
    newest = list(takewhile(lambda row: row.round == event.round, reversed(event.history)))
    numbers = {
        f"{row.split}/{row.metric}/{row.model}/{row.client}": row.value
        for row in reversed(newest)
        if row.value is not None
    }
    return numbers | {"bytes/up": event.ledger.bytes("up"), "bytes/down": event.ledger.bytes("down")}


class TensorBoard:
    """Scalars in RUN/tensorboard: `tensorboard --logdir runs` shows them."""

    def __init__(self, folder: PathLike) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(local_path(folder, "--log") / "tensorboard"))

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Write each number as a scalar."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round)

    def close(self) -> None:
        """Write what is still in memory."""
        self._writer.close()


def known_logger(name: str) -> Callable[[Path], Callback]:
    """A function of a run's folder that makes the callback of `tensorboard` or of "package.module:Class"."""
    make = _maker(name)

    def logged(folder: Path) -> Callback:
        made: list[Logged] = []

        def callback(event: Event) -> None:
            if isinstance(event, Started):  # so a logger that cannot be made fails before the run has begun
                made.append(Logged(_made(name, make, folder)))
            for one in made:
                one(event)

        return callback

    return logged


def _maker(name: str) -> Callable[[Path], Logger]:
    if ":" in name:
        return import_object(name, "--log")  # type: ignore[no-any-return]
    if name != "tensorboard":
        known = suggest(name, ["tensorboard"])
        raise InputError(f"--log: '{name}' is not a logger; {known}, or package.module:Class of your own")
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise InputError('--log: tensorboard is not installed; pip install "mutua[tensorboard]"') from None
    return TensorBoard


def _made(name: str, make: Callable[[Path], Logger], folder: Path) -> Logger:
    try:
        logger = make(folder)
    except Exception as error:  # any error of a foreign tool
        raise InputError(f"--log: '{name}' cannot be made with the run's folder: {_told(error)}") from None
    for function in ("log", "close"):
        if not callable(getattr(logger, function, None)):
            raise InputError(f"--log: '{name}' has no {function}; a logger has log(round, numbers) and close()")
    return logger


def _told(error: Exception) -> str:
    return line(f"{type(error).__name__}: {error}")
