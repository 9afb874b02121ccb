"""Deployments without a network: the organiser's and the sites' folders, and requests that go by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

import mutua
from mutua.deploy.conduct import conduct
from mutua.deploy.organiser import Organiser
from mutua.engines.network import NetworkEngine
from mutua.engines.site import Site
from mutua.engines.site_requests import SiteAnswer, SiteRequest

COLUMNS: dict[str, Any] = {"sex": ["f", "m"], "age": "number", "dose": "number", "visits": "ignore"}
RECIPES: dict[str, dict[str, Any]] = {
    "fml": {"method": "fml", "models": {"global": "linear", "clients": ["linear", "mlp", "lenet5"]}},
    "fedavg": {"method": "fedavg", "models": {"global": "linear"}},
    "fmlu": {"method": "fmlu", "models": {"global": "linear"}},
    "partial": {"method": "fml", "models": {"global": {"name": "mlp", "share": "body"}, "clients": "linear"}},
    "mixture": {"method": "mixture", "models": {"global": "linear"}, "opt_out": {"fraction": 0.4}},
    "labels": {
        "method": "fml",
        "models": {"global": {"name": "mlp", "share": "body"}},
        "clients": [
            {"id": f"c{k}", "data": {"name": "arrays", "path": f"labels{k}.npz"}, "model": model}
            for k, model in enumerate(("linear", "mlp", "lenet5"))
        ],
    },
    "table": {
        "method": "fml",
        "data": {"name": "table", "path": "patients.npz", "target": "sick", "columns": {"sex": ["f", "m"]}},
        "models": {"global": "mlp", "clients": ["linear", "mlp", "res-mlp"]},
    },
    "opted-out rows": {
        "method": "mixture",
        "data": {"name": "table", "path": "patients.npz", "target": "sick", "columns": COLUMNS},
        "models": {"global": "mlp"},
        "opt_out": {"mask": "refused"},
    },
    "values": {
        "method": "fedavg",
        "task": {"kind": "regression", "mean": 50, "std": 10},
        "data": {"name": "table", "path": "patients.npz", "target": "age", "columns": {"sick": "category"}},
        "models": {"global": "mlp"},
    },
    "text": {
        "method": "fml",
        "data": {"name": "text", "path": "said.npz", "text": "said", "target": "opinion", "length": 6},
        "models": {"global": "text-cnn"},
    },
    "pfedbayes": {"method": "pfedbayes", "models": {"global": "linear"}},
    "fedmd": {"method": {"name": "fedmd", "public_epochs": 1, "private_epochs": 1}, "public": {"share": 0.2}},
    "fedh2l": {"method": "fedh2l", "public": {"share": 0.2}},
}
CLIENTS = ("c0", "c1", "c2")


def write_own_labels(place: Path) -> None:
    """Images of which every client has other classes: 0 to 3, 2 to 6, and 7 to 9."""
    source = mutua.load("mnist5k").train
    for k, held in enumerate((range(4), range(2, 7), range(7, 10))):
        mine = np.flatnonzero(np.isin(source.y.numpy(), held))[:60]
        names = np.array([source.classes[c] for c in held])
        y = source.y.numpy()[mine] - held[0]
        np.savez(place / f"labels{k}.npz", x=source.x.numpy()[mine], y=y, classes=names)


def write_tables(place: Path) -> None:
    """A table of patients with missing values, and opinions in words."""
    rng = np.random.default_rng(0)
    sex, age = rng.choice(["f", "m", ""], 120), rng.normal(50, 10, 120)
    dose = np.where(rng.random(120) < 0.2, np.nan, rng.random(120))
    sick = np.where(age + 5 * rng.normal(size=120) > 50, "yes", "no")
    more = {"visits": rng.integers(0, 9, 120), "refused": rng.integers(0, 2, 120)}
    np.savez(place / "patients.npz", sex=sex, age=age, dose=dose, sick=sick, **more)
    words = rng.choice(["good", "bad", "fine", "poor", "never"], (120, 5))
    said = np.array([" ".join(row) for row in words])
    np.savez(place / "said.npz", said=said, opinion=np.where(words[:, 0] == "good", "+", "-"))


@dataclass
class ByHand:
    """A line to sites in this process."""

    sites: Mapping[str, Site]
    before: Callable[[str, SiteRequest], None] = lambda client, request: None
    away: set[str] = field(default_factory=set)

    def here(self) -> set[str]:
        return set(self.sites) - self.away

    def ask(self, requests: Mapping[str, SiteRequest], wait: float) -> dict[str, SiteAnswer]:
        found = {}
        for client, request in requests.items():
            if client not in self.away:
                self.before(client, request)
                answer = self.sites[client].answer(SiteRequest.of(request.header, request.body))
                found[client] = SiteAnswer.of(answer.header, answer.body)
        return found


def go(organiser: Organiser, line: ByHand, folder: Path, **more: Any) -> Any:
    agreed = organiser.agreed
    engine = NetworkEngine(line, organiser.run_id(folder), agreed.checksum, 0)
    return conduct(agreed, engine, folder, **more)


def raw(arrays: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: array.numpy().tobytes() for name, array in arrays.items()}


def assert_same_bytes(organiser: Organiser, line: ByHand, folder: Path, local: Path) -> None:
    assert (folder / "ledger.csv").read_bytes() == (local / "ledger.csv").read_bytes()
    if (local / "global").exists():
        mine, theirs = (load_file(run / "global" / "weights.safetensors") for run in (folder, local))
        assert {n: a.numpy().tobytes() for n, a in mine.items()} == {
            n: a.numpy().tobytes() for n, a in theirs.items()
        }
    for client, site in line.sites.items():
        state = site.store(organiser.run_id(folder)).state
        kept = {group: arrays for group, arrays in state.items() if group.isidentifier() and arrays}
        for group, arrays in kept.items():
            own = load_file(local / "clients" / client / f"{group}.safetensors")
            assert {n: a.numpy().tobytes() for n, a in arrays.items()} == {
                n: a.numpy().tobytes() for n, a in own.items()
            }
        there = {path.stem for path in (local / "clients" / client).glob("*.safetensors")} - {"predictor"}
        assert set(kept) == there
