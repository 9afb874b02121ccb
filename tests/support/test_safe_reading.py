"""What anybody may have written: the limits, one by one, and every input that once did harm."""

from __future__ import annotations

import gc
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch._utils import _rebuild_meta_tensor_no_storage, _rebuild_tensor_v2

from mutua import Architecture, InputError, Message, MutuaError, Recipe, Refused, load
from mutua.federation import saved_state
from mutua.federation.saved_state import DamagedState
from mutua.models import architecture
from mutua.runs import checkpoints
from mutua.runs.checkpoints import CheckpointFolder
from mutua.runs.folder import RunFolder
from mutua.runs.listing import RunOverview
from mutua.runs.resuming import ResumedRecorder
from mutua.runs.saved_models import SavedModel
from mutua.support import safe_reading
from mutua.support.growing_files import EventLog
from mutua.support.tensor_files import FILE_DTYPES

Finished = Callable[..., tuple[Path, Any]]


# Messages and array files


def held(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(dtype: str, shape: list[int], end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}


ONE = json.dumps(entry("F32", [1], 4))
ARRAYS = {
    "no bytes": (b"", "not JSON"),
    "half a length": (b"\1\0", "not JSON"),
    "names of 2^64 bytes": (b"\xff" * 8, "its names take 18446744073709551615 bytes; the most is 4194304"),
    "names beyond the end": (struct.pack("<Q", 999) + b"{}", "invalid header length"),
    "a list": (held([]), "does not begin with the names"),
    "2^42 bytes claimed": (held({"weights/m/w": entry("F32", [2**40], 2**42)}), "deserializing"),
    "2^124 numbers claimed": (held({"weights/m/w": entry("F32", [2**62, 2**62], 0)}), "deserializing"),
    # Raised TypeError: torch counts in 63 bits.
    "no numbers, 2^63 rows": (held({"weights/m/w": entry("F32", [2**63, 0], 0)}), "Overflow"),
    "a hundred thousand dimensions": (held({"weights/m/w": entry("F32", [1] * 10**5, 4)}, b"0000"), "dimensions"),
    "a hundred dimensions of truth": (held({"weights/m/w": entry("BOOL", [1] * 100, 1)}, b"\1"), "dimensions"),
    "neither true nor false": (held({"weights/m/w": entry("BOOL", [2], 2)}, b"\1\2"), "neither true nor false"),
    "a name twice": (held(f'{{"weights/m/w": {ONE}, "weights/m/w": {ONE}}}'.encode(), b"0000"), "/w' twice"),
    "a type twice": (held(b'{"weights/m/w": {"dtype": "F32", "dtype": "I8"}}'), "'dtype' twice"),
    "nested without end": (held(b'{"__metadata__": ' + b"[" * 10**5), "nested more than 64 deep"),
    "not a number": (held(b'{"__metadata__": {"a": NaN}}'), "NaN, which is no number"),
    "infinity": (held(b'{"__metadata__": {"a": 1e999}}'), "1e999, which is no number"),
    "a number of 5000 digits": (held(b'{"a": ' + b"9" * 5000 + b"}"), "not JSON"),
    "half a character": (held(rb'{"\ud800": 1}'), "surrogates not allowed"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "said"), ARRAYS.values(), ids=ARRAYS)
def test_arrays_that_are_none(data: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"^not a message: .*{said}"):
        Message.decode(data)
    with pytest.raises(DamagedState, match=said):
        saved_state.decode_state(data)
    (tmp_path / "w.safetensors").write_bytes(data)
    with pytest.raises(safe_reading.Unreadable):
        safe_reading.read_arrays(tmp_path / "w.safetensors")


def test_a_strangers_words_come_in_one_line_that_can_be_printed() -> None:
    with pytest.raises(Refused) as caught:
        Message.decode(held({"x\n\x1b[2J" * 10**5: entry("F32", [1], 4)}, b"0000"))
    said = str(caught.value)
    assert r"entry 'x\n\x1b[2Jx" in said and "has no known kind" in said
    assert said.isprintable() and len(said) < 5000
    assert str(MutuaError("half \ud800, zero \0, ä")) == r"half \ud800, zero \x00, ä"


# What is said of arrays in checkpoints


@pytest.mark.parametrize("group", ["", "a/b", "../x", "/"])
def test_groups_that_no_checkpoint_has(group: str) -> None:
    """They were read, but could not be saved again."""
    about = json.dumps({"format": 1, "groups": {group: []}, "reply": None})
    with pytest.raises(DamagedState, match="what this mutua does not know"):
        saved_state.decode_state(held({"__metadata__": {"mutua": about}}))


def test_terms_that_no_number_can_hold(tmp_path: Path) -> None:
    """Raised OverflowError."""
    with pytest.raises(DamagedState, match="its terms are no numbers"):
        saved_state.terms_of({"loss": 10**400})


# Recipes

TINY = """
data: mnist5k
partition: {kind: iid, clients: 2}
models: {global: mlp}
method: fml
"""
LAUGHS = "a0: &a0 [ha, ha]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 12)
)
YAML = {
    "nested lists": ("[" * 10**5, "line 1, column 65: nested more than 64 deep"),  # RecursionError
    "nested keys": ("".join(" " * i + "a:\n" for i in range(900)), "nested more than 64 deep"),  # RecursionError
    "a billion laughs": (TINY + LAUGHS, "more than 100000 values"),  # killed the process
    "a billion merges": (TINY + MERGES, "more than 100000 values"),  # took all memory
    "an alias within itself": (TINY + "augment: &a [*a]", "within what it names"),
    "a mapping within itself": (TINY + "budget: &a {bytes_up: *a}", "within what it names"),
    "a date that is none": (TINY + "rounds: 2024-99-99", "rounds: '2024-99-99'"),  # ValueError
    "a binary number without digits": (TINY + "rounds: 0b_", "not YAML"),  # ValueError
    "a number of 5000 digits": (TINY + "rounds: " + "9" * 5000, "a number of more than 100"),  # ValueError
    "hexadecimal": (TINY + "seed: 0x" + "f" * 5000, "a number of more than 100 characters"),  # ValueError
    "minutes and seconds": (TINY + "rounds: 1" + ":59" * 10**5, "a number of more than 100 characters"),  # minutes
    "a tagged truth": (TINY + "rounds: !!bool x", "a tag, 'tag:yaml.org,2002:bool'"),  # KeyError
    "a tagged nothing": (TINY + "rounds: !!int ''", "a tag"),  # IndexError
    "a tagged time": (TINY + "rounds: !!timestamp x", "a tag"),  # AttributeError
    "a tagged call": (TINY + "rounds: !!python/object/apply:os.abort []", "a tag"),
    "half a character": (TINY + r'topology: "\ud800"', "surrogates not allowed"),  # UnicodeEncodeError when saved
    "character 0 in a path": (
        TINY.replace("mnist5k", r'{name: arrays, path: "a\0b"}'),
        "a character 0",
    ),  # ValueError
    "a number as an option": (TINY.replace("fml", "{name: fml, 1: 2}"), "a key that is not text"),  # TypeError
    "a number as a model's key": (TINY.replace("mlp", "{name: mlp, 1: 2}"), "a key that is not text"),  # KeyError
    "a list as a key": (TINY + "[a]: b", "a key that is not text"),
    "a key twice": (TINY + "rounds: 3\nrounds: 4", "line 7, column 1: 'rounds' is given twice"),
    "too long": ("#" * (2**20 + 1), "it has more than 1048576 bytes"),
    "a thousand mistakes": (TINY + "".join(f"k{i}: 1\n" for i in range(1000)), "unknown key; .*; and 990 more"),
}


