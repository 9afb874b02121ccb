"""The command line as people and scripts use it."""

import csv
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import mutua
from mutua import Recipe, load
from mutua.methods import base
from mutua.runs.folder import RunFolder
from mutua.support.files import Lock

Command = Callable[..., Any]
REPORT = {"method", "seed", "rounds", "global", "clients", "bytes", "privacy", "seconds"}

SAVED = "saved in x\na page of it: mutua report x"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def last(folder: Path, client: str, model: str) -> float:
    """The last test accuracy that the history has."""
    wanted = {"client": client, "model": model, "split": "test", "metric": "accuracy"}
    return float([r for r in rows(folder / "history.csv") if wanted.items() <= r.items()][-1]["value"])


# Help


def test_version_and_help(command: Command) -> None:
    assert command("--version").out == f"mutua {mutua.__version__}\n"
    for words in ([], ["--help"]):
        done = command(*words)
        assert done.code == 0 and done.err == ""
        for name in (
            "demo",
            "run",
            "compare",
            "report",
            "join",
            "predict",
            "export",
            "methods",
            "models",
            "data",
            "runs",
        ):
            assert re.search(rf"^  {name} ", done.out, re.MULTILINE)
        assert "..." not in done.out.partition("Commands:")[2]
    for group in ("data", "runs"):
        assert command(group).out == command(group, "--help").out


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (
            "run",
            "--set --seed --engine --out --resume --rounds --accept-changes --data-dir --device --workers --log "
            "--profile --faults --trust-code --json",
        ),
        ("compare", "--methods --seeds --set --engine --out --data-dir --device --workers --minutes --json"),
        ("reproduce", "--list --all --scale --seeds --minutes --workers --data-dir --out --write"),
        ("report", "--html --pdf --tables --figures --load-data --data-dir --trust-code"),
        ("join", "--data --model --how --name --seed --out --trust-code --json"),
        ("predict", "--client --data --out --trust-code --json"),
        ("export", "--client --out"),
        ("demo", "--out"),
        ("data show", "--set --seed --out --data-dir --json"),
        ("data get", "--data-dir"),
        ("data list", "--data-dir"),
        ("runs list", "--json"),
        ("runs show", "--json"),
        ("runs prune", "--keep --dry-run"),
    ],
)
def test_every_commands_help_fits_and_has_its_options(command: Command, words: str, options: str) -> None:
    done = command(*words.split(), "--help")
    assert done.code == 0 and max(map(len, done.out.splitlines())) <= 80
    assert set(re.findall(r"^  (--[a-z-]+)", done.out, re.MULTILINE)) == {*options.split(), "--help"}


# run


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
    for entry in rows(tmp_path / "x" / "ledger.csv"):
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
    weights = {entry["name"] for entry in rows(tmp_path / "x" / "ledger.csv")}
    assert weights == {"global", "meme", ""}


# run --resume, runs


