"""A run saved and loaded in Python, and its report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from torch import nn

import mutua
from conftest import SMALL, X, Y, federation, quick
from mutua import Federation, InputError, Recipe
from mutua.errors import LeftOut
from mutua.methods import FML, FedMD

Federate = Callable[..., Federation]


# Saving and opening


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def same_state(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def assert_same_run(run: mutua.SavedRun, result: mutua.Result) -> None:
    """Everything that a folder holds is as it was in memory."""
    assert str(run) == str(result) and run._repr_html_() == result._repr_html_()
    assert run.summary() == json.loads(json.dumps(result.summary()))
    assert run.report() == json.loads(json.dumps(result.report()))
    for log in ("history", "ledger", "participation"):
        assert list(getattr(run, log)) == list(getattr(result, log))
    assert (run.method, run.plan, run.left_out()) == (result.method, result.plan, result.left_out())
    assert run.seconds == pytest.approx(result.seconds, abs=1e-3)
    assert (run.mean_accuracy(), run.mean_score("global")) == (result.mean_accuracy(), result.mean_score("global"))
    assert run.shared.keys() == result.shared.keys()
    assert all(same_state(run.shared[name], result.shared[name]) for name in run.shared)
    assert [client.id for client in run.clients] == [client.id for client in result.clients]
    for saved, client in zip(run.clients, result.clients, strict=True):
        assert repr(saved) == repr(client).replace("ClientResult", "SavedClient") and run[client.id] is saved
        assert saved.summary() == json.loads(json.dumps(client.summary()))
        for what in ("score", "interval", "confusion_cells", "right", "by_domain"):
            assert getattr(saved, what)() == getattr(client, what)()
        assert np.array_equal(saved.confusion(), client.confusion())
        for what in (
            "trained",
            "evaluated",
            "serves",
            "serves_since",
            "attendance",
            "keeps_alone",
            "test_samples",
        ):
            assert getattr(saved, what) == getattr(client, what)
        assert saved.architecture.label == client.architecture.label
        assert saved.state.keys() == {name for name, kept in client.state.items() if name.isidentifier() and kept}
        assert all(same_state(saved.state[name], client.state[name]) for name in saved.state)
        assert torch.equal(saved.predictor(X), client.predictor(X))


@pytest.mark.parametrize("method", ["fml", "no-regret", "fedavg"])
def test_what_was_saved_is_loaded_as_it_was(tmp_path: Path, method: str) -> None:
    faults = {"dropout": [{"clients": ["c1"], "rounds": [1]}]}
    with pytest.warns(LeftOut):
        result = quick(method, federation(), rounds=2, faults=faults)
    path = result.save(tmp_path / "first")
    run = mutua.load_run(str(path))
    assert_same_run(run, result)
    assert_same_run(mutua.load_run(run.save(tmp_path / "copy")), result)
    assert "c1: answered 1 of 2 rounds" in str(run)
    assert torch.equal(run.global_predictor()(X), result.global_predictor()(X))
    if method == "no-regret":
        assert run["c0"].benefit() == result["c0"].benefit()
    with pytest.raises(InputError, match="made in Python of objects that no file holds"):
        _ = run.federation
    with pytest.raises(InputError, match=r"extend: .* mutua run --resume .*first --rounds 4"):
        run.extend(rounds=4)
    with pytest.raises(InputError, match="not empty"):
        result.save(path)


def test_a_loaded_run_has_the_attributes_of_a_result(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """All of them, but for what only a run in memory has: its clients' stores, last briefs and built modules."""
    recipe = Recipe.of(tiny)
    result = mutua.run(recipe.method, recipe.federation(), plan=recipe.plan(), progress=False)
    run = mutua.load_run(result.save(tmp_path / "run", recipe))
    assert public(result) - public(run) == {"longer"}
    assert public(result.clients[0]) - public(run.clients[0]) == {"store", "brief", "serving"}
    assert (run.job.method, run.job.plan, run.guarantee) == (result.job.method, result.job.plan, None)
    assert torch.equal(run.clients[1].client.test.x, result.clients[1].client.test.x)
    alone = mutua.load_run(quick("independent", federation()).save(tmp_path / "alone"))
    assert alone.global_state is None and alone.shared == {} and alone["c1"].state.keys() == {"personal"}


def test_the_command_line_reads_what_python_saved(command: Callable[..., Any], tmp_path: Path) -> None:
    quick(FML(), federation()).save("first")
    np.savez("x.npz", x=X, y=Y)
    assert command("report", "first").code == 0
    page = Path("first/report.html").read_text()
    assert "data given as objects in Python" in page and "the program that did so repeats it" in page
    assert command("predict", "first", "--client", "c0", "--data", "x.npz").code == 0
    assert command("join", "first", "--data", "x.npz", "--how", "finetune").code == 0
    assert "finished" in command("runs", "list", ".").out and command("runs", "show", "first").code == 0
    again = command("run", "first/recipe.yaml")
    assert again.code == 2 and "made in Python of objects" in again.err


def test_a_result_of_a_recipe_is_saved_with_it(tmp_path: Path, tiny: dict[str, Any]) -> None:
    recipe = Recipe.of(tiny)
    result = mutua.run(recipe.method, recipe.federation(), plan=recipe.plan(), progress=False)
    run = mutua.load_run(result.save(tmp_path / "run", recipe))
    assert run.recipe == recipe and len(run.recipe.federation().clients) == 2
    with pytest.raises(InputError, match="another method or seed"):
        result.save(tmp_path / "other", recipe.with_(seed=1))
    assert not (tmp_path / "other").exists()


class Net(nn.Module):
    """A model of somebody's own."""

    def __init__(self, channels: int = 6, classes: int = 3) -> None:
        super().__init__()
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


def test_models_that_were_objects_and_a_graph(tmp_path: Path) -> None:
    graph = networkx.path_graph(["c0", "c1", "c2"])
    made = federation(models=[Net(), Net, SMALL], public=(X[:9], Y[:9]))
    result = quick(FedMD(), made, topology=graph)
    run = mutua.load_run(result.save(tmp_path / "run"))
    with pytest.raises(
        InputError, match=r"client c0: its model Net was an object in Python; give it again: run\.predictor"
    ):
        run.predictor("c0")
    for served, own in zip((run.predictor("c0", model=Net()), run.predictor("c1")), result.clients, strict=False):
        assert torch.equal(served(X), own.predictor(X)) and isinstance(served.model, Net)


# Reports


def test_a_report_of_a_saved_run_and_not_of_anything_else(tmp_path: Path) -> None:
    result = quick(FML(), federation())
    path = result.save(tmp_path / "run")
    run = mutua.load_run(path)
    assert mutua.report(path) == [path / "report.html"]
    assert mutua.report(run, str(tmp_path / "page.html"), tables=tmp_path / "tables")[0] == tmp_path / "page.html"
    for wrong in (result, 3, [run]):
        with pytest.raises(InputError, match="save it first"):
            mutua.report(wrong)
    with pytest.raises(InputError, match="is not a folder"):
        mutua.report("nowhere")
