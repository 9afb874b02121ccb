"""A client's work of a round, as one transaction: what it keeps and what it sends are committed together.

Every engine calls `work`. It gives each client a staged copy of its store, lets somebody `perform` the verb of the
method in whichever process, and commits what came of it. A brief that comes twice is answered from the commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor, nn

from mutua.data.samples import Samples
from mutua.errors import NO_MEMORY, Fault, MachineFault, described, short_of_memory
from mutua.federation.client import Client
from mutua.federation.ledger import may_leave
from mutua.federation.message import Message
from mutua.federation.module_pool import Modules
from mutua.federation.store import State, Store, copied
from mutua.learning.evaluation import measure
from mutua.methods.base import Job
from mutua.methods.checks import check_message, check_named_arrays, check_predictor
from mutua.methods.participant import Participant

Verb = Literal["start", "train", "finish"]
Briefs = Mapping[str, Message | None]


@dataclass(frozen=True)
class Reply:
    """What a client sent, and what an observer of the simulation saw of its work."""

    message: Message | None
    terms: dict[str, float]
    seconds: float


Replies = Mapping[str, Reply | Fault]
"""By client id, what came of its work; a missing client sent nothing."""


class Staged(NamedTuple):
    """What a client works on: its brief, and a copy of its store that is its own."""

    brief: Message | None
    state: State


Performed = tuple[State, Reply]
Committer = Callable[[str, Performed | Fault], None]
Performer = Callable[[Mapping[str, Staged], Committer], None]
"""Performs the work of these clients, somewhere, and hands in what came of each as it is done."""


def work(stores: Mapping[str, Store], round: int, briefs: Briefs, performer: Performer) -> Replies:
    """The briefed clients' work of a round, each a transaction on its own store."""
    replies: dict[str, Reply | Fault] = {}
    staged: dict[str, Staged] = {}
    for client, brief in briefs.items():
        done = stores[client].committed(round)
        if done is None:
            staged[client] = Staged(brief, stores[client].stage(round))
        else:
            replies[client] = Reply(done.reply, done.terms, 0.0)

    def commit(client: str, found: Performed | Fault) -> None:
        if isinstance(found, Fault):
            replies[client] = found
            return
        state, replies[client] = found
        stores[client].commit(round, state, found[1].message, found[1].terms)

    performer(staged, commit)
    return {client: replies[client] for client in briefs}


def perform(
    job: Job, client: Client, state: State, verb: Verb, round: int, brief: Message | None, modules: Modules
) -> tuple[State, Reply]:
    """One client's work of one round, from a staged state to the next one and the reply that belongs to it.

    Whatever goes wrong in it is the client's `Fault`.
    """
    began, before = time.perf_counter(), copied(state)
    message: Message | None = None
    with _as_fault(client, round):
        participant = Participant(job, client, state, round, modules)
        if verb == "start":
            job.method.start(participant)
        elif verb == "train":
            message = check_message("train", job.method.train(participant, brief))
        else:
            job.method.finish(participant, brief)
        may_leave(message, job.method.shares, brief)
        check_named_arrays("client.state", participant.state)
        kept = participant.finite(before, message)
        if message is not None and brief is not None:
            message = participant.leaving(message, brief)
    return kept, Reply(message, participant.terms, time.perf_counter() - began)


@contextmanager
def _as_fault(client: Client, round: int) -> Iterator[None]:
    """Around what a client does: its mistakes are its own."""
    try:
        yield
    except Fault:
        raise
    except (Exception, SystemExit) as error:  # whatever a method, a model or a loss of a user's own raises
        if short_of_memory(error):
            raise MachineFault(f"client {client.id}, round {round}", NO_MEMORY) from error
        raise Fault(f"client {client.id}, round {round}", described(error)) from error


class Assessment(NamedTuple):
    """How good a client's models are, and the global's probabilities on its test samples."""

    metrics: dict[tuple[str, str], dict[str, float | None]]
    seen: Tensor | None


def assess(
    job: Job,
    client: Client,
    state: State,
    round: int,
    brief: Message | None,
    modules: Modules,
    others: Mapping[str, Samples] | None = None,
) -> Assessment:
    """Metrics of the client's predictor and of the global on its own data, by (model, split).

    Of validation data, accuracy on opted-in samples alone stands beside the rest where the client keeps some out:
    whatever selects the global goes by that.

    With the `others`' samples by split, which only the observer of a simulation has, also FedH2L's three:
    accuracy within the own domain (wdp), across the others' (cdp) and over all (acc).
    `state` is staged for the next round and thrown away: an evaluation leaves no trace in a store.
    """
    with _as_fault(client, round):
        participant = Participant(job, client, state, round + 1, modules)
        found: dict[tuple[str, str], dict[str, float | None]] = {}
        splits = {"val": client.val, "test": client.test}

        def judge(name: str, model: nn.Module) -> dict[str, Tensor]:
            said = {split: participant.predict(model, samples) for split, samples in splits.items()}
            found.update({(name, split): client.task.metrics(said[split], splits[split].y) for split in splits})
            if (shown := client.shown("val")) is not None:
                mine = client.task.metrics(said["val"][shown], client.val.y[shown])
                found[name, "val"]["opted_in"] = mine["accuracy"]
            return said

        seen: Tensor | None = None
        meme = participant.fork(brief) if brief is not None and "global" in brief else None
        if meme is not None:
            seen = judge("global", meme)["test"]
        before = copied(state)
        predictor = check_predictor(job.method.predictor(participant, brief))
        participant.finite(before, None)
        if predictor is meme:
            found |= {("predictor", split): found["global", split] for split in splits}
        else:
            judge("predictor", predictor)
        for split, theirs in (others or {}).items():
            own = found["predictor", split]
            cross = measure(predictor, theirs, client.task, modules.device)["accuracy"]
            parts = [(own["accuracy"], len(splits[split])), (cross, len(theirs))]
            known = [(value, n) for value, n in parts if value is not None]
            over_all = sum(value * n for value, n in known) / sum(n for _, n in known) if known else None
            found["predictor", split] = own | {"wdp": own["accuracy"], "cdp": cross, "acc": over_all}
    return Assessment(found, seen)
