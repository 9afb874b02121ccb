"""Objects by "package.module:name": how users name their own models, methods and functions, and what is trusted.

A name runs code: its module is imported, and a model's factory is called. What the user gives (a recipe, an
option, Python) may name any code. A file that somebody else may have written (`reading_untrusted_file`) may not,
unless the user allows that very name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from mutua.errors import InputError, raised_at

ask: Callable[[str], bool] | None = None
"""Asks the user whether to trust a name, where there is a terminal; the command line sets it."""

_shipped_kinds: list[type] = []
ALLOW_IT = "where you trust it, allow that name: --trust-code"
_trusted: set[str] = set()
_refused: set[str] = set()
_untrusted_file: ContextVar[Path | None] = ContextVar("the untrusted file that is being read", default=None)


def trust(*names: str) -> None:
    """Let files that others may have written name this code ("package.module:name"), in this process."""
    for name in names:
        _parts(name, "--trust-code")
        _trusted.add(name)


def trust_shipped_classes(kind: type) -> None:
    """Let any file name subclasses of `kind` that come with mutua."""
    _shipped_kinds.append(kind)


def path_of(thing: Any) -> str:
    """The "package.module:name" of a function or class."""
    return f"{thing.__module__}:{getattr(thing, '__qualname__', '')}"


def trust_object(thing: Any) -> None:
    """Trust the name of a function or class that the user gave as an object: files may name it later."""
    _trusted.add(path_of(thing))


@contextmanager
def reading_untrusted_file(path: Path) -> Iterator[None]:
    """While this file is read, which somebody else may have written: the code that it names must be trusted."""
    before = _untrusted_file.set(path)
    try:
        yield
    finally:
        _untrusted_file.reset(before)


def check_trusted(path: str, field: str) -> None:
    """Refuse code that an untrusted file names and the user has not allowed; what the user names is allowed."""
    _parts(path, field)
    file = _untrusted_file.get()
    if file is None:
        _trusted.add(path)
    if path in _trusted or _is_shipped(path):
        return
    if ask is not None and path not in _refused:
        if ask(f"{file} names code from outside mutua, '{path}'. Import and run it?"):
            _trusted.add(path)
            return
        _refused.add(path)
    raise InputError(
        f"{field}: {file} names code from outside mutua, '{path}'; {ALLOW_IT} {path}, "
        f"in Python mutua.trust('{path}')"
    )


def import_object(path: str, field: str) -> Any:
    """The object at "package.module:name"; an error names `field`."""
    check_trusted(path, field)
    return _get(path, field)


def import_factory(path: str, field: str) -> Any:
    """The model, model class or factory at "package.module:name"; anything else is refused, not called."""
    from torch import nn

    found = import_object(path, field)
    if isinstance(found, nn.Module) or (isinstance(found, type) and issubclass(found, nn.Module)):
        return found
    if isinstance(found, type) or not callable(found):
        what = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
        raise InputError(f"{field}: '{path}' is {what}; give a factory, class or nn.Module")
    made = found
    while isinstance(made, partial):
        made = made.func
    home = getattr(made, "__module__", None)
    if _of_python(str(home)):
        raise InputError(f"{field}: '{path}' is {home}'s, a part of Python; give a factory of models")
    return found


def _parts(path: str, field: str) -> tuple[str, str]:
    module, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), attribute]):
        raise InputError(f"{field}: '{path}' is not of the form 'package.module:name'")
    if _of_python(module):
        raise InputError(f"{field}: '{path}' is a part of Python; name code of your own or of a package")
    return module, attribute


def _of_python(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _is_shipped(path: str) -> bool:
    """Whether it is a model or method class that comes with mutua."""
    if not path.startswith("mutua."):
        return False
    from torch import nn

    found = _get(path, "name")
    kinds = (nn.Module, *_shipped_kinds)
    return isinstance(found, type) and issubclass(found, kinds) and found.__module__[:6] == "mutua."


def _get(path: str, field: str) -> Any:
    module_name, attribute = _parts(path, field)
    try:
        module = _import(module_name)
    except Exception as error:  # whatever a user's module raises while it is read
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        why = f"{kind}{' '.join(str(error).split())}{raised_at(error)}"
        raise InputError(f"{field}: '{path}' cannot be imported: {why}") from error
    if not hasattr(module, attribute):
        raise InputError(f"{field}: '{path}': module {module_name} has no '{attribute}'")
    return getattr(module, attribute)


def _import(name: str) -> ModuleType:
    """A module on the import path, else one in the current folder, which then stays last on that path."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        here = str(Path.cwd())
        if here in sys.path:
            raise
        sys.path.append(here)
        return importlib.import_module(name)


def import_optional(package: str, field: str) -> ModuleType:
    """An optional package; `field` is what needs it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(f"{field}: {package} is not installed; pip install {package}") from None
