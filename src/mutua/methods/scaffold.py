"""SCAFFOLD: every local step is corrected by how the client's gradients differ from everybody's.

Karimireddy et al. 2020, "SCAFFOLD: stochastic controlled averaging for federated learning" (Eqs. 3 to 5,
Algorithm 1, option II for the controls).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import nn

from mutua.errors import InputError, Refused
from mutua.federation.client import build
from mutua.federation.federation import Federation
from mutua.federation.message import Kind, Message, Part, Shares, weights
from mutua.federation.plan import Plan
from mutua.learning import merging
from mutua.learning.displacement import flat
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import Hub, register
from mutua.methods.participant import Participant
from mutua.methods.server import Server
from mutua.support.tensor_files import Tensors

_CONTROL = "control"
"""The group of a client's store with c_k, and of the server's with c."""


@register
class Scaffold(Hub):
    """FedAvg whose local steps go along g − c_k + c: controls say where a client's gradients point, and all."""

    name: ClassVar[str] = "scaffold"
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    server_does: ClassVar[str] = "merges weights and controls"
    strength: Annotated[Schedule, within(0, 10)] = 1.0
    server_lr: float = Field(1.0, gt=0, le=10)

    @property
    def shares(self) -> Shares:
        """The meme, and how the client's control has changed."""
        return {**super().shares, "control": Kind.CONTROL}

    def arrange(self, federation: Federation) -> Federation:
        """Every parameter has a control, so the global must be whole."""
        if federation.partial:
            raise InputError("models.global.share: a part, but scaffold corrects whole models; share 'all'")
        return super().arrange(federation)

    def reply_bytes(self, federation: Federation, plan: Plan) -> int:
        """A meme, and an array as large for each of its parameters."""
        assert federation.global_model is not None
        module = build(federation.global_model, federation.clients[0], plan.seed)
        control = Part(Kind.CONTROL, _parameters(module))
        return Message(meme=weights(module.state_dict()), control=control).nbytes

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """f_k, whose gradient is g: cross-entropy."""
        return {"meme": batch.task.loss(models["meme"](batch.x), batch.y)}

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Eq. (3): y ← y − η(g − c_k + c). Eq. (4), option II: c_k ← c_k − c + (x − y)/(Kη) = the mean of the g.

        The mean is taken as such: it is the same for plain SGD, and has a meaning with momentum and Adam too.
        """
        assert brief is not None
        meme, c = client.fork(brief), brief.arrays("control")
        names, own = list(_parameters(meme)), client.state.get(_CONTROL) or _zeros(c)
        models, steps = {"meme": meme}, 0
        correction = flat([c[name] - own[name] for name in names]).to(client.device)
        total = torch.zeros_like(correction)
        with client.training(models) as trainer:
            for batch in client.batches(client.loader(client.opted_in, models)):
                g = trainer.gradient(self.objective(models, batch, trainer.numbers))
                trainer.apply(g + trainer.numbers.strength * correction)
                total, steps = total + g, steps + 1
        mean = (total / steps).cpu().split([c[name].numel() for name in names])
        change = {name: g.view_as(c[name]) - own[name] for name, g in zip(names, mean, strict=True)}
        client.state[_CONTROL] = {name: own[name] + change[name] for name in names}
        return Message(**self.reply(client, meme), control=Part(Kind.CONTROL, change))

    def open(self, server: Server) -> None:
        """Controls begin at 0."""
        super().open(server)
        server.state[_CONTROL] = _zeros(_parameters(server.build()))

    def brief(self, server: Server, round: int, client_id: str) -> Message | None:
        """G and c; after the last round G alone."""
        shared = super().brief(server, round, client_id)
        if shared is None or round > server.rounds:
            return shared
        return Message(**shared, control=Part(Kind.CONTROL, server.state[_CONTROL]))

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """Besides the meme, a finite change of the control."""
        super().check(server, client_id, reply)
        if "control" not in reply:
            raise Refused("it holds no control 'control'")
        merging.check_weights(reply.arrays("control"), server.state[_CONTROL])

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """Eq. (5): x ← x + η_g·mean(y_k − x), c ← c + (|S|/N)·mean(Δc_k): who is not drawn keeps its control."""
        before, c = server.state["global"], server.state[_CONTROL]
        super().merge(server, replies)
        server.state["global"] = {
            name: torch.lerp(before[name], merged, self.server_lr) if merged.is_floating_point() else merged
            for name, merged in server.state["global"].items()
        }
        changes = [reply.arrays("control") for reply in replies.values()]
        change, share = self.combine(changes, [1.0] * len(changes), _zeros(c)), len(replies) / len(server.clients)
        server.state[_CONTROL] = {name: array + share * change[name] for name, array in c.items()}


def _parameters(model: nn.Module) -> Tensors:
    """What learns of a model."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def _zeros(arrays: Tensors) -> Tensors:
    return {name: torch.zeros_like(array) for name, array in arrays.items()}
