"""A run goes on with what it began with: whatever differs is refused by name, or accepted and noted."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from conftest import interrupted_in_round_2
from mutua import Recipe
from mutua.rounds.progress import Hashing
from mutua.runs import inputs
from mutua.runs.checkpoints import CheckpointFolder, _sum
from mutua.runs.folder import RunFolder

Command = Callable[..., Any]

METHOD = """
from mutua.methods import FedH2L
from beside_inputs import LAMBDA

class Mine(FedH2L):
    "FedH2L, of the user's own."
"""
MODELS = """
from torch import nn

def small(channels, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, classes))

def dim(x):
    return x / 2
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with data, a public set, a graph, starting weights, and code of the user's own."""
    rng = np.random.default_rng(0)

    def arrays(n: int) -> dict[str, Any]:
        names = np.array(["a", "b", "c"])
        return {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": np.arange(n) % 3, "classes": names}

    mask = np.arange(300) % 5 == 0
    np.savez(tmp_path / "data.npz", **arrays(300), out=mask)
    np.savez(tmp_path / "public.npz", **arrays(12))
    (tmp_path / "ring.txt").write_text("c0 c1\nc1 c2\n")
    (tmp_path / "my_inputs.py").write_text(METHOD)
    (tmp_path / "beside_inputs.py").write_text("LAMBDA = 1\n")
    (tmp_path / "my_models.py").write_text(MODELS)
    save_file({"1.weight": torch.randn(3, 4), "1.bias": torch.zeros(3)}, tmp_path / "start.safetensors")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mutua.engines.local.cores", lambda: 1)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("my_inputs", "beside_inputs", "my_models"):
        sys.modules.pop(name, None)


PEERS: dict[str, Any] = {
    "data": {"name": "arrays", "path": "data.npz"},
    "partition": {"kind": "iid", "clients": 3},
    "models": {"clients": {"name": "my_models:small", "init": "start.safetensors"}},
    "method": "my_inputs:Mine",
    "public": {"path": "public.npz"},
    "topology": "ring.txt",
    "optimizer": {"name": "sgd", "lr": 0.05},
    "rounds": 3,
    "batch_size": 16,
    "min_replies": 2,
    "checkpoints": {"seconds": 0},
    "device": "cpu",
}
SHARED: dict[str, Any] = {
    **{key: PEERS[key] for key in PEERS if key not in ("public", "topology", "models")},
    "models": {"global": {"name": "my_models:small", "init": "start.safetensors"}},
    "method": "fedavg",
    "opt_out": {"mask": "out", "censor": "my_models:dim"},
}


def stopped(command: Command, tree: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that was stopped by Ctrl-C in its second round."""
    Path("recipe.yaml").write_text(yaml.safe_dump(tree))
    with interrupted_in_round_2(monkeypatch):
        done = command("run", "recipe.yaml", "--out", "x")
    assert done.code == 1 and "to go on" in done.err, done.err
    return Path("x")


def flip_image(number: int) -> None:
    """One value of one sample among 300."""
    held = dict(np.load("data.npz"))
    held["x"][number, 0] += 1
    np.savez("data.npz", **held)


def edit(path: str, old: str, new: str) -> Callable[[], None]:
    def change() -> None:
        text = Path(path).read_text()
        assert old in text
        Path(path).write_text(text.replace(old, new, 1))

    return change


def other_public() -> None:
    held = dict(np.load("public.npz"))
    held["y"] = held["y"][::-1]
    np.savez("public.npz", **held)


def other_mask() -> None:
    held = dict(np.load("data.npz"))
    held["out"][[0, 1]] = held["out"][[1, 0]]
    np.savez("data.npz", **held)


def other_weights() -> None:
    save_file({"1.weight": torch.zeros(3, 4), "1.bias": torch.zeros(3)}, "start.safetensors")


CHANGES: dict[str, tuple[dict[str, Any], Callable[[], None], str]] = {
    "rate": (PEERS, edit("x/recipe.yaml", "lr: 0.05", "lr: 0.45"), "recipe.yaml: optimizer.lr was 0.05, is 0.45"),
    "seed": (PEERS, edit("x/recipe.yaml", "seed: 0", "seed: 8"), "recipe.yaml: seed was 0, is 8"),
    "rounds": (
        PEERS,
        edit("x/recipe.yaml", "rounds: 3", "rounds: 7"),
        "recipe.yaml: rounds was 3, is 7; give --rounds to say how",
    ),
    "a line less": (PEERS, edit("x/recipe.yaml", "topology: ring.txt\n", ""), "topology was 'ring.txt', is 'all'"),
    "path": (SHARED, edit("x/recipe.yaml", "path: data.npz", "path: ring.txt"), "data.path was 'data.npz', is 'r"),
    **{f"image {n}": (PEERS, lambda n=n: flip_image(n), " data of client c") for n in (0, 7, 131, 299)},  # type: ignore[misc]
    "public": (PEERS, other_public, "--resume: the public set has changed; a run"),
    "graph": (PEERS, edit("ring.txt", "c1 c2", "c0 c2"), "--resume: the graph ring.txt has changed; a run"),
    "weights": (PEERS, other_weights, "--resume: the file of starting weights start.safetensors has changed; a"),
    "weights of the global": (
        SHARED,
        other_weights,
        "--resume: the file of starting weights start.safetensors has",
    ),
    "method": (
        PEERS,
        edit("my_inputs.py", "of the", "of a"),
        "--resume: the code of my_inputs has changed; a run",
    ),
    "beside": (
        PEERS,
        edit("beside_inputs.py", "1", "2"),
        "--resume: the code of beside_inputs has changed; a run",
    ),
    "model": (PEERS, edit("my_models.py", "4,", "4, "), "--resume: the code of my_models has changed; a run"),
    "censor": (SHARED, edit("my_models.py", "x / 2", "x / 3"), "the code of my_models has changed; a run"),
    "mask": (SHARED, other_mask, "client c"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_has_changed_is_refused_by_name_and_the_run_stays_as_it_is(
    what: str, command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, change, said = CHANGES[what]
    run = stopped(command, tree, monkeypatch)
    change()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"}
    done = command("run", "--resume", "x")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err
    assert {path: path.read_bytes() for path in before} == before


def test_what_has_not_changed_goes_on_whatever_the_files_dates(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tree in (PEERS, SHARED):
        run = stopped(command, tree, monkeypatch)
        for path in place.glob("*.*"):
            path.write_bytes(path.read_bytes())
        text = (run / "recipe.yaml").read_text()
        (run / "recipe.yaml").write_text("# mine\n" + text)  # which changes nothing
        assert command("run", "--resume", "x").code == 0
        for path in sorted(run.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()


def test_a_change_can_be_accepted_and_stays_in_the_record(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stopped(command, PEERS, monkeypatch)
    edit("x/recipe.yaml", "min_replies: 2", "min_replies: 1")()
    assert "recipe.yaml: min_replies was 2, is 1; a run goes on" in command("run", "--resume", "x").err
    flip_image(3)
    done = command("run", "--resume", "x", "--accept-changes")
    assert done.code == 0
    told = [note for note in RunFolder.open(run).record.notes if note.startswith("changed since round 1: ")]
    assert told[0] == "changed since round 1: recipe.yaml: min_replies was 2, is 1"
    assert " data of client c" in told[1]
    texts = [event["text"] for event in RunFolder(run).events.read() if event["event"] == "note"]
    assert texts == [f"accepted {note.removeprefix('changed ')}" for note in told]
    assert RunFolder.open(run).record.plan.min_replies == 1
    assert "it is for --resume" in command("run", "recipe.yaml", "--accept-changes").err


@pytest.mark.parametrize("text", ["method: {", "\x00", "method: fedwhat\n", ""])
def test_a_damaged_recipe_is_written_anew_as_the_checkpoint_has_it(
    text: str, command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stopped(command, PEERS, monkeypatch)
    file = run / "recipe.yaml"
    whole = file.read_text()
    file.write_text(text)
    done = command("run", "--resume", "x")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.rstrip().endswith(
        "; remove x/recipe.yaml, and the same command writes it again from the checkpoint"
    )
    if text != "method: fedwhat\n":
        assert "remove it, and 'mutua run --resume x' writes it again" in command("runs", "show", "x").err
    file.unlink()
    done = command("run", "--resume", "x")
    assert done.code == 0, done.err
    assert "note: recipe.yaml was not there; it is written again from the run's record\n" in done.err
    assert file.read_text() == whole
    file.unlink()  # of a finished run too
    assert "written again" in command("run", "--resume", "x").err
    assert file.read_text() == whole


def test_a_damaged_recipe_without_a_checkpoint_is_one_line(command: Command, tmp_path: Path) -> None:
    assert command("run", "tiny.yaml", "--out", "x").code == 0
    for path in [*Path("x/checkpoints").glob("*.json"), Path("x/run.json")]:
        path.unlink()
    Path("x/recipe.yaml").write_text("[")
    done = command("run", "--resume", "x")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "put back the one that the run began with, or begin a new run in another folder" in done.err


def test_a_run_of_an_older_mutua_goes_on_and_says_what_is_not_known(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stopped(command, PEERS, monkeypatch)
    for path in (run / "checkpoints").glob("*.json"):
        body = json.loads(path.read_text())
        del body["sha256"], body["inputs"]
        body |= {"format": 1, "data": "a sketch of some of the data"}
        path.write_text(json.dumps({"sha256": _sum(body), **body}))
    done = command("run", "--resume", "x")
    assert done.code == 0
    note = "note: an older mutua began this run; whether its inputs have changed is not known"
    assert note in done.err.splitlines()


def test_a_checksum_is_of_every_byte_and_shows_how_far_it_has_come(place: Path) -> None:
    """Against a calculation by hand: SHA-256 over those of the parts, chunk by chunk."""
    recipe = Recipe.of(PEERS)
    federation = recipe.federation()
    shown: list[tuple[int, int]] = []
    found = inputs.hash_inputs(recipe, federation, lambda *at: shown.append(at)).sums
    client = federation.clients[0]

    def digest(data: bytes) -> bytes:
        return hashlib.sha256(data).digest()

    told = repr((client.val.classes, client.val.preprocess, client.val.domains))
    parts = [b"None", told.encode()]
    for array in (client.val.x, client.val.y):
        parts += [repr((tuple(array.shape), array.dtype)).encode(), array.numpy().tobytes()]
    assert found["the val data of client c0"] == digest(b"".join(map(digest, parts))).hex()
    assert shown[-1][0] == shown[-1][1] > 300 * 4 * 4
    assert [at for at, _ in shown] == sorted(at for at, _ in shown)


@pytest.mark.parametrize("rows", [1, 1000])
def test_chunks_cover_an_array_whatever_its_layout(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "HASHED_AT_ONCE", 8 * rows)
    x = torch.arange(24.0).view(4, 3, 2)
    same = x.transpose(0, 2).contiguous().transpose(0, 2)
    assert not same.is_contiguous()

    def sums_of(**held: list[torch.Tensor]) -> dict[str, str]:
        return inputs._sums(lambda: iter(held.items()), None)

    sums = sums_of(a=[x], b=[same], c=[x.double()], d=[x.view(4, 6)])
    assert sums["a"] == sums["b"] and len(set(sums.values())) == 3
    for at in range(24):
        other = x.clone()
        other.view(-1)[at] += 1
        assert sums_of(a=[other])["a"] != sums["a"]
    assert list(sums_of(a=[x[:0]], b=[torch.tensor(True)], c=[])) == ["a", "b", "c"]


def test_a_recorded_recipe_that_cannot_be_read_is_one_line(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stopped(command, PEERS, monkeypatch)
    newest = CheckpointFolder(run / "checkpoints").newest
    assert newest is not None
    path = run / "checkpoints" / f"{newest.round:06d}.json"
    for recipe in ("{", "5", "rounds: 1"):
        body = json.loads(path.read_text())
        del body["sha256"]
        body["inputs"]["recipe"] = recipe
        path.write_text(json.dumps({"sha256": _sum(body), **body}))
        done = command("run", "--resume", "x")
        assert (done.code, done.err.count("\n")) == (2, 1)


# Looking at a run


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_is_shown_as_it_was_executed_and_not_as_its_recipe_was_edited(
    finished: bool, command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stopped(command, PEERS, monkeypatch)
    if finished:
        assert command("run", "--resume", "x").code == 0
    edited = {**PEERS, "method": "fedmd", "seed": 7, "rounds": 30}
    (run / "recipe.yaml").write_text(yaml.safe_dump(edited))
    told = json.loads(command("runs", "show", "x", "--json").out)
    assert (told["method"], told["seed"], told["rounds"]) == ("my_inputs:Mine", 0, 3)
    assert "seed was 0, is 7" in told["edited"]
    shown = command("runs", "show", "x").out
    assert shown.startswith(f"x: my_inputs:Mine, seed 0, {'finished' if finished else 'stopped'}, round ")
    assert "recipe.yaml has been edited since: rounds was 3, is 30\n" in shown
    listed = json.loads(command("runs", "list", ".", "--json").out)["runs"]
    assert [(one["method"], one["seed"], one["rounds"]) for one in listed] == [("my_inputs:Mine", 0, 3)]
    if finished:
        assert RunFolder(run).recipe.rounds == 3
        command("report", "x", "--html", "page.html")
        page = Path("page.html").read_text()
        assert "my_inputs:Mine" in page and "rounds: 30" not in page


def test_hashing_is_shown_where_it_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Hashing(None)
    for done in (1, 2, 3):
        shown(done, 10**6)
        shown(done * 10**9, 3 * 10**9)
    assert capsys.readouterr().err == "hashing 3.0 GB of data, to know it again\n"


def test_untrusted_code_needs_trust_and_no_other_recipe(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(command, PEERS, monkeypatch)
    monkeypatch.setattr("mutua.support.importing._trusted", set())
    done = command("run", "--resume", "x")
    assert done.code == 2 and "--trust-code my_" in done.err and "remove" not in done.err, done.err


def test_a_run_that_a_mistake_in_the_users_code_stopped_says_how_to_go_on_with_it_mended(
    command: Command, place: Path
) -> None:
    code = Path("my_inputs.py").read_text()
    Path("my_inputs.py").write_text(code + "\n    def objective(self, *_):\n        return self.misspelt\n")
    Path("recipe.yaml").write_text(yaml.safe_dump(PEERS))
    done = command("run", "recipe.yaml", "--out", "x")
    assert done.code == 1 and "misspelt" in done.err, done.err
    typed, _, rest = done.err.rpartition("to go on: mutua ")[2].partition(", once ")
    assert rest == "the code is mended\n" and typed.endswith(" --accept-changes")
    Path("my_inputs.py").write_text(code)
    sys.modules.pop("my_inputs")
    done = command(*typed.split())
    assert done.code == 0, done.err
