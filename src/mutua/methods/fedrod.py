"""FedRoD: one body, two heads: a generic one, trained as if classes were equally frequent, and a private one.

Chen and Chao 2022, "On bridging generic and personalized federated learning for image classification" (balanced
softmax, the two predictors and the algorithm, with a linear private head).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import nn

from mutua.federation.federation import Federation
from mutua.federation.message import Message
from mutua.federation.model_checks import global_features, whole_global
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import register
from mutua.methods.fedavg import Averaging
from mutua.methods.participant import Participant
from mutua.models import features
from mutua.models.composite import TwoHeads

_HEAD = "own_head"


@register
class FedRoD(Averaging):
    """FedAvg with a loss that evens out class counts; on its features each client has a second head of its own."""

    name: ClassVar[str] = "fedrod"
    own_classes: ClassVar[bool] = False
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = False
    different_data: ClassVar[bool] = True
    gamma: Annotated[Schedule, within(0, 100)] = 1.0

    @property
    def needs_classes(self) -> str:
        """Counts are of classes."""
        return "evens out how frequent classes are"

    def arrange(self, federation: Federation) -> Federation:
        """The generic head is everybody's, so the global must be whole; and it must have features."""
        whole_global(federation, "fedrod shares its generic head")
        global_features(federation, self.name)
        return super().arrange(federation)

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """CE(G(x) + γ·log n_c, y), where a class without samples is ruled out; CE(sg(G(x)) + h_P(sg(z)), y)."""
        z, scores = features(models["meme"], batch.x)
        prior = torch.xlogy(hp.gamma, hp.counts).to(scores.dtype)  # 0 for γ = 0, also where there is no sample
        return {
            "meme": batch.task.loss(scores + prior, batch.y),
            _HEAD: batch.task.loss(scores.detach() + models[_HEAD](z.detach()), batch.y),
        }

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Both heads go through the same batches; h_P and the counts stay."""
        if not client.takes_part:
            return None
        meme = client.fork(brief)
        models = {"meme": meme, _HEAD: self.own_head(client, meme)}
        counts = torch.from_numpy(client.opted_in.counts()).double()
        client.fit(self.objective, models, samples=client.opted_in, given={"counts": counts})
        return self.reply(client, meme)

    def own_head(self, client: Participant, meme: nn.Module) -> nn.Linear:
        """h_P, linear on the features; all zero at first, so that a client begins with the generic model."""
        if _HEAD not in client.state:
            width, classes = client.features(meme, client.train.take([0])).shape[1], len(client.task.classes)
            client.state[_HEAD] = {"weight": torch.zeros(classes, width), "bias": torch.zeros(classes)}
        return client.linear(_HEAD)

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """G(x) + h_P(z); before the first training, as for a newcomer, the global or what was tuned of it."""
        if _HEAD not in client.state:
            return super().predictor(client, brief)
        client.keep("generic", client.fork(brief))  # apart from the global, which is judged beside it
        return client.composite(TwoHeads(**client.state[_HEAD]), model=client.model("generic"))
