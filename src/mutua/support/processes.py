"""Processes and cores: how many there may be, how many threads each uses, and when they end."""

from __future__ import annotations

import ctypes
import gc
import math
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

MAX_ATTEMPTS = 3
"""How often work is tried that fails because of this machine: a process that dies, or no memory left."""


def cores() -> int:
    """How many workers a run has by default: one per core that this process may use."""
    if not can_fork():
        return 1
    try:  # a container's share, such as "150000 100000": one and a half
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        share = math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # no such file, or "max"
        share = len(os.sched_getaffinity(0))
    return max(1, min(share, len(os.sched_getaffinity(0))))


def memory() -> int:
    """How many bytes of memory this machine has, or this container may use."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return there
    return min(limit, there)


def can_fork() -> bool:
    """Whether worker processes are possible: on Linux, and not inside a worker of somebody else."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def use_one_thread() -> int:
    """Let torch use one thread in this process: small models are faster so, and sums are the same on any machine.

    Gives the number of threads that it used before.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    return before


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in this block, as clients at work do."""
    before = use_one_thread()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def die_with(parent: int) -> None:
    """End this process when its parent ends; a paused one would not notice that its pipe was closed."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before
        os._exit(1)


def prepare_to_fork() -> None:
    """Let processes that are forked from now on share this one's memory for longer, until `gc.unfreeze`.

    What is freed goes back to the system, and the collection of garbage, here and in them, does not touch what is
    there now: a page that one of them writes to is there twice.
    """
    gc.collect()
    with suppress(OSError, AttributeError):  # only where the C library is GNU's
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    gc.freeze()


def share_memory_among_threads() -> None:
    """Let threads that begin from now on take memory where the main thread does.

    The C library never gives back what it took for other threads, and forked workers would inherit it.
    """
    most_arenas = -8
    with suppress(OSError, AttributeError):  # only where the C library is GNU's
        ctypes.CDLL("libc.so.6").mallopt(most_arenas, 1)


def keep_memory() -> None:
    """Let the C library keep freed memory instead of giving it back and asking for it again at every step."""
    if os.environ.get("MUTUA_KEEP_MEMORY", "1") == "0":
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt  # only where the C library is GNU's
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_max = -1, -4
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, ctypes.c_int(2**31 - 1))
