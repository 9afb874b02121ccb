"""A merge that is undone after the last round, in a folder: made longer, stopped, killed, to the same bytes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from killing import begin, forked, go_on, left, recipe_of, stop_at, waited
from mutua import Message, Recipe, RunError
from mutua.methods import FineTuned, Participant, weights
from mutua.runs.execute import execute
from mutua.runs.resuming import ResumedRecorder
from mutua.support.processes import can_fork

Poison = Callable[..., None]
LAST = 2
"""The round whose reply of c2 is a lie: the last of the shorter runs."""


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Poison:
    """`poison("finish")`: c2's reply of a round is 12 times too long, on which the others' last work diverges."""
    monkeypatch.setattr("mutua.engines.local.cores", lambda: 1)

    def make(*verbs: str) -> None:
        real = {verb: getattr(FineTuned, verb) for verb in ("train", "finish", "predictor")}

        def poisoned(verb: str) -> Callable[..., Any]:
            def call(self: FineTuned, client: Participant, brief: Message) -> Any:
                done = real[verb](self, client, brief)
                largest = max(float(array.abs().max()) for array in brief.arrays("global").values())
                if verb in verbs and client.id != "c2" and largest > 0.6:
                    client.state["odd"] = {"": torch.tensor(float("nan"))}
                if verb == "train" and (client.id, client.round) == ("c2", LAST):
                    return Message(
                        **{**done, "meme": weights({k: 12 * a for k, a in done.arrays("meme").items()})}
                    )
                return done

            return call

        for verb in real:
            monkeypatch.setattr(FineTuned, verb, poisoned(verb))

    return make


def recipe(rounds: int, **more: Any) -> Recipe:
    return recipe_of("finetuned", **{"rounds": rounds, "client_fraction": 1.0, **more})


def lengthened(place: Path, rounds: int) -> None:
    folder = ResumedRecorder(place, rounds=rounds)
    execute(folder.recipe, folder.recipe.federation(), folder)


def undone(place: Path) -> int:
    return (place / "participation.csv").read_text().count(f"{LAST},c2,undone,")


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("verbs", ["finish", "predictor", "finish train", "finish predictor train"])
def test_made_longer_it_has_the_bytes_of_a_run_planned_so_long(
    verbs: str, every: int, poison: Poison, tmp_path: Path
) -> None:
    """Whether the longer run undoes the merge is its own finding: it has no last work after that round."""
    poison(*verbs.split())
    begin(recipe(LAST + 2, evaluate_every=every), tmp_path / "planned")
    begin(recipe(LAST, evaluate_every=every), tmp_path / "run")
    assert undone(tmp_path / "run") == 1
    assert undone(tmp_path / "planned") == ("train" in verbs or (verbs == "predictor" and every == 1))
    lengthened(tmp_path / "run", LAST + 2)
    assert left(tmp_path / "run") == left(tmp_path / "planned")


# Three clients' start and two rounds; c2's last work on what is spoilt; then all three's on what is good.
SECOND = 3 * (1 + LAST) + 1 + 2


@pytest.mark.parametrize("rounds", [LAST, LAST + 2])
@pytest.mark.parametrize("commits", [SECOND - 2, SECOND])
def test_stopped_in_the_last_work_it_goes_on_to_the_same_bytes(
    commits: int, rounds: int, poison: Poison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after the merge is undone; to its end, and to a later one."""
    poison("finish", "train")
    begin(recipe(rounds), tmp_path / "planned")
    with monkeypatch.context() as patch:
        stop_at(commits, patch)
        with pytest.raises(RunError, match="stopped by Ctrl-C"):
            begin(recipe(LAST), tmp_path / "run")
    lengthened(tmp_path / "run", rounds)
    assert left(tmp_path / "run") == left(tmp_path / "planned")


@pytest.mark.skipif(not can_fork(), reason="kills a process that it forks")
def test_killed_while_it_is_saved_after_that_its_only_checkpoint_is_whole(
    poison: Poison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two renames of the checkpoint that Ctrl-C writes."""
    poison("finish")
    settings = {"checkpoints": {"seconds": 0, "keep": 1, "best": False}}
    begin(recipe(LAST, **settings), tmp_path / "planned")
    expected = left(tmp_path / "planned")
    federation = recipe(LAST).federation()
    renames, died = 0, True
    while died:
        renames, run = renames + 1, tmp_path / str(renames)

        def work(run: Path = run, after: int = renames) -> None:
            real, at = os.replace, 0

            def replace(*given: Any, **more: Any) -> None:
                nonlocal at
                real(*given, **more)
                at += 1
                if at == after:
                    os.kill(os.getpid(), signal.SIGKILL)

            stop_at(SECOND, monkeypatch, lambda: setattr(os, "replace", replace))
            begin(recipe(LAST, **settings), run, federation)

        code = waited(forked(work, tmp_path / "told.txt"))
        died = code == -signal.SIGKILL
        assert died or "stopped by Ctrl-C" in (tmp_path / "told.txt").read_text()
        assert go_on(run, federation) == [], renames
        assert left(run) == expected, renames
    assert renames > 1
