"""Ditto: a personal model that is held near the global, beside a global that does not notice.

Li et al. 2021, "Ditto: fair and robust federated learning through personalization" (the bi-level objective and
Algorithm 1).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import nn

from mutua.federation.message import Message
from mutua.learning import losses
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import register
from mutua.methods.fedavg import Averaging
from mutua.methods.participant import Participant


@register
class Ditto(Averaging):
    """FedAvg; beside it each client trains a personal model that is held near the global."""

    name: ClassVar[str] = "ditto"
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    same_models: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    lam: Annotated[Schedule, within(0, 1e6)] = 1.0
    init: Literal["own", "global"] = "own"

    def near_global(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """h_k(v; w) = F_k(v) + (λ/2)‖v − w‖²; w is the global as it was received."""
        loss = batch.task.loss(models["personal"](batch.x), batch.y)
        return {"personal": loss + hp.lam / 2 * losses.squared_distance(models["personal"], models["global"])}

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """The personal model's steps, which stay; then FedAvg's client. Both go through the same batches."""
        if "personal" not in client.state:
            client.initialise("personal", like=self.init)
        models = {"personal": client.model("personal"), "global": client.frozen(brief)}
        client.fit(self.near_global, models)
        return super().train(client, brief)

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The personal model; before its first training, as for a newcomer, the global or what was tuned of it."""
        return client.model("personal") if "personal" in client.state else super().predictor(client, brief)
