"""Code that files of others name: refused unless the user allows that very name, and never called on a guess."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import mutua
from mutua import InputError, Recipe
from mutua.recipe.grid import Cell
from mutua.runs.folder import RunFolder
from mutua.runs.recording import Recorder
from mutua.studies.sweep import PlannedRun
from mutua.studies.sweep_work import _recorder
from mutua.support import importing

NETS = """
from functools import partial
from os import getcwd
from pathlib import Path
from subprocess import run as start
from torch import nn
import mutua

Path("imported").touch()

def build(channels, size, classes):
    Path("called").touch()
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))

def number():
    Path("called").touch()
    return 3

class Net(nn.Sequential):
    def __init__(self, channels, size, classes):
        super().__init__(nn.Flatten(), nn.Linear(channels * size * size, classes))

class Bag(dict):
    def __init__(self):
        Path("called").touch()

class Mine(mutua.methods.FedAvg):
    pass

def censor(x):
    return x

halved = partial(getcwd)
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in the current folder that tells by files whether it was imported and called."""
    name = f"nets_of_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for known in ("_trusted", "_refused"):
        monkeypatch.setattr(importing, known, set())
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def run(finished: Callable[..., tuple[Path, Any]], tmp_path: Path) -> Path:
    np.savez(tmp_path / "new.npz", x=np.zeros((20, 28, 28), np.uint8), y=np.arange(20) % 10)
    return Path(shutil.copytree(finished()[0], tmp_path / "run"))


def change(file: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    read = yaml.safe_load if file.suffix == ".yaml" else json.loads
    tree = read(file.read_text())
    edit(tree)
    file.write_text(json.dumps(tree))


def card_names(run: Path, name: str, where: str = "clients/c0") -> None:
    change(run / where / "card.json", lambda card: card["architecture"].update(name=name, width=1.0))


def left(tmp_path: Path) -> list[str]:
    return [name for name in ("imported", "called") if (tmp_path / name).exists()]


@pytest.mark.parametrize("name", ["http.server:test", "os:abort", "subprocess:run", "builtins:exit"])
def test_python_itself_is_no_model_even_where_allowed(name: str, nets: str, run: Path, command: Any) -> None:
    card_names(run, name)
    for more in ([], ["--trust-code", name]):
        done = command("predict", "run", "--client", "c0", "--data", "new.npz", *more)
        assert done.code == 2 and f"'{name}' is a part of Python" in done.err and done.err.count("\n") == 1
    with pytest.raises(InputError, match="is a part of Python"):
        Recipe.of({**TREE, "models": {"global": name}})


def test_a_card_may_name_only_what_is_allowed(nets: str, run: Path, command: Any, tmp_path: Path) -> None:
    """predict on a stranger's folder: nothing is imported until that very name is allowed."""
    card_names(run, f"{nets}:build")
    words = ["predict", "run", "--client", "c0", "--data", "new.npz"]
    done = command(*words)
    assert done.code == 2 and f"--trust-code {nets}:build" in done.err and left(tmp_path) == []
    done = command(*words, "--trust-code", f"{nets}:Net,other:thing")
    assert done.code == 2 and left(tmp_path) == []
    done = command(*words, "--trust-code", f"{nets}:build")
    assert "weights and card do not fit" in done.err and left(tmp_path) == ["imported", "called"]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("Bag", "the class Bag; give a factory"),
        ("start", "is subprocess's, a part of Python"),
        ("halved", "is posix's, a part of Python"),
        ("Path", "the class Path"),
    ],
)
def test_what_cannot_make_a_model_is_not_called(
    what: str, said: str, nets: str, run: Path, command: Any, tmp_path: Path
) -> None:
    card_names(run, f"{nets}:{what}")
    done = command("predict", "run", "--client", "c0", "--data", "new.npz", "--trust-code", f"{nets}:{what}")
    assert done.code == 2 and said in done.err and left(tmp_path) == ["imported"]


def test_what_a_factory_gives_must_be_a_model(nets: str, run: Path, command: Any) -> None:
    card_names(run, f"{nets}:number")
    done = command("predict", "run", "--client", "c0", "--data", "new.npz", "--trust-code", f"{nets}:number")
    assert done.code == 2 and "made a int; it must make an nn.Module" in done.err


