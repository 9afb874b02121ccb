"""Ctrl-C, SIGTERM and SIGHUP, heard only where nothing is half done."""

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

PATIENCE = 5.0
"""Seconds for saving and saying so, once a signal has stopped the work; later ones are heard only after them."""


@dataclass
class _Ears:
    """Whether a signal may stop the work now, and the one that has asked to."""

    open: bool = True
    asked: str = ""
    told: bool = False
    within: bool = False
    """Whether there is work that can be stopped in good order."""
    raised: int = 0
    ending: float | None = None
    """Since when all that is left is to save and to say so."""
    to_go_on: Callable[[], str] = str


_ears = _Ears()


@contextmanager
def orderly(to_go_on: Callable[[], str] = str) -> Iterator[None]:
    """Let these signals raise `KeyboardInterrupt(name)` here, the first one only outside `whole`.

    `to_go_on` gives the last words to somebody who cannot wait for the work to be saved.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's business
        return
    # A signal that was ignored, as a shell's background job ignores Ctrl-C, stays ignored.
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    begin()
    _ears.within, _ears.to_go_on = True, to_go_on
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _hear)
    try:
        yield
    finally:
        _ears.open, _ears.asked, _ears.told, _ears.within = True, "", False, False
        if _ears.raised:
            end()
        for number, handler in before.items():
            signal.signal(number, handler)


def take_over() -> None:
    """In a process of our own: Ctrl-C stops what is done, once, and never leaves a traceback."""
    signal.signal(signal.SIGINT, _hear)
    usual = sys.unraisablehook

    def hook(args: UnraisableHookArgs) -> None:
        """Raised where nobody could hear it, as in the end of an object: the next one is heard."""
        if isinstance(args.exc_value, KeyboardInterrupt):
            begin()
        else:
            usual(args)

    sys.unraisablehook = hook


def begin() -> None:
    """Forget what was stopped before."""
    _ears.raised, _ears.ending = 0, None


def end() -> None:
    """From now on no signal raises: all that is left is to save and to say so."""
    _ears.ending = _ears.ending or time.monotonic()


def stopped() -> bool:
    """Whether a signal has stopped the work."""
    return _ears.raised > 0


def _hear(number: int, frame: FrameType | None) -> None:
    name = _SIGNALS[signal.Signals(number)]
    if _ears.ending is not None:
        if time.monotonic() - _ears.ending > PATIENCE:
            _leave(name)
    elif _importing(frame):
        # Raised there, some packages swallow it and go on in pieces, and some abort.
        if not _ears.within:
            _leave(name)
        _ears.asked = name
    elif _ears.open or _ears.asked:
        _raise(name)
    else:
        _ears.asked = name
        announce(name)


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being loaded there."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _raise(name: str) -> None:
    """Stop the work. That may be done in two steps, the second of which does not wait; no third one is heard."""
    _ears.asked = ""
    _ears.raised += 1
    if not _ears.within or _ears.raised == 2:
        end()
    raise KeyboardInterrupt(name)


def _leave(name: str) -> None:
    """End the process at once. What it has saved is whole, as after any kill."""
    show_cursor = "\x1b[?25h" if os.isatty(2) else ""
    how = "; " * bool(words := _ears.to_go_on()) + words
    _write(f"{show_cursor}mutua: stopped by {name}{how}\n")
    os._exit(1)


def _write(text: str) -> None:
    with suppress(OSError):  # nobody reads it
        os.write(2, text.encode())  # not print: the signal may have come in the middle of one


def announce(name: str) -> None:
    """Say, once, that a signal was heard and what happens now."""
    if not _ears.told:
        _ears.told = True
        _write(f"{name}: finishing what has begun, then saving; once more does not wait\n")


def quiet() -> None:
    """Say nothing when a signal is heard: the process that sends it has said it."""
    _ears.told = True


@contextmanager
def forking() -> Iterator[None]:
    """Around the start of a process: signals wait, in the new one until it says `heed`.

    One that came before the new process is itself would raise in what it has inherited of this one, and it would
    go on as a second copy of it.
    """
    if not hasattr(signal, "pthread_sigmask"):  # where nothing is forked either
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore(but: int | None = None) -> None:
    """In a process that another one asks to stop: what a terminal sends to all of its processes is that one's."""
    for number in _SIGNALS:
        if number != but:
            signal.signal(number, signal.SIG_IGN)


def heed() -> None:
    """In a process that was started within `forking`: hear signals from now on."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


@contextmanager
def _hearing(open: bool) -> Iterator[None]:
    before, _ears.open = _ears.open, open
    try:
        _obey()
        yield
    finally:
        _ears.open = before
    _obey()


def _obey() -> None:
    if _ears.open and _ears.asked:
        _raise(_ears.asked)


whole = partial(_hearing, False)
"""What is in here is done whole before a signal is heard; a second signal does not wait."""

breakable = partial(_hearing, True)
"""In here, within `whole`, a signal is heard again: what is broken off has changed nothing."""
