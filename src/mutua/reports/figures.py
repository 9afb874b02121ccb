"""Pictures: their style, counts by class, and the figure of the demo."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from mutua.errors import InputError
from mutua.learning.headline import ACCURACY, Headline
from mutua.support.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

# Okabe and Ito's palette and three of Tol's, for colour-blind readers too. These methods have one colour
# everywhere. There are more methods than colours that can be told apart: others take free ones (`method_colours`).
COLOURS = {
    "alone": "#999999",
    "independent": "#999999",
    "fedavg": "#E69F00",
    "fml": "#0072B2",
    "fmlu": "#009E73",
    "fedprox": "#56B4E9",
    "fedh2l": "#D55E00",
    "mixture": "#CC79A7",
    "fedmd": "#F0E442",
    "centralised": "#000000",
    "aggregated": "#882255",
    "dml": "#332288",
    "finetuned": "#999933",
    "no-regret": "#117733",
}
PALETTE = tuple(dict.fromkeys(COLOURS.values()))
_LABELS = {
    "alone": "alone",
    "fedavg": "FedAvg (global model)",
    "fml": "FML (personal models)",
    "no-regret": "no-regret (mixtures)",
}

INK, FAINT = "#333333", "#DDDDDD"
_DPI = 160
WIDTH = 5.2
"""Inches: can be read on a telephone and fits one and a half columns of a paper."""
STYLE: Any = {"svg.hashsalt": "mutua", "svg.fonttype": "path", "pdf.fonttype": 42}
# No version and no date in a file: the same picture is the same bytes.
UNDATED: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
MARKERS = "os^Dv<>Pp"


class DemoRow(TypedDict):
    """One client of the demo: its model and by method the accuracy (0 to 1) on its test data."""

    client: str
    model: str
    accuracy: dict[str, float]


@dataclass(frozen=True)
class Picture:
    """A picture that can be drawn on a page or alone: what it shows in words, its size in inches, its drawing."""

    name: str
    title: str
    alt: str
    size: tuple[float, float]
    draw: Callable[[FigureBase], None]

    def figure(self, title: str = "") -> Figure:
        """The picture alone."""
        from matplotlib.figure import Figure

        made = Figure(self.size, dpi=_DPI, layout="constrained")
        self.draw(made)
        if title:
            made.axes[0].set_title(printable(title), loc="left", color=INK, fontsize=11, parse_math=False)
        return made

    def file(self, kind: Literal["svg", "pdf"]) -> bytes:
        """The picture as a file; an SVG has its letters as shapes, so that it looks the same everywhere."""
        held = io.BytesIO()
        _render(self.figure(), held, kind)
        return held.getvalue()


def named_by(name: str, title: str, facet: str) -> tuple[str, str]:
    """Name and title of one of several similar pictures; those of the only one where `facet` is empty."""
    return (f"{name}-{slug(facet)}", f"{title}: {facet}") if facet else (name, title)


def slug(label: str) -> str:
    """A label as part of a picture's name, which becomes a file's."""
    return "".join(c if c.isalnum() or c in "._-=" else "-" for c in label)


def method_colours(methods: Iterable[str]) -> dict[str, str]:
    """A colour for each method: its own of COLOURS, else the next one that no method here owns."""
    methods = list(dict.fromkeys(methods))
    taken = {COLOURS[name] for name in methods if name in COLOURS}
    free = cycle([colour for colour in PALETTE if colour not in taken] or PALETTE)
    return {name: COLOURS.get(name) or next(free) for name in methods}


def write_label_picture(
    counts: np.ndarray, clients: list[str], classes: list[str], path: Path, title: str
) -> None:
    """Draw how many samples of each class each client holds, as a PNG."""
    _write_figure(_label_figure(counts, clients, classes, title), path)


def write_demo_figure(rows: list[DemoRow], curves: dict[str, list[tuple[int, float]]], path: Path) -> None:
    """Draw each client's accuracy by method, and the mean over rounds of each curve (by method), as a PNG."""
    _write_figure(_demo_figure(rows, curves), path)