def test_every_file_of_a_run(nets: str, run: Path, command: Any, tmp_path: Path) -> None:
    """join reads the global's card and run.json's method, resume and report --load-data the recipe."""
    join = ["join", "run", "--data", "new.npz"]
    kept = (run / "global" / "card.json").read_text()
    card_names(run, f"{nets}:build", "global")
    assert f"--trust-code {nets}:build" in command(*join).err
    (run / "global" / "card.json").write_text(kept)
    change(run / "run.json", lambda record: record["method"].update(name=f"{nets}:Mine"))
    assert f"--trust-code {nets}:Mine" in command(*join).err
    change(run / "recipe.yaml", lambda recipe: recipe.update(opt_out={"samples": 0.1, "censor": f"{nets}:censor"}))
    change(run / "run.json", lambda record: record.update(recipe=(run / "recipe.yaml").read_text()))
    done = command("report", "run", "--load-data", "--html", "page.html")
    assert done.code == 0 and f"--trust-code {nets}:censor" in (tmp_path / "page.html").read_text()
    assert command("export", "run", "--client", "c0").code == 0
    (run / "run.json").unlink()
    shutil.rmtree(run / "checkpoints")  # which know the recipe as it was executed
    assert f"--trust-code {nets}:censor" in command("run", "--resume", "run").err
    change(run / "recipe.yaml", lambda recipe: recipe.update(opt_out=None, method={"name": f"{nets}:Mine"}))
    assert f"--trust-code {nets}:Mine" in command("run", "--resume", "run").err
    change(run / "recipe.yaml", lambda recipe: recipe.update(method="fml", models={"global": f"{nets}:build"}))
    assert f"--trust-code {nets}:build" in command("run", "--resume", "run").err
    assert command("runs", "show", "run").code == 0 and command("runs", "list", ".").code == 0
    assert left(tmp_path) == []


TREE = {
    "data": "mnist5k", "partition": {"kind": "iid", "clients": 2}, "models": {"global": "mlp"}, "rounds": 1,
    "method": "fml",
}  # fmt: skip


def test_code_within_a_methods_options_is_named_too_and_a_comparison_trusts_its_recipe(
    nets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a process that was not forked, and so has not read the recipe that the user gave."""
    gated = {"name": "mixture", "gate": {"name": f"{nets}:Net"}, "mixture_epochs": 1}
    recipe = Recipe.of({**TREE, "data": {"name": "mnist5k", "samples_per_client": 20}, "method": gated})
    assert recipe.code == [f"{nets}:Net"]
    folder = Recorder.create("mine", 0, tmp_path / "mine")
    folder.write_recipe(recipe)
    assert folder._lock is not None
    folder._lock.release()
    monkeypatch.setattr(importing, "_trusted", set())
    planned = PlannedRun(Cell({}, {}), recipe, tmp_path / "mine")
    assert _recorder(planned).recipe.code == [f"{nets}:Net"]


def test_a_run_of_ones_own_goes_on_by_the_line_that_it_prints(
    nets: str, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe that the user gives may name anything; what the run says to type next names it too."""
    tree = {**TREE, "data": {"name": "mnist5k", "samples_per_client": 20}, "models": {"global": f"{nets}:Net"}}
    (tmp_path / "mine.yaml").write_text(json.dumps(tree))
    assert command("run", "mine.yaml", "--out", "done").code == 0
    words = ["predict", "done", "--client", "c0", "--data", "new.npz"]
    np.savez(tmp_path / "new.npz", x=np.zeros((3, 28, 28), np.uint8))
    assert command(*words).code == 0  # in one process the user has named it
    monkeypatch.setattr(importing, "_trusted", set())
    assert command(*words).code == 2
    assert command(*words, "--trust-code", f"{nets}:Net").code == 0

    monkeypatch.setattr(importing, "_trusted", set())
    asked = []
    monkeypatch.setattr(importing, "ask", lambda question: asked.append(question) or True)
    assert command(*words).code == 0
    assert asked == [f"done/clients/c0/card.json names code from outside mutua, '{nets}:Net'. Import and run it?"]
    monkeypatch.setattr(importing, "_trusted", set())
    monkeypatch.setattr(importing, "ask", lambda question: False)
    assert command(*words).code == 2
    mutua.trust(f"{nets}:Net")
    assert RunFolder.open(Path("done")).recipe.code == [f"{nets}:Net"]
    assert Recipe.of(tree).code == [f"{nets}:Net"]


def test_a_stopped_run_names_its_code(nets: str, command: Any, tmp_path: Path) -> None:
    (tmp_path / f"{nets}.py").write_text(
        "import mutua\nclass Mine(mutua.methods.FedAvg):\n"
        "    def merge(self, *given):\n        raise KeyboardInterrupt\n"
    )
    tree = {**TREE, "data": {"name": "mnist5k", "samples_per_client": 20}, "method": f"{nets}:Mine"}
    (tmp_path / "mine.yaml").write_text(json.dumps(tree))
    done = command("run", "mine.yaml", "--out", "stopped")
    assert done.err.rstrip().endswith(f"mutua run --resume stopped --trust-code {nets}:Mine")


def test_what_is_given_in_python_may_be_named_by_files(nets: str) -> None:
    mutua.Architecture.of(change)
    with importing.reading_untrusted_file(Path("card.json")):
        mutua.Architecture.of(importing.path_of(change))
        with pytest.raises(InputError, match=r"card.json names code from outside mutua"):
            mutua.Architecture.of("mutua.cli.process:main")
        with pytest.raises(InputError, match=r"card.json names code from outside mutua"):
            mutua.Architecture.of("torch.nn:Linear")
        mutua.methods.base.method_of({"name": "mutua.methods.fedavg:FedAvg"})
    with pytest.raises(InputError, match="is not of the form"):
        mutua.trust("no name")