@pytest.fixture
def broken_off(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder x of a run that was stopped by Ctrl-C in its second round of three."""
    from mutua.federation.store import Store

    commit = Store.commit

    def stop(store: Store, round: int, *rest: Any) -> None:
        commit(store, round, *rest)
        if round == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "commit", stop)
        done = command("run", "tiny.yaml", "--set", "rounds=3", "--set", "checkpoints.seconds=0", "--out", "x")
    assert done.code == 1 and done.err.endswith("mutua: stopped by Ctrl-C; to go on: mutua run --resume x\n")
    return tmp_path / "x"


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
        f"note: checkpoint {newest.name} is damaged (its checksum is wrong); it is stepped over",
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


def test_runs_are_listed_with_what_became_of_them(command: Command, broken_off: Path) -> None:
    command("run", "tiny.yaml", "--out", "sets/done", "--seed", "4")
    listed = json.loads(command("runs", "list", ".", "--json").out)["runs"]
    report = json.loads((broken_off.parent / "sets/done/run.json").read_text())
    assert [(r["run"], r["state"], r["round"], r["rounds"], r["seed"]) for r in listed] == [
        ("sets/done", "finished", 1, 1, 4),
        ("x", "stopped", 1, 3, 0),
    ]
    assert listed[0]["accuracy"] == report["summary"]["mean"]["predictor"]["accuracy"]
    assert listed[1]["bytes"] == sum(path.stat().st_size for path in broken_off.rglob("*") if path.is_file())
    done = command("runs", "list", ".")
    assert re.search(r"^x +fml +stopped +0 +1/3 +– ", done.out, re.MULTILINE)
    assert done.out.endswith("to continue a stopped run: mutua run --resume DIR\n")
    assert command("runs", "list", "sets").out.endswith("kB\n\n")
    assert command("runs", "list").err == "mutua: DIR: runs is not a folder; give one that holds runs\n"
    held = RunFolder.resume(broken_off)
    assert json.loads(command("runs", "show", "x", "--json").out)["state"] == "running"
    del held


def test_a_folder_that_cannot_be_read_does_not_hide_the_others(command: Command, broken_off: Path) -> None:
    """A pipe would keep its reader waiting for ever."""
    for name in ("a", "b"):
        shutil.copytree(broken_off, broken_off.with_name(name))
    (broken_off.parent / "a" / "recipe.yaml").unlink()
    os.mkfifo(broken_off.parent / "a" / "recipe.yaml")
    (broken_off.parent / "b" / "run.json").write_text("{")
    done = command("runs", "list", ".", "--json")
    assert [run["run"] for run in json.loads(done.out)["runs"]] == ["x"]
    assert re.fullmatch(
        r"note: RUN: a/recipe.yaml is a link.*\nnote: RUN: b/run.json cannot be read.*\n", done.err
    )
    assert command("runs", "show", "a").err.startswith("mutua: RUN: a/recipe.yaml is a link or a device; ")


def test_a_run_is_shown_with_its_checkpoints(command: Command, broken_off: Path) -> None:
    told = json.loads(command("runs", "show", "x", "--json").out)
    assert [(c["round"], c["whole"]) for c in told["checkpoints"]] == [(0, True), (1, True)]
    assert sum(c["best"] for c in told["checkpoints"]) == 1
    assert told["events"][-1]["reason"] == "stopped by Ctrl-C"
    (broken_off / "checkpoints" / "000000.json").write_text("{")
    shown = command("runs", "show", "x").out
    assert shown.startswith("x: fml, seed 0, stopped, round 1 of 3\n")
    assert re.search(r"^000000.json +damaged: it is not JSON: ", shown, re.MULTILINE)
    assert re.search(r"^after round 1 +whole, best on validation data", shown, re.MULTILINE)
    assert "stopped: reason stopped by Ctrl-C\nto go on: mutua run --resume x\n" in shown
    assert "RUN: nothing is not a folder" in command("runs", "show", "nothing").err
    unfinished = command("predict", "x", "--client", "c0", "--data", "mine.npz").err
    assert "RUN: x: the run is not finished; to go on: mutua run --resume x\n" in unfinished


def test_checkpoints_are_pruned(command: Command, broken_off: Path) -> None:
    def rounds() -> list[int]:
        return [int(path.stem) for path in sorted((broken_off / "checkpoints").glob("*.json"))]

    assert "not finished: it goes on from a checkpoint; keep 1" in command("runs", "prune", "x", "--keep", "0").err
    held = RunFolder.resume(broken_off)
    assert "x is in use by another run" in command("runs", "prune", "x").err
    del held
    command("run", "--resume", "x")
    assert rounds()[-2:] == [3, 4]
    shown = command("runs", "show", "x").out
    assert re.search(r"^after round 3 +whole", shown, re.MULTILINE)
    assert re.search(r"^after round 4, the last work +whole", shown, re.MULTILINE)
    would = command("runs", "prune", "x", "--keep", "0", "--dry-run").out
    assert would.startswith("x: checkpoints would be removed: ") and rounds()[-2:] == [3, 4]
    assert command("runs", "prune", "x", "--keep", "0").out == would.replace("would be removed", "removed")
    assert rounds() == [] and not list(broken_off.glob("checkpoints/**/*.safetensors"))
    assert RunFolder.open(broken_off).client("c0").predictor()
    assert command("runs", "prune", "x").out == "x: checkpoints removed: none; 0 B freed\n"


def test_prune_looks_at_a_run_only_when_it_has_it_alone(
    command: Command, broken_off: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is at work when prune begins replaces all checkpoints before prune has the lock."""

    def late(folder: Path, field: str) -> Lock:
        monkeypatch.undo()
        monkeypatch.chdir(broken_off.parent)
        assert command("run", "--resume", "x").code == 0
        return Lock(folder, field)

    monkeypatch.setattr("mutua.support.files.Lock", late)
    assert command("runs", "prune", "x", "--keep", "1").code == 0
    held = RunFolder(broken_off).checkpoints
    assert 4 in held.kept and held.load(held.kept[4])
    assert command("runs", "prune", str(broken_off.parent)).code == 2
    assert not (broken_off.parent / "lock").exists()


# compare


def test_compare_as_json(command: Command, tmp_path: Path) -> None:
    words = ["--methods", "fml,fedprox:mu=0.1,fedprox:mu=5,independent", "--seeds", "0,3", "--out", "x", "--json"]
    done = command("compare", "tiny.yaml", *words)
    report = json.loads(done.out)
    assert done.code == 0 and done.err == SAVED + "\n" and set(report) == {"runs", "summary"}
    labels = ["fml", "fedprox:mu=0.1", "fedprox:mu=5", "independent"]
    assert [(one["seed"], one["method"]) for one in report["runs"]] == [
        (s, name) for s in (0, 3) for name in labels
    ]
    assert all(set(one) == REPORT for one in report["runs"])
    assert list(report["summary"]) == labels

    def mean_own(one: dict[str, Any]) -> float:
        return float(np.mean([client["accuracy"]["predictor"] for client in one["clients"]]))

    own = {name: [mean_own(one) for one in report["runs"] if one["method"] == name] for name in labels}
    for name in labels:
        found = report["summary"][name]
        assert found["accuracy"]["predictor"]["mean"] == pytest.approx(np.mean(own[name]))
        assert found["accuracy"]["predictor"]["std"] == pytest.approx(np.std(own[name], ddof=1))
        differences = np.subtract(own[name], own["fml"])
        assert found["difference"]["predictor"]["mean"] == pytest.approx(differences.mean())
        assert found["difference"]["predictor"]["std"] == pytest.approx(differences.std(ddof=1))
    assert report["summary"]["independent"]["accuracy"]["global"]["mean"] is None
    folders = {path.name for path in (tmp_path / "x").iterdir()}
    assert folders == {
        "comparison.csv",
        "comparison.json",
        "results.csv",
        "lock",
        *(f"{name.replace(':', '-')}-{seed}" for name in labels for seed in (0, 3)),
    }
    # Each run's folder is a run like any other, and the same run alone gives the same numbers.
    alone = json.loads(command("run", "tiny.yaml", "--seed", "3", "--out", "y", "--json").out)
    assert {**alone, "seconds": 0} == {**report["runs"][4], "seconds": 0}


def test_compare_says_who_uses_the_global_alone(command: Command, tmp_path: Path) -> None:
    done = command("compare", "tiny.yaml", "--methods", "fml,fedavg,fedprox:mu=1,independent", "--seeds", "0")
    assert done.code == 0
    assert "fedavg, fedprox:mu=1: every client uses models.global, not a model of its own\n" in done.out
    assert max(map(len, done.out.splitlines())) <= 80 and "…" not in done.out
    assert "fedprox:mu=1, seed 0: round 1/1, " in done.err
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"tiny-compare-\d{8}-\d{6}", folder.name)
    assert done.out.endswith(f"saved in runs/{folder.name}\na page of it: mutua report runs/{folder.name}\n")


