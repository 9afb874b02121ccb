"""Every method in a deployment without a network: the bytes of a run on one machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from by_hand import assert_same_bytes, go

from method_needs import needs_of
from mutua.methods.base import method_names, method_of

pytestmark = pytest.mark.deploy
pytest.importorskip("flwr", reason="Flower is not installed")

SMALL = {"name": "mlp", "width": 0.1}


@pytest.mark.parametrize("name", [name for name in method_names() if not method_of({"name": name}).pools_data])
def test_every_method_is_the_same_computation(deploy: Callable[..., Any], tmp_path: Path, name: str) -> None:
    """Some change the clients' models before the first round, as pfedbayes does: a site must do that too."""
    organiser, line = deploy("fml", **{"method": name, "models": {"global": SMALL}, **needs_of(name)})
    folder = organiser.path / "runs" / "one"
    go(organiser, line, folder)
    assert_same_bytes(organiser, line, folder, tmp_path / "local")
