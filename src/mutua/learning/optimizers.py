"""Optimizers by name, and their state as named arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from mutua.learning.schedules import Schedule, value, within
from mutua.message import Tensors
from mutua.spec import Spec

Rate = Annotated[Schedule, within(0, 1e6)]
Momentum = Annotated[float, Field(ge=0, lt=1)]


class _Optimizer(Spec):
    lr: Rate
    weight_decay: float = Field(0.0, ge=0)

    def rate(self, round: int, rounds: int) -> float:
        """The learning rate of this round."""
        return value(self.lr, round, rounds)


class SGD(_Optimizer):
    """Stochastic gradient descent with momentum and weight decay."""

    name: Literal["sgd"] = "sgd"
    lr: Rate = 0.01
    momentum: Momentum = 0.0
    nesterov: bool = False

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """A torch optimizer over these parameters."""
        nesterov = self.nesterov and self.momentum > 0
        return _guarded(
            torch.optim.SGD(
                parameters,
                lr,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                nesterov=nesterov,
                fused=True,
            )
        )


class Adam(_Optimizer):
    """Adam; `amsgrad` by its own name."""

    name: Literal["adam", "amsgrad"] = "adam"
    lr: Rate = 0.001
    betas: tuple[Momentum, Momentum] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """A torch optimizer over these parameters."""
        return _guarded(
            torch.optim.Adam(
                parameters,
                lr,
                betas=self.betas,
                eps=self.eps,
                weight_decay=self.weight_decay,
                amsgrad=self.name == "amsgrad",
                fused=True,
            )
        )


def _named(given: object) -> object:
    """`adam` is short for {name: adam}, and without a name it is SGD."""
    if isinstance(given, str):
        return {"name": given}
    return {"name": "sgd", **given} if isinstance(given, dict) else given


Optimizer = Annotated[SGD | Adam, Field(discriminator="name"), BeforeValidator(_named)]


def _guarded(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Make a fused optimizer safe: it takes all memory to lie as the parameter's does, and asks nobody."""
    optimizer.register_step_pre_hook(lambda optimizer, *_: _align(optimizer))
    return optimizer


def _align(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None and gradient.stride() != parameter.stride():
                parameter.grad = _like(parameter, gradient)


def _like(parameter: Tensor, array: Tensor) -> Tensor:
    """The same numbers, lying in memory as the parameter's do."""
    return torch.empty_like(parameter).copy_(array)


def state_of(optimizer: torch.optim.Optimizer) -> Tensors:
    """What the optimizer remembers, as arrays named `parameter number.what`."""
    return {
        f"{number}.{what}": array.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for number, memory in optimizer.state_dict()["state"].items()
        for what, array in memory.items()
        if isinstance(array, Tensor)
    }


def restore(optimizer: torch.optim.Optimizer, arrays: Tensors) -> None:
    """Let the optimizer go on from what `state_of` kept."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    memory: dict[int, Tensors] = {}
    for name, array in arrays.items():
        number, _, what = name.partition(".")
        parameter = parameters[int(number)].detach()
        memory.setdefault(int(number), {})[what] = _like(parameter, array) if array.dim() else array.clone()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": memory})
