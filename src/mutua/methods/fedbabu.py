"""FedBABU: in the rounds only the body learns, under a head that stays as it began; then each client tunes.

Oh, Kim, Yun 2022, "FedBABU: toward enhanced representation for federated image classification" (Algorithm 1).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from mutua.federation.client import build
from mutua.federation.federation import Federation
from mutua.federation.message import Message
from mutua.federation.model_checks import global_features, whole_global
from mutua.methods.base import register, supervised
from mutua.methods.fedavg import Averaging
from mutua.methods.participant import Participant
from mutua.models import shared_names


@register
class FedBABU(Averaging):
    """FedAvg of a body under one head that nobody trains; after the last round each client tunes the whole."""

    name: ClassVar[str] = "fedbabu"
    own_classes: ClassVar[bool] = False
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    tune: Literal["all", "body", "head"] = "all"
    tune_epochs: int = Field(5, ge=0)

    @property
    def made_at_end(self) -> bool:
        """If it is tuned."""
        return self.tune_epochs > 0

    def arrange(self, federation: Federation) -> Federation:
        """The head is the same for all, so the global must be whole; and it must have a head."""
        whole_global(federation, "fedbabu trains bodies under one head for all")
        if global_features(federation, self.name) and federation.global_model is not None:
            module = build(federation.global_model, federation.clients[0], 0)
            shared_names(module, "body", "models.global: fedbabu trains bodies, and it has")
        return super().arrange(federation)

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """The body's steps; the head goes back as it came."""
        if not client.takes_part:
            return None
        models = self.models(client, brief)
        client.fit(self.objective, models, samples=client.opted_in, only="body")
        return self.reply(client, models["meme"])

    def finish(self, client: Participant, brief: Message | None) -> None:
        """Tune the last global on all own data."""
        client.keep("tuned", client.fork(brief))
        client.fit(
            supervised, {"tuned": client.model("tuned")}, epochs=self.tune_epochs, only=self.tune, purpose="tune"
        )
        client.state.pop("tuned.optimizer", None)
