"""A client at work: its data, its private store and the trainer, as a method sees them.

`work` makes a transaction of it: what a method does to the staged store and what it replies are
committed together, and a brief that comes twice is answered from the commit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor, nn

from mutua.data.public import Public
from mutua.data.samples import Samples
from mutua.errors import NO_MEMORY, Diverged, Fault, MachineFault, MutuaError, described, short_of_memory
from mutua.federation.federation import Client, build
from mutua.federation.ledger import may_leave
from mutua.federation.message import Message
from mutua.federation.module_pool import Modules, batch_normed
from mutua.federation.plan import Plan
from mutua.federation.store import State, Store, copied, not_finite
from mutua.learning.evaluation import measure, probabilities
from mutua.learning.layout import channels_last
from mutua.learning.optimizers import restore, state_of
from mutua.learning.precision import computing_in
from mutua.learning.private_training import PoissonLoader, PrivateTrainer
from mutua.learning.task import Task
from mutua.learning.trainer import Batch, Loader, Models, Objective, Trainer, own_streams
from mutua.models import Architecture, shared_names
from mutua.seeds import derive, private, public, torch_stream
from mutua.support.signals import whole
from mutua.support.tensor_files import Tensors

if TYPE_CHECKING:
    from mutua.methods.base import Method


@dataclass(frozen=True)
class Job:
    """What everybody in a run knows: the method, the plan, the global's architecture."""

    method: Method
    plan: Plan
    global_model: Architecture | None
    public: Public | None = None

    @property
    def global_architecture(self) -> Architecture:
        """The global's architecture, for methods that have one."""
        assert self.global_model is not None, "Federation.check refuses a hub method without a global model"
        return self.global_model


Verb = Literal["start", "train", "finish"]


@dataclass(frozen=True)
class Reply:
    """What a client sent, and what an observer of the simulation saw of its work."""

    message: Message | None
    terms: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class EarlyStopping:
    """Train until the validation loss of the model `watch` has not improved for `patience` epochs."""

    watch: str
    patience: int = 10
    epochs: int = 200


