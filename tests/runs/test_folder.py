"""The run folder: what is in it, that models come back bit for bit, and that a damaged one is one line."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from safetensors.torch import load_file, save_file

import mutua
from conftest import csv_rows
from method_needs import needs_of
from mutua import InputError, Recipe
from mutua.methods import base
from mutua.runs.execute import execute
from mutua.runs.folder import RunFolder
from mutua.runs.recording import Recorder

Finished = Callable[..., tuple[Path, Any]]

QUICK = {
    "finetuned": {"tune_epochs": 2},
    "no-regret": {"tune_epochs": 2},
    "mixture": {"mixture_epochs": 2, "gate": {"name": "mlp", "width": 0.05}},
}


def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


# What is in it


def test_the_files(finished: Finished) -> None:
    folder, _ = finished()
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {
        "recipe.yaml",
        "run.json",
        "history.csv",
        "ledger.csv",
        "participation.csv",
        "events.jsonl",
        "lock",
        "checkpoints/000002.json",
        "checkpoints/server/000002.safetensors",
        "checkpoints/clients/c0/000002.safetensors",
        "checkpoints/clients/c1/000002.safetensors",
        "global/card.json",
        "global/weights.safetensors",
        *(
            f"clients/c{k}/{name}"
            for k in (0, 1)
            for name in ("card.json", "confusion.json", "personal.safetensors")
        ),
    }


def test_the_recipe_runs_again_to_the_same_bytes(finished: Finished, tmp_path: Path) -> None:
    folder, _ = finished()
    again = Recipe.load(folder / "recipe.yaml")
    execute(again, again.federation(), Recorder.create("again", 0, tmp_path / "again"))
    for name in ("recipe.yaml", "history.csv", "ledger.csv", "global/weights.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name
    for name in ("personal.safetensors", "card.json", "confusion.json"):
        place = Path("clients") / "c1" / name
        assert (tmp_path / "again" / place).read_bytes() == (folder / place).read_bytes(), name


def test_history_and_ledger_are_the_results(finished: Finished) -> None:
    folder, result = finished()
    told = [tuple(row.values()) for row in csv_rows(folder / "history.csv")]
    assert told == [tuple("" if v is None else str(v) for v in row) for row in result.history]
    assert list(csv_rows(folder / "history.csv")[0]) == ["round", "client", "model", "split", "metric", "value"]
    told = [tuple(row.values()) for row in csv_rows(folder / "ledger.csv")]
    assert told == [tuple(map(str, entry)) for entry in result.ledger]


def test_the_record(finished: Finished) -> None:
    folder, result = finished("fedavg")
    record = json.loads((folder / "run.json").read_text())
    assert record["method"] == {
        "name": "fedavg",
        "combine": {"name": "mean"},
        "max_norm_ratio": None,
        "weights": "samples",
        "serve": "global",
    }
    assert record["summary"] == json.loads(json.dumps(result.summary()))
    assert record["plan"]["batch_size"] == 7 and record["plan"]["epochs"] == 1
    found = record["versions"]
    assert (found["torch"], found["mutua"], found["pillow"]) == (
        torch.__version__,
        mutua.__version__,
        PIL.__version__,
    )
    assert found["processor"].endswith(torch.backends.cpu.get_cpu_capability())
    opened = RunFolder.open(folder)
    assert opened.plan == result.job.plan and opened.method == result.job.method


def test_a_card_says_what_the_model_is_expects_and_predicts(finished: Finished) -> None:
    folder, result = finished()
    card = json.loads((folder / "clients" / "c0" / "card.json").read_text())
    assert card.pop("accuracy") == result.clients[0].accuracy()
    assert card == {
        "architecture": {"name": "mlp", "width": 0.1},
        "input": [1, 28, 28],
        "dtype": "uint8",
        "classes": list("0123456789"),
        "preprocess": {"scale": 1 / 255, "mean": [0.1307], "std": [0.3081]},
        "formula": "(x * scale - mean) / std, by channel",
        "weights": "personal.safetensors",
        "share": "all",
        "client": "c0",
    }


def test_the_confusion_adds_up_to_the_test_samples(finished: Finished) -> None:
    folder, result = finished()
    table = json.loads((folder / "clients" / "c0" / "confusion.json").read_text())
    counts = torch.zeros(10, 10)
    for true, predicted, count in table["cells"]:
        counts[true, predicted] = count
    assert np.array_equal(result.clients[0].confusion(), counts.numpy())
    assert table["classes"] == list("0123456789")
    assert counts.sum(1).tolist() == result.clients[0].client.test.counts().tolist()
    assert counts.trace() / counts.sum() == pytest.approx(result.clients[0].accuracy())


@pytest.mark.parametrize("name", base.method_names())
def test_every_methods_models_come_back_as_they_served(finished: Finished, name: str) -> None:
    given = {"method": {"name": name, **QUICK.get(name, {})}, **needs_of(name)}
    folder, result = finished(given.pop("method"), **given)
    run = RunFolder.open(folder)
    for client in result.clients:
        x = client.client.test.x
        saved = run.client(client.id).predictor()
        assert torch.equal(saved(x), client.predictor(x)), client.id
        assert saved.classes == client.predictor.classes
    if result.global_state is not None:
        stored = load_file(folder / "global" / "weights.safetensors")
        assert stored.keys() == result.global_state.keys()
        assert all(torch.equal(stored[key], value) for key, value in result.global_state.items())
    else:
        assert not (folder / "global").exists()


def test_only_models_are_kept(finished: Finished) -> None:
    """What a method remembers beside its models (optimizers' state, gradients) is not a model."""
    folder, result = finished("fedh2l", **needs_of("fedh2l"))
    assert len(result.clients[0].state) > 1
    assert [path.name for path in (folder / "clients" / "c0").glob("*.safetensors")] == ["personal.safetensors"]


def test_a_partial_global_has_no_classes_of_its_own(finished: Finished) -> None:
    folder, _ = finished(models={"global": {"name": "mlp", "width": 0.1, "share": "body"}})
    shared = RunFolder.open(folder).shared()
    assert shared.card.share == "body" and shared.card.classes == ()
    assert set(shared.weights) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    adaptor = load_file(folder / "clients" / "c0" / "adaptor.safetensors")
    assert set(adaptor) == {"head.weight", "head.bias"}


def test_a_model_that_has_diverged_leaves_readable_json(finished: Finished) -> None:
    folder, result = finished("independent", optimizer={"lr": 1e6}, rounds=2)
    assert any(row.value is not None and math.isnan(row.value) for row in result.history)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    for path in folder.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=refuse)


