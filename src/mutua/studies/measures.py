"""Measures: numbers of a finished run, by name, as published tables and claims use them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any, NamedTuple, Protocol, TypeVar

from mutua.errors import InputError, suggest
from mutua.federation.ledger import Direction, Ledger
from mutua.federation.plan import Plan
from mutua.learning.headline import METRICS, Headline
from mutua.methods.base import Method, recipe_name
from mutua.recipe.recipe import Recipe
from mutua.rounds.history import History
from mutua.runs.folder import RunFolder
from mutua.runs.result import Result
from mutua.studies.paired_clients import below, by_domain, worst_tenth
from mutua.support.configuration import PathLike

_CURVES = ("global", "predictor", "global_own")
"""What is measured at every evaluation, so that it can reach a value or settle down."""
ABOUT = {
    "global": "the global on the common test set",
    "predictor": "the clients' predictors on their own test data, mean over clients",
    "global_own": "the global on the clients' own test data, mean over clients",
    "wdp": "the predictors within their own domains, mean over clients",
    "cdp": "the predictors across the other domains, mean over clients",
    "acc": "the predictors over all domains, mean over clients",
    "worst": "the worst client's predictor on its own test data",
    "worst_decile": "the predictors of the worst tenth of the clients, mean over these",
    "spread_clients": "standard deviation over clients of their predictors' accuracy",
    "better_off": "share of clients whose predictor is better than the same client's alone",
    "below_alone": "share of clients worse than alone by over a point and one standard error, paired by sample",
    "rounds_to": "rounds until a curve first reaches x percent: rounds_to(80), rounds_to(80, predictor)",
    "bytes_to": "bytes that all clients sent until then: bytes_to(80), bytes_to(80, predictor)",
    "spread_last_20": "standard deviation over a curve's last 20 evaluations: spread_last_20(predictor)",
    "bytes_up": "bytes that a client sends per round",
    "bytes_down": "bytes that a client receives per round",
    "cpu_seconds": "CPU seconds of the whole run, evaluations included",
}
_OF_CLIENTS = tuple(ABOUT)[1 : list(ABOUT).index("better_off") + 1]
"""Measures that may name clients: acc(photo), predictor(c0 c1) is the mean of two."""
BESIDE_ALONE = ("better_off", "below_alone")  # which need the same clients' run alone
REACHING = ("rounds_to", "bytes_to")
COUNTS = (*REACHING, "bytes_up", "bytes_down", "cpu_seconds")
"""Measures that are counted; the others are fractions, printed as percent."""
_WAYS: tuple[Direction, ...] = ("up", "down")
_CALL = re.compile(r"^([a-z_0-9]+)(?:\((.*)\))?$")


class Measure(NamedTuple):
    """A measure and its arguments."""

    name: str
    x: float = 0.0
    curve: str = "global"
    clients: tuple[str, ...] = ()

    @staticmethod
    def of(text: object) -> Measure:
        """Read a measure as it is written, such as `acc`, `predictor(c0 c1)` or `rounds_to(80, predictor)`."""
        found = _CALL.match(text) if isinstance(text, str) else None
        if found is None or found[1] not in ABOUT:
            raise InputError(f"measure: {text!r} is not a measure; {suggest(str(text), list(ABOUT))}")
        name, given = found[1], (found[2] or "").replace(",", " ").split()
        if name in _OF_CLIENTS:
            return Measure(name, clients=tuple(given))
        x = 0.0
        if name in REACHING:
            with suppress(ValueError):
                x = float(given.pop(0) if given else 0)
            if not 1 < x <= 100:
                raise InputError(f"measure: {text!r} needs an accuracy in percent, such as {name}(80)")
        curve = given.pop(0) if given and name in (*REACHING, "spread_last_20") else "global"
        if given or curve not in _CURVES:
            raise InputError(f"measure: {text!r}; {name} is {ABOUT[name]}; curves are {', '.join(_CURVES)}")
        return Measure(name, x, curve)

    @property
    def unit(self) -> float:
        """What a value is multiplied by where it is printed."""
        return 1.0 if self.name in COUNTS else 100.0


@dataclass(frozen=True)
class RunNumbers:
    """The numbers of a finished run, read from its folder when they are asked for."""

    path: PathLike

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What run.json says of the results."""
        return RunFolder.open(self.path).record.summary

    @cached_property
    def _rows(self) -> tuple[History, Ledger]:
        return RunFolder.open(self.path).finished_rows()

    @property
    def headline(self) -> Headline:
        """The metric that all its numbers are of: accuracy, unless its task has another."""
        return Headline.of(self.summary)

    @property
    def history(self) -> History:
        """What was measured."""
        return self._rows[0]

    @property
    def ledger(self) -> Ledger:
        """What crossed."""
        return self._rows[1]

    def by_client(self, name: str) -> dict[str, float]:
        """Each client's number, of the evaluation that the run selects; clients that have none are left out."""
        if name in ("wdp", "cdp", "acc"):
            found = {client: value for client, *of, value in self.rows if of == ["predictor", "test", name]}
        else:
            model = "global" if name == "global_own" else "predictor"
            metric = self.headline.metric
            found = {client["id"]: client[metric][model] for client in self.summary["clients"]}
        out = {"mean"} if name == "global_own" else {"mean"} | self.untrained
        return {client: value for client, value in found.items() if client not in out and value is not None}

    @cached_property
    def untrained(self) -> set[str]:
        """Clients that serve with a model that was never trained: left out of all numbers over clients."""
        return {client["id"] for client in self.summary["clients"] if not client.get("trained", True)}

    @cached_property
    def rows(self) -> list[tuple[str, str, str, str, float | None]]:
        """Client, model, split, metric and value, of the evaluation that the run selects; bytes of the whole run.

        `mean` is the mean over clients, `global` the global on the common test set.
        """
        keys = dict.fromkeys(row[1:5] for row in self.history if row.split != "train")
        selected = partial(self.history.selected, self.summary["selection"])
        found: dict[tuple[str, str, str, str], float | None] = {key: selected(*key) for key in keys}
        for client in self.summary["clients"]:
            for way in _WAYS:
                found[client["id"], "", "", f"bytes_{way}"] = self.ledger.bytes(way, client["id"])
        means: dict[tuple[str, str, str], list[float]] = {}
        for (client, *of), value in found.items():
            counts = client != "global" and (of[0] != "predictor" or client not in self.untrained)
            if counts and value is not None:
                means.setdefault((of[0], of[1], of[2]), []).append(value)
        every = [(*key, value) for key, value in found.items()]
        return [*every, *(("mean", *key, fmean(values)) for key, values in means.items())]

    @property
    def cpu_seconds(self) -> float | None:
        """What it took of the processes that it had to itself; None where it shared one, as `mutua run` does."""
        told = [event["seconds"] for event in RunFolder(self.path).events.read() if event["event"] == "processed"]
        return sum(told) if told else None

    @property
    def validated(self) -> float | None:
        """The clients' predictors on their own validation data: the mean over those that count."""
        metric = self.headline.metric
        found = [v for who, *of, v in self.rows if who == "mean" and of == ["predictor", "val", metric]]
        return found[0] if found else None

    def curve(self, name: str, among: Collection[str] | None = None) -> list[tuple[int, float]]:
        """By round, the global on the common test set or the mean over clients, `among` these, on their own."""
        if name == "global":
            return self.history.global_curve()
        without = None if among is None else {client["id"] for client in self.summary["clients"]} - {*among}
        served = name == "predictor"
        return self.history.served_curve(without) if served else self.history.curve("global", without=without)

    def measure(
        self, asked: Measure, alone: RunNumbers | None = None, among: Collection[str] | None = None
    ) -> float | None:
        """One number, None where the run does not have it; `alone` is the run of the same clients alone.

        Numbers over clients are over all that count, or over those `among` these.
        """
        match asked.name:
            case "global":
                return self.summary["global"][self.headline.metric]  # type: ignore[no-any-return]
            case "rounds_to" | "bytes_to":
                if not self.headline.in_percent:
                    raise InputError(
                        f"measure: {asked.name} needs a percentage; {self.headline.name} is not one: leave it out"
                    )
                round = next((at for at, value in self.curve(asked.curve, among) if value >= asked.x / 100), None)
                return None if round is None else self._spent(asked, round)
            case "spread_last_20":
                last = [value for round, value in self.curve(asked.curve, among) if round][-20:]
                return stdev(last) if len(last) == 20 else None  # fewer would include the start
            case "bytes_up" | "bytes_down":
                entries = [entry for entry in self.ledger if entry.direction == asked.name.removeprefix("bytes_")]
                turns = {(entry.round, entry.client) for entry in entries}
                return sum(entry.bytes for entry in entries) / len(turns) if turns else 0.0
            case "cpu_seconds":
                return self.cpu_seconds
            case "below_alone":
                return None if alone is None else below(Path(self.path), Path(alone.path))
        values = self.by_client(asked.name)
        if among is not None:
            values = {client: value for client, value in values.items() if client in among}
        whole = " ".join(asked.clients)  # an id may have a space in it
        names = (whole,) if whole in values else asked.clients or tuple(values)
        if asked.name == "predictor" and not values.keys() >= {*names}:
            values = values | by_domain(Path(self.path))
        wanted = {client: values[client] for client in names if client in values}
        if not wanted or len(wanted) < len(names):
            return None
        match asked.name:
            case "worst":
                return self.headline.worst(wanted.values())
            case "worst_decile":
                return worst_tenth(wanted.values(), self.headline.lower_is_better)
            case "spread_clients":
                return pstdev(wanted.values())
            case "better_off":
                before = {} if alone is None else alone.by_client("predictor")
                pairs = [(value, before[client]) for client, value in wanted.items() if client in before]
                return fmean(self.headline.better(own, other) for own, other in pairs) if pairs else None
        return fmean(wanted.values())

    def whole(self, asked: Measure) -> float:
        """What the whole run took, for a run that never reached the value."""
        return self._spent(asked, self.summary["rounds"])

    def _spent(self, asked: Measure, round: int) -> float:
        if asked.name == "rounds_to":
            return round
        return sum(e.bytes for e in self.ledger if e.direction == "up" and e.round <= round)


