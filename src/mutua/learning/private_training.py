"""Differentially private gradient descent: no example moves the meme by more than a clipped, noised gradient.

Abadi et al. 2016, "Deep learning with differential privacy", Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from mutua.learning.optimizers import Stepper
from mutua.learning.trainer import Batch, Loader, Models, Numbers, Objective, Terms, Trainer
from mutua.seeds import normals, uniforms


class PoissonLoader(Loader):
    """Batches into which each sample is drawn independently, with one probability, as the accountant assumes."""

    system: bool = False
    """Whether the draws, which are the client's secret, come from the system's random source."""

    def _cuts(self) -> list[Tensor]:
        n, rate = len(self.samples), sampling_rate(len(self.samples), self.batch_size)
        steps = range(steps_per_epoch(n, self.batch_size))
        stream = None if self.system else self.generator
        return [(uniforms(n, stream) < rate).nonzero()[:, 0] for _ in steps]


def sampling_rate(samples: int, batch_size: int) -> float:
    """How likely a sample is in a batch."""
    return min(1.0, batch_size / samples)


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """How many batches make an epoch."""
    return math.ceil(samples / batch_size)


class PrivateTrainer(Trainer):
    """Steps the meme along the sum of its examples' clipped gradients, with noise, divided by the batch size."""

    def __init__(
        self,
        models: Models,
        optimizers: Mapping[str, Stepper],
        numbers: Numbers,
        clip: float,
        noise: float,
        batch_size: int,
        stream: torch.Generator | None,
        terms: Collection[str] | None = None,
    ) -> None:
        super().__init__(models, optimizers, numbers, terms)
        self.clip, self.noise, self.batch_size, self.stream = clip, noise, batch_size, stream

    def step(self, objective: Objective, batch: Batch, lr: float | None = None) -> None:
        """One batch, which may be empty: then the step is noise alone."""
        size = sum(parameter.numel() for parameter in self._parameters)
        total = (self.noise * self.clip * normals(size, self.stream)).to(batch.x.device)
        if len(batch.y):
            gradients, terms = self._by_example(objective, batch)
            norms = gradients.norm(dim=1)
            bounded = torch.where(norms.isfinite()[:, None], gradients, 0.0)
            total += (self.clip / norms.clamp_min(self.clip)).nan_to_num() @ bounded
            self._log({name: term.mean() for name, term in terms.items()})
        self.apply(total / self.batch_size, lr)

    def _by_example(self, objective: Objective, batch: Batch) -> tuple[Tensor, Terms]:
        """Each example's gradient as a row, and its terms."""
        meme = self.models["meme"]
        parameters = {n: p.detach() for n, p in meme.named_parameters() if p.requires_grad}

        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Terms]:
            one = Batch(x[None], y[None], batch.task, batch.index[:1])
            terms = objective({**self.models, "meme": _Seen(meme, parameters)}, one, self.numbers)
            self._check(terms)
            return torch.stack(list(terms.values())).sum(), terms

        by_example: Any = vmap(grad(loss, has_aux=True), in_dims=(None, 0, 0), randomness="different")
        gradients, terms = by_example(parameters, batch.x, batch.y)
        return torch.cat([gradient.flatten(1) for gradient in gradients.values()], dim=1), terms


class _Seen(nn.Module):
    """The meme as one example sees it: with parameters that are differentiated for it alone."""

    def __init__(self, model: nn.Module, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self.model = model
        self.given = parameters

    def forward(self, x: Tensor) -> Any:
        return functional_call(self.model, self.given, (x,))

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, Any]]:
        yield from {**dict(self.model.named_parameters()), **self.given}.items()
