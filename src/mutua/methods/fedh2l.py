"""FedH2L: peers teach each other by their predictions on public data; no weights and no server model.

"FedH2L: Federated learning with model and statistical heterogeneity" (Eqs. 2 to 14, Algorithm 1). The
paper's loop seen from the other side of the exchange: *mutual update with the signals just received,
local steps, new signal out* is one `train`, and the last mutual update is in `finish`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from mutua.data.samples import Samples, concatenate
from mutua.errors import InputError, Refused
from mutua.federation.federation import Federation
from mutua.federation.message import Kind, Message, Part, Shares, number
from mutua.federation.plan import Plan
from mutua.learning import merging
from mutua.learning.projection import pcgrad, project
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms, Trainer
from mutua.methods.base import Method, register
from mutua.methods.checks import check_number, check_rows
from mutua.methods.participant import Participant
from mutua.methods.server import Server
from mutua.seeds import public


@register
class FedH2L(Method):
    """Peer-to-peer mutual learning on a public set, with conflicting gradients projected away."""

    name: ClassVar[str] = "fedh2l"
    any_task: ClassVar[bool] = True
    own_models: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    server_does: ClassVar[str] = "relays"
    needs_public: ClassVar[bool] = True
    terms: ClassVar[tuple[str, ...]] = ("local", "mutual")
    kl: bool = True
    projection: Literal["paper", "none", "pcgrad"] = "paper"
    local_gradient: Literal["sum", "difference"] = "sum"
    local_data: Literal["private", "private+public"] = "private"
    lr_mutual: Annotated[Schedule, within(0, 1e6)] | None = None
    combine: merging.Combiner = Field(default_factory=merging.Mean)

    @property
    def shares(self) -> Shares:
        """Its predictions on its public batch, and their accuracy."""
        return {"public": Kind.PROBABILITIES, "public_accuracy": Kind.ACCURACY}

    def arrange(self, federation: Federation) -> Federation:
        """Every client needs public samples of its own."""
        federation = super().arrange(federation)
        assert federation.public is not None
        silent = [client.id for client in federation.clients if client.id not in federation.public.parts]
        if silent:
            raise InputError(f"public: client {silent[0]} owns no part of it; fedh2l needs one of every client")
        return federation

    @property
    def needs_classes(self) -> str:
        """What peers exchange."""
        return "exchanges class probabilities, which sum to 1, and their accuracy"

    @property
    def needs_labels(self) -> str:
        """Without KL there is nothing else to learn from; local steps may learn from the public set too."""
        if not self.kl:
            return "learns from nothing else with method.kl: false"
        return "" if self.local_data == "private" else f"learns from it with method.local_data: {self.local_data}"

    def reply_bytes(self, federation: Federation, plan: Plan) -> int:
        """Probabilities of a public batch and, with labels, an accuracy."""
        assert federation.public is not None
        rows = min(plan.batch_size, max(map(len, federation.public.parts.values())))
        parts = {"public": Part(Kind.PROBABILITIES, {"": torch.empty(rows, len(federation.classes))})}
        if federation.public.labelled:
            parts["public_accuracy"] = number(Kind.ACCURACY, 0.0)
        return Message(**parts).nbytes

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """ℓ_CE on local data, Eq. (2)."""
        return {"local": batch.task.loss(models["personal"](batch.x), batch.y)}

    def start(self, client: Participant) -> None:
        """A model of the client's own."""
        client.initialise("personal")

    def brief(self, server: Server, round: int, client_id: str) -> Message | None:
        """The last round's signals of the peers it hears. The server relays and computes nothing."""
        said = server.state.get("public", {})
        heard = server.topology.peers(client_id, server.clients, server.seed, round - 1)
        heard = [peer for peer in heard if peer in said]
        if not heard:
            return None
        brief = Message(public=Part(Kind.PROBABILITIES, {peer: said[peer] for peer in heard}))
        sure = {peer: right for peer, right in server.state["public_accuracy"].items() if peer in heard}
        return Message(**brief, public_accuracy=Part(Kind.ACCURACY, sure)) if sure else brief

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Learn from peers, then from own data, then send predictions on public data."""
        model = client.model("personal")
        with client.training({"personal": model}) as trainer:
            self._mutual(client, trainer, brief)
            client.state["local gradient"] = {"": self._local(client, trainer).cpu()}
        return self._signal(client, model)

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """Probabilities of its public batch and, with labels only, an accuracy in [0, 1]."""
        assert server.public is not None
        batch = min(server.batch_size, len(server.public.parts[client_id]))
        check_rows(reply, "public", Kind.PROBABILITIES, server.classes, batch, "its public batch")
        if server.public.labelled:
            check_number(reply, "public_accuracy", "accuracy", 0, 1)
        elif "public_accuracy" in reply:
            raise Refused("it has an accuracy without labels")

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """Keep this round's signals for the next round's briefs."""
        for part in ("public", "public_accuracy"):
            server.state[part] = {who: reply.arrays(part)[""] for who, reply in replies.items() if part in reply}

    def finish(self, client: Participant, brief: Message | None) -> None:
        """The mutual update that is still due for the last round; only once, as it uses up the local gradient."""
        with client.training({"personal": client.model("personal")}) as trainer:
            self._mutual(client, trainer, brief)
        client.state.pop("local gradient", None)

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The model after the mutual update that is pending."""
        self.finish(client, brief)
        return client.model("personal")

    def _local(self, client: Participant, trainer: Trainer) -> Tensor:
        """Local steps; g_loc is the sum of their gradients, each taken before its step (option: last − first)."""
        samples = client.train
        if self.local_data == "private+public":
            samples = concatenate([samples, client.public.whole])

        def step(batch: Batch) -> Tensor:
            gradient = trainer.gradient(self.objective(trainer.models, batch, trainer.numbers))
            trainer.apply(gradient)
            return gradient

        gradients = map(step, client.batches(client.loader(samples)))
        first = last = total = next(gradients)
        for last in gradients:
            total = total + last
        return last - first if self.local_gradient == "difference" and last is not first else total

    def _mutual(self, client: Participant, trainer: Trainer, brief: Message | None) -> None:
        """Eqs. (3) to (8): learn from peers' signals along a gradient that does not undo the local one."""
        if brief is None or "local gradient" not in client.state:
            return
        round = client.exchange  # in which the signals were sent
        heard = {peer: self._public_batch(client, peer, round) for peer in brief.arrays("public")}
        losses = [self._from_peer(client, trainer.models["personal"], brief, *said) for said in heard.items()]
        gradient = self._combined(trainer, losses)
        local = client.state["local gradient"][""].to(gradient.device)
        if self.projection != "none":
            gradient = (project if self.projection == "paper" else pcgrad)(gradient, local)
        plan = client.plan
        lr = self.numbers(round, plan.rounds).lr_mutual
        trainer.apply(gradient, plan.optimizer.rate(round, plan.rounds) if lr is None else lr)

    def _combined(self, trainer: Trainer, losses: Sequence[Tensor]) -> Tensor:
        """The gradient of the mean over peers or, by another combiner, one made of each peer's own."""
        if isinstance(self.combine, merging.Mean):
            return trainer.gradient({"mutual": torch.stack(list(losses)).mean()})
        each = [trainer.gradient({"mutual": loss}) for loss in losses]
        nothing = {"": torch.zeros_like(each[0], device="cpu")}
        combined = self.combine([{"": one.cpu()} for one in each], [1.0] * len(each), nothing)[""]
        return combined.to(each[0].device)

    def _from_peer(
        self, client: Participant, model: nn.Module, brief: Message, peer: str, batch: Samples
    ) -> Tensor:
        """Acc_j·KL(p_j ‖ p_i) + CE on the peer's public batch; without labels KL alone."""
        device, said = client.device, brief.arrays("public")[peer]
        if len(batch) == 1:  # seen twice: batch-norm has no variance of a single value, and means stay as they are
            batch, said = batch.take([0, 0]), said.expand(2, -1)
        logits = model(batch.preprocess(batch.x).to(device))
        loss = torch.zeros((), device=device)
        if self.kl:
            sure = brief.arrays("public_accuracy")[peer].to(device) if client.public.labelled else 1.0
            loss = loss + sure * client.task.divergence(said.to(device).log(), logits)
        return loss + client.task.loss(logits, batch.y.to(device)) if client.public.labelled else loss

    def _signal(self, client: Participant, model: nn.Module) -> Message:
        """The trained model's predictions on its own public batch: all that leaves."""
        batch = self._public_batch(client, client.id, client.round)
        said = client.predict(model, batch)
        parts = {"public": Part(Kind.PROBABILITIES, {"": said})}
        if client.public.labelled:
            right = float((said.argmax(1) == batch.y).double().mean())
            parts["public_accuracy"] = number(Kind.ACCURACY, right)
        return Message(**parts)

    def _public_batch(self, client: Participant, owner: str, round: int) -> Samples:
        plan = client.plan
        return client.public.batch(owner, plan.batch_size, public(plan.seed), round)
