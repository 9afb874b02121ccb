"""FedRolex and HeteroFL: clients that can train only a part of the global's units, in turns or always the same.

Alam et al. 2022, "FedRolex: model-heterogeneous federated learning with rolling sub-model extraction" (Algorithm
1); Diao et al. 2021, "HeteroFL: computation and communication efficient federated learning for heterogeneous
clients" (`window: static`, and the scaling of hidden layers while a part of them trains).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from mutua.errors import InputError
from mutua.federation.client import build
from mutua.federation.federation import Federation
from mutua.federation.message import Kind, Message, Part, weights
from mutua.learning.part_merging import MOST_KINDS, HeldPart, merge_parts
from mutua.methods.base import register
from mutua.methods.fedavg import Averaging
from mutua.methods.participant import Participant
from mutua.methods.server import Server
from mutua.models.narrow import Positions, Window, filled, fits, narrowed, places, window
from mutua.seeds import public, torch_stream
from mutua.support.tensor_files import Tensors


@register
class FedRolex(Averaging):
    """One wide global; each client trains as many units of a layer as its own model has, others every round."""

    name: ClassVar[str] = "fedrolex"
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
        federation = super().arrange(federation)
        if federation.partial:
            raise InputError("models.global.share: a part, but fedrolex cuts whole models; share 'all'")
        shared, designs = (
            federation.global_model,
            {id(client.model): client for client in federation.clients[::-1]},
        )
        if len(designs) > MOST_KINDS:
            raise InputError(f"models.clients: {len(designs)} designs; fedrolex takes at most {MOST_KINDS}")
        for client in designs.values() if shared is not None else ():
            assert shared is not None
            try:
                fits(build(shared, client, 0), build(client.model, client, 0))
            except InputError as error:
                own, whole = client.model.title, shared.title
                raise InputError(
                    f"client {client.id}: its {own} is no part of the global's {whole}: {error}"
                ) from None
        return federation

    # On the server

    def held(self, server: Server, round: int, client_id: str) -> Positions:
        """Where what the client trains in this round is in the global."""

        def units(layer: str, of: int, many: int) -> Tensor:
            return window(
                self.window, of, many, round, torch_stream(public(server.seed), "fedrolex", round, layer)
            )

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
        times = {name: len(shared[name]) / len(array) for name, array in part.items() if array.dim() > 1}
        scales = {name.removesuffix(".weight"): torch.tensor(more) for name, more in times.items() if more != 1}
        told = {"scale": Part(Kind.CONTROL, scales)} if scales and self.scale else {}
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
        counts = dict(zip(replies, self.merge_weights(replies), strict=True))
        parts = [
            HeldPart(reply.arrays("meme"), held[id(server.models[client])], counts[client])
            for client, reply in replies.items()
        ]
        server.state["global"] = merge_parts(self.combine, parts, server.state["global"])

    # On a client

    @property
    def made_at_end(self) -> bool:
        """During the run clients have only a part of what they serve with."""
        return True

    def models(self, client: Participant, brief: Message | None) -> dict[str, nn.Module]:
        """A meme of the client's own design."""
        return {"meme": client.fork(brief, like="own")}

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """FedAvg's client; what narrower layers give is scaled up while they train, as dropout does."""
        layers = dict(client.fork(brief, like="own").named_modules())
        with ExitStack() as stack:
            for name, times in brief.arrays("scale").items() if brief is not None and "scale" in brief else ():
                hook = layers[name].register_forward_hook(partial(_scaled, float(times)))
                stack.callback(hook.remove)
            return super().train(client, brief)

    def evaluated(self, client: Participant, brief: Message | None) -> Mapping[str, nn.Module]:
        """The global, which the client has in the end alone."""
        return super().evaluated(client, brief) if client.round > client.plan.rounds else {}

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """In the end the global, or what it was tuned to; before, the part that the client trains next."""
        whole = client.round > client.plan.rounds
        return super().predictor(client, brief) if whole else client.fork(brief, like="own")


def _scaled(times: float, layer: nn.Module, given: Any, output: Tensor) -> Tensor:
    return output * times if layer.training else output
