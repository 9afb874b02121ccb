"""A site's policy: it is only ever stricter than the method, and refuses by the name of the rule."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mutua import Message, Plan, Privacy
from mutua.errors import Refused
from mutua.federation.message import Kind, count, weights
from mutua.federation.site_policy import SitePolicy

SHARES = {"meme": Kind.WEIGHTS, "samples": Kind.COUNT}
FOUND = {("global", "test"): {"accuracy": 0.5, "loss": 1.5}, ("predictor", "val"): {"accuracy": None}}


def plan(**privacy: Any) -> Plan:
    return Plan(privacy=Privacy(**{"level": "client", "noise": 1.0, "clip": 2.0, **privacy}))


@pytest.mark.parametrize(
    ("least", "planned", "said"),
    [
        ({"level": "example"}, plan(), r"policy.privacy.level: this site asks for example, the recipe has client"),
        ({"noise": 1.5}, plan(), r"policy.privacy.noise: at least 1.5, the recipe has 1"),
        ({"clip": 1}, plan(), r"policy.privacy.clip: at most 1, the recipe has 2"),
        ({}, plan(randomness="seeded"), r"policy.privacy: noise must come from this site's system"),
        ({}, Plan(), r"policy.privacy: this site asks for differential privacy, and the recipe has none"),
    ],
)
def test_weaker_privacy_than_the_site_asks_for_is_refused(least: Any, planned: Plan, said: str) -> None:
    with pytest.raises(Refused, match=said):
        SitePolicy(privacy=least).check_run(SHARES, planned)


def test_privacy_that_is_as_strong_or_stronger_is_accepted() -> None:
    least: Any = {"level": "client", "noise": 1.0, "clip": 2.0}
    for stronger in (plan(), plan(noise=3.0), plan(clip=0.5)):
        SitePolicy(privacy=least).check_run(SHARES, stronger)
    SitePolicy().check_run(SHARES, Plan())


def test_what_may_leave_holds_for_the_run_and_for_every_message() -> None:
    policy = SitePolicy(may_leave=(Kind.WEIGHTS,))
    with pytest.raises(Refused, match=r"policy.may_leave: count 'samples' would leave in every round"):
        policy.check_run(SHARES, Plan())
    meme = weights({"w": torch.zeros(2)})
    policy.check_message(Message(meme=meme))
    policy.check_message(None)
    with pytest.raises(Refused, match=r"policy.may_leave: count 'samples' may not leave this site"):
        policy.check_message(Message(meme=meme, samples=count(3)))


def test_bytes_are_limited_in_a_round_and_in_all() -> None:
    policy = SitePolicy(bytes_per_round=10, bytes_in_all=25)
    policy.check_bytes(10, 15)
    with pytest.raises(Refused, match=r"policy.bytes_per_round: 11 bytes would leave; at most 10"):
        policy.check_bytes(11, 0)
    policy.check_bytes(6, 0, in_round=4)
    with pytest.raises(Refused, match=r"policy.bytes_per_round: 7 bytes would leave after 4; at most 10"):
        policy.check_bytes(7, 0, in_round=4)
    with pytest.raises(Refused, match=r"policy.bytes_in_all: 10 bytes would leave after 16; at most 25 in all"):
        policy.check_bytes(10, 16)


@pytest.mark.parametrize(
    ("report", "told", "reports", "objective"),
    [
        ((), {}, False, False),
        ("accuracy", {"global/test": {"accuracy": 0.5}, "predictor/val": {"accuracy": None}}, True, False),
        (("loss", "objective"), {"global/test": {"loss": 1.5}}, True, True),
        ("objective", {}, False, True),
        ("all", {"global/test": FOUND["global", "test"], "predictor/val": {"accuracy": None}}, True, True),
    ],
)
def test_only_the_numbers_that_are_named_are_reported(
    report: Any, told: Any, reports: bool, objective: bool
) -> None:
    policy = SitePolicy(report=report)
    assert policy.reported(FOUND) == told
    assert (policy.reports, policy.tells_objective) == (reports, objective)
