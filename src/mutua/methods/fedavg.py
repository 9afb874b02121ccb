"""FedAvg and its relatives: one model for all.

McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data";
Li et al. 2020, "Federated optimization in heterogeneous networks" (FedProx).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from torch import nn

from mutua.data.samples import Samples
from mutua.federation.message import MAX_COUNT, Kind, Message, Shares, count
from mutua.learning import losses
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import Hub, register
from mutua.methods.checks import check_number
from mutua.methods.participant import Participant
from mutua.methods.server import Server


class Averaging(Hub):
    """FedAvg without a say in what clients serve with: fork the global, train it on own data, merge."""

    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    weights: Literal["samples", "uniform"] = "samples"

    @property
    def shares(self) -> Shares:
        """The meme, and n_k where the merge needs it."""
        meme = {"meme": Kind.WEIGHTS}
        return meme | {"samples": Kind.COUNT} if self.weights == "samples" else meme

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """F_k of fml-2023, Eq. (1): cross-entropy on own data."""
        return {"meme": batch.task.loss(models["meme"](batch.x), batch.y)}

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Fork, fit on what is opted in, send. A client that has opted out whole sends nothing."""
        if not client.takes_part:
            return None
        models = self.models(client, brief)
        client.fit(self.objective, models, samples=self.samples(client))
        self.trained(client, models["meme"])
        return self.reply(client, models["meme"])

    def samples(self, client: Participant) -> Samples:
        """What the meme learns from."""
        return client.opted_in

    def trained(self, client: Participant, meme: nn.Module) -> None:
        """What the client keeps of its trained meme; nothing, unless a method says otherwise."""
        return

    def reply(self, client: Participant, meme: nn.Module) -> Message:
        """Besides the meme, n_k where the merge needs it."""
        reply = super().reply(client, meme)
        return Message(**reply, samples=count(client.samples)) if self.weights == "samples" else reply

    def models(self, client: Participant, brief: Message | None) -> dict[str, nn.Module]:
        """What the objective works on."""
        return {"meme": client.fork(brief)}

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """Besides the meme, n_k must be a count."""
        super().check(server, client_id, reply)
        if self.weights == "samples":
            check_number(reply, "samples", "number of samples", 1, MAX_COUNT)

    def merge_weights(self, replies: Mapping[str, Message]) -> list[float]:
        """n_k / n of fml-2023, Eq. (2), or uniform."""
        if self.weights == "uniform":
            return super().merge_weights(replies)
        return [reply.number("samples") for reply in replies.values()]


@register
class FedAvg(Averaging):
    """Fork the global, train it on own data, merge weighted by the number of samples."""

    name: ClassVar[str] = "fedavg"
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    serve: Literal["global", "local"] = "global"

    def trained(self, client: Participant, meme: nn.Module) -> None:
        """By option, the client's last local copy."""
        if self.serve == "local":
            client.keep("local", meme)

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The global or what was tuned of it; by option the client's last local copy of it."""
        if self.serve == "local" and "local" in client.state and "tuned" not in client.state:
            return client.model("local")
        return super().predictor(client, brief)


@register
class FedProx(FedAvg):
    """FedAvg with a proximal term (μ/2)‖w − w_G‖² that holds the meme near the global."""

    name: ClassVar[str] = "fedprox"
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    mu: Annotated[Schedule, within(0, 1e6)] = 0.01

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """Li et al. 2020, Eq. (2)."""
        distance = losses.squared_distance(models["meme"], models["global"])
        return {"meme": super().objective(models, batch, hp)["meme"] + hp.mu / 2 * distance}

    def models(self, client: Participant, brief: Message | None) -> dict[str, nn.Module]:
        """The meme, and the global it was forked from."""
        return {"meme": client.fork(brief), "global": client.frozen(brief)}
