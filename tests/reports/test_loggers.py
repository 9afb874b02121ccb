"""Loggers: every number of every round, to TensorBoard and to a user's own class."""

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
ODD = """
class Away:
    def __init__(self, folder): raise RuntimeError("no server")

class Mute:
    def __init__(self, folder): pass

class Breaking(Mute):
    def log(self, round, numbers): raise ValueError("two lines")
    def close(self): raise ValueError("never called again")

class Unclosable(Mute):
    def log(self, round, numbers): pass
    def close(self): raise ValueError("two lines")

number = 3
"""
DOCUMENT = Path(__file__).parents[2] / "docs" / "runs.md"


def history(folder: Path) -> dict[tuple[str, int], float]:
    with (folder / "history.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["value"]]
    return {
        ("/".join(row[key] for key in ("split", "metric", "model", "client")), int(row["round"])): float(
            row["value"]
        )
        for row in rows
    }


def sent(folder: Path) -> int:
    with (folder / "ledger.csv").open(newline="") as file:
        return sum(int(row["bytes"]) for row in csv.DictReader(file) if row["direction"] == "up")


def test_tensorboard(command: Command, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert (
        command("run", "tiny.yaml", "--set", "rounds=2", "--out", "x", "--log", "tensorboard", "--json").code == 0
    )
    found = accumulator.EventAccumulator(str(tmp_path / "x" / "tensorboard")).Reload()
    logged = {(tag, e.step): e.value for tag in found.Tags()["scalars"] for e in found.Scalars(tag)}
    expected = history(tmp_path / "x")
    assert expected.keys() <= logged.keys() and expected == pytest.approx(
        {k: logged[k] for k in expected}, rel=1e-6
    )
    assert logged["bytes/up", 2] == sent(tmp_path / "x")


def test_ones_own_as_the_document_has_it(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [code] = re.findall(r"^```python\n(# my_tools.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "my_tools.py").write_text(code)
    monkeypatch.delitem(sys.modules, "my_tools", raising=False)
    assert command("run", "tiny.yaml", "--out", "x", "--log", "my_tools:Lines").code == 0
    lines = (tmp_path / "x" / "numbers.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1"]
    numbers = json.loads(lines[1].partition(" ")[2].replace("'", '"'))
    assert numbers["test/accuracy/predictor/c0"] == history(tmp_path / "x")["test/accuracy/predictor/c0", 1]


def test_loggers_that_are_none(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    done = command("run", "tiny.yaml", "--log", "tensorboard", "--out", "x")
    assert (done.code, done.out) == (2, "")
    assert done.err == 'mutua: --log: tensorboard is not installed; pip install "mutua[tensorboard]"\n'
    (tmp_path / "odd_tools.py").write_text(ODD)
    monkeypatch.delitem(sys.modules, "odd_tools", raising=False)
    for name, said in (
        ("lines", "'lines' is not a logger; known: tensorboard, or package.module:Class of your own"),
        ("odd_tools:Nobody", "'odd_tools:Nobody': module odd_tools has no 'Nobody'"),
        ("odd_tools:number", "'odd_tools:number' cannot be made with the run's folder: TypeError: "),
        ("odd_tools:Away", "'odd_tools:Away' cannot be made with the run's folder: RuntimeError: no server\n"),
        ("odd_tools:Mute", "'odd_tools:Mute' has no log; a logger has log(round, numbers) and close()"),
    ):
        done = command("run", "tiny.yaml", "--log", name, "--out", "x")
        assert (done.code, done.out) == (2, "")
        assert f"mutua: --log: {said}" in done.err and done.err.count("\n") == 1
        assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["Breaking", "Unclosable"])
def test_a_logger_that_fails_does_not_stop_the_run(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "odd_tools.py").write_text(ODD)
    monkeypatch.delitem(sys.modules, "odd_tools", raising=False)
    done = command("run", "tiny.yaml", "--set", "rounds=2", "--out", "x", "--log", f"odd_tools:{name}", "--json")
    assert done.code == 0 and json.loads(done.out)["rounds"] == 2
    assert done.err.count("note: the logger failed (ValueError: two lines); the run goes on without it\n") == 1
    assert command("run", "tiny.yaml", "--set", "rounds=2", "--out", "y", "--json").code == 0
    assert history(tmp_path / "x") == history(tmp_path / "y")
