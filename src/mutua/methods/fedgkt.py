"""FedGKT: clients train small models, the server a large one on their features, and both teach each other.

He, Annavaram, Avestimehr 2020, "Group knowledge transfer: federated learning of large CNNs at the edge"
(Algorithm 1). Features and labels of all training samples leave.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor, nn

from mutua.errors import InputError
from mutua.federation.federation import Federation
from mutua.federation.message import Message
from mutua.federation.model_checks import common_features, one_list_of_classes
from mutua.learning.evaluation import outputs
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import register
from mutua.methods.feature_server import FeatureServer
from mutua.methods.participant import Participant
from mutua.models.composite import Stacked


@register
class FedGKT(FeatureServer):
    """Small models on clients, a large one on the server that trains on their features; they teach each other."""

    name: ClassVar[str] = "fedgkt"
    different_data: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    labels_leave: bool = False
    alpha: Annotated[Schedule, within(0, 1e6)] = 1.0
    temperature: Annotated[float, Field(ge=1e-3, le=1e3)] = 3.0

    def arrange(self, federation: Federation) -> Federation:
        """The server needs a model, all clients one list of classes, and their owners must agree."""
        shared, federation = federation.global_model, super().arrange(federation)
        if shared is None or federation.partial:
            raise InputError(
                "models.global: fedgkt's server trains a whole model on features; name one, such as mlp"
            )
        one_list_of_classes(federation, "fedgkt sends labels, so it needs one list for all")
        width, classes = common_features(federation, self.name), len(federation.clients[0].task.classes)
        shared.build(channels=width, size=1, classes=classes, seed=0)  # it must take features
        if not self.labels_leave:
            raise InputError(
                "method.labels_leave: false, but fedgkt sends features, scores and the label of every training "
                "sample; set it to true if their owners agree"
            )
        return federation

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """ℓ_c: CE + α·KL(server ‖ edge) at temperature T, row by row of what the server said."""
        scores = models["personal"](batch.x)
        loss = batch.task.loss(scores, batch.y)
        if hp.alpha and hp.said is not None:
            loss = loss + hp.alpha * batch.task.divergence(hp.said[batch.index], scores, hp.temperature)
        return {"personal": loss}

    def on_features(self, scores: Tensor, edge: Tensor, batch: Batch, hp: Numbers) -> Tensor:
        """ℓ_s: CE + α·KL(edge ‖ server) at temperature T."""
        taught: Tensor = hp.alpha * batch.task.divergence(edge, scores, hp.temperature)
        return batch.task.loss(scores, batch.y) + taught

    def start(self, client: Participant) -> None:
        """A model of the client's own."""
        client.initialise("personal")

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Fit; then of each sample the features, the scores and the label, by the trained model."""
        model, samples = client.model("personal"), client.opted_in if client.takes_part else client.train
        said = None if brief is None or "said" not in brief else brief.arrays("said")[""]
        client.fit(self.objective, {"personal": model}, samples=samples, given={"said": said})
        if not client.takes_part:
            return None
        return self.rows(client.features(model, samples), outputs(model, samples, client.device), samples.y)

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The edge model; by option, in the end, the server's model on its features."""
        edge = client.model("personal")
        if brief is None or "server" not in brief:
            return edge
        return client.composite(Stacked(), edge=edge, server=client.on_features(edge, brief.arrays("server")))
