"""The private store: transactions, two rounds of memory, and the way back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mutua import Message, RunError
from mutua.federation.message import count
from mutua.federation.store import State, Store


def state(number: float) -> State:
    return {"personal": {"w": torch.tensor(number)}, "personal.optimizer": {"0.momentum": torch.tensor(-number)}}


def held(state: State) -> float | None:
    return float(state["personal"]["w"]) if state else None


def filled(*rounds: int) -> Store:
    store = Store()
    for round in rounds:
        store.commit(round, state(round), Message(samples=count(round)))
    return store


def test_a_new_store_is_empty() -> None:
    store = Store()
    assert store.state == {}
    assert store.stage(0) == {}
    assert store.committed(0) is None


def test_what_is_staged_is_not_kept_until_it_is_committed() -> None:
    store = filled(0)
    staged = store.stage(1)
    staged["personal"]["w"] = torch.tensor(9.0)
    staged["adaptor"] = {"w": torch.tensor(1.0)}
    del staged["personal.optimizer"]
    assert held(store.state) == 0
    assert set(store.state) == {"personal", "personal.optimizer"}
    assert held(store.stage(1)) == 0
    store.commit(1, staged, None)
    assert held(store.state) == 9
    assert set(store.state) == {"personal", "adaptor"}


def test_state_and_reply_are_kept_together() -> None:
    store = filled(0, 1)
    done = store.committed(1)
    assert done is not None
    assert (held(done.state), done.reply) == (1, Message(samples=count(1)))
    assert store.committed(2) is None


def test_two_rounds_are_kept() -> None:
    store = filled(0, 1, 2, 3)
    assert [commit.round for commit in store.commits] == [2, 3]
    assert [store.committed(round) is not None for round in range(5)] == [False, False, True, True, False]


def test_a_client_that_was_not_drawn_goes_on_from_where_it_was() -> None:
    store = filled(0, 2, 7)
    assert held(store.stage(9)) == 7
    assert held(store.stage(7)) == 2
    assert held(store.stage(5)) == 2


def test_back_to_the_round_before() -> None:
    store = filled(0, 1, 2, 3)
    assert held(store.stage(3)) == 2
    store.commit(3, state(33), None)
    assert held(store.state) == 33
    assert [commit.round for commit in store.commits] == [2, 3]
    # A round done anew makes later rounds untrue.
    store.commit(4, state(4), None)
    store.commit(3, state(34), None)
    assert [commit.round for commit in store.commits] == [3]
    assert held(store.state) == 34


def test_a_round_that_is_forgotten_is_said_so_and_not_begun_anew() -> None:
    store = filled(0, 1, 2, 3)
    with pytest.raises(RunError, match="round 2"):
        store.stage(2)
    assert held(store.state) == 3


@given(st.lists(st.integers(1, 4), max_size=8))
def test_any_run_of_rounds_leaves_the_last_two(gaps: list[int]) -> None:
    rounds = [0]
    for gap in gaps:
        rounds.append(rounds[-1] + gap)
    store = filled(*rounds)
    assert [commit.round for commit in store.commits] == rounds[-2:]
    assert held(store.stage(rounds[-1] + 1)) == rounds[-1]
    if len(rounds) > 1:
        assert held(store.stage(rounds[-1])) == rounds[-2]
