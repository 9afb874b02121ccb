"""A client at work: its data, its private store and the trainer, as a method sees them.

What a method does to the staged `state` and what it replies are committed together (`engines/work.py`).

Over 400 lines: one class has all that a method can use of a client, and says of each what it is.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from mutua.data.public import Public
from mutua.data.samples import Samples
from mutua.errors import Diverged, InputError, NotInStore
from mutua.federation.client import Client, build
from mutua.federation.message import Message
from mutua.federation.module_pool import Modules, batch_normed, weights_of
from mutua.federation.plan import Plan
from mutua.federation.store import State, not_finite
from mutua.learning.early_stopping import EarlyStopping
from mutua.learning.evaluation import measure, outputs, predictions
from mutua.learning.memory_layout import channels_last
from mutua.learning.optimizers import Optimizer, optimizer_state, restore_optimizer
from mutua.learning.precision import computing_in
from mutua.learning.private_training import PoissonLoader, PrivateTrainer
from mutua.learning.task_behaviour import Task
from mutua.learning.trainer import Batch, Loader, Models, Numbers, Objective, Trainer, learning_in, own_streams
from mutua.methods.server import initial_seed
from mutua.models import Architecture, features, shared_names
from mutua.models.composite import Composite, Rule
from mutua.models.splice import Share
from mutua.seeds import derive, private, torch_stream
from mutua.support.tensor_files import Tensors


class _Method(Protocol):
    """What a participant needs of its method."""

    terms: ClassVar[tuple[str, ...]]

    def numbers(self, round: int, rounds: int) -> Numbers:
        """A round's hyper-parameters."""


class _Job(Protocol):
    """What a participant needs to know of the run; `Job` in base.py has it."""

    @property
    def method(self) -> _Method:
        """The method."""

    @property
    def plan(self) -> Plan:
        """Rounds, optimizer, seed."""

    @property
    def global_model(self) -> Architecture | None:
        """The global's architecture."""

    @property
    def public(self) -> Public | None:
        """The public set."""


