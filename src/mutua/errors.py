"""Errors, with messages that say what to change."""

from __future__ import annotations

import errno
import pickle
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

tracebacks = False
"""Whether the command line shows whole tracebacks beside the one line that says what is wrong."""


class MutuaError(Exception):
    """Anything mutua reports in one clear line instead of a traceback."""

    exit_code = 1

    def __str__(self) -> str:
        return line(": ".join(map(str, self.args)))


class InputError(MutuaError):
    """A mistake in what the user gave: the message names the field, the value and the way out."""

    exit_code = 2


class NotInStore(InputError):
    """A model that a method asked a client's store for, and that is not there."""


class RunError(MutuaError):
    """A run that could not continue: the message says where it stopped and what is left."""


class Fault(RunError):
    """A client's work that failed: where, and the reason. Its store is unchanged."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.reason = reason

    @property
    def trace(self) -> str:
        """The whole traceback of what was raised; empty where nothing was."""
        return "".join(traceback.format_exception(self.__cause__)) if self.__cause__ else ""

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle, by which a fault comes from a worker process, would leave out what caused it.
        return _again, (type(self), self.args, _portable(self.__cause__), self.trace)


class Elsewhere(Exception):
    """A traceback from another process, as text: the cause of an error that came from there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Diverged(Fault):
    """A client's work that gave numbers that are not finite; none of them is kept."""


class MachineFault(Fault):
    """A client's work that failed because memory or a process was lost: the machine's failure, not the client's.

    An engine repeats the work, with the same result, before it leaves the client out.
    """


NO_MEMORY = "there was no memory left (use fewer workers)"


def short_of_memory(error: BaseException) -> bool:
    """Whether this error means that no memory was left; libraries say so in several ways."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    said = ("allocate memory", "out of memory", "bad_alloc", "failed to map segment", "start new thread")
    return isinstance(error, RuntimeError | ImportError | OSError) and any(text in str(error) for text in said)


class Refused(MutuaError):
    """A reply or message that is not accepted, with the reason."""


class LeftOut(UserWarning):
    """Clients were left out of rounds of a run, or never trained."""


def line(text: str, most: int = 2000) -> str:
    """Text as one line of at most `most` characters; what cannot be printed is written as an escape."""
    shown = text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def described(error: BaseException) -> str:
    """An error in one line: its kind where it is not ours, what it says, and where in the user's own code."""
    first = (str(error).splitlines() or [""])[0]
    kind = "" if isinstance(error, MutuaError) else f"{type(error).__name__}: "
    return f"{kind}{first}".removesuffix(": ") + raised_at(error)


def raised_at(error: BaseException) -> str:
    """` (my_method.py:12)`: the innermost line that is neither mutua's nor a library's, if any."""
    libraries = str(Path(__file__).parent), sysconfig.get_path("stdlib"), "<"
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [at for at in lines if not at[0].startswith(libraries) and "site-packages" not in Path(at[0]).parts]
    return f" ({_short(own[-1][0])}:{own[-1][1]})" if own else ""


def _short(file: str) -> str:
    """The path from here or, of a file elsewhere, its end: records of a run are shown to others."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else Path(*path.parts[-2:]))


def _portable(error: BaseException | None) -> BaseException | None:
    """The error, where it can be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a user's own exception does when it is copied
        return None
    return error


def _again(kind: type[Fault], args: tuple[str, str], cause: BaseException | None, trace: str) -> Fault:
    """A fault that came from another process."""
    fault = kind(*args)
    if trace:
        fault.__cause__ = Elsewhere(trace) if cause is None else cause
        if cause is not None:
            cause.__cause__ = Elsewhere(trace)
    return fault


_MOST_NAMES = 60
"""An error about a misspelt name lists no more: there may be thousands of clients."""


def suggest(word: object, known: Iterable[str], where: str | None = None) -> str:
    """`did you mean 'lenet5'? known: ...`: the end of every error about a misspelt name.

    `where` says where names are listed that are too many; '' lists nothing.
    """
    import difflib

    names = list(known)
    by_lower = {name.lower(): name for name in reversed(names)}
    close = difflib.get_close_matches(str(word).lower(), by_lower, n=1)
    hint = f"did you mean '{by_lower[close[0]]}'?" if close else ""
    more = [f"... ({len(names)})"] if len(names) > _MOST_NAMES else []
    listed = where if where is not None else f"known: {', '.join([*names[:_MOST_NAMES], *more]) or 'none'}"
    return " ".join(filter(None, [hint, listed]))
