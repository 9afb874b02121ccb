"""Privacy as a stage: what a client learned is clipped and noised before anything leaves, and accounted for.

McMahan et al. 2018, "Learning differentially private recurrent language models" (by client); Abadi et al. 2016,
"Deep learning with differential privacy" (by example). docs/privacy.md says what is promised, and to whom.
"""

from __future__ import annotations

import logging
import math
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

import torch
from pydantic import Field, field_validator, model_validator

from mutua.errors import InputError
from mutua.federation.message import Kind, Message, weights
from mutua.seeds import Path, normals, torch_stream
from mutua.support.configuration import Spec

if TYPE_CHECKING:
    from mutua.federation.federation import Client, Federation
    from mutua.federation.ledger import Ledger
    from mutua.federation.plan import Plan
    from mutua.federation.store import State
    from mutua.methods.base import Method
    from mutua.methods.participant import Job
    from mutua.rounds.participation import Participation

Level = Literal["client", "example"]

# How a method stops sending what would be neither noised nor counted.
WAYS_OUT = {Kind.COUNT: "set weights: uniform", Kind.ENTROPY: "set uncertain_merge: false"}


RANDOMNESS = {
    "system": "noise from the system's random source, so the run does not repeat",
    "seeded": "noise from the seed, which whoever knows the seed can take off",
}
LEAST_NOISE = 1e-3
MOST = 1e30
"""Noise times clip: beyond it a float32 could not hold a noised number."""


class Privacy(Spec):
    """Differential privacy of what leaves a client: for all of its data, or for each of its examples."""

    level: Level = "client"
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    delta: float = Field(1e-5, ge=1e-100, lt=1)
    budget: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The most that ε may become in all messages: rounds that would pass it are not run."""
    randomness: Literal["system", "seeded"] = "system"
    """Where noise comes from: the system, or the seed, so that runs repeat and who knows it can take it off."""

    @field_validator("noise")
    @classmethod
    def _countable(cls, noise: float) -> float:
        if 0 < noise < LEAST_NOISE:
            raise ValueError(
                f"{noise} is less than any accountant counts; give at least {LEAST_NOISE:g}, or 0 to clip only"
            )
        return noise

    @model_validator(mode="after")
    def _representable(self) -> Self:
        if self.noise * self.clip > MOST:
            raise ValueError(
                f"noise × clip is {self.noise * self.clip:.3g}, which float32 drowns in; at most {MOST:g}"
            )
        if self.budget is not None and not self.noise:
            raise ValueError("budget: without noise there is no ε to keep below it; give noise above 0")
        return self

    def check(self, method: Method, normed: bool) -> None:
        """Refuse a method whose messages this stage cannot cover; `normed` is whether memes normalise batches."""
        accounting()
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

    def stream(self, root: int, *path: Path) -> torch.Generator | None:
        """What noise and secret draws come from: the stream of this name, or the system, which is None."""
        return torch_stream(root, *path) if self.randomness == "seeded" else None

    def leaving(self, message: Message, brief: Message, stream: torch.Generator | None) -> Message:
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
        update += self.noise * self.clip * normals(len(update), stream, update.dtype)
        noised = {n: before[n] for n in meme}
        for n, change in zip(floating, update.split([meme[n].numel() for n in floating]), strict=True):
            noised[n] = (before[n].double() + change.view_as(meme[n])).to(meme[n].dtype)
        return Message(**{**message, name: weights(noised)})

    def merged(self, state: State) -> State:
        """The server's state with no variance below 0: noise may bring one there, and no model survives it.

        It is done to the merged: of messages that were cut off one by one the sum would not be normal any more.
        """
        return {
            group: {n: a.clamp_min(0) if n.endswith("running_var") else a for n, a in arrays.items()}
            for group, arrays in state.items()
        }


class Uses(NamedTuple):
    """So many uses of the Gaussian mechanism: noise by sensitivity, and how likely one's data are in each."""

    noise: float
    rate: float
    times: int


Mechanism = tuple[Uses, ...]
"""All that somebody sees of one client's data, or of one example."""


class Epsilon(NamedTuple):
    """ε of a client's data, or of an example, in what different people see; None is no guarantee of its own."""

    messages: float | None
    """For who sees every message: the server."""
    globals: float | None = None
    """For who sees the globals and no message: newcomers, users of the model."""
    sampled: float | None = None
    """For the same, if nobody knew who was drawn and everybody were drawn on his own: not so in mutua."""

    def __str__(self) -> str:
        text = f"{self.messages:.3g} in all messages"
        if self.globals is not None:
            text += f", {self.globals:.3g} in the globals alone"
        if self.sampled is not None:
            text += f" ({self.sampled:.3g} if nobody could know who was drawn)"
        return text


