"""MOCHA in its primal form: clients' models are tied by a matrix that says how they relate, and that is learned.

Smith et al. 2017, "Federated multi-task learning" (the objective with tr(WΩWᵀ), minimised over W and Ω in turn).
The paper's dual method is for linear models; this is its objective by gradient descent. Its theory is convex only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from torch import nn

from mutua.federation.client import build
from mutua.federation.federation import Federation
from mutua.federation.message import Kind, Message, Shares, number, weights
from mutua.federation.model_checks import whole_global
from mutua.federation.module_pool import parameters_of
from mutua.federation.plan import Plan
from mutua.learning.relation import Relation, task_relation
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import Method, register
from mutua.methods.checks import check_arrays_like
from mutua.methods.participant import Participant
from mutua.methods.server import Server

SENT = "w "
"""Before a client's id: the group of the server's state with its last parameters."""


@register
class Mocha(Method):
    """Each client's model is its own, and is drawn to those of the clients that the server finds to be like it."""

    name: ClassVar[str] = "mocha"
    any_task: ClassVar[bool] = True
    needs_global: ClassVar[bool] = True
    same_models: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    server_does: ClassVar[str] = "learns how clients relate"
    lam: Annotated[Schedule, within(0, 1e6)] = 1e-3
    relation: Relation = "learned"

    @property
    def shares(self) -> Shares:
        """The parameters of the client's own model, without running statistics."""
        return {"model": Kind.WEIGHTS}

    def arrange(self, federation: Federation) -> Federation:
        """Models are compared number by number: all of one design, that of `models.global`, and whole."""
        whole_global(federation, "mocha compares whole models")
        return super().arrange(federation)

    def reply_bytes(self, federation: Federation, plan: Plan) -> int:
        """The parameters of a model."""
        one = build(federation.clients[0].model, federation.clients[0], 0)
        return Message(model=weights(parameters_of(one))).nbytes

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """CE + λ(Ω_kk‖w‖² + 2⟨w, b_k⟩): what w_k has in λ·tr(WΩWᵀ), where b_k = Σ_{j≠k} Ω_kj·w_j."""
        w = dict(models["personal"].named_parameters())
        own = torch.stack([p.square().sum() for p in w.values()]).sum()
        others = torch.stack([(p * hp.others[name]).sum() for name, p in w.items()]).sum()
        loss = batch.task.loss(models["personal"](batch.x), batch.y)
        return {"personal": loss + hp.lam * (hp.own * own + 2 * others)}

    def start(self, client: Participant) -> None:
        """A personal model of the client's own seed, as `independent`'s."""
        client.initialise("personal")

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Fit with the others' models as they were, send the own one."""
        assert brief is not None
        client.numbers.own, b = brief.number("own"), brief.arrays("others")
        client.numbers.others = {name: array.to(client.device) for name, array in b.items()}
        model = client.model("personal")
        client.fit(self.objective, {"personal": model}, samples=client.opted_in)
        return Message(model=weights(parameters_of(model)))

    def open(self, server: Server) -> None:
        """No models yet: the names and shapes of what is to come."""
        server.state["nothing"] = {name: torch.zeros_like(p) for name, p in parameters_of(server.blank()).items()}

    def brief(self, server: Server, round: int, client_id: str) -> Message | None:
        """b_k and Ω_kk; before a client was heard Ω is as if all were alike in length and unlike in direction."""
        K, b = len(server.clients), server.state["nothing"]
        row = {client_id: {"learned": float(K), "mean": 1 - 1 / K, "none": 1.0}[self.relation]}
        if SENT + client_id in server.state:
            heard = _heard(server)
            row = dict(zip(heard, server.state["omega"][""][heard.index(client_id)].tolist(), strict=True))
        for other in (other for other in row if other != client_id):
            w = server.state[SENT + other]
            b = {name: torch.add(array, w[name], alpha=row[other]) for name, array in b.items()}
        return Message(others=weights(b), own=number(Kind.CONTROL, row[client_id]))

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """Finite parameters of the one design."""
        check_arrays_like(reply, "model", "weights", server.state["nothing"])

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """Ω of everybody's last model."""
        for client, reply in replies.items():
            server.state[SENT + client] = reply.arrays("model")
        columns = [torch.cat([a.reshape(-1) for a in server.state[SENT + c].values()]) for c in _heard(server)]
        server.state["omega"] = {"": task_relation(torch.stack(columns, 1).double(), self.relation)}

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The personal model."""
        return client.model("personal")


def _heard(server: Server) -> list[str]:
    return [client for client in server.clients if SENT + client in server.state]
