"""Layers that stay at home: FedPer keeps each client's head, FedBN its normalisation.

Arivazhagan et al. 2019, "Federated learning with personalization layers" (FedPer, Algorithms 1 and 2);
Li et al. 2021, "FedBN: federated learning on non-IID features via local batch normalization" (Algorithm 1).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from torch import nn

from mutua.federation.client import build
from mutua.federation.federation import Federation
from mutua.methods.base import register
from mutua.methods.fedavg import FedAvg
from mutua.models import Architecture, shared_names
from mutua.models.splice import Share

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""Layers that normalise: batch and instance norm of any dimension, group, layer and RMS norm."""


@register
class FedPer(FedAvg):
    """FedAvg of the body; every client has a head of its own."""

    name: ClassVar[str] = "fedper"
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    different_data: ClassVar[bool] = True

    def arrange(self, federation: Federation) -> Federation:
        """The body is shared, unless `models.global.share` names other parts."""
        shared = federation.global_model
        whole = shared is not None and shared.share == "all"
        return super().arrange(share_part(federation, "body") if whole else federation)


@register
class FedBN(FedAvg):
    """FedAvg of everything but layers that normalise; without such layers it is FedAvg."""

    name: ClassVar[str] = "fedbn"
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    different_data: ClassVar[bool] = True

    def arrange(self, federation: Federation) -> Federation:
        """What is shared, without the parameters and statistics of layers that normalise, whatever their names."""
        federation = super().arrange(federation)
        if federation.global_model is None:
            return federation
        try:
            module = build(federation.global_model, federation.clients[0], seed=0)
        except Exception:  # what is wrong with a model is said by `check_models`, which tries it next
            return federation
        own = {
            f"{path}.{name}" if path else name
            for path, layer in module.named_modules()
            if isinstance(layer, NORMS)
            for name in layer.state_dict()
        }
        shared = shared_names(module, federation.global_model.share)
        return (
            share_part(federation, [name for name in shared if name not in own]) if own & {*shared} else federation
        )


def share_part(federation: Federation, share: Share) -> Federation:
    """The federation with a global of which so much is shared."""
    assert isinstance(federation.global_model, Architecture)
    return replace(federation, global_model=federation.global_model.model_copy(update={"share": share}))
