"""Schedules: exact values, the ways to write them, and what is refused."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from mutua import InputError
from mutua.learning.schedules import (
    NAMED_SCHEDULES,
    Cosine,
    Linear,
    Listed,
    Schedule,
    early_alpha_late_beta,
    value,
    within,
)


class Settings(BaseModel):
    """A recipe's section, as a method would declare it."""

    alpha: Annotated[Schedule, within(0, 1)] = 0.5
    rate: Schedule = 0.1


def read(text: str) -> Schedule:
    return Settings.model_validate(yaml.safe_load(f"alpha: {text}")).alpha


def refusal(**fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(fields)
    assert caught.value.error_count() == 1
    error = caught.value.errors()[0]
    return f"{'.'.join(map(str, error['loc']))}: {error['msg']}"


def values(schedule: Schedule, rounds: int) -> list[float]:
    return [value(schedule, round, rounds) for round in range(1, rounds + 1)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.5", 0.5),
        ("1", 1.0),
        ("1e-3", 0.001),  # YAML 1.1 reads this as text
        ("[0.9, 0.5]", Listed(values=(0.9, 0.5))),
        ("{schedule: linear, start: 0.3, end: 0.9}", Linear(start=0.3, end=0.9)),
        ("{schedule: cosine, start: 1, end: 0}", Cosine(start=1, end=0)),
        ("{schedule: list, values: [0.1]}", Listed(values=(0.1,))),
    ],
)
def test_what_a_recipe_may_say(text: str, expected: Schedule) -> None:
    schedule = read(text)
    assert schedule == expected
    assert type(schedule) is type(expected)
    again = Settings(alpha=schedule)
    assert again.alpha == expected
    assert Settings.model_validate_json(again.model_dump_json()) == again


def test_a_constant_stays() -> None:
    assert values(0.25, 3) == [0.25] * 3


def test_linear_is_exact_at_the_ends_and_in_the_middle() -> None:
    assert values(Linear(start=0.25, end=0.75), 5) == [0.25, 0.375, 0.5, 0.625, 0.75]
    assert value(Linear(start=0.3, end=0.9), 10, 10) == 0.9
    assert 0.3 + (0.9 - 0.3) != 0.9  # why the end needs care


def test_cosine_is_exact_at_the_ends_and_in_the_middle() -> None:
    found = values(Cosine(start=1, end=0), 5)
    quarter = (1 - math.cos(math.pi / 4)) / 2
    assert found == pytest.approx([1, 1 - quarter, 0.5, quarter, 0], abs=1e-15)
    assert (found[0], found[-1]) == (1, 0)


def test_a_list_gives_its_values_and_the_last_one_stays() -> None:
    assert values(Listed(values=(0.9, 0.5, 0.1)), 5) == [0.9, 0.5, 0.1, 0.1, 0.1]
    assert values(Listed(values=(0.9, 0.5, 0.1)), 2) == [0.9, 0.5]


@pytest.mark.parametrize("schedule", [Linear(start=0.3, end=0.9), Cosine(start=0.3, end=0.9)])
def test_a_single_round_takes_the_start(schedule: Schedule) -> None:
    assert value(schedule, 1, 1) == 0.3


@pytest.mark.parametrize(
    "schedule", [Linear(start=0.3, end=0.9), Cosine(start=0.3, end=0.9), Listed(values=(0.3, 0.9))]
)
def test_outside_the_rounds_the_nearest_value_holds(schedule: Schedule) -> None:
    assert (value(schedule, 0, 4), value(schedule, 5, 4)) == (0.3, 0.9)


unit = st.floats(0, 1)


@given(unit, unit, st.integers(1, 60), st.sampled_from([Linear, Cosine]))
def test_values_go_one_way_from_start_to_end(
    start: float, end: float, rounds: int, kind: type[Linear] | type[Cosine]
) -> None:
    found = values(kind(start=start, end=end), rounds)
    assert found[0] == start
    assert rounds == 1 or found[-1] == end
    sign = 1 if end >= start else -1
    assert all(sign * (b - a) >= -1e-15 for a, b in pairwise(found))


@pytest.mark.parametrize(
    ("given_", "parts"),
    [
        (
            {"schedule": "liner", "start": 0, "end": 1},
            ["alpha", "'liner'", "linear, cosine, list"],
        ),
        ({"start": 0, "end": 1}, ["alpha", "schedule", "linear, cosine, list"]),
        ({"schedule": ["list"]}, ["alpha", "['list']", "linear, cosine, list"]),
        ({"schedule": "linear", "start": 0}, ["alpha", "end", "required"]),
        ({"schedule": "linear", "start": 0, "end": 1, "stop": 2}, ["alpha", "stop", "not permitted"]),
        ({"schedule": "cosine", "start": "low", "end": 1}, ["alpha", "start", "'low'"]),
        ({"schedule": "linear", "start": 0, "end": math.nan}, ["alpha", "end", "nan"]),
        ([], ["alpha", "empty list", "at least one number"]),
        ([0.5, "much"], ["alpha", "'much'"]),
        ("much", ["alpha", "'much'", "linear | cosine | list"]),
        (None, ["alpha", "None", "give a number"]),
        (True, ["alpha", "True", "give a number"]),
        (math.nan, ["alpha", "nan"]),
        (math.inf, ["alpha", "inf"]),
        (10**400, ["alpha", "finite"]),
    ],
)
def test_mistakes_are_named(given_: Any, parts: list[str]) -> None:
    message = refusal(alpha=given_)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "out",
    [
        1.5,
        [0.5, 1.5],
        {"schedule": "linear", "start": 0, "end": 1.5},
        {"schedule": "cosine", "start": 1.5, "end": 1},
        Linear(start=1.5, end=0),
    ],
)
def test_within_names_the_value_and_the_range(out: Any) -> None:
    assert refusal(alpha=out) == "alpha: Value error, 1.5 is out of range; give a value from 0 to 1"
    Settings(rate=out)  # a field without a range takes it


def test_within_allows_its_ends() -> None:
    assert Settings(alpha=Linear(start=0, end=1)).alpha == Linear(start=0, end=1)


def test_infinity_is_refused_even_without_a_range() -> None:
    assert "inf" in refusal(rate=math.inf)


def test_schedules_cannot_be_changed() -> None:
    with pytest.raises(InputError, match="frozen"):
        Linear(start=0, end=1).end = 2  # type: ignore[misc]


def test_early_alpha_late_beta() -> None:
    alpha, beta = early_alpha_late_beta()
    assert NAMED_SCHEDULES["early-alpha-late-beta"]() == (alpha, beta)
    assert values(alpha, 3) == pytest.approx([0.7, 0.5, 0.3])
    assert values(beta, 3) == pytest.approx([0.3, 0.5, 0.7])
