"""A report as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_tables_and_figures_may_lie_beside_the_runs(compared_copy: Path, command: Callable[..., Any]) -> None:
    before = {path: path.read_bytes() for path in compared_copy.rglob("*") if path.is_file()}
    assert command("report", compared_copy, "--tables", compared_copy, "--figures", compared_copy).code == 0
    assert {path: path.read_bytes() for path in before} == before
