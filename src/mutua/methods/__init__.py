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
from mutua.methods.afl import AFL
from mutua.methods.apfl import APFL
from mutua.methods.base import How, Hub, Method, register, supervised
from mutua.methods.base import method_names as names
from mutua.methods.base import method_of as of
from mutua.methods.cfl import CFL
from mutua.methods.datasharing import DataSharing
from mutua.methods.ditto import Ditto
from mutua.methods.fd import FD
from mutua.methods.fedala import FedALA
from mutua.methods.fedavg import FedAvg, FedProx
from mutua.methods.fedbabu import FedBABU
from mutua.methods.feddf import FedDF
from mutua.methods.fedgkt import FedGKT
from mutua.methods.fedh2l import FedH2L
from mutua.methods.fedkd import FedKD
from mutua.methods.fedmd import FedMD
from mutua.methods.fedopt import FedOpt, Reptile
from mutua.methods.fedper import FedBN, FedPer
from mutua.methods.fedproto import FedProto
from mutua.methods.fedrep import FedRep
from mutua.methods.fedrod import FedRoD
from mutua.methods.fedrolex import FedRolex
from mutua.methods.fedsem import FedSEM
from mutua.methods.finetuned import FineTuned
from mutua.methods.fml import FML, Mutual
from mutua.methods.fmlu import DML, FMLU
from mutua.methods.independent import Aggregated, AloneAgain, Centralised, Independent
from mutua.methods.l2gd import L2GD
from mutua.methods.lgfedavg import LGFedAvg
from mutua.methods.mixture import MixtureOfExperts
from mutua.methods.mocha import Mocha
from mutua.methods.moon import Moon
from mutua.methods.no_regret import NoRegret
from mutua.methods.participant import Participant
from mutua.methods.perfedavg import PerFedAvg
from mutua.methods.pfedbayes import PFedBayes
from mutua.methods.scaffold import Scaffold
from mutua.methods.server import Server
from mutua.models import features
from mutua.models.composite import (
    Composite,
    Gate,
    NearestPrototype,
    Rule,
    Shifted,
    TwoHeads,
    Weighted,
    register_rule,
)

__all__ = [
    "AFL",
    "APFL",
    "CFL",
    "DML",
    "FD",
    "FML",
    "FMLU",
    "L2GD",
    "Aggregated",
    "AloneAgain",
    "Batch",
    "Centralised",
    "Composite",
    "DataSharing",
    "Ditto",
    "EarlyStopping",
    "FedALA",
    "FedAvg",
    "FedBABU",
    "FedBN",
    "FedDF",
    "FedGKT",
    "FedH2L",
    "FedKD",
    "FedMD",
    "FedOpt",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedRolex",
    "FedSEM",
    "Federation",
    "FineTuned",
    "Gate",
    "How",
    "Hub",
    "Independent",
    "InputError",
    "Kind",
    "LGFedAvg",
    "Message",
    "Method",
    "MixtureOfExperts",
    "Mocha",
    "Models",
    "Moon",
    "Mutual",
    "NearestPrototype",
    "NoRegret",
    "Numbers",
    "PFedBayes",
    "Part",
    "Participant",
    "PerFedAvg",
    "Plan",
    "Refused",
    "Reptile",
    "Rule",
    "Samples",
    "Scaffold",
    "Schedule",
    "Server",
    "Shares",
    "Shifted",
    "Terms",
    "TwoHeads",
    "Weighted",
    "count",
    "features",
    "losses",
    "merging",
    "names",
    "number",
    "of",
    "register",
    "register_rule",
    "supervised",
    "weights",
    "within",
]
