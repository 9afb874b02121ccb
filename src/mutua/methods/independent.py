"""Training without a federation: each client alone, or all data in one place."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from mutua.federation import Federation
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.message import Message
from mutua.methods.base import Method, register
from mutua.participant import Participant


@register
class Independent(Method):
    """Each client trains its personal model alone. Nothing leaves."""

    name: ClassVar[str] = "independent"

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """Cross-entropy on own data."""
        return {"personal": batch.task.loss(models["personal"](batch.x), batch.y)}

    def start(self, client: Participant) -> None:
        """A personal model of the client's own seed, as FML's."""
        client.initialise("personal")

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Fit, send nothing."""
        client.fit(self.objective, {"personal": client.model("personal")})
        return None

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The personal model."""
        return client.model("personal")


@register
class Centralised(Independent):
    """All data pooled in one place, as no federation allows: the ceiling to compare with."""

    name: ClassVar[str] = "centralised"

    def arrange(self, federation: Federation) -> Federation:
        """One client that holds everybody's data."""
        return federation.pooled()
