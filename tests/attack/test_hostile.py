"""A thousand hostile files for the command line: each ends in a result or in one line, soon, in little memory.

Recipes, array files, images, graphs, weights and the files of a run's folder, each spoilt in many ways or made to
be bad. A case is known by its kind and number: `attacked(kind, number, place)` makes and gives the same one again.
"""

from __future__ import annotations

import io
import json
import math
import os
import random
import resource
import shutil
import signal
import struct
import sys
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import yaml
from PIL import Image
from safetensors.torch import save_file

import conftest
from mutua import Architecture
from mutua.support.processes import can_fork
from test_fuzz import RECIPE_BYTES, RECIPES, repacked, spoil_bytes, spoil_safetensors, spoil_text, to_yaml

pytestmark = [pytest.mark.long, pytest.mark.skipif(not can_fork(), reason="ends processes that it forks")]

SEED = 23
NUMBERS = {"recipe": 300, "data": 200, "images": 150, "graph": 100, "weights": 150, "folder": 100}
SECONDS = 60
"""After so many it is asked to stop, as somebody would who has waited enough; then it may save."""
MEMORY = 3 * 2**30
"""Bytes beyond those of the process that it is forked from."""

TINY: dict[str, Any] = {**conftest.TINY, "steps": 1}
MORE = [
    {**tree, "rounds": 1, "steps": 1, "epochs": None} if isinstance(tree, dict) else tree for tree in RECIPES
] + [
    {**TINY, "method": {"name": "fedmd", "public_epochs": 1, "private_epochs": 1}, "public": {"share": 0.2}},
    {**TINY, "method": {"name": "mixture", "mixture_epochs": 1, "gate": {"name": "mlp", "width": 0.1}}},
    {**TINY, "faults": {"dropout": [{"probability": 0.5}], "stragglers": [{"clients": ["c0"], "seconds": 0.1}]}},
    {**TINY, "grid": {"method.alpha": [0.1, 0.9]}, "deadline": 100, "precision": "bfloat16"},
]  # fmt: skip

Words = list[str]


# What is given to which command


def written(place: Path, **changes: Any) -> Words:
    """A good recipe with these changes, and the command that runs it."""
    (place / "r.yaml").write_text(yaml.safe_dump({**TINY, **changes}))
    return ["run", "r.yaml", "--out", "x", "--workers", "1"]


def recipe(rng: random.Random, place: Path) -> Words:
    (place / "r.yaml").write_bytes(
        spoil_text(rng, rng.choice(MORE), rng.choice((json.dumps, to_yaml)), RECIPE_BYTES)
    )
    # Most have few rounds: one that is good but for its length would only cost time.
    short = ["--set", "rounds=1"] if rng.random() < 0.8 else []
    match rng.randrange(6):
        case 0:
            return ["data", "show", "r.yaml", "--out", "x.png"]
        case 1:
            return ["compare", "r.yaml", "--methods", "fml", "--seeds", "0", "--out", "x", *short]
    return ["run", "r.yaml", "--out", "x", "--workers", "1", *short]


def arrays(rng: random.Random) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(rng.randrange(2**32))
    x, y = draw.integers(0, 256, (30, 8, 8), dtype=np.uint8), np.arange(30) % 3
    return {"x": x, "y": y, "classes": np.array(["ape", "bee", "cat"]), "domain": np.arange(30) % 2}


def packed(held: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **held)
    return file.getvalue()


