"""What distinguishes systems of federated learning, by what methods declare and what a small run of each sends.

The columns are those of Table I of "FedH2L: federated learning with model and statistical heterogeneity", whose
marks are beside ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mutua.errors import InputError
from mutua.federation.message import Kind
from mutua.methods import base
from mutua.methods.base import Method
from mutua.recipe.recipe import Recipe
from mutua.runs.run import run

Trait = Literal["models", "no server", "no weights", "bandwidth", "data"]
TRAITS: dict[Trait, str] = {
    "models": "each client may have a model of its own design; partly: beside a model that is shared",
    "no server": "decentralised: no server computes anything; what clients send goes to the others, or nowhere",
    "no weights": "parameter-free: nothing that is as a model's weights crosses, in either direction",
    "bandwidth": "+: a client sends less than half of what it would send with fedavg",
    "data": "+: made for clients whose data differ",
}
_PUBLISHED = {
    "fedavg": "no no no - -",
    "fedprox": "no no no - +",
    "fml": "partly no no - +",
    "fedgkt": "partly no yes + +",
    "fedmd": "yes no yes + +",
    "afl": "no no no - +",
    "fedsem": "no no no + +",
    "cfl": "no no no - +",
    "fedper": "no no no - +",
    "fedrep": "no no no - +",
    "fedproto": "yes no yes + +",
    "mocha": "partly no no + +",
    "fedh2l": "yes yes yes + +",
}
PUBLISHED: dict[str, dict[Trait, str]] = {
    name: dict(zip(get_args(Trait), marks.split(), strict=True)) for name, marks in _PUBLISHED.items()
}
"""The paper's marks; afl is its FedAgnostic, cfl its FedCluster."""

SMALL_RUN: dict[str, Any] = {
    "data": {"name": "mnist5k", "samples_per_client": 60},
    "partition": {"kind": "rotated", "angles": [0, 45]},
    "models": {"global": "mlp"},
    "rounds": 2,
    "steps": 2,
    "batch_size": 20,
    "device": "cpu",
}
"""The small run: two clients with a domain each, two rounds of two steps."""
NEEDED: dict[str, dict[str, Any]] = {"fedgkt": {"labels_leave": True}}
"""Options without which a method does not run."""
_PARAMETERS = (Kind.WEIGHTS, Kind.CONTROL, Kind.FACTORS)


@dataclass(frozen=True)
class SystemFacts:
    """A method's marks, the paper's if it has any, and how many bytes a client of the small run sends."""

    method: str
    marks: dict[Trait, str]
    published: dict[Trait, str] | None
    bytes_up: float | None
    refused: str = ""
    """Why it did not run, so that its marks are of what it declares alone."""

    @property
    def differences(self) -> dict[Trait, tuple[str, str]]:
        """By column, our mark and the paper's where they differ."""
        told = self.published or {}
        return {of: (mark, told[of]) for of, mark in self.marks.items() if told and told[of] != mark}


def systems(names: Sequence[str] = ()) -> list[SystemFacts]:
    """The facts of these methods, or of all known ones: first those that the paper has, in its order."""
    usual, _ = _sent(base.method_of({"name": "fedavg"}))
    known = base.method_names()
    order = [*(name for name in PUBLISHED if name in known), *(name for name in known if name not in PUBLISHED)]
    return [_facts(name, usual or 0.0) for name in order if not names or name in names]


def _facts(name: str, usual: float) -> SystemFacts:
    method = base.method_of({"name": name, **NEEDED.get(name, {})})
    refused = ""
    try:
        bytes_up, kinds = _sent(method)
    except InputError as error:
        bytes_up, kinds, refused = None, {str(kind) for kind in method.shares.values()}, str(error)
    little = not method.shares if bytes_up is None else bytes_up < usual / 2
    marks: dict[Trait, str] = {
        "models": "no" if not method.own_models else "partly" if method.needs_global else "yes",
        "no server": _yes(not method.pools_data and method.server_does in ("nothing", "relays")),
        "no weights": _yes(not kinds & set(map(str, _PARAMETERS))),
        "bandwidth": "+" if little and not method.pools_data else "-",
        "data": "+" if method.different_data else "-",
    }
    return SystemFacts(name, marks, PUBLISHED.get(name), bytes_up, refused)


def _sent(method: Method) -> tuple[float, set[str]]:
    """By the ledger of the small run: bytes that a client sends per round, and the kinds of all that crosses."""
    more = {"public": {"share": 0.3}} if method.needs_public else {}
    recipe = Recipe.of({**SMALL_RUN, **more, "method": base.section_of(method)})
    result = run(method, recipe.federation(), plan=recipe.plan(), workers=1, progress=False)
    kinds = {str(entry.kind) for entry in result.ledger}
    up = [entry for entry in result.ledger if entry.direction == "up"]
    turns = {(entry.round, entry.client) for entry in up}
    return (sum(entry.bytes for entry in up) / len(turns) if turns else 0.0), kinds


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"
