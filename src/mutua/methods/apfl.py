"""APFL: each client mixes a model of its own with the global, and learns how much of each.

Deng, Kamani, Mahdavi 2020, "Adaptive personalized federated learning" (Algorithm 1, and its adaptive α).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from mutua.federation.message import Message
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import Hub, register
from mutua.methods.participant import Participant


@register
class APFL(Hub):
    """FedAvg; beside it a personal model that is mixed with the global, in a proportion that is learned too."""

    name: ClassVar[str] = "apfl"
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    same_models: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    alpha: float = Field(0.5, ge=0, le=1)
    adaptive: bool = True
    alpha_decay: float = Field(0.0, ge=0)
    init: Literal["own", "global"] = "own"

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """f(w) for the meme w; f(v̄) for the personal v, with v̄ = αv + (1−α)w of before the step."""
        v, w = models["personal"], models["meme"]
        shared = dict(w.named_parameters())
        mixed = {name: torch.lerp(shared[name].detach(), own, hp.alpha) for name, own in v.named_parameters()}
        return {
            "meme": batch.task.loss(w(batch.x), batch.y),
            "personal": batch.task.loss(functional_call(v, mixed, (batch.x,)), batch.y),
        }

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Both models take every step; α takes one, at the first batch. Only the meme leaves."""
        if "personal" not in client.state:
            client.initialise("personal", like=self.init)
            client.state["apfl.alpha"] = {"": torch.tensor(self.alpha)}
        models = {"personal": client.model("personal"), "meme": client.fork(brief)}
        alpha = client.state["apfl.alpha"][""].to(client.device, copy=True).requires_grad_(self.adaptive)
        with client.training(models) as trainer:
            trainer.numbers.alpha = alpha
            for batch in client.batches(client.loader(client.opted_in, models)):
                trainer.step(self.objective, batch)
                if alpha.grad is not None:
                    alpha = trainer.numbers.alpha = self.stepped(alpha, trainer.optimizers["personal"].lr)
        client.state["apfl.alpha"] = {"": alpha.detach().cpu()}
        return self.reply(client, models["meme"])

    def stepped(self, alpha: Tensor, lr: float) -> Tensor:
        """α − lr·⟨v − w, ∇f(v̄)⟩, which is ∂f(v̄)/∂α, kept in [0, 1]."""
        assert alpha.grad is not None
        return (alpha.detach() - lr * (alpha.grad + self.alpha_decay * alpha.detach())).clamp(0, 1)

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """αv + (1−α)G, running statistics included; before its first training, as for a newcomer, the global."""
        if "personal" not in client.state:
            return super().predictor(client, brief)
        alpha = float(client.state["apfl.alpha"][""])
        shared, mixed = client.fork(brief).state_dict(), client.model("personal")
        for name, own in mixed.state_dict().items():
            counted = own if alpha >= 0.5 else shared[name]
            own.copy_(torch.lerp(shared[name], own, alpha) if own.is_floating_point() else counted)
        return mixed
