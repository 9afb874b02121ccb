"""The pictures of a report: curves, bars, the trade-off, and samples as points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from mutua.learning.headline import ACCURACY, Headline
from mutua.reports.figures import FAINT, INK, MARKERS, PALETTE, WIDTH, Picture, legend, metric_axis, short_name
from mutua.support.text import size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

MOST_POINTS = 3000
PANELS = 11


@dataclass(frozen=True)
class Line:
    """A mean over seeds along x, and its standard deviation (0 with one seed); `flat` where nothing is sent."""

    x: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    colour: str
    flat: bool = False

    @staticmethod
    def of(
        seeds: Sequence[Mapping[int, float]], colour: str, at: Sequence[Mapping[int, float]] | None = None
    ) -> Line | None:
        """Over the rounds that all seeds have; x is the round, or the mean of `at` in that round."""
        rounds = sorted(set.intersection(*(set(seed) for seed in seeds))) if seeds else []
        if not rounds:
            return None
        values = np.array([[seed[round] for round in rounds] for seed in seeds])
        x = rounds if at is None else np.mean([[_until(seed, round) for round in rounds] for seed in at], axis=0)
        std = values.std(0, ddof=1) if len(seeds) > 1 else np.zeros(len(rounds))
        return Line(np.asarray(x, float), values.mean(0), std, colour, at is not None and not np.any(x))


def _until(sent: Mapping[int, float], round: int) -> float:
    return max((total for at, total in sent.items() if at <= round), default=0.0)


def curve_picture(name: str, title: str, lines: Mapping[str, Line], of: Headline = ACCURACY) -> Picture:
    """A metric over rounds, with a band of one standard deviation over seeds."""
    ends = ", ".join(f"{label} {of.shown(line.mean[-1])}{of.unit}" for label, line in lines.items())
    return _lines(name, title, f"{title}, over rounds. At the end: {ends}.", lines, "round", of)


def trade_off_picture(name: str, title: str, lines: Mapping[str, Line], of: Headline = ACCURACY) -> Picture:
    """A metric against the bytes that had left all clients by then."""
    ends = ", ".join(
        f"{label} {of.shown(line.mean[-1])}{of.unit} for {size(line.x[-1])}" for label, line in lines.items()
    )
    return _lines(name, title, f"{title}. At the end: {ends}.", lines, "sent by all clients together", of)


def _lines(name: str, title: str, said: str, lines: Mapping[str, Line], across: str, of: Headline) -> Picture:
    return Picture(name, title, said, _size(lines), partial(_draw_lines, lines, across, of))


def _columns(names: Sequence[str]) -> int:
    fit = max(1, int(WIDTH / (0.5 + 0.085 * max(map(len, names), default=1))))
    rows = -(-len(names) // fit)
    return -(-len(names) // max(rows, 1))


def _size(names: Mapping[str, object] | Sequence[str]) -> tuple[float, float]:
    return WIDTH, 3.1 + 0.2 * -(-len(names) // _columns(list(names)))


def _draw_lines(lines: Mapping[str, Line], along: str, of: Headline, figure: FigureBase) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator

    ends = [line.x[-1] for line in lines.values() if not line.flat]
    log = along != "round" and max(ends) > 10 * min(ends)
    axes, handles = figure.subplots(), []
    for line, marker in zip(lines.values(), cycle(MARKERS), strict=False):
        if line.flat:
            handles.append(axes.axhline(line.mean[-1], color=line.colour, linewidth=1.8, linestyle="--"))
            continue
        shown = line.x > 0 if log else line.x >= 0
        x, mean, std = line.x[shown], line.mean[shown], line.std[shown]
        axes.fill_between(x, mean - std, mean + std, color=line.colour, alpha=0.2, linewidth=0)
        style: Any = {"linewidth": 1.8, "marker": marker, "markersize": 4.5, "markevery": max(1, len(x) // 8)}
        handles += axes.plot(x, mean, color=line.colour, **style)
    axes.margins(x=0.02)
    if log:
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, numticks=8) if log else MaxNLocator(6, integer=True))
    axes.minorticks_off()
    axes.set_xlabel(along, color=INK, fontsize=9)
    axes.set_ylabel(f"{of.name}{of.direction}", color=INK, fontsize=9)
    metric_axis(axes, of)
    if along != "round":
        axes.xaxis.set_major_formatter(lambda value, _: size(value).replace(".0 ", " "))
    legend(figure, handles, list(lines), _columns(list(lines)))


@dataclass(frozen=True)
class Bars:
    """One bar per client, in one colour; None where the value is not known."""

    values: Sequence[float | None]
    colour: str
    hatched: bool = False


def client_picture(
    name: str, title: str, ids: list[str], bars: Mapping[str, Bars], metric: Headline = ACCURACY
) -> Picture:
    """Each client's accuracies, or what the task has, as bars one below the other."""
    told = (
        f"{ids[k]}: " + ", ".join(f"{of} {metric.shown(mine.values[k])}" for of, mine in bars.items())
        for k in range(min(len(ids), 20))
    )
    alt = f"{title}{', in %' if metric.in_percent else ''}. {'; '.join(told)}{'; ...' * (len(ids) > 20)}."
    row = min(0.17 * len(bars) + 0.1, max(10 / len(ids), 0.05))  # inches
    return Picture(name, title, alt, (WIDTH, row * len(ids) + 1.0), partial(_draw_clients, ids, bars, metric))


