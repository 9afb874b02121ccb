"""The command line: all commands by name, and a user's mistake as one line."""

from __future__ import annotations

import re
import sys
import traceback
from typing import Annotated

import typer

from mutua import __version__, errors
from mutua.cli import (
    catalogue,
    data,
    demo,
    deploy,
    ledger,
    reporting,
    running,
    runs,
    studies,
    trained_models,
    watching,
)
from mutua.cli.grouped_help import COMPARE, DEPLOY, FIND, START, USE, GroupedCommands
from mutua.errors import MutuaError, short_of_memory
from mutua.support import signals
from mutua.support.output_streams import surviving_output

TRACEBACK = "--traceback"
QUOTED = "'([^']*)'"

app = typer.Typer(cls=GroupedCommands, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command("demo", rich_help_panel=START)(demo.demo_command)
app.command("run", rich_help_panel=START)(running.run_command)
app.command("watch", rich_help_panel=START)(watching.watch_command)
app.command("compare", rich_help_panel=COMPARE)(studies.compare_command)
app.command("report", rich_help_panel=COMPARE)(reporting.report_command)
app.command("reproduce", rich_help_panel=COMPARE)(studies.reproduce_command)
app.command("predict", rich_help_panel=USE)(trained_models.predict_command)
app.command("join", rich_help_panel=USE)(trained_models.join_command)
app.command("export", rich_help_panel=USE)(trained_models.export_command)
app.command("methods", rich_help_panel=FIND)(catalogue.methods_command)
app.command("models", rich_help_panel=FIND)(catalogue.models_command)
app.add_typer(data.app, name="data", rich_help_panel=FIND)
app.add_typer(runs.app, name="runs", rich_help_panel=FIND)
app.add_typer(deploy.app, name="deploy", rich_help_panel=DEPLOY)
app.add_typer(ledger.app, name="ledger", rich_help_panel=DEPLOY)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    traceback: Annotated[
        bool,
        typer.Option(TRACEBACK, help="Print full tracebacks of errors, also of clients. Anywhere in the command."),
    ] = False,
) -> None:
    """Federated learning for clients that differ in their data, their models and their goals."""
    if version:
        typer.echo(f"mutua {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def command_line() -> None:
    """Do what sys.argv says. A user's mistake is one line on stderr, never a traceback."""
    signals.reset()
    with surviving_output() as lost:
        code = _invoke()
        sys.stdout.flush()
        if lost and not code:
            code = _complain(f"output: cannot be written: {lost[0].strerror}; all else is done", 1)
    if code:
        sys.exit(code)


def _invoke() -> int:
    """Call the command; the exit code."""
    errors.tracebacks = TRACEBACK in sys.argv[1:]
    words = [word for word in sys.argv[1:] if word != TRACEBACK]
    try:
        stopped = app(words, prog_name="mutua", standalone_mode=False) == 130  # how typer reports Ctrl-C
    except MutuaError as error:
        if errors.tracebacks:
            traceback.print_exception(error)
        return _complain(str(error), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        stopped = True
    except Exception as error:
        if signals.interrupted():  # some packages raise other errors when Ctrl-C interrupts their import
            return _complain("stopped by Ctrl-C", 1)
        if short_of_memory(error):
            return _complain("there was no memory left; free some, raise its limit (ulimit), or use less data", 1)
        if not hasattr(error, "format_message"):  # a bug of ours, which a traceback helps to find
            raise
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: say which there are
            typer.echo(error.format_message())
            return 0
        said = _usage(error.format_message())
        command = context.command_path if (context := getattr(error, "ctx", None)) else "mutua"
        return _complain(f"{said}{'' if said.endswith('?') else ';'} see '{command} --help'", 2)
    return _complain("stopped by Ctrl-C", 1) if stopped else 0


def _usage(said: str) -> str:
    """What typer says of a wrong command line, in our words; its versions word it differently."""
    said = said.rstrip(".").replace("Value error, ", "").replace("Input should be", "it must be")
    said = re.sub(r"^No such option '([^']+)'\.?", r"No such option: \1", said)
    if choice := re.search(r"'([^']*)' is not one of ((?:'[^']*'(?:, )?)+)", said):
        return said.replace(
            choice[0], f"'{choice[1]}'; {errors.suggest(choice[1], re.findall(QUOTED, choice[2]))}"
        )
    first, *more = re.split(r"\.? \(?(?=Did you mean |Possible options: )", said)
    known = re.findall(r"--?[\w-]+|(?<=')[^', ]+(?=')", more[0]) if more else []
    return f"{first}; did you mean {' or '.join(map(repr, known))}?" if known else first


def _complain(message: str, code: int) -> int:
    print(f"mutua: {' '.join(message.split())}", file=sys.stderr)
    return code
