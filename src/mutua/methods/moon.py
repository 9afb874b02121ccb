"""MOON: what a client's model sees is drawn to what the global sees, and away from what it saw itself before.

Li, He, Song 2021, "Model-contrastive federated learning" (Eqs. 3 and 4, Algorithm 1).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mutua.federation.federation import Federation
from mutua.federation.message import Message
from mutua.federation.model_checks import global_features
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import register
from mutua.methods.fedavg import FedAvg
from mutua.methods.participant import Participant
from mutua.models import features


@register
class Moon(FedAvg):
    """FedAvg with a contrastive term between features of the meme, of the global and of the last own meme."""

    name: ClassVar[str] = "moon"
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = False
    different_data: ClassVar[bool] = True
    mu: Annotated[Schedule, within(0, 1e6)] = 1.0
    temperature: Annotated[Schedule, within(1e-3, 1e3)] = 0.5

    def arrange(self, federation: Federation) -> Federation:
        """What is compared is what the head is given, so there must be one."""
        global_features(federation, self.name)
        return super().arrange(federation)

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """Eq. (4): CE + μ·ℓ_con; without an own meme of before there is nothing to be away from."""
        z, scores = features(models["meme"], batch.x)
        loss = batch.task.loss(scores, batch.y)
        if hp.mu and hp.before is not None:
            loss = loss + hp.mu * self.contrast(z, hp.received, hp.before, batch.x, hp.temperature)
        return {"meme": loss}

    def contrast(self, z: Tensor, received: nn.Module, before: nn.Module, x: Tensor, temperature: float) -> Tensor:
        """Eq. (3): −log(e^(s_G/τ) / (e^(s_G/τ) + e^(s_before/τ))), s the cosine of z and a model's features."""
        with torch.no_grad():
            theirs, own = (features(model, x)[0] for model in (received, before))
        near, far = F.cosine_similarity(z, theirs), F.cosine_similarity(z, own)
        return F.softplus((far - near) / temperature).mean()

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """FedAvg's client; the two models it is compared with are in evaluation mode: nothing of them moves."""
        if not client.takes_part:
            return None
        before = client.model("before").requires_grad_(False).eval() if "before" in client.state else None
        constants = {"received": client.frozen(brief).eval(), "before": before}
        models = self.models(client, brief)
        client.fit(self.objective, models, samples=client.opted_in, given=constants)
        self.trained(client, models["meme"])
        return self.reply(client, models["meme"])

    def trained(self, client: Participant, meme: nn.Module) -> None:
        """The own meme, for the next round."""
        super().trained(client, meme)
        client.keep("before", meme)
