"""What a site is willing to let leave: it can only be stricter than what the method declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from mutua.errors import Refused
from mutua.federation.message import Kind, Message, Shares
from mutua.federation.plan import Plan
from mutua.federation.privacy import Level
from mutua.support.configuration import Spec
from mutua.support.text import several


class LeastPrivacy(Spec):
    """The weakest differential privacy that a site accepts."""

    level: Level | None = None
    noise: float = Field(0.0, ge=0)
    """At least so much."""
    clip: float | None = Field(None, gt=0)
    """At most so much."""


def _names(given: object) -> object:
    return (given,) if isinstance(given, str) else given


class SitePolicy(Spec):
    """What may leave a site. Everything here is checked on the site's own machine, before anything is sent."""

    may_leave: tuple[Kind, ...] | None = None
    """Kinds of parts; None is what the method declares."""
    bytes_per_round: int | None = Field(None, ge=0)
    bytes_in_all: int | None = Field(None, ge=0)
    partners: int = Field(0, ge=0)
    """How many other sites must at least take part in a round, as the server says."""
    privacy: LeastPrivacy | None = None
    report: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    """The numbers of its evaluations that leave, such as accuracy and loss; "all" is every one, "objective" what
    training minimised. Nothing is said if it is empty."""

    def check_run(self, shares: Shares, plan: Plan) -> None:
        """Refuse a run that this policy can never let through: before its first round."""
        kept = [name for name, kind in shares.items() if self.may_leave is not None and kind not in self.may_leave]
        if kept:
            named = ", ".join(f"{shares[name]} '{name}'" for name in kept)
            raise Refused(f"policy.may_leave: {named} would leave in every round, and this site does not let it")
        if (least := self.privacy) is None:
            return
        found = plan.privacy
        if found is None:
            raise Refused("policy.privacy: this site asks for differential privacy, and the recipe has none")
        if least.level is not None and found.level != least.level:
            raise Refused(f"policy.privacy.level: this site asks for {least.level}, the recipe has {found.level}")
        if found.noise < least.noise:
            raise Refused(f"policy.privacy.noise: at least {least.noise:g}, the recipe has {found.noise:g}")
        if least.clip is not None and found.clip > least.clip:
            raise Refused(f"policy.privacy.clip: at most {least.clip:g}, the recipe has {found.clip:g}")
        if found.randomness != "system":
            raise Refused("policy.privacy: noise must come from this site's system, the recipe says seeded")

    def check_partners(self, partners: int) -> None:
        """Refuse a round with too few others."""
        if partners < self.partners:
            there = several(partners, "other site")
            raise Refused(f"policy.partners: {there} in this round; this site asks for {self.partners}")

    def check_message(self, message: Message | None) -> None:
        """Refuse a reply that holds what may not leave."""
        if self.may_leave is None:
            return
        for name, part in (message or {}).items():
            if part.kind not in self.may_leave:
                raise Refused(f"policy.may_leave: {part.kind} '{name}' may not leave this site")

    def check_bytes(self, size: int, sent: int, in_round: int = 0) -> None:
        """Refuse to send so many bytes, after so many of this run and of this round."""
        if self.bytes_per_round is not None and in_round + size > self.bytes_per_round:
            after = f" after {in_round}" if in_round else ""
            raise Refused(
                f"policy.bytes_per_round: {size} bytes would leave{after}; at most {self.bytes_per_round}"
            )
        if self.bytes_in_all is not None and sent + size > self.bytes_in_all:
            raise Refused(
                f"policy.bytes_in_all: {size} bytes would leave after {sent}; at most {self.bytes_in_all} in all"
            )

    def reported(
        self, metrics: Mapping[tuple[str, str], Mapping[str, float | None]]
    ) -> dict[str, dict[str, float | None]]:
        """Of an evaluation, what this site tells: by "model/split"."""
        every = "all" in self.report
        told = {
            f"{model}/{split}": {name: number for name, number in found.items() if every or name in self.report}
            for (model, split), found in metrics.items()
        }
        return {name: numbers for name, numbers in told.items() if numbers}

    @property
    def reports(self) -> bool:
        """Whether any number of an evaluation leaves."""
        return bool(set(self.report) - {"objective"})

    @property
    def tells_objective(self) -> bool:
        """Whether the server may see what training minimised."""
        return bool({"all", "objective"} & set(self.report))
