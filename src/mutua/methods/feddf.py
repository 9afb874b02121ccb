"""FedDF: the server distils what all clients' models say of public data into the next global.

Lin et al. 2020, "Ensemble distillation for robust model fusion in federated learning" (Algorithm 1; Algorithm 3
for clients of several designs: a student each, taught by all).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import nn

from mutua.federation.federation import Federation
from mutua.federation.message import Message
from mutua.federation.model_checks import whole_global
from mutua.federation.module_pool import weights_of
from mutua.learning.optimizers import Adam, Optimizer
from mutua.learning.schedules import Cosine
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import register
from mutua.methods.fedavg import Averaging
from mutua.methods.participant import Participant
from mutua.methods.server import Server
from mutua.support.tensor_files import Tensors


@register
class FedDF(Averaging):
    """FedAvg's clients, a global for each of their designs; the server distils all memes into each."""

    name: ClassVar[str] = "feddf"
    own_classes: ClassVar[bool] = False
    honours_opt_out: ClassVar[bool] = True
    any_task: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    own_models: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    needs_public: ClassVar[bool] = True
    server_does: ClassVar[str] = "merges weights and distils"
    distil_steps: int = Field(500, ge=0)
    distil_batch: int = Field(128, ge=1)
    distil_optimizer: Optimizer = Field(default_factory=lambda: Adam(lr=Cosine(start=0.001, end=0.0)))
    temperature: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0

    @property
    def averages(self) -> bool:
        """Every meme is a teacher, so the global shows more than their sum."""
        return not self.distil_steps and super().averages

    def arrange(self, federation: Federation) -> Federation:
        """Models are whole: the server asks every meme what it says of public data."""
        whole_global(federation, "feddf merges whole models")
        return super().arrange(federation)

    def open(self, server: Server) -> None:
        """A first global of every design that clients have declared."""
        super().open(server)
        for client in server.clients:
            group = self.group(server, client)
            if group not in server.state:
                server.state[group] = dict(server.build(client=client).state_dict())

    def group(self, server: Server, client: str) -> str:
        """Where the global of this client's design is: named by the first client that has it."""
        assert server.model is not None
        mine = server.models[client]
        if mine.same_design(server.model):
            return "global"
        return "global of " + next(other for other in server.clients if server.models[other].same_design(mine))

    def global_for(self, server: Server, client_id: str) -> Tensors:
        """The global of its design."""
        return server.state[self.group(server, client_id)]

    def models(self, client: Participant, brief: Message | None) -> dict[str, nn.Module]:
        """A meme of the client's own design."""
        return {"meme": client.fork(brief, like="own")}

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """By design the mean of its memes; then Eq. (1): every student learns what all memes say together."""
        memes = {client: reply.arrays("meme") for client, reply in replies.items()}
        counts = server.weights = dict(zip(replies, self.merge_weights(replies), strict=True))
        groups = {client: self.group(server, client) for client in server.clients}
        for group in dict.fromkeys(groups[client] for client in replies):
            mine = [client for client in replies if groups[client] == group]
            given = [memes[c] for c in mine], [counts[c] for c in mine]
            server.state[group] = self.combine(*given, server.state[group])
        if not self.distil_steps:
            return
        assert server.public is not None
        optimizer, steps, size = self.distil_optimizer, self.distil_steps, self.distil_batch
        samples = server.public.whole.in_memory()
        teachers = [server.build(memes[client], client) for client in memes]
        said = torch.stack([server.outputs(teacher, samples) for teacher in teachers]).mean(0)

        def distil(models: Models, batch: Batch, hp: Numbers) -> Terms:
            scores = models["student"](batch.x)
            return {"student": batch.task.divergence(said[batch.index], scores, self.temperature)}

        for group in [name for name in server.state if name.startswith("global")]:
            client = next((client for client, its in groups.items() if its == group), None)
            student = server.build(server.state[group], client)
            server.fit(distil, {"student": student}, samples, optimizer=optimizer, steps=steps, batch_size=size)
            server.state[group] = weights_of(student)

    def evaluated(self, client: Participant, brief: Message | None) -> Mapping[str, nn.Module]:
        """The global of the client's design."""
        return {"global": client.fork(brief, like="own")} if brief is not None else {}

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The same; a newcomer has the global of `models.global`, or what it tuned of it."""
        return client.model("tuned") if "tuned" in client.state else client.fork(brief, like="own")

    def made_of(self, client: Participant) -> dict[str, Any]:
        """The client's own design."""
        return client.architecture.spec()