@pytest.mark.parametrize(("text", "said"), YAML.values(), ids=YAML)
def test_recipes_that_are_none(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(InputError, match=said):
        Recipe.load(tmp_path / "recipe.yaml")
    with suppress(InputError):
        assert RunOverview.of(tmp_path).settings


def test_aliases_merges_and_dates_are_read_within_the_limits() -> None:
    text = "a: &a {x: 1, y: [1, 2]}\nb: {<<: *a, x: 2}\nc: [*a, *a]\nd: 2024-01-02\ne: {<<: [*a, {z: 3}]}"
    shared = {"x": 1, "y": [1, 2]}
    assert safe_reading.from_yaml(text) == {
        "a": shared,
        "b": {"x": 2, "y": [1, 2]},
        "c": [shared, shared],
        "d": "2024-01-02",
        "e": {**shared, "z": 3},
    }
    assert safe_reading.from_yaml("[" * 64 + "]" * 64) is not None
    with pytest.raises(safe_reading.Unreadable, match="line 1, column 65"):
        safe_reading.from_yaml("[" * 65 + "]" * 65)


def test_json_by_the_letter() -> None:
    whole = {"a": [1, 2.5, -1e300, True, None, "ä\n😀"], "b": {}}
    assert safe_reading.from_json(json.dumps(whole)) == whole == safe_reading.from_json(json.dumps(whole).encode())
    assert safe_reading.from_json("[" * 64 + "]" * 64) is not None
    for text, said in {
        "[" * 65 + "1" + "]" * 65: "nested",
        "[" * 10**5: "nested",
        '{"a": 1, "b": {"c": 1, "c": 2}}': "'c' twice",
        "[Infinity]": "Infinity",
        "[-1e999]": "-1e999",
        r'["\udc00"]': "surrogates",
        r'{"\udc00": 1}': "surrogates",
        "{": "not JSON",
    }.items():
        with pytest.raises(safe_reading.Unreadable, match=said):
            safe_reading.from_json(text)


# Weights


def pickled(path: Path, value: Any) -> Path:
    """A torch file whose pickle holds `value`, where "THE STORAGE" is one of four numbers."""
    torch.save({"weight": torch.ones(4)}, path)

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("storage", torch.FloatStorage, "0", "cpu", 4) if obj == "THE STORAGE" else None

    with zipfile.ZipFile(path) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in entries.items():
            if not name.endswith("data.pkl"):
                new.writestr(name, data)
                continue
            with new.open(name, "w") as file:
                Pickler(file, 2).dump(value)
    return path


class Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.made = function, arguments

    def __reduce__(self) -> Any:
        return self.made


def tensor(*shape: int, stride: tuple[int, ...], offset: int = 0) -> Call:
    return Call(_rebuild_tensor_v2, "THE STORAGE", offset, shape, stride, False, OrderedDict())


PICKLES: dict[str, tuple[Any, str]] = {
    "a whole one": ({"weight": tensor(4, stride=(1,))}, ""),
    "more numbers than there are": ({"weight": tensor(2**40, stride=(1,))}, "resize"),
    "one number many times": ({"weight": tensor(2**40, stride=(0,))}, "has not all numbers of 'weight'"),
    "numbers before the first": ({"weight": tensor(1, stride=(1,), offset=-5)}, "offset"),
    # Took two gigabytes.
    "bytes by the number": ({"weight": Call(bytearray, 2**31)}, "bytearray, which is no array"),
    # Came through, and failed where it was used.
    "shapes alone": (
        {"weight": Call(_rebuild_meta_tensor_no_storage, torch.float32, (4,), (1,), False)},
        "no array",
    ),
    "a call": ({"weight": Call(os.abort)}, "abort, which is no array"),
    "a number": ({"weight": 3}, "is not a state_dict"),
    "a list": ([tensor(4, stride=(1,))], "is not a state_dict"),
    "a number as a name": ({3: tensor(4, stride=(1,))}, "has not all numbers of '3'"),
}


@pytest.mark.parametrize(("value", "said"), PICKLES.values(), ids=PICKLES)
def test_pickles(value: Any, said: str, tmp_path: Path) -> None:
    path = pickled(tmp_path / "w.pt", value)
    if not said:
        assert safe_reading.read_arrays(path)["weight"].tolist() == [1] * 4
        return
    with pytest.raises(safe_reading.Unreadable, match=said):
        safe_reading.read_arrays(path)


def test_a_state_dict_of_every_type_is_read(tmp_path: Path) -> None:
    plain = {str(dtype): torch.ones(2, 3).to(dtype) for dtype in FILE_DTYPES}
    layout = {"view": torch.arange(12.0).view(3, 4).t(), "tied": (tied := torch.ones(2)), "again": tied}
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    for whole in (plain, layout, model.state_dict(), dict(model.named_parameters())):
        torch.save(whole, tmp_path / "w.pt")
        found = safe_reading.read_arrays(tmp_path / "w.pt")
        assert found.keys() == whole.keys()
        for name, array in whole.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            assert found[name].tolist() == array.tolist()


def test_a_type_that_a_model_cannot_take(tmp_path: Path) -> None:
    """Two numbers in a byte: the library reads them, but torch cannot make others of them."""
    model = torch.nn.ParameterDict({"w": torch.ones(1)})
    (tmp_path / "w.safetensors").write_bytes(held({"w": entry("F4", [2], 1)}, b"0"))
    with pytest.raises(InputError, match=r"models.init: .*w.safetensors holds"):
        architecture._load(model, tmp_path / "w.safetensors")


def test_files_before_torch_1_6_are_refused(tmp_path: Path) -> None:
    """They are given memory by what they claim, before anything is read."""
    torch.save({"w": torch.ones(1)}, tmp_path / "w.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(InputError, match="holds no readable weights"):
        Architecture.of({"name": "mlp", "init": tmp_path / "w.pt"}).build(channels=1, size=8, classes=2, seed=0)


# Run folders


@pytest.fixture
def run(finished: Finished, tmp_path: Path) -> Path:
    shutil.copytree(finished(rounds=2)[0], tmp_path / "run")
    return tmp_path / "run"


LINKED = [
    "history.csv",
    "lock",
    "events.jsonl",
    "recipe.yaml",
    "checkpoints/clients",
    "clients/c0/personal.safetensors",
]


@pytest.mark.parametrize("name", LINKED)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_are_refused_and_nothing_outside_is_touched(run: Path, name: str, kind: str) -> None:
    """Resuming cut a file outside to nothing, sweeping removed it, and a pipe was waited for without end."""
    outside = run.parent / "outside"
    (run / name).rename(outside)
    before = {p: p.read_bytes() for p in [outside, *outside.rglob("*")] if p.is_file()}
    if kind == "link":
        (run / name).symlink_to(outside)
    else:
        os.mkfifo(run / name)
    for look in (RunFolder, RunFolder.open, RunOverview.of, ResumedRecorder):
        if kind == "pipe" and name == "recipe.yaml" and look is not RunFolder:
            continue  # it is not a file: no run has begun there
        with pytest.raises(InputError, match=f"{name} is a link or a device; a run's folder holds files"):
            look(run)
    assert {p: p.read_bytes() for p in [outside, *outside.rglob("*")] if p.is_file()} == before


@pytest.mark.parametrize("name", [name for name in LINKED if name != "checkpoints/clients"])
def test_hard_links_are_links(run: Path, name: str) -> None:
    """A file of two names: what resuming cuts off here would be gone there."""
    outside = run.parent / "outside"
    os.link(run / name, outside)
    before = outside.read_bytes()
    for look in (RunFolder, RunFolder.open, RunOverview.of, ResumedRecorder):
        with pytest.raises(InputError, match=f"{name} is a hard link; copy the folder"):
            look(run)
    assert outside.read_bytes() == before


def test_data_may_be_a_link(tmp_path: Path) -> None:
    """Data is only read, and is often kept once for many folders."""
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 3), np.float32), y=np.arange(4))
    os.link(tmp_path / "a.npz", tmp_path / "b.npz")
    (tmp_path / "c.npz").symlink_to(tmp_path / "a.npz")
    assert [len(load("arrays", path=tmp_path / name).train) for name in ("b.npz", "c.npz")] == [4, 4]