def header(shape: tuple[int, ...], descr: str, body: bytes = b"") -> bytes:
    """An array file of one array, whose head says anything."""
    told = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    told += b" " * (-(10 + len(told) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(told)) + told + body


def zipped(**files: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


Y = [
    np.array([0, 1j] * 15), np.array([0.5] * 30), np.array([np.nan] * 30), np.array([np.inf] * 30),
    np.array([2**40] * 30), np.array([-1] * 30), np.array([2**63 - 1] * 30), np.array([2**64 - 1] * 30, np.uint64),
    np.array(["ape"] * 30), np.array([b"x"] * 30), np.zeros((30, 2)), np.zeros(0), np.zeros(29), np.array(0),
    np.array(["2020-01-01"] * 30, "datetime64[D]"), np.array([None] * 30), np.array([True] * 30),
    np.array([(1, 2)] * 30, [("a", int), ("b", int)]), np.full(30, 1e300), np.array(["\x1b[2J"] * 30),
]  # fmt: skip
X = [
    np.full((30, 8, 8), np.nan), np.full((30, 8, 8), 1e300), np.zeros((30, 0, 8)), np.zeros((0, 8, 8)),
    np.zeros((30,)), np.zeros((30, 2, 2, 2, 2)), np.zeros((30, 8, 8), complex), np.zeros((30, 8, 8), object),
    np.full((30, 8, 8), "a"), np.zeros((30, 1, 1)), np.zeros((30, 8, 8), np.uint64),
    np.zeros((30, 10**6), np.uint8),
    np.zeros((30, 8, 8), ">f4"), np.zeros((30, 8, 8), np.float16), np.zeros((30, 8, 8), np.longdouble),
]  # fmt: skip
NAMES = [
    np.array([""]), np.array(["a", "a", "b"]), np.array(["=cmd|' /C calc'!A0", "\x1b[31m", "c\nd"]), np.arange(3),
    np.array(["x" * 10**5, "y", "z"]), np.zeros((0,)), np.array([b"\xff", b"b", b"c"]), np.array(5),
    np.zeros((2, 2)),
]  # fmt: skip
HEADS = [
    ((2**46,), "|u1"), ((2**62, 2**62), "<f8"), ((-1, 8), "<f8"), ((30, 2**33), "|u1"), ((30, 8, 8), "|O"),
    ((30, 8, 8), "<M8[D]"), ((30, 8, 8), "|V99999999"), ((30,) * 70, "|u1"), ((30, 8, 8), "<U99999999"),
]  # fmt: skip


def array_file(rng: random.Random) -> bytes:
    held: dict[str, Any] = arrays(rng)
    match rng.randrange(7):
        case 0:
            held["y"] = rng.choice(Y)
        case 1:
            held["x"] = rng.choice(X)
        case 2:
            held[rng.choice(("classes", "domains", "domain"))] = rng.choice([*NAMES, *Y])
        case 3:
            held[rng.choice(("x_test", "y_test", "x_train", "../x", "opted_out"))] = rng.choice([*X, *Y])
        case 4:
            head = header(*rng.choice(HEADS), bytes(rng.randrange(3000)))
            return zipped(x=head, y=header((30,), "<i8", bytes(240)))
        case 5:  # little that becomes much
            return zipped(x=header((2**31,), "|u1", bytes(2**26)), y=header((30,), "<i8", bytes(240)))
        case _:
            return spoil_bytes(rng, packed(held), [packed(arrays(rng)), RECIPE_BYTES[0]])
    return packed(held)


def data(rng: random.Random, place: Path) -> Words:
    (place / "d.npz").write_bytes(array_file(rng))
    source = {"name": "arrays", "path": "d.npz"}
    match rng.randrange(8):
        case 0:
            return written(place, public={"path": "d.npz"}, method="fedmd")
        case 1:
            return written(place, data=source, opt_out={"mask": rng.choice(("opted_out", "y", "classes"))})
        case 2:
            return written(place, data=source, partition={"kind": "domains"})
        case 3:
            shutil.copytree(place.parent / "good", place / "run")
            return ["predict", "run", "--client", "c0", "--data", "d.npz", "--out", "p.csv"]
        case 4:
            os.mkfifo(place / "fifo.npz")
            return written(place, data={"name": "arrays", "path": rng.choice(("fifo.npz", "/dev/zero", ".", "d"))})
    return written(place, data=source, partition=rng.choice(({"kind": "iid", "clients": 2}, {"kind": "domains"})))


def picture(rng: random.Random) -> bytes:
    made = Image.effect_noise((rng.choice((1, 9, 300)), 9), 50).convert(rng.choice(("L", "RGB", "RGBA", "P", "1")))
    file = io.BytesIO()
    made.save(file, rng.choice(("png", "bmp", "webp", "tiff", "gif")))
    return file.getvalue()


EVIL = "open('pwned', 'w').close()\nfrom torch.nn import Linear as Net\nbuild = Net\n"
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/tmp/pwned) (w) file closefile\nshowpage\n"


def chunk(kind: bytes, body: bytes) -> bytes:
    import zlib

    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def bomb(side: int, depth: int = 8) -> bytes:
    """A PNG of a few bytes that says it is enormous."""
    import zlib

    head = struct.pack(">IIBBBBB", side, side, depth, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(10**6)))
        + chunk(b"IEND", b"")
    )


