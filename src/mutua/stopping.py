"""Ctrl-C and SIGTERM, heard only where nothing is half done."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType

_SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


@dataclass
class _Ears:
    """Whether a signal may stop the work now, and the one that has asked to."""

    open: bool = True
    asked: str = ""
    told: bool = False


_ears = _Ears()


@contextmanager
def orderly() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM raise `KeyboardInterrupt(name)` here, the first one only outside `whole`."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's business
        return
    # A signal that was ignored, as a shell's background job ignores Ctrl-C, stays ignored.
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _ears.open, _ears.asked, _ears.told = True, "", False


def _hear(number: int, frame: FrameType | None) -> None:
    name = _SIGNALS[signal.Signals(number)]
    if _ears.open or _ears.asked:
        raise KeyboardInterrupt(name)
    _ears.asked = name
    announce(name)


def announce(name: str) -> None:
    """Say, once, that a signal was heard and what happens now."""
    if not _ears.told:
        _ears.told = True
        # Not print: the signal may have come in the middle of one.
        os.write(2, f"{name}: finishing what has begun, then saving; once more does not wait\n".encode())


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
        name, _ears.asked = _ears.asked, ""
        raise KeyboardInterrupt(name)


whole = partial(_hearing, False)
"""What is in here is done whole before a signal is heard; a second signal does not wait."""

breakable = partial(_hearing, True)
"""In here, within `whole`, a signal is heard again: what is broken off has changed nothing."""
