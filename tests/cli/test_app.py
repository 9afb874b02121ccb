"""The command line: help, and Ctrl-C before a command is at work."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import mutua
from mutua import Recipe
from mutua.cli.app import app

Command = Callable[..., Any]


def test_version_and_help(command: Command) -> None:
    assert command("--version").out == f"mutua {mutua.__version__}\n"
    for words in ([], ["--help"]):
        done = command(*words)
        assert done.code == 0 and done.err == "" and "..." not in done.out.partition("Start here:")[2]
    for group in ("data", "runs", "deploy", "ledger"):
        assert command(group).out == command(group, "--help").out
        listed = command(group).out.partition("Commands:")[2]
        assert listed and "..." not in listed


def test_help_lists_every_command_in_a_group(command: Command) -> None:
    """By what a newcomer wants to do; a command without a group would be among the others."""
    listed = command("--help").out.partition("--help ")[2]
    groups = {title: re.findall(r"^  ([a-z]+) ", body, re.MULTILINE) for title, body in _parts(listed)}
    assert next(iter(groups)) == "Start here" and groups["Start here"][:2] == ["demo", "run"]
    assert "Commands" not in groups and 4 <= len(groups) <= 7
    assert sorted(name for names in groups.values() for name in names) == sorted(get_command(app).commands)


def _parts(text: str) -> list[tuple[str, str]]:
    found = re.split(r"^(\S.*):$", text, flags=re.MULTILINE)[1:]
    return list(zip(found[::2], found[1::2], strict=True))


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("re", ["report", "reproduce"]),
        ("data ", ["columns", "get", "list", "show"]),
        ("run tiny.yaml --ra", ["--ray-address"]),
        ("join run --how ", ["finetune", "global", "mutual"]),
        ("reproduce fmlu/table", [f"fmlu/table-{n}" for n in (1, 2, 3, 4)]),
        ("predict first --client c", ["c0", "c1"]),
        ("export first --client n", ["north"]),
    ],
)
def test_the_shell_completes(
    command: Command, monkeypatch: pytest.MonkeyPatch, line: str, offered: list[str]
) -> None:
    for place in ("clients/c0", "clients/c1", "newcomers/north"):
        (Path("first") / place).mkdir(parents=True)
        (Path("first") / place / "card.json").touch()
    monkeypatch.setenv("_MUTUA_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"mutua {line}")
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" "))))
    assert sorted(command().out.split()) == offered


def test_completion_is_installed_by_a_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))  # whoever started the tests
    script = command("--show-completion").out
    assert "_MUTUA_COMPLETE=complete_bash" in script and "complete -o default -F _mutua_completion mutua" in script


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
