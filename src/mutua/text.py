"""Numbers and small tables as text and as HTML: what `print` and a notebook show of an object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

MOST = 12
"""A table has at most so many rows; what is more is counted."""


def percent(value: float | None) -> str:
    """A fraction as a percentage; a dash where there is none."""
    return "–" if value is None else f"{100 * value:.1f}"


def size(number: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def several(number: int, one: str, many: str = "") -> str:
    """`1 client`, `3 clients`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def some(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    more = [f"... ({len(names)})"] if len(names) > most else []
    return ", ".join([*names[:most], *more])


@dataclass(frozen=True)
class Sheet:
    """A title, a table whose first `left` columns are text, and remarks; rows after `body` are sums."""

    title: str
    heads: Sequence[str]
    body: Sequence[Sequence[str]]
    sums: Sequence[Sequence[str]] = ()
    remarks: Sequence[str] = ()
    left: int = 1

    def _rows(self) -> list[Sequence[str]]:
        shown = list(self.body)
        if len(shown) > MOST:
            more = f"... and {len(shown) - MOST + 2} more"
            shown = [*shown[: MOST - 2], [more, *[""] * (len(self.heads) - 1)]]
        return [*shown, *self.sums]

    def __str__(self) -> str:
        rows = [self.heads, *self._rows()]
        widths = [max(len(row[k]) for row in rows) for k in range(len(self.heads))]
        lines = [
            "  ".join(
                cell.ljust(w) if k < self.left else cell.rjust(w)
                for k, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        return "\n".join([self.title, *(line.rstrip() for line in lines), *self.remarks])

    def html(self) -> str:
        """The same for a notebook; every text is escaped."""

        def row(cells: Sequence[str], tag: str) -> str:
            sides = ["left" if k < self.left else "right" for k in range(len(cells))]
            made = (
                f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>'
                for side, cell in zip(sides, cells, strict=True)
            )
            return f"<tr>{''.join(made)}</tr>"

        body = "".join(row(cells, "td") for cells in self._rows())
        remarks = "".join(f"<br>{escape(remark)}" for remark in self.remarks)
        table = f"<table><thead>{row(self.heads, 'th')}</thead><tbody>{body}</tbody></table>"
        return (
            f"<div><strong>{escape(self.title)}</strong>{table}<small>{remarks.removeprefix('<br>')}</small></div>"
        )
