"""Where an image's channels are, grey sites among coloured ones, and notes on data that looks like a mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import mutua
from mutua import InputError, Samples
from mutua.data.layouts import layout_of
from mutua.data.partitions import IID
from mutua.rounds.preparation import prepare


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((9, 28, 28, 1), "channels-last"), ((9, 28, 28, 3), "channels-last"), ((9, 20, 30, 4), "channels-last"),
        ((9, 4, 4, 3), "channels-last"), ((9, 1, 28, 28), "channels-first"), ((9, 3, 20, 30), "channels-first"),
        ((9, 3, 4, 4), "channels-first"), ((9, 13, 64, 64), "channels-first"), ((9, 64, 8, 8), "channels-first"),
        ((9, 1, 1, 30), "channels-first"), ((9, 1, 1, 1), "channels-first"), ((9, 3, 64, 13), "channels-first"),
        ((9, 64, 64, 13), None), ((9, 13, 64, 32), None), ((9, 3, 3, 3), None), ((9, 8, 8, 8), None),
        ((9, 3, 5, 4), None), ((9, 64, 3, 3), None), ((9, 1, 28, 1), None),
    ],
)  # fmt: skip
def test_where_the_channels_are(shape: tuple[int, ...], layout: str | None) -> None:
    assert layout_of(shape) == layout


def test_thirteen_channels_last_are_refused_or_said(tmp_path: Path, command: Any) -> None:
    """(100, 64, 64, 13) was read as 64 channels of 64x13 pixels, in silence."""
    x = np.random.default_rng(0).random((100, 8, 8, 13), np.float32)
    y = np.arange(100) % 2
    with pytest.raises(InputError, match=r"data\.x: shape \(100, 8, 8, 13\): .* give layout: channels-last or"):
        Samples.of(x, y)
    assert np.array_equal(Samples.of(x, y, layout="channels-last").x.numpy(), x.transpose(0, 3, 1, 2))
    assert Samples.of(x, y, layout="channels-first").x.shape == (100, 8, 8, 13)
    federation = mutua.Federation.from_arrays(
        x, y, partition=IID(clients=2), global_model="mlp", layout="channels-last", test=(x, y)
    )
    assert federation.clients[0].train.x.shape[1:] == (13, 8, 8)
    for wrong in ("sideways", "channels_last"):
        with pytest.raises(InputError, match="layout: '"):
            Samples.of(x, y, layout=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="of four dimensions"):
        Samples.of(x[..., 0], y, layout="channels-last")

    np.savez(tmp_path / "bands.npz", x=x, y=y)
    tree = {
        "data": {"name": "arrays", "path": "bands.npz"}, "partition": {"kind": "iid", "clients": 2},
        "models": {"global": "mlp"}, "method": "fedavg", "rounds": 1,
    }  # fmt: skip
    (tmp_path / "r.yaml").write_text(json.dumps(tree))
    done = command("run", "r.yaml", "--out", "run")
    assert done.code == 2 and "data: arrays.x: shape (100, 8, 8, 13)" in done.err
    assert command("run", "r.yaml", "--out", "run", "--set", "data.layout=channels-last").code == 0
    # What the model takes settles it for whoever uses the model.
    assert command("predict", "run", "--client", "c0", "--data", "bands.npz").code == 0
    assert command("join", "run", "--data", "bands.npz", "--how", "global").code == 0
    done = command("run", "r.yaml", "--set", "data={name: mnist5k, layout: channels-last}")
    assert done.code == 2 and "layout: channels-last is for data 'arrays'" in done.err


def test_a_grey_site_among_coloured_ones(tmp_path: Path, command: Any) -> None:
    rng = np.random.default_rng(0)
    grey, coloured = rng.integers(0, 256, (40, 8, 8), np.uint8), rng.integers(0, 256, (40, 8, 8, 3), np.uint8)
    y = np.arange(40) % 2
    made = Samples.of(grey, y, channels=3)
    assert np.array_equal(made.x.numpy(), np.stack([grey] * 3, 1)) and made.x.is_contiguous()
    assert Samples.of(coloured, y, channels=3).x.shape == (40, 3, 8, 8)
    with pytest.raises(InputError, match=r"data\.channels: 3 for images of 4 channels"):
        Samples.of(np.zeros((40, 8, 8, 4), np.uint8), y, channels=3)
    with pytest.raises(InputError, match=r"data\.channels: 3 for plain features"):
        Samples.of(np.zeros((40, 8), np.float32), y, channels=3)
    with pytest.raises(InputError, match=r"data\.channels: 1 for images of 3"):
        Samples.of(coloured, y, channels=1)
    federation = mutua.Federation.from_arrays(grey, y, partition=IID(clients=2), models="mlp", channels=3)
    assert federation.clients[0].train.channels == 3

    np.savez(tmp_path / "grey.npz", x=grey, y=y)
    np.savez(tmp_path / "coloured.npz", x=coloured, y=y)
    entries = [
        {"id": "north", "model": "mlp", "data": {"name": "arrays", "path": "grey.npz", "channels": 3}},
        {"id": "south", "model": "mlp", "data": {"name": "arrays", "path": "coloured.npz"}},
    ]
    tree = {"clients": entries, "models": {"global": "mlp"}, "method": "fml", "rounds": 1}
    (tmp_path / "r.yaml").write_text(json.dumps(tree))
    assert command("run", "r.yaml", "--out", "run").code == 0
    assert command("predict", "run", "--client", "north", "--data", "grey.npz").code == 0


def test_pixels_that_are_not_bytes_are_told(tmp_path: Path) -> None:
    def notes(x: np.ndarray, **more: Any) -> str:
        made = mutua.Federation.from_arrays(
            x, np.arange(len(x)) % 2, partition=IID(clients=2), global_model="mlp", **more
        )
        return "; ".join(prepare(mutua.methods.FedAvg(), made, mutua.Plan()).notes)

    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8))
    for kind in (np.int64, np.float32, np.float64, np.int16):
        assert "c0, c1: pixels from 0 to 255 that are not bytes are used as they are" in notes(pixels.astype(kind))
    assert notes(pixels.astype(np.uint8)) == ""
    assert notes(pixels / 255) == notes((pixels - 128) / 64) == notes(pixels.reshape(40, 64).astype(float)) == ""
    assert notes(pixels.astype(float), preprocess=mutua.Preprocess(1 / 255)) == ""


def test_classes_that_nobody_has_are_told(command: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((40, 8, 8), np.uint8), y=np.arange(40) % 2 * 3)
    tree = {
        "data": {"name": "arrays", "path": "a.npz"}, "partition": {"kind": "iid", "clients": 2},
        "models": {"global": "mlp"}, "method": "fedavg", "rounds": 1,
    }  # fmt: skip
    (tmp_path / "r.yaml").write_text(json.dumps(tree))
    done = command("run", "r.yaml", "--out", "run")
    assert done.code == 0 and "no client has a sample of 2 of 4 classes: 1, 2" in done.err


def softmaxed(channels: int, size: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes), nn.Softmax(1))


def test_models_that_give_probabilities_are_told() -> None:
    x, y = np.random.default_rng(0).random((40, 8, 8), np.float32), np.arange(40) % 3
    made = mutua.Federation.from_arrays(x, y, partition=IID(clients=2), models=softmaxed, global_model="mlp")
    notes = prepare(mutua.methods.FML(), made, mutua.Plan()).notes
    assert [note for note in notes if "leave out its last softmax" in note] == [
        "client c0: model softmaxed gives probabilities; mutua takes scores (logits) and makes probabilities of "
        "them itself: leave out its last softmax"
    ]
