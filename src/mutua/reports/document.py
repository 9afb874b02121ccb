"""What a report is made of: sections with text, tables, pictures and code. How it is written is another matter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mutua.reports.figures import Picture
from mutua.reports.tables import Table


@dataclass(frozen=True)
class Code:
    """Text to be shown as it is; `folded` away where that is possible."""

    text: str
    folded: str = ""


Block = str | Table | Picture | Code
"""What a section is made of."""


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    title: str
    blocks: tuple[Block, ...]


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
