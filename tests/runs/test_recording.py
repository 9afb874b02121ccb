"""A run is recorded while it goes on; whatever stops it leaves what it had, or nothing if it had not begun."""

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import csv_rows
from mutua import InputError, Recipe, RunError
from mutua.runs import recording
from mutua.runs.execute import execute
from mutua.runs.folder import RunFolder
from mutua.runs.recording import Recorder
from mutua.runs.resuming import ResumedRecorder
from mutua.support import safe_reading

Finished = Callable[..., tuple[Path, Any]]


def test_history_and_ledger_grow_with_the_rounds(tiny: dict[str, Any], tmp_path: Path) -> None:
    recipe = Recipe.of({**tiny, "rounds": 3})
    folder = Recorder.create("tiny", 0, tmp_path / "run")
    seen: list[tuple[int, int]] = []

    def watch(event: Any) -> None:
        if type(event).__name__ == "Reached":
            seen.append((len(csv_rows(folder.path / "history.csv")), len(csv_rows(folder.path / "ledger.csv"))))
            assert not (folder.path / "run.json").exists()

    result = execute(recipe, recipe.federation(), folder, callbacks=[watch])
    assert len(seen) == 5 and seen == sorted(set(seen))
    assert seen[-1] == (len(result.history), len(result.ledger))


def test_the_events_say_what_clients_are_and_what_their_replies_counted(finished: Finished) -> None:
    events = RunFolder(finished("fedavg", rounds=2)[0]).events.read()
    assert events[0]["models"] == {"c0": "mlp×0.1", "c1": "mlp×0.1"}
    assert events[0]["samples"] == {"c0": 14, "c1": 14}
    merged = [(event["round"], event["weights"]) for event in events if event["event"] == "merged"]
    assert merged == [(1, {"c0": 0.5, "c1": 0.5}), (2, {"c0": 0.5, "c1": 0.5})]


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (KeyboardInterrupt(), "^stopped by Ctrl-C; to go on: mutua run --resume "),
        (KeyboardInterrupt("SIGTERM"), "^stopped by SIGTERM; to go on: mutua run --resume "),
        (RunError("round 1: no luck"), "^round 1: no luck; to go on: mutua run --resume "),
        (
            OSError(28, "No space left on device"),
            "^cannot write to .*: No space left on device; fix that; to go on: ",
        ),
    ],
)
def test_what_stops_a_run_leaves_what_it_had(
    tiny: dict[str, Any], tmp_path: Path, problem: BaseException, said: str
) -> None:
    recipe = Recipe.of({**tiny, "rounds": 3})
    folder = Recorder.create("tiny", 0, tmp_path / "run")

    def stop(event: Any) -> None:
        if type(event).__name__ == "Reached" and event.run_state.round == 1:
            raise problem

    with pytest.raises(RunError, match=said) as caught:
        execute(recipe, recipe.federation(), folder, callbacks=[stop])
    assert str(folder.path) in str(caught.value)
    assert {row["round"] for row in csv_rows(folder.path / "history.csv")} == {"0", "1"}
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
    assert {row["round"] for row in csv_rows(folder.path / "history.csv")} == {"0", "1"}
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