def test_a_link_to_a_runs_folder_is_fine(run: Path) -> None:
    (run.parent / "short").symlink_to(run)
    assert RunFolder.open(run.parent / "short").client("c0").predictor() is not None


def resealed(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    (path,) = run.glob("checkpoints/*.json")
    body = json.loads(path.read_text())
    del body["sha256"]
    change(body)
    path.write_text(json.dumps({"sha256": checkpoints._sum(body), **body}))


HISTORIES = {
    "longer than any file": lambda m: m["history"].update(bytes=2**60),  # MemoryError
    "longer than any number": lambda m: m["history"].update(bytes=10**30),  # OverflowError
    "fewer rows": lambda m: m["history"].update(rows=1),  # rows came twice
    "no rows": lambda m: m["history"].update(bytes=0),
}


@pytest.mark.parametrize("change", HISTORIES.values(), ids=HISTORIES)
def test_a_mark_that_is_not_the_files(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    (run / "run.json").unlink()
    resealed(run, change)
    assert any("history.csv is " in note for note in ResumedRecorder(run).notes)


@pytest.mark.parametrize("row", ["1,c0\n", "x" * 200_000 + "\n", "\n", '"\n', "1,c0,m,s,m,x\n", "\xff\n"])
def test_rows_that_are_none(run: Path, row: str) -> None:
    """A cell of 200,000 characters raised csv.Error."""
    (run / "run.json").unlink()
    data = (run / "history.csv").read_bytes() + row.encode("latin1")
    (run / "history.csv").write_bytes(data)
    sum = checkpoints.hashlib.sha256(data).hexdigest()
    resealed(run, lambda m: m["history"].update(bytes=len(data), sha256=sum, rows=m["history"]["rows"] + 1))
    assert any("history.csv is " in note for note in ResumedRecorder(run).notes)


def test_a_folder_among_checkpoints_stays(run: Path) -> None:
    """To remove it as a file failed."""
    (run / "checkpoints" / "7.json").mkdir()
    (run / "checkpoints" / "server" / "x.safetensors").mkdir()
    held = CheckpointFolder(run / "checkpoints")
    assert held.sweep(1, best=True)[0] == []
    assert "Is a directory" in held_reason(run)


def held_reason(run: Path) -> str:
    return CheckpointFolder(run / "checkpoints").damaged[run / "checkpoints" / "7.json"]


def test_a_run_without_events_is_shown(run: Path, command: Any) -> None:
    """Raised FileNotFoundError; and what a stranger wrote came to the terminal as it was."""
    (run / "events.jsonl").unlink()
    assert command("runs", "show", run).code == 0
    (run / "recipe.yaml").write_text('method: "a\\e[2J"\nseed: "\\e[2J"')
    (run / "events.jsonl").write_text('{"event": "\\u001b[2J"}\n')
    done = command("runs", "show", run)
    assert done.code == 0 and "\x1b[2J" not in done.out and done.out.count(r"\x1b[2J") == 3


def test_the_last_of_many_events_are_read_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    for i in range(100):
        events.add("round", round=i)
    monkeypatch.setattr(safe_reading, "MAX_TEXT_BYTES", 500)
    assert [e["round"] for e in events.read()] == list(range(100))[-len(events.read()) :]
    with events.path.open("ab") as file:
        file.write(b'{"event": "torn')
    size = events.path.stat().st_size
    assert events.mend() and events.path.stat().st_size == size - 15
    assert events.read()[-1]["round"] == 99 and not events.mend()


CARDS = {
    "a width of a million": (lambda c: c["architecture"].update(width=1e6), "takes .* bytes, the weights have"),
    "no width at all": (lambda c: c["architecture"].update(width=1e308), "weights and card do not fit"),
    "an input of 10^12 numbers": (lambda c: c.update(input=[1, 10**6, 10**6]), "a sample has at most"),
    "weights elsewhere": (lambda c: c.update(weights="../c1/personal.safetensors"), "weights"),
    "weights at the root": (lambda c: c.update(weights="/etc/x.safetensors"), "weights"),
    "weights as a pickle": (lambda c: c.update(weights="personal.pt"), "weights"),
    "mixtures within mixtures": (
        lambda c: c.update(architecture={"name": "mixture", "expert": {"name": "mixture"}}), "RUN: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), CARDS.values(), ids=CARDS)
def test_cards_that_claim_too_much(run: Path, change: Callable[[dict[str, Any]], None], said: str) -> None:
    path = run / "clients" / "c0" / "card.json"
    card = json.loads(path.read_text())
    change(card)
    path.write_text(json.dumps(card))
    with pytest.raises(InputError, match=said):
        SavedModel(path.parent).predictor()


# Memory

MEASURE = """
import json, resource, struct, sys, zipfile
from pathlib import Path
import torch
from mutua.support import safe_reading
from mutua import MutuaError
from mutua import Message
from mutua import Recipe
from mutua.federation import saved_state
from mutua.runs.checkpoints import CheckpointFolder
from mutua.runs.folder import RunFolder
from mutua.runs.saved_models import SavedModel
from mutua.support.growing_files import EventLog

place, run = map(Path, sys.argv[1:])
torch.set_num_threads(1)
now = lambda: int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
Message.decode(Message().encode())  # what is imported late
resource.setrlimit(resource.RLIMIT_AS, (now() + int(1.5 * 2**30),) * 2)

def held(text, body=b""):
    return struct.pack("<Q", len(text)) + text + body

def hole(path, first=b"", size=2**40):
    with path.open("wb") as file:
        file.write(first)
        file.truncate(size)
    return path

packed = place / "packed.pt"
with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
    with file.open("archive/data.pkl", "w") as entry:
        for _ in range(2**7):
            entry.write(bytes(2**20))
(place / "cards").mkdir()
(place / "cards" / "card.json").write_text("[" + "{}," * 2_000_000 + "{}]")
(place / "000001.json").write_text((place / "cards" / "card.json").read_text())
laughs = "a0: &a0 [1, 2]\\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\\n" for i in range(1, 12))
(place / "laughs.yaml").write_text(laughs)
many = ",".join(f'"weights/m/{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(40_000))
claim = b'{"weights/m/w": {"dtype": "F32", "shape": [%d], "data_offsets": [0, %d]}}' % (2**38, 2**40)
full = b"[" + b"{}," * (safe_reading.MAX_HEADER_BYTES // 3 - 2) + b"{}]"
hole(run / "events.jsonl")
tries = {
    "message: a claim": lambda: Message.decode(held(claim)),
    "message: long names": lambda: Message.decode(held(b" " * (safe_reading.MAX_HEADER_BYTES + 1))),
    "message: 40,000 arrays": lambda: Message.decode(held(("{" + many + "}").encode())),
    "message: a full list of names": lambda: Message.decode(held(full)),
    "checkpoint: a claim": lambda: saved_state.decode_state(held(claim)),
    "manifest": lambda: list(map(print, CheckpointFolder(place).damaged)) and None,
    "card": lambda: SavedModel(place / "cards"),
    "recipe": lambda: Recipe.load(place / "laughs.yaml"),
    "recipe: long": lambda: Recipe.load(hole(place / "long.yaml")),
    "weights: a hole": lambda: safe_reading.read_arrays(hole(place / "w.safetensors", held(claim))),
    "weights: packed": lambda: safe_reading.read_arrays(packed),
    "events": lambda: (EventLog(run / "events.jsonl").read(), EventLog(run / "events.jsonl").mend()),
}
for name, attempt in tries.items():
    try:
        attempt()
        said = "read"
    except (MutuaError, safe_reading.Unreadable) as error:
        said = str(error)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([name, said, peak]))
"""


def test_no_more_memory_is_taken_than_is_said(run: Path, tmp_path: Path) -> None:
    """Under a limit that the kernel keeps. `MemoryError` would show in what is said."""
    (tmp_path / "place").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, tmp_path / "place", run], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(found) == 12
    said = {name: what for name, what, _ in found}
    assert "Memory" not in str(said) and "alloc" not in str(said)
    assert said.pop("message: 40,000 arrays") == said.pop("events") == said.pop("manifest") == "read"
    assert "read" not in said.values()
    assert max(peak for _, _, peak in found) - found[0][2] < 400 * 2**20, found


def test_a_mapped_file_is_what_the_library_reads_and_its_arrays_may_be_changed(tmp_path: Path) -> None:
    arrays = {"a": torch.randn(3, 5), "b": torch.arange(4), "none": torch.empty(0, 2), "one": torch.tensor(True)}
    path = tmp_path / "a.safetensors"
    save_file(arrays, path, {"mutua": "x"})
    found, metadata = safe_reading.map_arrays(path)
    expected = load_file(path)
    assert metadata == {"mutua": "x"} and found.keys() == expected.keys()
    assert all(
        torch.equal(found[name], array) and found[name].dtype == array.dtype for name, array in expected.items()
    )
    found["a"].zero_()
    assert torch.equal(safe_reading.map_arrays(path)[0]["a"], arrays["a"])
    path.unlink()
    assert torch.equal(found["b"], arrays["b"])


@pytest.mark.parametrize(
    "about",
    [
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 12]},
        {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]},
        {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]},
        {"dtype": "F99", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": "4", "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4]},
        [],
    ],
)
def test_a_file_whose_header_lies_is_not_mapped(about: Any, tmp_path: Path) -> None:
    header = json.dumps({"w": about}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    with pytest.raises(safe_reading.Unreadable):
        safe_reading.map_arrays(tmp_path / "a.safetensors")


def test_mapping_loses_no_objects(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({f"w{i}": torch.ones(3) for i in range(20)}, path)
    safe_reading.map_arrays(path)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(100):
        safe_reading.map_arrays(path)
    gc.collect()
    assert sys.getallocatedblocks() - before < 500  # 4,000 with safetensors' own load_file