def _label_figure(counts: np.ndarray, clients: list[str], classes: list[str], title: str) -> Figure:
    return label_count_picture("labels", title, counts, clients, classes).figure(title)


def label_count_picture(
    name: str, title: str, counts: np.ndarray, clients: list[str], classes: list[str]
) -> Picture:
    """Who holds how many samples of which class."""
    K, C = counts.shape
    cell = min(0.4, 12 / C), min(0.32, 10 / K)  # inches
    held = [f"{client} {int((row > 0).sum())}" for client, row in zip(clients[:50], counts, strict=False)]
    alt = f"{title}. Classes of each client: {', '.join(held)}{', ...' * (K > 50)}."
    size = max(C * cell[0], 3) + 1.6, K * cell[1] + 1.4
    return Picture(name, title, alt, size, partial(_draw_counts, counts, clients, classes, cell, ("", "class")))


def confusion_picture(name: str, title: str, counts: np.ndarray, classes: list[str]) -> Picture:
    """How many samples of each class (rows) were taken for which (columns)."""
    C = len(classes)
    cell = min(0.4, 12 / C), min(0.32, 12 / C)  # inches
    right = int(counts.diagonal().sum())
    alt = f"{title}. On the diagonal, and so right: {right} of {int(counts.sum())}."
    size = max(C * cell[0], 3) + 1.8, C * cell[1] + 1.4
    sides = "true class", "predicted class"
    return Picture(name, title, alt, size, partial(_draw_counts, counts, classes, classes, cell, sides))


