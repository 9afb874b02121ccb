"""Commands to the SuperLink on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from mutua.deploy import keys
from mutua.deploy.flower_control import ServerGone, control, free_port, nodes


def test_a_server_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_bytes(keys.new_authority("trial").certificate)
    with pytest.raises(ServerGone, match="the server does not answer"), control(free_port(), authority) as client:
        nodes(client)
