"""FedGKT: clients train small models, the server a large one on their features, and both teach each other.

He, Annavaram, Avestimehr 2020, "Group knowledge transfer: federated learning of large CNNs at the edge"
(Algorithm 1). Features and labels of all training samples leave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from mutua.data.model_input import ModelInput
from mutua.data.samples import Samples
from mutua.errors import InputError, Refused
from mutua.federation.federation import Federation
from mutua.federation.message import Kind, Message, Part, Shares, weights
from mutua.federation.model_checks import common_features
from mutua.federation.module_pool import weights_of
from mutua.federation.plan import Plan
from mutua.learning.evaluation import outputs
from mutua.learning.optimizers import Adam, Optimizer
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import Method, register
from mutua.methods.checks import check_features, check_rows
from mutua.methods.participant import Participant
from mutua.methods.server import Server
from mutua.models.composite import Stacked

MODEL, MEMORY, SAID = "server", "server.optimizer", "said "
"""Groups of the server's state: its model, its optimizer's memory, and what it said of a client's samples."""


@register
class FedGKT(Method):
    """Small models on clients, a large one on the server that trains on their features; they teach each other."""

    name: ClassVar[str] = "fedgkt"
    own_models: ClassVar[bool] = True
    needs_features: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    server_does: ClassVar[str] = "trains a model on features"
    labels_leave: bool = False
    alpha: Annotated[Schedule, within(0, 1e6)] = 1.0
    temperature: Annotated[float, Field(ge=1e-3, le=1e3)] = 3.0
    server_epochs: int = Field(1, ge=0)
    server_optimizer: Optimizer = Field(default_factory=lambda: Adam(name="amsgrad"))
    serve: Literal["edge", "joint"] = "edge"

    @property
    def shares(self) -> Shares:
        """Of every training sample its features, its scores and its label."""
        return {"features": Kind.FEATURES, "scores": Kind.SCORES, "labels": Kind.LABELS}

    @property
    def needs_classes(self) -> str:
        """What it sends of every sample."""
        return "sends a class for each sample"

    def arrange(self, federation: Federation) -> Federation:
        """The server needs a model, all clients one list of classes, and their owners must agree."""
        federation = super().arrange(federation)
        if federation.global_model is None or federation.partial:
            raise InputError(
                "models.global: fedgkt's server trains a whole model on features; name one, such as mlp"
            )
        if len({client.task.classes for client in federation.clients}) > 1:
            raise InputError(
                "clients have different classes, but fedgkt sends labels, so it needs one list for all"
            )
        width, classes = common_features(federation, self.name), len(federation.clients[0].task.classes)
        federation.global_model.build(channels=width, size=1, classes=classes, seed=0)  # it must take features
        if not self.labels_leave:
            raise InputError(
                "method.labels_leave: false, but fedgkt sends features, scores and the label of every training "
                "sample; set it to true if their owners agree"
            )
        return federation

    def reply_bytes(self, federation: Federation, plan: Plan) -> int:
        """The most samples that a client has, each with features, scores and a label."""
        n, width = max(len(c.train) for c in federation.clients), common_features(federation, self.name)
        rows = {"features": torch.empty(n, width), "scores": torch.empty(n, len(federation.classes))}
        rows["labels"] = torch.empty(n, dtype=torch.long)
        return Message(**{name: Part(kind, {"": rows[name]}) for name, kind in self.shares.items()}).nbytes

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """ℓ_c: CE + α·KL(server ‖ edge) at temperature T, row by row of what the server said."""
        scores = models["personal"](batch.x)
        loss = batch.task.loss(scores, batch.y)
        if hp.alpha and hp.said is not None:
            loss = loss + hp.alpha * batch.task.divergence(hp.said[batch.index], scores, hp.temperature)
        return {"personal": loss}

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
        rows = {
            "features": client.features(model, samples),
            "scores": outputs(model, samples, client.device),
            "labels": samples.y,
        }
        return Message(**{name: Part(kind, {"": rows[name]}) for name, kind in self.shares.items()})

    # On the server

    def brief(self, server: Server, round: int, client_id: str) -> Message | None:
        """What the server says of the client's samples, by their index; in the end, by option, its model too."""
        known = server.state.get(SAID + client_id)
        parts = {"said": Part(Kind.SCORES, known)} if known else {}
        if self.serve == "joint" and round > server.rounds and MODEL in server.state:
            parts["server"] = weights(server.state[MODEL])
        return Message(**parts) if parts else None

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """Finite rows, as many features as labels and scores, and labels that are classes."""
        features = check_features(reply, "features", server.width(client_id))
        check_rows(reply, "scores", Kind.SCORES, server.classes, len(features), "its features")
        labels = reply.arrays("labels")[""] if "labels" in reply else torch.empty(0)
        if len(labels) != len(features) or bool((labels >= server.classes).any()):
            raise Refused(f"its labels are not {len(features)} numbers below {server.classes}")

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """ℓ_s: CE + α·KL(edge ‖ server) on all features; then what it says of each sample, in evaluation mode."""
        x, edge, y = (torch.cat([r.arrays(name)[""] for r in replies.values()]) for name in self.shares)
        numbers = self.numbers(server.round, server.rounds)

        def learn(models: Models, batch: Batch, hp: Numbers) -> Terms:
            scores = models[MODEL](batch.x)
            taught = batch.task.divergence(edge[batch.index], scores, self.temperature)
            return {MODEL: batch.task.loss(scores, batch.y) + numbers.alpha * taught}

        samples = Samples(x, y, tuple(map(str, range(server.classes))))
        model = server.build(server.state.get(MODEL), input=ModelInput.of(x.shape[1], 1))
        optimizer = self.server_optimizer
        server.fit(learn, {MODEL: model}, samples, optimizer=optimizer, epochs=self.server_epochs, memory=MEMORY)
        server.state[MODEL] = weights_of(model)
        said = server.outputs(model, samples).split([len(r.arrays("labels")[""]) for r in replies.values()])
        server.state |= {SAID + client: {"": rows} for client, rows in zip(replies, said, strict=True)}

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The edge model; by option, in the end, the server's model on its features."""
        edge = client.model("personal")
        if brief is None or "server" not in brief:
            return edge
        return client.composite(Stacked(), edge=edge, server=client.on_features(edge, brief.arrays("server")))
