"""pFedBayes: weights are distributions; the global one is the prior of every client's own.

Zhang et al. 2022, "Personalized federated learning via variational Bayesian inference" (Algorithm 1).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from mutua.federation.federation import Federation
from mutua.federation.message import Message
from mutua.federation.model_checks import whole_global
from mutua.learning.optimizers import Adam, Optimizer
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import register
from mutua.methods.fedavg import Averaging
from mutua.methods.participant import Participant
from mutua.models.gaussian import Gaussian, gaussian_kl


@register
class PFedBayes(Averaging):
    """A personal model of uncertain weights, held near the global one; the meme follows it and is merged."""

    name: ClassVar[str] = "pfedbayes"
    own_classes: ClassVar[bool] = False
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = False
    same_models: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    weights: Literal["samples", "uniform"] = "samples"
    zeta: Annotated[Schedule, within(0, 1e6)] = 10.0
    rho: float = Field(-2.5, ge=-50, le=50)
    noise: float = Field(1.0, ge=0)
    optimizer: Optimizer = Field(default_factory=Adam)

    def arrange(self, federation: Federation) -> Federation:
        """Every weight of all models becomes a normal distribution."""
        whole_global(federation, "pfedbayes compares whole models")
        federation = super().arrange(federation)
        shared = federation.global_model
        if shared is None:  # which is refused with a word for all methods that share a model
            return federation
        uncertain = shared.model_copy(update={"gaussian": self.rho})  # all clients' models have its design
        clients = tuple(replace(client, model=uncertain) for client in federation.clients)
        return replace(federation, clients=clients, global_model=uncertain)

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """−log-likelihood + (ζ/batches)·KL(q ‖ p_G), a sum over the batch, divided by its size."""
        q, prior = models["personal"], models["global"]
        loss = batch.task.loss(q(batch.x), batch.y)
        if hp.zeta:
            loss = loss + hp.zeta / (hp.batches * len(batch.y)) * _kl(q, prior)
        return {"personal": loss}

    def start(self, client: Participant) -> None:
        """q starts as its prior; without one (ζ = 0) by the client's own seed, as `independent`'s."""
        client.initialise("personal", like="global" if client.numbers.zeta else "own")

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """With every batch q takes a step, then the meme p one along KL(q ‖ p). For ζ = 0 q learns as if alone."""
        q, p, prior = client.model("personal"), client.fork(brief), client.frozen(brief)
        assert isinstance(q, Gaussian)
        q.noise, samples = self.noise, client.opted_in if client.takes_part else client.train
        optimizer = self.optimizer if client.numbers.zeta else None

        def follow(models: Models, batch: Batch, hp: Numbers) -> Terms:
            q.requires_grad_(False)  # where it is: only the meme moves
            apart = _kl(q, models["meme"])
            q.requires_grad_(True)
            return {"meme": apart}

        loader = client.loader(samples, {"personal": q, "meme": p})
        known = {"batches": loader.batches}
        own = client.training({"personal": q, "global": prior}, optimizer=optimizer, given=known)
        with own as personal, client.training({"meme": p}, optimizer=self.optimizer) as shared:
            for batch in client.batches(loader):
                personal.step(self.objective, batch)
                if client.takes_part:
                    shared.step(follow, batch)
        return self.reply(client, p) if client.takes_part else None

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The means of q; for a newcomer those of the global, or of what it was tuned to."""
        return client.model("personal") if "personal" in client.state else super().predictor(client, brief)


def _kl(q: nn.Module, p: nn.Module) -> Tensor:
    assert isinstance(q, Gaussian) and isinstance(p, Gaussian)
    return gaussian_kl(q, p)
