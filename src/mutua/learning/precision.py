"""The precision models compute in: a lower one is faster on a GPU. Losses, weights and evaluation stay float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from mutua.learning.trainer import Models

Precision = Literal["float32", "tf32", "bfloat16"]


@contextmanager
def computing_in(precision: Precision, models: Models) -> Iterator[None]:
    """In here the models run in this precision; what they give out is float32 again.

    TF32 is how a GPU rounds the factors of matrix products, and a setting of the whole process.
    """
    before = torch.get_float32_matmul_precision()
    with ExitStack() as stack:
        stack.callback(torch.set_float32_matmul_precision, before)
        if precision == "tf32":
            torch.set_float32_matmul_precision("high")
        if precision == "bfloat16":
            for model in models.values():
                _cast(model, stack)
        yield


def _cast(model: nn.Module, stack: ExitStack) -> None:
    device = next((p.device.type for p in model.parameters()), "cpu")
    cast = torch.autocast(device, torch.bfloat16)
    entered: list[bool] = []

    def enter(*_: object) -> None:
        entered.append(model.training)  # evaluation, as for early stopping, is in full precision
        if entered[-1]:
            cast.__enter__()

    def leave(_: nn.Module, __: object, output: Tensor | None) -> Tensor | None:
        if not entered.pop():
            return output
        cast.__exit__(None, None, None)
        return None if output is None else output.float()  # None: the forward has failed

    stack.callback(model.register_forward_pre_hook(enter).remove)
    stack.callback(model.register_forward_hook(leave, always_call=True).remove)
