"""Pictures: what they show equals the data, and the files are whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from mutua import InputError
from mutua.methods import base
from mutua.reports.figures import (
    COLOURS,
    PALETTE,
    DemoRow,
    _demo_figure,
    _label_figure,
    method_colours,
    write_demo_figure,
    write_label_picture,
)

ROWS = [
    DemoRow(client="north", model="MLP", accuracy={"alone": 0.5, "fedavg": 0.25, "fml": 0.75}),
    DemoRow(client="south", model="CNN1", accuracy={"alone": 0.625, "fedavg": 0.375, "fml": 0.875}),
]
CURVES = {"alone": [(0, 0.1), (2, 0.5)], "fml": [(0, 0.1), (1, 0.6), (2, 0.8)], "new": [(0, 0.2), (2, 0.3)]}
FOUR = ("alone", "fedavg", "fml", "no-regret")
COUNTS = np.array([[12, 0, 3], [0, 7, 1]])


def draw_demo(path: Path) -> None:
    write_demo_figure(ROWS, CURVES, path)


def draw_labels(path: Path) -> None:
    write_label_picture(COUNTS, ["north", "south"], ["cat", "dog", "cow"], path, "Labels")


@pytest.mark.parametrize("draw", [draw_demo, draw_labels])
def test_a_whole_picture_that_is_not_blank(draw, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "picture.png"
    draw(path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.std() > 10
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20
    assert [file.name for file in path.parent.iterdir()] == ["picture.png"]
    before = path.read_bytes()
    draw(path)
    assert path.read_bytes() == before


def test_the_demo_is_1400_by_600(tmp_path: Path) -> None:
    draw_demo(tmp_path / "demo.png")
    with Image.open(tmp_path / "demo.png") as image:
        assert image.size == (1400, 600)


def test_bars_are_the_data_in_the_methods_colours() -> None:
    left, _ = _demo_figure(ROWS, CURVES).axes
    for bars, method in zip(left.containers, ["alone", "fedavg", "fml"], strict=True):
        assert [bar.get_height() for bar in bars] == [row["accuracy"][method] for row in ROWS]
        assert {to_hex(bar.get_facecolor()).upper() for bar in bars} == {COLOURS[method]}
        centres = [bar.get_x() + bar.get_width() / 2 for bar in bars]
        assert [round(centre) for centre in centres] == [0, 1]
    assert [text.get_text() for text in left.get_xticklabels()] == ["north\nMLP", "south\nCNN1"]
    assert left.get_ylim()[0] == 0
    assert [text.get_text() for text in left.texts] == ["50", "62", "25", "38", "75", "88"]


def test_curves_are_the_data_in_the_same_colours() -> None:
    figure = _demo_figure(ROWS, CURVES)
    _, right = figure.axes
    for line, (method, points) in zip(right.lines, CURVES.items(), strict=True):
        assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == points
        assert line.get_color() == method_colours(["alone", "fedavg", "fml", *CURVES])[method]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["alone", "FedAvg (global model)", "FML (personal models)", "new"]


def test_axes_are_in_percent_without_spare_spines() -> None:
    figure = _demo_figure(ROWS, CURVES)
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert all(label.get_text().endswith("%") for label in axes.get_yticklabels())
        assert not axes.spines["top"].get_visible()
        assert not axes.spines["right"].get_visible()


def test_nothing_in_the_demo_overlaps_the_legend_or_leaves_the_picture() -> None:
    rows = [DemoRow(client=f"client {i}", model="ResNet18", accuracy=dict.fromkeys(FOUR, 1.0)) for i in range(5)]
    figure = _demo_figure(rows, CURVES)
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert not legend.overlaps(box)
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1


@pytest.mark.parametrize(("K", "C"), [(5, 10), (20, 10), (5, 100), (1, 1), (120, 3)])
def test_label_pictures_show_every_count_and_readable_names(K: int, C: int) -> None:
    counts = np.arange(K * C).reshape(K, C)
    clients, classes = [f"client {k}" for k in range(K)], [f"class {c}" for c in range(C)]
    figure = _label_figure(counts, clients, classes, "Labels")
    figure.draw_without_rendering()
    axes = figure.axes[0]
    shown = axes.images[0].get_array()
    assert np.array_equal(shown.filled(0), counts)
    assert shown.mask[0, 0]  # none is blank, not pale
    for labels, side in ((axes.get_xticklabels(), "width"), (axes.get_yticklabels(), "height")):
        boxes = [label.get_window_extent() for label in labels]
        assert sum(getattr(box, side) for box in boxes) <= getattr(axes.bbox, side)
    numbers = {text.get_text() for text in axes.texts}
    assert numbers == ({str(n) for n in counts.flat if n} if C <= 10 and K <= 20 else set())
    assert (len(figure.axes) == 2) == (C == 100 or K == 120)  # a colour bar where no numbers are


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    write_label_picture(COUNTS, ["a $\\x$", "b"], ["$\\y$", "c", "d"], tmp_path / "a.png", "$\\z$")
    assert (tmp_path / "a.png").exists()


def test_no_samples_at_all_still_draws(tmp_path: Path) -> None:
    write_label_picture(np.zeros((2, 3), int), ["a", "b"], ["c", "d", "e"], tmp_path / "a.png", "None")
    assert (tmp_path / "a.png").exists()


def test_a_method_has_one_colour_and_others_take_free_ones() -> None:
    assert all(method_colours([method]) == {method: colour} for method, colour in COLOURS.items())
    owners = set(COLOURS) & set(base.method_names())
    assert len({COLOURS[method] for method in owners}) == len(owners) >= 12  # each its own
    assert len(set(method_colours(base.method_names()).values())) == len(PALETTE)
    found = method_colours(["fml", "x", "fedavg", "y"])
    assert (found["fml"], found["fedavg"]) == (COLOURS["fml"], COLOURS["fedavg"])
    assert len(set(found.values())) == 4
    assert set(method_colours([f"new {i}" for i in range(30)]).values()) == set(COLOURS.values())


def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"demo\.png: cannot be written"):
        draw_demo(tmp_path / "file" / "demo.png")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_the_users_mistake(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match=r"demo\.png: cannot be written"):
        draw_demo(tmp_path / "demo.png")


def test_a_failed_write_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "demo.png"
    path.write_bytes(b"old")

    def full(self: object, file: Path, **options: object) -> None:
        Path(file).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(InputError, match="No space left on device"):
        draw_demo(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_importing_figures_does_not_import_matplotlib() -> None:
    check = "import sys, mutua.reports.figures; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
