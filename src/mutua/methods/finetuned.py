"""FedAvg, then each client alone: the global continued on own data, in one of four ways.

Wang et al. 2019, "Federated evaluation of on-device personalization"; Yu, Bagdasaryan, Shmatikov 2020, "Salvaging
federated learning by local adaptation" (fine-tuning, freeze-base, multi-task learning by EWC, distillation).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import nn

from mutua.federation.federation import Federation
from mutua.federation.message import Message
from mutua.federation.model_checks import global_features
from mutua.learning.early_stopping import EarlyStopping
from mutua.learning.trainer import Batch, Models, Numbers, Terms, whole_batch
from mutua.methods.base import register
from mutua.methods.fedavg import FedAvg
from mutua.methods.participant import Participant
from mutua.support.tensor_files import Tensors

USUAL = {"ewc": 100.0, "kd": 1.0}
"""λ where none is given, ours. Yu et al. have 5,000 for EWC, as far as known to us: small models diverge."""


@register
class FineTuned(FedAvg):
    """FedAvg, then each client continues the global on its own data until validation says stop."""

    name: ClassVar[str] = "finetuned"
    any_task: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    only_own_gradients: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    tune: Literal["plain", "freeze-body", "ewc", "kd"] = "plain"
    lam: Annotated[float, Field(ge=0)] | None = None
    patience: int = Field(10, ge=1)
    tune_epochs: int = Field(200, ge=1)

    @model_validator(mode="after")
    def _has_lambda(self) -> FineTuned:
        if self.lam is not None and self.tune not in USUAL:
            raise ValueError(f"lam: {self.lam:g}, but tune '{self.tune}' has none; leave it out, or use ewc or kd")
        return self

    def arrange(self, federation: Federation) -> Federation:
        """Where the head alone is tuned, the global must have one."""
        if self.tune == "freeze-body":
            global_features(federation, f"{self.name} with tune 'freeze-body'")
        return super().arrange(federation)

    @property
    def stops_early(self) -> bool:
        """The tuning does."""
        return True

    def stopping(self, watch: str) -> EarlyStopping:
        """By its own patience and epochs."""
        return EarlyStopping(watch, self.patience, self.tune_epochs)

    def finish(self, client: Participant, brief: Message | None) -> None:
        """Continue the last global on own data."""
        self.adapt(client, brief, self.stopping("tuned"))

    def adapt(self, client: Participant, brief: Message | None, until: EarlyStopping) -> None:
        """Continue the global on the client's own data, and keep the result."""
        client.keep("tuned", client.fork(brief))
        models = {"tuned": client.model("tuned")}
        if self.tune in USUAL:
            models["global"] = client.frozen(brief)
            client.numbers.lam = USUAL[self.tune] if self.lam is None else self.lam
        if self.tune == "ewc":
            client.numbers.fisher = fisher(client, models["tuned"])
        client.fit(self.tuning, models, until=until, only="head" if self.tune == "freeze-body" else "all")
        client.state.pop("tuned.optimizer", None)

    def tuning(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """CE; by EWC + (λ/2)·Σ F_i·(w_i − G_i)²; by KD + λ·KL(G ‖ w)."""
        model: Any = models["tuned"]
        scores = model(batch.x)
        loss = batch.task.loss(scores, batch.y)
        if self.tune == "ewc":
            G = dict(models["global"].named_parameters())
            far = [(hp.fisher[name] * (p - G[name]).square()).sum() for name, p in model.named_parameters()]
            loss = loss + hp.lam / 2 * torch.stack(far).sum()
        elif self.tune == "kd":
            # G teaches as it predicts: without dropout, and with its own statistics.
            loss = loss + hp.lam * batch.task.divergence(models["global"].eval()(batch.x), scores)
        return {"tuned": loss}


def fisher(client: Participant, model: nn.Module) -> Tensors:
    """The diagonal of the empirical Fisher matrix: the mean square of the gradients of own samples.

    In evaluation mode, sample by sample: the square of a batch's mean gradient would be something else.
    """
    model.eval()
    w = dict(model.named_parameters())
    found = {name: torch.zeros_like(p) for name, p in w.items()}
    for i in range(len(client.train)):
        one = whole_batch(client.train.take([i]), client.task, client.device)
        slopes = torch.autograd.grad(one.task.loss(model(one.x), one.y), list(w.values()))
        for total, slope in zip(found.values(), slopes, strict=True):
            total += slope.square() / len(client.train)
    return found