def images(rng: random.Random, place: Path) -> Words:
    folder = place / "images"
    for label in ("ape", "bee"):
        (folder / label).mkdir(parents=True)
        for i in range(12):
            (folder / label / f"{i}.png").write_bytes(png(rng))
    bad = (
        folder / rng.choice(("ape", "bee")) / rng.choice(("0.png", "99.jpg", "a.webp", "\x1b[2J.png", "=1+1.bmp"))
    )
    match rng.randrange(9):
        case 0:
            bad.write_bytes(POSTSCRIPT)
        case 1:
            bad.write_bytes(bomb(rng.choice((13_000, 60_000, 2**31 - 1))))
        case 2:
            bad.unlink(missing_ok=True)
            os.mkfifo(bad)
        case 3:
            bad.unlink(missing_ok=True)
            bad.symlink_to(rng.choice(("/dev/zero", "/etc/passwd", str(folder), "nowhere")))
        case 4:
            bad.write_bytes(b"")
        case 5:
            bad.unlink(missing_ok=True)
            bad.mkdir()
        case 6:
            for i in range(80):
                (bad.parent / f"b{i}.png").write_bytes(bomb(13_000))
        case _:
            bad.write_bytes(spoil_bytes(rng, picture(rng), [picture(rng), POSTSCRIPT]))
    if rng.random() < 0.3:
        shutil.copytree(place.parent / "good", place / "run")
        if rng.random() < 0.5:
            return ["predict", "run", "--client", "c0", "--data", "images", "--out", "p.csv"]
        return ["join", "run", "--data", "images"]
    size = rng.choice((8, 8, 8, 28, 500))
    return written(place, data={"name": "folder", "path": "images", "image_size": size})


def png(rng: random.Random) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((9, 9), rng.randrange(20, 90)).save(file, "png")
    return file.getvalue()


BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE g [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + i, b"&%c;" % (97 + i) * 10) for i in range(12))
    + b"]><graphml><graph id='&m;'/></graphml>"
)
STRANGE = b'<?xml version="1.0"?><!DOCTYPE g [<!ENTITY x SYSTEM "file:///etc/passwd">]><graphml>&x;</graphml>'


def graph(rng: random.Random, place: Path) -> Words:
    made = rng.choice((networkx.path_graph, networkx.complete_graph))(2)
    made = networkx.relabel_nodes(made, {0: "c0", 1: "c1"})
    suffix = rng.choice((".graphml", ".gml", ".txt", ""))
    if suffix == ".graphml":
        file = "".join(networkx.generate_graphml(made)).encode()
    elif suffix == ".gml":
        file = "\n".join(networkx.generate_gml(made)).encode()
    else:
        file = "\n".join(networkx.generate_edgelist(made)).encode()
    match rng.randrange(5):
        case 0:
            file = rng.choice((BOMB, STRANGE, b"[" * 10**5, b"graph [" * 10**4, b"c0 c1 {'a': __import__('os')}"))
        case 1:
            file = b"c0 c1\n" * rng.choice((1, 10**5)) + b"\xff\x00 \x1b[2J"
        case _:
            file = spoil_bytes(rng, file, [BOMB, RECIPE_BYTES[0]])
    name = f"g{suffix}"
    (place / name).write_bytes(file)
    if rng.random() < 0.1:
        name = rng.choice((".", "/dev/zero", "/proc/self/mem", "nowhere"))
    return written(place, topology=name, method="fedh2l", public={"share": 0.3})