@pytest.mark.parametrize(
    "words", ["run tiny.yaml --json", "compare tiny.yaml --methods fml", "data show tiny.yaml"]
)
def test_ctrl_c_before_anything_has_run(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Recipe, "federation", stop)
    done = command(*words.split())
    assert (done.code, done.out, done.err) == (1, "", "mutua: stopped by Ctrl-C\n")
    assert not list(tmp_path.glob("runs/*"))


def test_ctrl_c_before_a_command_is_known(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mutua.cli.app.app", stop)
    done = command("run", "tiny.yaml")
    assert (done.code, done.out, done.err) == (1, "", "mutua: stopped by Ctrl-C\n")


# Using a result


def test_join_predict_and_export(
    command: Command, finished: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(finished("fml", rounds=2)[0], tmp_path / "run"))
    digits = load("mnist5k").train
    x, y = digits.x[4000:4040, 0].numpy(), digits.y[4000:4040].numpy()
    np.savez(tmp_path / "new.npz", x=x, y=y)

    (tmp_path / "join_nets.py").write_text(
        "from torch import nn\n"
        "def build(channels, size, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))\n"
    )
    words = ["--model", "join_nets:build", "--how", "mutual", "--name", "eve", "--seed", "1"]
    done = command("join", run, "--data", "new.npz", *words)
    assert done.code == 0 and done.err == ""
    assert "eve: accuracy (%) on its own 8 test samples" in done.out
    for row in ("the global as it is", "joined (mutual)", "trained alone"):
        assert re.search(rf"^{re.escape(row)} +\d+\.\d$", done.out, re.MULTILINE)
    done = command("join", run, "--data", "new.npz", "--how", "global", "--out", "joined", "--json")
    report = json.loads(done.out)
    assert set(report) == {"client", "how", "samples", "accuracy", "folder"}
    assert (report["client"], report["how"], report["folder"]) == ("newcomer", "global", "joined")
    assert set(report["accuracy"]) == {"global", "predictor", "alone"}

    done = command("predict", run, "--client", "eve", "--data", "new.npz", "--json")
    report = json.loads(done.out)
    assert set(report) == {"classes", "samples", "labels", "probabilities", "accuracy"}
    right = np.mean([name == str(label) for name, label in zip(report["labels"], y, strict=True)])
    assert report["accuracy"] == pytest.approx(right)
    assert done.err == f"accuracy {100 * right:.1f} % on 40 samples\n"

    done = command("predict", run, "--client", "c0", "--data", "new.npz", "--out", "p.csv")
    assert (done.code, done.out) == (0, "") and done.err.startswith("40 predictions in p.csv\naccuracy ")
    printed = command("predict", run, "--client", "c0", "--data", "new.npz").out
    assert printed == (tmp_path / "p.csv").read_text() and "\r" not in printed
    np.savez(tmp_path / "bare.npz", x=x)
    done = command("predict", run, "--client", "c0", "--data", "bare.npz")
    assert done.out == printed and done.err == ""

    done = command("export", run, "--client", "c1")
    assert done.out == "c1-export/model.safetensors\nc1-export/card.json\n"
    kept = (run / "clients" / "c1" / "personal.safetensors").read_bytes()
    assert (tmp_path / "c1-export" / "model.safetensors").read_bytes() == kept
    assert command("export", run, "--client", "eve", "--out", "e").code == 0
    assert command("export", run, "--client", "c1").code == 2  # it is there already


# Lists


def test_methods_and_models(command: Command) -> None:
    done = command("methods")
    assert done.code == 0 and "…" not in done.out
    for name in base.method_names():
        assert re.search(rf"^{name} ", done.out, re.MULTILINE)
    for column in (
        "options",
        "leaves a client",
        "different models",
        "the server",
        "weights sent",
        "sent per round",
    ):
        assert re.search(rf"^{column}: .", done.out, re.MULTILINE)
    done = command("models")
    assert re.search(r"^mlp +Two hidden layers.* 199,210$", done.out, re.MULTILINE)
    assert re.search(r"^resnet18 .* 11,172,810$", done.out, re.MULTILINE)
    assert max(map(len, done.out.splitlines())) <= 80


def test_data_list(command: Command, tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "mnist.npz").write_text("")
    done = command("data", "list", "--data-dir", "sets")
    cells = [re.split(" {2,}", line.rstrip()) for line in done.out.splitlines()]
    found = {row[0]: row[-1] for row in cells}
    assert done.code == 0 and "…" not in done.out
    assert found["mnist5k"] == "in mutua" and found["mnist"] == "mnist.npz"
    assert found["eurosat"].startswith("not here: mutua data")
    assert "the data folder is sets" in done.out


def test_data_get_says_where_it_put_the_files(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mutua.data import download

    def get(name: str, data_dir: Path | None, progress: Callable[[int, int | None], None]) -> list[Path]:
        progress(500, 1000)
        progress(1000, 1000)
        assert data_dir is not None
        return [data_dir / f"{name}.npz"]

    monkeypatch.setattr(download, "get", get)
    done = command("data", "get", "mnist", "--data-dir", "sets")
    assert (done.code, done.out) == (0, "sets/mnist.npz\n") and "mnist" in done.err


def test_data_show(command: Command, tmp_path: Path) -> None:
    words = ["--set", "partition={kind: shards, clients: 5, shards_per_client: 2}"]
    done = command("data", "show", "tiny.yaml", *words)
    assert done.code == 0 and done.out.endswith("picture in tiny-labels.png\n")
    with Image.open(tmp_path / "tiny-labels.png") as image:
        assert image.format == "PNG"
    told = json.loads(command("data", "show", "tiny.yaml", "--json", *words).out)
    assert told["classes"] == list("0123456789") and len(told["clients"]) == 5
    assert all(np.count_nonzero(client["train"]) == 2 for client in told["clients"])
    table = [line.split() for line in done.out.splitlines() if re.match(r"c\d ", line)]
    for row, client in zip(table, told["clients"], strict=True):
        assert row[0] == client["id"]
        assert [0 if cell == "·" else int(cell) for cell in row[1:11]] == client["train"]
        assert [int(cell) for cell in row[11:]] == [sum(client["train"]), client["val"], client["test"]]
    other = json.loads(command("data", "show", "tiny.yaml", "--json", "--seed", "1", *words).out)
    assert other != told


# The real thing, in a process of its own: few, because each waits for torch.


def mutua_at(folder: Path, *words: str, **given: Any) -> subprocess.Popen[str]:
    program = Path(sys.executable).with_name("mutua")
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm", "MUTUA_DATA": str(folder)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **given}
    # A shell that runs the tests in the background makes them, and all they start, deaf to Ctrl-C.
    hearing = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    return subprocess.Popen([program, *words], cwd=folder, env=environment, text=True, **hearing, **streams)


@pytest.fixture
def place(tmp_path: Path, tiny: dict[str, Any]) -> Path:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny))
    return tmp_path


