"""Checkpoints: what they hold and how much, which of them stay, and that no bytes can do harm."""

from __future__ import annotations

import json
import math
import os
import re
import struct
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import _TYPES as TYPES_OF_SAFETENSORS
from safetensors.torch import load, load_file, save

from mutua import Kind, Message, Recipe, RunError
from mutua.federation.saved_state import DamagedState, decode_state, encode_state
from mutua.federation.store import Commit, State, Store
from mutua.methods import Part, count, number, weights
from mutua.recipe.checkpoint_settings import CheckpointSettings as Settings
from mutua.rounds.state import RunState
from mutua.runs import checkpoints
from mutua.runs.checkpoints import (
    CheckpointFolder,
    Manifest,
    checkpoint_due,
)
from mutua.runs.execute import execute
from mutua.runs.folder import RunFolder
from mutua.runs.recording import Recorder
from mutua.support import safe_reading
from mutua.support.growing_files import TableEnd
from mutua.support.tensor_files import FILE_DTYPES

MARK = TableEnd(bytes=0, rows=0, sha256="")
FACTS: dict[str, Any] = {"versions": {}, "history": MARK, "ledger": MARK}


def state(value: float) -> State:
    return {"personal": {"w": torch.full((3,), value)}, "personal.optimizer": {"0.momentum": torch.tensor(-value)}}


def stored(round: int, reply: Message | None = None) -> Store:
    return Store([Commit(round, state(round), reply, {"personal": 0.1 + round})])


def run_state(round: int, **clients: int) -> RunState:
    return RunState(
        round, {"global": {"w": torch.tensor(float(round))}}, {c: stored(r) for c, r in clients.items()}
    )


