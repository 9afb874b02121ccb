"""A line chart as SVG text, for notebooks: no drawing library, no script, nothing from the web."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from mutua.support.text import markup

Point = tuple[float, float]
_COLOURS = ("#2a78c2", "#d9780f", "#17936b", "#a855a0", "#c0392b", "#7f7f7f")  # seen on white and on black
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2", "10 4")
"""Lines differ in more than colour."""
_SIZE = 480, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 34
MOST_LINE_POINTS = 300
"""A line has no more points than the chart can show."""


def line_chart(
    lines: Mapping[str, Sequence[Point]], across: str, upwards: str, shown: Callable[[float], str]
) -> str:
    """Lines by label, over the same axes; '' if there are not two points to connect.

    `across` and `upwards` are the titles of the axes; `shown` writes a number of the upright one.
    """
    drawn = {label: _thinned(points) for label, points in lines.items()}
    drawn = {label: points for label, points in drawn.items() if points}
    if not drawn or max(map(len, drawn.values())) < 2:
        return ""
    xs, ys = ([point[i] for points in drawn.values() for point in points] for i in (0, 1))
    ticks = nice_ticks(min(ys), max(ys))
    x_of = _scale(min(xs), max(xs), _LEFT, _SIZE[0] - _RIGHT)
    y_of = _scale(min(ys), max(ys), _SIZE[1] - _BOTTOM, _TOP)
    body = [_across(value, y_of(value), shown(value)) for value in ticks]
    for value in nice_ticks(min(xs), max(xs), whole=True):
        body.append(_text(x_of(value), _SIZE[1] - _BOTTOM + 14, f"{value:g}", "middle"))
    body.append(_text((_LEFT + _SIZE[0] - _RIGHT) / 2, _SIZE[1] - 4, across, "middle"))
    keys = []
    for k, (label, points) in enumerate(drawn.items()):
        style = f'fill="none" stroke="{_COLOURS[k % len(_COLOURS)]}" stroke-width="2"'
        style += f' stroke-dasharray="{_DASHES[k % len(_DASHES)]}"' if _DASHES[k % len(_DASHES)] else ""
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        body.append(f'<polyline points="{path}" {style}/>')
        key = f'<svg width="26" height="10" aria-hidden="true"><line x1="0" y1="5" x2="26" y2="5" {style}/></svg>'
        keys.append(f'<span style="margin-right:1em">{key} {markup(label)}</span>')
    ends = ", ".join(f"{label} {shown(points[-1][1])}" for label, points in drawn.items())
    said = markup(f"{upwards} over {across}; at the end: {ends}")
    picture = (
        f'<svg viewBox="0 0 {_SIZE[0]} {_SIZE[1]}" width="{_SIZE[0]}" style="max-width:100%" role="img" '
        f'aria-label="{said}" font-family="sans-serif" font-size="11">{"".join(body)}</svg>'
    )
    return f"<figure><figcaption>{markup(upwards)} {' '.join(keys)}</figcaption>{picture}</figure>"


def nice_ticks(low: float, high: float, most: int = 6, whole: bool = False) -> list[float]:
    """Round numbers between low and high, at most so many: steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(power * times for times in (1, 2, 5, 10) if (high - low) / (power * times) <= most - 1)
    step = max(1.0, step) if whole else step
    first, last = math.ceil(round(low / step, 9)), math.floor(round(high / step, 9))
    return [round(k * step, 12) for k in range(first, last + 1)] or [low]


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Without what cannot be drawn; of very many points every n-th, and the last."""
    known = [point for point in points if all(map(math.isfinite, point))]
    step = -(-len(known) // MOST_LINE_POINTS)
    return known if step <= 1 else [*known[:-1:step], known[-1]]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    wide = (high - low) or 1.0
    return lambda value: start + (value - low) / wide * (end - start)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{markup(text)}</text>'


def _across(value: float, y: float, label: str) -> str:
    line = (
        f'<line x1="{_LEFT}" x2="{_SIZE[0] - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
        'stroke="currentColor" stroke-opacity="0.15"/>'
    )
    return line + _text(_LEFT - 6, y + 4, label, "end")