def test_ctrl_c_in_mid_run(place: Path) -> None:
    with mutua_at(place, "run", "tiny.yaml", "--out", "x", "--set", "rounds=1000000") as process:
        history = place / "x" / "history.csv"
        deadline = time.monotonic() + 60
        while not history.is_file() or history.read_text().count("\n") < 60:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    *progress, line = err.splitlines()
    assert line == "mutua: stopped by Ctrl-C; to go on: mutua run --resume x"
    waiting = "Ctrl-C: finishing what has begun, then saving; once more does not wait"
    told = r"tiny: round \d+/1000000, global [\d.]+ %, clients [\d.]+ %"
    assert all(line == waiting or re.fullmatch(told, line) for line in progress)
    rounds = [int(row["round"]) for row in rows(history)]
    assert rounds == sorted(rounds) and rounds[-1] > 1
    assert int(rows(place / "x" / "ledger.csv")[-1]["round"]) == rounds[-1]


def test_bars_move_in_a_terminal_while_stdout_stays_clean(place: Path) -> None:
    ours, theirs = pty.openpty()
    with mutua_at(place, "run", "tiny.yaml", "--out", "x", "--set", "rounds=3", stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while select.select([ours], [], [], 60)[0]:
            try:
                seen += os.read(ours, 4096)
            except OSError:  # the other end is closed: the process has ended
                break
        out, _ = process.communicate(timeout=30)
    os.close(ours)
    text = seen.decode()
    assert process.returncode == 0 and "\x1b" not in out and out.endswith(SAVED + "\n")
    assert "starting" in text and "round 3/3" in text and "━" in text and "\x1b[2K" in text
    widths = [len(re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", line)) for line in re.split(r"[\r\n]+", text)]
    assert max(widths) <= 80


def test_a_reader_that_goes_away_is_no_traceback(place: Path) -> None:
    with mutua_at(place, "methods") as process:
        assert process.stdout is not None
        process.stdout.close()
        err = process.stderr.read() if process.stderr else ""
    assert process.returncode == 0 and err == ""


def test_a_mistake_in_a_process_of_its_own(place: Path) -> None:
    with mutua_at(place, "run", "tiny.yaml", "--set", "models.global=lenet", "--json") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.startswith(
        "mutua: tiny.yaml: models.global: 'lenet' is not a model; did you mean 'lenet5'? known: "
    )
    assert err.count("\n") == 1


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys; from mutua.cli.process import main; sys.argv = ['mutua', '--help']; main(); "
    code += "sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
