"""The run folder: what is in it, that models come back bit for bit, and that a damaged one is one line."""

import csv
import json
import math
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import mutua
from mutua import InputError, Recipe, RunError
from mutua.methods import base
from mutua.runs import recording
from mutua.runs.execute import execute
from mutua.runs.folder import RunFolder
from mutua.runs.recording import Recorder
from mutua.runs.resuming import ResumedRecorder
from mutua.support import safe_reading
from mutua.support.files import to_json
from mutua.support.folders import dated_folder, fill_folder, new_folder

Finished = Callable[..., tuple[Path, Any]]

# What some methods need beside the tiny recipe.
NEEDS: dict[str, dict[str, Any]] = {
    "fedh2l": {"public": {"share": 0.3}},
    "fedmd": {"public": {"share": 0.3}},
    "aggregated": {"public": {"share": 0.3}},
}
QUICK = {
    "finetuned": {"tune_epochs": 2},
    "mixture": {"mixture_epochs": 2, "gate": {"name": "mlp", "width": 0.05}},
}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


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
    told = [tuple(row.values()) for row in rows(folder / "history.csv")]
    assert told == [tuple("" if v is None else str(v) for v in row) for row in result.history]
    assert list(rows(folder / "history.csv")[0]) == ["round", "client", "model", "split", "metric", "value"]
    told = [tuple(row.values()) for row in rows(folder / "ledger.csv")]
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
    folder, result = finished({"name": name, **QUICK.get(name, {})}, **NEEDS.get(name, {}))
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
    folder, result = finished("fedh2l", **NEEDS["fedh2l"])
    assert len(result.clients[0].state) > 1
    assert [path.name for path in (folder / "clients" / "c0").glob("*.safetensors")] == ["personal.safetensors"]


def test_a_partial_global_has_no_classes_of_its_own(finished: Finished) -> None:
    folder, _ = finished(models={"global": {"name": "mlp", "width": 0.1, "share": "body"}})
    shared = RunFolder.open(folder).shared()
    assert shared.card.share == "body" and shared.card.classes == ()
    assert set(shared.weights) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    adaptor = load_file(folder / "clients" / "c0" / "adaptor.safetensors")
    assert set(adaptor) == {"head.weight", "head.bias"}


# While it runs


def test_history_and_ledger_grow_with_the_rounds(tiny: dict[str, Any], tmp_path: Path) -> None:
    recipe = Recipe.of({**tiny, "rounds": 3})
    folder = Recorder.create("tiny", 0, tmp_path / "run")
    seen: list[tuple[int, int]] = []

    def watch(event: Any) -> None:
        if type(event).__name__ == "Reached":
            seen.append((len(rows(folder.path / "history.csv")), len(rows(folder.path / "ledger.csv"))))
            assert not (folder.path / "run.json").exists()

    result = execute(recipe, recipe.federation(), folder, callbacks=[watch])
    assert len(seen) == 5 and seen == sorted(set(seen))
    assert seen[-1] == (len(result.history), len(result.ledger))


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (KeyboardInterrupt(), "^stopped by Ctrl-C; to go on: mutua run --resume "),
        (KeyboardInterrupt("SIGTERM"), "^stopped by SIGTERM; to go on: mutua run --resume "),
        (RunError("round 1: no luck"), "^round 1: no luck; to go on: mutua run --resume "),
        (
            OSError(28, "No space left on device"),
            "^cannot write to .*: No space left on device; mend that; to go on: ",
        ),
    ],
)
def test_what_stops_a_run_leaves_what_it_had(
    tiny: dict[str, Any], tmp_path: Path, problem: BaseException, said: str
) -> None:
    recipe = Recipe.of({**tiny, "rounds": 3})
    folder = Recorder.create("tiny", 0, tmp_path / "run")

    def stop(event: Any) -> None:
        if type(event).__name__ == "Reached" and event.standing.round == 1:
            raise problem

    with pytest.raises(RunError, match=said) as caught:
        execute(recipe, recipe.federation(), folder, callbacks=[stop])
    assert str(folder.path) in str(caught.value)
    assert {row["round"] for row in rows(folder.path / "history.csv")} == {"0", "1"}
    assert (folder.path / "recipe.yaml").is_file() and not (folder.path / "run.json").exists()


