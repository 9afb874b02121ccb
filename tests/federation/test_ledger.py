"""The ledger counts what crossed, and nothing undeclared may leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mutua import Federation, Ledger, Message, RunError
from mutua.federation.ledger import Entry
from mutua.federation.message import count, weights
from mutua.methods import FML, FedAvg, Independent
from mutua.rounds.events import Rejected

MEME = weights({"body.weight": torch.zeros(2, 3), "body.bias": torch.zeros(2)})
BRIEF = Message(**{"global": MEME})


def test_entries_by_hand() -> None:
    ledger, message = Ledger(), Message(meme=MEME, samples=count(7))
    ledger.record(3, "a", "up", message)
    assert list(ledger) == [
        Entry(3, "a", "up", "weights", "meme", arrays=2, values=8, bytes=32),
        Entry(3, "a", "up", "count", "samples", arrays=1, values=1, bytes=8),
        Entry(3, "a", "up", "envelope", "", arrays=0, values=0, bytes=len(message.encode()) - 40),
    ]


def test_no_message_is_no_bytes() -> None:
    ledger = Ledger()
    ledger.record(1, "a", "up", None)
    assert len(ledger) == 0
    assert ledger.bytes("up") == 0
    assert ledger.kinds("up") == {}


def test_sums_by_direction_client_and_kind() -> None:
    ledger, reply = Ledger(), Message(meme=MEME, samples=count(7))
    for client, times in (("a", 1), ("b", 2)):
        for round in range(times):
            ledger.record(round, client, "down", BRIEF)
            ledger.record(round, client, "up", reply)
    up, down = len(reply.encode()), len(BRIEF.encode())
    assert (ledger.bytes("up"), ledger.bytes("up", "a"), ledger.bytes("up", "b")) == (3 * up, up, 2 * up)
    assert (ledger.bytes("down"), ledger.bytes("down", "b"), ledger.bytes("down", "z")) == (3 * down, 2 * down, 0)
    assert ledger.kinds("up") == {"weights: meme": 96, "count: samples": 24}
    assert ledger.kinds("up", "a") == {"weights: meme": 32, "count: samples": 8}
    assert ledger.kinds("down", "b") == {"weights: global": 64}


def test_what_comes_after_a_question_is_counted_too() -> None:
    ledger, other, sizes = Ledger(), Ledger(), []
    for round in range(3):
        ledger.record(round, "a", "up", BRIEF)
        sizes.append((ledger.bytes("up"), ledger.bytes("up", "a"), ledger.bytes("down")))
    length = len(BRIEF.encode())
    assert sizes == [(length, length, 0), (2 * length, 2 * length, 0), (3 * length, 3 * length, 0)]
    other.extend(ledger)
    assert other.bytes("up") == 3 * length


@pytest.mark.parametrize("method", [FML(), FedAvg(), FedAvg(weights="uniform"), Independent()])
def test_a_run_counts_exactly_the_bytes_that_crossed(
    method: Any, federate: Callable[..., Federation], simulate: Callable[..., Any]
) -> None:
    run = simulate(method, federate(), rounds=3, client_fraction=0.7)
    crossed: Counter[tuple[int, str, str]] = Counter()
    for (round, client), brief in run.engine.briefs.items():
        crossed[round, client, "down"] += len(brief.encode())
    for (round, client), reply in run.engine.replies.items():
        crossed[round, client, "up"] += len(reply.message.encode()) if reply.message is not None else 0
    counted: Counter[tuple[int, str, str]] = Counter()
    for e in run.ledger:
        counted[e.round, e.client, e.direction] += e.bytes
    assert counted == +crossed
    # After the last round every client, drawn or not, gets the global: round 4 has three briefs.
    hub = method.needs_global
    assert sorted(client for round, client, way in counted if round == 4) == (["a", "b", "c"] if hub else [])
    assert sum(way == "up" for _, _, way in counted) == (6 if hub else 0)


class Leaky(FML):
    """A method with a mistake: it sends one array too many."""

    leak: str = ""

    def train(self, client: Any, brief: Message | None) -> Message | None:
        reply = super().train(client, brief)
        assert reply is not None
        meme = reply["meme"]
        if self.leak == "personal":
            return Message(meme=meme, personal=weights(client.state["personal"]))
        if self.leak == "samples":
            return Message(meme=meme, samples=count(client.samples))
        return Message(meme=weights({**meme.arrays, **client.state[self.leak]}))


@pytest.mark.parametrize(
    ("leak", "named"), [("personal", "'personal'"), ("samples", "'samples'"), ("adaptor", "'head.")]
)
def test_a_method_that_leaks_is_stopped_at_the_client_and_nothing_is_kept(
    leak: str,
    named: str,
    nets: Any,
    federate: Callable[..., Federation],
    simulate: Callable[..., Any],
) -> None:
    federation = federate(global_model={"name": nets.plain, "share": "body"})
    run = simulate(Leaky(leak=leak), federation, go=False)
    with pytest.raises(RunError) as refused:
        run.run()
    assert "every client failed; a: " in str(refused.value)
    assert named in str(refused.value)
    assert [commit.round for commit in run.engine.stores["a"].commits] == [0]
    assert run.ledger.bytes("up") == 0


# Whole numbers


@pytest.mark.parametrize("side", ["client", "network"])
@pytest.mark.parametrize("combine", ["mean", "median", "krum"])
def test_batch_norms_counters_carry_nothing_out(
    side: str, combine: str, nets: Any, federate: Callable[..., Federation], simulate: Callable[..., Any]
) -> None:
    """Sent by a bad method, or put in on the way: refused, and the global has none."""

    def smuggled(message: Message) -> Message:
        arrays = message.arrays("meme")
        return Message(**{**message, "meme": weights({**arrays, "norm.num_batches_tracked": torch.tensor(1001)})})

    class Smuggling(FedAvg):
        def train(self, client: Any, brief: Message | None) -> Message | None:
            reply = super().train(client, brief)
            assert reply is not None
            return smuggled(reply) if side == "client" and client.id == "a" else reply

    def tamper(round: int, client: str, message: Message) -> Message:
        return smuggled(message) if side == "network" and client == "a" else message

    federation = federate(models=nets.normed, global_model=nets.normed)
    run = simulate(Smuggling(combine=combine), federation, tamper=tamper, rounds=2)
    said = [event for event in run.events if isinstance(event, Rejected)]
    assert [(event.round, event.client) for event in said] == [(1, "a"), (2, "a")]
    assert all("'norm.num_batches_tracked' may not leave; whole numbers go back" in event.reason for event in said)
    assert run.server.state["global"]["norm.num_batches_tracked"].item() == 0


def test_a_spoilt_number_of_bytes_is_a_wrong_value() -> None:
    with pytest.raises(ValueError, match="more than can be counted"):
        Ledger().extend([Entry(1, "a", "up", "weights", "meme", 1, 1, 2**70)])
