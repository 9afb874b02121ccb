"""Write docs/reference/commands.md, the command line's reference, from the commands themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from mutua.cli.app import app

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "commands.md"
OPENING = """# Commands

Written from the commands by `tools/command_reference.py`; `mutua COMMAND --help` says the same.

Exit codes: 0 for success, 1 for a run that failed or was stopped, 2 for a mistake in the input. With `--json` a
command prints one JSON object on stdout and nothing else. `--traceback`, anywhere in a command, prints full
tracebacks of errors.
"""


def written() -> str:
    """The whole page."""
    return "\n".join([OPENING, *(_section(*found) for found in _commands(typer.main.get_command(app), "mutua"))])


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command below a group, with what is typed."""
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {word}")
        elif not command.hidden:
            yield f"{name} {word}", command


def _section(name: str, command: Any) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    typed = " ".join([name, *(_argument(param) for param in arguments)])
    about = " ".join(param.help for param in arguments if param.help)
    usage = [f"Typed as `{typed}`. {about}".rstrip(), ""] if arguments else []
    table = ["| option | meaning |", "|---|---|", *map(_row, options), ""] if options else []
    return "\n".join([f"## `{name}`", "", " ".join(command.help.split()), "", *usage, *table])


def _argument(param: Any) -> str:
    metavar = (param.metavar or param.name.upper()) + ("..." if param.nargs == -1 else "")
    return metavar if param.required else f"[{metavar}]"


def _row(param: Any) -> str:
    """Name, value and meaning; put together here, because versions of typer word them differently."""
    value = param.metavar or "|".join(getattr(param.type, "choices", ())) or "N"
    shown = param.show_default and param.default not in (None, False, "", ()) and "Default" not in param.help
    cells = [param.opts[0] if param.is_flag else f"{param.opts[0]} {value}"]
    more = f" Default: {param.default}." if shown else " Required." if param.required else ""
    cells += [f"{param.help.rstrip('.')}.{more}"]
    option, meaning = (cell.replace("|", "\\|") for cell in cells)
    return f"| `{option}` | {meaning} |"


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
