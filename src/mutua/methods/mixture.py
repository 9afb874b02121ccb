"""A mixture of a global and a local expert, with data that is opted out of the federation.

"Federated learning using a mixture of experts" (2021), Eqs. (3) to (6) and Algorithm 1.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from mutua.federation.message import Message
from mutua.learning.early_stopping import EarlyStopping
from mutua.methods.base import register, supervised
from mutua.methods.fedavg import FedAvg
from mutua.methods.participant import Participant
from mutua.models import Architecture


class Mixture(nn.Module):
    """log(h·p_l + (1−h)·p_g): a gate h(x) weighs the local expert against the global one."""

    def __init__(
        self, expert: nn.Module, personal: nn.Module, gate: nn.Module, mix: str, frozen: bool = False
    ) -> None:
        super().__init__()
        self.expert, self.personal, self.gate, self.mix, self.frozen = expert, personal, gate, mix, frozen

    def train(self, mode: bool = True) -> Mixture:
        """Frozen experts stay in evaluation mode: their running statistics would change too."""
        super().train(mode)
        for expert in (self.expert, self.personal):
            expert.train(mode and not self.frozen)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities, which serve as logits too."""
        score = self.gate(x)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            local, shared = F.log_softmax(self.personal(x), 1), F.log_softmax(self.expert(x), 1)
        if self.mix == "log-probabilities":
            h = torch.sigmoid(score)
            return F.log_softmax(h * local + (1 - h) * shared, 1)
        return torch.logaddexp(F.logsigmoid(score) + local, F.logsigmoid(-score) + shared)


@register
class MixtureOfExperts(FedAvg):
    """FedAvg on opted-in data; then, alone, a local expert and a gate between the two, on all data."""

    name: ClassVar[str] = "mixture"
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    own_models: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    gate: Architecture | None = None
    mix: Literal["probabilities", "log-probabilities"] = "probabilities"
    freeze_experts: bool = False
    patience: int = Field(10, ge=1)
    mixture_epochs: int = Field(200, ge=1)

    @property
    def stops_early(self) -> bool:
        """Both stages after the last round do."""
        return True

    def stopping(self, watch: str) -> EarlyStopping:
        """By its own patience and epochs."""
        return EarlyStopping(watch, self.patience, self.mixture_epochs)

    def finish(self, client: Participant, brief: Message | None) -> None:
        """Stages 2 and 3: a local expert on all data, then both experts and the gate together."""
        client.initialise("personal")
        client.fit(supervised, {"personal": client.model("personal")}, until=self.stopping("personal"))
        client.state.pop("personal.optimizer", None)
        client.keep("expert", client.fork(brief))
        mixture = self._mixture(client)
        client.fit(supervised, {"mixture": mixture}, until=self.stopping("mixture"))
        for name in ("expert", "personal", "gate"):
            client.keep(name, getattr(mixture, name))

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The global before the end, then the mixture."""
        return self._mixture(client) if "gate" in client.state else super().predictor(client, brief)

    def made_of(self, client: Participant) -> dict[str, Any]:
        """Both experts, the gate and the way they are mixed."""
        if "gate" not in client.state:
            return super().made_of(client)
        shared = client.global_architecture
        parts = {"expert": shared, "personal": client.architecture, "gate": self.gate or shared}
        return {"name": self.name, "mix": self.mix} | {part: model.spec() for part, model in parts.items()}

    def _mixture(self, client: Participant) -> Mixture:
        gate = client.scorer("gate", self.gate or client.global_architecture)
        return Mixture(client.model("expert"), client.model("personal"), gate, self.mix, self.freeze_experts)
