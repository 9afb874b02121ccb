"""Ctrl-C and SIGTERM are heard where nothing is half done, and at once when they come again."""

# ruff: noqa: PT012 — where in a block the signal is heard is what is tested

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from mutua.stopping import breakable, orderly, whole


@pytest.fixture(autouse=True)
def _hearing() -> Iterator[None]:
    """Python's own handler, also where a shell made the tests deaf to Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def send(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_outside_of_what_is_whole_it_stops_at_once(number: int, name: str) -> None:
    with pytest.raises(KeyboardInterrupt, match=name), orderly():
        send(number)
        pytest.fail("not heard")


def test_what_is_whole_is_finished_first(capfd: pytest.CaptureFixture[str]) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), orderly():
        with whole():
            send(signal.SIGTERM)
            done.append("step")
        done.append("more")
    assert done == ["step"]
    assert capfd.readouterr().err.startswith("SIGTERM: finishing what has begun")


def test_a_second_one_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt), orderly(), whole():
        send()
        send()
        pytest.fail("not heard")


def test_inside_the_loop_it_is_heard_between_steps_only() -> None:
    done: list[str] = []

    @whole()
    def loop() -> None:
        for step in range(3):
            done.append(f"merge {step}")
            with breakable():
                for client in "ab":
                    with whole():
                        if (step, client) == (1, "a"):
                            send()
                        done.append(f"{client} {step}")

    with pytest.raises(KeyboardInterrupt), orderly():
        loop()
    assert done == ["merge 0", "a 0", "b 0", "merge 1", "a 1"]


def test_what_came_between_is_heard_before_the_next_step() -> None:
    with pytest.raises(KeyboardInterrupt), orderly(), whole():
        send()
        with breakable():
            pytest.fail("not heard")


def test_what_is_saved_after_it_is_whole_again() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt, match="Ctrl-C"), orderly(), whole():
        send()
        try:
            with breakable():
                pytest.fail("not heard")
        finally:
            send()  # again, while the state is being saved
            done.append("saved")
    assert done == ["saved"]


def test_an_error_in_the_step_is_not_hidden_by_the_signal() -> None:
    with pytest.raises(ZeroDivisionError), orderly(), whole():
        send()
        1 / 0  # noqa: B018


def test_after_it_all_is_as_before() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), orderly(), whole():
        send()
        send()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    with orderly(), whole():  # the old one is forgotten
        pass


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with orderly():
        send()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_has_no_say_in_signals() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with orderly(), whole():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
