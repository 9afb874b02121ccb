"""A run saved and opened in Python, and its report."""

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


def test_what_was_saved_is_opened_as_it_was(tmp_path: Path) -> None:
    faults = {"dropout": [{"clients": ["c1"], "rounds": [1]}]}
    with pytest.warns(LeftOut):
        result = quick(FML(), federation(), rounds=2, faults=faults)
    path = result.save(tmp_path / "first")
    run = mutua.open_run(str(path))
    assert str(run) == str(result) and run._repr_html_() == result._repr_html_()
    assert "c1: answered 1 of 2 rounds" in str(run)
    assert run.summary == json.loads(json.dumps(result.summary()))
    assert list(run.history) == list(result.history) and list(run.ledger) == list(result.ledger)
    assert list(run.participation) == list(result.participation)
    assert (run.method, run.plan, run.clients) == (FML(), result.job.plan, ["c0", "c1", "c2"])
    for client in result.clients:
        assert torch.equal(run.predictor(client.id)(X), client.predictor(X))
    assert torch.equal(run.global_predictor()(X), result.global_predictor()(X))
    assert result["c1"] is result.clients[1]
    with pytest.raises(InputError, match="made in Python of objects that no file holds"):
        run.recipe.federation()
    with pytest.raises(InputError, match="not empty"):
        result.save(path)


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
    run = mutua.open_run(result.save(tmp_path / "run", recipe))
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
    run = mutua.open_run(result.save(tmp_path / "run"))
    with pytest.raises(
        InputError, match="client c0: its model Net was an object in Python; give it again as model="
    ):
        run.predictor("c0")
    for served, own in zip((run.predictor("c0", model=Net()), run.predictor("c1")), result.clients, strict=False):
        assert torch.equal(served(X), own.predictor(X)) and isinstance(served.model, Net)


# Reports


def test_a_report_of_a_saved_run_and_not_of_anything_else(tmp_path: Path) -> None:
    result = quick(FML(), federation())
    path = result.save(tmp_path / "run")
    run = mutua.open_run(path)
    assert mutua.report(path) == run.report() == [path / "report.html"]
    assert mutua.report(run, str(tmp_path / "page.html"), tables=tmp_path / "tables")[0] == tmp_path / "page.html"
    for wrong in (result, 3, [run]):
        with pytest.raises(InputError, match="save it first"):
            mutua.report(wrong)
    with pytest.raises(InputError, match="is not a folder"):
        mutua.report("nowhere")
