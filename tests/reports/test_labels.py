"""Who has what: counted by hand, in as many columns as fit."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from mutua import Architecture, Client, Federation, Samples
from mutua.reports import console
from mutua.reports.labels import LabelCounts, counts_by_client, show_counts


def client(name: str, labels: list[int], classes: tuple[str, ...]) -> Client:
    samples = Samples.of(torch.zeros(len(labels), 2), torch.tensor(labels), classes=classes)
    return Client(name, samples, samples.take([0]), samples.take([0, 1]), Architecture.of("mlp"))


def test_counts_by_name_over_clients_with_different_classes() -> None:
    a, b = client("a", [0, 0, 1], ("ant", "bee")), client("b", [0, 1, 1, 1], ("cat", "ant"))
    counts = counts_by_client(Federation((b, a), Architecture.of({"name": "mlp", "share": "body"})))
    assert counts.classes == ["ant", "bee", "cat"] and counts.clients == ["b", "a"]
    assert counts.train.tolist() == [[3, 0, 1], [2, 1, 0]]
    assert (counts.val, counts.test) == ([1, 1], [2, 2])
    assert counts.summary() == {
        "classes": ["ant", "bee", "cat"],
        "clients": [
            {"id": "b", "train": [3, 0, 1], "val": 1, "test": 2, "opted_out": 0},
            {"id": "a", "train": [2, 1, 0], "val": 1, "test": 2, "opted_out": 0},
        ],
    }


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    def show(counts: LabelCounts, width: int = 80) -> list[list[str]]:
        file = io.StringIO()
        monkeypatch.setattr(console, "out", Console(file=file, width=width, markup=False, highlight=False))
        show_counts(counts, ["a note"])
        assert "…" not in file.getvalue()
        table = [line for line in file.getvalue().splitlines() if not line.startswith("classes:")]
        assert max(map(len, table)) <= width
        return [line.split() for line in file.getvalue().splitlines() if line.strip()]

    return show


def counted(classes: list[str], most: int = 135) -> LabelCounts:
    train = np.zeros((2, len(classes)), dtype=int)
    train[0, 0], train[1, -1] = most, 1
    return LabelCounts(["c0", "c1"], classes, train, [3, 4], [5, 6], [0, 0])


def test_columns_by_name_where_they_fit(shown: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(counted(["cat", "dog", "elk"]))
    assert lines[1] == ["client", "cat", "dog", "elk", "train", "val", "test"]
    assert lines[3] == ["c0", "135", "·", "·", "135", "3", "5"]
    assert lines[4] == ["c1", "·", "·", "1", "1", "4", "6"]
    assert not any(line[0] == "classes:" for line in lines)
    assert capsys.readouterr().err == "note: a note\n"


def test_columns_by_number_where_names_are_too_wide(shown: Callable[..., Any]) -> None:
    names = [
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle-boot",
    ]
    lines = shown(counted(names))
    assert lines[1] == ["client", *"0123456789", "train", "val", "test"]
    assert " ".join(lines[-1]).startswith("classes: 0 T-shirt/top, 1 Trouser, ")
    assert shown(counted(names), width=200)[1] == ["client", *names, "train", "val", "test"]


def test_the_sizes_beside_the_classes_need_room_too(shown: Callable[..., Any]) -> None:
    classes = [f"class-{i}" for i in range(6)]  # 9 columns each with the gap: 54
    assert shown(counted(classes), width=90)[1] == ["client", *classes, "train", "val", "test"]
    assert shown(counted(classes), width=60)[1] == ["client", *"012345", "train", "val", "test"]
    assert shown(counted(classes), width=40)[1] == ["client", "classes", "train", "val", "test"]


def test_only_how_many_where_nothing_fits(shown: Callable[..., Any]) -> None:
    lines = shown(counted([f"class {i}" for i in range(100)]))
    assert lines[1] == ["client", "classes", "train", "val", "test"]
    assert lines[3] == ["c0", "1", "135", "3", "5"]


def test_the_picture(tmp_path: Path) -> None:
    counted(["cat", "dog"]).draw(tmp_path / "labels.png", "who has what")
    with Image.open(tmp_path / "labels.png") as image:
        assert image.format == "PNG" and min(image.size) > 100
