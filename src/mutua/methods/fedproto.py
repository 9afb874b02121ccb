"""FedProto: models of any design agree on what each class looks like to them: the mean feature of its samples.

Tan et al. 2022, "FedProto: federated prototype learning across heterogeneous clients" (Eqs. 3 to 7, Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from mutua.federation.federation import Federation
from mutua.federation.message import Kind, Message, Part, Shares
from mutua.federation.model_checks import common_features
from mutua.federation.plan import Plan
from mutua.learning.class_rows import class_means, class_sums, rows_by_class
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import Method, register
from mutua.methods.checks import check_class_counts, check_prototypes
from mutua.methods.participant import Participant
from mutua.methods.server import Server
from mutua.models import features
from mutua.models.composite import NearestPrototype


@register
class FedProto(Method):
    """Personal models whose features are drawn to the classes' prototypes, which are all that crosses."""

    name: ClassVar[str] = "fedproto"
    own_models: ClassVar[bool] = True
    own_classes: ClassVar[bool] = True
    needs_features: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    server_does: ClassVar[str] = "averages prototypes"
    lam: Annotated[Schedule, within(0, 1e6)] = 1.0
    weights: Literal["uniform", "samples"] = "uniform"
    serve: Literal["prototypes", "head"] = "prototypes"

    @property
    def shares(self) -> Shares:
        """Class means of features and, to weigh them, how many samples each is of."""
        prototypes = {"prototypes": Kind.PROTOTYPES}
        return prototypes | {"class_counts": Kind.METRIC} if self.weights == "samples" else prototypes

    @property
    def needs_classes(self) -> str:
        """Prototypes are of classes."""
        return "exchanges a mean feature of each class"

    def reply_bytes(self, federation: Federation, plan: Plan) -> int:
        """One vector for each class."""
        width, names = common_features(federation, self.name), federation.classes
        each = {"prototypes": torch.empty(width), "class_counts": torch.tensor(0.0)}
        return Message(**{n: Part(kind, dict.fromkeys(names, each[n])) for n, kind in self.shares.items()}).nbytes

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """Eq. (7): CE + λ·mean (z − P̄_y)², to which a sample without a prototype adds nothing."""
        z, scores = features(models["personal"], batch.x)
        loss = batch.task.loss(scores, batch.y)
        if hp.lam:
            apart = (z - hp.prototypes[batch.y]).square() * hp.known[batch.y].unsqueeze(1)
            loss = loss + hp.lam * apart.mean()
        return {"personal": loss}

    def start(self, client: Participant) -> None:
        """A model of the client's own."""
        client.initialise("personal")

    def brief(self, server: Server, round: int, client_id: str) -> Message | None:
        """All classes' prototypes, once there are any."""
        known = server.state.get("prototypes")
        return Message(prototypes=Part(Kind.PROTOTYPES, known)) if known else None

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Fit, then Eq. (3): P_c is the mean feature of all own samples of c, by the trained model."""
        model = client.model("personal")
        prototypes, known = self.table(client, brief)
        client.fit(self.objective, {"personal": model}, given={"prototypes": prototypes, "known": known})
        z, y, classes = client.features(model, client.train), client.train.y, client.task.classes
        ones = torch.ones_like(z[:, 0])
        sent = {"prototypes": class_means(z, y, classes), "class_counts": class_sums(ones, y, classes)}
        return Message(**{name: Part(kind, sent[name]) for name, kind in self.shares.items()})

    def table(self, client: Participant, brief: Message | None) -> tuple[Tensor, Tensor]:
        """The client's classes' prototypes as rows, matched by name, and for which of them there is one."""
        return rows_by_class({} if brief is None else brief.arrays("prototypes"), client.task.classes)

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """One finite vector for each class that the client has, all of one width."""
        named = check_prototypes(reply, "prototypes", server.classes, server.width(client_id))
        if self.weights == "samples":
            check_class_counts(reply, "class_counts", named)

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """Eq. (6): by class, the mean over the clients that have it; what nobody sent stays as it was."""
        known = dict(server.state.get("prototypes", {}))
        for name in sorted({name for reply in replies.values() for name in reply.arrays("prototypes")}):
            having = [reply for reply in replies.values() if name in reply.arrays("prototypes")]
            vectors, share = torch.stack([r.arrays("prototypes")[name] for r in having]), torch.ones(len(having))
            if self.weights == "samples":
                share = torch.stack([r.arrays("class_counts")[name] for r in having])
            known[name] = (share / share.sum()).to(vectors.dtype) @ vectors
        server.state["prototypes"] = known

    def evaluated(self, client: Participant, brief: Message | None) -> Mapping[str, nn.Module]:
        """The model's own head, beside the prototypes."""
        return {} if self.serve == "head" else {"head": client.model("personal")}

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The class of the nearest prototype, among the classes that the client has; by option the own head."""
        rows, known = self.table(client, brief)
        own = torch.isin(torch.arange(len(known)), client.train.y)
        if self.serve == "head" or not (own & known).any():
            return client.model("personal")
        return client.composite(NearestPrototype(rows, own & known), model=client.model("personal"))
