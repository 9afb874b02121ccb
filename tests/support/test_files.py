"""Files that appear together or not at all, and JSON that every reader accepts."""

import json
import math
from pathlib import Path

import pytest

from mutua.support import files
from mutua.support.files import to_json


def names(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


def test_files_appear_together_or_not_at_all(tmp_path: Path) -> None:
    files.write_file(tmp_path / "old", "old")

    def fill() -> None:
        with files.atomic_files() as made:
            made.write(tmp_path / "old", "new")
            made.write(tmp_path / "sub" / "deep" / "new", b"new")
            assert (tmp_path / "old").read_text() == "old"
            if failing:
                raise OSError(28, "No space left on device")

    failing = True
    with pytest.raises(OSError, match="No space"):
        fill()
    assert names(tmp_path) == {"old"} and (tmp_path / "old").read_text() == "old"
    failing = False
    fill()
    assert names(tmp_path) == {"old", "sub/deep/new"} and (tmp_path / "old").read_text() == "new"


def test_json_has_null_for_what_is_no_number() -> None:
    odd = {"a": math.nan, "b": [math.inf, 1.5], "c": (-math.inf, "x"), "d": {"e": None}}
    assert json.loads(to_json(odd)) == {"a": None, "b": [None, 1.5], "c": [None, "x"], "d": {"e": None}}
    assert "\n" not in to_json(odd, indent=None)
