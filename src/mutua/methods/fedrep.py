"""FedRep: clients learn a common representation, each with a head of its own that is fitted to it first.

Collins et al. 2021, "Exploiting shared representations for personalized federated learning" (Algorithm 1). As in
the authors' code: several epochs of the head for one of the body, and after the last round the head once more.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from mutua.errors import InputError
from mutua.federation.federation import Federation
from mutua.federation.message import Message
from mutua.methods.base import register
from mutua.methods.fedper import FedPer
from mutua.methods.participant import Participant


@register
class FedRep(FedPer):
    """In each round the own head is trained, then the body with the head frozen; bodies are merged."""

    name: ClassVar[str] = "fedrep"
    honours_opt_out: ClassVar[bool] = True
    any_task: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = False
    weights: Literal["samples", "uniform"] = "uniform"
    head_epochs: int = Field(10, ge=0)
    body_epochs: int = Field(1, ge=0)

    def arrange(self, federation: Federation) -> Federation:
        """What is shared is the body: nothing else is trained apart from the head."""
        federation = super().arrange(federation)
        shared = federation.global_model
        if shared is not None and shared.share != "body":
            raise InputError(f"models.global.share: {shared.share}; {self.name} shares the body, so leave it out")
        return federation

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """h ← head_epochs of gradient steps on f(φ, h), then φ ← body_epochs of them; φ leaves."""
        if not client.takes_part:
            return None
        models, samples = self.models(client, brief), client.opted_in
        client.fit(self.objective, models, samples=samples, epochs=self.head_epochs, only="head", purpose="head")
        client.fit(self.objective, models, samples=samples, epochs=self.body_epochs, only="body", purpose="body")
        self.trained(client, models["meme"])
        return self.reply(client, models["meme"])

    def finish(self, client: Participant, brief: Message | None) -> None:
        """The head is fitted to the last body, on all own data."""
        client.fit(
            self.objective, self.models(client, brief), epochs=self.head_epochs, only="head", purpose="head"
        )