class Participant:
    """One client in one round. Methods train through it and keep things in its staged `state`."""

    def __init__(self, job: _Job, client: Client, state: State, round: int, modules: Modules) -> None:
        self._job, self._client, self._modules = job, client, modules
        self.plan, self.state, self.round = job.plan, state, round
        self.numbers = job.method.numbers(*self._schedule(round))
        self.terms: dict[str, float] = {}
        self._counters: Tensors = {}
        self._stored: dict[nn.Module, str] = {}
        """What `model` gave out, by the names in the store."""
        self._forks: set[nn.Module] = set()
        self._designs: dict[nn.Module, dict[str, Any]] = {}
        """What every model that was given out is built by, as a card says it."""
        self._seed = private(job.plan.seed, client.id) if client.seed is None else client.seed
        privacy = job.plan.privacy
        self._noise = None if privacy is None else privacy.stream(self._seed, round, "privacy")

    def _schedule(self, round: int) -> tuple[int, int]:
        """Where schedules are: `start` counts as the first round, `finish` as the last."""
        rounds = self.plan.rounds or 1
        return min(max(round, 1), rounds), rounds

    @property
    def exchange(self) -> int:
        """The round whose replies this brief is made of, for methods that learn from each other's last replies."""
        return min(self.round - 1, self.plan.rounds)

    def at(self, round: int) -> Participant:
        """The same client with rate, options and random streams of another round, whose work it makes up for."""
        other = copy.copy(self)
        other.round, other.numbers = round, self._job.method.numbers(*self._schedule(round))
        return other

    # The client

    @property
    def id(self) -> str:
        """The client's id."""
        return self._client.id

    # Data that is mapped is read once, and is in memory as long as the client works.

    @cached_property
    def train(self) -> Samples:
        """All of its training samples."""
        return self._client.train.in_memory()

    @cached_property
    def val(self) -> Samples:
        """Its validation samples."""
        return self._client.val.in_memory()

    @cached_property
    def test(self) -> Samples:
        """Its test samples, which nothing may be trained or selected on."""
        return self._client.test.in_memory()

    @property
    def opted_in(self) -> Samples:
        """The training samples that the federation may learn from."""
        return self.train if self._client.opt_in is None else self._client.opted_in.in_memory()

    @property
    def takes_part(self) -> bool:
        """Whether it has anything that the federation may learn from."""
        return self._client.takes_part

    @property
    def samples(self) -> int:
        """n_k: how many training samples the federation may learn from."""
        return len(self._client.train) - self._client.opted_out

    @property
    def task(self) -> Task:
        """What the labels mean, with the losses that belong to them."""
        return self._client.task

    @property
    def architecture(self) -> Architecture:
        """The design of the personal model."""
        return self._client.model

    @property
    def global_architecture(self) -> Architecture:
        """The design of the global, for methods that have one."""
        assert self._job.global_model is not None, "Federation.check refuses a hub method without a global model"
        return self._job.global_model

    @property
    def public(self) -> Public:
        """The public set, for methods that need one, as this client sees it."""
        assert self._job.public is not None, "Method.arrange refuses one that needs a public set without it"
        return self._job.public.seen_by(self._client.train.preprocess)

    @property
    def device(self) -> torch.device:
        """Where models and batches are."""
        return self._modules.device

    def stream(self, *purpose: str | int) -> torch.Generator:
        """Random numbers for a purpose: the same for this seed, client, round and purpose, wherever it runs."""
        # Apart from our own, or a method that says "batches" would get the numbers that shuffle its samples.
        return torch_stream(self._seed, self.round, "method", *purpose)

    # Models

    def initialise(self, name: str = "personal", like: Literal["own", "global"] = "own") -> None:
        """Put a new model into the store: initialised by the client's own seed, or as the global was."""
        own = like == "own"
        if name == "personal" and not own and not self.architecture.same_design(self.global_architecture):
            raise InputError(
                f"client.initialise('personal', like='global'): its design is {self.architecture.spec()}, "
                f"the global's {self.global_architecture.spec()}; "
                "declare same_models: ClassVar[bool] = True, or use like='own'"
            )
        architecture = self.architecture if own else self.global_architecture
        seed = derive(self._seed, name, "initialisation") if own else initial_seed(self.plan.seed)
        self.state[name] = weights_of(build(architecture, self._client, seed))
        self._remember(name, own)

    def model(self, name: str = "personal") -> nn.Module:
        """A model from the store, by the design that it was put there with."""
        if name not in self.state:
            there = ", ".join(map(repr, self.state)) or "nothing"
            way_out = "put it there with client.initialise or client.keep"
            raise NotInStore(f"client.model({name!r}): its store has no such model, it has {there}; {way_out}")
        architecture = self.architecture if self._is_own(name) else self.global_architecture
        model = self._modules.get(name, architecture, self._client, self.state[name])
        self._stored[model] = name
        self._designs[model] = architecture.spec()
        return model

    def _is_own(self, name: str) -> bool:
        """Whether this model of the store has the client's own design: "personal", and others by a mark."""
        return name == "personal" or f"{name}.own" in self.state

    def _remember(self, name: str, own: bool) -> None:
        """Mark the design of a model of the store."""
        self.state.pop(f"{name}.own", None)
        if own and name != "personal":
            self.state[f"{name}.own"] = {}

    def scorer(self, name: str, architecture: Architecture) -> nn.Module:
        """A model of the store with one output; when first asked for, it is initialised by the client's seed."""
        if name not in self.state:
            seed = derive(self._seed, name, "initialisation")
            self.state[name] = weights_of(build(architecture, self._client, seed, classes=1))
        model = self._modules.get(name, architecture, self._client, self.state[name], classes=1)
        self._designs[model] = {**architecture.spec(), "outputs": 1}
        return model

    def linear(self, name: str) -> nn.Linear:
        """A linear layer of the store, by the weight and, if it has one, the bias that a method has put there."""
        kept = self.state[name]
        outputs, inputs = kept["weight"].shape
        made: nn.Linear = nn.utils.skip_init(
            nn.Linear, inputs, outputs, bias="bias" in kept, dtype=kept["weight"].dtype, device=self.device
        )
        made.load_state_dict(kept)
        return made

    def on_features(self, model: nn.Module, weights: Tensors) -> nn.Module:
        """A model of the global's design with these weights, which takes the features that `model` gives."""
        width, classes = self.features(model, self.train.take([0])).shape[1], len(self.task.classes)
        made = self.global_architecture.build(channels=width, size=1, classes=classes, seed=0).to(self.device)
        made.load_state_dict(weights)
        self._designs[made] = {**self.global_architecture.spec(), "inputs": width}
        return made

    def composite(self, rule: Rule, *, frozen: Collection[str] = (), **parts: nn.Module) -> Composite:
        """A predictor of several models that this client gave out, by a rule; `frozen` parts do not learn."""
        for name, part in parts.items():
            if part not in self._designs and not isinstance(part, Composite):
                raise InputError(
                    f"client.composite: '{name}' is no model of client.model, client.fork, client.received or "
                    "client.scorer; client.keep it, and take it with client.model"
                )
        specs = {name: self.made_of(part) for name, part in parts.items()}
        return Composite(rule.to(self.device), parts, specs, frozen)

    def made_of(self, model: nn.Module) -> dict[str, Any]:
        """What a model that this client gave out is built by, as a card says it."""
        return model.spec if isinstance(model, Composite) else self._designs[model]

    def received(self, brief: Message | None, name: str = "personal") -> nn.Module:
        """A model of the store with what the brief shares in its place, in the store too: it keeps the rest."""
        assert brief is not None, "a hub method briefs every client with the global"
        shared = brief.arrays("global")
        self._counters = {n: array for n, array in shared.items() if not array.is_floating_point()}
        own = self.state.get(name, {})
        for array_name, array in shared.items() if own else ():
            if array_name not in own or own[array_name].shape != array.shape:
                there = "no such weights" if array_name not in own else f"{tuple(own[array_name].shape)}"
                raise InputError(
                    f"client.received: the shared '{array_name}' is {tuple(array.shape)}, '{name}' has {there}; "
                    "models that share it must agree in it"
                )
        if own:
            self.state[name] = {**own, **shared}
        return self.model(name)

    def fork(self, brief: Message | None, like: Literal["own", "global"] = "global") -> nn.Module:
        """The meme: the global of the brief, spliced with the client's adaptor where it is partial.

        `like="own"` is for a brief that holds a model of the design that the client has declared.
        """
        meme = self._spliced("meme", brief, self.architecture if like == "own" else self.global_architecture)
        self._forks.add(meme)
        return meme

    def frozen(self, brief: Message | None) -> nn.Module:
        """The same, not trainable: the meme as it was when it was forked."""
        return self._spliced("global", brief, self.global_architecture).requires_grad_(False)

    def _spliced(self, role: str, brief: Message | None, architecture: Architecture) -> nn.Module:
        assert brief is not None, "a hub method briefs every client with the global"
        shared = brief.arrays("global")
        self._counters = {name: array for name, array in shared.items() if not array.is_floating_point()}
        if architecture.share != "all" and "adaptor" not in self.state:
            fresh = build(architecture, self._client, derive(self._seed, "adaptor", "initialisation"))
            self.state["adaptor"] = {k: v for k, v in weights_of(fresh).items() if k not in shared}
        model = self._modules.get(role, architecture, self._client, {**self.state.get("adaptor", {}), **shared})
        self._designs[model] = architecture.spec()
        return model

    def shared(self, meme: nn.Module) -> Tensors:
        """The part of the meme that the federation shares: all that may leave of it.

        Whole numbers go back as they came: batch-norm's counter of batches would give away how many samples
        a client has.
        """
        state = weights_of(meme) | self._counters
        return {name: state[name] for name in shared_names(meme, self.global_architecture.share)}

    def keep(self, name: str, model: nn.Module) -> None:
        """Put a model's weights into the store, where it has the design of the model that it was."""
        self.state[name] = weights_of(model)
        if model in self._stored:
            self._remember(name, self._is_own(self._stored[model]))
        elif model in self._forks:
            self._remember(name, own=False)

    # Learning

    def fit(
        self,
        objective: Objective,
        models: Models,
        *,
        samples: Samples | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        until: EarlyStopping | None = None,
        round: int | None = None,
        only: Share = "all",
        purpose: str = "",
        streams: Mapping[str, str] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        """Train on all of the client's samples, or on `samples`, for the round's epochs or steps.

        `epochs` or `steps` is another number; `until` trains until a model stops improving on validation data;
        `round` is the round that learning rate and numbers are taken from, if not this one. `only` is what learns:
        "head", "body" or names of parts; the rest is frozen. Every `fit` of a round draws the same batches, unless
        it has another `purpose`. `streams` says by the name of which other model a model draws (for dropout).
        `given` are constants for the objective, such as a teacher's scores, which finds them in `hp` by name.
        """
        models = self._trainable(models)
        loader = self.loader(samples, models, purpose=purpose)
        with self.training(models, round, only=only, purpose=purpose, streams=streams, given=given) as trainer:
            if until is not None and len(self.val):
                self._fit_until(trainer, loader, objective, until)
                return
            batches = self.batches(loader) if epochs is None else loader.epochs(epochs)
            for batch in batches if steps is None else loader.steps(steps):
                trainer.step(objective, batch)

    def loader(
        self,
        samples: Samples | None = None,
        models: Models | None = None,
        *,
        augment: bool = True,
        purpose: str = "",
    ) -> Loader:
        """Batches of the client's samples, shuffled by its stream of this round and augmented as the plan says.

        Every call begins the round's stream again; with another `purpose` it is another stream.
        """
        plan = self.plan
        kind = PoissonLoader if self._by_example(models or {}) else Loader
        loader = kind(
            self.train if samples is None else samples,
            self.task,
            plan.batch_size,
            torch_stream(self._seed, self.round, "batches", *([purpose] if purpose else [])),
            join_single=self._has_batch_norm() or any(map(batch_normed, (models or {}).values())),
            augmentations=plan.augment if augment else (),
            device=self.device,
            channels_last=bool(models) and all(map(channels_last, (models or {}).values())),
        )
        if isinstance(loader, PoissonLoader):
            loader.system = self._noise is None
        return loader

    def batches(self, loader: Loader) -> Iterator[Batch]:
        """A round's local work: as many epochs or steps as the plan says."""
        plan = self.plan
        return loader.steps(plan.steps) if plan.steps else loader.epochs(plan.epochs or 1)

    @contextmanager
    def training(
        self,
        models: Models,
        round: int | None = None,
        *,
        only: Share = "all",
        purpose: str = "",
        streams: Mapping[str, str] | None = None,
        given: Mapping[str, Any] | None = None,
        optimizer: Optimizer | None = None,
    ) -> Iterator[Trainer]:
        """A trainer over these models, at the rate of this round or of `round`; the store gets what they learned.

        A model that is in the store continues with its optimizer's memory, and both are kept there. A fork starts
        without one, and only its adaptor is kept. `optimizer` is another than the plan's. The other options are as
        in `fit`.
        """
        plan, modules = self.plan, self._trainable(models)
        at = self._schedule(self.round if round is None else round)
        optimizer = optimizer or plan.optimizer
        lr, numbers = optimizer.rate(*at), self.numbers if round is None else self._job.method.numbers(*at)
        numbers = _with_constants(numbers, given or {}, self.device)
        trainable = {n: [p for p in m.parameters() if p.requires_grad] for n, m in modules.items()}
        optimizers = {n: optimizer.build(p, lr) for n, p in trainable.items() if p}
        for name, stepper in optimizers.items():
            if f"{name}.optimizer" in self.state:
                restore_optimizer(stepper, self.state[f"{name}.optimizer"])
        for module in modules.values():
            module.train()
        drawing = {name: (streams or {}).get(name, name) for name in modules}
        more = [purpose] if purpose else []
        seeds = {name: derive(self._seed, self.round, drawing[name], "forward", *more) for name in modules}
        learning = {name: modules[name] for name in optimizers}
        with learning_in(only, learning), own_streams(modules, seeds), computing_in(plan.precision, modules):
            trainer = Trainer(modules, optimizers, numbers, self._job.method.terms)
            if (privacy := plan.privacy) is not None and self._by_example(modules):
                noised = modules, optimizers, numbers, privacy.clip, privacy.noise, plan.batch_size, self._noise
                trainer = PrivateTrainer(*noised, self._job.method.terms)
            yield trainer
        self.terms |= trainer.terms()
        for name, module in modules.items():
            if name in self.state:
                self.keep(name, module)
                if name in optimizers:
                    self.state[f"{name}.optimizer"] = optimizer_state(optimizers[name])
            elif module in self._forks and "adaptor" in self.state:
                self.state["adaptor"] = {k: v for k, v in weights_of(module).items() if k in self.state["adaptor"]}

    def _trainable(self, models: Models) -> dict[str, nn.Module]:
        """The models; refused if what they learn would be lost, or would change another one."""
        given: object = models
        if not isinstance(given, Mapping):
            kind = type(given).__name__
            raise InputError(f"fit: its models are a {kind}; give them by name, such as {{'personal': model}}")
        names: dict[nn.Module, str] = {}
        for name, model in models.items():
            if (other := names.setdefault(model, name)) != name:
                raise InputError(
                    f"fit: '{other}' and '{name}' are one model; client.keep one of them under a name of its own, "
                    "and take it with client.model"
                )
            if (stored := self._stored.get(model, name)) != name:
                raise InputError(
                    f"fit: the store's model '{stored}' is given as '{name}', so what it learns would be lost; "
                    f"give it as '{stored}'"
                )
            if name == "global" and any(p.requires_grad for p in model.parameters()):
                raise InputError("fit: 'global' would be trained; give client.frozen(brief), or name it 'meme'")
        return dict(models)

    def predict(self, model: nn.Module, samples: Samples) -> Tensor:
        """What the model says in evaluation mode: probabilities of classes or labels, or values."""
        return predictions(model, samples, self.task, self.device)

    def features(self, model: nn.Module, samples: Samples) -> Tensor:
        """What the model's head gets of each sample, one row each, in evaluation mode."""
        return outputs(model, samples, self.device, lambda x: features(model, x)[0])

    def _fit_until(self, trainer: Trainer, loader: Loader, objective: Objective, until: EarlyStopping) -> None:
        """Train until validation says stop, then put back the weights of the best epoch, epoch 0 included."""
        watched = trainer.models[until.watch]
        best, worse = float("inf"), 0
        kept: dict[str, Tensors] = {}
        for epoch in range(until.epochs + 1):
            for batch in loader.epochs(1 if epoch else 0):
                trainer.step(objective, batch)
            loss = measure(watched, self.val, self.task, self.device)["loss"]
            if not kept or (loss is not None and loss < best):
                best, worse = loss or 0.0, 0
                kept = {name: weights_of(model) for name, model in trainer.models.items()}
            else:
                worse += 1
            if worse == until.patience:
                break
        for name, model in trainer.models.items():
            model.load_state_dict(kept[name])

    def finite(self, before: State, message: Message | None) -> State:
        """The state to keep: what has diverged is neither kept nor sent.

        Under privacy a missing reply would say something about the client's data: then the old state is kept, and
        what leaves is noise.
        """
        hidden = message is not None and self.plan.privacy is not None
        sent = {} if message is None or hidden else {name: part.arrays for name, part in message.items()}
        wrong = not_finite(self.state, before) or not_finite(sent, {})
        if wrong is None:
            return self.state
        if hidden:
            return before
        reason = f"its training diverged: {wrong} would hold NaN or infinity; is optimizer.lr too high?"
        raise Diverged(f"client {self.id}, round {self.round}", reason)

    def leaving(self, message: Message, brief: Message) -> Message:
        """The message as it may leave: with the privacy that the plan asks for."""
        privacy = self.plan.privacy
        return message if privacy is None else privacy.leaving(message, brief, self._noise)

    def _by_example(self, models: Models) -> bool:
        """Whether the meme is trained with privacy per example: not after the last round, when none leaves."""
        plan = self.plan
        asked = plan.privacy is not None and plan.privacy.level == "example"
        return asked and "meme" in models and self.round <= plan.rounds

    def _has_batch_norm(self) -> bool:
        """Whether any model of this client normalises batches: the same answer for every method."""
        roles = [("personal", self.architecture)]
        if self._job.global_model is not None:
            roles.append(("meme", self._job.global_model))
        try:
            return any(self._modules.has_batch_norm(role, a, self._client) for role, a in roles)
        except InputError:  # a server's model of features, which does not take what a client has
            return self._modules.has_batch_norm("personal", self.architecture, self._client)


def _with_constants(numbers: Numbers, given: Mapping[str, Any], device: torch.device) -> Numbers:
    """A round's options, and what an objective is given beside them."""
    options = vars(numbers)
    if known := sorted(options.keys() & given.keys()):
        raise InputError(f"fit: given: '{known[0]}' is an option of the method already; give it another name")
    return Numbers(**options, **{n: v.to(device) if isinstance(v, Tensor) else v for n, v in given.items()})
