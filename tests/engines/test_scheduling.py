"""Scheduling by a clock of the test's own, without any process: who runs, who is paused, who is tried again."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from mutua.engines.scheduling import Scheduler, WorkItem, WorkTurn, given_up
from mutua.errors import Fault, MachineFault


@dataclass
class Clock:
    """The time that the scheduler sees."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still unless the test moves it."""
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


def items(number: int, cost: float = 1.0, deadline: float | None = None) -> list[WorkItem]:
    return [WorkItem("x", str(i), (), cost, deadline) for i in range(number)]


def begun(scheduler: Scheduler) -> Iterator[WorkTurn]:
    """Begin all that may begin now."""
    while turn := scheduler.begin():
        turn.run()
        yield turn


def clients(turns: Iterator[WorkTurn]) -> list[str]:
    return [turn.item.client for turn in turns]


def test_turns_go_to_those_with_most_left_to_do(clock: Clock) -> None:
    """Three equal items on two cores: no core idles or is shared, and all end after one and a half."""
    scheduler = Scheduler(items(3), at_once=2, workers=3, cores=[4, 7])
    assert clients(begun(scheduler)) == ["0", "1", "2"]
    left, ended = dict.fromkeys(scheduler.turns, 1.0), {}
    while scheduler.turns:
        running, paused, seconds = scheduler.share()
        assert len(running) == min(2, len(scheduler.turns)) == len(scheduler.turns) - len(paused)
        assert [turn.core for turn in paused] == [None] * len(paused)
        assert all(turn.since is None for turn in paused) and all(turn.since is not None for turn in running)
        if len(running) == 2:
            assert sorted(turn.core or 0 for turn in running) == [4, 7]
        else:
            assert running[0].core is None  # alone, it may run anywhere
        step = min([left[turn.worker] for turn in running] + ([seconds] if seconds else []))
        clock.now += step
        for turn in running:
            left[turn.worker] -= step
            if left[turn.worker] < 1e-9:
                ended[turn.worker] = clock.now
                assert scheduler.end(turn, None)
    assert max(ended.values()) == pytest.approx(1.5)


def test_no_more_than_the_cores_begin_before_the_tail(clock: Clock) -> None:
    scheduler = Scheduler(items(6), at_once=2, workers=3)
    seen = [clients(begun(scheduler))]
    while scheduler.turns:
        scheduler.end(min(scheduler.turns.values(), key=lambda turn: turn.item.client), None)
        seen.append(clients(begun(scheduler)))
    assert seen == [["0", "1"], ["2"], ["3"], ["4", "5"], [], [], []]


def test_what_this_machine_failed_in_is_tried_again_alone_after_all_others(clock: Clock) -> None:
    scheduler, fault = Scheduler(items(3), at_once=2, workers=3), MachineFault("client 0", "no memory")
    turns = list(begun(scheduler))
    assert not scheduler.end(turns[0], fault)
    assert scheduler.begin() is None  # others are at work
    assert scheduler.end(turns[1], "done")
    assert scheduler.begin() is None
    assert scheduler.end(turns[2], Fault("client 2", "its own"))
    (second,) = begun(scheduler)
    assert (second.item.client, second.attempt) == ("0", 2)
    assert not scheduler.end(second, fault)
    (third,) = begun(scheduler)
    assert scheduler.end(third, fault)  # enough
    assert not scheduler.turns and scheduler.begin() is None
    assert str(given_up(fault)) == "client 0: no memory, 3 times: this machine's failure, not the client's own"


def test_after_a_stop_nothing_else_begins(clock: Clock) -> None:
    scheduler = Scheduler(items(9), at_once=2, workers=3)
    turns = list(begun(scheduler))
    scheduler.stop()
    assert scheduler.begin() is None and list(scheduler.turns.values()) == turns
    for turn in turns:
        assert scheduler.end(turn, None)
    assert scheduler.begin() is None


def test_a_wait_ends_at_the_next_deadline(clock: Clock) -> None:
    scheduler = Scheduler(items(2, deadline=5.0), at_once=2, workers=2)
    first = scheduler.begin()
    assert first is not None
    first.run()
    clock.now = 3.0
    list(begun(scheduler))
    assert scheduler.share().seconds == 2.0
    clock.now = 6.0
    assert scheduler.share().seconds == 0.0 and first.left < 0
    assert Scheduler(items(1, deadline=None), 1, 1).begin() is not None
    alone = Scheduler(items(1, deadline=1e9), 1, 1)
    list(begun(alone))
    assert alone.share().seconds is None  # longer than the system can wait


def test_time_in_which_an_item_is_paused_does_not_count(clock: Clock) -> None:
    turn = WorkTurn(WorkItem("go", "a", (), deadline=0.2), 0)
    turn.run()
    clock.now = 0.15
    turn.pause()
    assert turn.left == math.inf
    clock.now = 7.0
    turn.run()
    assert turn.left == pytest.approx(0.05) and turn.ran == pytest.approx(0.15)
    clock.now = 7.1
    assert turn.left < 0
    assert WorkTurn(WorkItem("go", "a", ()), 0, since=0.0).left == math.inf
