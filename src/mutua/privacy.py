"""Privacy as a stage: what a client learned is clipped and noised before anything leaves, and accounted for.

McMahan et al. 2018, "Learning differentially private recurrent language models" (by client); Abadi et al. 2016,
"Deep learning with differential privacy" (by example). docs/privacy.md says what is promised, and to whom.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field

from mutua.errors import InputError
from mutua.message import Kind, Message, weights
from mutua.spec import Spec

if TYPE_CHECKING:
    from mutua.federation import Client
    from mutua.ledger import Ledger
    from mutua.methods.base import Method
    from mutua.participant import Job
    from mutua.plan import Plan

Level = Literal["client", "example"]

# How a method stops sending what would be neither noised nor counted.
WAYS_OUT = {Kind.COUNT: "set weights: uniform", Kind.ENTROPY: "set uncertain_merge: false"}


class Privacy(Spec):
    """Differential privacy of what leaves a client: for all of its data, or for each of its examples."""

    level: Level = "client"
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    delta: float = Field(1e-5, gt=0, lt=1)

    def check(self, method: Method, normed: bool) -> None:
        """Refuse a method whose messages this stage cannot cover; `normed` is whether memes normalise batches."""
        accountant()
        if method.pools_data:
            raise InputError(
                f"privacy: {method.name} brings all data to one place before anything could be noised"
            )
        for kind, name in method.shares.items():
            if kind is not Kind.WEIGHTS:
                way = WAYS_OUT.get(kind, "use a method that shares weights alone, such as fml")
                raise InputError(
                    f"privacy: {method.name} sends '{name}' ({kind}), which is neither noised nor counted; {way}"
                )
        if self.level == "client" or not method.shares:
            return
        if not method.one_way:
            raise InputError(
                f"privacy.level: 'example', but in {method.name} the meme also learns from a model that has seen "
                "the samples without noise; use level: client, or fedavg"
            )
        if normed:
            raise InputError(
                "privacy.level: 'example', but models.global mixes the samples of a batch (batch-norm); "
                "use a model without it, such as cnn1, or level: client"
            )

    def leaving(self, message: Message, brief: Message, stream: torch.Generator) -> Message:
        """The message with what the client learned clipped and noised: G + Δ·min(1, C/‖Δ‖) + N(0, σ²C²).

        Δ is meme − global, floating parameters and buffers as one vector. Whole numbers go back as they came.
        """
        if self.level == "example":
            return message  # its gradients were noised
        name = next(name for name, part in message.items() if part.kind is Kind.WEIGHTS)
        meme, before = message.arrays(name), brief.arrays("global")
        floating = [n for n, array in meme.items() if array.is_floating_point()]
        update = torch.cat([(meme[n].double() - before[n].double()).reshape(-1) for n in floating])
        norm = float(update.norm())
        # What has diverged is sent as no update at all: a NaN would tell.
        update = update * (self.clip / max(norm, self.clip)) if norm < torch.inf else torch.zeros_like(update)
        update += self.noise * self.clip * torch.randn(update.shape, generator=stream, dtype=update.dtype)
        noised = {n: before[n] for n in meme}
        for n, change in zip(floating, update.split([meme[n].numel() for n in floating]), strict=True):
            noised[n] = (before[n].double() + change.view_as(meme[n])).to(meme[n].dtype)
            if n.endswith("running_var"):  # noise may make a variance negative, which no model survives
                noised[n].clamp_min_(0)
        return Message(**{**message, name: weights(noised)})


class Uses(NamedTuple):
    """So many uses of the Gaussian mechanism: noise by sensitivity, and how likely one's data are in each."""

    noise: float
    rate: float
    times: int


