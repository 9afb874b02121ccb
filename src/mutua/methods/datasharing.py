"""Data sharing: a small public set on which the global is warmed up, and of which each client trains on a part.

Zhao et al. 2018, "Federated learning with non-IID data" (the strategy of its Section 4: β, α and the warm-up).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import nn

from mutua.data.samples import Samples, concatenate
from mutua.federation.message import Message, count
from mutua.learning.optimizers import SGD, Optimizer
from mutua.methods.base import register, supervised
from mutua.methods.fedavg import FedAvg
from mutua.methods.participant import Participant
from mutua.methods.server import Server

DRAWN = "shared.drawn"
"""The group of the store that says which public samples are the client's."""


@register
class DataSharing(FedAvg):
    """FedAvg from a global that was warmed up on a public set; each client trains on a private draw of it too."""

    name: ClassVar[str] = "datasharing"
    own_classes: ClassVar[bool] = False
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = False
    different_data: ClassVar[bool] = True
    needs_public: ClassVar[bool] = True
    server_does: ClassVar[str] = "warms up, merges weights"
    alpha: float = Field(1.0, ge=0, le=1)
    warm_up: int = Field(100, ge=0)
    warm_up_optimizer: Optimizer = Field(default_factory=SGD)

    @property
    def needs_labels(self) -> str:
        """Everybody trains on it."""
        return "trains on it"

    def open(self, server: Server) -> None:
        """G₀, trained for so many steps on the public set."""
        super().open(server)
        if self.warm_up:
            assert server.public is not None
            model, optimizer = server.build(), self.warm_up_optimizer
            server.fit(supervised, {"global": model}, server.public.whole, optimizer=optimizer, steps=self.warm_up)
            trained = model.state_dict()
            server.state["global"] = {name: trained[name].detach().clone() for name in server.state["global"]}

    def start(self, client: Participant) -> None:
        """A private draw of share α of the public set, which lasts all rounds."""
        n = len(client.public)
        order = torch.randperm(n, generator=client.stream("public samples"))
        client.state[DRAWN] = {"index": order[: round(self.alpha * n)]}

    def drawn(self, client: Participant) -> Samples | None:
        """The public samples that are the client's."""
        index = client.state[DRAWN]["index"]
        return client.public.whole.take(index).in_memory() if len(index) else None

    def samples(self, client: Participant) -> Samples:
        """Own samples that are opted in, and the draw."""
        drawn = self.drawn(client)
        return client.opted_in if drawn is None else concatenate([client.opted_in, drawn])

    def reply(self, client: Participant, meme: nn.Module) -> Message:
        """n_k counts both."""
        reply, drawn = super().reply(client, meme), len(client.state[DRAWN]["index"])
        return Message(**{**reply, "samples": count(client.samples + drawn)}) if "samples" in reply else reply
