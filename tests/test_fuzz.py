"""Hostile bytes: valid messages, recipes, checkpoints, run folders and weights, spoilt in many ways.

Each is read, or refused by an error that mutua declares, in one line that can be printed. Nothing else is raised,
and no code is run. A case is known by its kind and number: `case(kind, number)` makes the same input again.
"""

from __future__ import annotations

import io
import json
import math
import random
import re
import shutil
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mutua import InputError, Kind, Ledger, Message, MutuaError, Recipe, Refused
from mutua.federation import saved_state
from mutua.federation.message import may_leave
from mutua.federation.saved_state import DamagedState, encode_state
from mutua.learning import merging
from mutua.methods import FedAvg, Part, count, number, weights
from mutua.models import architecture
from mutua.runs import checkpoints
from mutua.runs.checkpoints import CheckpointFolder
from mutua.runs.folder import RunFolder
from mutua.runs.listing import RunOverview
from mutua.runs.resuming import ResumedRecorder
from mutua.support import importing

SEED = 0
QUICK = {"message": 900, "checkpoint": 600, "manifest": 150, "recipe": 150, "folder": 60, "weights": 140}
LONG = {
    "message": 90_000,
    "checkpoint": 60_000,
    "manifest": 20_000,
    "recipe": 15_000,
    "folder": 5_000,
    "weights": 10_000,
}
assert sum(QUICK.values()) >= 2_000 and sum(LONG.values()) >= 200_000


# What a case may do


@pytest.fixture(autouse=True)
def no_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe may name a method of the user's own, which is then imported; a case's must not be."""

    def refuse(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importing, "_import", refuse)


FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "pickle.find_class",
    "socket.connect",
)
_ran: list[str] | None = None


def _audit(event: str, _: object) -> None:
    if _ran is not None and event in FORBIDDEN:
        _ran.append(event)


sys.addaudithook(_audit)


@contextmanager
def declared(*errors: type[MutuaError]) -> Iterator[None]:
    """Only these errors, in one line that can be printed; and no code is run."""
    global _ran
    _ran = []
    try:
        yield
    except errors as error:
        said = str(error)
        assert said and said.isprintable() and len(said) < 10_000, repr(said)
    finally:
        ran, _ran = _ran, None
    assert not ran, ran


# Spoiling

NASTY: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 2**31, 2**32 - 1, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64,
    -(2**63), 10**30, 10**400, 0.5, -0.0, 1e308, math.nan, math.inf, -math.inf, "", "w", "NaN", "1", "1e999",
    "../x", "..", "/etc", "a/b", "a\0b", "\ud800", "\x1b[2J\nx", "ä" * 50, "x" * 5000, "os:abort", "__metadata__",
    "mutua", "I64", "BOOL", "F4", "C64", "weights", "count", "mixture", [], {}, [[]], [0], [2**62, 0], [2**63, 0],
    [1] * 100, {"": ""}, {"name": "fml"},
]  # fmt: skip


def deep(levels: int) -> Any:
    tree: Any = 1
    for level in range(levels):
        tree = [tree] if level % 2 else {"a": tree}
    return tree


def spots(tree: Any) -> list[tuple[Any, Any]]:
    """Every place in a tree, as what holds it and the key or position there."""
    found, todo = [], [tree]
    while todo:
        at = todo.pop()
        if isinstance(at, dict | list):
            keys = list(at) if isinstance(at, dict) else range(len(at))
            found += [(at, key) for key in keys]
            todo += [at[key] for key in keys]
    return found


def spoil_tree(rng: random.Random, tree: Any) -> Any:
    """The tree with one to three places changed, taken away, doubled, renamed, exchanged or buried."""
    tree = json.loads(json.dumps(tree))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = spots(tree)
        if not places:
            return deepcopy(rng.choice(NASTY))
        (at, key), (other, elsewhere) = rng.choice(places), rng.choice(places)
        match rng.randrange(9):
            case 0 | 1 | 2:
                at[key] = deepcopy(rng.choice(NASTY))
            case 3:
                del at[key]
            case 4 if isinstance(at, list):
                at.extend([at[key]] * rng.choice((1, 2, 300)))
            case 4 | 5 if isinstance(at, dict):
                at[str(rng.choice(NASTY))] = at.pop(key)
            case 6:
                at[key], other[elsewhere] = json.loads(json.dumps([other[elsewhere], at[key]]))
            case 7:
                at[key] = deep(rng.choice((3, 70, 300)))
            case _:
                was = at[key] if isinstance(at[key], int | float) else len(str(at[key]))
                at[key] = rng.choice((was + 1, was - 1, -was, was * 2**20, str(was), was // 3))
    return tree


NUMBERS = (b"0", b"-1", b"1e999", b"NaN", b"18446744073709551616", b"9" * 5000)


def spoil_bytes(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """The bytes with some flipped, cut, doubled, or replaced by another file's or by numbers."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        a, b = sorted(rng.randrange(len(made) + 1) for _ in range(2))
        match rng.randrange(7):
            case 0 | 1 if made:
                made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
            case 2:
                del made[a:]
            case 3:
                del made[a : min(b, a + 16)]
            case 4:
                made[a:a] = made[a : min(b, a + 64)]
            case 5:
                other = rng.choice(others)
                c = rng.randrange(len(other) + 1)
                made[a:b] = other[c : c + (b - a)]
            case _:
                numbers = list(re.finditer(rb"\d+", bytes(made)))
                if numbers:
                    start, end = rng.choice(numbers).span()
                    made[start:end] = rng.choice(NUMBERS)
    return bytes(made)


