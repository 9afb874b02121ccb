"""Optimizers of a server, for which G − (mean of memes) is a gradient.

Hsu et al. 2019, "Measuring the effects of non-identical data distribution for federated visual classification"
(FedAvgM); Reddi et al. 2021, "Adaptive federated optimization" (FedAdam, FedYogi and FedAdagrad, Algorithm 2).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from mutua.learning.optimizers import Momentum, Rate
from mutua.learning.schedules import value
from mutua.support.configuration import Spec
from mutua.support.tensor_files import Tensors


class ServerSGD(Spec):
    """v ← β·v + Δ, G ← G − η·v, with Δ = G − (mean of memes): with η 1 and β 0 the mean, but for rounding."""

    name: Literal["sgd"] = "sgd"
    lr: Rate = 1.0
    momentum: Momentum = 0.9

    def step(self, w: Tensor, delta: Tensor, memory: Tensors, lr: float) -> Tensor:
        """The next numbers; `memory` is changed."""
        memory["v"] = self.momentum * memory.get("v", torch.zeros_like(w)) + delta
        return w - lr * memory["v"]


class ServerAdaptive(Spec):
    """m ← β₁·m + (1−β₁)·Δ, v by name, G ← G − η·m/(√v + τ). v starts at τ²; no bias is corrected."""

    name: Literal["adam", "yogi", "adagrad"] = "adam"
    lr: Rate = 0.01
    betas: tuple[Momentum, Momentum] = (0.9, 0.99)
    tau: float = Field(1e-3, gt=0)

    def step(self, w: Tensor, delta: Tensor, memory: Tensors, lr: float) -> Tensor:
        """The next numbers; `memory` is changed."""
        first, second = self.betas
        squared, v = delta.square(), memory.get("v", torch.full_like(w, self.tau**2))
        if self.name == "adagrad":
            v = v + squared
        elif self.name == "yogi":
            v = v - (1 - second) * squared * torch.sign(v - squared)
        else:
            v = second * v + (1 - second) * squared
        memory["m"] = first * memory.get("m", torch.zeros_like(w)) + (1 - first) * delta
        memory["v"] = v
        return w - lr * memory["m"] / (v.sqrt() + self.tau)


def _named(given: object) -> object:
    """`adam` is short for {name: adam}, and without a name it is SGD."""
    if isinstance(given, str):
        return {"name": given}
    return {"name": "sgd", **given} if isinstance(given, dict) else given


ServerOptimizer = Annotated[ServerSGD | ServerAdaptive, Field(discriminator="name"), BeforeValidator(_named)]


def server_rate(optimizer: ServerSGD | ServerAdaptive, round: int, rounds: int) -> float:
    """The server's learning rate of this round."""
    return value(optimizer.lr, round, rounds)
