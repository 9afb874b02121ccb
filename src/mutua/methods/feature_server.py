"""A server with a model of its own, which it trains on what clients' models make of their samples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mutua.data.model_input import ModelInput
from mutua.data.samples import Samples
from mutua.federation.federation import Federation
from mutua.federation.message import Kind, Message, Part, Shares, weights
from mutua.federation.model_checks import common_features
from mutua.federation.module_pool import weights_of
from mutua.federation.plan import Plan
from mutua.learning.optimizers import Adam, Optimizer
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import Method
from mutua.methods.checks import check_features, check_labels, check_rows
from mutua.methods.server import Server

MODEL, MEMORY, SAID = "server", "server.optimizer", "said "
"""Groups of the server's state: its model, its optimizer's memory, and what it said of a client's samples."""


class FeatureServer(Method):
    """Clients send features, scores and labels; the server's model learns of them and answers with its scores."""

    own_models: ClassVar[bool] = True
    needs_features: ClassVar[bool] = True
    server_does: ClassVar[str] = "trains a model on features"
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

    @abstractmethod
    def on_features(self, scores: Tensor, edge: Tensor, batch: Batch, hp: Numbers) -> Tensor:
        """What the server minimises over its scores of a batch of features; `edge` are the clients' scores."""

    def reply_bytes(self, federation: Federation, plan: Plan) -> int:
        """The most samples that a client has, each with features, scores and a label."""
        n, width = max(len(c.train) for c in federation.clients), common_features(federation, self.name)
        scores, y = torch.empty(n, len(federation.classes)), torch.empty(n, dtype=torch.long)
        return self.rows(torch.empty(n, width), scores, y).nbytes

    def rows(self, z: Tensor, scores: Tensor, y: Tensor) -> Message:
        """What leaves: of each sample a row of each."""
        parts = zip(self.shares.items(), (z, scores, y), strict=True)
        return Message(**{name: Part(kind, {"": rows}) for (name, kind), rows in parts})

    def brief(self, server: Server, round: int, client_id: str) -> Message | None:
        """What the server says of the client's samples, by their index; in the end, by option, its model too."""
        known = server.state.get(SAID + client_id)
        parts = {"said": Part(Kind.SCORES, known)} if known else {}
        if self.serve == "joint" and round > server.rounds and MODEL in server.state:
            parts["server"] = weights(server.state[MODEL])
        return Message(**parts) if parts else None

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """Finite rows, as many features as labels and scores, and labels that are classes."""
        rows = len(check_features(reply, "features", server.width(client_id)))
        check_rows(reply, "scores", Kind.SCORES, server.classes, rows, "its features")
        check_labels(reply, "labels", server.classes, rows)

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """Train on all features; then say of each sample what the model does, in evaluation mode."""
        x, edge, y = (torch.cat([r.arrays(name)[""] for r in replies.values()]) for name in self.shares)
        numbers = self.numbers(server.round, server.rounds)

        def learn(models: Models, batch: Batch, hp: Numbers) -> Terms:
            return {MODEL: self.on_features(models[MODEL](batch.x), edge[batch.index], batch, numbers)}

        samples = Samples(x, y, tuple(map(str, range(server.classes))))
        model = server.build(server.state.get(MODEL), input=ModelInput.of(x.shape[1], 1))
        optimizer = self.server_optimizer
        server.fit(learn, {MODEL: model}, samples, optimizer=optimizer, epochs=self.server_epochs, memory=MEMORY)
        server.state[MODEL] = weights_of(model)
        said = server.outputs(model, samples).split([len(r.arrays("labels")[""]) for r in replies.values()])
        server.state |= {SAID + client: {"": rows} for client, rows in zip(replies, said, strict=True)}
