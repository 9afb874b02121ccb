"""FMLU, uncertainty-aware federated mutual learning: a model that is unsure teaches less and counts less.

"Uncertainty-aware federated mutual learning" (Eqs. 3 and 4, Algorithm 2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import model_validator
from torch import nn

from mutua.federation.message import Kind, Message, Shares, number
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import register
from mutua.methods.checks import check_number
from mutua.methods.fml import FML, Mutual
from mutua.methods.participant import Participant
from mutua.methods.server import Server

MOST_ENTROPY = 64 * math.log(2)
"""No task has more than 2⁶⁴ classes. With a larger entropy the weight of a reply would be 0."""


@register
class FMLU(FML):
    """FML with teaching and merging weighted by entropy; with both switched off it is FML."""

    name: ClassVar[str] = "fmlu"
    any_task: ClassVar[bool] = True
    uncertain_update: bool = True
    uncertain_merge: bool = True
    entropy: Literal["batch", "sample"] = "batch"

    @model_validator(mode="after")
    def _no_weights(self) -> FMLU:
        if self.uncertain_update and (self.alpha != 0.5 or self.beta != 0.5 or self.schedule):
            raise ValueError("uncertainty replaces alpha and beta; leave them out or set uncertain_update: false")
        return self

    @property
    def needs_classes(self) -> str:
        """Unless both uses of uncertainty are off."""
        used = self.uncertain_update or self.uncertain_merge
        return "weighs teaching and merging by the entropy of class probabilities" if used else ""

    @property
    def shares(self) -> Shares:
        """The meme and, for the merge, one number: its entropy."""
        meme = {"meme": Kind.WEIGHTS}
        return meme | {"meme_entropy": Kind.ENTROPY} if self.uncertain_merge else meme

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """L = CE + e^(−H(p_teacher))·KL(teacher ‖ student), both ways; H is detached."""
        if not self.uncertain_update:
            return super().objective(models, batch, hp)
        task = batch.task
        personal, meme = models["personal"](batch.x), models["meme"](batch.x)

        def taught(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
            entropy = task.entropies(task.probabilities(teacher.detach()))
            trust = torch.exp(-(entropy if self.entropy == "sample" else entropy.mean()))
            return (
                task.loss(student, batch.y)
                + (trust * task.divergences(teacher.detach(), student, hp.temperature)).mean()
            )

        return {"personal": taught(meme, personal), "meme": taught(personal, meme)}

    def reply(self, client: Participant, meme: nn.Module) -> Message:
        """Besides the meme, H_k: its mean entropy over the client's own training data."""
        reply = super().reply(client, meme)
        if not self.uncertain_merge:
            return reply
        entropy = client.task.entropies(client.predict(meme, client.train)).mean()
        return Message(**reply, meme_entropy=number(Kind.ENTROPY, float(entropy)))

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """Besides the meme, H_k must lie in [0, ln C]."""
        super().check(server, client_id, reply)
        if self.uncertain_merge:
            # With a partial global clients differ in their number of classes, which the server does not know.
            most = math.log(server.classes) + 1e-4 if not server.partial else MOST_ENTROPY
            check_number(reply, "meme_entropy", "entropy", 0, most)

    def merge_weights(self, replies: Mapping[str, Message]) -> list[float]:
        """softmax over clients of −H_k."""
        if not self.uncertain_merge:
            return super().merge_weights(replies)
        entropies = torch.tensor([reply.number("meme_entropy") for reply in replies.values()], dtype=torch.float64)
        return torch.softmax(-entropies, 0).tolist()


@register
class DML(Mutual):
    """The control beside FMLU: CE + 1·KL both ways, no uncertainty, merged as FML."""

    name: ClassVar[str] = "dml"
    any_task: ClassVar[bool] = True

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """Deep mutual learning (Zhang et al. 2018), fml-2023 Eq. (4)."""
        taught = batch.task.taught
        personal, meme = models["personal"](batch.x), models["meme"](batch.x)
        return {
            "personal": taught(personal, batch.y, meme, 1, 1, hp.temperature),
            "meme": taught(meme, batch.y, personal, 1, 1, hp.temperature),
        }
