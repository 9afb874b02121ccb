"""No-regret: FedAvg, and on every client three experts whose mixture is never much worse than any of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn

from mutua.data.samples import concatenate
from mutua.federation.message import Message
from mutua.learning.expert_weights import SMOOTHING, fitted_shift, label_prior, likelihoods, weigh
from mutua.learning.trainer import Batch, Models, Numbers, Terms, between
from mutua.methods.base import How, register, supervised
from mutua.methods.fedavg import Averaging
from mutua.methods.participant import Participant
from mutua.models.composite import Composite, Shifted, Weighted

PRIOR = {"corrected": 0.5, "tuned": 0.25, "personal": 0.25}  # μ: half for what is shared, half for one's own
LEARNED, MIXTURE = "personal.rounds", "no-regret.mixture"  # in a client's store, beside models


@register
class NoRegret(Averaging):
    """FedAvg; at home the global, a tuned copy and a model trained alone, mixed as validation samples say."""

    name: ClassVar[str] = "no-regret"
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    keeps_alone: ClassVar[bool] = True
    own_models: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    teach: float = Field(0.0, ge=0, le=1e3)
    correction: Literal["counts", "fitted"] = "counts"
    tune_epochs: int = Field(20, ge=1)
    one_model: bool = False
    distil_epochs: int = Field(60, ge=1)

    @property
    def needs_classes(self) -> str:
        """What validation samples weigh."""
        return "weighs experts by the probabilities that they give to classes"

    @property
    def made_at_end(self) -> bool:
        """The mixture is."""
        return True

    def breaks(self, promise: str) -> str:
        """With `teach` personal models and memes learn from each other."""
        return "with teach the meme learns from a personal model that has seen all samples" if self.teach else ""

    def start(self, client: Participant) -> None:
        """A personal model of the client's own seed, as `independent`'s."""
        client.initialise("personal")

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """The personal model's round at home, then FedAvg's client; with `teach` both at once."""
        self.at_home(client, client.round - 1 if self.teach else client.round)
        client.state[LEARNED] = {"": torch.tensor(client.round)}
        return super().train(client, brief)

    def at_home(self, client: Participant, last: int) -> None:
        """The personal model learns alone, as `independent`'s, also in rounds for which it was not drawn."""
        learned = int(client.state[LEARNED][""]) if LEARNED in client.state else 0
        for round in range(learned + 1, last + 1):
            then = client.at(round)
            then.fit(supervised, {"personal": then.model("personal")})

    def models(self, client: Participant, brief: Message | None) -> dict[str, nn.Module]:
        """The meme; with `teach` the personal model beside it."""
        return ({"personal": client.model("personal")} if self.teach else {}) | super().models(client, brief)

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """CE(M); with `teach` t CE(L) too, and for each + t·KL(other ‖ own)."""
        if not hp.teach:
            return super().objective(models, batch, hp)
        scores = {name: model(batch.x) for name, model in models.items()}
        other = dict(zip(scores, reversed(scores.values()), strict=True))
        return {n: batch.task.taught(scores[n], batch.y, other[n], 1, hp.teach) for n in scores}

    def finish(self, client: Participant, brief: Message | None) -> None:
        """The three experts, their weights, and by option one model that their mixture teaches."""
        self.at_home(client, client.plan.rounds)
        for name in ("global", "tuned"):
            client.keep(name, client.fork(brief))
        client.fit(supervised, {"tuned": client.model("tuned")}, epochs=self.tune_epochs)
        client.state.pop("tuned.optimizer", None)
        self.weigh(client)
        if self.one_model:
            self.distil(client)

    def weigh(self, client: Participant) -> None:
        """How much each class counts for the corrected global (a head of its own knows), then each expert."""
        share, own, said = client.global_architecture.share, client.train, client.predict
        shared = share == "all" or "head" in share
        shift = np.log(len(own.classes) * label_prior(own.counts())) if shared else np.zeros(len(own.classes))
        if shared and self.correction == "fitted":
            shift = fitted_shift(said(client.model("global"), own).numpy(), own.y.numpy(), shift)
        client.state[MIXTURE] = {"shift": torch.tensor(shift).float()}
        q = likelihoods([said(model, client.val) for model in self.experts(client).values()], client.val.y)
        client.state[MIXTURE]["weights"] = torch.from_numpy(weigh(q, list(PRIOR.values())))

    def experts(self, client: Participant) -> dict[str, nn.Module]:
        """The global, its scores shifted by ln(C·π) for how often this client sees each class; and its own two."""
        shift = Shifted(client.state[MIXTURE]["shift"])
        corrected = client.composite(shift, model=client.model("global"))
        return {"corrected": corrected, "tuned": client.model("tuned"), "personal": client.model("personal")}

    def mixture(self, client: Participant) -> Composite:
        """(1−ε)·Σ w_m·p_m + ε/C."""
        rule = Weighted(client.state[MIXTURE]["weights"], SMOOTHING, list(PRIOR.values()))
        return client.composite(rule, frozen=(), **self.experts(client))

    def distil(self, client: Participant) -> None:
        """KL(mixture ‖ student) at inputs between own samples; the student has the client's own design."""
        same = client.architecture.same_design(client.global_architecture)
        client.keep("student", client.model("tuned" if same else "personal"))
        mixture, stream = self.mixture(client).eval().requires_grad_(False), client.stream("distil")

        def objective(models: Models, batch: Batch, hp: Numbers) -> Terms:
            x = between(batch.x, stream)
            return {"student": batch.task.divergence(mixture(x), models["student"](x))}

        student, both = {"student": client.model("student")}, concatenate([client.train, client.val])
        client.fit(objective, student, samples=both, epochs=self.distil_epochs, purpose="distil")
        client.state.pop("student.optimizer", None)

    def personalise(self, client: Participant, brief: Message | None, how: How) -> None:
        """By `global` a newcomer uses it as it is, otherwise it makes a mixture at home as all others do."""
        if how == "global":
            return super().personalise(client, brief, how)
        self.start(client)
        self.finish(client, brief)

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The global before the end, then the mixture, or the one model that it taught."""
        if "student" in client.state:
            return client.model("student")
        return self.mixture(client) if MIXTURE in client.state else super().predictor(client, brief)

    def evaluated(self, client: Participant, brief: Message | None) -> Mapping[str, nn.Module]:
        """The global, and the experts that there are."""
        own = {"personal": client.model("personal")} if "personal" in client.state else {}
        return {**super().evaluated(client, brief), **(self.experts(client) if MIXTURE in client.state else own)}
