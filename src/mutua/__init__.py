"""Federated learning for clients that differ in their data, their models and their goals."""

from mutua import methods, models
from mutua.data import partitions
from mutua.data.samples import Preprocess, Samples
from mutua.data.splits import Split
from mutua.errors import InputError, MutuaError, Refused, RunError
from mutua.federation import Client, Federation
from mutua.learning.optimizers import SGD, Adam
from mutua.learning.task import Task
from mutua.ledger import Ledger
from mutua.message import Kind, Message
from mutua.methods.base import Method
from mutua.models import Architecture
from mutua.plan import Plan
from mutua.recipe import Recipe
from mutua.result import Result
from mutua.runner import run

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Adam",
    "Architecture",
    "Client",
    "Federation",
    "InputError",
    "Kind",
    "Ledger",
    "Message",
    "Method",
    "MutuaError",
    "Plan",
    "Preprocess",
    "Recipe",
    "Refused",
    "Result",
    "RunError",
    "Samples",
    "Split",
    "Task",
    "methods",
    "models",
    "partitions",
    "run",
]
