"""A chart for notebooks: where points lie, what is said, and that no text becomes markup."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from mutua.support.line_chart import MOST_LINE_POINTS, line_chart, nice_ticks


def shown(value: float) -> str:
    return f"{value:g}"


def polylines(page: str) -> list[list[tuple[float, float]]]:
    found = re.findall(r'<polyline points="(.*?)"', page)
    return [[tuple(map(float, pair.split(","))) for pair in one.split()] for one in found]  # type: ignore[misc]


def test_points_lie_in_proportion() -> None:
    page = line_chart({"a": [(0, 1.0), (5, 2.0), (10, 5.0)], "b": [(0, 5.0), (10, 1.0)]}, "round", "score", shown)
    ElementTree.fromstring(page)  # it is well formed
    (left, low), (middle, between), (right, high) = polylines(page)[0]
    assert middle - left == pytest.approx(right - middle, abs=0.11)
    assert (low - between) * 3 == pytest.approx(between - high, abs=0.4) and low > high  # SVG counts downwards
    assert polylines(page)[1] == [(left, high), (right, low)]
    assert 'aria-label="score over round; at the end: a 5, b 1"' in page


def test_what_cannot_be_drawn_is_left_out() -> None:
    assert line_chart({}, "round", "score", shown) == ""
    assert line_chart({"a": [(1, 2.0)]}, "round", "score", shown) == ""
    assert line_chart({"a": [(1, math.nan), (2, math.inf)]}, "round", "score", shown) == ""
    [line] = polylines(line_chart({"a": [(0, 1.0), (1, math.nan), (2, 3.0)]}, "round", "score", shown))
    assert len(line) == 2
    assert len(polylines(line_chart({"flat": [(0, 1.0), (1, 1.0)]}, "round", "score", shown))[0]) == 2
    [many] = polylines(line_chart({"a": [(k, k) for k in range(9_999)]}, "round", "score", shown))
    assert len(many) <= MOST_LINE_POINTS + 1 and many[-1][0] == 468.0  # the last point is at the right edge


def test_no_text_becomes_markup() -> None:
    evil = '"><script>alert(1)</script>'
    page = line_chart({evil: [(0, 1.0), (1, 2.0)]}, evil, evil, lambda value: evil)
    assert "<script>" not in page
    ElementTree.fromstring(page)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.31, 0.52, [0.35, 0.4, 0.45, 0.5]),
        (3, 3, [3]),
        (0, 500, [0, 100, 200, 300, 400, 500]),
        (-1e-3, 1e-3, [-0.001, -0.0005, 0, 0.0005, 0.001]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(ticks)


def test_rounds_have_whole_numbers_for_ticks() -> None:
    assert nice_ticks(0, 3, whole=True) == [0, 1, 2, 3] and nice_ticks(0, 1, whole=True) == [0, 1]
