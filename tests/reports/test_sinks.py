"""Names that anybody may have given do nothing to a spreadsheet, a terminal, a picture or a page."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mutua
from mutua import InputError
from mutua.data.partitions import IID

NAMES = [
    "=HYPERLINK(1)",
    "+1+cmd",
    "-2+3",
    "@SUM(A1)",
    "\x1b[2Jgone",
    "a\rb",
    "<script>x</script>",
    "$\\frac$",
    "–1",
]
NAMES += ["\x9b31m", "\u202egnp.exe", "=1\t+1"]
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


@pytest.fixture
def run(command: Any, tmp_path: Path) -> Path:
    """A run whose classes have such names."""
    x = np.random.default_rng(0).integers(0, 256, (240, 6, 6), np.uint8)
    np.savez(tmp_path / "evil.npz", x=x, y=np.arange(240) % len(NAMES), classes=np.array(NAMES))
    tree = {
        "data": {"name": "arrays", "path": "evil.npz"}, "partition": {"kind": "iid", "clients": 2},
        "models": {"global": "mlp"}, "method": "fedavg", "rounds": 1,
    }  # fmt: skip
    (tmp_path / "r.yaml").write_text(json.dumps(tree))
    assert command("run", "r.yaml", "--out", "run").code == 0
    return tmp_path / "run"


def test_names_do_nothing_anywhere(run: Path, command: Any, tmp_path: Path) -> None:
    done = [
        command("data", "show", "r.yaml"),
        command("predict", "run", "--client", "c0", "--data", "evil.npz", "--out", "p.csv"),
        command("predict", "run", "--client", "c0", "--data", "evil.npz"),
        command("report", "run", "--html", "p.html", "--tables", "t", "--figures", "f"),
    ]
    for one in done:
        assert one.code == 0 and not RAW.search(one.out + one.err), one
    texts = [path for path in tmp_path.rglob("*") if path.suffix in (".csv", ".svg", ".html", ".md", ".tex")]
    assert {path.suffix for path in texts} == {".csv", ".svg", ".html", ".md", ".tex"}
    for path in texts:
        text = path.read_text(encoding="utf-8")
        assert not RAW.search(text), path
        if path.suffix == ".html":
            assert "<script" not in text
        if path.suffix == ".csv":
            cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row if cell]
            bad = [cell for cell in cells if cell[0] in "=+-@\t\r" and not re.fullmatch(r"-?[\d.e-]+", cell)]
            assert not bad, (path, bad)
    head = next(csv.reader((tmp_path / "p.csv").open()))
    assert head[2:6] == ["'=HYPERLINK(1)", "'+1+cmd", "'-2+3", "'@SUM(A1)"] and head[6] == "\\x1b[2Jgone"


def test_labels_of_a_grid_are_no_formulas(command: Any, tmp_path: Path) -> None:
    tree = {
        "data": {"name": "mnist5k", "samples_per_client": 20}, "partition": {"kind": "iid", "clients": 2},
        "models": {"global": "mlp"}, "method": "fedavg", "rounds": 1,
        "grid": {"rate": {"=1+1": {"lr": 0.1}, "\x1b[2J": {"lr": 0.2}}},
    }  # fmt: skip
    (tmp_path / "grid.yaml").write_text(json.dumps(tree))
    done = command("compare", "grid.yaml", "--seeds", "0", "--out", "out")
    if done.code == 2:  # such labels may as well be refused
        assert not RAW.search(done.err)
        return
    assert not RAW.search(done.out + done.err)
    for path in (tmp_path / "out").glob("*.csv"):
        rows = list(csv.reader(path.open()))
        assert not [cell for row in rows for cell in row if cell[:1] in ("=", "@", "\x1b")], path


def test_ids_that_differ_only_in_case_are_refused(command: Any, tmp_path: Path) -> None:
    made = mutua.Federation.from_arrays(
        np.zeros((40, 4), np.float32), np.arange(40) % 2, partition=IID(clients=2), models="mlp"
    )
    from dataclasses import replace

    a, b = made.clients
    for other in ("C0", "c0"):
        with pytest.raises(InputError, match=r"differ only in case|used twice"):
            mutua.Federation((a, replace(b, id=other)))
    with pytest.raises(InputError, match="client id 'Global'"):
        replace(a, id="Global")
    data = {"name": "mnist5k", "samples_per_client": 20}
    clients = [{"id": name, "data": data, "model": "mlp"} for name in ("North", "north")]
    tree = {"clients": clients, "method": "independent", "rounds": 1}
    (tmp_path / "r.yaml").write_text(json.dumps(tree))
    done = command("run", "r.yaml")
    assert done.code == 2 and "'North' and 'north' differ only in case" in done.err


def test_many_classes_finish_and_are_read_again(command: Any, tmp_path: Path) -> None:
    """Each confusion matrix was 27 MB at 3,000 classes, and mutua refused it as damaged."""
    classes, rng = 10_000, np.random.default_rng(0)
    y = np.concatenate([np.arange(classes), rng.integers(0, classes, 2_000)])
    np.savez(tmp_path / "many.npz", x=rng.random((len(y), 8), np.float32), y=y)
    tree = {
        "data": {"name": "arrays", "path": "many.npz"}, "partition": {"kind": "iid", "clients": 2},
        "models": {"global": {"name": "mlp", "width": 0.05}}, "method": "fedavg", "rounds": 1,
    }  # fmt: skip
    (tmp_path / "r.yaml").write_text(json.dumps(tree))
    assert command("run", "r.yaml", "--out", "run").code == 0
    for file in (tmp_path / "run").rglob("*.json"):
        assert file.stat().st_size < 2**20, file
    held = json.loads((tmp_path / "run" / "clients" / "c0" / "confusion.json").read_text())
    assert len(held["classes"]) == classes and {len(cell) for cell in held["cells"]} == {3}
    done = command("report", "run", "--html", "p.html")
    assert done.code == 0, done.err
    assert (tmp_path / "p.html").stat().st_size < 5 * 2**20
    assert f"{classes} classes are too many to draw" in (tmp_path / "p.html").read_text()
    assert command("data", "show", "r.yaml").code == 0
    np.savez(tmp_path / "few.npz", x=rng.random((3, 8), np.float32))
    assert command("predict", "run", "--client", "c0", "--data", "few.npz").code == 0
