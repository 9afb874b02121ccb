"""FedALA: each client merges the new global into its own last layers, number by number, before it trains.

Zhang et al. 2023, "FedALA: adaptive local aggregation for personalized federated learning" (Algorithm 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import torch
from pydantic import Field
from torch import nn

from mutua.federation.federation import Federation
from mutua.federation.message import Message
from mutua.federation.model_checks import global_features, whole_global
from mutua.learning.trainer import Batch, whole_batch
from mutua.methods.base import register
from mutua.methods.fedavg import Averaging
from mutua.methods.participant import Participant
from mutua.models.splice import head_of

_LOCAL, _WEIGHTS = "ala.local", "ala.weights"
"""The groups of the store with the client's own last layers and their merging weights."""


@register
class FedALA(Averaging):
    """FedAvg whose clients start from the global with their own last layers merged in, by learned weights."""

    name: ClassVar[str] = "fedala"
    own_classes: ClassVar[bool] = False
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = False
    different_data: ClassVar[bool] = True
    layers: int = Field(1, ge=1)
    sample: float = Field(0.8, gt=0, le=1)
    eta: float = Field(1.0, ge=0)
    first_passes: int = Field(10, ge=1)

    def arrange(self, federation: Federation) -> Federation:
        """The global must have a head and be whole: its last layers are merged, an adaptor is nobody else's."""
        whole_global(federation, "fedala merges the global's last layers")
        global_features(federation, self.name)
        return super().arrange(federation)

    def models(self, client: Participant, brief: Message | None) -> dict[str, nn.Module]:
        """What is trained, and leaves, starts from the merged model."""
        meme = client.fork(brief)
        self.learn_weights(client, meme)
        self.merge_in(client, meme)
        return {"meme": meme}

    def trained(self, client: Participant, meme: nn.Module) -> None:
        """The last layers, for the next merge; all weights are 1 at first, which is the global."""
        own = {name: p.detach().cpu().clone() for name, p in self.last(meme).items()}
        client.state[_LOCAL] = own
        client.state.setdefault(_WEIGHTS, {name: torch.ones_like(array) for name, array in own.items()})

    def last(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters of the last layers: the head's, then those of the layers before it in the model."""
        head = head_of(model)[0]
        layers = [path for path, layer in model.named_modules() if layer._parameters]
        layers.sort(key=lambda path: path == head or path.startswith(f"{head}."))
        chosen = layers[-self.layers :]
        return {name: p for name, p in model.named_parameters() if name.rpartition(".")[0] in chosen}

    def merge_in(self, client: Participant, model: nn.Module) -> None:
        """Θ̂ = Θ_k + (G − Θ_k)⊙W in the last layers of a copy of G; the first time there is nothing to merge."""
        last, weights = self.last(model), client.state.get(_WEIGHTS, {})
        with torch.no_grad():
            for name, own in client.state.get(_LOCAL, {}).items():
                G = last[name]
                G.copy_(torch.lerp(own.to(G.device), G, weights[name].to(G.device)))

    def learn_weights(self, client: Participant, model: nn.Module) -> None:
        """W ← clip(W − η·∇f(Θ̂)⊙(G − Θ_k), 0, 1) on a part of own data; the model is G again afterwards.

        In evaluation mode: no statistics move, and no dropout is drawn.
        """
        if _LOCAL not in client.state:
            return
        model.eval()
        last, first = self.last(model), all(bool((w == 1).all()) for w in client.state[_WEIGHTS].values())
        G = {name: p.detach().clone() for name, p in last.items()}
        for batch in self.batches(client, self.first_passes if first else 1):
            self.merge_in(client, model)
            slopes = torch.autograd.grad(batch.task.loss(model(batch.x), batch.y), list(last.values()))
            stepped = {}
            for (name, p), slope in zip(last.items(), slopes, strict=True):
                change = self.eta * slope * (G[name] - client.state[_LOCAL][name].to(slope.device))
                stepped[name] = (client.state[_WEIGHTS][name] - change.cpu()).clamp(0, 1)
                p.data.copy_(G[name])
            client.state[_WEIGHTS] = stepped

    def batches(self, client: Participant, passes: int) -> Iterator[Batch]:
        """A part of the opted-in samples, drawn for this round, batch by batch, so many times."""
        n = len(client.opted_in)
        drawn = torch.randperm(n, generator=client.stream("adaptive aggregation"))[: math.ceil(self.sample * n)]
        for _ in range(passes):
            for index in drawn.split(client.plan.batch_size):
                yield whole_batch(client.opted_in.take(index), client.task, client.device)

    def finish(self, client: Participant, brief: Message | None) -> None:
        """The weights for the last global."""
        if client.takes_part:
            self.learn_weights(client, client.fork(brief))

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The merged model; before its first training, as for a newcomer, the global or what was tuned of it."""
        if _LOCAL not in client.state:
            return super().predictor(client, brief)
        client.keep("merged", client.fork(brief))  # apart from the global, which is judged beside it
        model = client.model("merged")
        self.merge_in(client, model)
        return model
