"""Runs that are killed and go on: recipes, the unbroken run's bytes, and processes that die at a chosen moment."""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from method_needs import needs_of
from mutua import Federation, Recipe
from mutua.federation.store import Store
from mutua.runs.checkpoints import CheckpointFolder
from mutua.runs.execute import execute
from mutua.runs.folder import RunFolder
from mutua.runs.recording import Recorder
from mutua.runs.resuming import ResumedRecorder

# A checkpoint after every round, three clients of which two are drawn, and optimizers with a memory.
RECIPE: dict[str, Any] = {
    "name": "tiny",
    "data": {"name": "mnist5k", "samples_per_client": 20},
    "partition": {"kind": "iid", "clients": 3},
    "models": {"global": {"name": "mlp", "width": 0.1}, "clients": {"name": "mlp", "width": 0.05}},
    "rounds": 3,
    "batch_size": 7,
    "client_fraction": 0.7,
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "checkpoints": {"seconds": 0},
    "device": "cpu",
}
GATE = {"name": "mlp", "width": 0.05}
# Beside what `needs_of` gives.
NEEDS: dict[str, dict[str, Any]] = {
    "mixture": {"method": {"name": "mixture", "mixture_epochs": 2, "gate": GATE}},
    "finetuned": {"method": {"name": "finetuned", "tune_epochs": 2}},
    "no-regret": {"method": {"name": "no-regret", "tune_epochs": 2}},
    "fml": {
        "models": {
            "global": {"name": "mlp", "width": 0.1, "share": "body"},
            "clients": [{"name": name, "width": 0.1} for name in ("mlp", "cnn1", "mlp")],
        }
    },
    "fmlu": {"optimizer": "adam"},
}
PAPERS = ("fml", "fmlu", "fedh2l", "mixture")


def recipe_of(method: str, /, **changes: Any) -> Recipe:
    return Recipe.of({**RECIPE, "method": method, **needs_of(method), **NEEDS.get(method, {}), **changes})


def begin(recipe: Recipe, place: Path, federation: Federation | None = None, **given: Any) -> None:
    execute(recipe, federation or recipe.federation(), Recorder.create("tiny", 0, place), **given)


def go_on(place: Path, federation: Federation | None = None, **given: Any) -> list[str]:
    """Resume, as the command does, unless the run is over; what was said."""
    if RunFolder(place).finished:
        return []
    folder = ResumedRecorder(place)
    recipe = folder.recipe
    execute(recipe, federation or recipe.federation(), folder, **given)
    return folder.notes


def left(place: Path) -> dict[str, Any]:
    """All that a run has left but for times: models, history, ledger, record, and its last checkpoint's state."""
    files = [path for path in place.rglob("*") if path.is_file()]
    apart = ("lock", "run.json", "events.jsonl")
    found: dict[str, Any] = {
        str(path.relative_to(place)): path.read_bytes()
        for path in files
        if path.name not in apart and path.relative_to(place).parts[0] != "checkpoints"
    }
    record = json.loads((place / "run.json").read_text())
    del record["summary"]["seconds"]
    newest = CheckpointFolder(place / "checkpoints").newest
    assert newest is not None
    return {**found, "run.json": record, "state": (newest.round, newest.server, newest.clients)}


# Stopped


def stop_at(number: int, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None] = lambda: None) -> None:
    """Ctrl-C once so many clients' works are committed."""
    real, done = Store.commit, 0

    def commit(*given: Any) -> None:
        nonlocal done
        done += 1
        real(*given)
        if done == number:
            os.kill(os.getpid(), signal.SIGINT)
            then()

    monkeypatch.setattr(Store, "commit", commit)


# Killed. A moment is a call of a Python or C function; a process that counts them kills itself at the right one.


class Moments:
    """How many there were, and which of them lay in the writing of checkpoints."""

    def __init__(self, last: int | None = None) -> None:
        self.count, self.last = 0, last
        self.saving: list[tuple[int, int]] = []
        self._began = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        if frame.f_code is Recorder.save.__code__:
            if event == "call":
                self._began = self.count
            elif event == "return":
                self.saving.append((self._began, self.count))

    def draw(self, rng: random.Random, saving: bool) -> int:
        """Some moment, or one within the writing of some checkpoint."""
        return rng.randint(*rng.choice(self.saving)) if saving else rng.randint(1, self.count)


@contextmanager
def counting(last: int | None = None) -> Iterator[Moments]:
    moments = Moments(last)
    sys.setprofile(moments)
    try:
        yield moments
    finally:
        sys.setprofile(None)


def killed(moment: int, work: Callable[[], None]) -> bool:
    """Do the work in a process of its own, which dies at the moment, or at the end; whether amid the work."""
    ended = mmap.mmap(-1, 1)  # which both processes see
    child = os.fork()
    if child == 0:
        try:
            with counting(moment):
                work()
        finally:
            ended[0] = 1
            os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    return not ended[0]


def kill_and_go_on(method: str, times: int, whole: Any, place: Path, stores: str = "auto") -> int:
    """Kill so many runs once or twice and compare what they leave; how many kills fell within the work."""
    kills = 0
    federation, expected, moments = whole(method, stores)
    rng = random.Random(f"{method} {times}")
    begun = recipe_of(method, stores=stores)
    for k in range(times):
        run = place / str(k)
        folder = Recorder.create("tiny", 0, run)
        folder.write_recipe(begun)  # without which nothing has begun
        moment = moments.draw(rng, saving=k % 3 == 0)
        kills += killed(moment, lambda folder=folder: execute(begun, federation, folder))  # type: ignore[misc]
        folder._lock.release()  # the child's is gone with it
        for _ in range(k % 2):  # and once more, on the way
            kills += killed(moments.draw(rng, saving=False), lambda run=run: go_on(run, federation))  # type: ignore[misc]
        go_on(run, federation)
        assert left(run) == expected, (method, k)
    return kills


def onward(recipe: Recipe, place: Path, federation: Federation, **given: Any) -> None:
    """Go on with a run, or begin it where it was killed before it had begun."""
    if (place / "recipe.yaml").is_file():
        go_on(place, federation, **given)
    else:
        begin(recipe, place, federation, **given)


def forked(work: Callable[[], None], told: Path) -> int:
    """Do the work in a process, with a group of its own, whose id this is; what it raises is written to a file."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        work()
        code = 0
    except BaseException:
        told.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def waited(child: int) -> int:
    """The exit code of a process, below 0 where a signal has ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def children(parent: int) -> list[int]:
    """The processes that a process has started."""
    found = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat")]
    return sorted(process for process in found if _stat(process)[1] == str(parent))


def shot(process: int) -> bool:
    """Kill a process that need not be a child of ours; whether it was alive.

    It is halted first, and seen to be: whoever has ended and only waits to be noticed takes every signal too.
    """
    until = time.monotonic() + 10
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGSTOP)
        while (state := _stat(process)[0]) not in "TZX" and time.monotonic() < until:
            time.sleep(0.001)
        os.kill(process, signal.SIGKILL)
        return state == "T"
    return False


def _stat(process: int) -> tuple[str, str]:
    """A process's state, X where there is none any more, and its parent."""
    with suppress(OSError):
        state, parent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:2]
        return state, parent
    return "X", ""
