"""Charts: axes, and many names at once."""

from __future__ import annotations

from mutua.reports import charts


def test_very_different_amounts_are_drawn_on_a_logarithmic_axis() -> None:
    def line(most: float) -> charts.Line:
        found = charts.Line.of([{0: 0.1, 1: 0.5}], "#000000", [{0: 0, 1: most}])
        assert found is not None
        return found

    for most, scale in ((2e4, "log"), (2e3, "linear")):
        [axes] = charts.trade_off_picture("x", "x", {"a": line(1e3), "b": line(most)}).figure().axes
        assert axes.get_xscale() == scale


def test_many_clients_and_methods_still_fit() -> None:
    ids = [f"client {k}" for k in range(120)]
    bars = {"alone": charts.Bars([0.5] * 120, "#999999"), "personal": charts.Bars([None] * 120, "#0072B2")}
    figure = charts.client_picture("x", "x", ids, bars).figure()
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert sum(box.height for box in boxes) <= figure.axes[0].bbox.height
    found = charts.Line.of([{0: 0.1, 1: 0.5}], "#000000")
    assert found is not None
    figure = charts.curve_picture("x", "x", {f"method number {i}": found for i in range(14)}).figure()
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert legend.x1 <= figure.bbox.x1 and not legend.overlaps(figure.axes[0].get_tightbbox())
