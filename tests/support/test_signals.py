"""Ctrl-C, SIGTERM and SIGHUP are heard where nothing is half done, and at once when they come again."""

# ruff: noqa: PT012 — where in a block the signal is heard is what is tested

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mutua.support import signals


@pytest.fixture(autouse=True)
def _hearing() -> Iterator[None]:
    """Python's own handler, also where a shell made the tests deaf to Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def send(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")]
)
def test_outside_of_what_is_whole_it_stops_at_once(number: int, name: str) -> None:
    with pytest.raises(KeyboardInterrupt, match=name), signals.handled():
        send(number)
        pytest.fail("not heard")


def test_what_is_whole_is_finished_first(capfd: pytest.CaptureFixture[str]) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), signals.handled():
        with signals.deferred():
            send(signal.SIGTERM)
            done.append("step")
        done.append("more")
    assert done == ["step"]
    assert capfd.readouterr().err.startswith("SIGTERM: finishing what has begun")


def test_a_second_one_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt), signals.handled(), signals.deferred():
        send()
        send()
        pytest.fail("not heard")


def test_another_thread_is_never_stopped_by_a_signal() -> None:
    """A signal that waits for the main thread does not raise where a thread of a library ends its own block."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            with signals.deferred(), signals.allowed():
                pass
        except KeyboardInterrupt as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    with pytest.raises(KeyboardInterrupt), signals.handled(), signals.deferred():
        send()
        thread.start()
        thread.join()
    assert not raised


def test_inside_the_loop_it_is_heard_between_steps_only() -> None:
    done: list[str] = []

    @signals.deferred()
    def loop() -> None:
        for step in range(3):
            done.append(f"merge {step}")
            with signals.allowed():
                for client in "ab":
                    with signals.deferred():
                        if (step, client) == (1, "a"):
                            send()
                        done.append(f"{client} {step}")

    with pytest.raises(KeyboardInterrupt), signals.handled():
        loop()
    assert done == ["merge 0", "a 0", "b 0", "merge 1", "a 1"]


def test_what_came_between_is_heard_before_the_next_step() -> None:
    with pytest.raises(KeyboardInterrupt), signals.handled(), signals.deferred():
        send()
        with signals.allowed():
            pytest.fail("not heard")


def test_what_is_saved_after_it_is_whole_again() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt, match="Ctrl-C"), signals.handled(), signals.deferred():
        send()
        try:
            with signals.allowed():
                pytest.fail("not heard")
        finally:
            send()  # again, while the state is being saved
            done.append("saved")
    assert done == ["saved"]


def test_however_many_come_what_is_saved_is_saved() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), signals.handled(), signals.deferred():
        send()
        try:
            send()  # does not wait
            pytest.fail("not heard")
        except KeyboardInterrupt:
            signals.begin_exit()  # as the loop says before it saves
            for _ in range(12):
                send()
            done.append("saved")
            raise
    assert done == ["saved"]


def test_after_two_in_the_open_no_more_are_heard() -> None:
    heard = 0
    with signals.handled():
        for _ in range(12):
            try:
                send()
            except KeyboardInterrupt:
                heard += 1
    assert heard == 2


def test_who_cannot_wait_for_the_saving_is_let_go_and_told_how_to_go_on() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 2)
        signals.GRACE_SECONDS = -1.0
        with signals.handled(lambda: "to go on: this way"):
            signals.begin_exit()
            send()
        os._exit(7)
    os.close(write)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert os.read(read, 100) == b"mutua: stopped by Ctrl-C; to go on: this way\n"


def test_while_a_module_is_loaded_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sends_ctrl_c.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ndone = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt), signals.handled():
        with signals.deferred():
            import sends_ctrl_c  # type: ignore[import-not-found]  # made just now

            assert sends_ctrl_c.done
        pytest.fail("not heard")


def test_an_error_in_the_step_is_not_hidden_by_the_signal() -> None:
    with pytest.raises(ZeroDivisionError), signals.handled(), signals.deferred():
        send()
        1 / 0  # noqa: B018


def test_after_it_all_is_as_before() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), signals.handled(), signals.deferred():
        send()
        send()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    with signals.handled(), signals.deferred():  # the old one is forgotten
        pass


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with signals.handled():
        send()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_has_no_say_in_signals() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with signals.handled(), signals.deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


# The real thing. What is printed first says that Python itself has started, whose own start we do not guard.

STARTED = "import os; from mutua.cli.process import main; os.write(1, b'.'); main()"


def twelve(words: list[str], place: Path, after: Path | None, delay: float, gap: float) -> tuple[int, str]:
    """Twelve Ctrl-C for a command, once this file is there and some time is over; exit code and stderr."""
    hearing = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), "start_new_session": True}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    program = [sys.executable, "-c", STARTED, *words]
    with subprocess.Popen(program, cwd=place, **streams, **hearing) as process:  # type: ignore[call-overload]
        assert process.stdout is not None and process.stdout.read(1) == b"."
        until = time.monotonic() + 60
        while after is not None and not after.exists() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(delay)
        for _ in range(12):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                time.sleep(gap)
        _, err = process.communicate(timeout=60)
    return process.returncode, err.decode()


@pytest.mark.parametrize(
    ("command", "delay", "gap"),
    [("run", None, 0.0), ("run", 0.3, 0.01), ("run", 0.0, 0.001), ("compare", 0.2, 0.01)],
)
def test_twelve_in_a_row_leave_no_traceback(
    command: str, delay: float | None, gap: float, tiny: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({**tiny, "rounds": 10**6, "checkpoints": {"seconds": 0}}))
    words = [command, "tiny.yaml", "--out", "x", *(["--methods", "fml", "--seeds", "0"] * (command == "compare"))]
    begun = {
        "run": tmp_path / "x/checkpoints/000000.json",
        "compare": tmp_path / "x/fml-0/checkpoints/000000.json",
    }
    code, err = twelve(words, tmp_path, None if delay is None else begun[command], delay or 0.5, gap)
    assert code in (1, -signal.SIGINT) and "Traceback" not in err and "Error" not in err
    if delay is not None:
        assert err.splitlines()[-1].startswith("mutua: stopped by Ctrl-C; ") and "to go on: " in err


def test_a_terminal_that_is_closed_stops_a_run_in_good_order(tiny: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(
        yaml.safe_dump({**tiny, "rounds": 10**6, "checkpoints": {"seconds": 1000}})
    )
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        words = ["-m", "mutua", "run", "tiny.yaml", "--out", "x", "--workers", "2"]
        os.execv(sys.executable, [sys.executable, *words])
    until, history = time.monotonic() + 60, tmp_path / "x" / "history.csv"
    os.set_blocking(terminal, False)
    while (not history.is_file() or history.read_text().count("\n") < 60) and time.monotonic() < until:
        try:
            os.read(terminal, 2**16)
        except BlockingIOError:
            time.sleep(0.01)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    events = (tmp_path / "x" / "events.jsonl").read_text()
    assert '"reason": "stopped by SIGHUP"' in events
    assert '"checkpoint"' in events and list((tmp_path / "x" / "checkpoints").glob("*.json"))
