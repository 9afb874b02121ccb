"""Numbers, names and small tables as text, HTML and CSV.

Class names, ids and labels may come from strangers. Whatever shows them uses one of these: `printable` (terminals,
pictures), `markup` (HTML) and `spreadsheet_csv`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

_MOST_ROWS = 12
"""How many rows a table has at most, unless it says otherwise; the rest is counted."""
FORMULA = "=+-@＝＋－＠"
"""The first characters by which a spreadsheet takes a cell for a formula."""


def printable(text: str, most: int | None = None) -> str:
    """Text that cannot move the cursor: what cannot be printed, but line breaks, is escaped; cut at `most`."""
    if most is not None and len(text) > most:
        text = f"{text[: most - 1]}…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def markup(text: str) -> str:
    """Text for HTML."""
    return escape(printable(text))


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def spreadsheet_csv(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV in which a spreadsheet computes nothing: an apostrophe is put before what would be a formula."""
    return csv_text([_cell(cell) for cell in row] for row in rows)


def _cell(value: object) -> object:
    if not isinstance(value, str) or not value:
        return value
    text = printable(value).replace("\n", "\\n")
    return f"'{text}" if text[0] in FORMULA and not _number(text) else text


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def percent(value: float | None) -> str:
    """A fraction as a percentage; a dash for None."""
    return "–" if value is None else f"{100 * value:.1f}"


def of_width(model: str, width: float) -> str:
    """A model's name and, if it is not 1, its width."""
    return model if width == 1 else f"{model}×{width:g}"


def size(number: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def spread(found: Mapping[str, Any], sign: bool = False, share: bool = True) -> str:
    """Mean ± standard deviation: of fractions as percentages, of other numbers (not a `share`) as they are."""
    if found["mean"] is None:
        return "–"
    if not share:
        mean = f"{found['mean']:{'+' if sign else ''}.4g}"
        return mean if found["std"] is None else f"{mean} ± {found['std']:.2g}"
    mean = f"{100 * found['mean']:{'+' if sign else ''}.1f}"
    return mean if found["std"] is None else f"{mean} ± {100 * found['std']:.1f}"


def several(number: int, one: str, many: str = "") -> str:
    """`1 client`, `3 clients`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def some(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    more = [f"... ({len(names)})"] if len(names) > most else []
    return ", ".join([*names[:most], *more])


@dataclass(frozen=True)
class Sheet:
    """A table as data: title, heads, rows (`body`, then `sums`), remarks. The first `left` columns are text."""

    title: str
    heads: Sequence[str]
    body: Sequence[Sequence[str]]
    sums: Sequence[Sequence[str]] = ()
    remarks: Sequence[str] = ()
    left: int = 1
    most: int = _MOST_ROWS

    def _rows(self) -> list[Sequence[str]]:
        shown = list(self.body)
        if len(shown) > self.most:
            more = f"... and {len(shown) - self.most + 2} more"
            shown = [*shown[: self.most - 2], [more, *[""] * (len(self.heads) - 1)]]
        return [*shown, *self.sums]

    def __str__(self) -> str:
        rows = [[printable(cell) for cell in row] for row in (self.heads, *self._rows())]
        widths = [max(len(row[k]) for row in rows) for k in range(len(self.heads))]
        lines = [
            "  ".join(
                cell.ljust(w) if k < self.left else cell.rjust(w)
                for k, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        return "\n".join(
            [printable(self.title), *(line.rstrip() for line in lines), *map(printable, self.remarks)]
        )

    def html(self) -> str:
        """The same for a notebook; every text is escaped."""

        def row(cells: Sequence[str], tag: str) -> str:
            sides = ["left" if k < self.left else "right" for k in range(len(cells))]
            made = (
                f'<{tag} style="text-align:{side}">{markup(cell)}</{tag}>'
                for side, cell in zip(sides, cells, strict=True)
            )
            return f"<tr>{''.join(made)}</tr>"

        body = "".join(row(cells, "td") for cells in self._rows())
        remarks = "".join(f"<br>{markup(remark)}" for remark in self.remarks)
        table = f"<table><thead>{row(self.heads, 'th')}</thead><tbody>{body}</tbody></table>"
        return (
            f"<div><strong>{markup(self.title)}</strong>{table}<small>{remarks.removeprefix('<br>')}</small></div>"
        )
