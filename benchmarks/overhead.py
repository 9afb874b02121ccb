"""What the engine costs beyond the bare steps, and how the cost grows with the number of clients.

Bare steps are forward, losses, backward and optimizer. They are timed one by one inside their rounds, because the
machine might run at another speed in a separate loop. The rest of a round is the engine's: putting models and
memory in place and keeping them, batches, random streams, messages, merge, ledger. Evaluation and checkpoints are
left out. All in one process on one core. The table of growth is of whole rounds, with evaluation, on all cores.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from speed import WORKLOADS, Workload, federation, fml

from mutua.learning import trainer
from mutua.rounds.events import Event, RoundEnded, RoundStarted

ROUNDS = 7


class Clock:
    """How long a round takes, and how much of that its steps do, without the random streams' part of them."""

    def __init__(self) -> None:
        self.bare: list[float] = []
        self.whole: list[float] = []
        self._steps = self._streams = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundStarted):
            self._steps = self._streams = 0.0
            self._began = time.perf_counter()
        elif isinstance(event, RoundEnded) and 1 < event.round <= ROUNDS:  # the last one is evaluated
            self.whole.append(time.perf_counter() - self._began)
            self.bare.append(self._steps - self._streams)

    def watch(self) -> None:
        """Time every step from now on."""
        trainer.Trainer.step = self._timed(trainer.Trainer.step, "_steps")  # type: ignore[method-assign]
        trainer._seed = self._timed(trainer._seed, "_streams")

    def _timed(self, function: Callable[..., Any], total: str) -> Callable[..., Any]:
        def timed(*given: Any) -> None:
            began = time.perf_counter()
            function(*given)
            setattr(self, total, getattr(self, total) + time.perf_counter() - began)

        return timed


def overhead() -> None:
    """Time of a round beyond its bare steps."""
    print("workload               bare s  round s  overhead        spread  bar")
    clock = Clock()
    clock.watch()
    for name, bar in (("LeNet5, 5 clients", 0.05), ("CNN1, 100 clients", 0.10)):
        workload = next(w for w in WORKLOADS if w.name == name)
        clock.bare, clock.whole = [], []
        fml(workload, federation(workload), ROUNDS + 1, 1, clock, evaluate_every=1000)
        extra = [a / b - 1 for a, b in zip(clock.whole, clock.bare, strict=True)]
        print(
            f"{name:20}{statistics.median(clock.bare):9.3f}{statistics.median(clock.whole):9.3f}"
            f"{statistics.median(extra):10.1%}{min(extra):8.1%} to {max(extra):5.1%}{bar:5.0%}",
            flush=True,
        )


def growth() -> None:
    """Seconds per round and milliseconds per client, from 10 to 1,000 clients of the same size."""
    print("\nclients   round s   ms per client")
    for number in (10, 30, 100, 300, 1000):
        workload = Workload(f"{number} clients", "cnn1", number, 10, 20, 10, bar=0.0, rounds=4)
        times: list[float] = []

        def clock(event: Event, times: list[float] = times) -> None:
            if isinstance(event, RoundStarted):
                times.append(-time.perf_counter())
            elif isinstance(event, RoundEnded) and event.round:
                times[-1] += time.perf_counter()

        fml(workload, federation(workload), workload.rounds, None, clock)
        took = statistics.median(times[1:])
        print(f"{number:7}{took:10.3f}{1e3 * took / number:14.2f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    growth()  # first: its workers would inherit the clock
    overhead()
