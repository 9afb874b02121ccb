"""Tables of a report: made once, written as HTML, LaTeX, Markdown, CSV or plain text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mutua.learning.headline import Headline
from mutua.studies.statistics import Spread
from mutua.support.text import markup, printable, size, spread, spreadsheet_csv

MOST_CLIENTS = 40
"""Tables of clients with something to say list so many of a run; run.json has all."""


@dataclass(frozen=True)
class Bytes:
    """A number of bytes."""

    value: float


@dataclass(frozen=True)
class PercentagePoints:
    """A difference of accuracies, in percentage points."""

    value: float | None


class Plain(Spread):
    """A number that is no fraction, such as an error in the unit of what was measured."""


@dataclass(frozen=True)
class PlainDifference:
    """A difference of such numbers."""

    value: float | None


CellValue = str | int | Spread | Bytes | PercentagePoints | PlainDifference


def scores_of(headline: Headline, found: Spread) -> Spread:
    """A cell of a metric's numbers."""
    return found if headline.in_percent else Plain(found.mean, found.sd, found.n)


def difference_of(headline: Headline, value: float | None) -> PercentagePoints | PlainDifference:
    """A cell of a difference of a metric's numbers."""
    return PercentagePoints(value) if headline.in_percent else PlainDifference(value)


def cell_text(cell: CellValue) -> str:
    """A cell as people read it."""
    match cell:
        case Plain():
            return spread({"mean": cell.mean, "std": cell.sd}, share=False)
        case PlainDifference():
            return spread({"mean": cell.value, "std": None}, sign=True, share=False).replace("-", "−")
        case Spread():
            return spread({"mean": cell.mean, "std": cell.sd})
        case PercentagePoints():
            return spread({"mean": cell.value, "std": None}, sign=True).replace("-", "−")
        case Bytes():
            return size(cell.value)
    return printable(str(cell))


@dataclass(frozen=True)
class Table:
    """A table with a title: text columns to the left, numbers to the right, and remarks."""

    name: str
    title: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    rows: tuple[tuple[CellValue, ...], ...]
    remarks: tuple[str, ...] = ()

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the columns."""
        return self.left + self.right

    def html(self) -> str:
        """A real table with a caption and headings of rows and columns; it scrolls by itself where it is wide."""
        sides = [""] * len(self.left) + [' class="number"'] * len(self.right)
        heads = "".join(
            f'<th scope="col"{side}>{markup(h)}</th>' for h, side in zip(self.heads, sides, strict=True)
        )
        rows = []
        for row in self.rows:
            first, *rest = (markup(cell_text(cell)) for cell in row)
            cells = "".join(f"<td{side}>{cell}</td>" for cell, side in zip(rest, sides[1:], strict=True))
            rows.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
        remarks = "".join(f"<p>{markup(remark)}</p>\n" for remark in self.remarks)
        # The title stands outside: a caption would be as wide as the table, and so be cut on a narrow screen.
        return (
            f'<p class="caption" id="table-{self.name}">{markup(self.title)}</p>\n'
            f'<div class="table" role="region" tabindex="0" aria-labelledby="table-{self.name}">\n'
            f'<table aria-labelledby="table-{self.name}">\n<thead><tr>{heads}</tr></thead>\n<tbody>\n'
            + "\n".join(rows)
            + f'\n</tbody>\n</table>\n</div>\n<div class="remarks">{remarks}</div>\n'
        )

    def latex(self) -> str:
        """For `\\input`, with the package booktabs."""
        lines = [self._joined(self.heads, _latex), *(self._joined(row, _latex) for row in self.rows)]
        head, *rows = (f"{line} \\\\" for line in lines)
        return "\n".join(
            [
                "% needs \\usepackage{booktabs}",
                "\\begin{table}",
                "\\centering",
                f"\\caption{{{_latex(self.title)}}}",
                f"\\label{{tab:{self.name}}}",
                f"\\begin{{tabular}}{{{'l' * len(self.left)}{'r' * len(self.right)}}}",
                "\\toprule",
                head,
                "\\midrule",
                *rows,
                "\\bottomrule",
                "\\end{tabular}",
                "\\end{table}\n",
            ]
        )

    @staticmethod
    def _joined(cells: Sequence[CellValue], written: Callable[[str], str], between: str = " & ") -> str:
        return between.join(written(cell_text(cell)) for cell in cells)

    def markdown(self) -> str:
        """A pipe table under its title."""
        sides = ["---"] * len(self.left) + ["---:"] * len(self.right)
        lines = [
            self._joined(self.heads, _markdown, " | "),
            " | ".join(sides),
            *(self._joined(row, _markdown, " | ") for row in self.rows),
        ]
        remarks = [f"\n{_markdown(remark)}" for remark in self.remarks]
        return "\n".join([f"**{_markdown(self.title)}**\n", *(f"| {line} |" for line in lines), *remarks, ""])

    def csv(self) -> str:
        """Numbers as computed, not rounded: accuracies from 0 to 1, bytes; columns `sd` where over seeds."""
        spread = [any(isinstance(row[i], Spread) for row in self.rows) for i in range(len(self.heads))]
        heads = zip(self.heads, spread, strict=True)
        rows: list[list[object]] = [
            [name for head, over in heads for name in ((head, f"{head} sd") if over else (head,))]
        ]
        for row in self.rows:
            cells: list[object] = []
            for cell, over in zip(row, spread, strict=True):
                if isinstance(cell, Spread):
                    cells += [cell.mean, cell.sd]
                else:
                    cells += [
                        cell.value if isinstance(cell, Bytes | PercentagePoints | PlainDifference) else cell,
                        *([""] if over else []),
                    ]
            rows.append(cells)
        return spreadsheet_csv(rows)


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


def _latex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in printable(text))


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#$~])", r"\\\1", printable(text))
