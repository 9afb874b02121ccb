"""The command line: help, and Ctrl-C before a command is at work."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mutua
from mutua import Recipe

Command = Callable[..., Any]


def test_version_and_help(command: Command) -> None:
    assert command("--version").out == f"mutua {mutua.__version__}\n"
    for words in ([], ["--help"]):
        done = command(*words)
        assert done.code == 0 and done.err == ""
        for name in (
            "demo",
            "run",
            "compare",
            "watch",
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
            "--set --seed --engine --ray-address --gpus-per-worker --out --resume --rounds --accept-changes "
            "--data-dir --device --workers --log "
            "--profile --faults --trust-code --json",
        ),
        (
            "compare",
            "--methods --seeds --set --engine --ray-address --gpus-per-worker --out --data-dir --device --workers "
            "--minutes --json",
        ),
        (
            "reproduce",
            "--list --all --scale --seeds --minutes --workers --engine --ray-address --gpus-per-worker --data-dir "
            "--out --write",
        ),
        ("watch", "--host --port --token --open"),
        ("report", "--html --pdf --tables --figures --load-data --data-dir --trust-code"),
        ("join", "--data --model --how --name --seed --out --trust-code --json"),
        ("predict", "--client --data --out --trust-code --json"),
        ("export", "--client --out"),
        ("demo", "--data --out"),
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
