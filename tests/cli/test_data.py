"""`mutua data`: what there is, where it is put, who has what."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

Command = Callable[..., Any]


def test_data_list(command: Command, tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "mnist.npz").write_text("")
    done = command("data", "list", "--data-dir", "sets")
    cells = [re.split(" {2,}", line.rstrip()) for line in done.out.splitlines()]
    found = {row[0]: row[-1] for row in cells}
    assert done.code == 0 and "…" not in done.out
    assert found["mnist5k"] == "in mutua" and found["mnist"] == "mnist.npz"
    assert found["eurosat"].startswith("not here: mutua")
    assert "the data folder is sets" in done.out


def test_data_get_says_where_it_put_the_files(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mutua.data import download

    def get(name: str, data_dir: Path | None, progress: Callable[[int, int | None], None]) -> list[Path]:
        progress(500, 1000)
        progress(1000, 1000)
        assert data_dir is not None
        return [data_dir / f"{name}.npz"]

    monkeypatch.setattr(download, "get", get)
    done = command("data", "get", "mnist", "--data-dir", "sets")
    assert (done.code, done.out) == (0, "sets/mnist.npz\n") and "mnist" in done.err


def test_data_show(command: Command, tmp_path: Path) -> None:
    words = ["--set", "partition={kind: shards, clients: 5, shards_per_client: 2}"]
    done = command("data", "show", "tiny.yaml", *words)
    assert done.code == 0 and done.out.endswith("picture in tiny-labels.png\n")
    with Image.open(tmp_path / "tiny-labels.png") as image:
        assert image.format == "PNG"
    told = json.loads(command("data", "show", "tiny.yaml", "--json", *words).out)
    assert told["classes"] == list("0123456789") and len(told["clients"]) == 5
    assert all(np.count_nonzero(client["train"]) == 2 for client in told["clients"])
    table = [line.split() for line in done.out.splitlines() if re.match(r"c\d ", line)]
    for row, client in zip(table, told["clients"], strict=True):
        assert row[0] == client["id"]
        assert [0 if cell == "·" else int(cell) for cell in row[1:11]] == client["train"]
        assert [int(cell) for cell in row[11:]] == [sum(client["train"]), client["val"], client["test"]]
    other = json.loads(command("data", "show", "tiny.yaml", "--json", "--seed", "1", *words).out)
    assert other != told