# Reading what a stranger sent


def damage_record(folder: Path, **changes: Any) -> None:
    path = folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def damage_card(folder: Path, **changes: Any) -> None:
    path = folder / "clients" / "c0" / "card.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def weights(folder: Path) -> Path:
    return folder / "clients" / "c0" / "personal.safetensors"


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no json": (lambda f: (f / "clients/c0/card.json").write_text("{"), "card.json cannot be read"),
    "binary": (lambda f: (f / "clients/c0/card.json").write_bytes(b"\xff\xfe\x00"), "card.json cannot be read"),
    "a list": (lambda f: (f / "clients/c0/card.json").write_text("[1]"), r"it must be keys and values"),
    "empty": (lambda f: (f / "clients/c0/card.json").write_text("{}"), "architecture: missing"),
    "deep": (lambda f: (f / "clients/c0/card.json").write_text("[" * 10**5), "card.json cannot be read"),
    "no classes": (lambda f: damage_card(f, classes=[]), "RUN: "),
    "classes a number": (lambda f: damage_card(f, classes=3), "classes: 3; it must be a list"),
    "input": (lambda f: damage_card(f, input=[1, -28, 28]), "input.1: -28; it must be above 0"),
    "no input": (lambda f: damage_card(f, input=[]), "input: "),
    "another input": (lambda f: damage_card(f, input=[1, 20, 20]), "weights and card do not fit"),
    "type": (lambda f: damage_card(f, dtype="float64"), "dtype: 'float64'; did you mean 'float32'"),
    "channels": (lambda f: damage_card(f, preprocess={"mean": [0, 0]}), "preprocess.mean: 2 numbers for 1 ch"),
    "traversal": (lambda f: damage_card(f, weights="../c1/personal.safetensors"), "weights: '../c1/personal"),
    "absolute": (lambda f: damage_card(f, weights="/etc/passwd"), "weights: '/etc/passwd'"),
    "missing weights": (lambda f: weights(f).unlink(), "personal.safetensors cannot be read"),
    "half weights": (lambda f: weights(f).write_bytes(weights(f).read_bytes()[:999]), "cannot be read"),
    "no weights": (lambda f: weights(f).write_text("hello"), "personal.safetensors cannot be read"),
    "others": (lambda f: save_file({"a": torch.zeros(2)}, weights(f)), "weights and card do not fit"),
    "model": (lambda f: damage_card(f, architecture={"name": "mpl"}), "'mpl' is not a model; did you mean 'mlp'"),
    "width": (lambda f: damage_card(f, architecture={"name": "mlp", "width": 1}), "weights and card do not fit"),
    "own": (lambda f: damage_card(f, architecture={"name": "no_such.nets:build"}), "names code from outside"),
    "odd": (lambda f: damage_card(f, architecture={"name": "mixture"}), "weights and card do not fit"),
    "unnamed": (lambda f: damage_card(f, architecture={}), "name: missing"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_client_is_one_line(finished: Finished, tmp_path: Path, kind: str) -> None:
    harm, said = DAMAGE[kind]
    folder = copied(finished()[0], tmp_path)
    harm(folder)
    with pytest.raises(InputError, match=said) as caught:
        RunFolder.open(folder).client("c0").predictor()
    assert str(caught.value).startswith("RUN: ") and str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": {"name": "fmll"}}, "method.name: 'fmll' is not a method; did you mean 'fml'"),
        ({"method": {"name": "fml", "alpha": 7}}, "method.alpha: 7 is out of range"),
        ({"method": "fml"}, "method: 'fml'; it must be keys and values"),
        ({"plan": {"rounds": -1}}, "plan.rounds: -1; it must be at least 0"),
        ({"plan": None}, "plan: nothing; it must be keys and values"),
        ({"summary": []}, "summary: "),
    ],
)
def test_a_damaged_record_is_one_line(
    finished: Finished, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    folder = copied(finished()[0], tmp_path)
    damage_record(folder, **changes)
    with pytest.raises(InputError, match=said) as caught:
        _ = RunFolder.open(folder).method
    assert str(caught.value).startswith(f"RUN: {folder}") and "\n" not in str(caught.value)


def test_what_a_newer_mutua_put_in_is_left_alone(finished: Finished, tmp_path: Path) -> None:
    folder = copied(finished()[0], tmp_path)
    damage_record(folder, mood="good")
    damage_card(folder, colour="blue")
    assert RunFolder.open(folder).method.name == "fml"
    assert RunFolder.open(folder).client("c0").predictor().classes == tuple("0123456789")


def test_what_is_not_a_run(finished: Finished, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"RUN: .*nothing is not a folder; give the folder that 'mutua run' named"
    ):
        RunFolder.open(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"RUN: .* has no run\.json: it is not a finished run's folder"):
        RunFolder.open(tmp_path)
    with pytest.raises(InputError, match=r"--client: 'c7' is not in .*; known: c0, c1"):
        RunFolder.open(finished()[0]).client("c7")
    with pytest.raises(InputError, match=r"--client: '\.\./c0' is not in"):
        RunFolder.open(finished()[0]).client("../c0")
    with pytest.raises(InputError, match=r"has no global model, because method independent has none"):
        RunFolder.open(finished("independent")[0]).shared()
