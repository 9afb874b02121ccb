"""The line to sites over Flower, with a grid that loses messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

flwr = pytest.importorskip("flwr.app", reason="Flower is not installed")

from mutua.engines import flower_line  # noqa: E402
from mutua.engines.flower_line import FlowerLine  # noqa: E402
from mutua.engines.flower_messages import content_of  # noqa: E402
from mutua.engines.site_requests import SiteAnswer, SiteRequest  # noqa: E402

KEYS = {"a": b"key of a", "b": b"key of b"}
REQUESTS = {client: SiteRequest("train", "0" * 16, "agreed", 1) for client in KEYS}


@dataclass
class Grid:
    """Two nodes; each of the first messages to node 1 meets its fate."""

    fates: list[str] = field(default_factory=list)
    """`lost`: nothing comes back; `error`: Flower says that it has gone. Then messages are answered."""
    sent: list[int] = field(default_factory=list)
    ready: dict[str, Any] = field(default_factory=dict)

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=k, public_key=key) for k, key in enumerate(KEYS.values(), 1)]

    def push_messages(self, messages: Sequence[Any]) -> list[str]:
        ids = []
        for message in messages:
            node, made = message.node, f"m{len(self.sent)}"
            self.sent.append(node)
            ids.append(made)
            fate = self.fates.pop(0) if node == 1 and self.fates else "answered"
            if fate != "lost":
                self.ready[made] = SimpleNamespace(
                    metadata=SimpleNamespace(reply_to_message_id=made),
                    has_error=lambda fate=fate: fate == "error",
                    error=SimpleNamespace(reason="gone"),
                    content=content_of(SiteAnswer("done", body=b"x")),
                )
        return ids

    def pull_messages(self, ids: Sequence[str]) -> list[Any]:
        return [self.ready.pop(made) for made in ids if made in self.ready]


@pytest.mark.parametrize(
    ("fates", "sent"),
    [([], 1), (["error"], 2), (["lost"], 2), (["lost", "lost"], 3), (["lost", "error"], 3)],
    ids=str,
)
def test_a_request_is_sent_until_it_is_answered(
    fates: list[str], sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that was lost while its site was there all the time: nobody waits for ever."""
    for name, value in {"LOST_AFTER": 0.05, "POLL_SECONDS": 0.01, "NODES_EVERY": 0.02}.items():
        monkeypatch.setattr(flower_line, name, value)
    monkeypatch.setattr(flwr, "Message", lambda content, node, kind: SimpleNamespace(node=node))
    told: list[str] = []
    grid = Grid(fates)
    answers = FlowerLine(grid, KEYS, told.append).ask(REQUESTS, wait=0.04)
    assert {client: answer.body for client, answer in answers.items()} == {"a": b"x", "b": b"x"}
    assert (grid.sent.count(1), grid.sent.count(2)) == (sent, 1)
    assert sum("it is asked again" in line for line in told) == sent - 1
