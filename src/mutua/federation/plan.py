"""A plan: how long, how fast and with which seed a method is run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, field_serializer, model_validator

from mutua.data.transforms import Augment
from mutua.errors import InputError
from mutua.federation.privacy import Privacy
from mutua.learning.optimizers import SGD, Optimizer
from mutua.learning.precision import Precision
from mutua.seeds import numpy_stream, public
from mutua.support.configuration import Spec

Selection = Literal["last", "last5", "best"]
SELECTIONS: dict[Selection, str] = {
    "last": "after the last round",
    "last5": "over the last 5 evaluations",
    "best": "when best on validation",
}
"""Which evaluation a reported number is taken from. None of them looks at test data."""


def _topology(given: object) -> object:
    if isinstance(given, str | Path) or hasattr(given, "neighbors"):
        return given
    raise ValueError("give all, pairs, ring, a file that holds a graph or a networkx graph")


class Budget(Spec):
    """What all clients together may send. Rounds become fewer and longer; total local steps stay the same."""

    bytes_up: int = Field(ge=1)


class Plan(Spec):
    """What is common to all methods. A round's local work is either `epochs` or `steps`."""

    model_config = ConfigDict(validate_default=True)

    rounds: int = Field(20, ge=0)
    epochs: int | None = Field(None, ge=1)
    steps: int | None = Field(None, ge=1)
    batch_size: int = Field(128, ge=1)
    # fml-2023's own setting; its learning rate is ours.
    optimizer: Optimizer = Field(default_factory=lambda: SGD(lr=0.01, momentum=0.9, weight_decay=5e-4))
    client_fraction: float = Field(1.0, gt=0, le=1)
    min_replies: int = Field(1, ge=1)
    deadline: float | None = Field(None, gt=0)
    """Seconds that a client's work may take."""
    evaluate_every: int = Field(1, ge=1)
    selection: Selection = "last"
    augment: tuple[Augment, ...] = ()
    topology: Annotated[Any, AfterValidator(_topology)] = "all"
    budget: Budget | None = None
    privacy: Privacy | None = None
    seed: int = Field(0, ge=0, lt=2**63)
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Precision = "float32"

    @field_serializer("topology", when_used="json")
    def _write_topology(self, topology: Any) -> str:
        return str(topology) if isinstance(topology, str | Path) else "a graph given in Python"

    @model_validator(mode="before")
    @classmethod
    def _local_work(cls, values: object) -> object:
        if isinstance(values, dict):
            if values.get("epochs") is not None and values.get("steps") is not None:
                raise ValueError("epochs and steps are both given; a round's local work is exactly one of them")
            if values.get("epochs") is None and values.get("steps") is None:
                values = {**values, "epochs": 1}
        return values

    def within_budget(self, reply_bytes: int, clients: int) -> Plan:
        """The same total of local steps in as many rounds as the budget allows."""
        if self.budget is None or not reply_bytes:
            return self
        if self.steps is None:
            raise InputError("budget: it divides a total of local steps over rounds; give steps instead of epochs")
        per_round = reply_bytes * self.drawn(clients)
        total, most = self.rounds * self.steps, min(self.rounds, self.budget.bytes_up // per_round)
        if not most:
            raise InputError(
                f"budget.bytes_up: {self.budget.bytes_up}, but one round of this method sends {per_round} bytes"
            )
        rounds = next(number for number in range(most, 0, -1) if total % number == 0)
        return self.model_copy(update={"rounds": rounds, "steps": total // rounds})

    def drawn(self, clients: int) -> int:
        """How many clients take part in a round."""
        return max(1, int(self.client_fraction * clients + 1e-9))

    def draw(self, ids: Sequence[str], round: int) -> list[str]:
        """The round's clients, in id order: a public draw, so anybody can check it."""
        rng = numpy_stream(public(self.seed), round, "clients")
        return sorted(rng.choice(ids, size=self.drawn(len(ids)), replace=False).tolist())