def weights(rng: random.Random, place: Path) -> Words:
    import torch

    model = Architecture.of({"name": "mlp", "width": 0.1}).build(channels=1, size=28, classes=10, seed=0)
    state = model.state_dict()
    match rng.randrange(6):
        case 0:
            name = rng.choice(list(state))
            state[name] = rng.choice(
                (state[name][..., :1], state[name].double(), torch.full_like(state[name], math.nan))
            )
        case 1:
            state[rng.choice(("more", "../x", ""))] = torch.zeros(3)
        case 2:
            del state[rng.choice(list(state))]
    path = place / rng.choice(("w.safetensors", "w.pt", "w.bin"))
    if path.suffix == ".safetensors":
        save_file({name: array.contiguous() for name, array in state.items()}, path)
        good = path.read_bytes()
        path.write_bytes(spoil_safetensors(rng, good, [good, RECIPE_BYTES[0]]) if rng.random() < 0.7 else good)
    else:
        torch.save(state if rng.random() < 0.9 else model, path)
        good = path.read_bytes()
        if rng.random() < 0.7:
            path.write_bytes(repacked(rng, good) if rng.random() < 0.6 else spoil_bytes(rng, good, [good]))
    if rng.random() < 0.1:
        path.unlink()
        os.mkfifo(path) if rng.random() < 0.5 else path.symlink_to("/dev/zero")
    which = rng.choice(("global", "clients"))
    models = {"global": {"name": "mlp", "width": 0.1}, which: {"name": "mlp", "width": 0.1, "init": path.name}}
    return written(place, models=models)


# Commands on a run's folder, and the files that each of them reads: what it does not read harms nobody.
READS: dict[str, tuple[str, ...]] = {
    "predict run --client c0 --data d.npz --out p.csv": ("clients/c0/card.json",) * 3 + ("clients/c0/*",),
    "export run --client c0 --out e": ("clients/c0/*",),
    "join run --data d.npz": ("global/card.json", "global/*", "run.json"),
    "runs show run": ("run.json", "recipe.yaml", "events.jsonl", "checkpoints/*.json"),
    "runs list .": ("run.json", "recipe.yaml", "events.jsonl", "checkpoints/*.json"),
    "run --resume run --rounds 3": ("recipe.yaml", "*.csv", "events.jsonl", "checkpoints/**/*.*"),
    "report run --tables t": ("run.json", "recipe.yaml", "*.csv", "events.jsonl", "clients/*/confusion.json"),
}


def folder(rng: random.Random, place: Path) -> Words:
    run = place / "run"
    shutil.copytree(place.parent / "good", run)
    words, read = rng.choice(list(READS.items()))
    path = rng.choice(sorted(path for path in run.glob(rng.choice(read)) if path.is_file()))
    held = path.read_bytes()
    if path.suffix == ".json":
        tree = json.loads(held)
        if path.name == "card.json" and rng.random() < 0.3:
            named = (
                "evil:build",
                "evil:Net",
                "http.server:test",
                "os:_exit",
                "mutua.cli.process:main",
                "torch.hub:load",
            )
            tree["architecture"] = {"name": rng.choice(named)}
            (place / "evil.py").write_text(EVIL)
            path.write_text(json.dumps(tree))
        else:
            path.write_bytes(spoil_text(rng, tree, json.dumps, [RECIPE_BYTES[0]]))
    elif path.suffix == ".safetensors":
        path.write_bytes(spoil_safetensors(rng, held, [held]))
    elif rng.random() < 0.2:
        path.unlink()
        rng.choice((os.mkfifo, lambda at: at.symlink_to("/dev/zero"), os.mkdir))(path)
    else:
        path.write_bytes(spoil_bytes(rng, held, [RECIPE_BYTES[0]]))
    np.savez(place / "d.npz", x=np.zeros((30, 28, 28), np.uint8), y=np.arange(30) % 10, classes=np.arange(10))
    return words.split()


