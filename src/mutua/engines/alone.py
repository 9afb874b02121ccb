"""What a client would have without the federation, and the models that it has with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from mutua.engines.work import Staged, perform
from mutua.errors import NotInStore
from mutua.federation.client import Client
from mutua.federation.message import Message
from mutua.federation.module_pool import Modules, weights_of
from mutua.federation.store import State, copied
from mutua.learning.early_stopping import EarlyStopping
from mutua.methods.base import Hub, Job, Method
from mutua.methods.independent import Independent
from mutua.methods.participant import Participant
from mutua.models.composite import Composite
from mutua.support.tensor_files import Tensors


def train_alone(
    job: Job,
    client: Client,
    rounds: Iterable[int],
    modules: Modules,
    begins: Callable[[int], None] = lambda at: None,
) -> State:
    """Train a client's own model on its own data alone, with the steps and random numbers of these rounds.

    The bytes are those of a run of `independent` with the same plan and seed.
    """
    plan = job.plan.model_copy(update={"privacy": None})  # nothing of it leaves
    alone = Job(Independent(), plan, None)
    state, _ = perform(alone, client, "start", 0, Staged(None, {}), modules)
    for round in rounds:
        begins(round)
        state, _ = perform(alone, client, "train", round, Staged(None, state), modules)
    return state


def train_alone_until(job: Job, client: Client, modules: Modules, until: EarlyStopping) -> Participant:
    """The same for a newcomer, who has had no rounds: until validation says stop."""
    method = Independent()
    alone = Participant(Job(method, job.plan, None), client, {}, job.plan.rounds + 1, modules)
    method.start(alone)
    alone.fit(method.objective, {"personal": alone.model("personal")}, until=until)
    return alone


def served_by(method: Method, client: Participant, brief: Message | None) -> nn.Module:
    """What a client serves with: by the method or, if that asks for what only participants have, by its base."""
    try:
        return method.predictor(client, brief)
    except NotInStore:
        # A newcomer's personal model of `start` has learned nothing: it has the global, or what it tuned it to.
        if not isinstance(method, Hub):
            raise
        return Hub.predictor(method, client, brief)


class OwnedModel(NamedTuple):
    """One of the models that a client can serve with."""

    name: str
    module: nn.Module
    """Valid until the next one is asked for: clients' models take turns in one module."""
    made_of: dict[str, Any]
    """What it is, for a model's card."""


def models_of(
    job: Job, client: Client, state: State, brief: Message | None, alone: State, modules: Modules
) -> Iterator[OwnedModel]:
    """The model trained alone, the global if the method has one, and what the method serves the client with.

    What it serves with is called `personal` if it is the client's own model, and `served` if it is made of
    several; if it is the global, there is no third.
    """
    plan = job.plan
    by_itself = Participant(Job(Independent(), plan, None), client, copied(alone), plan.rounds + 1, modules)
    yield OwnedModel("alone", by_itself.model("personal"), client.model.spec())
    joined = Participant(job, client, copied(state), plan.rounds + 1, modules)
    shared: Tensors | None = None
    beside = dict(job.method.evaluated(joined, brief))
    if "global" in beside:
        shared = {name: array.clone() for name, array in weights_of(beside["global"]).items()}
        yield OwnedModel("global", beside["global"], job.global_architecture.spec())
    served = served_by(job.method, joined, brief)
    holds = weights_of(served)
    if shared is not None and _same(holds, shared):
        return
    made_of = served.spec if isinstance(served, Composite) else job.method.made_of(joined)
    yield OwnedModel("personal" if _same(holds, state.get("personal", {})) else "served", served, made_of)


def _same(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(array, b[name]) for name, array in a.items())