@dataclass(frozen=True)
class ResultNumbers(RunNumbers):
    """The same for a result in memory."""

    result: Result | None = None

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What run.json would say."""
        assert self.result is not None
        return self.result.summary()

    @cached_property
    def _rows(self) -> tuple[History, Ledger]:
        assert self.result is not None
        return self.result.history, self.result.ledger


def counted_in_all(*runs: Mapping[str, Any]) -> set[str] | None:
    """The clients whose predictors count in all of these runs, given their summaries: a difference is over these.

    None where all clients count, and where the runs have other clients: then there is no client to pair.
    """
    ids = [{client["id"] for client in run["clients"]} for run in runs]
    counted = [{client["id"] for client in run["clients"] if counts(client)} for run in runs]
    alike = all(mine == ids[0] for mine in ids)
    return set.intersection(*counted) if alike and counted != ids else None


def counts(client: Mapping[str, Any]) -> bool:
    """Whether a client of a run's summary counts in means of predictors: it has trained and has a number."""
    return client.get("trained", True) and scores(client)["predictor"] is not None


def scores(client: Mapping[str, Any]) -> Mapping[str, float | None]:
    """What the models of a client in a run's summary reach, by model: accuracies, or what the task has."""
    found: Mapping[str, float | None] = next(client[metric] for metric in METRICS if metric in client)
    return found


