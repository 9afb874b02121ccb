"""Tables, pictures and pages made from finished runs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mutua.reports.document import Report as Report
    from mutua.reports.report import compose as compose
    from mutua.reports.study import Study as Study
    from mutua.reports.study import read_study as read_study
    from mutua.reports.tables import Table as Table

# What users import from here. Loaded when first used: the command line needs one module of this package at a time.
_HOMES = {
    "Report": "mutua.reports.document",
    "Study": "mutua.reports.study",
    "Table": "mutua.reports.tables",
    "compose": "mutua.reports.report",
    "read_study": "mutua.reports.study",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mutua.reports' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
