"""What the engine costs beside the bare steps, and how cost grows with the number of clients.

Bare steps are the same batches through the same models, losses and optimizers in a plain loop over ready tensors:
no store, message, merge or ledger. Evaluation and checkpoints are left out of both. Both run on one core in
one process; their rounds alternate. The table of growth is of whole rounds, evaluation included, on all cores.
"""

from __future__ import annotations

import statistics
import time

import torch
from speed import SGD, WORKLOADS, Workload, cuts, federation, fml

import mutua
from mutua.federation import Federation, build
from mutua.learning.layout import images, rows
from mutua.learning.trainer import Batch, Numbers, Trainer
from mutua.rounds import Event, RoundEnded, RoundStarted

ROUNDS = 7


class Bare:
    """Times mutua's rounds, merge included, and in their pauses the bare steps of the same rounds."""

    def __init__(self, workload: Workload, among: Federation) -> None:
        self.workload, self.among = workload, among
        self.engine: list[float] = []
        self.bare: list[float] = []
        self.method = mutua.methods.FML(alpha=0.5, beta=0.5)
        shared = among.global_model
        assert shared is not None
        self.clients = [
            (
                c,
                [build(shared, c, seed).to(memory_format=torch.channels_last) for seed in (1, 2)],  # type: ignore[call-overload]
                rows(c.train.preprocess(c.train.x)),
            )
            for c in among.clients
        ]

    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundStarted):
            self.began = time.perf_counter()
        elif isinstance(event, RoundEnded) and 1 < event.round <= ROUNDS:  # the last one is evaluated
            self.engine.append(time.perf_counter() - self.began)
            began = time.perf_counter()
            self._steps(event.round)
            self.bare.append(time.perf_counter() - began)

    def _steps(self, round: int) -> None:
        for client, (personal, meme), ready in self.clients:
            models = {"personal": personal.train(), "meme": meme.train()}
            spec = mutua.SGD(**SGD)
            optimizers = {name: spec.build(model.parameters(), SGD["lr"]) for name, model in models.items()}
            trainer = Trainer(models, optimizers, Numbers(alpha=0.5, beta=0.5, temperature=1.0))
            for cut in cuts(client, round, self.workload.batch):
                at = torch.tensor(cut)
                trainer.step(self.method.objective, Batch(images(ready[at]), client.train.y[at], client.task, at))


def overhead() -> None:
    """Time of a round beyond its bare steps."""
    print("workload               bare s  round s  overhead        spread  bar")
    for name, bar in (("LeNet5, 5 clients", 0.05), ("CNN1, 100 clients", 0.10)):
        workload = next(w for w in WORKLOADS if w.name == name)
        among = federation(workload)
        bare = Bare(workload, among)
        fml(workload, among, ROUNDS + 1, 1, bare, evaluate_every=1000)
        extra = [a / b - 1 for a, b in zip(bare.engine, bare.bare, strict=True)]
        print(
            f"{name:20}{statistics.median(bare.bare):9.3f}{statistics.median(bare.engine):9.3f}"
            f"{statistics.median(extra):10.1%}{min(extra):8.1%} to {max(extra):5.1%}{bar:5.0%}",
            flush=True,
        )


def growth() -> None:
    """Seconds a round and a client, from 10 to 1,000 clients of the same size."""
    print("\nclients   round s   ms a client")
    for number in (10, 30, 100, 300, 1000):
        workload = Workload(f"{number} clients", "cnn1", number, 10, 20, 10, bar=0.0, rounds=3)
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
    overhead()
    growth()
