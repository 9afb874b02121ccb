"""Stores on disk: the same bytes as in memory, in files that are read only when they are needed."""

from __future__ import annotations

import gc
import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from safetensors.torch import load_file

import mutua
from conftest import X, Y
from mutua import Federation, InputError, Message, RunError
from mutua.federation.commit_files import CommitFiles, FiledCommit, commit_files
from mutua.federation.message import count, weights
from mutua.federation.store import Commit, Store
from mutua.methods import FML

Simulate = Callable[..., Any]
Federate = Callable[..., Federation]

STATE = {"personal": {"w": torch.arange(7.0), "n": torch.tensor(3)}, "empty": {}}
REPLY = Message(meme=weights({"w": torch.full((5,), 0.25)}), samples=count(9))


def files_at(place: Path | str, cache: int = 2) -> CommitFiles:
    return commit_files(str(place), cache)


@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
def test_a_commit_comes_back_as_it_was(scheme: str, tmp_path: Path) -> None:
    files = files_at(f"{scheme}{tmp_path}")
    store = Store(files=files.of("a"))
    store.commit(3, STATE, REPLY, {"meme": 0.5})
    (commit,) = store.commits
    assert isinstance(commit, FiledCommit) and commit.keeps and store.keeps
    files._held.clear()
    for group, arrays in STATE.items():
        assert list(store.state[group]) == list(arrays)
        assert all(torch.equal(store.state[group][name], array) for name, array in arrays.items())
    assert commit.reply == REPLY and commit.terms == {"meme": 0.5} and commit.round == 3
    data = files.load("a", commit.facts.name)
    assert hashlib.sha256(data).hexdigest() == commit.facts.sha256 and len(data) == commit.facts.bytes
    store.commit(4, {}, None)
    assert not store.keeps and store.commits[-1].reply is None and store.stage(4)["personal"]["n"] == 3


def test_in_a_folder_it_is_one_file_that_the_library_reads_and_nothing_is_left_aside(tmp_path: Path) -> None:
    store = Store(files=files_at(tmp_path).of("a"))
    store.commit(3, STATE, REPLY)
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path.parent == tmp_path / "clients" / "a" and path.name.startswith("000003-")
    assert torch.equal(load_file(path)["personal/w"], torch.arange(7.0))
    # Work that is repeated with another result does not touch the first file: a checkpoint may need it.
    before = path.read_bytes()
    store.commit(3, {"personal": {"w": torch.zeros(7)}}, REPLY)
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 2


def test_what_is_not_in_memory_is_read_and_the_cache_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_at(f"file://{tmp_path}", cache=2)
    stores = {name: Store(files=files.of(name)) for name in "abc"}
    for store in stores.values():
        store.commit(0, STATE, None)
    read: list[str] = []
    load = files.load
    monkeypatch.setattr(files, "load", lambda client, name: read.append(client) or load(client, name))
    for name in "bcbcacb":  # what was written last is warm
        assert stores[name].state["personal"]["n"] == 3
        assert len(files._held) == 2
    assert read == ["a", "b"]


def test_a_store_travels_light_and_opens_its_files_where_it_arrives(tmp_path: Path) -> None:
    store = Store(files=files_at(tmp_path).of("a"))
    store.commit(1, {"personal": {"w": torch.zeros(100_000)}}, REPLY)
    packed = pickle.dumps(store)
    assert len(packed) < 1000
    commit_files.cache_clear()
    again = pickle.loads(packed)
    assert torch.equal(again.state["personal"]["w"], torch.zeros(100_000))
    again.commit(2, STATE, None)
    assert [commit.round for commit in again.commits] == [1, 2]


def test_a_file_that_is_gone_or_spoilt_is_one_clear_line(tmp_path: Path) -> None:
    store = Store(files=files_at(tmp_path, cache=0).of("a"))
    store.commit(1, STATE, None)
    (path,) = (tmp_path / "clients" / "a").iterdir()
    path.write_bytes(b"spoilt")
    with pytest.raises(RunError, match=r"client a: its store cannot be read: .*000001-\w+\.safetensors"):
        _ = store.state
    path.unlink()
    with pytest.raises(RunError, match="client a: its store cannot be read"):
        _ = store.state


def test_a_url_that_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    federation = Federation.from_arrays(X, Y, partition=mutua.partitions.IID(clients=3), models="mlp")
    with pytest.raises(InputError, match=r"stores.place: nowhere://x/\w+ cannot be used: .*; install the package"):
        mutua.run("independent", federation, rounds=1, stores="nowhere://x", progress=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"stores.place: file://.* cannot be used: "):
        mutua.run("independent", federation, rounds=1, stores=f"file://{tmp_path}/file", progress=False)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("place", ["disk", "file", "memory"])
def test_a_run_has_the_bytes_of_one_in_memory(
    place: str, workers: int, federate: Federate, tmp_path: Path, identical: Callable[..., bool]
) -> None:
    stores = place if place == "disk" else f"{place}://{tmp_path}"
    plan = {"rounds": 3, "batch_size": 4, "client_fraction": 0.7, "device": "cpu", "progress": False}
    plan |= {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}, "workers": workers}
    kept, filed = (mutua.run(FML(), federate(), stores=where, **plan) for where in ("memory", stores))
    assert identical(kept.global_state, filed.global_state)
    for one, other in zip(kept.clients, filed.clients, strict=True):
        assert isinstance(other.store.commits[-1], FiledCommit)
        assert isinstance(one.store.commits[-1], Commit)
        assert one.state.keys() == other.state.keys()
        assert all(identical(one.state[group], other.state[group]) for group in one.state)
    assert list(kept.history) == list(filed.history) and list(kept.ledger) == list(filed.ledger)
    # The last two commits of each client, and no older file.
    names = {(c.id, commit.facts.name) for c in filed.clients for commit in c.store.commits}
    files = filed.clients[0].store.files.files
    fs, root = (None, Path(files.place)) if files.folder else fsspec.core.url_to_fs(files.place)
    there = [str(p) for p in root.rglob("*.safetensors")] if fs is None else fs.find(root)
    assert {tuple(name.removesuffix(".safetensors").split("/")[-2:]) for name in there} == names
    # A longer run has files of its own.
    longer, expected = filed.extend(rounds=5), kept.extend(rounds=5)
    assert identical(longer.global_state, expected.global_state)
    assert identical(longer.clients[0].state["personal"], expected.clients[0].state["personal"])
    assert identical(filed.clients[0].state["personal"], kept.clients[0].state["personal"])


def test_a_temporary_folder_goes_with_the_result(federate: Federate) -> None:
    result = mutua.run("fml", federate(), rounds=1, stores="disk", workers=1, device="cpu", progress=False)
    folder = result.clients[0].store.files.files.folder
    assert folder.is_dir()
    del result
    commit_files.cache_clear()
    gc.collect()
    assert not folder.exists()


def test_a_commit_in_memory_knows_what_it_keeps() -> None:
    assert Commit(0, STATE, None).keeps and not Commit(0, {}, None).keeps
    assert not Store().keeps
