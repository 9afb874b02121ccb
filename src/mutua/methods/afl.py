"""AFL, agnostic federated learning: the global is good for whatever mixture of the clients is the worst.

Mohri et al. 2019, "Agnostic federated learning" (Eq. 4; the stochastic algorithm of Sec. 4), in rounds of FedAvg:
memes are mixed by λ, and λ steps along the clients' losses, projected onto the simplex.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mutua.federation.message import Kind, Message, Shares, number, weights
from mutua.learning.evaluation import outputs
from mutua.methods.base import register
from mutua.methods.checks import check_number
from mutua.methods.fedavg import Averaging
from mutua.methods.participant import Participant
from mutua.methods.server import Server

MOST_LOSS = 1e6
"""No honest mean cross-entropy is larger."""


@register
class AFL(Averaging):
    """FedAvg whose memes are weighted by λ, which moves to the clients that the global serves worst."""

    name: ClassVar[str] = "afl"
    honours_opt_out: ClassVar[bool] = True
    any_task: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = False
    different_data: ClassVar[bool] = True
    server_does: ClassVar[str] = "merges weights by losses"
    weights: Literal["samples", "uniform"] = "uniform"
    """What λ starts as."""
    step: float = Field(0.1, ge=0)
    serve: Literal["last", "mean"] = "last"

    @property
    def shares(self) -> Shares:
        """The meme, the loss of the received global and, if λ starts by them, n_k."""
        return {**super().shares, "loss": Kind.LOSS}

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """FedAvg's client; besides, the mean loss of the global as it was received, on the same samples."""
        if not client.takes_part:
            return None
        scores = outputs(client.frozen(brief), client.opted_in, client.device)
        loss = float(client.task.loss(scores, client.opted_in.y))
        reply = super().train(client, brief)
        return None if reply is None else Message(**reply, loss=number(Kind.LOSS, loss))

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """Besides, the loss must be one."""
        super().check(server, client_id, reply)
        check_number(reply, "loss", "loss", 0, MOST_LOSS)

    def brief(self, server: Server, round: int, client_id: str) -> Message | None:
        """The global; to train on, the last round's one."""
        trained = "iterate" if "iterate" in server.state and round <= server.rounds else "global"
        return Message(**{"global": weights(server.state[trained])})

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """G ← Σ λ_k·M_k over who was heard; λ ← the projection of λ + step·losses. K·λ is stored: uniform is 1."""
        lam = server.state.setdefault("lambda", self.first(server, replies))
        before = server.state["global"] = server.state.pop("iterate", server.state["global"])
        mixed = [float(lam[client]) for client in replies]
        if sum(mixed) > 0:  # else λ is all on clients that were not drawn
            server.state["global"] = self.combine(
                [reply.arrays("meme") for reply in replies.values()], mixed, before
            )
            server.weights = dict(zip(replies, mixed, strict=True))
        if self.step:
            heard = {client: self.step * reply.number("loss") for client, reply in replies.items()}
            raised = [float(lam[client]) / len(lam) + heard.get(client, 0.0) for client in lam]
            found = simplex_projection(torch.tensor(raised, dtype=torch.float64)) * len(lam)
            server.state["lambda"] = dict(zip(lam, found, strict=True))
        if self.serve == "mean":
            self.mean_of_iterates(server)

    def first(self, server: Server, replies: Mapping[str, Message]) -> dict[str, Tensor]:
        """λ at first, times K: uniform, or n_k / n, where who was not heard counts as the mean of the others."""
        counts = dict.fromkeys(server.clients, 1.0)
        if self.weights == "samples":
            told = {client: reply.number("samples") for client, reply in replies.items()}
            usual = sum(told.values()) / len(told)
            counts = {client: told.get(client, usual) / usual for client in server.clients}
        return {client: torch.tensor(count, dtype=torch.float64) for client, count in counts.items()}

    def mean_of_iterates(self, server: Server) -> None:
        """After the last round the global is the mean of all rounds' globals, as the theory asks for."""
        last, before = server.state["global"], server.state.get("mean", server.state["global"])
        share = 1 / server.round
        server.state["mean"] = {
            n: before[n] + share * (a - before[n]) if a.is_floating_point() else a for n, a in last.items()
        }
        if server.round == server.rounds:
            server.state |= {"iterate": last, "global": server.state["mean"]}


def simplex_projection(v: Tensor) -> Tensor:
    """The nearest point with no negative number and sum 1 (Duchi et al. 2008, Fig. 1)."""
    falling = v.sort(descending=True).values
    sums = falling.cumsum(0) - 1
    count = int((falling * torch.arange(1, len(v) + 1, dtype=v.dtype) > sums).sum())
    return (v - sums[count - 1] / count).clamp_min(0)
