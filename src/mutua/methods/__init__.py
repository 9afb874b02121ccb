"""Federated methods, each in a file of its own."""

from mutua.methods.base import Hub, Method, Server, names, of, register
from mutua.methods.fedavg import FedAvg, FedProx, FineTuned
from mutua.methods.fedh2l import FedH2L
from mutua.methods.fedmd import FedMD
from mutua.methods.fml import FML
from mutua.methods.fmlu import DML, FMLU
from mutua.methods.independent import Aggregated, Centralised, Independent
from mutua.methods.mixture import MixtureOfExperts

__all__ = [
    "DML",
    "FML",
    "FMLU",
    "Aggregated",
    "Centralised",
    "FedAvg",
    "FedH2L",
    "FedMD",
    "FedProx",
    "FineTuned",
    "Hub",
    "Independent",
    "Method",
    "MixtureOfExperts",
    "Server",
    "names",
    "of",
    "register",
]
