"""Optimizers by name, and their state as named arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from mutua.errors import InputError
from mutua.learning.schedules import Schedule, value, within
from mutua.support.configuration import Spec
from mutua.support.tensor_files import Tensors

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

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> Stepper:
        """What steps these parameters."""
        return _SGD(self, parameters, lr)


class Adam(_Optimizer):
    """Adam; `amsgrad` by its own name."""

    name: Literal["adam", "amsgrad"] = "adam"
    lr: Rate = 0.001
    betas: tuple[Momentum, Momentum] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> Stepper:
        """What steps these parameters."""
        return _Adam(self, parameters, lr)


def _named(given: object) -> object:
    """`adam` is short for {name: adam}, and without a name it is SGD."""
    if isinstance(given, str):
        return {"name": given}
    return {"name": "sgd", **given} if isinstance(given, dict) else given


Optimizer = Annotated[SGD | Adam, Field(discriminator="name"), BeforeValidator(_named)]


class Stepper(ABC):
    """Steps parameters along their gradients by torch's fused kernels, called directly.

    torch.optim's classes around the same kernels take three times as long per step for a small model, and seconds
    to import. The kernels expect every array to lie in memory as the parameter does, and do not check it:
    `_laid_out_like` sees to it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        self.parameters, self.lr = list(parameters), lr
        if any(torch.empty_like(p).stride() != p.stride() for p in self.parameters):
            raise InputError("models: a parameter is a view into other memory; make it of a copy (tensor.clone())")
        self.memory: dict[int, Tensors] = {}
        """What is remembered of a parameter, by its number, from its first gradient on."""

    @torch.no_grad()
    def step(self, lr: float | None = None) -> None:
        """Move every parameter that has a gradient; `lr` is for this step only."""
        moved = [(i, p, p.grad) for i, p in enumerate(self.parameters) if p.grad is not None]
        if not moved:
            return
        for i, parameter, _ in moved:
            if i not in self.memory:
                self.memory[i] = self._first(parameter)
        parameters: list[Tensor] = [parameter for _, parameter, _ in moved]
        gradients = [g if g.stride() == p.stride() else _laid_out_like(p, g) for _, p, g in moved]
        self._kernel(parameters, gradients, [self.memory[i] for i, _, _ in moved], self.lr if lr is None else lr)

    @abstractmethod
    def _first(self, parameter: Tensor) -> Tensors:
        """What is remembered of a parameter before its first step."""

    @abstractmethod
    def _kernel(self, parameters: list[Tensor], gradients: list[Tensor], memory: list[Tensors], lr: float) -> None:
        """One step of all of them."""


class _SGD(Stepper):
    def __init__(self, settings: SGD, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, lr)
        self.settings = settings

    def _first(self, parameter: Tensor) -> Tensors:
        return {"momentum_buffer": torch.zeros_like(parameter)} if self.settings.momentum else {}

    def _kernel(self, parameters: list[Tensor], gradients: list[Tensor], memory: list[Tensors], lr: float) -> None:
        settings = self.settings
        momenta = [arrays["momentum_buffer"] for arrays in memory] if settings.momentum else []
        torch._fused_sgd_(
            _flat(parameters),
            _flat(gradients),
            _flat(momenta),
            lr=lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            nesterov=settings.nesterov and settings.momentum > 0,
            dampening=0.0,
            maximize=False,
            is_first_step=False,  # a memory of zeros does what the first step would
        )


class _Adam(Stepper):
    def __init__(self, settings: Adam, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, lr)
        self.settings = settings
        self.kept = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if settings.name == "amsgrad" else [])]

    def _first(self, parameter: Tensor) -> Tensors:
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)
        return {"step": step} | {name: torch.zeros_like(parameter) for name in self.kept}

    def _kernel(self, parameters: list[Tensor], gradients: list[Tensor], memory: list[Tensors], lr: float) -> None:
        settings = self.settings
        steps = [arrays["step"] for arrays in memory]
        torch._foreach_add_(steps, 1)
        names = "exp_avg", "exp_avg_sq", "max_exp_avg_sq"
        first, second, largest = ([arrays[name] for arrays in memory if name in arrays] for name in names)
        torch._fused_adam_(
            _flat(parameters),
            _flat(gradients),
            _flat(first),
            _flat(second),
            _flat(largest),
            steps,
            lr=lr,
            beta1=settings.betas[0],
            beta2=settings.betas[1],
            weight_decay=settings.weight_decay,
            eps=settings.eps,
            amsgrad=settings.name == "amsgrad",
            maximize=False,
        )


def _laid_out_like(parameter: Tensor, array: Tensor) -> Tensor:
    """The same numbers, lying in memory as the parameter's do."""
    return torch.empty_like(parameter).copy_(array)


def _flat(arrays: list[Tensor]) -> list[Tensor]:
    """The same memory, as vectors if it is not contiguous: otherwise the kernels would copy every array."""
    return [array if array.is_contiguous() else array.as_strided((array.numel(),), (1,)) for array in arrays]


def optimizer_state(stepper: Stepper) -> Tensors:
    """What is remembered, as arrays named `parameter number.what`."""
    return {
        f"{number}.{what}": array.to("cpu", copy=True, memory_format=torch.contiguous_format)
        for number, arrays in sorted(stepper.memory.items())
        for what, array in arrays.items()
    }


def restore_optimizer(stepper: Stepper, arrays: Tensors) -> None:
    """Continue from what `optimizer_state` gave."""
    stepper.memory = {}
    for name, array in arrays.items():
        number, _, what = name.partition(".")
        parameter = stepper.parameters[int(number)].detach()
        kept = _laid_out_like(parameter, array) if array.dim() else array.to(parameter.device, copy=True)
        stepper.memory.setdefault(int(number), {})[what] = kept
