"""The worked example of docs/own-method.md, run as a user runs it."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

import mutua
from mutua import RunError, methods
from mutua.cli.app import command_line
from mutua.methods import FedAvg, Method, Participant, Server, losses
from mutua.studies.contenders import read_contenders

DOC = (Path(__file__).parents[2] / "docs" / "own-method.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
RECIPE = {
    "name": "own",
    "data": {"name": "mnist5k", "samples_per_client": 30},
    "partition": {"kind": "iid", "clients": 2},
    "models": {"global": {"name": "mlp", "width": 0.1}},
    "rounds": 3,
    "epochs": 1,
    "batch_size": 8,
    "optimizer": {"name": "sgd", "lr": 0.1},
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    block = "\n\n".join(code for code in BLOCKS if not code.startswith("# try_"))
    assert len(block.splitlines()) <= 90
    (tmp_path / "my_methods.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    monkeypatch.delitem(sys.modules, "my_methods", raising=False)

    def go(**method):
        out = tmp_path / "-".join(str(v) for v in method.values()).replace(":", ".")
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(yaml.safe_dump({**RECIPE, "method": method}))
        monkeypatch.setattr(sys, "argv", ["mutua", "run", str(recipe), "--out", str(out), "--json"])
        command_line()
        return load_file(out / "global" / "weights.safetensors")

    return go


def same(a, b):
    return all(torch.allclose(a[name], b[name], atol=1e-6) for name in a)


def test_a_method_in_a_users_file_runs_by_its_path_and_does_what_it_says(run, capsys):
    plain, without = run(name="fedavg"), run(name="my_methods:FedAvgM", momentum=0.0)
    assert same(plain, without)
    assert not same(plain, run(name="my_methods:FedAvgM", momentum=0.9))


def test_an_objective_in_a_users_file_is_what_clients_minimise(run, capsys):
    plain = run(name="fedavg")
    assert same(plain, run(name="my_methods:Smoothed", smoothing=0.0))
    assert not same(plain, run(name="my_methods:Smoothed", smoothing=0.3))


def test_its_special_cases_hold_as_written(run, tmp_path, monkeypatch):
    [code] = [code for code in BLOCKS if code.startswith("# try_tutored.py")]
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(code, "try_tutored.py", "exec"), {})


def test_the_building_blocks_run_as_written():
    [code] = [code for code in BLOCKS if code.startswith("# try_building_blocks.py")]
    exec(compile(code, "try_building_blocks.py", "exec"), {"__name__": "try_building_blocks"})


# The tables say what there is


def told(heading):
    """What stands as code in the first column of the tables of a section; calls without their arguments."""
    section = DOC.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return [name.partition("(")[0] for cell in cells for name in re.findall(r"`(.*?)`", cell)]


def public(kind):
    return {name for name in vars(kind) if not name.startswith(("_", "model_"))}


def test_everything_an_author_needs_is_in_one_place_and_described():
    assert sorted(told("All names in `mutua.methods`")) == sorted(methods.__all__)
    assert all(hasattr(methods, name) for name in methods.__all__)


def test_every_verb_and_declaration_is_described():
    verbs = {name for name in public(Method) if callable(getattr(Method, name))}
    assert sorted(told("The verbs")) == sorted(verbs)
    section = DOC.partition("\n## The verbs\n")[2].partition("\n## ")[0]
    assert not [name for name in public(Method) | {"name"} if f"`{name}" not in section]


def test_all_that_a_client_and_a_server_give_is_described(federate):
    def init(self, client):
        assert sorted(told("The client")) == sorted(public(Participant) | {n for n in vars(client) if n[0] != "_"})
        raise KeyError("seen")

    with pytest.raises(RunError, match="seen"):
        mutua.run(type("Looking", (FedAvg,), {"start": init})(), federate(), workers=1, rounds=1, device="cpu")
    assert not [name for name in {*Server.__dataclass_fields__, "partial"} if f"`server.{name}`" not in DOC]
    functions = [name for name, _ in inspect.getmembers(losses, inspect.isfunction) if name[0] != "_"]
    assert functions and not [name for name in functions if f"`{name}" not in DOC]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/own-method.md", "examples/quickstart.py"])
def test_examples_import_from_one_place(name):
    """Methods are written and run with `mutua` and `mutua.methods` alone."""
    text = (Path(__file__).parents[2] / name).read_text(encoding="utf-8")
    blocks = (
        [text] if name.endswith(".py") else re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    )
    about = [block for block in blocks if name != "CONTRIBUTING.md" or "methods" in block]
    homes = re.findall(r"^(?:from|import) (mutua\S*)", "\n".join(about), re.MULTILINE)
    assert homes and set(homes) <= {"mutua", "mutua.methods"}


def test_it_goes_by_its_own_name(run, capsys, monkeypatch, tmp_path):
    run(name="my_methods:FedAvgM", momentum=0.5)
    words = ["compare", "recipe.yaml", "--methods", "fedavg,my_methods:FedAvgM:momentum=0.5", "--seeds", "0"]
    for command in ([*words, "--out", "both"], ["runs", "list", "."], ["report", "both", "--html", "page.html"]):
        monkeypatch.setattr(sys, "argv", ["mutua", *command])
        command_line()
    out = capsys.readouterr().out
    assert re.search(r"^fedavgm:momentum=0.5 ", out, re.MULTILINE)  # in the comparison
    assert re.search(r" fedavgm +finished ", out)  # in the list of runs
    assert "fedavgm:momentum=0.5" in (tmp_path / "page.html").read_text()
    assert (tmp_path / "both" / "fedavgm-momentum=0.5-0").is_dir()


def test_two_of_one_name_are_told_apart(run):
    run(name="fedavg")
    (Path("twin.py")).write_text("from mutua.methods import FedAvg\nclass Twin(FedAvg):\n    pass\n")
    assert [c.label for c in read_contenders("fedavg,twin:Twin", None)] == ["fedavg", "twin:Twin"]


@pytest.mark.parametrize("how", ["global", "finetune"])
def test_a_newcomer_joins_it_with_the_global_though_it_has_no_personal_model(how, run, monkeypatch, tmp_path):
    shared = run(name="my_methods:Tutored")
    digits = mutua.load("mnist5k").train
    np.savez("new.npz", x=digits.x[4000:4060, 0].numpy(), y=digits.y[4000:4060].numpy())
    words = ["join", "my_methods.Tutored", "--data", "new.npz", "--how", how, "--out", "joined"]
    monkeypatch.setattr(sys, "argv", ["mutua", *words])
    command_line()
    assert same(shared, load_file("joined/predictor.safetensors")) == (how == "global")
