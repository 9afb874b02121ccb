"""What a run promises: the differential privacy of what left its clients, and what it refuses or costs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mutua.errors import InputError
from mutua.federation.client import Client
from mutua.federation.federation import Federation
from mutua.federation.ledger import Ledger
from mutua.federation.message import Kind
from mutua.federation.plan import Plan
from mutua.federation.privacy import Privacy
from mutua.federation.privacy_accounting import Account, Mechanism, Uses, accounting, epsilon, largest, rdp
from mutua.learning.private_training import sampling_rate, steps_per_epoch
from mutua.methods.base import Hub, Job, Method
from mutua.methods.promises import doubt, promised
from mutua.rounds.participation import Participation

# How a method stops sending what would be neither noised nor counted.
WAYS_OUT = {
    Kind.COUNT: "set weights: uniform",
    Kind.ENTROPY: "set uncertain_merge: false",
    Kind.FACTORS: "set energy: 1",
}
RANDOMNESS = {
    "system": "noise from the system's random source, so the run does not repeat",
    "seeded": "noise from the seed, which whoever knows the seed can take off",
}


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
        if self.epsilon.messages is None and self.settings.noise:
            return (
                "of every example, by noise whose ε each client knows alone: it depends on how many samples it has"
            )
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


def check_privacy(privacy: Privacy, method: Method, normed: bool) -> None:
    """Refuse a method whose messages the stage cannot cover; `normed` is whether memes normalise batches."""
    accounting()
    if method.pools_data:
        raise InputError(f"privacy: {method.name} brings all data to one place before anything could be noised")
    for name, kind in method.shares.items():
        if kind is not Kind.WEIGHTS:
            way = WAYS_OUT.get(kind, "use a method that shares weights alone, such as fml")
            raise InputError(
                f"privacy: {method.name} sends '{name}' ({kind}), which is neither noised nor counted; {way}"
            )
    if len(method.shares) > 1:
        parts = " and ".join(f"'{name}'" for name in method.shares)
        raise InputError(f"privacy: {method.name} sends weights in {parts}; the stage noises one part")
    if method.shares and not isinstance(method, Hub):
        raise InputError(
            f"privacy: {method.name} sends models that are no update of a global, and updates are what is noised; "
            "use a method that merges weights, such as fml"
        )
    if privacy.level == "client" or not method.shares:
        return
    if why := doubt(type(method), "only_own_gradients"):
        raise InputError(f"privacy.level: 'example', but {why}, or use level: client")
    if not method.only_own_gradients:
        raise InputError(
            f"privacy.level: 'example', but in {method.name} the meme also learns from a model that has seen "
            "the samples without noise, or by more than their own gradients; use level: client, or fedavg"
        )
    if why := method.breaks("only_own_gradients"):
        raise InputError(f"privacy.level: 'example', but {method.name}: {why}; use level: client")
    if normed:
        raise InputError(
            "privacy.level: 'example', but models.global mixes the samples of a batch (batch-norm); "
            "use a model without it, such as cnn1, or level: client"
        )


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
    if privacy.level == "example" or not _averages(job.method):
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


def _averages(method: Method) -> bool:
    return method.averages and promised(type(method), "averages")


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
    steps = plan.steps or (plan.epochs or 1) * steps_per_epoch(samples, plan.batch_size)
    return Uses(noise, sampling_rate(samples, plan.batch_size), rounds * steps)


def _guarantee(privacy: Privacy, *views: list[Mechanism] | None) -> Guarantee:
    """Of each view, one mechanism by client, the client's that is hidden least."""

    def by(account: Account) -> Epsilon:
        return Epsilon(*(None if view is None else largest(view, privacy.delta, account) for view in views))

    return Guarantee(privacy, by(epsilon), by(rdp))


def within_epsilon(plan: Plan, method: Method, federation: Federation) -> Plan:
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