def _draw_clients(ids: list[str], bars: Mapping[str, Bars], metric: Headline, figure: FigureBase) -> None:
    axes, handles = figure.subplots(), []
    places, width = np.arange(len(ids)), 0.84 / len(bars)
    for i, mine in enumerate(bars.values()):
        known = [0.0 if value is None else value for value in mine.values]
        style: Any = {"color": "white", "edgecolor": mine.colour, "hatch": "//////"}
        at = places + (i - (len(bars) - 1) / 2) * width
        made = axes.barh(at, known, width * 0.9, **(style if mine.hatched else {"color": mine.colour}))
        handles.append(made)
        if len(ids) * len(bars) <= 60:
            axes.bar_label(made, [metric.shown(v) for v in mine.values], padding=2, fontsize=7, color=INK)
    step = -(-len(ids) // 50)
    axes.set_yticks(places[::step], [short_name(name) for name in ids[::step]], parse_math=False)
    axes.invert_yaxis()
    if metric.in_percent:
        axes.set_xlim(0, 1.08)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    else:
        axes.margins(x=0.1)  # room for the numbers at the ends of bars
    metric_axis(axes, metric, "x")
    legend(figure, handles, list(bars), _columns(list(bars)))


@dataclass(frozen=True)
class ScatterPanel:
    """Samples in the plane, by class."""

    title: str
    xy: np.ndarray
    classes: np.ndarray


def scatter_picture(
    name: str, title: str, panels: Sequence[ScatterPanel], classes: Sequence[str], behind: np.ndarray | None = None
) -> Picture:
    """Samples as points, coloured by class; one panel beside the other."""
    columns = min(3 if len(panels) > 4 else 2, len(panels))
    rows = -(-len(panels) // columns)
    alt = f"{title}. Panels: {', '.join(panel.title for panel in panels)}. Colours: {', '.join(classes)}."
    size = WIDTH, rows * min(WIDTH / columns, 3.4) + 0.3 + 0.2 * -(-len(classes) // _columns(list(classes)))
    return Picture(name, title, alt, size, partial(_draw_scatter, panels, classes, behind, (rows, columns)))


def _draw_scatter(
    panels: Sequence[ScatterPanel],
    classes: Sequence[str],
    behind: np.ndarray | None,
    shape: tuple[int, int],
    figure: FigureBase,
) -> None:
    grid: list[Axes] = list(np.atleast_1d(figure.subplots(*shape)).flat)
    handles = []
    for axes, panel in zip(grid, panels, strict=False):
        if behind is not None:
            axes.scatter(behind[:, 0], behind[:, 1], s=2, color=FAINT, linewidths=0, rasterized=True)
        for c in range(len(classes)):
            mine = panel.xy[panel.classes == c]
            style: Any = {"color": PALETTE[c % len(PALETTE)], "marker": MARKERS[c // len(PALETTE) % len(MARKERS)]}
            dots = axes.scatter(mine[:, 0], mine[:, 1], s=7, linewidths=0, alpha=0.8, rasterized=True, **style)
            if axes is grid[0]:
                handles.append(dots)
        axes.set_title(short_name(panel.title), loc="left", fontsize=9, color=INK, parse_math=False)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_color(FAINT)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    legend(figure, handles, list(classes), _columns(list(classes)), markers=2.5)
