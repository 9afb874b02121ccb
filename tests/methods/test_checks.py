"""What a reply must be before it is merged: every check says what is wrong in one line."""

from __future__ import annotations

import math

import pytest
import torch

from mutua import Kind, Message, Refused
from mutua.methods import Part, number
from mutua.methods.checks import check_number, check_rows


@pytest.mark.parametrize("value", [0.0, 0.25, 1.0])
def test_a_number_within_its_limits_is_given(value: float) -> None:
    assert check_number(Message(sure=number(Kind.ACCURACY, value)), "sure", "accuracy", 0, 1) == value


@pytest.mark.parametrize("value", [-0.01, 1.01, math.nan, math.inf, -math.inf])
def test_a_number_outside_is_refused(value: float) -> None:
    with pytest.raises(Refused, match=r"its accuracy \S+ is outside \[0, 1\]"):
        check_number(Message(sure=number(Kind.ACCURACY, value)), "sure", "accuracy", 0, 1)


def test_a_number_that_is_not_there_is_refused() -> None:
    with pytest.raises(Refused, match="its accuracy is missing"):
        check_number(Message(), "sure", "accuracy", 0, 1)


def rows(array: torch.Tensor, kind: Kind = Kind.SCORES, samples: int = 2) -> torch.Tensor:
    return check_rows(Message(public=Part(kind, {"": array})), "public", kind, 3, samples, "the public subset")


def test_rows_are_given_as_they_came() -> None:
    scores = torch.tensor([[-1.0, 0.0, 5.0], [2.0, 2.0, 2.0]])
    assert rows(scores) is scores
    assert len(rows(torch.softmax(scores, 1), Kind.PROBABILITIES)) == 2


@pytest.mark.parametrize("kind", [Kind.SCORES, Kind.PROBABILITIES])
@pytest.mark.parametrize(
    ("array", "said"),
    [
        (torch.full((2, 3), 1 / 3, dtype=torch.float64), "are torch.float64, not torch.float32"),
        (torch.full((2, 3), math.nan), "are not finite rows of 3"),
        (torch.full((2, 2), 0.5), "are not finite rows of 3"),
        (torch.full((3,), 1 / 3), "are not finite rows of 3"),
        (torch.full((1, 3), 1 / 3), "are of 1 samples; the public subset has 2"),
    ],
)
def test_rows_that_cannot_be_are_refused(kind: Kind, array: torch.Tensor, said: str) -> None:
    with pytest.raises(Refused, match=f"its {kind} {said}"):
        rows(array, kind)


@pytest.mark.parametrize("row", [[1.2, -0.2, 0.0], [0.5, 0.2, 0.2]])
def test_probabilities_are_at_least_0_and_sum_to_1(row: list[float]) -> None:
    rows(torch.tensor([row, row]))  # which scores need not
    with pytest.raises(Refused, match="at least 0, and their rows sum to 1"):
        rows(torch.tensor([row, row]), Kind.PROBABILITIES)
