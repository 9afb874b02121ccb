"""Training without a federation: each client alone, or all data in one place."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from mutua.data.samples import together
from mutua.errors import InputError
from mutua.federation import Federation
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.message import Message
from mutua.methods.base import Method, register
from mutua.participant import Participant


@register
class Independent(Method):
    """Each client trains its personal model alone. Nothing leaves."""

    name: ClassVar[str] = "independent"
    honours_opt_out: ClassVar[bool] = True

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
    honours_opt_out: ClassVar[bool] = False

    def arrange(self, federation: Federation) -> Federation:
        """One client that holds everybody's data."""
        return super().arrange(federation).pooled()


@register
class Aggregated(Independent):
    """Each client trains alone on its own data and the whole public set. Nothing leaves."""

    name: ClassVar[str] = "aggregated"
    needs_public: ClassVar[bool] = True

    def arrange(self, federation: Federation) -> Federation:
        """Labels are what it learns from the public set."""
        federation = super().arrange(federation)
        if federation.public is not None and not federation.public.labelled:
            raise InputError("public.labelled: false, but aggregated learns from the public set's labels")
        return federation

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Fit on private and public samples together, send nothing."""
        both = together([client.client.train, client.public.whole])
        client.fit(self.objective, {"personal": client.model("personal")}, samples=both)
        return None
