"""A narrower model of the same layers, seen as a part of a wide one: which of its numbers it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mutua.errors import InputError
from mutua.support.tensor_files import Tensors

Window = Literal["rolling", "static", "random"]
Choose = Callable[[str, int, int], Tensor]
"""The units of this layer, which has so many, that a narrow model with so many holds; in rising order."""
Positions = Mapping[str, tuple[Tensor, ...]]
"""By name of an array, along each dimension, the positions that a narrow model holds."""


def window(kind: Window, of: int, many: int, round: int, stream: torch.Generator) -> Tensor:
    """Which units of a layer train: {t, …, t + many − 1} mod n in round t, always the first, or a draw."""
    if kind == "static":
        return torch.arange(many)
    if kind == "random":
        return torch.randperm(of, generator=stream)[:many].sort().values
    return ((torch.arange(many) + round - 1) % of).sort().values


def fits(wide: nn.Module, narrow: nn.Module) -> None:
    """Refuse a narrow model that is no part of a wide one."""
    places(wide, narrow, lambda layer, of, many: torch.arange(many))


def chained(module: nn.Module, at: str = "") -> dict[str, nn.Module]:
    """The layers of a chain in their order; refused where a model is anything else, such as one with shortcuts."""
    if isinstance(module, nn.Sequential):
        named = ((f"{at}.{name}" if at else name, part) for name, part in module.named_children())
        return {name: layer for at, part in named for name, layer in chained(part, at).items()}
    grouped = isinstance(module, nn.Conv2d) and module.groups > 1
    learning = bool(module.state_dict()) and not isinstance(module, nn.Linear | nn.Conv2d | _BatchNorm)
    if any(module.children()) or learning or grouped:
        where = f"layer '{at}'" if at else "it"
        raise InputError(
            f"no chain of linear layers, convolutions and batch-norms: {where} is {type(module).__name__}; "
            "use one from mlp to vgg19"
        )
    return {at: module}


def places(wide: nn.Module, narrow: nn.Module, choose: Choose) -> Positions:
    """Where the numbers of a narrow chain are in a wide one: its layers hold some of the units, the head all."""
    layers, others = chained(wide), chained(narrow)
    if layers.keys() != others.keys():
        odd = min(layers.keys() ^ others.keys())
        raise InputError(f"layer '{odd}' is in only one of the two")
    last = [name for name, layer in layers.items() if isinstance(layer, nn.Linear | nn.Conv2d)][-1]
    found: dict[str, tuple[Tensor, ...]] = {}
    units, of = torch.empty(0, dtype=torch.long), 0
    for name, layer in layers.items():
        arrays, shapes = layer.state_dict(), {n: a.shape for n, a in others[name].state_dict().items()}
        if arrays.keys() != shapes.keys() or any(arrays[n].dim() != len(shape) for n, shape in shapes.items()):
            raise InputError(f"layer '{name}' is not of one kind in both")
        if not arrays:
            continue
        weight = next(iter(arrays))
        wanted = shapes[weight]
        inputs, fed = arrays[weight].shape[1 if len(wanted) > 1 else 0], wanted[1 if len(wanted) > 1 else 0]
        each = inputs // of if of else inputs  # flattened, a unit before is several numbers here
        held = (units.unsqueeze(1) * each + torch.arange(each)).flatten() if of else torch.arange(inputs)
        outputs = held
        if len(wanted) > 1:
            many, all_units = wanted[0], arrays[weight].shape[0]
            if many > all_units or (name == last and many != all_units):
                raise InputError(f"layer '{name}' has {many} units, where the global has {all_units}")
            outputs = torch.arange(many) if many == all_units else choose(name, all_units, many)
            units, of = outputs, all_units
        if len(held) != fed or tuple(wanted[2:]) != tuple(arrays[weight].shape[2:]):
            there, ours = tuple(wanted), tuple(arrays[weight].shape)
            raise InputError(f"'{name}.{weight}' is {there}, no part of the global's {ours}")
        for n, array in arrays.items():
            along = (outputs, held, *map(torch.arange, array.shape[2:]))[: array.dim()]
            found[f"{name}.{n}" if name else n] = along
    return found


def narrowed(arrays: Tensors, where: Positions) -> Tensors:
    """What a narrow model holds of a wide one's arrays."""
    found = {}
    for name, along in where.items():
        array = arrays[name]
        for dimension, chosen in enumerate(along):
            array = array.index_select(dimension, chosen)
        found[name] = array.clone() if array is arrays[name] else array
    return found


def times_narrower(arrays: Tensors, part: Tensors) -> Tensors:
    """By layer, how many times as many units a wide model has, where it has more than this part of it."""
    times = {name: len(arrays[name]) / len(array) for name, array in part.items() if array.dim() > 1}
    return {name.removesuffix(".weight"): torch.tensor(more) for name, more in times.items() if more != 1}


@contextmanager
def scaled_up(model: nn.Module, times: Tensors) -> Iterator[None]:
    """In here these layers give so many times as much, as under dropout in training."""

    def scaled(more: float, layer: nn.Module, given: object, output: Tensor) -> Tensor:
        return output * more

    layers = dict(model.named_modules())
    hooks = [layers[name].register_forward_hook(partial(scaled, float(more))) for name, more in times.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def grid(along: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The index of these positions in an array, to read or write all of them at once."""
    return torch.meshgrid(*along, indexing="ij") if along else ()


def filled(arrays: Tensors, where: Positions, held: Tensors) -> Tensors:
    """A copy of a wide model's arrays with what a narrow one holds in its place."""
    found = {name: array.clone() for name, array in arrays.items()}
    for name, along in where.items():
        found[name][grid(along)] = held[name]
    return found
