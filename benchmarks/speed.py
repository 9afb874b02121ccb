"""How fast mutua is, as a ratio to a plain PyTorch loop that does the same work on the same machine.

`python benchmarks/speed.py` runs every workload; `--quick` a short pass that fails where a ratio has fallen below
85 % of the recorded one (benchmarks/recorded.json, written by `--record` from three such passes).

Rounds of mutua and of the plain loop alternate in one process tree, so that other load on the machine affects
both. Both train on the same batches from the same weights; after the first round their weights are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from plain import NETWORKS, SGD, PlainFML, model
from torch import nn
from torch.utils.data import TensorDataset
from torch.utils.flop_counter import FlopCounterMode

import mutua
import mutua.runs.result
from mutua.data.samples import Samples, concatenate
from mutua.federation.client import Client, build
from mutua.federation.federation import Federation
from mutua.methods.participant import initial_seed
from mutua.models import Architecture
from mutua.rounds.events import Event, Reached, RoundEnded, RoundStarted
from mutua.seeds import derive, private, torch_stream
from mutua.support.tensor_files import Tensors

RECORDED = Path(__file__).with_name("recorded.json")
FLOOR = 0.85
THREADS = int(os.environ.get("PLAIN_THREADS", os.cpu_count() or 1))


@dataclass(frozen=True)
class Workload:
    """Clients with so many samples each, one model for all, and a test set as large as `test` says."""

    name: str
    model: str
    clients: int
    batch: int
    samples: int
    test: int
    bar: float
    rounds: int
    """Timed rounds in a full pass: as many as take about half a minute."""
    channels: int = 1
    size: int = 28
    width: float = 1.0

    def cut(self, **smaller: float) -> Workload:
        """The same kind of work, less of it."""
        return replace(self, **smaller)


MLP = Workload("MLP, 5 clients", "mlp", 5, 128, 2560, 256, 2.2, 15)
LENET_5 = Workload("LeNet5, 5 clients", "lenet5", 5, 128, 1280, 128, 1.6, 7)
LENET_20 = Workload("LeNet5, 20 clients", "lenet5", 20, 16, 320, 32, 2.3, 6)
CNN1_5 = Workload("CNN1, 5 clients", "cnn1", 5, 128, 1280, 128, 1.6, 7)
CNN2 = Workload("CNN2, 5 clients", "cnn2", 5, 128, 256, 26, 1.7, 3)
CNN1_100 = Workload("CNN1, 100 clients", "cnn1", 100, 10, 100, 10, 2.3, 5)
RESNET18 = Workload("ResNet18, 4 clients", "resnet18", 4, 32, 64, 6, 1.0, 2, channels=3, size=32)
CNN_5X5 = Workload("CNN-5x5, 8 clients", "cnn-5x5", 8, 50, 300, 420, 1.9, 5)
WORKLOADS = [MLP, LENET_5, LENET_20, CNN1_5, CNN2, CNN1_100, RESNET18, CNN_5X5]
QUICK = [
    MLP.cut(samples=1280, test=128, rounds=4),
    LENET_5.cut(samples=256, test=26, rounds=4),
    LENET_20.cut(clients=10, samples=96, test=10, rounds=3),
    CNN1_5.cut(samples=256, test=26, rounds=4),
    CNN2.cut(batch=24, samples=24, test=6, rounds=2),
    CNN1_100.cut(clients=20, samples=30, rounds=4),
    RESNET18.cut(width=0.5, clients=2, batch=8, samples=8, test=2, rounds=3),
    CNN_5X5.cut(clients=4, samples=100, test=70, rounds=3),
]
"""Together under a minute. Their ratios are compared with themselves only, not with the bars."""


@dataclass
class Race:
    """A run of mutua in whose pauses the plain loop does the same round."""

    workload: Workload
    rounds: int
    mine: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)

    def run(self, workers: int | None = None) -> None:
        """All rounds; the first one is for warming up and for comparing weights, and is not timed."""
        self.federation = federation(self.workload)
        self.loop = plain(self.federation)
        fml(self.workload, self.federation, self.rounds + 1, workers, self)

    def __call__(self, event: Event) -> None:
        """Time mutua's round, then do and time the plain one."""
        if isinstance(event, RoundStarted):
            self.began = time.perf_counter()
        elif isinstance(event, RoundEnded) and event.round:
            mine = time.perf_counter() - self.began
            batches = {c.id: cuts(c, event.round, self.workload.batch) for c in self.federation.clients}
            torch.set_num_threads(THREADS)
            began = time.perf_counter()
            self.loop.round(batches)
            took = time.perf_counter() - began
            torch.set_num_threads(1)
            if event.round > 1:
                self.mine.append(mine)
                self.plain.append(took)
        elif isinstance(event, Reached) and event.run_state.round == 1:
            self.apart = apart(event.run_state.server["global"], self.loop.shared.state_dict())

    @property
    def ratios(self) -> list[float]:
        """The plain loop's time over mutua's, round by round."""
        return [b / a for a, b in zip(self.mine, self.plain, strict=True)]


def apart(mine: Tensors, theirs: Tensors) -> float:
    """How far two globals are from each other, relative to their size."""
    floats = [name for name, array in mine.items() if array.is_floating_point()]
    one, other = (torch.cat([state[n].flatten() for n in floats]) for state in (mine, theirs))
    return float((one - other).norm() / other.norm())


