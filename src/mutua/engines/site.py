"""A site's side of a run: requests come, the one transaction is done, and what leaves is checked and logged.

The site's data, personal model, adaptor and private seed stay here. An answer is a body (a message, or numbers
that the site has agreed to tell) and a header; both are in the site's ledger before they are sent.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mutua import __version__
from mutua.engines.assessment import assess
from mutua.engines.site_requests import SiteAnswer, SiteRequest
from mutua.engines.site_store import SiteStore
from mutua.engines.work import HandIn, Reply, Staged, Verb, perform, work
from mutua.errors import Diverged, Fault, InputError, Refused, RunError
from mutua.federation.client import Client
from mutua.federation.message import Message
from mutua.federation.module_pool import Modules
from mutua.federation.site_ledger import SiteLedger
from mutua.federation.site_policy import SitePolicy
from mutua.methods.base import Job
from mutua.support.files import write_file

LEDGER = "ledger.jsonl"
RUN_ID = r"[0-9a-f]{16}"
FAILED = "its work failed; the site's own log says why"
"""All that leaves of an error: its text might quote data."""

_log = logging.getLogger("mutua.site")


@dataclass
class Site:
    """One client on its own machine."""

    job: Job
    client: Client
    policy: SitePolicy
    agreement: str
    folder: Path
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        self.ledger = SiteLedger(self.folder / LEDGER)
        self.modules = Modules(self.device)
        self._stores: dict[str, SiteStore] = {}

    def answer(self, request: SiteRequest) -> SiteAnswer:
        """Do what is asked, unless the site refuses; the answer is in the ledger when this returns."""
        parts: dict[str, int] = {}
        began = time.perf_counter()
        try:
            answer = self._answer(request, parts)
        except Refused as refused:
            answer = SiteAnswer("refused", str(refused))
        except Diverged as fault:
            answer = SiteAnswer("failed", fault.reason, diverged=True)
        except (Fault, RunError, InputError) as error:
            _log.error("round %s: %s", request.round, error, exc_info=error.__cause__)
            answer = SiteAnswer("failed", FAILED)
        except Exception:
            _log.exception("round %s", request.round)
            answer = SiteAnswer("failed", FAILED)
        if answer.ending != "done":
            parts, answer = {}, SiteAnswer(answer.ending, answer.reason, answer.diverged)
            _log.warning("round %s: %s: %s", request.round, answer.ending, answer.reason)
        about = request.verb, request.round, answer.ending, len(answer.body), time.perf_counter() - began
        _log.info("%s %s: %s, %s bytes, %.3f s", *about)
        self.ledger.add(request.run, request.verb, request.round, answer.body, parts, answer.header)
        return answer

    def store(self, run: str) -> SiteStore:
        """What the site keeps of this run."""
        if run not in self._stores:
            place = self.folder / "state" / run
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._stores[run] = SiteStore(folder=place, client=self.client.id)
        return self._stores[run]

    def _answer(self, request: SiteRequest, parts: dict[str, int]) -> SiteAnswer:
        if not re.fullmatch(RUN_ID, request.run):
            raise Refused("its run has no id that mutua gives")
        if request.agreement != self.agreement:
            raise Refused(
                "the server runs another recipe, other classes or another public set than this site was given; "
                "ask for the folder that belongs to this run"
            )
        self.policy.check_run(self.job.method.shares, self.job.plan)
        if request.verb == "hello":
            return SiteAnswer("done", facts=self._facts())
        if not 0 <= request.round <= self.job.plan.rounds + 1:
            raise Refused(f"round {request.round}: the run has {self.job.plan.rounds}")
        brief = Message.decode(request.body) if request.body else None
        store = self.store(request.run)
        if request.forget_after is not None:
            store.back_to(request.forget_after)
        if request.verb == "join":
            self._join(store, request, brief)
            return SiteAnswer("done", facts=self._facts())
        if not store.commits:
            self._work(store, "start", 0, None, 0)
        if request.verb == "evaluate":
            return self._evaluate(store, request, brief, parts)
        if request.verb == "train":
            self.policy.check_partners(request.partners)
        if request.body:
            write_file(_brief_path(self.folder, request.run), request.body)
        reply = self._work(store, request.verb, request.round, brief, self.ledger.sent.get(request.run, 0))
        body = b"" if reply.message is None else reply.message.encode()
        self._check_bytes(request, body)
        if reply.message is not None:
            parts.update({f"{part.kind}: {name}": part.nbytes for name, part in reply.message.items()})
            parts["envelope"] = reply.message.envelope
        facts = self._facts()
        if self.policy.tells_objective:
            facts["terms"] = {name: repr(value) for name, value in reply.terms.items()}
        return SiteAnswer("done", facts=facts, body=body)

    def _join(self, store: SiteStore, request: SiteRequest, brief: Message | None) -> None:
        """Make a model of what the others have learned. Nothing leaves."""
        took_part = any(commit.round <= self.job.plan.rounds for commit in store.commits)
        if took_part or request.round != self.job.plan.rounds + 1:
            raise Refused("it took part in this run, so it cannot join it as a newcomer")
        write_file(_brief_path(self.folder, request.run), request.body)
        self._work(store, "join", request.round, brief, 0)

    def _work(self, store: SiteStore, verb: Verb, round: int, brief: Message | None, sent: int) -> Reply:
        """The one transaction. What may not leave is refused before anything is committed."""

        def performer(staged: Mapping[str, Staged], hand_in: HandIn) -> None:
            for name, one in staged.items():
                state, reply = perform(self.job, self.client, verb, round, one, self.modules)
                self.policy.check_message(reply.message)
                if reply.message is not None:
                    self.policy.check_bytes(reply.message.nbytes, sent)
                hand_in(name, (state, reply))

        reply = work({self.client.id: store}, round, {self.client.id: brief}, performer)[self.client.id]
        if isinstance(reply, Fault):
            raise reply
        return reply

    def _evaluate(
        self, store: SiteStore, request: SiteRequest, brief: Message | None, parts: dict[str, int]
    ) -> SiteAnswer:
        if not self.policy.reports:
            return SiteAnswer("done", facts=self._facts())
        staged = Staged(brief, store.stage(request.round + 1))
        found = assess(self.job, self.client, request.round, staged, self.modules)
        told = self.policy.reported(found.metrics)
        body = json.dumps(told, sort_keys=True).encode()
        self._check_bytes(request, body)
        parts["numbers: evaluation"] = len(body)
        return SiteAnswer("done", facts=self._facts(), body=body)

    def _check_bytes(self, request: SiteRequest, body: bytes) -> None:
        in_round = self.ledger.sent_besides(request.run, request.round, body)
        self.policy.check_bytes(len(body), self.ledger.sent.get(request.run, 0), in_round)

    def _facts(self) -> dict[str, Any]:
        """All that a site says of itself."""
        return {
            "mutua": __version__,
            "takes_part": self.client.takes_part,
            "opting": self.client.opt_in is not None,
            "reports": self.policy.reports,
        }


def last_brief(folder: Path, run: str) -> Message | None:
    """The newest brief that a site has got in this run, such as the last global."""
    path = _brief_path(folder, run)
    return Message.decode(path.read_bytes()) if path.is_file() else None


def _brief_path(folder: Path, run: str) -> Path:
    return folder / "state" / run / "brief.safetensors"
