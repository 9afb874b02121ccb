"""The trainer: draws batches, differentiates a method's objective, steps and reports its terms."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mutua.data.samples import Samples
from mutua.data.transforms import Augment, augment
from mutua.errors import InputError, suggest
from mutua.learning.memory_layout import laid_out
from mutua.learning.optimizers import Stepper
from mutua.learning.task_behaviour import Task
from mutua.models.splice import Share, layers_in, shared_names


@dataclass(frozen=True)
class Batch:
    """Inputs, labels, the task they belong to, and their positions among the samples they were drawn from."""

    x: Tensor
    y: Tensor
    task: Task
    index: Tensor


def whole_batch(samples: Samples, task: Task, device: torch.device | str = "cpu") -> Batch:
    """All of these samples as one batch, in their order and not augmented."""
    x, y = samples.preprocess(samples.inputs.to(device)), samples.y.to(device)
    return Batch(x, y, task, torch.arange(len(y)))


def between(x: Tensor, stream: torch.Generator) -> Tensor:
    """Inputs between those of a batch and others of it, as Zhang et al. 2018, "mixup"; words stay as they are."""
    share, other = torch.rand((), generator=stream).item(), torch.randperm(len(x), generator=stream)
    return torch.lerp(x[other.to(x.device)], x, share) if x.is_floating_point() else x


class Numbers:
    """This round's hyper-parameters: schedules become plain numbers, read as attributes."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no hyper-parameter '{name}'; {suggest(name, self.__dict__)}")


Models = Mapping[str, nn.Module]


class _Named(dict[str, nn.Module]):
    """Models by name, which says the names that there are."""

    def __missing__(self, name: str) -> nn.Module:
        raise InputError(f"models[{name!r}]: no such model is trained here; {suggest(name, self)}")


Terms = dict[str, Tensor]
Objective = Callable[[Models, Batch, Numbers], Terms]


BLOCK = 2**22
"""How many numbers of a client's inputs are prepared at once, about: 16 MB."""


