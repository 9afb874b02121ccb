"""Processes and cores: one worker per core, one thread each, and memory that is kept."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mutua.support.processes import can_fork, cores, one_thread, use_one_thread

linux = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


@linux
def test_one_worker_per_core_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores() == len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for share, expected in (("150000 100000", 2), ("max 100000", 8), ("1000 100000", 1), ("9900000 100000", 8)):
        monkeypatch.setattr(Path, "read_text", lambda path, share=share: share)
        assert cores() == expected


@linux
def test_a_worker_forks_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_fork()
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
    assert not can_fork() and cores() == 1


def test_one_thread_and_the_old_number_after_it() -> None:
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        assert use_one_thread() == 2 and torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)


@linux
def test_kept_memory_saves_page_faults() -> None:
    """A large array made and dropped ten times: once the memory is kept it is not asked for again."""
    code = (
        "import sys, resource, torch\n"
        "from mutua.support.processes import keep_memory\n"
        "keep_memory()\n"
        "def go():\n"
        "    for _ in range(10): torch.ones(16_000_000)\n"
        "go()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "go()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    kept, given_back = (
        int(
            subprocess.run(
                [sys.executable, "-c", code],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "MUTUA_KEEP_MEMORY": switch},
            ).stdout
        )
        for switch in ("1", "0")
    )
    assert kept < 1000 < given_back
