"""LG-FedAvg: bodies stay at home, whatever their design; the head that judges what they see is shared.

Liang et al. 2020, "Think locally, act globally: federated learning with local and global representations"
(Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import nn

from mutua.errors import InputError
from mutua.federation.client import Client, build
from mutua.federation.federation import Federation
from mutua.federation.message import Message
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import register
from mutua.methods.fedavg import Averaging
from mutua.methods.fedper import share_part
from mutua.methods.participant import Participant
from mutua.models import Architecture, shared_names


@register
class LGFedAvg(Averaging):
    """FedAvg of the head; every client has a body of its own, of any design that gives features of one width."""

    name: ClassVar[str] = "lgfedavg"
    honours_opt_out: ClassVar[bool] = True
    any_task: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = False
    own_models: ClassVar[bool] = True
    needs_features: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    weights: Literal["samples", "uniform"] = "uniform"

    def arrange(self, federation: Federation) -> Federation:
        """The head is shared, unless `models.global.share` names other parts; all models must agree in it."""
        if federation.global_model is not None and federation.global_model.share == "all":
            federation = share_part(federation, "head")
        federation = super().arrange(federation)
        shared = federation.global_model
        if shared is None:
            return federation
        for client in federation.clients:
            theirs, its = (self._shapes(design, client, shared) for design in (shared, client.model))
            if its != theirs:
                odd = min(name for name in its | theirs if its.get(name) != theirs.get(name))
                raise InputError(
                    f"client {client.id}: the shared '{odd}' is {its.get(odd, 'missing')} in its "
                    f"{client.model.title} and {theirs.get(odd, 'missing')} in the global's {shared.title}; "
                    "give all of them one width, such as features: 64"
                )
        return federation

    def _shapes(self, design: Architecture, client: Client, shared: Architecture) -> dict[str, tuple[int, ...]]:
        module = build(design, client, seed=0)
        state = module.state_dict()
        return {name: tuple(state[name].shape) for name in shared_names(module, shared.share)}

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """CE of the own body under the shared head; both learn."""
        return {"personal": batch.task.loss(models["personal"](batch.x), batch.y)}

    def start(self, client: Participant) -> None:
        """A body of the client's own design."""
        client.initialise("personal")

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """The own body takes the shared head; both learn, the head leaves. The optimizer begins anew."""
        if not client.takes_part:
            return None
        model = client.received(brief)
        client.fit(self.objective, {"personal": model}, samples=client.opted_in, streams={"personal": "meme"})
        client.state.pop("personal.optimizer", None)
        return self.reply(client, model)

    def evaluated(self, client: Participant, brief: Message | None) -> Mapping[str, nn.Module]:
        """Nothing beside the predictor: a head says nothing without a body."""
        return {}

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The own body under the shared head; a newcomer has the global's design, or what it tuned of it."""
        return client.received(brief) if "personal" in client.state else super().predictor(client, brief)
