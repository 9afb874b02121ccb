"""The PDF: what the page says, within the margins."""

from __future__ import annotations

from typing import Any

import pytest

from mutua.reports.document import Report
from mutua.reports.pdf import pdf_file
from mutua.reports.tables import Table, cell_text
from mutua.studies.statistics import Spread


def test_the_pdf_says_what_the_page_says(compared_report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    written: list[str] = []
    original = Figure.text

    def text(self: Any, x: float, y: float, words: str, **style: Any) -> Any:
        assert 0.05 < x < 0.97 and 0.05 < y < 0.97  # on the page
        written.append(words)
        return original(self, x, y, words, **style)

    monkeypatch.setattr(Figure, "text", text)
    data = pdf_file(compared_report)
    assert data.startswith(b"%PDF") and data.count(b"/Type /Page ") > 3
    [table] = [table for table in compared_report.tables if table.name == "accuracies"]
    assert {cell_text(cell) for row in table.rows for cell in row} <= set(written)
    whole = " ".join(written)
    assert all(section.title in whole for section in compared_report.sections)


def test_a_wide_table_keeps_within_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    from mutua.reports.pdf import PAGE, _Pages

    paper = _Pages()
    cells = ("word " * 40, *([Spread.of((0.5, 0.25))] * 9))
    heads = tuple(f"FML, optimizer.learning_rate={i}, global" for i in range(9))
    paper.table(Table("t", "A title", ("left",), heads, (cells,) * 120))
    assert len(paper.pages) > 1
    assert min(text.get_size() for page in paper.pages for text in page.texts) > 5  # still to be read
    for page in paper.pages:
        page.draw_without_rendering()
        for text in page.texts:
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= PAGE[0] * page.dpi and box.y0 >= 0
