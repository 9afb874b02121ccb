"""How a recorded run grows with clients and with rounds: time per round, memory, and seconds after the last round.

Tiny models on tiny data, so that what is measured is mutua itself: rounds, evaluation, history, ledger,
checkpoints, and at the end every client's folder. With `--clients N --rounds N` one size instead of the two.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from statistics import median

from mutua.recipe.recipe import Recipe
from mutua.rounds.events import Event, RoundEnded, RoundStarted
from mutua.runs.execute import execute
from mutua.runs.recording import Recorder


class Clock:
    """When each round began and the last one ended."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.times, self.ended = rounds, list[float](), 0.0

    def __call__(self, event: Event) -> None:
        """Note the time."""
        if isinstance(event, RoundStarted):
            self.times.append(time.perf_counter())
        elif isinstance(event, RoundEnded) and event.round == self.rounds:
            self.ended = time.perf_counter()


def measure(clients: int, rounds: int) -> None:
    """One run with a folder, by FML; the last evaluation is a part of the last round."""
    recipe = Recipe.of(
        {
            "name": "scale",
            # From 30 samples of a client are 21 to learn from.
            "data": {"name": "mnist5k", "samples_per_client": 30 if clients <= 100 else 2},
            "partition": {"kind": "iid", "clients": clients},
            "models": {"global": {"name": "mlp", "width": 0.02}},
            "method": "fml",
            "rounds": rounds,
            "epochs": 1,
            "batch_size": 32,
            "device": "cpu",
        }
    )
    federation, clock = recipe.federation(), Clock(rounds)
    with tempfile.TemporaryDirectory() as place:
        execute(recipe, federation, Recorder.create("scale", 0, Path(place) / "run"), callbacks=[clock])
        after = time.perf_counter() - clock.ended
    took = [b - a for a, b in zip(clock.times, clock.times[1:], strict=False)]
    part = max(1, len(took) // 10)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{clients:8,}{rounds:8,}{1e3 * median(took[:part]):14.1f}{1e3 * median(took[-part:]):14.1f}"
        f"{memory:10.0f}{after:14.1f}",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    print(" clients  rounds  first ms/round  last ms/round   peak MB  s after last")
    for size in [(given.clients, given.rounds)] if given.clients else [(2_000, 20), (2, 10_000)]:
        measure(*size)
