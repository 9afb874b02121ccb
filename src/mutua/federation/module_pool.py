"""The torch modules that clients work with: built once per role and shape, filled with a client's weights."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from mutua.federation.client import Client, build
from mutua.learning.memory_layout import lay_channels_last
from mutua.models import Architecture
from mutua.support.tensor_files import Tensors


@dataclass
class Modules:
    """Built modules, one per role and shape, filled with a client's weights while it is at work.

    All that a model learns must be in its `state_dict`: other buffers start again with every client.
    """

    device: torch.device
    built: dict[tuple[object, ...], nn.Module] = field(default_factory=dict)
    unsaved: dict[nn.Module, Tensors] = field(default_factory=dict)
    learned: dict[nn.Module, list[bool]] = field(default_factory=dict)
    """Which of its parameters each learns as it was built."""
    copied: set[nn.Module] = field(default_factory=set)
    """Those whose weights are loaded by nothing but copying."""

    def get(
        self, role: str, architecture: Architecture, client: Client, state: Tensors, classes: int | None = None
    ) -> nn.Module:
        """The module for this role, with these weights."""
        module = self._module(role, architecture, client, classes)
        self._fill(module, state)
        for parameter, learned in zip(module.parameters(), self.learned[module], strict=True):
            parameter.requires_grad_(learned)  # whoever had it last may have frozen it
        for name, first in self.unsaved[module].items():
            owner, _, buffer = name.rpartition(".")
            setattr(module.get_submodule(owner), buffer, first.clone())
        return module

    def _fill(self, module: nn.Module, state: Tensors) -> None:
        """What `load_state_dict` does, in a tenth of its time where it would only copy."""
        there = module.state_dict()
        shapes, given = ({name: array.shape for name, array in arrays.items()} for arrays in (there, state))
        if module not in self.copied or shapes != given:
            module.load_state_dict(state)
            return
        with torch.no_grad():
            torch._foreach_copy_(list(there.values()), [state[name] for name in there])

    def has_batch_norm(self, role: str, architecture: Architecture, client: Client) -> bool:
        """Whether the module normalises over the batch."""
        return batch_normed(self._module(role, architecture, client))

    def _module(
        self, role: str, architecture: Architecture, client: Client, classes: int | None = None
    ) -> nn.Module:
        key = (role, id(architecture), client.train.model_input, classes or len(client.train.classes))
        if key not in self.built:
            module = self.built[key] = build(architecture, client, 0, classes).to(self.device)
            saved = module.state_dict()
            self.learned[module] = [parameter.requires_grad for parameter in module.parameters()]
            self.unsaved[module] = {n: b.clone() for n, b in module.named_buffers() if n not in saved}
            if all(map(_loads_by_copying, module.modules())):
                self.copied.add(module)
            lay_channels_last(module, client.train.preprocess(client.train.x[[0, 0]]).to(self.device))
        return self.built[key]


def _loads_by_copying(part: nn.Module) -> bool:
    own = type(part).load_state_dict, type(part)._load_from_state_dict
    hooks = part._load_state_dict_pre_hooks or part._load_state_dict_post_hooks
    return not hooks and all(function.__module__.startswith("torch.nn.") for function in own)


def weights_of(module: nn.Module) -> Tensors:
    """A copy of a model's weights and buffers, in the computer's memory."""
    return {
        name: array.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, array in module.state_dict().items()
    }


def parameters_of(module: nn.Module) -> Tensors:
    """A copy of a model's parameters alone, without buffers such as running statistics."""
    held = weights_of(module)
    return {name: held[name] for name, _ in module.named_parameters()}


def batch_normed(model: nn.Module) -> bool:
    """Whether any layer normalises over the batch."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())
