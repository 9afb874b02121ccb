"""FML, federated mutual learning: clients keep models of their own and share a meme.

Shen et al. 2020, "Federated mutual learning" (Eq. 3); Shen et al. 2023, "Federated mutual learning: a
collaborative machine learning method for heterogeneous data, models, and objectives" (Eqs. 5 and 6,
Algorithm 1).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import model_validator
from torch import nn

from mutua.federation.message import Message
from mutua.learning.schedules import NAMED_SCHEDULES, Schedule, value, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import How, Hub, can_stop_early, register
from mutua.methods.participant import Participant

Proportion = Annotated[Schedule, within(0, 1)]


class Mutual(Hub):
    """Mutual learning without its losses: a personal model that stays, and a meme that is merged."""

    any_task: ClassVar[bool] = True
    own_models: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    joins_by: ClassVar[How] = "mutual"
    temperature: Annotated[Schedule, within(1e-3, 1e3)] = 1.0
    init: Literal["own", "global"] = "own"

    def start(self, client: Participant) -> None:
        """The personal model starts on its own, or as the global did where it has the same shape."""
        client.initialise("personal", like="global" if self._as_global(client) else "own")

    def _as_global(self, client: Participant) -> bool:
        return self.init == "global" and client.architecture.same_design(client.global_architecture)

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Fork the meme, let both teach each other on own data, send the meme. n_k stays at home."""
        models = {"personal": client.model("personal"), "meme": client.fork(brief)}
        client.fit(self.objective, models)
        return self.reply(client, models["meme"])

    def personalise(self, client: Participant, brief: Message | None, how: How) -> None:
        """Also: adapt a model of the newcomer's own design by mutual learning with a copy of the global.

        With `init: global` it starts as the global is now, since a newcomer has no other.
        """
        if how != "mutual":
            return super().personalise(client, brief, how)
        can_stop_early(client, how)
        if self._as_global(client):
            client.keep("personal", client.fork(brief))
        else:
            self.start(client)
        models = {"personal": client.model("personal"), "meme": client.fork(brief)}
        client.fit(self.objective, models, until=self.stopping("personal"))

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """A participant serves with its personal model, a newcomer with the global or what it made of it."""
        return client.model("personal") if "personal" in client.state else super().predictor(client, brief)


@register
class FML(Mutual):
    """The personal model and the meme teach each other; only memes are merged, with equal weights."""

    name: ClassVar[str] = "fml"
    any_task: ClassVar[bool] = True
    alpha: Proportion = 0.5
    beta: Proportion = 0.5
    schedule: Literal["early-alpha-late-beta"] | None = None

    @model_validator(mode="after")
    def _one_schedule(self) -> FML:
        given = [name for name in ("alpha", "beta") if getattr(self, name) != 0.5]
        if self.schedule is not None and given:
            raise ValueError(f"schedule '{self.schedule}' sets alpha and beta; leave out {given[0]}")
        return self

    def numbers(self, round: int, rounds: int) -> Numbers:
        """α and β by the named schedule where one is given."""
        numbers = super().numbers(round, rounds)
        if self.schedule is not None:
            numbers.alpha, numbers.beta = (value(s, round, rounds) for s in NAMED_SCHEDULES[self.schedule]())
        return numbers

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """L_local = α·CE + (1−α)·KL(meme ‖ personal), L_meme = β·CE + (1−β)·KL(personal ‖ meme)."""
        taught = batch.task.taught
        personal, meme = models["personal"](batch.x), models["meme"](batch.x)
        return {
            "personal": taught(personal, batch.y, meme, hp.alpha, 1 - hp.alpha, hp.temperature),
            "meme": taught(meme, batch.y, personal, hp.beta, 1 - hp.beta, hp.temperature),
        }