def fml(
    workload: Workload,
    among: Federation,
    rounds: int,
    workers: int | None = None,
    *callbacks: Any,
    evaluate_every: int = 1,
    **more: Any,
) -> mutua.runs.result.Result:
    """FML as the plain loop does it; `more` are other settings of a run, such as its engine."""
    return mutua.run(
        mutua.methods.FML(alpha=0.5, beta=0.5),
        among,
        rounds=rounds,
        epochs=1,
        batch_size=workload.batch,
        optimizer=mutua.SGD(**SGD),
        device="cpu",
        callbacks=callbacks,
        evaluate_every=evaluate_every,
        workers=workers,
        progress=False,
        **more,
    )


def federation(workload: Workload) -> Federation:
    """Clients with images of noise: speed does not depend on what is in them."""
    model = Architecture.of({"name": workload.model, "width": workload.width})
    stream = torch_stream(0, workload.name)

    def samples(number: int) -> Samples:
        shape = (number, workload.channels, workload.size, workload.size)
        x = torch.randint(256, shape, dtype=torch.uint8, generator=stream)
        return Samples.of(x, torch.randint(10, (number,), generator=stream), classes=[str(c) for c in range(10)])

    clients = []
    for k in range(workload.clients):
        train, test = samples(workload.samples), samples(workload.test)
        clients.append(Client(f"c{k:03}", train, test.take([]), test, model))
    return Federation(tuple(clients), model, concatenate([client.test for client in clients]))


def plain(among: Federation) -> PlainFML:
    """The plain loop over the same clients, from the same weights."""
    shared = among.global_model
    assert shared is not None
    first = among.clients[0]

    def by_hand(of: Architecture, client: Client, seed: int) -> nn.Module:
        """Torch's own layers with the weights that mutua begins with; mutua's module where nobody wrote one."""
        ours = build(of, client, seed)
        if of.name not in NETWORKS:
            return ours
        theirs = model(of.name)
        theirs.load_state_dict(ours.state_dict())
        return theirs

    personals = {
        c.id: by_hand(c.model, c, derive(private(0, c.id), "personal", "initialisation")) for c in among.clients
    }

    def tensors(samples: Samples) -> TensorDataset:
        return TensorDataset(samples.preprocess(samples.x), samples.y)

    assert among.test is not None
    return PlainFML(
        by_hand(shared, first, initial_seed(0)),
        personals,
        {c.id: tensors(c.train) for c in among.clients},
        {c.id: tensors(c.test) for c in among.clients},
        tensors(among.test),
    )


def cuts(client: Client, round: int, batch: int) -> list[list[int]]:
    """The batches that mutua draws for this client in this round."""
    stream = torch_stream(private(0, client.id), round, "batches")
    order = torch.randperm(len(client.train), generator=stream)
    return [cut.tolist() for cut in order.split(batch)]


def peak(seconds: float = 1.0) -> float:
    """FLOP/s of a large matrix product on all cores: what the machine can do, now."""
    torch.set_num_threads(THREADS)
    a = torch.randn(1024, 1024)
    best, until = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        a @ a
        best = max(best, 2 * 1024**3 / (time.perf_counter() - began))
    torch.set_num_threads(1)
    return best


def flops(race: Race) -> int:
    """Floating-point operations of a round: forward and backward of both models, and the evaluation."""
    loop = plain(race.federation)
    batches = {c.id: cuts(c, 1, race.workload.batch) for c in race.federation.clients[:1]}
    with FlopCounterMode(display=False) as counter:
        loop.personals = dict(list(loop.personals.items())[:1])
        loop.common = next(iter(loop.test.values()))
        loop.round(batches)
    return counter.get_total_flops() * len(race.federation.clients)


def main() -> int:
    """The table, and with `--quick` the guard."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="a short pass that fails below 85 %% of the record")
    options.add_argument("--record", action="store_true", help="make three quick passes the record")
    options.add_argument("--rounds", type=int, default=None, help="timed rounds a workload")
    options.add_argument("--workers", type=int, default=None, help="mutua's workers; the number of cores")
    options.add_argument("--only", default="", help="workloads whose name contains this")
    given = options.parse_args()
    given.quick = given.quick or given.record  # quick ratios are what is compared with the record
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    fallen = []
    print(
        "workload                plain s  mutua s   ratio        spread   ",
        "" if given.quick else "bar  of peak     apart",
    )
    for workload in QUICK if given.quick else WORKLOADS:
        if given.only.lower() not in workload.name.lower():
            continue
        race = Race(workload, given.rounds or workload.rounds)
        floor = FLOOR * recorded.get(workload.name, 0.0) if given.quick else 0.0
        for _ in range(3 if given.record else 1):
            race.run(given.workers)
        if statistics.median(race.ratios) < floor and not given.record:
            race.run(given.workers)  # a few rounds are easily disturbed: look twice
        ratios, mine = race.ratios, statistics.median(race.mine)
        ratio = statistics.median(ratios)
        print(
            f"{workload.name:22}{statistics.median(race.plain):9.3f}{mine:9.3f}{ratio:8.2f}"
            f"{min(ratios):7.2f}-{max(ratios):<6.2f}",
            end="\n" if given.quick else "",
            flush=True,
        )
        if not given.quick:
            print(f"{workload.bar:6.1f}{flops(race) / mine / peak():9.0%}{race.apart:10.1e}", flush=True)
        if race.apart > 1e-4:
            fallen.append(f"{workload.name}: weights differ by {race.apart:.1e}")
        if given.record:
            recorded[workload.name] = round(ratio, 2)
        elif given.quick and workload.name not in recorded:
            fallen.append(f"{workload.name}: nothing recorded to compare with; run with --record first")
        elif ratio < floor:
            fallen.append(f"{workload.name}: {ratio:.2f} is below {FLOOR:.0%} of {recorded[workload.name]:.2f}")
    if given.record:
        RECORDED.write_text(json.dumps(recorded, indent=2) + "\n")
    for line in fallen:
        print(line, file=sys.stderr)
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
