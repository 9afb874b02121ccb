"""Lists of runs, from folders that anybody may have written."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutua import InputError
from mutua.runs.listing import RunOverview


def test_settings_that_are_none(tmp_path: Path) -> None:
    """Raised pydantic's own error. Of a run that has recorded nothing yet its recipe is all there is."""
    (tmp_path / "recipe.yaml").write_text("checkpoints: {keep: -1}\nmethod: fml")
    with pytest.raises(InputError, match=r"checkpoints.keep: -1; it must be at least 1"):
        RunOverview.of(tmp_path).settings  # noqa: B018
