"""CFL, clustered federated learning: FedAvg until it stands still, then in two groups where clients disagree.

Sattler, Müller, Samek 2020, "Clustered federated learning: model-agnostic distributed multitask optimization under
privacy constraints" (the cut is Algorithm 1's). FedH2L calls it FedCluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch.nn.functional import normalize

from mutua.federation.message import Message
from mutua.learning.clustering import Linkage, cut_in_two, points_of
from mutua.methods.base import register
from mutua.methods.clustered import CENTRE, Clustered
from mutua.methods.server import Server

FEWEST = 2
"""A group of so many members, or fewer, is not divided."""


@register
class CFL(Clustered):
    """FedAvg in groups, at first one; a group is divided once its mean stands still and its members do not."""

    name: ClassVar[str] = "cfl"
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    eps1: float = Field(0.4, ge=0)
    eps2: float = Field(1.6, ge=0)
    after: int = Field(20, ge=0)
    linkage: Linkage = "single"

    def grouped(self, server: Server, replies: Mapping[str, Message]) -> dict[str, int]:
        """The groups as they are; of one that has come to its end, those who leave it make a new one."""
        groups, more = {client: self.group(server, client) for client in replies}, len(self.centres(server))
        everybody = {client: int(group) for client, group in server.state.get("group", {}).items()} | groups
        for i in sorted(set(groups.values())) if server.round > self.after else ():
            members = [client for client, group in everybody.items() if group == i]
            if len(members) > FEWEST and replies.keys() >= set(members):
                leaving = self.leaving(server, i, {client: replies[client] for client in sorted(members)})
                groups |= dict.fromkeys(leaving, more)
                more += bool(leaving)
        return groups

    def leaving(self, server: Server, group: int, replies: Mapping[str, Message]) -> list[str]:
        """Who leaves, by the cosines of updates Δ: nobody unless ‖mean Δ‖ < ε₁ and max ‖Δ_k‖ > ε₂."""
        centre, clients = server.state[f"{CENTRE}{group}"], list(replies)
        names = [name for name, _ in server.build().named_parameters() if name in centre]
        memes = [reply.arrays("meme") for reply in replies.values()]
        mean = self.combine(memes, self.merge_weights(replies), centre)
        *updates, still = points_of([*memes, mean], names, centre)
        if not (still.norm() < self.eps1 and max(update.norm() for update in updates) > self.eps2):
            return []
        directions = normalize(torch.stack(updates))
        _, others = cut_in_two(directions @ directions.T, self.linkage)
        return [clients[i] for i in others]
