"""What can go wrong, said so that the reader knows what to change."""

from __future__ import annotations

import errno


class MutuaError(Exception):
    """Anything mutua reports in one clear line instead of a traceback."""

    exit_code = 1

    def __str__(self) -> str:
        return line(": ".join(map(str, self.args)))


class InputError(MutuaError):
    """A mistake in what the user gave: the message names the field, the value and the way out."""

    exit_code = 2


class RunError(MutuaError):
    """A run that could not go on: the message says where it stopped and what is left."""


class Fault(RunError):
    """A client's work that came to nothing: where, and the reason. What it keeps is as it was."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.reason = reason


class MachineFault(Fault):
    """A client's work that came to nothing for want of memory or a process: this machine's failure, not its own.

    An engine does the work again, to the same bytes, before it leaves the client out.
    """


NO_MEMORY = "there was no memory left (use fewer workers)"


def short_of_memory(error: BaseException) -> bool:
    """Whether this says, in any of the ways in which it is said, that there was no memory left."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    said = ("allocate memory", "out of memory", "bad_alloc", "failed to map segment", "start new thread")
    return isinstance(error, RuntimeError | ImportError | OSError) and any(text in str(error) for text in said)


class Refused(MutuaError):
    """A message that may not pass: the message says whose, what and why."""


def line(text: str, most: int = 2000) -> str:
    """Text as one line of at most so many characters; what cannot be printed is written as an escape."""
    shown = text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def suggest(word: str, known: list[str], where: str = "") -> str:
    """`did you mean 'lenet5'? known: ...`: the end of an error about a misspelt name; `where` many are listed."""
    import difflib

    close = difflib.get_close_matches(word.lower(), known, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return hint + (where or f"known: {', '.join(known)}")
