"""Ctrl-C, SIGTERM and SIGHUP: they stop the work only where nothing is left half done."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
if hasattr(signal, "SIGHUP"):
    _SIGNALS[signal.SIGHUP] = "SIGHUP"  # the terminal was closed

GRACE_SECONDS = 5.0
"""How long saving may take once the exit has begun; a signal that comes later ends the process at once."""


@dataclass
class _SignalState:
    """Whether a signal may stop the work now, and the signal that waits to do so."""

    accepting: bool = True
    pending: str = ""
    announced: bool = False
    handled: bool = False
    """Whether the code that runs now is within `handled`."""
    raised: int = 0
    exiting_since: float | None = None
    resume_hint: Callable[[], str] = str


_state = _SignalState()


@contextmanager
def handled(resume_hint: Callable[[], str] = str) -> Iterator[None]:
    """Let signals raise `KeyboardInterrupt(name)` in this block; the first one waits for the end of `deferred`.

    `resume_hint` gives the last words to a user who does not wait until the work is saved.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    reset()
    _state.handled, _state.resume_hint = True, resume_hint
    for number, handler in before.items():
        # A signal that was ignored, as a shell's background job ignores Ctrl-C, stays ignored.
        if handler is not signal.SIG_IGN:
            signal.signal(number, _on_signal)
    try:
        yield
    finally:
        _state.accepting, _state.pending, _state.announced, _state.handled = True, "", False, False
        if _state.raised:
            begin_exit()
        for number, handler in before.items():
            signal.signal(number, handler)


def handle_ctrl_c() -> None:
    """In a process of our own: Ctrl-C stops the work once and never leaves a traceback."""
    signal.signal(signal.SIGINT, _on_signal)
    usual = sys.unraisablehook

    def hook(args: UnraisableHookArgs) -> None:
        """If it was raised where nothing can catch it, as in a `__del__`, let the next one count as the first."""
        if isinstance(args.exc_value, KeyboardInterrupt):
            reset()
        else:
            usual(args)

    sys.unraisablehook = hook


def reset() -> None:
    """Forget earlier interruptions."""
    _state.raised, _state.exiting_since = 0, None


def begin_exit() -> None:
    """From now on no signal raises: all that is left is to save and to say so."""
    _state.exiting_since = _state.exiting_since or time.monotonic()


def interrupted() -> bool:
    """Whether a signal has stopped the work."""
    return _state.raised > 0


def _on_signal(number: int, frame: FrameType | None) -> None:
    name = _SIGNALS[signal.Signals(number)]
    if _state.exiting_since is not None:
        if time.monotonic() - _state.exiting_since > GRACE_SECONDS:
            _exit_now(name)
    elif _importing(frame):
        # Raised there, some packages swallow it and go on half loaded, and some abort.
        if not _state.handled:
            _exit_now(name)
        _state.pending = name
    elif _state.accepting or _state.pending:
        _raise(name)
    else:
        _state.pending = name
        announce(name)


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being loaded there."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _raise(name: str) -> None:
    """Stop the work. A second signal may do so again, without waiting; a third one does nothing."""
    _state.pending = ""
    _state.raised += 1
    if not _state.handled or _state.raised == 2:
        begin_exit()
    raise KeyboardInterrupt(name)


def _exit_now(name: str) -> None:
    """End the process at once. What it has saved is complete, as after any kill."""
    show_cursor = "\x1b[?25h" if os.isatty(2) else ""
    how = "; " * bool(words := _state.resume_hint()) + words
    _write(f"{show_cursor}mutua: stopped by {name}{how}\n")
    os._exit(1)


def _write(text: str) -> None:
    with suppress(OSError):  # nobody reads it
        os.write(2, text.encode())  # not print: the signal may have come in the middle of one


def announce(name: str) -> None:
    """Say, once, that a signal has come and what happens now."""
    if not _state.announced:
        _state.announced = True
        _write(f"{name}: finishing what has begun, then saving; once more does not wait\n")


def skip_announcement() -> None:
    """In a process that is sent signals by a parent: the parent has announced them."""
    _state.announced = True


@contextmanager
def blocked() -> Iterator[None]:
    """Around the start of a process: signals wait, and in the new process they wait until it calls `unblock`.

    A signal that came too early would raise in the code that the new process has inherited, which would then go on
    as a second copy of this one.
    """
    if not hasattr(signal, "pthread_sigmask"):  # where nothing is forked either
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock() -> None:
    """In a process that was started within `blocked`: receive signals from now on."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


@contextmanager
def handlers_restored() -> Iterator[None]:
    """Around a library that takes signals for itself: afterwards they are handled as before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore(except_for: int | None = None) -> None:
    """In a process that its parent stops: ignore what a terminal sends to all of its processes."""
    for number in _SIGNALS:
        if number != except_for:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def _accepting(accept: bool) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals stop the main thread only
        return
    before, _state.accepting = _state.accepting, accept
    try:
        _raise_pending()
        yield
    finally:
        _state.accepting = before
    _raise_pending()


def _raise_pending() -> None:
    if _state.accepting and _state.pending:
        _raise(_state.pending)


deferred = partial(_accepting, False)
"""This block is finished before a signal stops the work; a second signal does not wait."""

allowed = partial(_accepting, True)
"""Within `deferred`, a signal may stop the work in this block again: stopping it half-way changes nothing."""
