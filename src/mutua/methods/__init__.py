"""Federated methods, each in a file of its own."""

from mutua.methods.base import Hub, Method, Server, names, of, register
from mutua.methods.fedavg import FedAvg, FedProx, FineTuned
from mutua.methods.fml import FML
from mutua.methods.independent import Centralised, Independent

__all__ = [
    "FML",
    "Centralised",
    "FedAvg",
    "FedProx",
    "FineTuned",
    "Hub",
    "Independent",
    "Method",
    "Server",
    "names",
    "of",
    "register",
]
