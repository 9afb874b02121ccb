"""New folders, dated folders, and folders that are removed again if they stay empty."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mutua import InputError, RunError
from mutua.runs.recording import Recorder
from mutua.support.folders import dated_folder, fill_folder, new_folder

Finished = Callable[..., tuple[Path, Any]]


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
