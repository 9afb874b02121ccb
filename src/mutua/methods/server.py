"""The server, as a method sees it: what it knows of the federation, its state, and how it learns.

What it learns from is public, and so are its random numbers: they depend on the seed, the round and the purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mutua.data.model_input import ModelInput
from mutua.data.public import Public
from mutua.data.samples import Samples
from mutua.federation.module_pool import batch_normed
from mutua.federation.store import State
from mutua.federation.topology import Topology
from mutua.learning.evaluation import outputs
from mutua.learning.optimizers import Optimizer, optimizer_state, restore_optimizer
from mutua.learning.tasks import CLASSIFICATION, Aim
from mutua.learning.trainer import Loader, Models, Numbers, Objective, Trainer, own_streams
from mutua.models import Architecture, features
from mutua.seeds import derive, public, torch_stream
from mutua.support import signals
from mutua.support.processes import one_thread
from mutua.support.tensor_files import Tensors


@dataclass
class Server:
    """Holds the shared state; sees only messages. `state["global"]` is the shared model."""

    clients: tuple[str, ...]
    seed: int
    model: Architecture | None
    input: ModelInput
    classes: int
    batch_size: int
    topology: Topology = field(default_factory=Topology)
    public: Public | None = None
    models: Mapping[str, Architecture] = field(default_factory=dict)
    """By client, the design that it has declared for its own model."""
    rounds: int = 0
    round: int = 0
    """The round whose replies are merged; 0 in `open`."""
    aim: Aim = CLASSIFICATION
    """What models are to learn; weights of classes are those of the samples that `fit` is given."""
    state: State = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    """How much each reply counted in the merge: `merge` may set it, for people to see. Not kept."""

    def __post_init__(self) -> None:
        self._blank: dict[int, nn.Module] = {}

    @property
    def channels(self) -> int:
        """Channels of the clients' images, or how many features they have."""
        return self.input.channels

    @property
    def size(self) -> int | tuple[int, int]:
        """Side of the clients' images, or (height, width); 1 for all else."""
        return self.input.size

    @property
    def partial(self) -> bool:
        """Whether the global is only a part of a model."""
        return self.model is not None and self.model.share != "all"

    def build(
        self,
        weights: Tensors | None = None,
        client: str | None = None,
        *,
        purpose: str = "",
        input: ModelInput | None = None,
    ) -> nn.Module:
        """A model of the global's design, or of the one that a client has declared, with these weights.

        Without weights it is initialised by the public seed, and for another `purpose` by another one.
        `input` is what it is given, if that is not the clients' data.
        """
        architecture = self.model if client is None else self.models[client]
        assert architecture is not None, "Federation.check refuses a hub method without a global model"
        seed = derive(initial_seed(self.seed), purpose) if purpose else initial_seed(self.seed)
        given = input or self.input
        module = architecture.build(
            channels=given.channels, size=given.size, classes=self.classes, seed=seed, input=given
        )
        if weights is not None:
            module.load_state_dict(weights)
        return module

    def blank(self, client: str | None = None) -> nn.Module:
        """Such a model to look at its layers and their shapes: it is built once, and its weights say nothing."""
        design = self.model if client is None else self.models[client]
        if id(design) not in self._blank:
            self._blank[id(design)] = self.build(client=client)
        return self._blank[id(design)]

    def width(self, client: str) -> int:
        """How many features the model that this client has declared gives its head."""
        with torch.no_grad():
            z, _ = features(self.blank(client).eval(), self.input.blank)
        return z.shape[1]

    def outputs(self, model: nn.Module, samples: Samples) -> Tensor:
        """The model's scores of public samples, in evaluation mode."""
        with signals.allowed(), one_thread():
            return outputs(model, samples)

    def fit(
        self,
        objective: Objective,
        models: Models,
        samples: Samples,
        *,
        optimizer: Optimizer,
        steps: int | None = None,
        epochs: int = 1,
        batch_size: int | None = None,
        purpose: str = "",
        memory: str = "",
    ) -> dict[str, float]:
        """Train models on samples for so many steps, or epochs; the means of the terms.

        A schedule of the optimizer's rate runs over the steps. A second `fit` of a round needs another `purpose`
        to draw other batches. `memory` is the group of the state where one model's optimizer keeps what it
        remembers for the next `fit`; else it begins anew.
        """
        loader = Loader(
            samples,
            self.aim.of(samples),
            batch_size or self.batch_size,
            torch_stream(public(self.seed), "server", self.round, "batches", purpose),
            join_single=any(map(batch_normed, models.values())),
        )
        steps = epochs * loader.batches if steps is None else steps
        with self.training(models, optimizer, purpose=purpose) as trainer:
            stepper = next(iter(trainer.optimizers.values()))
            if memory in self.state:
                restore_optimizer(stepper, self.state[memory])
            for step, batch in enumerate(loader.steps(steps), 1):
                trainer.step(objective, batch, optimizer.rate(step, steps))
            if memory:
                self.state[memory] = optimizer_state(stepper)
        return trainer.terms()

    @contextmanager
    def training(self, models: Models, optimizer: Optimizer, *, purpose: str = "") -> Iterator[Trainer]:
        """A trainer over these models, on one thread as clients have it. Ctrl-C need not wait for its end."""
        seeds = {n: derive(public(self.seed), "server", self.round, n, "forward", purpose) for n in models}
        for model in models.values():
            model.train()
        learned = {name: [p for p in model.parameters() if p.requires_grad] for name, model in models.items()}
        optimizers = {name: optimizer.build(p, optimizer.rate(1, 1)) for name, p in learned.items() if p}
        with signals.allowed(), one_thread(), own_streams(models, seeds):
            yield Trainer(models, optimizers, Numbers())


def initial_seed(seed: int) -> int:
    """The seed of the global's first weights: public, so everybody can compute them."""
    return derive(public(seed), "global", "initialisation")
