"""Wherever a name is typed, a misspelt one is answered with the name that was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mutua
from conftest import SMALL, federation, quick
from mutua import InputError, Recipe
from mutua.errors import suggest
from mutua.learning.trainer import Numbers
from mutua.studies.measures import Measure

Command = Callable[..., Any]


def test_a_suggestion_is_the_closest_name_whatever_its_case() -> None:
    assert suggest("fedavgg", ["fml", "fedavg"]) == "did you mean 'fedavg'? known: fml, fedavg"
    assert suggest("NORTH", ["south", "North"], "") == "did you mean 'North'?"
    assert suggest("xyz", ["fml"], "") == "" and suggest("xyz", []) == "known: none"
    assert suggest("c17", (f"c{n}" for n in range(5000))).endswith("c58, c59, ... (5000)")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quick("fml", federation()).save(tmp_path_factory.mktemp("runs") / "first")


def changed(tiny: dict[str, Any], **more: Any) -> Callable[[], Any]:
    return lambda: Recipe.of({**tiny, **more})


def test_names_in_python(saved: Path, tiny: dict[str, Any]) -> None:
    made = federation()
    result = quick("fml", made)
    comparison = mutua.Comparison(mutua.compare(["fml", "fedavg"], made, seeds=[0], rounds=0, progress=False).runs)
    typed: list[tuple[Callable[[], Any], str]] = [
        (lambda: mutua.run("fedavgg", made), "fedavg"),
        (lambda: mutua.methods.FML(alfa=1), "alpha"),  # type: ignore[call-arg]
        (lambda: mutua.methods.FML(combine="medain"), "median"),  # type: ignore[arg-type]
        (lambda: mutua.run("fml", made, ronds=1), "rounds"),
        (lambda: mutua.run("fml", made, optimizer="sgdd"), "sgd"),
        (lambda: mutua.run("fml", made, engine="loacl"), "local"),
        (lambda: mutua.run("fml", made, faults={"dropout": [{"clients": ["cc1"]}]}), "c1"),
        (lambda: mutua.Architecture.of("lennet5"), "lenet5"),
        (lambda: mutua.load("mnist5kk"), "mnist5k"),
        (lambda: mutua.tasks.Classification(headline="auroc1"), "auroc"),
        (lambda: made["cc0"], "c0"),
        (lambda: result["cc0"], "c0"),
        (lambda: result.history.curve("predictr"), "predictor"),
        (lambda: result.history.curve("global", metric="acuracy"), "accuracy"),
        (lambda: mutua.load_run(saved)["cc0"], "c0"),
        (lambda: mutua.load_run(saved).predictor("cc0"), "c0"),
        (lambda: mutua.load_run(saved).benefit("cc0"), "c0"),
        (lambda: mutua.load_run(saved.parent / "frist"), "first"),
        (lambda: mutua.report(saved.parent / "frist"), "first"),
        (lambda: comparison["fedavgg"], "fedavg"),
        (lambda: comparison.difference("fedavg", "predictr"), "predictor"),
        (lambda: Measure.of("predictr"), "predictor"),
        (changed(tiny, method="fmll"), "fml"),
        (changed(tiny, data={"name": "mnist5k", "samples_per_clients": 3}), "samples_per_client"),
        (changed(tiny, partition={"kind": "idd", "clients": 2}), "iid"),
        (changed(tiny, models={"globl": SMALL}), "global"),
        (changed(tiny, optimizer={"name": "adm"}), "adam"),
        (changed(tiny, task={"kind": "regresion"}), "regression"),
        (changed(tiny, selection="bst"), "best"),
        (changed(tiny, seeed=1), "seed"),
        (lambda: Numbers(alpha=1).alhpa, "alpha"),
        (lambda: mutua.load_rum, "load_run"),
    ]
    for attempt, meant in typed:
        with pytest.raises((InputError, AttributeError), match=f"did you mean '{meant}'") as caught:
            attempt()
        assert "did you mean" in str(caught.value), inspect.getsource(attempt)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("rn tiny.yaml", "run"),
        ("data gett mnist", "get"),
        ("run tiny.yaml --sedd 1", "--seed"),
        ("run tiny.yaml --device cup", "cpu"),
        ("run tinny.yaml", "tiny.yaml"),
        ("run tiny.yaml --set ronds=1", "rounds"),
        ("run tiny.yaml --log tensorbord", "tensorboard"),
        ("run --resume runs/frist", "first"),
        ("runs list rums", "runs"),
        ("runs show runs/frist", "first"),
        ("join runs/first --data x.npz --how mutal", "mutual"),
        ("predict runs/first --client cc0 --data x.npz", "c0"),
        ("export runs/first --client cc0", "c0"),
        ("report runs/frist", "first"),
        ("compare tiny.yaml --methods fmll", "fml"),
        ("data get mnistt", "mnist"),
        ("reproduce fmlu/tabel-1", "fmlu/table-1"),
        ("deploy jion", "join"),
    ],
)
def test_names_on_the_command_line(command: Command, tmp_path: Path, saved: Path, words: str, meant: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first").symlink_to(saved)
    done = command(*words.split())
    assert done.code == 2 and f"did you mean '{meant}'" in done.err
