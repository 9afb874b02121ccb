"""SCAFFOLD: every local step is corrected by how the client's gradients differ from everybody's.

Karimireddy et al. 2020, "SCAFFOLD: stochastic controlled averaging for federated learning" (Eqs. 3 to 5,
Algorithm 1, option II for the controls).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from mutua.federation.client import build
from mutua.federation.federation import Federation
from mutua.federation.message import Kind, Message, Part, Shares
from mutua.federation.model_checks import whole_global
from mutua.federation.plan import Plan
from mutua.learning.displacement import flat
from mutua.learning.schedules import Schedule, within
from mutua.methods.base import register
from mutua.methods.checks import check_arrays_like
from mutua.methods.fedavg import Averaging
from mutua.methods.participant import Participant
from mutua.methods.server import Server
from mutua.support.tensor_files import Tensors


@register
class Scaffold(Averaging):
    """FedAvg whose local steps go along g − c_k + c: controls say where a client's gradients point, and all."""

    name: ClassVar[str] = "scaffold"
    own_classes: ClassVar[bool] = False
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = False
    different_data: ClassVar[bool] = True
    server_does: ClassVar[str] = "merges weights and controls"
    weights: Literal["samples", "uniform"] = "uniform"
    strength: Annotated[Schedule, within(0, 10)] = 1.0
    server_lr: float = Field(1.0, gt=0, le=10)

    @property
    def shares(self) -> Shares:
        """The meme, and how the client's control has changed."""
        return {**super().shares, "control": Kind.CONTROL}

    def arrange(self, federation: Federation) -> Federation:
        """Every parameter has a control, so the global must be whole."""
        whole_global(federation, "scaffold corrects whole models")
        return super().arrange(federation)

    def reply_bytes(self, federation: Federation, plan: Plan) -> int:
        """A meme, and an array as large for each of its parameters."""
        assert federation.global_model is not None
        control = _parameters(build(federation.global_model, federation.clients[0], plan.seed))
        return super().reply_bytes(federation, plan) + Message(control=Part(Kind.CONTROL, control)).nbytes

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Eq. (3): y ← y − η(g − c_k + c). Eq. (4), II: c_k ← c_k − c + (x − y)/(Kη) = the mean of the g."""
        # The mean is taken as such: it is the same for plain SGD, and has a meaning with momentum and Adam too.
        if not client.takes_part or brief is None:
            return None
        meme, c = client.fork(brief), brief.arrays("control")
        names, own = list(_parameters(meme)), client.state.get("control") or _zeros(c)
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
        client.state["control"] = {name: own[name] + change[name] for name in names}
        return Message(**self.reply(client, meme), control=Part(Kind.CONTROL, change))

    def open(self, server: Server) -> None:
        """Controls begin at 0."""
        super().open(server)
        server.state["control"] = _zeros(_parameters(server.build()))

    def brief(self, server: Server, round: int, client_id: str) -> Message | None:
        """G and c; after the last round G alone."""
        c = {} if round > server.rounds else {"control": Part(Kind.CONTROL, server.state["control"])}
        return Message(**dict(super().brief(server, round, client_id) or {}), **c)

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """Besides the meme, a finite change of the control."""
        super().check(server, client_id, reply)
        check_arrays_like(reply, "control", "control", server.state["control"])

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """Eq. (5): x ← x + η_g·mean(y_k − x), c ← c + (|S|/N)·mean(Δc_k): who is not drawn keeps its control."""
        before, c = server.state["global"], server.state["control"]
        super().merge(server, replies)
        server.state["global"] = {
            name: torch.lerp(before[name], merged, self.server_lr) if merged.is_floating_point() else merged
            for name, merged in server.state["global"].items()
        }
        changes = [reply.arrays("control") for reply in replies.values()]
        mean, share = self.combine(changes, [1.0] * len(changes), _zeros(c)), len(replies) / len(server.clients)
        server.state["control"] = {name: array + share * mean[name] for name, array in c.items()}


def _parameters(model: nn.Module) -> Tensors:
    """What learns of a model."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def _zeros(arrays: Tensors) -> Tensors:
    return {name: torch.zeros_like(array) for name, array in arrays.items()}
