"""Per-FedAvg: a global that is good after one step of each client on its own data, not as it is.

Fallah, Mokhtari, Ozdaglar 2020, "Personalized federated learning with theoretical guarantees: a model-agnostic
meta-learning approach" (F_i(w) = f_i(w − α∇f_i(w)), Algorithm 1; its variants FO and HF of the experiments).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from mutua.federation.message import Message
from mutua.learning.displacement import flat, learned, move, moved, statistics_apart
from mutua.learning.evaluation import evaluation_batches
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms, whole_batch
from mutua.methods.base import Hub, register
from mutua.methods.participant import Participant


@register
class PerFedAvg(Hub):
    """Clients train what the global becomes by a step on their own data; each serves with it after such a step."""

    name: ClassVar[str] = "perfedavg"
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    alpha: Annotated[Schedule, within(0, 100)] = 0.01
    hessian: Literal["first-order", "difference", "exact"] = "first-order"
    delta: float = Field(1e-3, gt=0)

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """f of the meme, wherever its parameters are: cross-entropy."""
        return {"meme": batch.task.loss(models["meme"](batch.x), batch.y)}

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """A step along (I − α∇²f(w; D″))·∇f(w̃; D′) with w̃ = w − α∇f(w; D), for each batch D′ of the round.

        D and D″ are batches of streams of their own. Running statistics follow D′ alone.
        """
        meme = client.fork(brief)
        models, alpha = {"meme": meme}, client.numbers.alpha
        with client.training(models) as trainer:
            first, second = (self._drawn(client, models, purpose) for purpose in ("D", "D''"))
            for batch in client.batches(client.loader(client.opted_in, models)):
                with moved(meme, -alpha * self.gradient(client, meme, next(first))):
                    outer = trainer.gradient(self.objective(models, batch, trainer.numbers))
                curved = self.curvature(client, meme, next(second), outer)
                trainer.apply(outer if curved is None else outer - alpha * curved)
        return self.reply(client, meme)

    def gradient(self, client: Participant, meme: nn.Module, batch: Batch, create_graph: bool = False) -> Tensor:
        """∇f where the parameters are, as one vector; running statistics move in a copy only."""
        with statistics_apart(meme):
            terms = self.objective({"meme": meme}, batch, client.numbers)
            return flat(torch.autograd.grad(list(terms.values()), learned(meme), create_graph=create_graph))

    def curvature(self, client: Participant, meme: nn.Module, batch: Batch, v: Tensor) -> Tensor | None:
        """∇²f(w)·v: exact, by the difference of two gradients (HF), or left out (FO)."""
        if self.hessian == "first-order":
            return None
        if self.hessian == "exact":
            along = self.gradient(client, meme, batch, create_graph=True) @ v
            return flat(torch.autograd.grad(along, learned(meme)))
        with moved(meme, self.delta * v):
            ahead = self.gradient(client, meme, batch)
        with moved(meme, -self.delta * v):
            behind = self.gradient(client, meme, batch)
        return (ahead - behind) / (2 * self.delta)

    def _drawn(self, client: Participant, models: Models, purpose: str) -> Iterator[Batch]:
        """Batches without end, of a stream of their own."""
        loader = client.loader(client.opted_in, models, purpose=purpose)
        while True:
            yield from loader.epochs(1)

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The global after one step of rate α by the gradient over all own training data, in evaluation mode."""
        if "tuned" in client.state:
            return super().predictor(client, brief)
        client.keep("adapted", client.fork(brief))  # apart from the global, which is judged beside it
        model = client.model("adapted").eval()
        parts = [
            len(part)
            / len(client.train)
            * self.gradient(client, model, whole_batch(part, client.task, client.device))
            for part in evaluation_batches(client.train)
        ]
        move(model, -client.numbers.alpha * torch.stack(parts).sum(0))
        return model
