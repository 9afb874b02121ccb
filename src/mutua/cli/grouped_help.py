"""Help that lists commands in groups, as plain lines: they fit a narrow terminal and a screen reader."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

# By what a user wants to do; `rich_help_panel` is where typer keeps a command's group.
START = "Start here"
COMPARE = "Compare and report"
USE = "Use the models of a run"
FIND = "Find out what there is"
DEPLOY = "Run a real federation"
OTHER = "Commands"
_WHOLE = 1000
"""Characters: the whole first sentence of a command, which typer would cut."""


class GroupedCommands(TyperGroup):
    """A command with commands, whose help lists them by group."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands group by group."""
        found: dict[str, list[tuple[str, str]]] = {of: [] for of in (START, COMPARE, USE, FIND, DEPLOY, OTHER)}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                group = getattr(command, "rich_help_panel", None)
                found[group if group in found else OTHER].append((name, command.get_short_help_str(_WHOLE)))
        for group, rows in found.items():
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)
