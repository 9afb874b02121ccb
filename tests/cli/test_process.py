"""The command line in a process of its own: few tests, because each waits for torch."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import csv_rows

SAVED = "saved in x\na page of it: mutua report x"


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
    rounds = [int(row["round"]) for row in csv_rows(history)]
    assert rounds == sorted(rounds) and rounds[-1] > 1
    assert int(csv_rows(place / "x" / "ledger.csv")[-1]["round"]) == rounds[-1]


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