class Participant:
    """One client in one round. Methods train through it and keep things in its staged `state`."""

    def __init__(self, job: Job, client: Client, state: State, round: int, modules: Modules) -> None:
        self.job, self.client, self.state, self.round = job, client, state, round
        self.modules = modules
        self.numbers = job.method.numbers(*self._schedule(round))
        self.terms: dict[str, float] = {}
        self._counters: Tensors = {}
        self._seed = private(job.plan.seed, client.id)
        privacy = job.plan.privacy
        self._noise = None if privacy is None else privacy.stream(self._seed, round, "privacy")

    def _schedule(self, round: int) -> tuple[int, int]:
        """Where schedules stand: start and last work are of the first and the last round."""
        rounds = self.job.plan.rounds or 1
        return min(max(round, 1), rounds), rounds

    @property
    def exchange(self) -> int:
        """The round whose replies this brief is made of, for methods that learn from each other's last replies."""
        return min(self.round - 1, self.job.plan.rounds)

    @property
    def task(self) -> Task:
        """What the client's labels mean."""
        return self.client.task

    @property
    def samples(self) -> int:
        """n_k: how many training samples the federation may learn from."""
        return len(self.client.opted_in)

    @property
    def public(self) -> Public:
        """The public set, for methods that need one."""
        assert self.job.public is not None, "Method.arrange refuses one that needs a public set without it"
        return self.job.public

    # Models

    def initialise(self, name: str = "personal", like: Literal["own", "global"] = "own") -> None:
        """Put a new model into the store: of the client's seed, or as the global started."""
        own = like == "own"
        architecture = self.client.model if own else self.job.global_architecture
        seed = derive(self._seed, name, "initialisation") if own else initial_seed(self.job.plan.seed)
        self.state[name] = _copy(build(architecture, self.client, seed))

    def model(self, name: str = "personal") -> nn.Module:
        """A model from the store: the personal one by the client's design, others by the global's."""
        architecture = self.client.model if name == "personal" else self.job.global_architecture
        return self.modules.get(name, architecture, self.client, self.state[name])

    def scorer(self, name: str, architecture: Architecture) -> nn.Module:
        """A model of the store that gives one number per sample, made of the client's seed when first asked."""
        if name not in self.state:
            seed = derive(self._seed, name, "initialisation")
            self.state[name] = _copy(build(architecture, self.client, seed, classes=1))
        return self.modules.get(name, architecture, self.client, self.state[name], classes=1)

    def fork(self, brief: Message | None) -> nn.Module:
        """The meme: the global of the brief, spliced with the client's adaptor where it is partial."""
        return self._spliced("meme", brief)

    def frozen(self, brief: Message | None) -> nn.Module:
        """The same, untrainable: what the meme was when it was forked."""
        return self._spliced("global", brief).requires_grad_(False)

    def _spliced(self, role: str, brief: Message | None) -> nn.Module:
        assert brief is not None, "a hub method briefs every client with the global"
        shared = brief.arrays("global")
        self._counters = {name: array for name, array in shared.items() if not array.is_floating_point()}
        architecture = self.job.global_architecture
        if architecture.share != "all" and "adaptor" not in self.state:
            fresh = build(architecture, self.client, derive(self._seed, "adaptor", "initialisation"))
            self.state["adaptor"] = {k: v for k, v in _copy(fresh).items() if k not in shared}
        return self.modules.get(role, architecture, self.client, {**self.state.get("adaptor", {}), **shared})

    def shared(self, meme: nn.Module) -> Tensors:
        """The part of the meme that the federation shares: all that may leave of it.

        Whole numbers go back as they came: batch-norm's counter of batches would give away how many samples
        a client has.
        """
        state = _copy(meme) | self._counters
        return {name: state[name] for name in shared_names(meme, self.job.global_architecture.share)}

    def keep(self, name: str, model: nn.Module) -> None:
        """Put a model's weights into the store."""
        self.state[name] = _copy(model)

    # Learning

    def fit(
        self,
        objective: Objective,
        models: Models,
        *,
        samples: Samples | None = None,
        epochs: int | None = None,
        until: EarlyStopping | None = None,
        round: int | None = None,
    ) -> None:
        """Train on all of the client's samples, or on `samples`, for the round's epochs or steps.

        `epochs` is for work beside the rounds; `until` goes on till a model stops improving on validation data;
        `round` is whose rate and numbers count, where it is not this one.
        """
        loader = self.loader(samples, models)
        with self.training(models, round) as trainer:
            if until is not None and len(self.client.val):
                self._fit_until(trainer, loader, objective, until)
            else:
                for batch in self.batches(loader) if epochs is None else loader.epochs(epochs):
                    trainer.step(objective, batch)

    def loader(
        self, samples: Samples | None = None, models: Models | None = None, *, augment: bool = True
    ) -> Loader:
        """Batches of the client's samples, shuffled by its stream of this round and augmented as the plan says."""
        plan = self.job.plan
        kind = PoissonLoader if self._by_example(models or {}) else Loader
        loader = kind(
            self.client.train if samples is None else samples,
            self.task,
            plan.batch_size,
            torch_stream(self._seed, self.round, "batches"),
            join_single=self._has_batch_norm() or any(map(batch_normed, (models or {}).values())),
            augmentations=plan.augment if augment else (),
            device=self.modules.device,
            channels_last=bool(models) and all(map(channels_last, (models or {}).values())),
        )
        if isinstance(loader, PoissonLoader):
            loader.system = self._noise is None
        return loader

    def batches(self, loader: Loader) -> Iterator[Batch]:
        """A round's local work: so many epochs, or so many steps."""
        plan = self.job.plan
        return loader.steps(plan.steps) if plan.steps else loader.epochs(plan.epochs or 1)

    @contextmanager
    def training(self, models: Models, round: int | None = None) -> Iterator[Trainer]:
        """A trainer over these models, at the rate of this round or of `round`; the store gets what they learned.

        A model that is in the store goes on with its optimizer's memory, and both are kept there; a
        fork begins anew, and of it only the adaptor is kept.
        """
        plan, modules = self.job.plan, dict(models)
        at = self._schedule(self.round if round is None else round)
        lr, numbers = plan.optimizer.rate(*at), self.numbers if round is None else self.job.method.numbers(*at)
        trainable = {n: [p for p in m.parameters() if p.requires_grad] for n, m in modules.items()}
        optimizers = {n: plan.optimizer.build(p, lr) for n, p in trainable.items() if p}
        for name, optimizer in optimizers.items():
            if f"{name}.optimizer" in self.state:
                restore(optimizer, self.state[f"{name}.optimizer"])
        for module in modules.values():
            module.train()
        trainer = Trainer(modules, optimizers, numbers, self.job.method.terms)
        if (privacy := plan.privacy) is not None and self._by_example(modules):
            given = modules, optimizers, numbers, privacy.clip, privacy.noise, plan.batch_size, self._noise
            trainer = PrivateTrainer(*given, self.job.method.terms)
        streams = {name: derive(self._seed, self.round, name, "forward") for name in modules}
        with own_streams(modules, streams), computing_in(plan.precision, modules):
            yield trainer
        self.terms |= trainer.terms()
        for name, module in modules.items():
            if name in self.state:
                self.keep(name, module)
                if name in optimizers:
                    self.state[f"{name}.optimizer"] = state_of(optimizers[name])
            elif name == "meme" and "adaptor" in self.state:
                self.state["adaptor"] = {k: v for k, v in _copy(module).items() if k in self.state["adaptor"]}

    def predict(self, model: nn.Module, samples: Samples) -> Tensor:
        """Class probabilities of the model in evaluation mode."""
        return probabilities(model, samples, self.task, self.modules.device)

    def _fit_until(self, trainer: Trainer, loader: Loader, objective: Objective, until: EarlyStopping) -> None:
        """The best epoch's weights, epoch 0 included, are copied and put back at the end."""
        watched = trainer.models[until.watch]
        best, worse = float("inf"), 0
        kept: dict[str, Tensors] = {}
        for epoch in range(until.epochs + 1):
            for batch in loader.epochs(1 if epoch else 0):
                trainer.step(objective, batch)
            loss = measure(watched, self.client.val, self.task, self.modules.device)["loss"]
            if not kept or (loss is not None and loss < best):
                best, worse = loss or 0.0, 0
                kept = {name: _copy(model) for name, model in trainer.models.items()}
            else:
                worse += 1
            if worse == until.patience:
                break
        for name, model in trainer.models.items():
            model.load_state_dict(kept[name])

    def finite(self, before: State, message: Message | None) -> State:
        """The state to keep: what has diverged is neither kept nor sent.

        Under privacy a reply that does not come would tell of the client's data: the state is as it was, and what
        leaves is noise.
        """
        hidden = message is not None and self.job.plan.privacy is not None
        sent = {} if message is None or hidden else {name: part.arrays for name, part in message.items()}
        wrong = not_finite(self.state, before) or not_finite(sent, {})
        if wrong is None:
            return self.state
        if hidden:
            return before
        reason = f"its training diverged: {wrong} would hold NaN or infinity; is optimizer.lr too high?"
        raise Diverged(f"client {self.client.id}, round {self.round}", reason)

    def leaving(self, message: Message, brief: Message) -> Message:
        """The message as it may leave: with the privacy that the plan asks for."""
        privacy = self.job.plan.privacy
        return message if privacy is None else privacy.leaving(message, brief, self._noise)

    def _by_example(self, models: Models) -> bool:
        """Whether a meme must hide its examples: one that will leave, as none does after the last round."""
        plan = self.job.plan
        asked = plan.privacy is not None and plan.privacy.level == "example"
        return asked and "meme" in models and self.round <= plan.rounds

    def _has_batch_norm(self) -> bool:
        """Whether any model of this client normalises batches: the same answer for every method."""
        roles = [("personal", self.client.model)]
        if self.job.global_model is not None:
            roles.append(("meme", self.job.global_model))
        return any(self.modules.has_batch_norm(role, a, self.client) for role, a in roles)


