"""FedKD: a large model that stays and a small one that is shared teach each other, by how right they are.

Wu et al. 2022, "Communication-efficient federated learning via knowledge distillation" (its losses and its SVD).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from mutua.federation.client import build
from mutua.federation.federation import Federation
from mutua.federation.message import Kind, Message, Part, Shares, weights
from mutua.federation.model_checks import feature_width, global_features
from mutua.federation.plan import Plan
from mutua.learning.low_rank import LEFT, RIGHT, restored, thinned
from mutua.learning.schedules import Linear, Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import register
from mutua.methods.fml import Mutual
from mutua.methods.participant import Participant
from mutua.methods.server import Server
from mutua.models import features


@register
class FedKD(Mutual):
    """Mutual learning of logits and features that trusts models by their losses; memes leave as thin factors."""

    name: ClassVar[str] = "fedkd"
    any_task: ClassVar[bool] = True
    adaptive: bool = True
    hidden: float = Field(1.0, ge=0, le=1e6)
    energy: Annotated[Schedule, within(0.01, 1)] = Field(default_factory=lambda: Linear(start=0.95, end=0.98))

    @property
    def shares(self) -> Shares:
        """The meme: of its larger arrays the factors of what has changed."""
        return {**super().shares, **({} if self.energy == 1 else {"change": Kind.FACTORS})}

    def arrange(self, federation: Federation) -> Federation:
        """For the hidden loss every model must have features, of whatever width."""
        if self.hidden:
            global_features(federation, self.name)
            for design in {id(client.model): client for client in federation.clients}.values():
                feature_width(design, "model", design.model, self.name)
        return super().arrange(federation)

    def reply_bytes(self, federation: Federation, plan: Plan) -> int:
        """A whole meme, and the names of all factors."""
        assert federation.global_model is not None
        model = build(federation.global_model, federation.clients[0], plan.seed)
        thin = {name + side: torch.empty(0, 0) for name in model.state_dict() for side in (LEFT, RIGHT)}
        return super().reply_bytes(federation, plan) + Message(change=Part(Kind.FACTORS, thin)).envelope

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """CE + KL/(CE_L + CE_M) for both models, and of their features MSE(z_L, W z_M)/(CE_L + CE_M).

        The divisor is how far the two are from right: a weight, through which nothing is learned.
        """
        task, trust = batch.task, 1.0
        if "hidden" in models:
            (z, personal), (z_meme, meme) = (features(models[name], batch.x) for name in ("personal", "meme"))
        else:
            personal, meme = models["personal"](batch.x), models["meme"](batch.x)
        if self.adaptive:
            trust = 1 / max((task.loss(personal, batch.y) + task.loss(meme, batch.y)).item(), 1e-12)
        terms = {
            "personal": task.taught(personal, batch.y, meme, 1, trust, hp.temperature),
            "meme": task.taught(meme, batch.y, personal, 1, trust, hp.temperature),
        }
        if "hidden" in models:
            terms["hidden"] = hp.hidden * trust * F.mse_loss(models["hidden"](z_meme), z)
        return terms

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Both models and W go through the same batches; L and W stay."""
        assert brief is not None
        models = {"personal": client.model("personal"), "meme": client.fork(brief)}
        if self.hidden:
            models["hidden"] = self.projection(client, models)
        client.fit(self.objective, models)
        return self.packed(client, models["meme"], brief)

    def projection(self, client: Participant, models: Models) -> nn.Linear:
        """W, which makes the meme's features as wide as the personal model's; random at first."""
        if "hidden" not in client.state:
            one = client.train.take([0])
            wide, narrow = (client.features(models[name], one).shape[1] for name in ("personal", "meme"))
            first = torch.randn(wide, narrow, generator=client.stream("hidden")) * narrow**-0.5
            client.state["hidden"] = {"weight": first}
        return client.linear("hidden")

    def packed(self, client: Participant, meme: nn.Module, brief: Message) -> Message:
        """What leaves: of a change M − G so many singular values as hold `energy` of it, where that is smaller."""
        whole, thin = thinned(client.shared(meme), brief.arrays("global"), client.numbers.energy)
        return Message(meme=weights(whole), **({"change": Part(Kind.FACTORS, thin)} if thin else {}))

    def unpacked(self, server: Server, client_id: str, reply: Message) -> Message:
        """The meme again."""
        whole, thin = (reply.arrays(name) if name in reply else {} for name in ("meme", "change"))
        return Message(meme=weights(restored(whole, thin, self.global_for(server, client_id))))

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """Put together it must be the global's in names, shapes and types, and finite."""
        super().check(server, client_id, self.unpacked(server, client_id, reply))

    def outliers(self, server: Server, replies: Mapping[str, Message]) -> dict[str, str]:
        """As every hub method, of memes put together."""
        return super().outliers(server, {c: self.unpacked(server, c, r) for c, r in replies.items()})

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """As every hub method, of memes put together."""
        super().merge(server, {c: self.unpacked(server, c, reply) for c, reply in replies.items()})
