"""A plan: how long, how fast and with which seed a method is run."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from mutua.data.transforms import Augment
from mutua.learning.optimizers import SGD, Optimizer
from mutua.spec import Spec


class Plan(Spec):
    """What is common to all methods. A round's local work is `epochs` or `steps`, one of them."""

    model_config = ConfigDict(validate_default=True)

    rounds: int = Field(20, ge=0)
    epochs: int | None = Field(None, ge=1)
    steps: int | None = Field(None, ge=1)
    batch_size: int = Field(128, ge=1)
    optimizer: Optimizer = Field(default_factory=SGD)
    client_fraction: float = Field(1.0, gt=0, le=1)
    min_replies: int = Field(1, ge=1)
    evaluate_every: int = Field(1, ge=1)
    augment: tuple[Augment, ...] = ()
    topology: str = "all"
    seed: int = Field(0, ge=0, lt=2**63)
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _local_work(cls, values: object) -> object:
        if isinstance(values, dict):
            if values.get("epochs") is not None and values.get("steps") is not None:
                raise ValueError("epochs and steps are both given; a round's local work is exactly one of them")
            if values.get("epochs") is None and values.get("steps") is None:
                values = {**values, "epochs": 1}
        return values

    def drawn(self, clients: int) -> int:
        """How many clients take part in a round."""
        return max(1, int(self.client_fraction * clients + 1e-9))
