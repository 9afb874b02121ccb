"""`mutua run`, new and resumed, as people and scripts use it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from conftest import csv_rows
from mutua.runs.folder import RunFolder

Command = Callable[..., Any]
REPORT = {"method", "seed", "rounds", "global", "clients", "bytes", "privacy", "seconds"}
SAVED = "saved in x\na page of it: mutua report x"


def last(folder: Path, client: str, model: str) -> float:
    """The last test accuracy that the history has."""
    wanted = {"client": client, "model": model, "split": "test", "metric": "accuracy"}
    return float([r for r in csv_rows(folder / "history.csv") if wanted.items() <= r.items()][-1]["value"])


def test_run_prints_a_table_and_leaves_a_folder(command: Command, tmp_path: Path) -> None:
    done = command("run", "tiny.yaml")
    assert done.code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"tiny-\d{8}-\d{6}-0", folder.name)
    assert done.out.endswith(f"saved in runs/{folder.name}\na page of it: mutua report runs/{folder.name}\n")
    assert "fml: accuracy (%) on each client's own test data after the last round" in done.out
    assert done.err.splitlines()[-1].startswith("tiny: round 1/1, global ")
    assert max(map(len, done.out.splitlines())) <= 80
    own = 100 * last(folder, "c0", "predictor")
    assert re.search(rf"^c0 +mlp×0.1 +14 +1/1 +{own:.1f} ", done.out, re.MULTILINE)


@pytest.mark.parametrize("method", ["fml", "fedavg", "independent"])
def test_json_has_these_keys_and_these_numbers(command: Command, tmp_path: Path, method: str) -> None:
    done = command("run", "tiny.yaml", "--set", f"method={method}", "--seed", "4", "--out", "x", "--json")
    report = json.loads(done.out)
    assert done.code == 0 and set(report) == REPORT and done.err == SAVED + "\n"
    assert (report["method"], report["seed"], report["rounds"]) == (method, 4, 1)
    assert report["seconds"] > 0
    shares = method != "independent"
    assert set(report["global"]) == {"accuracy", "loss"}
    assert report["global"]["accuracy"] == (last(tmp_path / "x", "global", "global") if shares else None)
    assert [client["id"] for client in report["clients"]] == ["c0", "c1"]
    for client in report["clients"]:
        assert set(client) == {
            "id",
            "model",
            "width",
            "samples",
            "opted_out",
            "test_samples",
            "interval",
            "trained",
            "serves_since",
            "participation",
            "accuracy",
        }
        assert (client["model"], client["samples"]) == ("mlp", 14)
        own = last(tmp_path / "x", client["id"], "predictor")
        shared = last(tmp_path / "x", client["id"], "global") if shares else None
        assert client["accuracy"] == {"predictor": own, "global": shared}
    sent = dict.fromkeys(("up", "down"), 0)
    for entry in csv_rows(tmp_path / "x" / "ledger.csv"):
        sent[entry["direction"]] += int(entry["bytes"])
    assert report["bytes"] == sent and (sent["up"] > 0) == shares


def test_json_is_the_same_twice_and_null_where_there_is_no_number(command: Command) -> None:
    first, second = (json.loads(command("run", "tiny.yaml", "--out", name, "--json").out) for name in "ab")
    assert {**first, "seconds": 0} == {**second, "seconds": 0}

    def refuse(word: str) -> None:
        raise AssertionError(word)

    done = command("run", "tiny.yaml", "--out", "c", "--json", "--set", "optimizer.lr=1e6")
    assert done.code == 0 and json.loads(done.out, parse_constant=refuse)["global"]["loss"] is None


def test_options_reach_the_recipe(command: Command, tmp_path: Path) -> None:
    words = [
        "--set",
        "method.beta={schedule: linear, start: 0.3, end: 0.9}",
        "--set",
        "batch_size=5",
        "--seed",
        "9",
    ]
    assert command("run", "tiny.yaml", "--out", "x", "--device", "cpu", *words).code == 0
    kept = yaml.safe_load((tmp_path / "x" / "recipe.yaml").read_text())
    assert (kept["seed"], kept["batch_size"], kept["device"]) == (9, 5, "cpu")
    assert kept["method"]["beta"] == {"schedule": "linear", "start": 0.3, "end": 0.9}


def test_models_and_data_of_ones_own(command: Command, tmp_path: Path) -> None:
    """A factory in a package of the current folder, an array file beside it, one model a client."""
    (tmp_path / "my_pkg").mkdir()
    (tmp_path / "my_pkg" / "__init__.py").write_text("")
    (tmp_path / "my_pkg" / "nets.py").write_text(
        "from torch import nn\n"
        "def build(channels, size, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))\n"
    )
    x = np.random.default_rng(0).integers(0, 256, (60, 6, 6), dtype=np.uint8)
    np.savez(tmp_path / "my.npz", x=x, y=np.arange(60) % 3, classes=np.array(["ant", "bee", "cat"]))
    words = ["--set", "data={name: arrays, path: my.npz}", "--set", "models.clients=[mlp, 'my_pkg.nets:build']"]
    report = json.loads(command("run", "tiny.yaml", "--out", "x", "--json", *words).out)
    assert [client["model"] for client in report["clients"]] == ["mlp", "my_pkg.nets:build"]
    done = command("predict", "x", "--client", "c1", "--data", "my.npz")
    assert done.out.startswith("sample,predicted,ant,bee,cat\n") and done.out.count("\n") == 61


def test_a_folder_of_images(command: Command, tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for k in range(20):
            pixels = noise.integers(0, 256, (12, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{k}.png")
    words = ["--set", "data={name: folder, path: images, image_size: 8}", "--out", "x", "--json"]
    assert command("run", "tiny.yaml", *words).code == 0
    card = json.loads((tmp_path / "x" / "clients" / "c0" / "card.json").read_text())
    assert card["input"] == [3, 8, 8] and card["classes"] == ["cat", "dog"]
    done = command("predict", "x", "--client", "c0", "--data", "images")
    assert done.out.splitlines()[1].startswith("cat/0.png,") and "on 40 samples" in done.err


def test_clients_with_data_models_and_classes_of_their_own(command: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, classes in (("a", ["ant", "bee"]), ("b", ["bee", "cat", "dog"])):
        x, y = rng.random((60, 5), dtype=np.float32), np.arange(60) % len(classes)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y, classes=np.array(classes))
    recipe = {
        "clients": [
            {"id": "a", "data": {"name": "arrays", "path": "a.npz"}, "model": {"name": "mlp", "width": 0.1}},
            {"id": "b", "data": {"name": "arrays", "path": "b.npz"}, "model": {"name": "mlp", "width": 0.2}},
        ],
        "models": {"global": {"name": "mlp", "width": 0.05, "share": "body"}},
        "method": "fml",
        "rounds": 2,
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    report = json.loads(command("run", "mine.yaml", "--out", "x", "--json").out)
    assert [client["id"] for client in report["clients"]] == ["a", "b"]
    assert report["global"]["accuracy"] is None  # a body alone predicts nothing
    assert all(client["accuracy"]["predictor"] is not None for client in report["clients"])
    run = RunFolder.open(tmp_path / "x")
    assert run.client("a").card.classes == ("ant", "bee") and run.client("b").card.classes == ("bee", "cat", "dog")
    weights = {entry["name"] for entry in csv_rows(tmp_path / "x" / "ledger.csv")}
    assert weights == {"global", "meme", ""}


def test_resume_goes_on_and_says_when_there_is_nothing_to_do(command: Command, broken_off: Path) -> None:
    whole = command("run", "tiny.yaml", "--set", "rounds=3", "--json", "--out", "y")
    done = command("run", "--resume", "x")
    assert done.code == 0 and done.out.endswith(SAVED + "\n")
    assert [line.partition(",")[0] for line in done.err.splitlines()] == ["tiny: round 2/3", "tiny: round 3/3"]
    again = command("run", "--resume", "x", "--json")
    assert (again.code, again.err) == (0, "x is finished; to make it longer: --rounds N\n")
    assert {**json.loads(again.out), "seconds": 0} == {**json.loads(whole.out), "seconds": 0}
    assert command("run", "--resume", "x").out == ""


def test_resume_says_what_it_steps_over(command: Command, broken_off: Path) -> None:
    newest = max((broken_off / "checkpoints").glob("*.json"))
    newest.write_text("{}")
    done = command("run", "--resume", "x", "--json")
    assert done.err.splitlines() == [
        f"note: checkpoint {newest.name} is damaged (its checksum is wrong); it is ignored",
        *SAVED.splitlines(),
    ]
    assert json.loads(done.out)["rounds"] == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tiny.yaml", "RECIPE: a run goes on with its own recipe; leave it out beside --resume"),
        ("--seed 1", "--seed: a run goes on with its own recipe"),
        ("--set rounds=9", "--set: a run goes on with its own recipe"),
        ("--out z", "--out: a run goes on with its own recipe"),
        ("--device cpu", "--device: a run goes on with its own recipe"),
    ],
)
def test_a_resumed_run_has_a_recipe_of_its_own(command: Command, broken_off: Path, words: str, said: str) -> None:
    before = sorted(broken_off.rglob("*"))
    done = command("run", "--resume", "x", *words.split())
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1) and said in done.err
    assert sorted(broken_off.rglob("*")) == before
