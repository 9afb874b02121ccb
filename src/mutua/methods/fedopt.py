"""A server that optimizes: FedAvg, FedAvgM, FedAdam, FedYogi and FedAdagrad; and Reptile at the end of it.

Reddi et al. 2021, "Adaptive federated optimization" (Algorithms 1 and 2); Hsu et al. 2019, "Measuring the effects
of non-identical data distribution for federated visual classification" (FedAvgM); Jiang et al. 2019, "Improving
federated learning personalization via model agnostic meta learning" (FedAvg, then Reptile, then personalise).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from mutua.federation.message import Message
from mutua.learning.server_optimizers import ServerOptimizer, ServerSGD, server_rate
from mutua.learning.trainer import Numbers
from mutua.methods.base import register, supervised
from mutua.methods.fedavg import Averaging
from mutua.methods.participant import Participant
from mutua.methods.server import Server


@register
class FedOpt(Averaging):
    """FedAvg; to the server the way from the global to the mean of the memes is a gradient that it steps along."""

    name: ClassVar[str] = "fedopt"
    honours_opt_out: ClassVar[bool] = True
    any_task: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    server_does: ClassVar[str] = "merges weights and steps"
    server: ServerOptimizer = Field(default_factory=ServerSGD)

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """Δ = G − M̄; G is stepped along Δ. Running statistics, which no gradient moves, are the mean's."""
        before = server.state["global"]
        super().merge(server, replies)
        if not self.steps_in(server.round, server.rounds):
            return
        lr, merged = server_rate(self.server, server.round, server.rounds), server.state["global"]
        memory = {name: dict(server.state.get(f"server {name}", {})) for name in ("m", "v")}
        for name in [n for n, _ in server.build().named_parameters() if n in before]:
            old = {what: arrays[name] for what, arrays in memory.items() if name in arrays}
            merged[name] = self.server.step(before[name], before[name] - merged[name], old, lr)
            for what, array in old.items():
                memory[what][name] = array
        server.state |= {f"server {what}": arrays for what, arrays in memory.items() if arrays}

    def steps_in(self, round: int, rounds: int) -> bool:
        """Whether the server steps in this round, rather than taking the mean."""
        return True


@register
class Reptile(FedOpt):
    """FedAvg, in the last rounds Reptile: few local steps and a server that steps; each client then adapts."""

    name: ClassVar[str] = "reptile"
    honours_opt_out: ClassVar[bool] = True
    any_task: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    weights: Literal["samples", "uniform"] = "uniform"
    reptile_rounds: int = Field(10, ge=0)
    local_steps: int = Field(10, ge=1)

    def numbers(self, round: int, rounds: int) -> Numbers:
        """Besides, whether it is a round of Reptile: a run that goes on for longer must not have ended before."""
        numbers = super().numbers(round, rounds)
        numbers.reptile = int(self.steps_in(round, rounds))
        return numbers

    def steps_in(self, round: int, rounds: int) -> bool:
        """In the last `reptile_rounds`."""
        return round > rounds - self.reptile_rounds

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """FedAvg's client; K steps in the rounds of Reptile."""
        if not client.takes_part:
            return None
        steps = self.local_steps if self.steps_in(client.round, client.plan.rounds) else None
        models = self.models(client, brief)
        client.fit(self.objective, models, samples=client.opted_in, steps=steps)
        return self.reply(client, models["meme"])

    def finish(self, client: Participant, brief: Message | None) -> None:
        """Personalise: K steps from the global, on own data."""
        client.keep("tuned", client.fork(brief))
        client.fit(supervised, {"tuned": client.model("tuned")}, steps=self.local_steps)
        client.state.pop("tuned.optimizer", None)

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The global after K own steps."""
        if "tuned" not in client.state:
            self.finish(client, brief)
        return client.model("tuned")
