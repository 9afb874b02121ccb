"""The one transaction: a client's work of a round. What it keeps and what it sends are committed together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mutua.errors import NO_MEMORY, Fault, MachineFault, described, short_of_memory
from mutua.federation.client import Client
from mutua.federation.message import Message, may_leave
from mutua.federation.module_pool import Modules
from mutua.federation.store import Committed, State, Store, copied
from mutua.methods.base import Job
from mutua.methods.checks import check_message, check_named_arrays
from mutua.methods.participant import Participant
from mutua.support import signals

Verb = Literal["start", "train", "finish", "join"]
"""What a client is asked to do, named after the verb of the method; `join` is `personalise`."""
Briefs = Mapping[str, Message | None]
"""By client id, what the server sends."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client sent, and what an observer of the simulation saw of its work."""

    message: Message | None
    terms: dict[str, float]
    seconds: float


Replies = Mapping[str, Reply | Fault]
"""By client id, what came of its work; a missing client sent nothing."""


class Staged(NamedTuple):
    """What a client works on: its brief, and its state from before the round."""

    brief: Message | None
    state: State


class Entrusted(NamedTuple):
    """What a worker gets that has the whole transaction to do: the brief, and a store that writes files."""

    brief: Message | None
    store: Store


class Worked(NamedTuple):
    """What came of such a transaction: the reply, and the commits that the store has now."""

    reply: Reply | Fault
    commits: list[Committed]


Performed = tuple[State, Reply]
"""The state to keep and the reply that belongs to it."""
HandIn = Callable[[str, Performed | Fault], None]
"""Commits what came of this client's work."""
Performer = Callable[[Mapping[str, Staged], HandIn], None]
"""Has `perform` called for these clients, wherever their data are, and hands in what came of each."""


def work(stores: Mapping[str, Store], round: int, briefs: Briefs, performer: Performer) -> Replies:
    """The briefed clients' work of a round: each a transaction on its own store. Every engine calls this.

    A brief that comes twice is answered from the commit. A client that is at fault keeps its store as it was. If
    the performer raises, what was handed in before stays committed, and nothing else has changed. A signal never
    stops a commit half-way.

    Engines differ in who holds the stores and in the performer:

    - A simulation with stores in memory holds all of them; its performer sends each client's work to a worker.
    - If stores are on disk, a worker calls `work` with the store of one client. Its performer calls `perform` in
      its own process and hands in a `Fault` that is raised.
    - A site on a network calls `work({site: store}, round, {site: brief}, performer)` when a brief arrives, and
      sends the reply. If the connection breaks, the server sends the brief again. A store that must outlive its
      process saves itself in `Store.commit`, which is called before the reply is given out.
    """
    replies: dict[str, Reply | Fault] = {}
    staged: dict[str, Staged] = {}
    for client, brief in briefs.items():
        done = stores[client].committed(round)
        if done is None:
            staged[client] = Staged(brief, stores[client].stage(round))
        else:
            replies[client] = Reply(done.reply, done.terms, 0.0)

    def hand_in(client: str, found: Performed | Fault) -> None:
        if isinstance(found, Fault):
            replies[client] = found
            return
        state, reply = found
        with signals.deferred():
            stores[client].commit(round, state, reply.message, reply.terms)
            replies[client] = reply

    performer(staged, hand_in)
    return {client: replies[client] for client in briefs}


def perform(job: Job, client: Client, verb: Verb, round: int, staged: Staged, modules: Modules) -> Performed:
    """One client's work of one round. What is staged stays as it is, so the work can be done again.

    Whatever goes wrong is raised as the client's `Fault`.
    """
    began, (brief, before) = time.perf_counter(), staged
    message: Message | None = None
    with as_fault(client, round):
        participant = Participant(job, client, copied(before), round, modules)
        if verb == "start":
            job.method.start(participant)
        elif verb == "train":
            message = check_message("train", job.method.train(participant, brief))
        elif verb == "finish":
            job.method.finish(participant, brief)
        else:
            job.method.personalise(participant, brief, job.method.joins_by)
        may_leave(message, job.method.shares, brief)
        check_named_arrays("client.state", participant.state)
        kept = participant.finite(before, message)
        if message is not None and brief is not None:
            message = participant.leaving(message, brief)
    return kept, Reply(message, participant.terms, time.perf_counter() - began)


@contextmanager
def as_fault(client: Client, round: int) -> Iterator[None]:
    """Raise whatever goes wrong in this block as the client's `Fault`."""
    try:
        yield
    except Fault:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's own method, model or loss raises
        if short_of_memory(error):
            raise MachineFault(f"client {client.id}, round {round}", NO_MEMORY) from error
        raise Fault(f"client {client.id}, round {round}", described(error)) from error
