"""Whoever reads what is printed may go away: the work goes on, and what could not be printed is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from mutua.support.output_streams import surviving_output

# A method of one's own that prints in a worker, and whose printing would be its failure.
TALKING = """
from mutua.methods import FML

class Talking(FML):
    def train(self, client, brief):
        print("at work", client.id, flush=True)
        return super().train(client, brief)
"""


@pytest.fixture
def place(tmp_path: Path, tiny: dict[str, Any]) -> Path:
    (tmp_path / "talking.py").write_text(TALKING)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({**tiny, "rounds": 3, "method": "talking:Talking"}))
    return tmp_path


def mutua_in(place: Path, shell: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "80", "MUTUA": f"{sys.executable} -m mutua"}
    words = ["bash", "-o", "pipefail", "-c", shell]
    return subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, timeout=120)


def test_a_run_whose_readers_have_gone_goes_on_to_its_end(place: Path) -> None:
    done = mutua_in(place, "$MUTUA run tiny.yaml --out x --workers 2 2>&1 | head -1")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.count("\n") == 1
    record = json.loads((place / "x" / "run.json").read_text())
    events = [json.loads(line) for line in (place / "x" / "events.jsonl").read_text().splitlines()]
    assert record and not [event for event in events if event["event"] == "rejected"]
    assert len([event for event in events if event["event"] == "trained"]) == 6


def test_a_full_disk_behind_stdout_is_one_line_and_the_run_is_saved(place: Path) -> None:
    done = mutua_in(place, "$MUTUA run tiny.yaml --out x --json --workers 1 >/dev/full")
    *_, line = done.stderr.splitlines()
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert line == "mutua: output: cannot be written: No space left on device; all else is done"
    assert (place / "x" / "run.json").is_file()


def test_without_any_streams_no_file_of_the_run_takes_their_place(place: Path) -> None:
    done = mutua_in(place, "$MUTUA run tiny.yaml --out x --workers 2 <&- >&- 2>&-")
    assert done.returncode == 0
    assert (place / "x" / "history.csv").read_text().startswith("round,")
    assert "at work" not in "".join(path.read_text() for path in (place / "x").glob("*.*"))


def test_what_is_printed_when_nobody_reads_is_dropped_for_good(capfd: pytest.CaptureFixture[str]) -> None:
    read, write = os.pipe()
    kept = os.dup(1)
    os.dup2(write, 1)
    os.close(write)
    os.close(read)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", os.fdopen(1, "w", closefd=False))
            with surviving_output() as lost:
                for _ in range(3):
                    print("x" * 10_000, flush=True)
                os.write(1, b"and what a library writes")
        assert lost == []
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def test_a_pipe_that_does_not_wait_is_waited_for() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    got: list[bytes] = []

    def slowly() -> None:
        time.sleep(0.2)
        while data := os.read(read, 2**16):
            got.append(data)

    reader = threading.Thread(target=slowly)
    reader.start()
    with pytest.MonkeyPatch.context() as patch, os.fdopen(write, "w") as stream:
        patch.setattr(sys, "stdout", stream)
        with surviving_output() as lost:
            print("x" * 10**6)
    reader.join()
    assert len(b"".join(got)) == 10**6 + 1 and lost == []


def test_streams_that_are_no_files_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with surviving_output():
        assert sys.stdout is before
        print("seen")
    assert capsys.readouterr().out == "seen\n"


@pytest.mark.parametrize("shell", ["$MUTUA methods | true", "$MUTUA data show tiny.yaml --set method=fml | true"])
def test_other_commands_do_not_mind_either(shell: str, place: Path) -> None:
    done = mutua_in(place, shell)
    assert (done.returncode, done.stderr) == (0, "")
