"""FedMD: clients agree on scores of a public set, and each model learns to match the consensus.

Li and Wang 2019, "FedMD: heterogeneous federated learning via model distillation". Round r of the paper is
*score the public subset, agree, digest the consensus, revisit private data*. Its second half is done when the
consensus comes with the next brief: in the next `train`, in `finish`, and in `predictor` for an evaluation in
between. So an evaluation after round r is of exchange r, which is learned at the rate of round r.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from mutua.data.samples import Samples
from mutua.federation.federation import Federation
from mutua.federation.message import Kind, Message, Part, Shares
from mutua.federation.plan import Plan
from mutua.learning import merging
from mutua.learning.evaluation import outputs
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import Method, register
from mutua.methods.checks import check_rows
from mutua.methods.participant import Participant
from mutua.methods.server import Server
from mutua.seeds import public


@register
class FedMD(Method):
    """Models of any design learn to match the consensus of all clients' scores on a public set."""

    name: ClassVar[str] = "fedmd"
    any_task: ClassVar[bool] = True
    own_models: ClassVar[bool] = True
    server_does: ClassVar[str] = "averages scores"
    needs_public: ClassVar[bool] = True
    terms: ClassVar[tuple[str, ...]] = ("digest",)
    digest: Literal["kl", "l1", "mse"] = "kl"
    digest_epochs: int = Field(1, ge=1)
    subset: int = Field(1000, ge=1)
    public_epochs: int = Field(5, ge=1)
    private_epochs: int = Field(5, ge=1)
    combine: merging.Combiner = Field(default_factory=merging.Mean)

    @property
    def shares(self) -> Shares:
        """Scores on public samples."""
        return {"public": Kind.SCORES}

    @property
    def needs_labels(self) -> str:
        """Clients start with the public set."""
        return "first trains on it"

    def reply_bytes(self, federation: Federation, plan: Plan) -> int:
        """Scores of the public subset."""
        assert federation.public is not None
        scores = torch.empty(min(self.subset, len(federation.public)), len(federation.classes))
        return Message(public=Part(Kind.SCORES, {"": scores})).nbytes

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """Cross-entropy, on public and then on private data."""
        return {"personal": batch.task.loss(models["personal"](batch.x), batch.y)}

    def start(self, client: Participant) -> None:
        """Transfer learning: train on the public set, then on private data."""
        client.initialise("personal")
        client.state["owed"] = {}  # until `finish`, there may be a consensus that is not digested yet
        for samples, epochs in ((client.public.whole, self.public_epochs), (None, self.private_epochs)):
            client.fit(self.objective, {"personal": client.model("personal")}, samples=samples, epochs=epochs)

    def brief(self, server: Server, round: int, client_id: str) -> Message | None:
        """The consensus of the last round."""
        consensus = server.state.get("consensus")
        return None if consensus is None else Message(consensus=Part(Kind.SCORES, consensus))

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Digest and revisit for the last round, score for this one."""
        self._learn(client, brief)
        scores = outputs(client.model("personal"), self._subset(client, client.round), client.device)
        return Message(public=Part(Kind.SCORES, {"": scores}))

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """Scores of the public subset."""
        assert server.public is not None
        samples = min(self.subset, len(server.public))
        check_rows(reply, "public", Kind.SCORES, server.classes, samples, "the public subset")

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """The consensus: the mean of all scores, or what another combiner makes of them."""
        scores = [reply.arrays("public") for reply in replies.values()]
        nothing = {"": torch.zeros_like(scores[0][""])}
        server.state["consensus"] = self.combine(scores, [1.0] * len(scores), nothing)

    def finish(self, client: Participant, brief: Message | None) -> None:
        """Digest and revisit for the last round."""
        self._learn(client, brief)
        client.state.pop("owed", None)

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The personal model after the round's digesting and revisiting."""
        self._learn(client, brief)
        return client.model("personal")

    def _learn(self, client: Participant, brief: Message | None) -> None:
        """The second half of an exchange: digest its consensus and revisit private data."""
        if brief is None or "owed" not in client.state:
            return
        self._digest(client, brief.arrays("consensus")[""])
        client.fit(self.objective, {"personal": client.model("personal")}, round=client.exchange)

    def _digest(self, client: Participant, consensus: Tensor) -> None:
        def match(models: Models, batch: Batch, hp: Numbers) -> Terms:
            scores, target = models["personal"](batch.x), consensus[batch.index].to(batch.x.device)
            if self.digest == "kl":
                return {"digest": batch.task.divergence(target, scores)}
            return {"digest": (F.l1_loss if self.digest == "l1" else F.mse_loss)(scores, target)}

        # Not augmented: the consensus is about exactly the images that were scored.
        loader = client.loader(self._subset(client, client.exchange), augment=False)
        with client.training({"personal": client.model("personal")}, client.exchange) as trainer:
            for batch in loader.epochs(self.digest_epochs):
                trainer.step(match, batch)

    def _subset(self, client: Participant, round: int) -> Samples:
        return client.public.subset(self.subset, public(client.plan.seed), round)
