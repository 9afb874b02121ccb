"""What the round loop asks of an engine, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from mutua.engines.work import Briefs, Replies
from mutua.errors import Fault
from mutua.federation.commit_files import CommitFiles
from mutua.federation.federation import Federation
from mutua.federation.store import Store
from mutua.learning.metrics import Metrics
from mutua.methods.base import Job
from mutua.support.tensor_files import Tensors

TOO_LONG = 10
"""A reply is refused unseen if it is so many times as long as the method says a reply is."""


class Evaluation(NamedTuple):
    """Metrics of the global on the common test set, if asked for; the clients' by id and (model, split)."""

    shared: Metrics | None
    clients: Mapping[str, Mapping[tuple[str, str], Metrics] | Fault]


class Engine(Protocol):
    """Where clients run. An engine moves messages and runs the clients' side of a method."""

    @property
    def stores(self) -> Mapping[str, Store]:
        """What each client keeps: the observer of a simulation may look."""

    def open(
        self,
        job: Job,
        federation: Federation,
        stores: Mapping[str, Store] | None = None,
        files: CommitFiles | None = None,
    ) -> None:
        """Take the job and prepare; `stores` are what clients kept when the run was stopped.

        Stores write their commits into `files`, or keep them in memory if there are none.
        """

    def start(self) -> None:
        """Every client's `start`."""

    def train(self, round: int, briefs: Briefs) -> Replies:
        """Send the briefs, let these clients train, and gather their replies."""

    def finish(self, round: int, briefs: Briefs) -> Replies:
        """Every client's `finish`."""

    def evaluate(self, round: int, briefs: Briefs, shared: Tensors | None) -> Evaluation:
        """The clients' predictors and the global on their own data; a complete `shared` on the common test set."""

    def mishaps(self) -> Sequence[tuple[str, str]]:
        """By client, what the machine failed in and did again since the last call."""

    def close(self) -> None:
        """Give back what the engine holds."""