@dataclass(frozen=True)
class Guarantee:
    """What a run promises: ε by a tight accountant, and beside it by Rényi differential privacy."""

    settings: Privacy
    epsilon: Epsilon
    rdp: Epsilon | None = None

    def __str__(self) -> str:
        if self.epsilon.messages is None:
            return "none, since privacy.noise is 0"
        whose = "a client's data" if self.settings.level == "client" else "every example"
        text = f"of {whose}, ε = {self.epsilon}, at δ = {self.settings.delta:g}"
        if self.rdp is not None:
            text += f"; by Rényi accounting {', '.join(f'{value:.3g}' for value in self.rdp if value is not None)}"
        return f"{text}; {RANDOMNESS[self.settings.randomness]}"

    @staticmethod
    def of(summary: Mapping[str, Any]) -> Guarantee:
        """The guarantee in a run's JSON."""
        settings = {key: value for key, value in summary.items() if key not in ("epsilon", "rdp")}
        settings.setdefault("randomness", "seeded")  # as all noise was before there was a choice
        rdp = summary.get("rdp")
        return Guarantee(
            Privacy.model_validate(settings),
            Epsilon(**summary["epsilon"]),
            None if rdp is None else Epsilon(**rdp),
        )

    def summary(self) -> dict[str, Any]:
        """A run's JSON."""
        rdp = None if self.rdp is None else self.rdp._asdict()
        return {**self.settings.model_dump(mode="json"), "epsilon": self.epsilon._asdict(), "rdp": rdp}


def guarantee(
    job: Job, clients: Sequence[Client], ledger: Ledger, participation: Participation
) -> Guarantee | None:
    """What a run promises by its plan, what was sent and what was merged; None where no privacy was asked for."""
    plan, privacy = job.plan, job.plan.privacy
    if privacy is None:
        return None
    noise = privacy.noise
    sent: dict[str, set[int]] = {client.id: set() for client in clients}
    merged: dict[str, set[int]] = {client.id: set() for client in clients}
    for entry in ledger:
        if entry.direction == "up" and entry.kind == Kind.WEIGHTS:
            sent[entry.client].add(entry.round)
    for turn in participation:
        if turn.outcome == "merged":
            merged[turn.client].add(turn.round)
    if not noise and any(sent.values()):
        return Guarantee(privacy, Epsilon(None))
    messages = seen_in_messages(plan, privacy, clients, {client: len(rounds) for client, rounds in sent.items()})
    if privacy.level == "example" or not job.method.averages:
        return _guarantee(privacy, messages)
    # The noise of a sum of m messages is √m times as large. What was refused is not in it, nor is its noise.
    together = participation.merged
    in_sums = [
        tuple(Uses(noise * math.sqrt(together[round]), 1.0, 1) for round in mine) for mine in merged.values()
    ]
    able = sum(client.takes_part for client in clients)
    rate = plan.drawn(able) / able
    sampled = [tuple(Uses(noise * math.sqrt(m), rate, 1) for m in together.values())]
    return _guarantee(privacy, messages, in_sums, sampled if rate < 1 else None)


def seen_in_messages(
    plan: Plan, privacy: Privacy, clients: Iterable[Client], rounds: Mapping[str, int]
) -> list[Mechanism]:
    """By client, what its messages of so many rounds show of it, or of each of its examples."""
    # Anybody may know who was drawn. So no client hides among those that were not, and each round counts in full.
    if privacy.level == "client":
        return [(Uses(privacy.noise, 1.0, rounds[client.id]),) for client in clients]
    sending = [client for client in clients if rounds[client.id]]  # others may have no sample to send anything of
    return [(_steps(plan, len(client.opted_in), rounds[client.id], privacy.noise),) for client in sending]


def _steps(plan: Plan, samples: int, rounds: int, noise: float) -> Uses:
    """What a client's training used of the Gaussian mechanism in so many rounds."""
    from mutua.learning.private_training import sampling_rate, steps_an_epoch

    steps = plan.steps or (plan.epochs or 1) * steps_an_epoch(samples, plan.batch_size)
    return Uses(noise, sampling_rate(samples, plan.batch_size), rounds * steps)


