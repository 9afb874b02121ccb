"""What a client would have without the federation, and the models that it has with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mutua.engines.work import Staged, perform
from mutua.errors import NotInStore
from mutua.federation.client import Client
from mutua.federation.message import Message
from mutua.federation.module_pool import Modules, weights_of
from mutua.federation.store import State, copied
from mutua.learning.benefit import Benefit, Trust, best_of, trusts
from mutua.learning.early_stopping import EarlyStopping
from mutua.learning.evaluation import predictions
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
    alone = _alone(job)
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
    """The model trained alone, the global if the method has one, others that it names, and what it serves with.

    The last is what joining has given. It is called `personal` if it is the client's own model, `served` if it is
    made of several, and `global` if it is the global.
    """
    by_itself = Participant(_alone(job), client, copied(alone), job.plan.rounds + 1, modules)
    yield OwnedModel("alone", by_itself.model("personal"), client.model.spec())
    joined = Participant(job, client, copied(state), job.plan.rounds + 1, modules)
    served = served_by(job.method, joined, brief)
    holds = {name: array.clone() for name, array in weights_of(served).items()}
    last = "personal" if _same(holds, state.get("personal", {})) else "served"
    for name, module in job.method.evaluated(joined, brief).items():
        own = weights_of(module)
        if name == "global" and _same(own, holds):
            last = name
        elif not (_same(own, alone["personal"]) or _same(own, holds)):
            yield OwnedModel(name, module, joined.made_of(module))
    served = served_by(job.method, joined, brief)
    yield OwnedModel(last, served, served.spec if isinstance(served, Composite) else job.method.made_of(joined))


def benefit(
    job: Job,
    client: Client,
    state: State,
    brief: Message | None,
    alone: State,
    modules: Modules,
    noun: str = "samples",
    seen: Callable[[OwnedModel], None] = lambda model: None,
) -> Benefit:
    """These models on the client's own test samples; `seen` gets each while its weights are there.

    A mixture that validation samples have weighed is the one to serve; else the best of the models on those.
    """
    said: dict[str, dict[str, Tensor]] = {"val": {}, "test": {}}
    experts: tuple[Trust, ...] = ()
    for model in models_of(job, client, state, brief, alone, modules):
        for split, by_model in said.items():
            by_model[model.name] = predictions(model.module, getattr(client, split), client.task, modules.device)
        seen(model)
        joined, experts = model.name, trusts(model.module)
    best = best_of(client.task, dict(reversed(said["val"].items())), client.val.y)
    serve = joined if experts else best
    return Benefit.of(
        client.task, said["test"], client.test.y, joined=joined, serve=serve, noun=noun, experts=experts
    )


def _alone(job: Job) -> Job:
    """The same plan without the federation; privacy is for what leaves, and nothing does."""
    return Job(Independent(), job.plan.model_copy(update={"privacy": None}), job.global_model)


def _same(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(array, b[name]) for name, array in a.items())
