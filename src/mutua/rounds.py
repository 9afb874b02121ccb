"""The round loop: brief, train, merge, evaluate; and the protocol that engines speak.

Everything that is not the algorithm (progress, files, pages) listens to the loop's events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mutua.errors import Refused, RunError
from mutua.federation import Federation
from mutua.history import History, Metrics
from mutua.ledger import Ledger, may_leave
from mutua.message import Message, Tensors
from mutua.methods.base import Server
from mutua.participant import Job, Reply
from mutua.seeds import numpy_stream, public
from mutua.store import Store
from mutua.topology import Topology

Briefs = Mapping[str, Message | None]


class Engine(Protocol):
    """Where clients run. An engine moves messages and runs the clients' side of a method."""

    @property
    def stores(self) -> Mapping[str, Store]:
        """What each client keeps: in a simulation the observer may look."""

    def open(self, job: Job, federation: Federation, stores: Mapping[str, Store] | None = None) -> None:
        """Take the job and make ready; `stores` are what clients kept when the run was stopped."""

    def start(self) -> None:
        """Every client's `start`."""

    def train(self, round: int, briefs: Briefs) -> Mapping[str, Reply]:
        """Send the briefs, let these clients train, gather their replies."""

    def finish(self, round: int, briefs: Briefs) -> None:
        """Every client's `finish`."""

    def evaluate(self, round: int, briefs: Briefs) -> Mapping[str, Mapping[tuple[str, str], Metrics]]:
        """By client, then by (model, split): its predictor and the global on its own data."""

    def evaluate_global(self, state: Tensors) -> Metrics:
        """A complete global on the common test set."""

    def close(self) -> None:
        """Give back what the engine holds."""


@dataclass(frozen=True)
class Started:
    """The run begins."""

    job: Job
    federation: Federation


@dataclass(frozen=True)
class RoundStarted:
    """These clients were drawn."""

    round: int
    clients: tuple[str, ...]


@dataclass(frozen=True)
class Trained:
    """A client's work of a round is done."""

    round: int
    client: str
    reply: Reply


@dataclass(frozen=True)
class Rejected:
    """A reply was refused; the round goes on without it."""

    round: int
    client: str
    reason: str


@dataclass(frozen=True)
class RoundEnded:
    """The round is merged and, where due, evaluated: everything that is known so far."""

    round: int
    history: History
    ledger: Ledger


@dataclass(frozen=True)
class Finished:
    """The run is over."""


Event = Started | RoundStarted | Trained | Rejected | RoundEnded | Finished
Callback = Callable[[Event], None]


@dataclass
class Rounds:
    """One run of a method over a federation."""

    job: Job
    federation: Federation
    engine: Engine
    callbacks: Sequence[Callback] = ()
    history: History = field(default_factory=History)
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self.ids = sorted(client.id for client in self.federation.clients)
        first = self.federation[self.ids[0]].train
        self.server = Server(
            clients=tuple(self.ids),
            seed=self.job.plan.seed,
            model=self.federation.global_model,
            channels=first.channels,
            size=first.size,
            classes=len(first.classes),
            batch_size=self.job.plan.batch_size,
            topology=Topology(self.job.plan.topology),
            public=self.federation.public,
        )
        self.server.topology.check(self.ids)
        self.drawable = self.federation.drawable(self.job.method.needs_global)

    def run(self) -> None:
        """All rounds, then the clients' last work and the last evaluation."""
        method, plan = self.job.method, self.job.plan
        method.open(self.server)
        self.engine.start()
        self._emit(Started(self.job, self.federation))
        if plan.rounds:  # else the last evaluation is of round 0
            self._evaluate(0)
            self._emit(RoundEnded(0, self.history, self.ledger))
        for round in range(1, plan.rounds + 1):
            self._round(round)
            if round < plan.rounds:
                if round % plan.evaluate_every == 0:
                    self._evaluate(round)
                self._emit(RoundEnded(round, self.history, self.ledger))
        # The last global goes to every client, drawn or not: it is counted as one more round's brief.
        briefs = self._briefs(plan.rounds + 1, self.ids)
        for client, brief in briefs.items():
            self.ledger.record(plan.rounds + 1, client, "down", brief)
        self.engine.finish(plan.rounds + 1, briefs)
        self._evaluate(plan.rounds, last=True)
        self._emit(RoundEnded(plan.rounds, self.history, self.ledger))
        self._emit(Finished())

    def _round(self, round: int) -> None:
        method, plan = self.job.method, self.job.plan
        drawn = self._draw(round)
        self._emit(RoundStarted(round, tuple(drawn)))
        briefs = self._briefs(round, drawn)
        for client, brief in briefs.items():
            self.ledger.record(round, client, "down", brief)
        replies = self.engine.train(round, briefs)
        accepted: dict[str, Message] = {}
        refusals: list[str] = []
        for client in drawn:
            reply = replies[client]
            for term, mean in reply.terms.items():
                self.history.add(round, client, term, "train", "objective", mean)
            self._emit(Trained(round, client, reply))
            if reply.message is None:
                continue
            self.ledger.record(round, client, "up", reply.message)
            try:
                may_leave(client, reply.message, method.shares, briefs[client])
                method.check(self.server, client, reply.message)
                accepted[client] = reply.message
            except Refused as refused:
                self._emit(Rejected(round, client, str(refused)))
                refusals.append(f"{client}: {refused}")
        for client, reason in method.outliers(self.server, accepted).items():
            del accepted[client]
            self._emit(Rejected(round, client, reason))
            refusals.append(f"{client}: {reason}")
        sent = [client for client in drawn if replies[client].message is not None]
        if sent and len(accepted) < plan.min_replies:
            raise RunError(
                f"round {round}: {len(accepted)} of {len(sent)} replies could be merged, "
                f"min_replies is {plan.min_replies}; refused: {'; '.join(refusals[:1]) or 'none'}"
            )
        if accepted:
            method.merge(self.server, accepted)

    def _draw(self, round: int) -> list[str]:
        """The round's clients, in id order: a public draw, so anybody can check it."""
        number = self.job.plan.drawn(len(self.drawable))
        rng = numpy_stream(public(self.job.plan.seed), round, "clients")
        return sorted(rng.choice(self.drawable, size=number, replace=False).tolist())

    def _briefs(self, round: int, clients: Sequence[str]) -> dict[str, Message | None]:
        return {client: self.job.method.brief(self.server, round, client) for client in clients}

    def _evaluate(self, round: int, last: bool = False) -> None:
        shared = self.server.state.get("global")
        if shared is not None and not self.federation.partial and self.federation.test is not None:
            self.history.measured(round, "global", "global", "test", self.engine.evaluate_global(shared), last)
        # After the last round the clients have finished: their work counts as one more round's.
        at = round + 1 if last else round
        for client, found in self.engine.evaluate(at, self._briefs(at + 1, self.ids)).items():
            for (model, split), metrics in found.items():
                self.history.measured(round, client, model, split, metrics, last)

    def _emit(self, event: Event) -> None:
        for callback in self.callbacks:
            callback(event)
