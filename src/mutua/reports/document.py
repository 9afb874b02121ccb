"""What a report is made of: sections of text, tables, pictures and code, before it is written in any form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mutua.reports.figures import Picture
from mutua.reports.tables import Table


@dataclass(frozen=True)
class Code:
    """Text to be shown as it is; where `folded` names it, it can be unfolded on a page."""

    text: str
    folded: str = ""


Content = str | Table | Picture | Code
"""What a section is made of."""


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    title: str
    blocks: tuple[Content, ...]


@dataclass(frozen=True)
class Report:
    """A title and sections."""

    title: str
    sections: tuple[Section, ...]

    @property
    def tables(self) -> Iterator[Table]:
        """Every table."""
        return (block for section in self.sections for block in section.blocks if isinstance(block, Table))

    @property
    def pictures(self) -> Iterator[Picture]:
        """Every picture."""
        return (block for section in self.sections for block in section.blocks if isinstance(block, Picture))
