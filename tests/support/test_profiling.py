"""Where the time went: every second of every core is one thing or another."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import mutua
from mutua import Federation, RunError
from mutua.methods import FML
from mutua.support.profiling import Profile, Span, record_span, timed


def test_the_parts_make_up_the_whole() -> None:
    with Profile(workers=2).active() as profile:
        with timed("merge"):
            _compute(0.02)
        record_span(Span(1, "train", "a", profile.began, profile.began + 0.1, 0.05))
        record_span(Span(2, "assess", "a", profile.began, profile.began + 0.1, 0.03))
        _compute(0.01)
        time.sleep(0.05)
    with timed("merge"):  # nobody listens any more
        pass
    seconds = profile.seconds()
    assert list(seconds) == ["train", "evaluate", "merge", "data", "checkpoint", "other", "idle"]
    assert (seconds["train"], seconds["evaluate"], seconds["data"]) == (0.05, 0.03, 0.0)
    assert 0.02 <= seconds["merge"] < 0.05 and 0.01 <= seconds["other"] < 0.04
    assert sum(seconds.values()) == pytest.approx(2 * (profile.ended - profile.began))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_and_its_trace(federate: Callable[..., Federation], tmp_path: Path, workers: int) -> None:
    with Profile(workers).active() as profile:
        mutua.run(FML(), federate([9, 12, 7]), rounds=3, workers=workers, device="cpu")
    profile.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events].count("train b") == 3
    assert {event["cat"] for event in events} == {"train", "evaluate", "merge"}
    assert {event["tid"] > 0 for event in events if event["cat"] == "train"} == {workers > 1}
    assert all(event["ph"] == "X" and event["dur"] >= 0 and event["ts"] >= 0 for event in events)
    with pytest.raises(RunError, match=r"^cannot write to .*trace.json/sub: File exists$"):
        profile.write(tmp_path / "trace.json" / "sub")
    by_client = sorted((event["ts"], event["dur"]) for event in events if event["name"].endswith(" a"))
    for (began, took), (then, _) in pairwise(by_client):
        assert began + took <= then + 1  # a client does one thing at a time
    assert profile.seconds()["train"] > 0


def _compute(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
