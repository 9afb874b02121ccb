"""The line to sites over Flower: the ServerApp's grid brings requests to SuperNodes and answers back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mutua.engines.flower_messages import content_of, crossing_in
from mutua.engines.site_requests import BadHeader, SiteAnswer, SiteRequest

POLL_SECONDS = 0.2
LOST_AFTER = 300.0
"""Seconds, at least, after which a request that is not answered is sent again, and then twice as many: it may be
lost, and if it is still worked on, the site answers both from one commit."""
NODES_EVERY = 2.0
"""Seconds between questions who is here."""


@dataclass
class FlowerLine:
    """Sites by the public keys with which their SuperNodes sign."""

    grid: Any
    keys: Mapping[str, bytes]
    """By client, the public key in the form in which Flower has it."""
    noted: Callable[[str], None] = lambda _: None
    """Told, in a line, when a site comes or goes in the middle of a round."""
    _nodes: dict[str, int] = field(default_factory=dict)

    def here(self) -> set[str]:
        """The sites that are connected now."""
        found = self.owners({node.node_id: node for node in self.grid.get_nodes()})
        for client in sorted(found.keys() ^ self._nodes.keys()):
            self.noted(f"{client} {'is here' if client in found else 'has gone'}")
        self._nodes = found
        return set(found)

    def owners(self, nodes: Mapping[int, Any]) -> dict[str, int]:
        """By client, its node."""
        known = {key: client for client, key in self.keys.items()}
        return {known[node.public_key]: number for number, node in nodes.items() if node.public_key in known}

    def ask(self, requests: Mapping[str, SiteRequest], wait: float) -> Mapping[str, SiteAnswer]:
        """Send each site its request. One that goes gets it again when it is back, if that is within `wait`."""
        patience = dict.fromkeys(requests, max(wait, LOST_AFTER))
        pushed: dict[str, float] = {}
        """When each client was sent its request last."""
        answers: dict[str, SiteAnswer] = {}
        flying: dict[str, str] = {}
        """By message, the client that it went to."""
        missed = dict.fromkeys(requests, time.monotonic())
        """Since when each client has had no message."""
        asked_nodes = -NODES_EVERY
        while len(answers) < len(requests):
            if time.monotonic() - asked_nodes > NODES_EVERY:
                self.here()
                asked_nodes = time.monotonic()
            waiting = [client for client in missed if client in self._nodes]
            if waiting:
                sent = self._send({client: requests[client] for client in waiting})
                flying |= sent
                for client in sent.values():
                    del missed[client]
                    pushed[client] = time.monotonic()
            for message, client in list(flying.items()):
                if time.monotonic() - pushed[client] > patience[client]:
                    self.noted(f"{client}: no answer came in {patience[client]:.0f} s; it is asked again")
                    patience[client] *= 2
                    missed[client] = time.monotonic()
                    del flying[message]
            for reply in self.grid.pull_messages(list(flying)) if flying else ():
                client = flying.pop(str(reply.metadata.reply_to_message_id), "")
                if not client:
                    continue
                if reply.has_error():  # its SuperNode has gone, or the process that it had started
                    self.noted(f"{client}: {reply.error.reason or 'no answer came'}; it is asked again")
                    missed[client] = time.monotonic()
                    self._nodes.pop(client, None)
                    continue
                answers[client] = _answer(reply.content)
            now = time.monotonic()
            if not flying and all(now - since > wait for since in missed.values()):
                break
            time.sleep(POLL_SECONDS)
        return answers

    def _send(self, requests: Mapping[str, SiteRequest]) -> dict[str, str]:
        from flwr.app import Message

        clients = list(requests)
        messages = [Message(content_of(requests[c]), self._nodes[c], "query") for c in clients]
        ids = self.grid.push_messages(messages)
        return {str(made): client for made, client in zip(ids, clients, strict=True) if made}


def _answer(content: Any) -> SiteAnswer:
    try:
        return SiteAnswer.of(*crossing_in(content))
    except BadHeader as error:
        return SiteAnswer("refused", str(error))
