"""Training without a federation: each client alone, or all data in one place."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import nn

from mutua.data.samples import Samples, concatenate
from mutua.federation.federation import Federation
from mutua.federation.message import Message
from mutua.learning.early_stopping import EarlyStopping
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import Method, register
from mutua.methods.participant import Participant


@register
class Independent(Method):
    """Each client trains its personal model alone. Nothing leaves."""

    name: ClassVar[str] = "independent"
    any_task: ClassVar[bool] = True
    own_models: ClassVar[bool] = True
    own_classes: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    patience: int | None = Field(None, ge=1)
    """With it a client trains once, until validation says stop, instead of rounds × epochs."""
    most_epochs: int = Field(200, ge=1)
    drawn_only: bool = False
    """Train only in rounds for which the client is drawn (`client_fraction`), as FML with α = 1 does."""

    @property
    def works_alone(self) -> bool:
        """Unless with `drawn_only`."""
        return not self.drawn_only

    @property
    def stops_early(self) -> bool:
        """With `patience`."""
        return self.patience is not None

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """Cross-entropy on own data."""
        return {"personal": batch.task.loss(models["personal"](batch.x), batch.y)}

    def start(self, client: Participant) -> None:
        """A personal model of the client's own seed, as FML's."""
        client.initialise("personal")

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Fit, send nothing."""
        if self.patience is None:
            client.fit(self.objective, {"personal": client.model("personal")}, samples=self.samples(client))
        return None

    def samples(self, client: Participant) -> Samples:
        """What it learns from."""
        return client.train

    def finish(self, client: Participant, brief: Message | None) -> None:
        """With `patience`, all of the training."""
        if self.patience is not None:
            until = EarlyStopping("personal", self.patience, self.most_epochs)
            model = client.model("personal")
            client.fit(self.objective, {"personal": model}, samples=self.samples(client), until=until)

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The personal model."""
        return client.model("personal")


@register
class AloneAgain(Independent):
    """Each client alone once more, with other first weights and batches: how much chance alone changes."""

    name: ClassVar[str] = "alone-again"
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True

    def start(self, client: Participant) -> None:
        """Other first weights, by the client's own seed too."""
        client.initialise("again")
        client.keep("personal", client.model("again"))
        client.state = {"personal": client.state["personal"]}

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """The same training in another order, with other dropout."""
        model, samples = {"personal": client.model("personal")}, self.samples(client)
        if self.patience is None:
            client.fit(self.objective, model, samples=samples, purpose="again")
        return None


@register
class Centralised(Independent):
    """All data pooled in one place, which no federation allows: the upper bound to compare with."""

    name: ClassVar[str] = "centralised"
    any_task: ClassVar[bool] = True
    own_models: ClassVar[bool] = False
    honours_opt_out: ClassVar[bool] = False
    pools_data: ClassVar[bool] = True

    def arrange(self, federation: Federation) -> Federation:
        """One client that holds everybody's data."""
        return super().arrange(federation).pooled()


@register
class Aggregated(Independent):
    """Each client trains alone on its own data and the whole public set. Nothing leaves."""

    name: ClassVar[str] = "aggregated"
    own_classes: ClassVar[bool] = False
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    needs_public: ClassVar[bool] = True

    @property
    def needs_labels(self) -> str:
        """Clients train on it."""
        return "trains on it"

    def samples(self, client: Participant) -> Samples:
        """Private and public samples together."""
        return concatenate([client.train, client.public.whole])
