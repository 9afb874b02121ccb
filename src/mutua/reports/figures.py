"""Pictures: who holds which labels, and who gains from the federation."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from mutua.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart by colour-blind eyes; one method, one colour, in every picture.
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
}
LABELS = {"alone": "alone", "fedavg": "FedAvg (global model)", "fml": "FML (personal models)"}

INK, FAINT = "#333333", "#DDDDDD"
DPI = 160


class DemoRow(TypedDict):
    """One client of the demo: its model and the accuracies (0 to 1) on its test data."""

    client: str
    model: str
    alone: float
    fedavg: float
    fml: float


def colours(methods: Iterable[str]) -> dict[str, str]:
    """A colour for each method: its own of COLOURS, else the next one that no method here owns."""
    methods = list(dict.fromkeys(methods))
    taken = {COLOURS[name] for name in methods if name in COLOURS}
    palette = dict.fromkeys(COLOURS.values())
    free = cycle([colour for colour in palette if colour not in taken] or palette)
    return {name: COLOURS.get(name) or next(free) for name in methods}


def label_picture(counts: np.ndarray, clients: list[str], classes: list[str], path: Path, title: str) -> None:
    """Draw how many samples of each class each client holds, as a PNG."""
    _save(_label_figure(counts, clients, classes, title), path)


def demo_figure(rows: list[DemoRow], curves: dict[str, list[tuple[int, float]]], path: Path) -> None:
    """Draw each client's accuracy by method, and the mean over rounds of each curve (by method), as a PNG."""
    _save(_demo_figure(rows, curves), path)


def _label_figure(counts: np.ndarray, clients: list[str], classes: list[str], title: str) -> Figure:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    K, C = counts.shape
    cell_width, cell_height = min(0.55, 12 / C), min(0.32, 10 / K)  # inches
    figure = Figure((max(C * cell_width, 3) + 1.6, K * cell_height + 1.4), dpi=DPI, layout="constrained")
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
    axes.set_yticks(shown, [clients[k] for k in shown], parse_math=False)  # a $ in a name is a $
    axes.set_xticks(range(C), classes, parse_math=False)
    upright = max(map(len, classes)) * 0.085 > cell_width
    axes.tick_params("x", labelrotation=90 if upright else 0, labelsize=8 if cell_width > 0.2 else 6.5)
    axes.set_xticks(np.arange(C + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(K + 1) - 0.5, minor=True)
    axes.grid(which="minor", color=FAINT, linewidth=0.5)
    axes.tick_params("both", which="both", length=0, colors=INK)
    axes.spines[:].set_color(FAINT)
    axes.set_xlabel("class", color=INK)
    axes.set_title(title, loc="left", color=INK, fontsize=11, parse_math=False)
    return figure


def _demo_figure(rows: list[DemoRow], curves: dict[str, list[tuple[int, float]]]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    methods = ["alone", "fedavg", "fml"]
    colour = colours([*methods, *curves])
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, wspace=0.04)
    figure = Figure((8.75, 3.75), dpi=DPI, layout=layout)
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])

    handles = {}
    places, width = np.arange(len(rows)), 0.26
    for i, method in enumerate(methods):
        heights = [float(row[method]) for row in rows]  # type: ignore[literal-required]
        bars = left.bar(places + (i - 1) * width, heights, width * 0.92, color=colour[method])
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
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(axis="y", color=FAINT, linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(INK)
        axes.tick_params(length=0, colors=INK, labelsize=8.5)
    left.tick_params("x", labelrotation=0 if len(rows) <= 6 else 90)
    figure.legend(
        handles.values(),
        [LABELS.get(name, name) for name in handles],
        loc="outside upper left",
        ncols=len(handles),
        frameon=False,
        fontsize=9.5,
        labelcolor=INK,
    )
    return figure


def _save(figure: Figure, path: Path) -> None:
    """Write beside and rename, so that nobody ever sees half a picture."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # No version in the file: the same picture is the same bytes.
        figure.savefig(beside, format="png", metadata={"Software": None})
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose a folder that can") from None