def _draw_counts(
    counts: np.ndarray,
    clients: list[str],
    classes: list[str],
    cell: tuple[float, float],
    sides: tuple[str, str],
    figure: FigureBase,
) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    K, C = counts.shape
    cell_width, cell_height = cell
    axes = figure.subplots()
    most = max(int(counts.max(initial=0)), 1)
    blues = ListedColormap(colormaps["Blues"](np.linspace(0.12, 1, 256)))  # a single sample is not white
    image = axes.imshow(np.ma.masked_equal(counts, 0), cmap=blues, vmin=0, vmax=most, aspect="auto")
    if cell_width >= 0.4 and cell_height >= 0.2:
        for (k, c), count in np.ndenumerate(counts):
            if count:
                ink = "white" if count > 0.5 * most else INK
                axes.text(c, k, f"{int(count)}", ha="center", va="center", fontsize=7.5, color=ink)
    else:
        aspect = K * cell_height / 0.12  # so the bar is 0.12 inches wide
        bar = figure.colorbar(image, pad=0.01, aspect=aspect, ticks=MaxNLocator(4, integer=True))
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0, colors=INK, labelsize=8)
        bar.set_label("samples", color=INK)

    shown = range(0, K, -(-K // 50))
    axes.set_yticks(shown, [short_name(clients[k]) for k in shown], parse_math=False)  # a $ in a name is a $
    named = range(0, C, -(-C // 200))  # of very many only some: all would be a black bar, and take minutes
    axes.set_xticks(named, [short_name(classes[c]) for c in named], parse_math=False)
    upright = max(map(len, classes)) * 0.085 > cell_width
    axes.tick_params("x", labelrotation=90 if upright else 0, labelsize=8 if cell_width > 0.2 else 6.5)
    if len(named) == C:
        axes.set_xticks(np.arange(C + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(K + 1) - 0.5, minor=True)
    axes.grid(which="minor", color=FAINT, linewidth=0.5)
    axes.tick_params("both", which="both", length=0, colors=INK)
    axes.tick_params("y", labelsize=8.5)
    axes.spines[:].set_color(FAINT)
    axes.set_ylabel(sides[0], color=INK, fontsize=9)
    axes.set_xlabel(sides[1], color=INK, fontsize=9)


def _demo_figure(rows: list[DemoRow], curves: dict[str, list[tuple[int, float]]]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    methods = list(rows[0]["accuracy"])
    colour = method_colours([*methods, *curves])
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, wspace=0.04)
    figure = Figure((8.75, 3.75), dpi=_DPI, layout=layout)
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])

    handles = {}
    places, width = np.arange(len(rows)), 0.8 / len(methods)
    for i, method in enumerate(methods):
        heights = [row["accuracy"][method] for row in rows]
        bars = left.bar(places + (i - (len(methods) - 1) / 2) * width, heights, width * 0.92, color=colour[method])
        handles[method] = bars
        if len(rows) <= 6:
            left.bar_label(bars, [f"{100 * h:.0f}" for h in heights], padding=1.5, fontsize=7, color=INK)
    left.set_xticks(places, [f"{row['client']}\n{row['model']}" for row in rows], parse_math=False)
    left.set_ylim(0, 1.04)
    left.set_title("Accuracy of each client on its own test data", loc="left", fontsize=10.5, color=INK)

    for method, points in curves.items():
        x, y = zip(*points, strict=True)
        style = {"linewidth": 2.2, "marker": "o", "markevery": [-1], "clip_on": False}
        (line,) = right.plot(x, y, color=colour[method], **style)
        handles.setdefault(method, line)
    right.margins(x=0)
    right.set_title("Mean accuracy over the clients", loc="left", fontsize=10.5, color=INK)
    right.set_xlabel("round", color=INK)
    right.xaxis.set_major_locator(MaxNLocator(integer=True))

    for axes in (left, right):
        metric_axis(axes)
    left.tick_params("x", labelrotation=0 if len(rows) <= 6 else 90)
    legend(figure, handles.values(), [_LABELS.get(name, name) for name in handles])
    return figure


def short_name(name: str) -> str:
    """A name as pictures show it: short, and without what cannot be printed."""
    return printable(name.replace("\n", "\\n"), 40)


def metric_axis(axes: Axes, metric: Headline = ACCURACY, of: Literal["x", "y"] = "y") -> None:
    """A metric along one axis, in percent if it is a share, a faint grid across it, and no further lines."""
    if metric.in_percent:
        getattr(axes, f"{of}axis").set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
    axes.grid(axis=of, color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    base = "bottom" if of == "y" else "left"
    axes.spines[[side for side in ("top", "right", "left", "bottom") if side != base]].set_visible(False)
    axes.spines[base].set_color(INK)
    axes.tick_params(length=0, colors=INK, labelsize=8.5)


def legend(
    figure: FigureBase, handles: Iterable[Any], names: list[str], columns: int | None = None, markers: float = 1
) -> None:
    """Names above the picture, with $ and the like as they are."""
    made = figure.legend(
        handles,
        [short_name(name) for name in names],
        loc="outside upper left",
        ncols=columns or len(names),
        frameon=False,
        fontsize=9.5,
        labelcolor=INK,
        markerscale=markers,
    )
    for text in made.get_texts():
        text.set_parse_math(False)


def _write_figure(figure: Figure, path: Path) -> None:
    """Write a PNG, SVG or PDF by the path's suffix: beside and renamed, so that nobody sees half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _render(figure, beside, path.suffix[1:])
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose a folder that can") from None


def _render(figure: Figure, to: Path | io.BytesIO, kind: str) -> None:
    from matplotlib import rc_context

    with rc_context(STYLE):
        if kind != "svg":
            figure.savefig(to, format=kind, metadata=UNDATED[kind])
            return
        held = io.BytesIO()
        figure.savefig(held, format=kind, metadata=UNDATED[kind])
    data = printable(held.getvalue().decode()).encode()  # an SVG repeats every text as a comment
    to.write(data) if isinstance(to, io.BytesIO) else to.write_bytes(data)
