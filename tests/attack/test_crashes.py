"""A crash before every single file operation of a small run, and of its going on: the same bytes in the end."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from conftest import TINY
from killing import begin, forked, left, onward, waited
from mutua import Recipe
from mutua.support.processes import can_fork

pytestmark = [pytest.mark.long, pytest.mark.skipif(not can_fork(), reason="ends processes that it forks")]

SHARDS = 4
SMALL: dict[str, Any] = {
    **TINY,
    "name": "small",
    "data": {"name": "mnist5k", "samples_per_client": 14},
    "models": {"global": {"name": "mlp", "width": 0.02}},
    "checkpoints": {"seconds": 0, "keep": 1},
}
CRASHED = 77

# Calls that change what is on the disk, or that may: of the system, and of open files.
SYSTEM = ["open", "mkdir", "rename", "replace", "unlink", "remove", "rmdir"]
SYSTEM += ["fsync", "write", "truncate", "ftruncate"]
FILES = ["open", "write", "writelines", "flush", "close", "truncate", "__exit__"]
KINDS = ["io", "_io", "BufferedWriter", "BufferedRandom", "TextIOWrapper", "FileIO"]


class Operations:
    """Counts the operations of all threads, and ends the process just before the last."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self.seen: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, call: Any) -> None:
        if event != "c_call":
            return
        name, owner = call.__name__, getattr(call, "__self__", None)
        kind = owner.__name__ if type(owner).__name__ == "module" else type(owner).__name__
        if (kind == "posix" and name in SYSTEM) or (kind in KINDS and name in FILES):
            self.seen[name] += 1
            if self.seen.total() == self.last:
                os._exit(CRASHED)

    def __enter__(self) -> Operations:
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The recipe, its federation, what its unbroken run leaves, and the operations it is made of."""
    recipe, place = Recipe.of(SMALL), tmp_path_factory.mktemp("small")
    federation = recipe.federation()
    begin(recipe, place / "run", federation, workers=1)
    with Operations() as operations:  # after torch has loaded what it loads at first use
        begin(recipe, place / "counted", federation, workers=1)
    return recipe, federation, left(place / "run"), operations.seen


def crash(small: Any, run: Path, at: int, told: Path) -> bool:
    """Let the run begin or go on, and crash before this operation; whether it came to it."""
    recipe, federation, _, _ = small

    def work() -> None:
        with Operations(at):
            onward(recipe, run, federation, workers=1)

    code = waited(forked(work, told))
    assert code in (0, CRASHED), told.read_text()
    return code == CRASHED


def go_on_and_compare(small: Any, run: Path, told: Path, at: Any) -> None:
    recipe, federation, expected, _ = small
    assert waited(forked(lambda: onward(recipe, run, federation, workers=1), told)) == 0, (at, told.read_text())
    assert left(run) == expected, at
    assert not list(run.rglob("*.aside")), at


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_crash_before_every_file_operation(
    shard: int, small: Any, tmp_path: Path, figure: Callable[[str, int, str], None]
) -> None:
    seen, told = small[3], tmp_path / "told.txt"
    assert seen.total() > 100 and {"fsync", "replace", "write", "mkdir"} <= seen.keys()
    done = 0
    for at in range(1 + shard, seen.total() + 1, SHARDS):
        run = tmp_path / "run"
        assert crash(small, run, at, told)
        go_on_and_compare(small, run, told, at)
        shutil.rmtree(run)
        done += 1
    figure("crashes", done, f"each before one of the {seen.total()} file operations of a run, part {shard + 1}")


@pytest.mark.parametrize("at", [0.3, 0.6, 0.9])
def test_a_crash_before_every_file_operation_of_going_on(
    at: float, small: Any, tmp_path: Path, figure: Callable[[str, int, str], None]
) -> None:
    """The run has crashed at some operation, and what goes on with it crashes again, at each in turn."""
    told, first = tmp_path / "told.txt", int(at * small[3].total())
    assert crash(small, tmp_path / "first", first, told)
    second = 0
    while True:
        second += 1
        run = tmp_path / "run"
        shutil.copytree(tmp_path / "first", run)
        crashed = crash(small, run, second, told)
        go_on_and_compare(small, run, told, (first, second))
        shutil.rmtree(run)
        if not crashed:
            break
    figure("crashes", second - 1, f"of what goes on after a crash at {at:.0%} of the operations")