def names(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


# What they hold


def joined(*what: Any, **about: Any) -> bytes:
    return b"".join(encode_state(*what, **about))


def same(a: State, b: State) -> bool:
    """In names, their order, shapes, types and bits."""
    return [(g, list(n)) for g, n in a.items()] == [(g, list(n)) for g, n in b.items()] and all(
        a[g][n].dtype == b[g][n].dtype and a[g][n].numpy().tobytes() == b[g][n].numpy().tobytes()
        for g in a
        for n in a[g]
    )


def test_what_is_kept_comes_back_in_names_order_and_bits() -> None:
    tied = torch.randn(2, 3)
    kept: State = {
        "zebra": {"b.weight": tied, "a.weight": tied, "view": torch.arange(12.0).view(3, 4).t()},
        "empty": {},
        "local gradient": {"": torch.tensor([math.nan, math.inf, -0.0])},
        "personal.optimizer": {"0/slash": torch.tensor(7), "flags": torch.tensor([True, False])},
        "ähre": {"half": torch.ones(2, dtype=torch.float16), "none": torch.zeros(0, 5)},
    }
    found, reply, about = decode_state(joined(kept, client="c", round=3))
    assert same(found, kept) and reply is None
    assert about == {"format": 1, "client": "c", "round": 3}
    assert joined(kept, client="c", round=3) == joined(kept, client="c", round=3)


def test_a_reply_comes_back_part_by_part_in_order() -> None:
    sent = Message(
        meme=weights({"z": torch.ones(2), "a": torch.zeros(1)}),
        entropy=number(Kind.ENTROPY, 0.5),
        apples=count(3),
        public=Part(Kind.SCORES, {"": torch.rand(2, 2)}),
    )
    found = decode_state(joined({"meme": {"z": torch.tensor(9.0)}}, sent))[1]
    assert found is not None and found == sent
    assert [(n, p.kind, list(p.arrays)) for n, p in found.items()] == [
        (n, p.kind, list(p.arrays)) for n, p in sent.items()
    ]


def test_the_file_is_one_that_the_library_reads_and_every_array_begins_on_a_cache_line(tmp_path: Path) -> None:
    """So a sum over an array that is mapped from a file has the bytes of one over the array in memory."""
    some = (torch.randn(3, 2) * 9).abs()
    arrays = {str(dtype): some.to(dtype) for dtype in FILE_DTYPES} | {"": torch.tensor(1.5), "no": some[:0]}
    ours = joined({"g": arrays}, round=1)
    (tmp_path / "a.safetensors").write_bytes(ours)
    assert set(TYPES_OF_SAFETENSORS.values()) - set(FILE_DTYPES) <= {
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
    }
    for read in (load(ours), load_file(tmp_path / "a.safetensors")):
        held = {name: array for name, array in read.items() if not name.startswith(".filler")}
        assert held.keys() == {f"g/{name}" for name in arrays}
        for name, array in arrays.items():
            found = held[f"g/{name}"]
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            assert torch.equal(found.reshape(-1).view(torch.uint8), array.reshape(-1).view(torch.uint8))
    size = int.from_bytes(ours[:8], "little")
    told = json.loads(ours[8 : 8 + size])
    assert (8 + size) % 64 == 0
    assert all(entry["data_offsets"][0] % 64 == 0 for name, entry in told.items() if name.startswith("g/"))
    for source in (ours, tmp_path / "a.safetensors"):
        state, _, _ = decode_state(source)
        assert list(state["g"]) == list(arrays)
        assert all(array.data_ptr() % 64 == 0 for array in state["g"].values())
    with pytest.raises(RunError, match=r"'g/w' cannot be saved: safetensors has no torch.complex128"):
        encode_state({"g": {"w": torch.ones(1, dtype=torch.complex128)}})


@pytest.mark.parametrize("group", ["a/b", ""])
def test_a_group_that_could_not_be_told_apart_is_refused(group: str) -> None:
    with pytest.raises(RunError, match="cannot be saved"):
        encode_state({group: {"w": torch.ones(1)}})


def test_terms_come_back_to_the_last_digit_and_so_do_those_that_are_no_numbers(tmp_path: Path) -> None:
    terms = {"personal": 0.1 + 0.2, "meme": math.nan, "digest": -math.inf}
    held = CheckpointFolder(tmp_path)
    made = held.write(RunState(1, {}, {"c": Store([Commit(1, {}, None, terms)])}), **FACTS)
    (commit,) = CheckpointFolder(tmp_path).load(made)[1]["c"].commits
    assert repr(commit.terms) == repr(terms)


def test_the_three_lines_of_the_documents_load_a_model(finished: Any, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "runs.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (code,) = [block for block in blocks if "load_file" in block]
    assert len(code.split("\n")) - code.count("\n\n") - 1 == 3
    run, result = finished(rounds=2)
    model = result.clients[0].architecture.build(channels=1, size=28, classes=10, seed=7)
    exec(code.replace("runs/mine", str(run)).replace("000011", "000003"), {"model": model})
    for name, array in result.clients[0].state["personal"].items():
        assert torch.equal(model.state_dict()[name], array)


def test_server_and_clients_are_apart_and_only_what_changed_is_written(tmp_path: Path) -> None:
    held = CheckpointFolder(tmp_path)
    first = held.write(run_state(1, a=1, b=1), **FACTS)
    assert names(tmp_path) == {
        "000001.json",
        "server/000001.safetensors",
        "clients/a/000001.safetensors",
        "clients/b/000001.safetensors",
    }
    before = (tmp_path / "clients/b/000001.safetensors").stat()
    second = held.write(run_state(2, a=2, b=1), **FACTS)
    assert not (tmp_path / "clients/b/000002.safetensors").exists()
    after = (tmp_path / "clients/b/000001.safetensors").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert second.clients["b"] == first.clients["b"]
    server, stores = CheckpointFolder(tmp_path).load(second)
    assert float(server["global"]["w"]) == 2
    assert {c: store.commits[-1].round for c, store in stores.items()} == {"a": 2, "b": 1}
    assert same(stores["b"].state, state(1))
    # A client's file says nothing of anybody else.
    arrays = [name for name in load_file(tmp_path / "clients/a/000002.safetensors") if "/" in name]
    assert sorted(arrays) == ["personal.optimizer/0.momentum", "personal/w"]
    with safe_open(tmp_path / "clients/a/000002.safetensors", "pt") as file:
        assert "b" not in json.loads(file.metadata()["mutua"]).values()


def test_a_reply_is_kept_until_the_server_has_merged_it(tmp_path: Path) -> None:
    held = CheckpointFolder(tmp_path)
    reply = Message(meme=weights({"w": torch.ones(1)}))
    ahead = RunState(1, {}, {"a": stored(2, reply), "b": stored(1, reply)})
    found = held.load(held.write(ahead, **FACTS))[1]
    assert found["a"].commits[-1].reply == reply and found["b"].commits[-1].reply is None


def test_stopped_in_the_clients_start(tmp_path: Path) -> None:
    """There is no server's state yet, and the next checkpoint takes its place."""
    held = CheckpointFolder(tmp_path)
    held.write(replace(run_state(-1, a=0), server={}), **FACTS)
    again = CheckpointFolder(tmp_path)
    assert again.newest is not None and again.newest.round == -1 and again.newest.server is None
    assert again.load(again.newest)[0] == {}
    again.write(run_state(0, a=0, b=0), **FACTS)
    assert list(again.kept) == list(CheckpointFolder(tmp_path).kept) == [0]


# When, and how many


def test_every_so_many_rounds_but_not_too_often() -> None:
    assert [checkpoint_due(Settings(), round, since) for round, since in ((0, 31), (1, 30), (2, 29.9))] == [
        True,
        True,
        False,
    ]
    assert [checkpoint_due(Settings(every=3, seconds=0), round, 0) for round in range(7)] == [
        round % 3 == 0 for round in range(7)
    ]


def held_of(path: Path, **validation: float | None) -> CheckpointFolder:
    held = CheckpointFolder(path)
    for name, value in validation.items():
        round = int(name[1:])
        held.write(run_state(round, a=round, b=0), validation=value, **FACTS)
    return held


def test_the_last_and_the_best_stay_and_their_files(tmp_path: Path) -> None:
    held = held_of(tmp_path, r0=0.1, r1=0.9, r2=0.9, r3=None, r4=0.5)
    (tmp_path / "000009.json").write_text("{")
    (tmp_path / "server" / "000003.safetensors.aside").write_text("half")
    expected = [path for path in tmp_path.rglob("*") if path.is_file() and re.search("00000[0239]", path.name)]
    expected = [path for path in expected if path != tmp_path / "clients/b/000000.safetensors"]
    size = sum(path.stat().st_size for path in expected)
    assert held.best is not None and held.best.round == 1
    before = names(tmp_path)
    assert held.sweep(1, best=True, dry=True) == ([0, 2, 3], size) and names(tmp_path) == before
    assert held.sweep(1, best=True) == ([0, 2, 3], size)
    assert names(tmp_path) == {
        *(f"00000{r}.json" for r in (1, 4)),
        *(f"server/00000{r}.safetensors" for r in (1, 4)),
        *(f"clients/a/00000{r}.safetensors" for r in (1, 4)),
        "clients/b/000000.safetensors",
    }
    for manifest in CheckpointFolder(tmp_path).kept.values():
        held.load(manifest)
    assert held.sweep(1, best=False)[0] == [1]
    assert list(CheckpointFolder(tmp_path).kept) == [4]
    held.sweep(0, best=True)
    assert names(tmp_path) == set()


def test_without_validation_nothing_is_best(tmp_path: Path) -> None:
    assert held_of(tmp_path, r1=None, r2=None).best is None


def test_a_run_keeps_as_many_as_its_recipe_says(tiny: dict[str, Any], tmp_path: Path) -> None:
    recipe = Recipe.of({**tiny, "rounds": 6, "checkpoints": {"seconds": 0, "every": 2, "keep": 3, "best": False}})
    execute(recipe, recipe.federation(), Recorder.create("tiny", 0, tmp_path / "run"))
    assert list(RunFolder(tmp_path / "run").checkpoints.kept) == [4, 6, 7]
    quick = recipe.with_(checkpoints=Settings())
    execute(quick, quick.federation(), Recorder.create("tiny", 0, tmp_path / "quick"))
    assert list(RunFolder(tmp_path / "quick").checkpoints.kept) == [
        7
    ]  # nothing to lose in half a minute but the end


def test_the_best_is_by_the_mean_over_clients_on_validation_data(finished: Any) -> None:
    folder, result = finished("fedavg", rounds=4, checkpoints={"seconds": 0, "keep": 9})
    held = RunFolder(folder).checkpoints
    for round in (0, 1, 2, 3, 5):
        rows = result.history.select(round=min(round, 4), model="predictor", split="val", metric="accuracy")
        assert held.kept[round].validation == pytest.approx(sum(row.value for row in rows) / 2)
    assert held.kept[4].validation is None  # before the clients' finish it is not evaluated


# Bytes of strangers


def harmless(data: bytes) -> None:
    with suppress(DamagedState):
        decode_state(data)


GOOD = joined(state(1), Message(meme=weights({"w": torch.ones(3)}), apples=count(1)), client="c", round=1)


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=6), st.integers(0, 40))
def test_mutated_bytes_are_read_or_refused(changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(GOOD)
    for place, value in changes:
        data[place] = value
    harmless(bytes(data[: len(data) - cut]))
    harmless(bytes(data[:cut]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("w"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just("personal"), inner),
    max_leaves=6,
)


@settings(max_examples=200)
@given(JSON, JSON, JSON)
def test_what_is_said_of_arrays_may_be_anything(groups: Any, reply: Any, format: Any) -> None:
    about = json.dumps({"groups": groups, "reply": reply, "format": format})
    harmless(save({"personal/w": torch.ones(1)}, {"mutua": about}))
    harmless(save({"personal/w": torch.ones(1)}, {"mutua": about[:-1]}))


def header(**entries: Any) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 2**40) + b"{}",
        header(w={"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}),
        header(w={"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 0]}),
        header(w={"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}),
        header(__metadata__={"mutua": "[" * 10**5}),
        header(__metadata__={"mutua": '{"format": 1, "groups": {"a": ["b"]}, "reply": null}'}),
        header(__metadata__={"mutua": '{"format": 2, "groups": {}, "reply": null}'}),
        header(__metadata__={"other": "{}"}),
        header(),
    ],
    ids=range(11),
)
def test_what_claims_too_much_is_refused_before_it_is_given(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DamagedState):
            decode_state(data)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_files_larger_than_the_limit_are_neither_written_nor_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_of(tmp_path, r1=None)
    with (tmp_path / "000002.json").open("wb") as file:
        file.truncate(safe_reading.MAX_TEXT_BYTES + 1)
    with (tmp_path / "server" / "000001.safetensors").open("r+b") as file:
        file.truncate(2**40)  # a hole: it takes no room
    again = CheckpointFolder(tmp_path)
    assert list(again.damaged.values()) == [f"it has more than {safe_reading.MAX_TEXT_BYTES} bytes"]
    with pytest.raises(DamagedState, match=r"server/000001.safetensors has 1099511627776 bytes; it had \d+$"):
        again.load(again.kept[1])
    for limit in ("MAX_ARRAY_BYTES", "MAX_HEADER_BYTES", "MAX_TEXT_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(safe_reading, limit, 100)
            with pytest.raises(RunError, match="it is too large"):
                held.write(run_state(3, a=3), **FACTS)


def sealed(**changes: Any) -> str:
    whole = Manifest(round=1, seconds=0.5, clients={}, **FACTS).model_dump(mode="json")
    body = {key: value for key, value in {**whole, **changes}.items() if value is not ...}
    return json.dumps({"sha256": checkpoints._sum(body), **body})


MANIFESTS = {
    "{": "it is not JSON",
    "[]": "checksum",
    "[" * 10**5: "nested more than 64 deep",
    sealed().replace("0.5", "0.6"): "checksum",
    sealed(round="x"): "round",
    sealed(round=-2): "round",
    sealed(round=3): "another round",
    sealed(format=3): "format",
    sealed(versions=...): "versions",
    sealed(inputs={"recipe": ""}): "inputs.sums",
    sealed(server={"round": 1, "bytes": 2**60, "sha256": ""}): "server.bytes",
    sealed(clients={"../../x": {"round": 1, "bytes": 1, "sha256": ""}}): "clients",
    sealed(clients={"/etc": {"round": 1, "bytes": 1, "sha256": ""}}): "clients",
}


@pytest.mark.parametrize(("text", "said"), MANIFESTS.items(), ids=range(len(MANIFESTS)))
def test_a_manifest_that_is_not_whole_says_what_is_wrong(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "000001.json").write_text(text)
    held = CheckpointFolder(tmp_path)
    assert not held.kept
    assert said in held.damaged[tmp_path / "000001.json"]
    (tmp_path / "000001.json").write_text(sealed(mood="good"))  # what a newer mutua put in is left alone
    assert list(CheckpointFolder(tmp_path).kept) == [1]


def test_a_clients_file_under_anothers_name_is_refused(tmp_path: Path) -> None:
    held = CheckpointFolder(tmp_path)
    made = held.write(run_state(1, a=1, b=1), **FACTS)
    data = (tmp_path / "clients/b/000001.safetensors").read_bytes()
    (tmp_path / "clients/a/000001.safetensors").write_bytes(data)
    swapped = made.model_copy(update={"clients": {**made.clients, "a": made.clients["b"]}})
    with pytest.raises(DamagedState, match="clients/a: it is not what its name says"):
        held.load(swapped)


# On the disk


def test_everything_is_on_the_disk_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data before the name, the name before the next step; and every folder that is new in the one above it."""
    done: list[str] = []
    real_replace = os.replace

    def replace(a: Any, b: Any) -> None:
        done.append(f"name {Path(b).name}")
        real_replace(a, b)

    def fsync(number: int) -> None:
        done.append(f"sync {Path(f'/proc/self/fd/{number}').readlink().name}")

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", fsync)
    CheckpointFolder(tmp_path / "checkpoints").write(run_state(1, a=1), **FACTS)
    at = done.index
    for name in ("000001.safetensors", "000001.json"):
        assert at(f"sync {name}.aside") < at(f"name {name}")
    last_folder = max(at(f"sync {name}") for name in ("a", "clients", "server", "checkpoints", tmp_path.name))
    assert at("name 000001.safetensors") < last_folder < at("sync 000001.json.aside")
    assert done[-1] == "sync checkpoints"
