"""The examples are complete projects that run; here with fewer rounds and samples."""

from __future__ import annotations

import runpy
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def project(name: str) -> Any:
    return runpy.run_path(str(EXAMPLES / name))["main"]


def test_four_hospitals_are_told_whether_joining_has_helped(capsys: pytest.CaptureFixture[str]) -> None:
    result = project("hospitals/hospitals.py")(rounds=1)
    assert [client.architecture.label for client in result.clients] == ["mlp", "res-mlp", "linear", "mlp"]
    assert {client.client.train.classes for client in result.clients} == {("no", "yes")}
    out = capsys.readouterr().out
    assert out.count(" patients") >= 4 and "west has no pressure: missing there" in out


def test_two_tasks_share_a_body_and_no_head(capsys: pytest.CaptureFixture[str]) -> None:
    results = project("two-tasks/two_tasks.py")(rounds=1, train=40)
    low, high = results["fml"].clients
    assert not set(low.predictor.classes) & set(high.predictor.classes)
    assert len(low.predictor.classes) == len(high.predictor.classes) == 5
    shared = set(results["fml"].global_state)
    assert "conv1.weight" in shared and not any(name.startswith("head") for name in shared)
    assert set(low.state["adaptor"]) == {"head.weight", "head.bias"}
    assert "shared and merged: conv1.bias" in capsys.readouterr().out


def test_a_method_of_ones_own_runs_from_its_recipe(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(EXAMPLES / "own-method")
    small = ["--set", "rounds=1", "--set", "epochs=1", "--set", "data={name: mnist5k, samples_per_client: 40}"]
    done = command("run", "recipe.yaml", *small, "--out", tmp_path / "run", "--json")
    assert done.code == 0 and '"method": "tutored"' in done.out
    sys.modules.pop("tutored", None)


def test_without_pull_the_personal_models_are_those_trained_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The special case that its README names."""
    import torch

    from conftest import federation, quick

    method = runpy.run_path(str(EXAMPLES / "own-method" / "tutored.py"))["Tutored"]
    own, alone = (quick(one, federation(), rounds=2) for one in (method(pull=0.0), "independent"))
    for mine, theirs in zip(own.clients, alone.clients, strict=True):
        assert all(torch.equal(theirs.state["personal"][n], w) for n, w in mine.state["personal"].items())


@pytest.mark.long
def test_a_cluster_gives_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    assert project("cluster/cluster.py")(rounds=1, samples_per_client=40)
    assert "the same bytes: True" in capsys.readouterr().out


@pytest.mark.deploy
def test_three_sites_on_this_machine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    project("three-sites/three_sites.py")(str(tmp_path / "trial"), f"127.0.0.1:{port}")
    out, err = capfd.readouterr()
    assert (out + err).count("all as they were written") == 3
    assert len(list((tmp_path / "trial" / "organiser" / "runs").glob("*/run.json"))) == 1


def test_the_notebook_runs_from_top_to_bottom() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(EXAMPLES / "first-steps.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # kept without outputs
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    pages = [data["text/html"] for data in shown if "text/html" in data]
    assert sum("<svg" in page for page in pages) == 2  # the curves of a run and of a comparison
    [bar] = [page for page in pages if "<progress" in page]
    assert 'max="4" value="4"' in bar and "round 4/4" in bar
    errors = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if output.output_type == "error"
    ]
    assert errors == []


def test_every_example_is_linked_and_tested() -> None:
    tests = Path(__file__).read_text(encoding="utf-8") + (EXAMPLES.parent / "tests/test_docs.py").read_text(
        "utf-8"
    )
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for place in EXAMPLES.iterdir():
        if place.is_dir() and place.name != "deployment" and place.name != "__pycache__":
            assert (place / "README.md").is_file() and f"({place.name}/README.md)" in index, place.name
            assert place.name == "flower-app" or f"{place.name}/" in tests or f'"{place.name}"' in tests
        elif place.suffix in (".py", ".ipynb", ".yaml"):
            assert f"({place.name})" in index, place.name
