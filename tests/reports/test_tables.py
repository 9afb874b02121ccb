"""Cells of tables, as people read them."""

from __future__ import annotations

from mutua.reports.tables import Bytes, PercentagePoints, cell_text
from mutua.studies.statistics import Spread


def test_cells_as_people_read_them() -> None:
    cells = (
        Spread.of((0.5, None)),
        Spread.of((0.25,)),
        Spread.of((0.25, 0.75)),
        Bytes(1500),
        PercentagePoints(-0.01),
        3,
    )
    assert list(map(cell_text, cells)) == ["–", "25.0", "50.0 ± 35.4", "1.5 kB", "−1.0", "3"]