class ComparableRun(Protocol):
    """A run that can be compared with others."""

    @property
    def seed(self) -> int:
        """Its seed."""

    @property
    def method(self) -> str:
        """Its method's name."""

    @property
    def alone(self) -> bool:
        """Whether its clients train alone, as long as they would in a federation."""

    @property
    def position(self) -> Mapping[str, str]:
        """Its place in a grid: one label per axis."""

    @property
    def dealt(self) -> object:
        """Which data its clients get, with which seed."""

    @property
    def length(self) -> str | None:
        """How long a client is to train, such as "20 epochs"; None where validation alone says when to stop."""


class MethodRun(ABC):
    """A run whose method is at hand: what it says of how the clients train."""

    @property
    @abstractmethod
    def made_by(self) -> tuple[Method, Plan | Recipe]:
        """The method, and what says how long it trains."""

    @property
    def method(self) -> str:
        """The method's name, or the path of a class of the user's own."""
        return recipe_name(self.made_by[0])

    @property
    def alone(self) -> bool:
        """Whether its clients train alone, in every round."""
        method, plan = self.made_by
        return self.method == "independent" and (method.works_alone or plan.client_fraction == 1)

    @property
    def stops_early(self) -> bool:
        """Whether its clients train until validation says stop."""
        return self.made_by[0].stops_early

    @property
    def length(self) -> str | None:
        """How long a client is to train."""
        plan = self.made_by[1]
        return None if self.alone and self.stops_early else training_length(plan.rounds, plan.epochs, plan.steps)


_Run = TypeVar("_Run", bound=ComparableRun)


def training_length(rounds: Any, epochs: Any, steps: Any) -> str:
    """How long a client trains over all rounds: fewer but longer rounds are as long."""
    return f"{rounds * epochs} epochs" if epochs else f"{rounds * steps} steps"


def alone_counterpart(run: _Run, runs: Iterable[_Run]) -> _Run | None:
    """The run of `independent` with the same clients and data, and as long: what they reach without each other.

    Not one in which clients train only when they are drawn: that is less than what they could do alone. Of several
    runs, that of the nearest cell; none for a run without a federation.
    """
    return _nearest(run, [other for other in runs if other.alone and other.length in (None, run.length)])


def alone_of_other_length(run: _Run, runs: Sequence[_Run]) -> _Run | None:
    """The run of the same clients alone that is longer or shorter; None where one is as long and is compared."""
    return None if alone_counterpart(run, runs) else _nearest(run, [other for other in runs if other.alone])


def _nearest(run: _Run, runs: Iterable[_Run]) -> _Run | None:
    if run.method in ("independent", "centralised"):
        return None
    found = [other for other in runs if other.dealt == run.dealt]
    return max(found, key=lambda other: len(other.position.items() & run.position.items()), default=None)


def not_compared(label: str, run: ComparableRun, rival: ComparableRun) -> str:
    """Why a run is not compared with the same clients alone."""
    return (
        f"{label}: not compared with its clients alone, who train for {rival.length} instead of {run.length}; "
        "compare runs of the same length (mutua run --resume DIR --rounds N makes one longer)"
    )


def measure_text(text: object) -> object:
    """The text as it is; refused where it names no measure."""
    Measure.of(text)
    return text


def uses_global_alone(run: Path) -> bool:
    """Whether the clients of a finished run have no models of their own, as with FedAvg."""
    return (run / "global").is_dir() and not any(run.glob("clients/*/personal.safetensors"))