def test_a_full_disk_is_one_line_and_the_history_is_kept(tiny: dict[str, Any], tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the weights do not fit, the history does."""
    recipe = Recipe.of(tiny)
    federation = recipe.federation()
    folder = Recorder.create("tiny", 0, tmp_path / "run")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
    try:
        with pytest.raises(RunError, match=f"^cannot write to {folder.path}: ") as caught:
            execute(recipe, federation, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert {row["round"] for row in rows(folder.path / "history.csv")} == {"0", "1"}
    with pytest.raises(InputError, match=r"the run is not finished; to go on"):
        RunFolder.open(folder.path)


def test_a_mistake_found_late_leaves_no_folder(tiny: dict[str, Any], tmp_path: Path) -> None:
    recipe = Recipe.of({**tiny, "topology": "nothing"})
    with pytest.raises(InputError, match=r"topology"):
        execute(recipe, recipe.federation(), Recorder.create("tiny", 0, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (KeyboardInterrupt(), "^stopped by Ctrl-C$"),
        (OSError(28, "No space left on device"), "^cannot write to .*: No space left on device$"),
    ],
)
def test_a_run_that_had_not_begun_leaves_no_folder_and_cannot_go_on(
    problem: BaseException, said: str, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise problem

    monkeypatch.setattr(Recorder, "write_recipe", stop)
    recipe = Recipe.of(tiny)
    with pytest.raises(RunError, match=said):
        execute(recipe, recipe.federation(), Recorder.create("tiny", 0, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_folder_that_could_not_be_made_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("mutua.support.growing_files.GrowingTable.begin", full)
        with pytest.raises(InputError, match=r"^--out: cannot write to .*run: No space left on device; name ano"):
            Recorder.create("tiny", 0, tmp_path / "run")
    assert Recorder.create("tiny", 0, tmp_path / "run").path.is_dir()


def test_a_folder_whose_run_was_killed_before_it_began_is_used_again(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, run = Recipe.of(tiny), tmp_path / "run"
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(
            "mutua.support.files.AtomicFiles.commit", lambda _: os._exit(9)
        )  # recipe.yaml is half there
        execute(recipe, recipe.federation(), Recorder.create("tiny", 0, run))
    os.waitpid(child, 0)
    left = sorted(path.name for path in run.iterdir())
    assert left == ["history.csv", "ledger.csv", "lock", "participation.csv", "recipe.yaml.aside"]
    with pytest.raises(
        InputError, match=f"no run has begun there; begin one there: mutua run RECIPE --out {run}$"
    ):
        ResumedRecorder(run)
    execute(recipe, recipe.federation(), Recorder.create("tiny", 0, run))
    assert RunFolder.open(run).record.plan.rounds == tiny["rounds"]


@pytest.mark.parametrize(
    "files",
    [{"history.csv": "my,own,table\n"}, {"history.csv": "", "notes": ""}, {"lock": "x" * 30}, {"recipe.yaml": ""}],
)
def test_files_that_are_somebodys_are_never_written_over(files: dict[str, str], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="is there already and not empty"):
        Recorder.create("tiny", 0, tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_a_mistake_in_code_is_traced_and_how_to_go_on_is_said(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder, recipe = Recorder.create("tiny", 0, tmp_path / "run"), Recipe.of({**tiny, "rounds": 2})
    with pytest.raises(ZeroDivisionError) as caught:
        execute(recipe, recipe.federation(), folder, callbacks=[lambda event: 1 / 0])
    assert caught.value.__notes__ == [f"stopped by ZeroDivisionError; to go on: mutua run --resume {folder.path}"]
    assert folder.folder.events.read()[-1]["reason"] == "stopped by ZeroDivisionError"


# Places


def test_a_new_folder_is_new_or_empty(tmp_path: Path) -> None:
    assert new_folder(tmp_path / "a" / "b").is_dir()
    assert new_folder(tmp_path / "a" / "b").is_dir()
    with pytest.raises(InputError, match=r"--out: .*a is there already and not empty; name another or remove it"):
        new_folder(tmp_path / "a")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"--out: .*file is a file; name a folder"):
        new_folder(tmp_path / "file")
    with pytest.raises(InputError, match=r"--out: cannot write to .*sub: Not a directory; name another place"):
        new_folder(tmp_path / "file" / "sub")
    assert (tmp_path / "file").read_text() == "mine"


def test_filling_takes_an_empty_folder_away_again_and_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), fill_folder(tmp_path / "a"):
        1 / 0  # noqa: B018
    assert not (tmp_path / "a").exists()

    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError(28, "No space left on device")

    with (
        pytest.raises(RunError, match=r"cannot write to .*b: No space left"),
        fill_folder(tmp_path / "b") as folder,
    ):
        fail(folder)
    assert (tmp_path / "b" / "half").is_file()


def test_two_runs_of_one_second_have_two_folders(tmp_path: Path) -> None:
    first, second = (Recorder.create("x", 5, under=tmp_path).path for _ in range(2))
    assert first != second and first.name.startswith("x-2") and first.name.endswith("-5")
    assert dated_folder("x", under=tmp_path).parent == tmp_path


def test_so_they_have_where_both_looked_before_either_made_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Path.mkdir

    def other_first(path: Path, *given: Any, **more: Any) -> None:
        monkeypatch.undo()
        make(path)
        make(path, *given, **more)

    monkeypatch.setattr(Path, "mkdir", other_first)
    made = dated_folder("x", under=tmp_path)
    assert made.name.endswith("-2") and len(list(tmp_path.iterdir())) == 2
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match=r"^--out: cannot write to .*nowhere"):
        dated_folder("x", under=tmp_path / "nowhere")


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
    with pytest.raises(InputError, match=r"--client: 'c7' is not in .*; there are c0, c1"):
        RunFolder.open(finished()[0]).client("c7")
    with pytest.raises(InputError, match=r"--client: '\.\./c0' is not in"):
        RunFolder.open(finished()[0]).client("../c0")
    with pytest.raises(InputError, match=r"holds no global model, for method independent has none"):
        RunFolder.open(finished("independent")[0]).shared()


# JSON


def test_json_has_null_for_what_is_no_number() -> None:
    odd = {"a": math.nan, "b": [math.inf, 1.5], "c": (-math.inf, "x"), "d": {"e": None}}
    assert json.loads(to_json(odd)) == {"a": None, "b": [None, 1.5], "c": [None, "x"], "d": {"e": None}}
    assert "\n" not in to_json(odd, indent=None)


def test_a_model_that_has_diverged_leaves_readable_json(finished: Finished) -> None:
    folder, result = finished("independent", optimizer={"lr": 1e6}, rounds=2)
    assert any(row.value is not None and math.isnan(row.value) for row in result.history)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    for path in folder.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=refuse)


def test_a_recipe_in_another_alphabet(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder = Recorder.create("tiny", 0, tmp_path / "Läufe")
    folder.write_recipe(Recipe.of({**tiny, "data": {"name": "arrays", "path": "größe.npz"}}))
    written = yaml.safe_load((folder.path / "recipe.yaml").read_text(encoding="utf-8"))
    assert written["data"]["path"] == "größe.npz"


def test_a_recipe_of_thousands_of_clients_can_be_read_again_or_is_refused(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every client's defaults filled in, a recipe that could be read became one that could not."""
    data = [{"name": "arrays", "path": f"site-{i}.npz"} for i in range(4000)]
    entries = [{"id": f"c{i}", "data": mine, "model": "mlp"} for i, mine in enumerate(data)]
    recipe = Recipe.of({"clients": entries, "method": "fml", "models": {"global": "mlp"}})
    assert Recipe.of(safe_reading.from_yaml(recipe.dump())) == recipe
    monkeypatch.setattr(recording, "LONG_RECIPE", 0)
    monkeypatch.setattr(safe_reading, "MAX_YAML_VALUES", 60)
    done = command("run", "tiny.yaml", "--out", "x")
    assert done.code == 2 and "recipe: filled in with its defaults it could not be read again (" in done.err
    assert "data and partition" in done.err and not (tmp_path / "x").exists()