def initial_seed(seed: int) -> int:
    """The seed of the global's first weights: public, so everybody can compute them."""
    return derive(public(seed), "global", "initialisation")


@whole()
def work(
    job: Job, client: Client, store: Store, verb: Verb, round: int, brief: Message | None, modules: Modules
) -> Reply:
    """Do one client's work of one round as a transaction."""
    done = store.committed(round)
    if done is not None:
        return Reply(done.reply, done.terms, 0.0)
    state, reply = perform(job, client, store.stage(round), verb, round, brief, modules)
    store.commit(round, state, reply.message, reply.terms)
    return reply


def perform(
    job: Job, client: Client, state: State, verb: Verb, round: int, brief: Message | None, modules: Modules
) -> tuple[State, Reply]:
    """One client's work of one round, from a staged state to the next one and the reply that belongs to it.

    Whatever goes wrong in it is the client's `Fault`.
    """
    began, before = time.perf_counter(), copied(state)
    message: Message | None = None
    with _answering(client, round):
        participant = Participant(job, client, state, round, modules)
        if verb == "start":
            job.method.start(participant)
        elif verb == "train":
            message = job.method.train(participant, brief)
        else:
            job.method.finish(participant, brief)
        may_leave(message, job.method.shares, brief)
        kept = participant.finite(before, message)
        if message is not None and brief is not None:
            message = participant.leaving(message, brief)
    return kept, Reply(message, participant.terms, time.perf_counter() - began)


@contextmanager
def _answering(client: Client, round: int) -> Iterator[None]:
    """Around what a client does: its mistakes are its own."""
    try:
        yield
    except Fault:
        raise
    except (Exception, SystemExit) as error:  # whatever a method, a model or a loss of a user's own raises
        if short_of_memory(error):
            raise MachineFault(f"client {client.id}, round {round}", NO_MEMORY) from error
        reason = str(error) if isinstance(error, MutuaError) else described(error)
        raise Fault(f"client {client.id}, round {round}", reason) from error


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
    with _answering(client, round):
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
        predictor = job.method.predictor(participant, brief)
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


def _copy(module: nn.Module) -> Tensors:
    return {
        name: array.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, array in module.state_dict().items()
    }
