"""A run on mapped data gives the bytes of the run on the same data in memory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mutua
from mutua import Recipe
from mutua.data.mapped_rows import ArrayInFile, MappedRows
from mutua.runs.execute import execute
from mutua.runs.inputs import hash_inputs
from mutua.runs.recording import Recorder
from mutua.runs.saving import _digest

BASE: dict[str, Any] = {
    "name": "mapped",
    "partition": {"kind": "dirichlet", "clients": 3, "alpha": 1.0},
    "models": {"global": {"name": "cnn1", "width": 0.2}},
    "rounds": 2,
    "batch_size": 8,
    "optimizer": {"name": "sgd", "lr": 0.05},
    "device": "cpu",
}
DOMAINS = {"partition": {"kind": "domains"}}
PUBLIC = {"public": {"share": 0.2}}


def dim(x: torch.Tensor) -> torch.Tensor:
    """A censor."""
    return x // 2


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """data.npz and folder/: images with channels last, in two domains, a mask, and a test set."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(1)
    y = np.arange(240) % 3
    x = (rng.integers(0, 120, (240, 8, 8, 3)) + 40 * y[:, None, None, None]).astype(np.uint8)
    arrays = {"x": x, "y": y, "domain": np.arange(240) // 120, "out": np.arange(240) % 4 == 0}
    np.savez(folder / "data.npz", **arrays)
    np.savez(folder / "tested.npz", **arrays, x_test=x[:40], y_test=y[:40], out_test=arrays["out"][:40])
    np.savez(folder / "public.npz", x=x[:30], y=y[:30])
    (folder / "floats").mkdir()
    np.save(folder / "floats" / "x.npy", (x / 255).astype(np.float64))
    np.save(folder / "floats" / "y.npy", y)
    return folder


def done(place: Path, out: Path, mapped: bool, workers: int, changes: dict[str, Any]) -> dict[str, str]:
    """What the run leaves, by file, and the checksums of its inputs."""
    data = {"name": "arrays", "path": str(place / "data.npz"), "mapped": mapped, **changes.get("data", {})}
    recipe = Recipe.of({**BASE, **changes, "data": data})
    federation = recipe.federation()
    assert all(isinstance(client.train.x, MappedRows) == mapped for client in federation.clients)
    recorder = Recorder.create("mapped", 0, out)
    execute(recipe, federation, recorder, workers=workers)
    files = [out / "history.csv", out / "ledger.csv", *sorted(out.rglob("*.safetensors"))]
    assert len(files) > 3
    found = {str(f.relative_to(out)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
    return found | hash_inputs(recipe, federation).sums | {"digest": _digest(federation)}


@pytest.mark.parametrize(
    ("changes", "workers"),
    [
        ({"method": "fml"}, 1),
        ({"method": "fml"}, 2),
        ({"method": "fml", "data": {"image_size": 6}, "partition": {"kind": "rotated", "angles": [0, 35]}}, 1),
        ({"method": "fml", "data": {"path": "floats"}}, 2),
        ({"method": "fedavg", "data": {"path": "tested.npz", "test_samples": 21}}, 1),
        ({"method": "fedavg", "opt_out": {"mask": "out"}, "data": {"path": "tested.npz"}}, 2),
        ({"method": "fedavg", "opt_out": {"samples": 0.3}}, 1),
        ({"method": "fedavg", "opt_out": {"fraction": 0.4, "censor": f"{__name__}:dim"}}, 1),
        ({"method": "fedh2l", **DOMAINS, **PUBLIC}, 1),
        ({"method": {"name": "fedh2l", "local_data": "private+public"}, **DOMAINS, **PUBLIC}, 2),
        ({"method": "fedmd", **PUBLIC}, 1),
        ({"method": "fedmd", "public": {"path": "public.npz"}}, 2),
        ({"method": "centralised"}, 1),
    ],
)
def test_the_same_bytes(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], workers: int
) -> None:
    monkeypatch.chdir(place)
    lazy, plain = (done(place, tmp_path / str(mapped), mapped, workers, changes) for mapped in (True, False))
    assert lazy == plain


def test_a_client_at_work_reads_its_training_data_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three epochs of many batches: its own rows are read once a round, and never those of others."""
    read: list[int] = []

    def count(self: ArrayInFile, rows: np.ndarray, of: Any = ArrayInFile.read) -> Any:
        read.extend(rows.tolist())
        return of(self, rows)

    source = mutua.load("arrays", path=place / "data.npz", mapped=True)
    federation = mutua.Federation.from_samples(
        source.train,
        partition=mutua.partitions.IID(clients=4),
        models="cnn1",
        global_model="cnn1",
        split={"val": 0.0, "test": 0.0},
    )
    rows = federation["c2"].train.x
    assert isinstance(rows, MappedRows)
    monkeypatch.setattr(ArrayInFile, "read", count)
    one = mutua.Federation((federation["c2"],), "cnn1")
    mutua.run("fml", one, rounds=2, epochs=3, batch_size=4, workers=1, progress=False)
    counts = np.bincount(read, minlength=240)
    own = set(rows._rows.tolist())
    assert {i for i in range(240) if counts[i]} == own
    # The first rows also serve to try models out.
    assert sorted(counts[sorted(own)])[:-1] == [2] * (len(own) - 1)


def test_a_file_that_changes_during_a_run_is_the_clients_fault(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes((place / "data.npz").read_bytes())
    source = mutua.load("arrays", path=path, mapped=True)
    how: Any = {"partition": mutua.partitions.IID(clients=2), "models": "cnn1", "global_model": "cnn1"}
    federation = mutua.Federation.from_samples(source.train, **how)
    os.utime(path, ns=(1, 1))
    with pytest.raises(
        mutua.MutuaError, match=r"data\.npz: it has changed since the federation was made"
    ) as error:
        mutua.run("fml", federation, rounds=1, workers=1, progress=False)
    assert "\n" not in str(error.value)


def test_recipes_say_mapped_and_mistakes_are_named(place: Path) -> None:
    with pytest.raises(mutua.InputError, match=r"data\.mapped: 'perhaps'"):
        Recipe.of({**BASE, "method": "fml", "data": {"name": "arrays", "path": "x.npz", "mapped": "perhaps"}})
    with pytest.raises(mutua.InputError, match="data: mapped: true is for data 'arrays', not for 'mnist5k'"):
        Recipe.of({**BASE, "method": "fml", "data": {"name": "mnist5k", "mapped": True}}).federation()
    assert "mapped" not in Recipe.of({**BASE, "method": "fml", "data": "mnist5k", "name": "one"}).dump()
