"""A report as a PDF of A4 pages, drawn by matplotlib: its pictures stay lines and letters."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mutua.reports.document import Code, Report
from mutua.reports.figures import INK, STYLE, UNDATED, Picture
from mutua.reports.tables import Table, cell_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = 8.27, 11.69
_MARGIN = 0.8
_ROOM = PAGE[0] - 2 * _MARGIN
_TITLE = 0.3
_EM = 0.6
"""The width of a letter relative to the font size: the average and a little more."""


class _Pages:
    """Pages that fill from the top; lengths are in inches."""

    def __init__(self) -> None:
        self.pages: list[Figure] = []
        self.at = PAGE[1]

    def need(self, height: float) -> None:
        """Begin a new page where the rest of this one is too small."""
        from matplotlib.figure import Figure

        if not self.pages or self.at + height > PAGE[1] - _MARGIN:
            self.pages.append(Figure(PAGE, layout="constrained"))
            self.at = _MARGIN

    def word(self, x: float, text: str, size: float, side: str = "left", **style: Any) -> None:
        """Text on the line where the page is at; `x` counts from the margin."""
        place = (_MARGIN + x) / PAGE[0], 1 - (self.at + size / 72) / PAGE[1]
        written = self.pages[-1].text(*place, text, size=size, color=INK, ha=side, va="baseline", **style)
        written.set_parse_math(False)
        written.set_in_layout(False)

    def text(self, text: str, size: float = 9.5, **style: Any) -> None:
        """A paragraph."""
        for line in _wrapped(text, int(_ROOM * 72 / size / _EM)):
            self.need(size * 1.45 / 72)
            self.word(0, line, size, **style)
            self.at += size * 1.45 / 72

    def rule(self, width: float, strong: bool) -> None:
        """A line across a table."""
        from matplotlib.lines import Line2D

        self.at += 0.02
        y = 1 - self.at / PAGE[1]
        x = _MARGIN / PAGE[0], (_MARGIN + width) / PAGE[0]
        rule = Line2D(x, (y, y), color=INK, linewidth=1.0 if strong else 0.5)
        rule.set_in_layout(False)
        self.pages[-1].add_artist(rule)
        self.at += 0.04

    def table(self, table: Table) -> None:
        """A table; long text and headings are wrapped, and what is still too wide is written smaller."""
        cells = [[cell_text(cell) for cell in row] for row in (table.heads, *table.rows)]
        size, gap = 8.0, 2
        longest = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for i in range(len(table.left), len(longest)):  # only the headings of numbers may be wrapped
            longest[i] = max(min(len(cells[0][i]), 12), *(len(row[i]) for row in cells[1:]))
        room = int(_ROOM * 72 / size / _EM) - gap * (len(longest) - 1)
        for i in sorted(range(len(table.left)), key=lambda i: -longest[i]):
            longest[i] = max(min(longest[i], 14), longest[i] - max(0, sum(longest) - room))
        size = min(size, size * room / sum(longest))
        letter, step = size * _EM / 72, size * 1.5 / 72
        ends, total = [], 0.0
        for width in longest:
            ends.append((total, total + width * letter))
            total += (width + gap) * letter
        total -= gap * letter

        def row(values: Sequence[str]) -> None:
            lines = [_wrapped(value, width) for value, width in zip(values, longest, strict=True)]
            self.need(step * max(map(len, lines)))
            for number in range(max(map(len, lines))):
                for i, mine in enumerate(lines):
                    if number < len(mine):
                        left = i < len(table.left)
                        self.word(ends[i][not left], mine[number], size, "left" if left else "right")
                self.at += step

        self.text(table.title, 9, weight="bold")
        self.at += 0.04
        self.rule(total, strong=True)
        row(cells[0])
        self.rule(total, strong=False)
        for values in cells[1:]:
            row(values)
        self.rule(total, strong=True)
        for remark in table.remarks:
            self.text(remark, 7.5)

    def picture(self, picture: Picture) -> None:
        """A picture with its title above it, drawn in its own size or, where it is too large, in the page's."""
        width, height = _fitted(picture)
        self.need(height + _TITLE)
        self.text(picture.title, 9, weight="bold")
        page = self.pages[-1]
        grid = page.add_gridspec(
            3,
            3,
            height_ratios=[self.at, height, PAGE[1] - self.at - height],
            width_ratios=[_MARGIN, width, PAGE[0] - _MARGIN - width],
        )
        picture.draw(page.add_subfigure(grid[1, 1]))
        self.at += height


def pdf_file(report: Report) -> bytes:
    """The report as a PDF file."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_pdf import PdfPages

    paper = _Pages()
    paper.text(report.title, 15, weight="bold")
    for section in report.sections:
        first = section.blocks[0]
        # A heading stays with what follows.
        paper.need(0.4 + (_fitted(first)[1] + _TITLE if isinstance(first, Picture) else 0.8))
        paper.at += 0.2
        paper.text(section.title, 12, weight="bold")
        paper.at += 0.05
        for block in section.blocks:
            match block:
                case Table():
                    paper.table(block)
                case Picture():
                    paper.picture(block)
                case Code(text, folded):
                    for line in [] if folded else text.splitlines():
                        paper.text(line, 8, family="monospace")
                case _:
                    paper.text(block)
            paper.at += 0.12
    held = io.BytesIO()
    with rc_context(STYLE), PdfPages(held, metadata={**UNDATED["pdf"], "Title": report.title}) as pages:
        for page in paper.pages:
            pages.savefig(page)
    return held.getvalue()


def _fitted(picture: Picture) -> tuple[float, float]:
    """Its width and height, but no more than a page's."""
    return min(picture.size[0], _ROOM), min(picture.size[1], PAGE[1] - 2 * _MARGIN - 1)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 4)) or [""]