def spoil_text(rng: random.Random, tree: Any, dump: Callable[[Any], str], others: list[bytes]) -> bytes:
    """A tree spoilt and written, or written and spoilt; now and then with a key twice."""
    if rng.random() < 0.2:
        return spoil_bytes(rng, dump(tree).encode(), others)
    text = dump(spoil_tree(rng, tree))
    if rng.random() < 0.1:
        keys = re.findall(r'"\w+": ', text)
        if keys:
            key = rng.choice(keys)
            text = text.replace(key, f"{key}1, {key}", 1)
    return text.encode(errors="surrogatepass")


def spoil_safetensors(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """The file's bytes spoilt, or its header as the tree that it is, with or without the right length."""
    if rng.random() < 0.35:
        return spoil_bytes(rng, data, others)
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    told = header.get("__metadata__", {}).get("mutua")
    if told is not None and rng.random() < 0.6:
        told = spoil_text(rng, json.loads(told), json.dumps, others).decode(errors="replace")
        header["__metadata__"]["mutua"] = told
        text = json.dumps(header).encode()
    else:
        text = spoil_text(rng, header, json.dumps, others)
    if rng.random() < 0.2:
        body = spoil_bytes(rng, body, others) if rng.random() < 0.5 else body + bytes(rng.randrange(40))
    length = rng.choice(NASTY[4:16]) % 2**64 if rng.random() < 0.05 else len(text)
    return struct.pack("<Q", length) + text + body


# Valid ones to begin with


@cache
def messages() -> list[bytes]:
    normed = {"w": torch.ones(2, 3), "norm.num_batches_tracked": torch.tensor(3), "mask": torch.tensor([True])}
    small = {"half": torch.ones(2, dtype=torch.float16), "none": torch.zeros(0, 5)}
    signal = Part(Kind.PROBABILITIES, {"": torch.ones(2, 3) / 3})
    made = [
        Message(meme=weights(normed), samples=count(31)),
        Message(public=signal, public_accuracy=number(Kind.ACCURACY, 0.5)),
        Message(**{"global": weights(small)}),
        Message(),
    ]
    return [message.encode() for message in made]


@cache
def array_files() -> list[bytes]:
    state = {
        "personal": {"w": torch.ones(3), "n": torch.tensor(2)},
        "personal.optimizer": {"0": torch.ones(3)},
        "e": {},
    }
    reply = Message(meme=weights({"w": torch.ones(3)}), samples=count(1))
    about = {"client": "c0", "round": 1, "terms": {"personal": "0.5"}}
    return [
        b"".join(encode_state(state, reply, **about)),
        b"".join(encode_state({"global": {"w": torch.ones(2)}}, round=1)),
    ]


FILE = {"round": 1, "bytes": 5, "sha256": "0" * 64}
MARK = {"bytes": 10, "rows": 1, "sha256": "0" * 64}
MANIFEST = {
    "format": 1, "round": 1, "seconds": 0.5, "data": "", "validation": 0.5, "versions": {"torch": "2"},
    "history": MARK, "ledger": MARK, "server": FILE, "clients": {"c0": FILE, "c1": FILE},
}  # fmt: skip

TINY = {
    "name": "tiny", "data": {"name": "mnist5k", "samples_per_client": 20, "split": {"val": 0.1}},
    "partition": {"kind": "iid", "clients": 2}, "models": {"global": {"name": "mlp", "width": 0.1}},
    "method": "fml", "rounds": 1, "batch_size": 7, "optimizer": {"name": "sgd", "lr": 0.05}, "device": "cpu",
    "seed": 3,
}  # fmt: skip
RECIPES: list[Any] = [
    TINY,
    {
        "clients": [
            {"id": "a", "data": "mnist5k", "model": "lenet5"},
            {"id": "b", "data": {"name": "arrays", "path": "x.npz"}, "model": {"name": "mlp", "share": ["fc1"]}},
        ],
        "models": {"global": {"name": "mlp", "share": "body"}},
        "method": {"name": "fml", "alpha": {"schedule": "linear", "start": 0.1, "end": 0.9}},
        "optimizer": {"name": "adam", "lr": [0.1, 0.01]}, "steps": 4, "client_fraction": 0.5, "selection": "best",
        "checkpoints": {"every": 2, "keep": 3},
    },
    {**TINY, "partition": {"kind": "dirichlet", "clients": 3, "alpha": 0.5}, "method": {"name": "fedh2l"},
     "public": {"share": 0.1}, "topology": "ring"},
    {**TINY, "method": {"name": "fedavg", "combine": {"name": "trimmed-mean", "share": 0.1}, "max_norm_ratio": 9},
     "privacy": {"level": "client", "clip": 1.0, "noise": 1.0, "delta": 1e-5}, "augment": ["flip"],
     "opt_out": {"fraction": 0.5}, "budget": {"bytes_up": 1000}},
]  # fmt: skip


@cache
def torch_files() -> list[bytes]:
    made = []
    for state in (
        torch.nn.Linear(3, 2).state_dict(),
        {"w": torch.ones(2, dtype=torch.int16).requires_grad_(False)},
    ):
        torch.save(state, file := io.BytesIO())
        made.append(file.getvalue())
    return made


def repacked(rng: random.Random, data: bytes) -> bytes:
    """A torch file with one of its entries spoilt, which a checksum would else hide."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as held, zipfile.ZipFile(out, "w", rng.choice((0, 0, 8))) as copy:
        victim = rng.choice([name for name in held.namelist() if name.endswith(("data.pkl", "/0", "byteorder"))])
        for name in held.namelist():
            content = held.read(name)
            copy.writestr(name, spoil_bytes(rng, content, torch_files()) if name == victim else content)
    return out.getvalue()


# One case of a kind


def message(rng: random.Random, place: Path) -> None:
    data = spoil_safetensors(rng, rng.choice(messages()), messages())
    shared = Message.decode(messages()[0]).arrays("meme")
    with declared(Refused):
        found = Message.decode(data)
        assert found.nbytes == len(found.encode()) and Message.decode(found.encode()) == found
        Ledger().record(1, "c0", "up", found)
        may_leave(found, FedAvg().shares, Message(**{"global": weights(shared)}))
        merging.check_weights(found.arrays("meme") if "meme" in found else {}, shared)


def checkpoint(rng: random.Random, place: Path) -> None:
    data = spoil_safetensors(rng, rng.choice(array_files()), array_files())
    with declared(DamagedState):
        state, reply, about = saved_state.decode_state(data)
        saved_state.terms_of(about.get("terms") or {}) if isinstance(about.get("terms"), dict) else None
        encode_state(state, reply, **{key: about[key] for key in about if key == "round"})


def sealed(body: dict[str, Any]) -> str:
    body = {key: value for key, value in body.items() if key != "sha256"}
    return json.dumps({"sha256": checkpoints._sum(body), **body})


def manifest(rng: random.Random, place: Path) -> None:
    text: str | bytes = spoil_text(rng, MANIFEST, json.dumps, array_files())
    if rng.random() < 0.8:  # as somebody who knows how would
        text = json.dumps(MANIFEST) if isinstance(text, str) else text
        with suppress(ValueError, RecursionError):
            body = json.loads(text)
            text = sealed(body) if isinstance(body, dict) else text
    (place / "000001.json").write_bytes(text.encode(errors="surrogatepass") if isinstance(text, str) else text)
    held = CheckpointFolder(place)
    for why in held.damaged.values():
        assert why.isprintable()
    for kept in held.kept.values():
        with pytest.raises(DamagedState):
            held.load(kept)


def to_yaml(tree: Any) -> str:
    try:
        return yaml.safe_dump(tree)
    except RecursionError:  # what is buried twice is too deep for its writer
        return json.dumps(tree)


def recipe(rng: random.Random, place: Path) -> None:
    text = spoil_text(rng, rng.choice(RECIPES), rng.choice((json.dumps, to_yaml)), RECIPE_BYTES)
    (place / "recipe.yaml").write_bytes(text)
    with declared(InputError):
        found = Recipe.load(place / "recipe.yaml")
        written = found.dump()
        (place / "recipe.yaml").write_text(written, encoding="utf-8")
        assert Recipe.load(place / "recipe.yaml").dump() == written


RECIPE_BYTES = [yaml.safe_dump(tree).encode() for tree in RECIPES] + [
    b"a: &a [*a]\n", b"x: &x {k: 1}\ny: {<<: [*x, *x]}\n", b"!!python/object/apply:os.abort []", b"--- !!int x",
    b"%YAML 9.9\n---\n", b"2024-99-99", b"0b_", b"1:60:60", b"? [a]\n: b", b'"\\ud800\\0\\e"', b"\t",
    b"...\n---\n", b"=", b"<<: 1", b"|\n  x",
]  # fmt: skip


def weights_file(rng: random.Random, place: Path) -> None:
    if rng.random() < 0.5:
        data, name = spoil_safetensors(rng, rng.choice([*messages(), *array_files()]), messages()), "w.safetensors"
    else:
        good = rng.choice(torch_files())
        data = repacked(rng, good) if rng.random() < 0.7 else spoil_bytes(rng, good, torch_files())
        name = "w.pt"
    (place / name).write_bytes(data)
    with declared(InputError):
        model = torch.nn.Linear(3, 2)
        architecture._load(model, place / name)


def folder(rng: random.Random, place: Path) -> None:
    """A file of a run's folder spoilt; half the time as somebody would who then mends the checksums."""
    run = place / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(place.parent / "good", run)
    path = rng.choice(sorted(path for path in run.rglob("*") if path.is_file()))
    data = path.read_bytes()
    if rng.random() < 0.1 and path.name != "run.json":
        path.unlink()
    elif path.suffix == ".safetensors":
        path.write_bytes(spoil_safetensors(rng, data, array_files()))
    elif path.suffix == ".json":
        path.write_bytes(spoil_text(rng, json.loads(data), json.dumps, array_files()))
    else:
        path.write_bytes(spoil_bytes(rng, data, RECIPE_BYTES))
    if rng.random() < 0.5:
        for at in sorted(run.glob("checkpoints/*.json")):
            with suppress(ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError):
                at.write_text(mended(at, json.loads(at.read_bytes())))
    with declared(InputError):
        opened = RunFolder.open(run)
        opened.report()
        _ = opened.plan, opened.method, opened.shared().weights
        opened.client("c0").predictor()
    with declared(InputError):
        seen = RunOverview.of(run)
        _ = seen.summary(), seen.checkpoints(), seen.settings, seen.folder.events.read()
    with declared(InputError):
        _ = RunFolder(run).recipe
    (run / "run.json").unlink()
    with declared(InputError):
        again = ResumedRecorder(run)
        assert all(note.isprintable() for note in again.notes)
        assert again._lock is not None
        again._lock.release()


def mended(at: Path, body: Any) -> str:
    """The manifest with the lengths and checksums of what is there now."""

    def of(path: Path) -> dict[str, Any]:
        return {"bytes": path.stat().st_size, "sha256": sha256(path.read_bytes()).hexdigest()}

    for table in ("history", "ledger"):
        rows = (at.parents[1] / f"{table}.csv").read_bytes().count(b"\n") - 1
        body[table] = {**of(at.parents[1] / f"{table}.csv"), "rows": rows}
    body["server"] |= of(at.parent / "server" / f"{body['round']:06d}.safetensors")
    for client, file in body["clients"].items():
        file |= of(at.parent / "clients" / client / f"{file['round']:06d}.safetensors")
    return sealed(body)


KINDS: dict[str, Callable[[random.Random, Path], None]] = {
    "message": message, "checkpoint": checkpoint, "manifest": manifest, "recipe": recipe, "folder": folder,
    "weights": weights_file,
}  # fmt: skip


def case(kind: str, number: int, place: Path) -> None:
    """Make and read one spoilt input."""
    KINDS[kind](random.Random(f"{SEED} {kind} {number}"), place)


def cases(kind: str, numbers: range, place: Path) -> None:
    for n in numbers:
        try:
            case(kind, n, place)
        except BaseException as error:
            raise AssertionError(f"case({kind!r}, {n}) raised {type(error).__name__}: {error}") from error


@pytest.fixture
def place(tmp_path: Path, finished: Callable[..., tuple[Path, Any]]) -> Path:
    """A folder for files, beside a small run's that is whole."""
    shutil.copytree(finished(rounds=2)[0], tmp_path / "good")
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.mark.parametrize("kind", KINDS)
def test_spoilt_input_is_read_or_refused(kind: str, place: Path) -> None:
    cases(kind, range(QUICK[kind]), place)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_much_spoilt_input_is_read_or_refused(kind: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases(kind, range(LONG[kind]), place)
    with capsys.disabled():
        print(f"\nfuzz: {LONG[kind]} of {sum(LONG.values())} cases were of kind {kind}", end=" ")


# Drawn by structure rather than spoilt

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(NASTY)
TREES = LEAVES | st.lists(LEAVES, max_size=3) | st.dictionaries(st.text(max_size=5), LEAVES, max_size=3)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "I64", "BOOL", "U8", "F4", "C64", "x"]) | LEAVES,
        "shape": st.lists(st.integers(0, 2**64), max_size=4) | LEAVES,
        "data_offsets": st.tuples(st.integers(0, 16), st.integers(0, 16)) | LEAVES,
    }
)
NAMES = st.sampled_from(
    ["weights/meme/w", "count/n/", "weights//", "weights/a/b/c", "x", "__metadata__"]
) | st.text(max_size=9)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(NAMES, ENTRIES | TREES, max_size=4), st.binary(max_size=24))
def test_any_header_is_read_or_refused(header: Any, body: bytes) -> None:
    text = json.dumps(header).encode()
    with declared(Refused):
        Message.decode(struct.pack("<Q", len(text)) + text + body)
    with declared(DamagedState):
        saved_state.decode_state(struct.pack("<Q", len(text)) + text + body)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(Recipe.model_fields)), TREES)
def test_any_value_of_a_recipes_key_is_read_or_refused(key: str, value: Any) -> None:
    with declared(InputError):
        Recipe.of({**TINY, key: value})


def test_what_is_spoilt_was_good(place: Path) -> None:
    """Else every case would be refused for what was wrong before."""
    for data in messages():
        Message.decode(data)
    for data in array_files():
        saved_state.decode_state(data)
    (place / "000001.json").write_text(sealed(MANIFEST))
    assert CheckpointFolder(place).newest is not None
    for tree in RECIPES:
        Recipe.of(tree)
    for data in torch_files():
        (place / "w.pt").write_bytes(data)
        architecture._read(place / "w.pt")
    shutil.copytree(place.parent / "good", place / "run")
    RunFolder.open(place / "run").client("c0").predictor()
    assert ResumedRecorder(place / "run").notes == []