def _guarantee(privacy: Privacy, *views: list[Mechanism] | None) -> Guarantee:
    """Of each view, one mechanism by client, the client's that is hidden least."""

    def by(account: Account) -> Epsilon:
        return Epsilon(*(None if view is None else largest(view, privacy.delta, account) for view in views))

    return Guarantee(privacy, by(epsilon), by(rdp))


def within_budget(plan: Plan, method: Method, federation: Federation) -> Plan:
    """The plan with no more rounds than its ε pays for, if every client that is drawn replies."""
    privacy = plan.privacy
    if privacy is None or privacy.budget is None or not method.shares:
        return plan
    settings, able = privacy, federation.drawable(method.needs_global)
    drawn = [plan.draw(able, round) for round in range(1, plan.rounds + 1)]

    def spent(rounds: int) -> float:
        times = Counter(client for clients in drawn[:rounds] for client in clients)
        return largest(seen_in_messages(plan, settings, federation.clients, times), settings.delta, epsilon)

    affordable = bisect_right(range(1, plan.rounds + 1), privacy.budget, key=spent)
    if plan.rounds and not affordable:
        raise InputError(
            f"privacy.budget: {privacy.budget:g}, but one round spends ε = {spent(1):.3g}; "
            "raise it, or privacy.noise"
        )
    return plan.model_copy(update={"rounds": affordable})


# Accounting

Account = Callable[[Mechanism, float], float]


def epsilon(uses: Iterable[Uses], delta: float) -> float:
    """ε of these uses together: exact where nothing is sampled, else by privacy loss distributions (PLD)."""
    uses = _joined(uses)
    if all(use.rate == 1 for use in uses):
        # Many Gaussian mechanisms are one, and its ε has a closed form: Balle and Wang 2018, Theorem 8.
        with quiet():
            return float(accounting().get_epsilon_gaussian(_precision(uses) ** -0.5, delta)) if uses else 0.0
    bound = rdp(uses, delta)
    if not PLD_FROM < bound < PLD_TO or delta < PLD_DELTA:
        return bound
    fine = accounting().pld.PLDAccountant(value_discretization_interval=bound * 1e-4)
    return min(bound, _composed(fine, uses, delta))


PLD_FROM, PLD_TO, PLD_DELTA = 1e-3, 1e3, 1e-12
"""Beyond them its grid is too coarse, too long or its sums not exact enough; what RDP says then holds too."""


def rdp(uses: Iterable[Uses], delta: float, orders: Sequence[float] | None = None) -> float:
    """ε of these uses together by Rényi differential privacy: an upper bound, at any orders."""
    return _composed(accounting().rdp.RdpAccountant(orders), _joined(uses), delta)


def largest(mechanisms: Iterable[Mechanism], delta: float, account: Account) -> float:
    """The largest ε of these. Most are ruled out by a bound that costs a hundredth."""
    different = set(map(_joined, mechanisms))
    if all(use.rate == 1 for uses in different for use in uses):
        return account(max(different, key=_precision, default=()), delta)
    bounds = {uses: rdp(uses, delta, QUICK) for uses in different}
    most = 0.0
    for uses, bound in sorted(bounds.items(), key=lambda item: -item[1]):
        if bound <= most:
            break
        most = max(most, account(uses, delta))
    return most


QUICK = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)
"""Orders at which RDP needs no series."""


def _precision(uses: Mechanism) -> float:
    """1/σ² of the one Gaussian mechanism that many are together, where nothing is sampled."""
    return sum(use.times / use.noise**2 for use in uses)


def _joined(uses: Iterable[Uses]) -> Mechanism:
    """The same with every pair of noise and rate once."""
    times: Counter[tuple[float, float]] = Counter()
    for use in uses:
        times[use.noise, use.rate] += use.times
    return tuple(Uses(*use, number) for use, number in sorted(times.items()) if number)


def _composed(accountant: Any, uses: Mechanism, delta: float) -> float:
    library = accounting()
    with quiet():
        for use in uses:
            event = library.GaussianDpEvent(use.noise)
            if use.rate < 1:
                event = library.PoissonSampledDpEvent(use.rate, event)
            accountant.compose(event, use.times)
        return float(accountant.get_epsilon(delta))


@contextmanager
def quiet() -> Iterator[None]:
    """Without the library's warnings of orders that it leaves out: the bound holds with the others."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def accounting() -> Any:
    """The library of accountants, or a word on how to get it."""
    try:
        import dp_accounting
    except ImportError:
        raise InputError('privacy: its accountants are not here; pip install "mutua[dp]"') from None
    return dp_accounting
