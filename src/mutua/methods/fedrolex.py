"""FedRolex and HeteroFL: clients that can train only a part of the global's units, in turns or always the same.

Alam et al. 2022, "FedRolex: model-heterogeneous federated learning with rolling sub-model extraction" (Algorithm
1); Diao et al. 2021, "HeteroFL: computation and communication efficient federated learning for heterogeneous
clients" (`window: static`, and the scaling of hidden layers while a part of them trains).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

from torch import Tensor, nn

from mutua.federation.federation import Federation
from mutua.federation.message import Kind, Message, Part, weights
from mutua.federation.model_checks import parts_of_global, whole_global
from mutua.learning.part_merging import MOST_KINDS, HeldPart, merge_parts
from mutua.methods.base import register
from mutua.methods.fedavg import Averaging
from mutua.methods.participant import Participant
from mutua.methods.server import Server
from mutua.models.narrow import Positions, Window, filled, narrowed, places, scaled_up, times_narrower, window
from mutua.seeds import public, torch_stream
from mutua.support.tensor_files import Tensors


@register
class FedRolex(Averaging):
    """One wide global; each client trains as many units of a layer as its own model has, others every round."""

    name: ClassVar[str] = "fedrolex"
    own_classes: ClassVar[bool] = False
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    own_models: ClassVar[bool] = True
    server_does: ClassVar[str] = "merges parts of weights"
    weights: Literal["samples", "uniform"] = "uniform"
    window: Window = "rolling"
    scale: bool = True

    @property
    def averages(self) -> bool:
        """Not of all that was sent, but each number of those who held it."""
        return False

    def arrange(self, federation: Federation) -> Federation:
        """Every client's model must be a part of the global: the same layers, as wide or narrower."""
        whole_global(federation, "fedrolex cuts whole models")
        parts_of_global(federation, self.name, MOST_KINDS)
        return super().arrange(federation)

    def held(self, server: Server, round: int, client_id: str) -> Positions:
        """Where what the client trains in this round is in the global."""

        def units(layer: str, of: int, many: int) -> Tensor:
            stream = torch_stream(public(server.seed), "fedrolex", round, layer)
            return window(self.window, of, many, round, stream)

        return places(server.blank(), server.blank(client_id), units)

    def global_for(self, server: Server, client_id: str) -> Tensors:
        """Its part of the global."""
        return narrowed(server.state["global"], self.held(server, server.round, client_id))

    def brief(self, server: Server, round: int, client_id: str) -> Message | None:
        """Its part, and by layer how many times as many units the global has; in the end all, to serve with."""
        shared = server.state["global"]
        if round > server.rounds:
            return Message(**{"global": weights(shared)})
        part = narrowed(shared, self.held(server, round, client_id))
        scales = times_narrower(shared, part) if self.scale else {}
        told = {"scale": Part(Kind.CONTROL, scales)} if scales else {}
        return Message(**{"global": weights(part)}, **told)

    def forked_from(self, server: Server, client_id: str, reply: Message) -> Tensors:
        """The global, as wide as which updates are compared."""
        return server.state["global"]

    def outliers(self, server: Server, replies: Mapping[str, Message]) -> dict[str, str]:
        """Updates are 0 where a client held nothing."""
        before, where = server.state["global"], partial(self.held, server, server.round)
        wide = {client: filled(before, where(client), reply.arrays("meme")) for client, reply in replies.items()}
        return super().outliers(server, {client: Message(meme=weights(meme)) for client, meme in wide.items()})

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """Each number of the global: of those who held it, else as it was."""
        first = {id(server.models[client]): client for client in replies}
        held = {design: self.held(server, server.round, client) for design, client in first.items()}
        where = [held[id(server.models[client])] for client in replies]
        memes = [reply.arrays("meme") for reply in replies.values()]
        parts = list(map(HeldPart, memes, where, self.merge_weights(replies)))
        server.state["global"] = merge_parts(self.combine, parts, server.state["global"])

    @property
    def made_at_end(self) -> bool:
        """During the run clients have only a part of what they serve with."""
        return True

    def models(self, client: Participant, brief: Message | None) -> dict[str, nn.Module]:
        """A meme of the client's own design."""
        return {"meme": client.fork(brief, like="own")}

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """FedAvg's client; what narrower layers give is scaled up while they train, as dropout does."""
        told = brief.arrays("scale") if brief is not None and "scale" in brief else {}
        with scaled_up(client.fork(brief, like="own"), told):
            return super().train(client, brief)

    def evaluated(self, client: Participant, brief: Message | None) -> Mapping[str, nn.Module]:
        """The global, which the client has in the end alone."""
        return super().evaluated(client, brief) if client.round > client.plan.rounds else {}

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """In the end the global, or what it was tuned to; before, the part that the client trains next."""
        whole = client.round > client.plan.rounds
        return super().predictor(client, brief) if whole else client.fork(brief, like="own")
