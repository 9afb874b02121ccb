"""FedSEM and IFCA: several globals, and every client learns in the group that it fits best.

Long et al. 2023, "Multi-center federated learning: clients clustering for better personalization" (its stochastic
expectation maximization, FedSEM); Ghosh et al. 2020, "An efficient framework for clustered federated learning"
(Algorithm 1 with model averaging, IFCA).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field

from mutua.errors import InputError
from mutua.federation.message import Kind, Message, Shares, number
from mutua.learning.clustering import k_means, nearest, points_of
from mutua.methods.base import register
from mutua.methods.checks import check_number
from mutua.methods.clustered import CENTRE, Clustered
from mutua.methods.participant import Participant
from mutua.methods.server import Server
from mutua.seeds import public, torch_stream
from mutua.support.tensor_files import Tensors


@register
class FedSEM(Clustered):
    """k globals; a client learns in the one nearest to its last meme or, as IFCA, in the one of the least loss."""

    name: ClassVar[str] = "fedsem"
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    k: int = Field(2, ge=1)
    assign: Literal["distance", "loss"] = "distance"

    @property
    def shares(self) -> Shares:
        """The meme, n_k where the merge needs it and, if clients choose, which global each has chosen."""
        return {**super().shares, "choice": Kind.CHOICE} if self.clients_choose else super().shares

    @property
    def clients_choose(self) -> bool:
        """IFCA's do."""
        return self.assign == "loss"

    def open(self, server: Server) -> None:
        """All k centres begin as FedAvg's global; where clients choose, each has public weights of its own."""
        super().open(server)
        first = server.state["global"]
        for i in range(1, self.k):
            state = server.build(purpose=f"{CENTRE}{i}").state_dict() if self.clients_choose else first
            server.state[f"{CENTRE}{i}"] = {name: state[name] for name in first}
            if self.clients_choose and all(torch.equal(state[name], first[name]) for name in first):
                raise InputError(
                    "method.assign: loss, but models.global is not initialised by a seed, so all centres would be "
                    "one; leave models.global.init out, name a model, or use assign: distance"
                )

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """FedAvg's client, from its group's centre or from the one that it chooses."""
        if not self.clients_choose or not client.takes_part:
            return super().train(client, brief)
        choice, centre = self.chosen(client, brief)
        reply = super().train(client, centre)
        return reply and Message(**reply, choice=number(Kind.CHOICE, choice))

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """Besides the meme, the choice must be one."""
        super().check(server, client_id, reply)
        if self.clients_choose:
            check_number(reply, "choice", "choice", 0, self.k - 1)

    def forked_from(self, server: Server, client_id: str, reply: Message) -> Tensors:
        """Where clients choose, what it has chosen."""
        if self.clients_choose:
            return server.state[f"{CENTRE}{int(reply.number('choice'))}"]
        return super().forked_from(server, client_id, reply)

    def grouped(self, server: Server, replies: Mapping[str, Message]) -> dict[str, int]:
        """As clients chose; or the E-step: the nearest centre, in the first round by k-means of the memes."""
        if self.clients_choose:
            return {client: int(reply.number("choice")) for client, reply in replies.items()}
        before = server.state["global"]
        names = [name for name, _ in server.build().named_parameters() if name in before]
        memes = [reply.arrays("meme") for reply in replies.values()]
        if "group" in server.state:
            points = points_of([*memes, *self.centres(server).values()], names, before)
            found = nearest(points[: len(memes)], points[len(memes) :])
        else:
            stream = torch_stream(public(server.seed), "fedsem", "k-means++")
            found = k_means(points_of(memes, names, before), self.k, self.merge_weights(replies), stream)
        return dict(zip(replies, found, strict=True))
