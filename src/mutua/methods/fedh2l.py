"""FedH2L: peers teach each other by what they say of public data; no weights and no server model.

"FedH2L: Federated learning with model and statistical heterogeneity" (Eqs. 2 to 14, Algorithm 1). The
paper's loop seen from the other side of the exchange: *mutual update with the signals just received,
local steps, new signal out* is one `train`, and the last mutual update is in `finish`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from mutua.data.samples import Samples, together
from mutua.errors import Refused
from mutua.learning.projection import pcgrad, project
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms, Trainer
from mutua.ledger import Shares
from mutua.message import Kind, Message, Part, number
from mutua.methods.base import Method, Server, register
from mutua.participant import Participant
from mutua.seeds import public


@register
class FedH2L(Method):
    """Peer-to-peer mutual learning on a public set, with conflicting gradients projected away."""

    name: ClassVar[str] = "fedh2l"
    needs_public: ClassVar[bool] = True
    kl: bool = True
    projection: Literal["paper", "none", "pcgrad"] = "paper"
    local_gradient: Literal["sum", "difference"] = "sum"
    local_data: Literal["private", "private+public"] = "private"
    lr_mutual: Annotated[Schedule, within(0, 1e6)] | None = None

    @property
    def shares(self) -> Shares:
        """What it says of its public batch, and how often that is right."""
        return {Kind.PROBABILITIES: "public", Kind.ACCURACY: "public_accuracy"}

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
        sure = server.state["public_accuracy"]
        return Message(
            public=Part(Kind.PROBABILITIES, {peer: said[peer] for peer in heard}),
            public_accuracy=Part(Kind.ACCURACY, {peer: sure[peer] for peer in heard if peer in sure}),
        )

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Learn from peers, learn from own data, say what came of it."""
        model = client.model("personal")
        with client.training({"personal": model}) as trainer:
            self._mutual(client, trainer, brief)
            client.state["local gradient"] = {"": self._local(client, trainer)}
        return self._signal(client, model)

    def check(self, server: Server, reply: Message) -> None:
        """Probabilities must sum to 1 and an accuracy lie in [0, 1]."""
        if "public" not in reply or list(reply.arrays("public")) != [""]:
            raise Refused("it holds no probabilities 'public'")
        rows = reply.arrays("public")[""]
        if rows.dim() != 2 or not bool(torch.isfinite(rows).all()) or bool((rows < 0).any()):
            raise Refused("its probabilities are not rows of numbers of at least 0")
        if rows.shape[1] != server.classes or not bool(((rows.sum(1) - 1).abs() < 1e-3).all()):
            raise Refused(f"its probabilities are not rows of {server.classes} that sum to 1")
        if "public_accuracy" in reply and not 0 <= reply.number("public_accuracy") <= 1:
            raise Refused(f"its accuracy {reply.number('public_accuracy')} is outside [0, 1]")

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """Keep this round's signals for the next round's briefs."""
        for part in ("public", "public_accuracy"):
            server.state[part] = {who: reply.arrays(part)[""] for who, reply in replies.items() if part in reply}

    def finish(self, client: Participant, brief: Message | None) -> None:
        """The mutual update that the last round's signals are still owed."""
        with client.training({"personal": client.model("personal")}) as trainer:
            self._mutual(client, trainer, brief)
        client.state["finished"] = {}

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The model after the mutual update that is pending."""
        if "finished" not in client.state:
            self.finish(client, brief)
        return client.model("personal")

    def _local(self, client: Participant, trainer: Trainer) -> Tensor:
        """Local steps; g_loc is the sum of their gradients, each taken before its step (option: last − first)."""
        samples = client.client.train
        if self.local_data == "private+public":
            samples = together([samples, client.public.parts[client.client.id]])
        gradients = []
        for batch in client.batches(client.loader(samples)):
            gradient = trainer.gradient(self.objective(trainer.models, batch, trainer.numbers))
            trainer.apply(gradient)
            gradients.append(gradient)
        if self.local_gradient == "difference" and len(gradients) > 1:
            return gradients[-1] - gradients[0]
        return torch.stack(gradients).sum(0)

    def _mutual(self, client: Participant, trainer: Trainer, brief: Message | None) -> None:
        """Eqs. (3) to (8): learn from peers' signals along a gradient that does not undo the local one."""
        if brief is None or "local gradient" not in client.state:
            return
        peers = brief.arrays("public")
        sure = brief.arrays("public_accuracy") if "public_accuracy" in brief else {}
        model, task, total = trainer.models["personal"], client.task, {}
        for peer, said in peers.items():
            batch = self._public_batch(client, peer, client.round - 1)
            logits = model(batch.preprocess(batch.x).to(client.modules.device))
            if self.kl:
                total[f"{peer} kl"] = sure.get(peer, 1.0) * task.divergence(said.log(), logits) / len(peers)
            if client.public.labelled:
                total[f"{peer} ce"] = task.loss(logits, batch.y.to(client.modules.device)) / len(peers)
        if not total:
            return
        gradient = trainer.gradient({"mutual": torch.stack(list(total.values())).sum()})
        local = client.state["local gradient"][""].to(gradient.device)
        if self.projection != "none":
            gradient = (project if self.projection == "paper" else pcgrad)(gradient, local)
        trainer.apply(gradient, lr=trainer.numbers.lr_mutual)

    def _signal(self, client: Participant, model: nn.Module) -> Message:
        """What the stepped model says of its own public batch: all that leaves."""
        batch = self._public_batch(client, client.client.id, client.round)
        said = client.predict(model, batch)
        parts = {"public": Part(Kind.PROBABILITIES, {"": said})}
        if client.public.labelled:
            right = float((said.argmax(1) == batch.y).float().mean())
            parts["public_accuracy"] = number(Kind.ACCURACY, right)
        return Message(**parts)

    def _public_batch(self, client: Participant, owner: str, round: int) -> Samples:
        plan = client.job.plan
        return client.public.batch(owner, plan.batch_size, public(plan.seed), round)
