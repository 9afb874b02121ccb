"""Objects by "package.module:name": how users name models, methods and functions of their own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from mutua.errors import InputError


def by_path(path: str, field: str) -> Any:
    """The object at "package.module:name"; `field` is what an error names."""
    module_name, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        raise InputError(f"{field}: '{path}' is not of the form 'package.module:name'")
    try:
        module = _import(module_name)
    except Exception as error:  # whatever a user's module raises while it is read
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise InputError(f"{field}: '{path}' cannot be imported: {kind}{' '.join(str(error).split())}") from error
    if not hasattr(module, attribute):
        raise InputError(f"{field}: '{path}': module {module_name} has no '{attribute}'")
    return getattr(module, attribute)


def _import(name: str) -> ModuleType:
    """A module on the path, else one in the current folder, which then stays last on the path."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        here = str(Path.cwd())
        if here in sys.path:
            raise
        sys.path.append(here)
        return importlib.import_module(name)
