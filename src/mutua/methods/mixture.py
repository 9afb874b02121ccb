"""A mixture of a global and a local expert, with data that is opted out of the federation.

"Federated learning using a mixture of experts" (2021), Eqs. (3) to (6) and Algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from mutua.federation.message import Message
from mutua.learning.early_stopping import EarlyStopping
from mutua.methods.base import register, supervised
from mutua.methods.fedavg import FedAvg
from mutua.methods.participant import Participant
from mutua.models import Architecture
from mutua.models.composite import Composite, Gate


@register
class MixtureOfExperts(FedAvg):
    """FedAvg on opted-in data; then, alone, a local expert and a gate between the two, on all data."""

    name: ClassVar[str] = "mixture"
    any_task: ClassVar[bool] = True
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
    def needs_classes(self) -> str:
        """What the gate weighs."""
        return "mixes two experts' class probabilities"

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

    def _mixture(self, client: Participant) -> Composite:
        gate = client.scorer("gate", self.gate or client.global_architecture)
        experts = {"expert": client.model("expert"), "personal": client.model("personal")}
        return client.composite(
            Gate(self.mix), **experts, gate=gate, frozen=experts if self.freeze_experts else ()
        )
