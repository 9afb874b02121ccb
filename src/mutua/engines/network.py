"""The engine for sites on a network: briefs go out as bytes, replies come back; the stores are the sites' own."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from mutua.engines.protocol import Evaluation
from mutua.engines.site_requests import SiteAnswer, SiteLine, SiteRequest, SiteVerb
from mutua.engines.work import Briefs, Replies, Reply
from mutua.errors import Diverged, Fault, Refused
from mutua.federation.commit_files import CommitFiles
from mutua.federation.federation import Federation
from mutua.federation.message import Kind, Message, Part
from mutua.federation.store import Commit, Committed, Store
from mutua.learning.metrics import Metrics
from mutua.methods.base import Job
from mutua.support.tensor_files import Tensors, without_fillers


@dataclass
class FarStore(Store):
    """What the server knows of a site's store: nothing but which rounds were answered, and what to forget."""

    answered: dict[int, dict[str, float]] = field(default_factory=dict)
    """By round, the terms that the site told."""
    forget_after: int | None = None

    def committed(self, round: int) -> Committed | None:
        """A commit without a state, if the site has answered this round."""
        return Commit(round, {}, None, self.answered[round]) if round in self.answered else None

    def back_to(self, round: int) -> None:
        """Have the site forget the work of later rounds, with the next request."""
        self.answered = {done: terms for done, terms in self.answered.items() if done <= round}
        self.forget_after = round if self.forget_after is None else min(round, self.forget_after)


@dataclass
class NetworkEngine:
    """Clients at sites of their own, reached over a line. A site begins when its first request comes."""

    line: SiteLine
    run: str
    agreement: str
    wait: float
    """Seconds for which a site that has gone is waited for, before a round goes on without it."""

    def __post_init__(self) -> None:
        self.facts: dict[str, Mapping[str, object]] = {}
        self.stores: Mapping[str, FarStore] = {}
        self._mishaps: list[tuple[str, str]] = []

    def hello(self, clients: Sequence[str]) -> dict[str, str]:
        """Ask the sites that are here whether they are ready; by client, why one is not."""
        here = self.line.here()
        requests = {c: SiteRequest("hello", self.run, self.agreement) for c in clients if c in here}
        answers = self.line.ask(requests, self.wait)
        wrong = {client: "it is not here" for client in clients if client not in answers}
        for client, answer in answers.items():
            if answer.ending == "done":
                self.facts[client] = answer.facts
            else:
                wrong[client] = f"{answer.ending}: {answer.reason}"
        return wrong

    def open(
        self,
        job: Job,
        federation: Federation,
        stores: Mapping[str, Store] | None = None,
        files: CommitFiles | None = None,
    ) -> None:
        """Take the job; the stores are the sites', so nothing of a run that goes on is needed here."""
        self.job, self.federation = job, federation
        self.stores = {client.id: FarStore() for client in federation.clients}

    def start(self) -> None:
        """Sites start by themselves: one may come later."""

    def train(self, round: int, briefs: Briefs) -> Replies:
        """The briefed sites' `train`."""
        return self._work("train", round, briefs)

    def finish(self, round: int, briefs: Briefs) -> Replies:
        """The briefed sites' `finish`."""
        return self._work("finish", round, briefs)

    def evaluate(self, round: int, briefs: Briefs, shared: Tensors | None) -> Evaluation:
        """What sites tell of their evaluations; those that tell nothing are not asked."""
        asked = {client: brief for client, brief in briefs.items() if self.facts.get(client, {}).get("reports")}
        found: dict[str, Mapping[tuple[str, str], Metrics] | Fault] = {client: {} for client in briefs}
        for client, answer in self._ask("evaluate", round, asked).items():
            try:
                found[client] = _metrics(_done(client, round, answer).body)
            except Fault as fault:
                found[client] = fault
        return Evaluation(None, found)

    def mishaps(self) -> Sequence[tuple[str, str]]:
        """By client, what went wrong on the way and was done again since the last call."""
        new, self._mishaps = self._mishaps, []
        return new

    def close(self) -> None:
        """Nothing is held."""

    def _work(self, verb: SiteVerb, round: int, briefs: Briefs) -> Replies:
        began = time.perf_counter()
        replies: dict[str, Reply | Fault] = {}
        for client, answer in self._ask(verb, round, briefs).items():
            try:
                done = _done(client, round, answer)
                terms = _terms(done.facts.get("terms"))
                message = self._message(done.body, briefs[client]) if done.body else None
            except (Fault, Refused) as error:
                where = f"client {client}, round {round}"
                replies[client] = error if isinstance(error, Fault) else Fault(where, str(error))
                continue
            self.stores[client].answered[round] = terms
            replies[client] = Reply(message, terms, time.perf_counter() - began)
        return replies

    def _message(self, body: bytes, brief: Message | None) -> Message:
        """The reply in these bytes, as it was before it was encoded: the order of names decides how sums round."""
        found = Message.decode(body)
        declared = list(self.job.method.shares)
        came = [name for part in (brief or {}).values() for name in part.arrays]

        def place(names: list[str], name: str) -> tuple[int, str]:
            return (names.index(name), "") if name in names else (len(names), name)

        parts = {}
        for name in sorted(found, key=partial(place, declared)):
            arrays = found.arrays(name)
            order = dict.fromkeys(came) if found[name].kind is Kind.WEIGHTS else {}
            names = [key for key in order if key in arrays] + sorted(arrays.keys() - order.keys())
            parts[name] = Part(found[name].kind, without_fillers({key: arrays[key] for key in names}))
        return Message(**parts)

    def _ask(self, verb: SiteVerb, round: int, briefs: Briefs) -> dict[str, SiteAnswer | None]:
        requests = {}
        for client, brief in briefs.items():
            body = b"" if brief is None else brief.encode()
            forget = self.stores[client].forget_after
            about = verb, self.run, self.agreement, round, len(briefs) - 1, forget
            requests[client] = SiteRequest(*about, body=body)
        answers = self.line.ask(requests, self.wait)
        for client, answer in answers.items():
            if answer.ending == "done":
                self.stores[client].forget_after = None
                self.facts[client] = answer.facts
        return {client: answers.get(client) for client in briefs}


def _done(client: str, round: int, answer: SiteAnswer | None) -> SiteAnswer:
    where = f"client {client}, round {round}"
    if answer is None:
        raise Fault(where, "it is not here")
    if answer.diverged:
        raise Diverged(where, answer.reason)
    if answer.ending != "done":
        raise Fault(where, answer.reason if answer.ending == "failed" else f"the site refused: {answer.reason}")
    return answer


def _terms(told: object) -> dict[str, float]:
    try:
        return {str(name): float(value) for name, value in told.items()} if isinstance(told, dict) else {}
    except (TypeError, ValueError):
        return {}


def _metrics(body: bytes) -> dict[tuple[str, str], Metrics]:
    """The numbers of a site's evaluation; what is none is left out."""
    try:
        told = json.loads(body) if body else {}
        found: dict[tuple[str, str], Metrics] = {}
        for name, numbers in told.items():
            model, _, split = name.partition("/")
            if model not in ("global", "predictor") or split not in ("val", "test"):
                raise ValueError(name)
            found[model, split] = {str(n): None if v is None else float(v) for n, v in numbers.items()}
    except (TypeError, ValueError, AttributeError, RecursionError):
        raise Fault("", "its evaluation is not as mutua sends it") from None
    return found
