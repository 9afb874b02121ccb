"""What the Ray engine costs, compared with the local one in the same minutes. About twelve minutes on two cores.

    python benchmarks/ray.py                 # all four tables
    python benchmarks/ray.py --only speed    # or: step, growth, stores

Runs of both engines take turns, with two workers each, on one Ray that is started before. Rounds are timed without
evaluation, and without the first one, which builds models. Ratios are of medians; a spread is over the pairs.
The head's CPU time is that of the process that runs the rounds; other load on the machine hardly changes it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

# This file is not the package of the same name.
sys.path.append(sys.path.pop(0))

from speed import CNN1_5, CNN2, LENET_20, RESNET18, Workload, federation, fml

from mutua.engines.ray_cluster import connect, disconnect
from mutua.rounds.events import Event, RoundEnded, RoundStarted

WORKERS = 2
PAIRS = 4
BAR = 0.9
FEW = CNN1_5.cut(name="linear", model="linear", samples=10, test=2, batch=10)


class RoundClock:
    """How long each round takes but the first one and the last one, which is evaluated; and the head's part."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.took, self.head = rounds, list[float](), list[float]()

    def __call__(self, event: Event) -> None:
        """Look at the clocks."""
        if isinstance(event, RoundStarted):
            self._began = time.perf_counter(), time.process_time()
        elif isinstance(event, RoundEnded) and 1 < event.round < self.rounds:
            self.took.append(time.perf_counter() - self._began[0])
            self.head.append(time.process_time() - self._began[1])


def timed(workload: Workload, rounds: int, among: Any, workers: int = WORKERS, **more: Any) -> tuple[float, float]:
    """The median time of a round, and the head's CPU time."""
    clock = RoundClock(rounds)
    fml(workload, among, rounds, workers, clock, evaluate_every=rounds, **more)
    return statistics.median(clock.took), statistics.median(clock.head)


def seconds(workload: Workload, rounds: int, among: Any, **more: Any) -> float:
    """The median time of a round."""
    return timed(workload, rounds, among, **more)[0]


def speed() -> bool:
    """Rounds per minute; whether the bars are met. Four clients each, an even number: the local engine lets a
    client that is alone at the end use both cores, and this one does not."""
    print("rounds per minute          local     ray   ratio     spread   bar")
    met = True
    for name, workload, rounds, bar in (
        ("LeNet5, 20 clients", LENET_20, 8, None),
        ("CNN2, 4 clients", CNN2.cut(clients=4, samples=128), 5, BAR),
        ("ResNet18, 4 clients", RESNET18.cut(samples=32), 5, BAR),
        ("CNN2, 5 clients", CNN2.cut(samples=128), 5, None),
    ):
        among, pairs = federation(workload), list[tuple[float, float]]()
        for turn in range(PAIRS):
            order = ("local", "ray") if turn % 2 == 0 else ("ray", "local")
            took = {engine: seconds(workload, rounds, among, engine=engine) for engine in order}
            pairs.append((took["local"], took["ray"]))
        here, there = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratios = [a / b for a, b in pairs]
        ratio = statistics.median(ratios)
        print(
            f"{name:22}{60 / here:10.1f}{60 / there:8.1f}{ratio:8.2f}{min(ratios):7.2f}-{max(ratios):.2f}", end=""
        )
        print("" if bar is None else f"{bar:6.1f}", flush=True)
        met = met and (bar is None or ratio >= bar)
    return met


def step() -> None:
    """What a client's visit to a worker costs beyond its work: a linear model, one step on ten samples."""
    print("\na visit of a client, ms (linear model, one step, 100 clients)")
    print("              core time of the machine        head's CPU")
    workload = FEW.cut(clients=100)
    among = federation(workload)
    found: dict[str, list[tuple[float, float]]] = {"one process": [], "local": [], "ray": []}
    for _ in range(PAIRS):
        found["one process"].append(timed(workload, 12, among, workers=1))
        for engine in ("local", "ray"):
            took, head = timed(workload, 12, among, engine=engine)
            found[engine].append((took * WORKERS, head))
    for name, times in found.items():
        walls, heads = ([10 * one for one in ones] for ones in zip(*times, strict=True))
        print(f"{name:14}{statistics.median(walls):8.2f}   ({min(walls):.2f}-{max(walls):.2f})", end="")
        print(f"{statistics.median(heads):14.2f}   ({min(heads):.2f}-{max(heads):.2f})", flush=True)


def growth() -> None:
    """Time of a round by clients, all of which take part."""
    print("\nms per client and round (linear model, one step, all take part), and the head's CPU of it")
    print("clients        local  (head)       ray  (head)")
    for clients, rounds in ((10, 30), (100, 12), (1000, 6), (4000, 5)):
        workload = FEW.cut(clients=clients)
        among = federation(workload)
        both = [timed(workload, rounds, among, engine=engine) for engine in ("local", "ray")]
        row = "".join(f"{1e3 * took / clients:10.3f}{1e3 * head / clients:8.3f}" for took, head in both)
        print(f"{clients:<10,}{row}", flush=True)


def stores() -> None:
    """Stores on disk against stores in memory."""
    print("\nCNN1, 100 clients: a round with stores on disk, as a multiple of one with stores in memory")
    workload = CNN1_5.cut(name="CNN1, 100 clients", clients=100, samples=50, test=10, batch=10)
    among = federation(workload)
    for engine in ("local", "ray"):
        pairs = [
            [seconds(workload, 6, among, engine=engine, stores=place) for place in ("memory", "disk")]
            for _ in range(PAIRS)
        ]
        ratios = [disk / memory for memory, disk in pairs]
        memory = statistics.median(pair[0] for pair in pairs)
        print(f"{engine:8}{memory:8.3f} s{statistics.median(ratios):8.2f}   ({min(ratios):.2f}-{max(ratios):.2f})")


def main() -> int:
    """The tables; a code that says whether the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["speed", "step", "growth", "stores"])
    given = parser.parse_args()
    connect(None, WORKERS)
    met = True
    for name, table in (("speed", speed), ("step", step), ("growth", growth), ("stores", stores)):
        if given.only in (None, name):
            met = table() is not False and met
    disconnect()
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
