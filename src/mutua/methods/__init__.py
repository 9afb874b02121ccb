"""Federated methods, each in a file of its own, and all that is needed to write another one."""

from mutua.data.samples import Samples
from mutua.errors import InputError, Refused
from mutua.federation.federation import Federation
from mutua.federation.message import Kind, Message, Part, Shares, count, number, weights
from mutua.federation.plan import Plan
from mutua.learning import losses, merging
from mutua.learning.early_stopping import EarlyStopping
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import How, Hub, Method, Server, register, supervised
from mutua.methods.base import method_names as names
from mutua.methods.base import method_of as of
from mutua.methods.fedavg import FedAvg, FedProx, FineTuned
from mutua.methods.fedh2l import FedH2L
from mutua.methods.fedmd import FedMD
from mutua.methods.fml import FML, Mutual
from mutua.methods.fmlu import DML, FMLU
from mutua.methods.independent import Aggregated, Centralised, Independent
from mutua.methods.mixture import MixtureOfExperts
from mutua.methods.participant import Participant

__all__ = [
    "DML",
    "FML",
    "FMLU",
    "Aggregated",
    "Batch",
    "Centralised",
    "EarlyStopping",
    "FedAvg",
    "FedH2L",
    "FedMD",
    "FedProx",
    "Federation",
    "FineTuned",
    "How",
    "Hub",
    "Independent",
    "InputError",
    "Kind",
    "Message",
    "Method",
    "MixtureOfExperts",
    "Models",
    "Mutual",
    "Numbers",
    "Part",
    "Participant",
    "Plan",
    "Refused",
    "Samples",
    "Schedule",
    "Server",
    "Shares",
    "Terms",
    "count",
    "losses",
    "merging",
    "names",
    "number",
    "of",
    "register",
    "supervised",
    "weights",
    "within",
]
