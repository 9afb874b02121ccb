"""`mutua report`: the files it writes, and its errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reading_reports import Runs


def test_the_command_writes_what_it_is_asked_for(
    finished: Runs, tmp_path: Path, command: Callable[..., Any]
) -> None:
    shutil.copytree(finished("fml", rounds=2)[0], "run")
    done = command("report", "run")
    assert (done.code, done.out, done.err) == (0, "run/report.html\n", "")
    assert Path("run/report.html").read_text().startswith("<!DOCTYPE html>")
    Path("run/report.html").unlink()
    done = command("report", "run", "--tables", "tables", "--figures", "figures", "--pdf", "a/b.pdf")
    files = set(done.out.splitlines())
    assert all(Path(file).stat().st_size > 40 for file in files) and not Path("run/report.html").exists()
    assert {
        f"tables/{name}.{end}" for name in ("accuracies", "clients", "left") for end in ("tex", "md", "csv")
    } <= files
    for name in ("curve-predictor", "clients-fml", "labels", "trade-off-global"):
        assert Path(f"figures/{name}.svg").read_bytes().startswith(b"<?xml")
        assert Path(f"figures/{name}.pdf").read_bytes().startswith(b"%PDF")


def test_mistakes_are_one_line(command: Callable[..., Any], finished: Runs, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    folder, _ = finished("fml", rounds=2)
    for words, said in (
        (["nowhere"], "RUN: nowhere is not a folder; give one that mutua named"),
        (["empty"], "RUN: empty holds no finished run"),
        ([folder, "--html", "file/a.html"], "--html: cannot write to file/a.html"),
        ([folder, "--tables", "file"], "--tables: cannot write to file/"),
        ([folder, "--figures", "file"], "--figures: cannot write to file/"),
    ):
        done = command("report", *words)
        assert done.code == 2 and done.out == "" and said in done.err and done.err.count("\n") == 1
