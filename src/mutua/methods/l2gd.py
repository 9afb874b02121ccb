"""L2GD: no global that all obey; clients' models are pulled towards their mean, a little at a time.

Hanzely and Richtárik 2020, "Federated learning of a mixture of global and local models" (Eq. 2, Algorithm 1).
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from mutua.federation.message import Message
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import Hub, register
from mutua.methods.participant import Participant
from mutua.seeds import public, torch_stream


@register
class L2GD(Hub):
    """Each client's model is pulled towards the mean of all, then trained on own data and sent."""

    name: ClassVar[str] = "l2gd"
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    same_models: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    theta: Annotated[Schedule, within(0, 1)] = 0.1
    coin: float | None = Field(None, gt=0, lt=1)
    init: Literal["own", "global"] = "own"

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """f_k of the client's own model x; the penalty (λ/2)‖x − x̄‖² is minimised by the pulls."""
        return {"personal": batch.task.loss(models["personal"](batch.x), batch.y)}

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Pull, then local steps; what leaves is the client's own model."""
        if "personal" not in client.state:
            client.initialise("personal", like=self.init)
        pulls, steps = self.tossed(client)
        x = self.pulled(client, brief, pulls)
        models = {"personal": x}
        with client.training(models) as trainer:
            loader = client.loader(client.opted_in, models)
            for batch in client.batches(loader) if self.coin is None else loader.steps(steps):
                trainer.step(self.objective, batch)
        return self.reply(client, x)

    def pulled(self, client: Participant, brief: Message | None, pulls: int = 1) -> nn.Module:
        """x ← (1−θ)x + θx̄, running statistics included.

        Pulls do not move the mean x̄, so m of them in a row are one with 1−(1−θ)^m.
        """
        theta = 1 - (1 - client.numbers.theta) ** pulls
        mean, x = client.fork(brief).state_dict(), client.model("personal")
        for name, own in x.state_dict().items():
            if own.is_floating_point():
                own.copy_(torch.lerp(own, mean[name], theta))
        return x

    def tossed(self, client: Participant) -> tuple[int, int]:
        """How many pulls, then how many local steps, until the coin asks for the next exchange: a public draw."""
        if self.coin is None:
            return 1, 0
        stream = torch_stream(public(client.plan.seed), "l2gd", client.round)
        first, second = torch.rand(2, generator=stream, dtype=torch.float64).tolist()
        return _runs(self.coin, first), _runs(1 - self.coin, second)

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The pulled model; before its first training, as for a newcomer, the mean or what was tuned of it."""
        return self.pulled(client, brief) if "personal" in client.state else super().predictor(client, brief)


def _runs(again: float, uniform: float) -> int:
    """How often in a row a coin falls that falls so again with this probability: 1, 2, ..."""
    return 1 + math.floor(math.log1p(-uniform) / math.log(again))