KINDS: dict[str, Callable[[random.Random, Path], Words]] = {
    "recipe": recipe, "data": data, "images": images, "graph": graph, "weights": weights, "folder": folder,
}  # fmt: skip


# Giving it


def given(words: Words, place: Path) -> tuple[int, str, float, int]:
    """The command's exit code, what it said, how long it took and how much memory it had beyond ours."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    began, child = time.monotonic(), os.fork()
    if not child:
        _command(words, place)
    sent = 0
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            break
        late = time.monotonic() - began - SECONDS
        if late > 5 * sent:  # once in good order; once at once; then with force
            os.kill(child, signal.SIGTERM if sent < 2 else signal.SIGKILL)
            sent += 1
        time.sleep(0.01)
    said = (place / "err.txt").read_text(errors="replace")
    return os.waitstatus_to_exitcode(status), said, time.monotonic() - began, used.ru_maxrss * 1024 - before


def _command(words: Words, place: Path) -> None:
    """In a process of its own: the command line, as its own process would have it."""
    code: Any = 99
    try:
        os.setsid()
        os.chdir(place)
        os.dup2(os.open("out.txt", os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open("err.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(
            resource.RLIMIT_AS, (has + MEMORY, has + MEMORY)
        )  # a machine of its own has its end too
        from mutua.cli.app import command_line

        sys.argv = ["mutua", *words]
        try:
            command_line()
            code = 0
        except SystemExit as stopped:
            code = stopped.code or 0
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code if isinstance(code, int) else 98)


def attacked(kind: str, number: int, place: Path) -> str:
    """Make one hostile case and give it to its command; how that ended."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    words = KINDS[kind](random.Random(f"{SEED} {kind} {number}"), place)
    code, said, seconds, memory = given(words, place)
    about = f"attacked({kind!r}, {number}): mutua {' '.join(words)}: code {code}, {seconds:.0f} s: {said[-3000:]}"
    assert code in (0, 1, 2), about
    assert "Traceback" not in said, about
    assert "\x1b" not in said, about
    assert seconds < SECONDS + 15, about
    assert memory < MEMORY, about
    assert not (place / "pwned").exists() and not Path("/tmp/pwned").exists(), about
    if code:
        last = said.splitlines()[-1]
        assert last.startswith("mutua: ") and len(last) < 10_000, about
        # Who gives a recipe of a model that no memory holds has asked for it; a file's reader has not.
        assert kind == "recipe" or "no memory left" not in last, about
    return {0: "a result", 1: "stopped", 2: "refused"}[code]


@pytest.fixture
def place(tmp_path: Path, finished: Callable[..., tuple[Path, Any]]) -> Path:
    """A folder for files, beside a small run's that is whole."""
    shutil.copytree(finished(rounds=2)[0], tmp_path / "good")
    return tmp_path / "place"


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_files_end_in_a_result_or_one_line(
    kind: str, place: Path, figure: Callable[[str, int, str], None]
) -> None:
    ends, wrong = Counter[str](), []
    for number in range(NUMBERS[kind]):
        try:
            ends[attacked(kind, number, place)] += 1
        except AssertionError as error:
            wrong.append(str(error).partition("\nassert")[0])
    told = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
    figure("hostile inputs", NUMBERS[kind], f"{kind}: {told}")
    assert not wrong, f"{len(wrong)} of {NUMBERS[kind]}:\n" + "\n".join(wrong)
