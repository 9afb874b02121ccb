"""What methods have in common that keep several globals, one for each group of clients that are alike."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from mutua.federation.message import Kind, Message, Part, number, weights
from mutua.learning.early_stopping import EarlyStopping
from mutua.learning.evaluation import outputs
from mutua.methods.fedavg import Averaging
from mutua.methods.participant import Participant
from mutua.methods.server import Server
from mutua.support.tensor_files import Tensors

CENTRE = "centre-"
"""Before a number: a group's global in the server's state, and in a brief that offers it."""


class Clustered(Averaging):
    """FedAvg in groups of clients. A client's global is its group's; who has no group chooses by its loss."""

    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    server_does: ClassVar[str] = "merges weights in groups"

    @property
    def averages(self) -> bool:
        """There are several means, and who is in which depends on what was sent."""
        return False

    @property
    def clients_choose(self) -> bool:
        """Whether all clients choose in every round, and not only those that have no group yet."""
        return False

    def open(self, server: Server) -> None:
        """One group, whose centre is FedAvg's first global."""
        super().open(server)
        server.state[f"{CENTRE}0"] = server.state["global"]

    # On the server

    def centres(self, server: Server) -> dict[int, Tensors]:
        """All groups' globals."""
        found = {name: arrays for name, arrays in server.state.items() if name.startswith(CENTRE)}
        return dict(sorted((int(name.removeprefix(CENTRE)), arrays) for name, arrays in found.items()))

    def group(self, server: Server, client_id: str) -> int:
        """The client's group; before it was heard, that of most clients."""
        known = {client: int(group) for client, group in server.state.get("group", {}).items()}
        members = Counter(known.values())
        return known.get(client_id, max(sorted(members), key=members.__getitem__, default=0))

    def global_for(self, server: Server, client_id: str) -> Tensors:
        """Its group's centre."""
        return server.state[f"{CENTRE}{self.group(server, client_id)}"]

    def offered(self, server: Server) -> Mapping[str, Tensors]:
        """All centres, of which a newcomer takes the one that fits its data."""
        return {f"{CENTRE}{i}": centre for i, centre in self.centres(server).items()}

    def brief(self, server: Server, round: int, client_id: str) -> Message | None:
        """Its group's centre as its global; the others too, where it is to choose."""
        own, parts = self.group(server, client_id), {"global": weights(self.global_for(server, client_id))}
        if self.clients_choose or client_id not in server.state.get("group", {}):
            parts["group"] = number(Kind.CHOICE, own)
            others = {i: centre for i, centre in self.centres(server).items() if i != own}
            parts |= {f"{CENTRE}{i}": weights(centre) for i, centre in others.items()}
        return Message(**parts)

    @abstractmethod
    def grouped(self, server: Server, replies: Mapping[str, Message]) -> dict[str, int]:
        """The group of each client that has replied."""

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """In each group the mean of its members' memes; a group without any stays. Most clients' is "global"."""
        groups = self.grouped(server, replies)
        for i in sorted(set(groups.values())):
            members = {client: reply for client, reply in replies.items() if groups[client] == i}
            memes = [reply.arrays("meme") for reply in members.values()]
            before = server.state.get(
                f"{CENTRE}{i}", self.global_for(server, min(members))
            )  # a new one has parents
            server.state[f"{CENTRE}{i}"] = self.combine(memes, self.merge_weights(members), before)
        known = {client: torch.tensor(group) for client, group in groups.items()}
        server.state["group"] = server.state.get("group", {}) | known
        server.state["global"] = self.global_for(server, "")

    # On a client

    def chosen(self, client: Participant, brief: Message | None) -> tuple[int, Message]:
        """Of the centres in the brief the one of the least loss on the client's training data, as its global."""
        assert brief is not None
        centres: dict[int, Part] = {
            int(name.removeprefix(CENTRE)): part for name, part in brief.items() if name.startswith(CENTRE)
        }
        if "group" in brief or not centres:
            centres[int(brief.number("group")) if "group" in brief else 0] = brief["global"]
        briefs = {i: Message(**{"global": centres[i]}) for i in sorted(centres)}
        samples = client.opted_in if client.takes_part else client.train

        def loss(i: int) -> float:
            scores = outputs(client.frozen(briefs[i]), samples, client.device)
            return float(client.task.loss(scores, samples.y))

        best = min(briefs, key=loss) if len(briefs) > 1 else next(iter(briefs))
        return best, briefs[best]

    def adapt(self, client: Participant, brief: Message | None, until: EarlyStopping) -> None:
        """Continue the chosen centre."""
        super().adapt(client, self.chosen(client, brief)[1], until)

    def evaluated(self, client: Participant, brief: Message | None) -> Mapping[str, nn.Module]:
        """The centre that it has, or would choose."""
        return {"global": client.fork(self.chosen(client, brief)[1])}

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The same, or what it was tuned to."""
        return super().predictor(client, self.chosen(client, brief)[1])