@dataclass(frozen=True)
class Guarantee:
    """ε of a client's data, or of an example, in what different people see; None is no guarantee of its own."""

    settings: Privacy
    messages: float | None
    """For who sees every message: the server."""
    globals: float | None = None
    """For who sees the globals and no message: newcomers, users of the model."""
    sampled: float | None = None
    """For the same, if nobody knew who was drawn and everybody were drawn on his own: not so in mutua."""

    def __str__(self) -> str:
        if self.messages is None:
            return "none, since privacy.noise is 0"
        whose = "a client's data" if self.settings.level == "client" else "every example"
        text = f"of {whose}, ε = {self.messages:.3g} in all messages"
        if self.globals is not None:
            text += f", {self.globals:.3g} in the globals alone"
        if self.sampled is not None:
            text += f" ({self.sampled:.3g} if nobody could know who was drawn)"
        return f"{text}, at δ = {self.settings.delta:g}"

    @staticmethod
    def of(summary: Mapping[str, Any]) -> Guarantee:
        """The guarantee in a run's JSON."""
        settings = {key: value for key, value in summary.items() if key != "epsilon"}
        return Guarantee(Privacy.model_validate(settings), **summary["epsilon"])

    def summary(self) -> dict[str, Any]:
        """A run's JSON."""
        epsilon = {"messages": self.messages, "globals": self.globals, "sampled": self.sampled}
        return {**self.settings.model_dump(mode="json"), "epsilon": epsilon}


def guarantee(job: Job, clients: Sequence[Client], ledger: Ledger) -> Guarantee | None:
    """What a run's plan and its ledger promise; None where no privacy was asked for."""
    plan, privacy = job.plan, job.plan.privacy
    if privacy is None:
        return None
    noise, delta = privacy.noise, privacy.delta
    rounds: dict[str, list[int]] = {client.id: [] for client in clients}
    for entry in ledger:
        if entry.direction == "up" and entry.kind == Kind.WEIGHTS:
            rounds[entry.client].append(entry.round)
    together = Counter(chain.from_iterable(rounds.values()))
    if together and not noise:
        return Guarantee(privacy, None)
    if privacy.level == "example":
        uses = {_steps(plan, len(client.opted_in), len(rounds[client.id]), noise) for client in clients}
        return Guarantee(privacy, max(epsilon([use], delta) for use in uses))
    # Anybody may know who was drawn. So no client hides among those that were not, and each round counts in full.
    messages = epsilon([Uses(noise, 1.0, max(map(len, rounds.values())))], delta)
    if not job.method.averages:
        return Guarantee(privacy, messages)
    # The noise of a sum of m messages is √m times as large.
    most = max(rounds.values(), key=lambda mine: sum(1 / together[round] for round in mine))
    globals = epsilon([Uses(noise * math.sqrt(together[round]), 1.0, 1) for round in most], delta)
    able = sum(client.takes_part for client in clients)
    rate = plan.drawn(able) / able
    if rate == 1:
        return Guarantee(privacy, messages, globals)
    sampled = epsilon([Uses(noise * math.sqrt(m), rate, 1) for m in together.values()], delta)
    return Guarantee(privacy, messages, globals, sampled)


def _steps(plan: Plan, samples: int, rounds: int, noise: float) -> Uses:
    """What a client's training used of the Gaussian mechanism in so many rounds."""
    from mutua.learning.dpsgd import sampling_rate, steps_an_epoch

    steps = plan.steps or (plan.epochs or 1) * steps_an_epoch(samples, plan.batch_size)
    return Uses(noise, sampling_rate(samples, plan.batch_size), rounds * steps)


def epsilon(uses: Iterable[Uses], delta: float) -> float:
    """ε of these uses together, by Opacus' accountant of Rényi differential privacy."""
    times: Counter[tuple[float, float]] = Counter()
    for use in uses:
        times[use.noise, use.rate] += use.times
    ledger = accountant()()
    ledger.history = [(*use, number) for use, number in times.items() if number]
    # Orders beyond Opacus' own make the bound tighter where noise is large.
    orders = [*ledger.DEFAULT_ALPHAS, 80, 128, 256, 512, 1024]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of orders at the end of the list: the bound holds with any
        return float(ledger.get_epsilon(delta, alphas=orders)) if ledger.history else 0.0


def accountant() -> Any:
    """Opacus' accountant, or a word on how to get it."""
    try:
        from opacus.accountants import RDPAccountant
    except ImportError:
        raise InputError('privacy: its accountant is not here; pip install "mutua[dp]"') from None
    return RDPAccountant
