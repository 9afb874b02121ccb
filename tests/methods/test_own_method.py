"""The worked example of docs/own-method.md, run as a user runs it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from mutua.cli.app import command_line
from mutua.studies.contenders import read_contenders

DOC = Path(__file__).parents[2] / "docs" / "own-method.md"
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
    block = "\n".join(re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL))
    assert len(block.splitlines()) <= 60
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
