"""Federated learning for clients that differ in their data, their models and their goals."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mutua import methods as methods
    from mutua import models as models
    from mutua.data import partitions as partitions
    from mutua.data.samples import Preprocess as Preprocess
    from mutua.data.samples import Samples as Samples
    from mutua.data.sources import load as load
    from mutua.data.splits import Split as Split
    from mutua.engines.faults import Faults as Faults
    from mutua.errors import InputError as InputError
    from mutua.errors import MutuaError as MutuaError
    from mutua.errors import Refused as Refused
    from mutua.errors import RunError as RunError
    from mutua.federation.client import Client as Client
    from mutua.federation.federation import Federation as Federation
    from mutua.federation.ledger import Ledger as Ledger
    from mutua.federation.message import Kind as Kind
    from mutua.federation.message import Message as Message
    from mutua.federation.plan import Plan as Plan
    from mutua.federation.privacy import Privacy as Privacy
    from mutua.learning import merging as merging
    from mutua.learning import tasks as tasks
    from mutua.learning.optimizers import SGD as SGD
    from mutua.learning.optimizers import Adam as Adam
    from mutua.learning.task_behaviour import Task as Task
    from mutua.methods.base import Method as Method
    from mutua.models import Architecture as Architecture
    from mutua.recipe.recipe import Recipe as Recipe
    from mutua.reports.writing import report as report
    from mutua.rounds import events as events
    from mutua.runs.result import Result as Result
    from mutua.runs.run import run as run
    from mutua.runs.saved_run import SavedRun as SavedRun
    from mutua.runs.saved_run import load_run as load_run
    from mutua.studies.comparison import Comparison as Comparison
    from mutua.studies.comparison import compare as compare
    from mutua.support.importing import trust as trust

# The public surface, by home. Loaded when first used, so that `import mutua` costs next to nothing.
_HOMES = {
    "methods": "mutua.methods",
    "models": "mutua.models",
    "Comparison": "mutua.studies.comparison",
    "compare": "mutua.studies.comparison",
    "partitions": "mutua.data.partitions",
    "Preprocess": "mutua.data.samples",
    "Samples": "mutua.data.samples",
    "load": "mutua.data.sources",
    "Split": "mutua.data.splits",
    "InputError": "mutua.errors",
    "MutuaError": "mutua.errors",
    "Refused": "mutua.errors",
    "RunError": "mutua.errors",
    "Faults": "mutua.engines.faults",
    "Client": "mutua.federation.client",
    "Federation": "mutua.federation.federation",
    "trust": "mutua.support.importing",
    "merging": "mutua.learning.merging",
    "SGD": "mutua.learning.optimizers",
    "Adam": "mutua.learning.optimizers",
    "Task": "mutua.learning.task_behaviour",
    "tasks": "mutua.learning.tasks",
    "Ledger": "mutua.federation.ledger",
    "Kind": "mutua.federation.message",
    "Message": "mutua.federation.message",
    "Method": "mutua.methods.base",
    "Architecture": "mutua.models",
    "SavedRun": "mutua.runs.saved_run",
    "load_run": "mutua.runs.saved_run",
    "Plan": "mutua.federation.plan",
    "Privacy": "mutua.federation.privacy",
    "Recipe": "mutua.recipe.recipe",
    "report": "mutua.reports.writing",
    "events": "mutua.rounds.events",
    "Result": "mutua.runs.result",
    "run": "mutua.runs.run",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        from mutua.errors import suggest

        raise AttributeError(
            f"module 'mutua' has no attribute '{name}'; {suggest(name, __all__, 'see dir(mutua)')}"
        )
    home = import_module(_HOMES[name])
    found = getattr(home, name, home)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