class Loader:
    """Shuffled batches of a client's samples; the last partial batch is kept.

    With `join_single` a last batch of one joins the batch before it, and a lone sample is seen
    twice: batch-norm has no variance of a single value.
    """

    def __init__(
        self,
        samples: Samples,
        task: Task,
        batch_size: int,
        generator: torch.Generator,
        *,
        join_single: bool = False,
        augmentations: Sequence[Augment] = (),
        device: torch.device | str = "cpu",
        channels_last: bool = False,
    ) -> None:
        # Read once, if it is in a file, rather than batch by batch.
        self.samples, self.task, self.batch_size = samples.in_memory(), task, batch_size
        self.generator, self.join_single = generator, join_single
        self.augmentations, self.device, self.channels_last = augmentations, device, channels_last

    def epochs(self, number: int) -> Iterator[Batch]:
        """Batches of this many epochs."""
        for _ in range(number):
            yield from self._batches(self._cuts())

    def steps(self, number: int) -> Iterator[Batch]:
        """This many batches; the samples are shuffled again whenever they run out."""
        while number > 0:
            cuts = self._cuts()[:number]
            number -= len(cuts)
            yield from self._batches(cuts)

    @property
    def batches(self) -> int:
        """How many there are in an epoch."""
        whole, rest = divmod(len(self.samples), self.batch_size)
        joined = rest == 1 and self.join_single and whole > 0
        return whole + (rest > 0) - joined

    def _cuts(self) -> list[Tensor]:
        """The positions of an epoch's samples, batch by batch."""
        order = torch.randperm(len(self.samples), generator=self.generator)
        cuts = list(order.split(self.batch_size))
        if self.join_single and len(cuts[-1]) == 1:
            last = cuts.pop()
            cuts.append(torch.cat([cuts.pop() if cuts else last, last]))
        return cuts

    def _batches(self, cuts: Sequence[Tensor]) -> Iterator[Batch]:
        """Batches of these samples, which are put in order and made a model's input many at once."""
        several = max(1, BLOCK // (self.batch_size * self.samples.x.shape[1:].numel()))
        for start in range(0, len(cuts), several):
            block = cuts[start : start + several]
            order, sizes = torch.cat(list(block)), [len(cut) for cut in block]
            x, y = (stored.index_select(0, order) for stored in (self.samples.inputs, self.samples.y))
            # Stored bytes are laid out and cross to a GPU, which makes numbers of them: a quarter of the traffic.
            if self.channels_last:
                x = laid_out(x)
            x, y = (chosen.to(self.device, non_blocking=True) for chosen in (x, y))
            x = self.samples.preprocess(x)
            if self.channels_last:
                x = laid_out(x)  # which it is, but a single channel does not say so any more
            for cut, part, labels in zip(block, x.split(sizes), y.split(sizes), strict=True):
                inputs = part.detach()  # else a model that changes its input would change the graph of all
                if self.augmentations:
                    inputs = augment(inputs, self.augmentations, self.generator)
                yield Batch(inputs, labels, self.task, cut)


class Trainer:
    """Steps several models at once on the sum of a method's named terms."""

    def __init__(
        self,
        models: Models,
        optimizers: Mapping[str, Stepper],
        numbers: Numbers,
        terms: Collection[str] | None = None,
    ) -> None:
        """`terms` are those that an objective may have beside one for each model; None is any."""
        self.models: Models = _Named(models)
        self.optimizers = optimizers
        self.numbers = numbers
        self._known = None if terms is None else {*models, *terms}
        self._stepped = False
        self._parameters = [p for model in models.values() for p in model.parameters() if p.requires_grad]
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()

    def step(self, objective: Objective, batch: Batch, lr: float | None = None) -> None:
        """One batch: every model moves at once, each along the gradient of the terms that reach it.

        `lr` is for this step only.
        """
        terms = objective(self.models, batch, self.numbers)
        self._differentiate(terms)
        if not self._stepped:
            self._check_reach(terms)
        for optimizer in self.optimizers.values():
            optimizer.step(lr)
        self._log(terms)

    def gradient(self, terms: Terms) -> Tensor:
        """The gradient of the terms over all parameters, as one flat vector. Nothing moves."""
        self._differentiate(terms)
        self._log(terms)
        return torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self._parameters]
        )

    def apply(self, vector: Tensor, lr: float | None = None) -> None:
        """Step the optimizers as if `vector` were the gradient; `lr` is for this step only."""
        start = 0
        for parameter in self._parameters:
            parameter.grad = vector[start : start + parameter.numel()].view_as(parameter).clone()
            start += parameter.numel()
        for optimizer in self.optimizers.values():
            optimizer.step(lr)

    def terms(self) -> dict[str, float]:
        """The mean of each term since the last call, over the steps that had it."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, Counter()
        return means

    def _differentiate(self, terms: Terms) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        self._check(terms)
        learned = [term for term in terms.values() if term.requires_grad]
        if self._parameters and not learned:
            raise InputError(
                f"objective: no term ({', '.join(terms)}) has a gradient: nothing would be learned; "
                "give losses of what the models say, not detached"
            )
        torch.autograd.backward(learned)

    def _check(self, terms: object) -> None:
        """Refuse what an objective returns where it is not named terms, each one number."""
        if not isinstance(terms, Mapping):
            name = next(iter(self.models), "personal")
            raise InputError(
                f"objective: it returned a {type(terms).__name__}; give named terms, such as {{'{name}': loss}}"
            )
        for name, term in terms.items():
            if self._known is not None and name not in self._known:
                raise InputError(
                    f"objective: unknown term {name!r}; {suggest(name, sorted(self._known))}; "
                    "one of your own is declared by terms = (...,) in the method's class"
                )
            if not isinstance(term, Tensor) or term.dim():
                found = f"shape {tuple(term.shape)}" if isinstance(term, Tensor) else f"a {type(term).__name__}"
                raise InputError(f"objective: term {name!r} is {found}; it must be a tensor of one number")

    def _check_reach(self, terms: Terms) -> None:
        """Refuse an objective that leaves out a model that is to be trained."""
        self._stepped = True
        for name in self.optimizers:
            if all(p.grad is None for p in self.models[name].parameters() if p.requires_grad):
                raise InputError(
                    f"objective: no term ({', '.join(terms)}) reaches model '{name}', which is trained; "
                    "add one, or do not give it to fit"
                )

    def _log(self, terms: Terms) -> None:
        for name, term in terms.items():
            if name in self._sums:
                self._sums[name] += term.detach()
            else:
                self._sums[name] = term.detach().clone()
            self._counts[name] += 1


@contextmanager
def learning_in(part: Share, models: Models) -> Iterator[None]:
    """In here only this part of the models learns; the rest is frozen, its statistics too.

    An optimizer that is made before has memory for all of a model, and steps what has a gradient.
    """
    if part == "all":
        yield
        return
    before = {p: p.requires_grad for model in models.values() for p in model.parameters()}
    for model in models.values():
        names = set(shared_names(model, part, "only"))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and name in names)
            parameter.grad = None  # of earlier training, along which what is frozen now would be stepped
        model.eval()
        for layer in layers_in(model, part):
            layer.training = True
    try:
        yield
    finally:
        for parameter, learned in before.items():
            parameter.requires_grad_(learned)
        for model in models.values():
            model.train()


@contextmanager
def own_streams(models: Models, seeds: Mapping[str, int]) -> Iterator[None]:
    """Give each model its own random numbers: before a forward in training the generators get its next seed.

    Dropout in one model then draws the same numbers whether or not another model trains beside it. Seeding is
    cheaper than swapping a generator's state, by a fiftieth of a small model's step.
    """
    with ExitStack() as stack:
        stack.callback(torch.set_rng_state, torch.get_rng_state())
        for name, model in models.items():
            generators: list[Any] = [torch.default_generator]
            device = next((p.device.type for p in model.parameters()), "cpu")
            if device != "cpu":
                generators.append(getattr(torch, device))
                stack.callback(generators[1].set_rng_state, generators[1].get_rng_state())
            hook = partial(_seed, random.Random(seeds[name]), generators)
            stack.callback(model.register_forward_pre_hook(hook).remove)
        yield


def _seed(seeds: random.Random, generators: Sequence[Any], model: nn.Module, *_: object) -> None:
    # How often a model is evaluated must not change what it draws in training.
    if not any(part.training for part in model.modules()):
        return
    seed = seeds.getrandbits(63)
    for generator in generators:
        generator.manual_seed(seed)
