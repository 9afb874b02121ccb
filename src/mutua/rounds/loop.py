"""The round loop: brief, train, merge, evaluate.

Everything that is not the algorithm (progress, files, pages) listens to the loop's events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mutua.engines.protocol import TOO_LONG, Engine, Evaluation
from mutua.engines.work import Briefs, Replies, Reply
from mutua.errors import Fault, Refused, RunError, line
from mutua.federation.ledger import Ledger
from mutua.federation.message import Message, declared, may_leave
from mutua.federation.topology import Topology
from mutua.methods.base import shown_name
from mutua.methods.checks import check_message, on_server
from mutua.methods.server import Server
from mutua.rounds.events import (
    Callback,
    Event,
    Finished,
    Merged,
    Reached,
    Rejected,
    Retried,
    RoundEnded,
    RoundStarted,
    Started,
    Stopped,
    Trained,
)
from mutua.rounds.guard import Merger, NotFinite, can_be_undone, finished
from mutua.rounds.history import History
from mutua.rounds.participation import Outcome, Participation
from mutua.rounds.preparation import Prepared
from mutua.rounds.state import RunState
from mutua.support import signals
from mutua.support.profiling import timed
from mutua.support.row_log import LogPrefix

_REFUSALS_LISTED = 10
"""How many refusals the error of a stopped run lists."""
LIMIT = 4 * 2**30
"""The most bytes of a reply, if the method does not say how long its replies are."""


@dataclass
class Rounds:
    """One run of a method over a federation, from its start or from a saved state to its end."""

    prepared: Prepared
    engine: Engine
    callbacks: Sequence[Callback] = ()
    run_state: RunState = field(default_factory=RunState)
    history: History = field(default_factory=History)
    ledger: Ledger = field(default_factory=Ledger)
    participation: Participation = field(default_factory=Participation)

    def __post_init__(self) -> None:
        self.job, self.federation = self.prepared.job, self.prepared.federation
        self.ids = sorted(client.id for client in self.federation.clients)
        # From a client whose data may be known: one that has opted out must not decide the global's shape.
        first = self.federation[next((i for i in self.ids if self.federation[i].takes_part), self.ids[0])].train
        self.server = Server(
            clients=tuple(self.ids),
            seed=self.job.plan.seed,
            model=self.federation.global_model,
            input=first.model_input,
            classes=len(first.classes),
            batch_size=self.job.plan.batch_size,
            topology=Topology(self.job.plan.topology),
            public=self.federation.public and self.federation.public.scaled_by_itself,
            aim=self.federation.aim,
            models={client.id: client.model for client in self.federation.clients},
            rounds=self.job.plan.rounds,
        )
        self.merger = Merger(self.job, self.server, self.run_state.server)
        self.server.topology.check(self.ids)
        self.longest = TOO_LONG * self.prepared.reply_bytes or LIMIT
        # A predictor may have learned from opted-out samples, so the global alone selects checkpoints.
        self.judged = "global" if self.federation.opting and self.job.method.needs_global else "predictor"
        self.drawable = self.federation.drawable(self.job.method.needs_global)
        self.history.headline = self.federation.headline
        self.history.extend(self.run_state.history)
        self.ledger.extend(self.run_state.ledger)
        self.participation.extend(self.run_state.participation)
        self._began = time.perf_counter() - self.run_state.seconds
        self.before_finish = self.run_state if self.run_state.round == self.job.plan.rounds else None
        """The state before the clients' last work, once the run has reached it."""

    @signals.deferred()
    def run(self) -> None:
        """The clients' start, all rounds, the clients' last work and the last evaluation."""
        last = self.job.plan.rounds + 1
        self._emit(Started(self.job, self.federation))
        if self.run_state.round >= 0:
            self._leave_out()
        try:
            self._catch_up(self.run_state.round)
            for round in range(self.run_state.round + 1, last + 1):
                if round == 0:
                    self._start()
                elif round < last:
                    self._round(round)
                else:
                    self._finish(round)
                self._reach(round)
        except (KeyboardInterrupt, RunError) as error:
            if isinstance(error, KeyboardInterrupt):
                signals.begin_exit()
            if can_be_undone(self.run_state.server):  # then the work of its round is repeated
                self._forget(self.run_state.round, self.ids)
            self._emit(Stopped(replace(self.run_state, stores=self.engine.stores)))
            raise
        self._emit(Finished())

    def _catch_up(self, round: int) -> None:
        """The evaluation of a round that was the last of a shorter plan and is not the last of this one."""
        plan = self.job.plan
        if not 0 <= round < plan.rounds:
            return
        owed = round % plan.evaluate_every == 0
        if owed and all(self.history.evaluated(client, "predictor") != round for client in self.ids):
            self._evaluate(round)
            self._emit(RoundEnded(round, self.history, self.ledger))

    def _start(self) -> None:
        with on_server("open", self.server):
            self.job.method.open(self.server)
        with signals.allowed():
            self.engine.start()
        self._trained(0)
        if self.job.plan.rounds:  # otherwise the last evaluation is of round 0
            self._evaluate(0)
            self._emit(RoundEnded(0, self.history, self.ledger))

    def _round(self, round: int) -> None:
        plan = self.job.plan
        self._exchange(round)
        if round < plan.rounds:
            if round % plan.evaluate_every == 0:
                self._evaluate(round)
            self._emit(RoundEnded(round, self.history, self.ledger))

    def _finish(self, round: int) -> None:
        """Send the last global to every client, drawn or not; it counts as the brief of one more round."""
        merged = round - 1
        while True:
            _, done = self._ask(round, self.ids, self.engine.finish)
            found = self._evaluation(merged, last=True)
            if not self._spoilt(merged, found.clients):
                break
            self._forget(merged, self.ids)
        self._failed(round, self.ids, done, "unfinished", "its last work failed: ")
        self._trained(round)
        self._measured(merged, found, last=True)
        self._emit(RoundEnded(merged, self.history, self.ledger))

    def _reach(self, round: int) -> None:
        server = self.merger.saved
        if round > self.job.plan.rounds and self.before_finish is not None:
            server = finished(self.before_finish.server, self.merger.undone)
        self.run_state = RunState(
            round=round,
            server=server,
            stores=self.engine.stores,
            history=LogPrefix(self.history),
            ledger=LogPrefix(self.ledger),
            participation=LogPrefix(self.participation),
            validation=self.history.validation(self.judged, min(round, self.job.plan.rounds)),
            lower_is_better=self.history.headline.lower_is_better,
            seconds=time.perf_counter() - self._began,
        )
        if round == self.job.plan.rounds:
            self.before_finish = self.run_state
        self._emit(Reached(self.run_state))

    def _exchange(self, round: int) -> None:
        """Brief, train, and merge the accepted replies."""
        method, plan = self.job.method, self.job.plan
        self.server.round = round
        drawn = sorted(self.drawable) if method.works_alone else plan.draw(self.drawable, round)
        self._emit(RoundStarted(round, tuple(drawn)))
        briefs, replies = self._ask(round, drawn, self.engine.train)
        accepted: dict[str, Message] = {}
        refusals = self._failed(round, drawn, replies, "failed")
        for client in drawn:
            reply = replies.get(client)
            if not isinstance(reply, Reply):
                continue
            for term, mean in reply.terms.items():
                self.history.add(round, client, term, "train", "objective", mean)
            self._emit(Trained(round, client, reply))
            if reply.message is None:
                idle = method.made_at_end and not reply.terms
                self.participation.add(round, client, "idle" if idle else "answered")
                continue
            self.ledger.record(round, client, "up", reply.message)
            try:
                with timed("merge"):
                    self._check_length(reply.message)
                    may_leave(reply.message, method.shares, briefs[client])
                    with on_server("check"):
                        method.check(self.server, client, reply.message)
                accepted[client] = reply.message
            except Refused as refused:
                refusals[client] = str(refused)
                self._reject(round, client, "refused", refusals[client])
        with on_server("outliers"):
            outliers = method.outliers(self.server, accepted)
        rest = {client: reply for client, reply in accepted.items() if client not in outliers}
        for client, reason in {**outliers, **self.merger.refused(rest)}.items():
            del accepted[client]
            refusals[client] = reason
            self._reject(round, client, "refused", reason)
        due = len(accepted) + len(refusals)
        if round == method.replies_from and method.shares and drawn and not due:
            self._forget(round - 1, drawn)
            raise RunError(
                f"round {round}: train returned None for every client, but {shown_name(method)} declares what "
                f"leaves, {declared(method.shares)}; return a Message, such as self.reply(client, meme), or let "
                "replies_from say in which round the first one comes"
            )
        if method.shares and due and len(accepted) < plan.min_replies:
            self._forget(round - 1, refusals)
            all_of_them = "; ".join(
                f"{client}: {reason}" for client, reason in list(refusals.items())[:_REFUSALS_LISTED]
            )
            raise RunError(
                f"round {round}: {len(accepted)} of {due} replies could be merged, "
                f"min_replies is {plan.min_replies}; refused: {all_of_them or 'none'}"
            )
        try:
            with timed("merge"):
                left_out = self.merger.merge(accepted)
        except NotFinite as error:
            self._forget(round - 1, accepted)
            raise RunError(f"round {round}: {error}") from None
        for client, reason in left_out.items():
            self._reject(round, client, "refused", reason)
        merged = [client for client in accepted if client not in left_out]
        for client in merged:
            self.participation.add(round, client, "merged")
        if merged:
            self._emit(Merged(round, self.merger.shares(merged)))

    def _ask(
        self, round: int, clients: Sequence[str], verb: Callable[[int, Briefs], Replies]
    ) -> tuple[Briefs, Replies]:
        """Send the briefs and collect the replies; once more if the last merge had to be undone."""
        briefs = self._briefs(round, clients)
        for client, brief in briefs.items():
            self.ledger.record(round, client, "down", brief)
        with signals.allowed():
            found = verb(round, briefs)
        self._retried(round)
        if not self._spoilt(round - 1, found):
            return briefs, found
        self._forget(round - 1, self.ids)
        return self._ask(round, clients, verb)

    def _spoilt(self, merged: int, found: Mapping[str, object]) -> bool:
        """Whether the merge of this round was undone because clients diverged on it: ask them once more."""
        if self.federation.opting and merged == self.job.plan.rounds:
            # After the last round clients learn from opted-out samples too, which must not change the global.
            return False
        undone = self.merger.undo(found)
        for client, reason in undone.items():
            self._reject(merged, client, "undone", reason)
        return bool(undone)

    def _forget(self, round: int, clients: Iterable[str]) -> None:
        """Set these clients back to the end of this round: if asked again, they repeat the work.

        Not under privacy: a second reply with new noise would have to be counted too.
        """
        for client in clients if self.job.plan.privacy is None else ():
            self.engine.stores[client].back_to(round)

    def _trained(self, round: int) -> None:
        """Record who trained at the start or after the last round; the terms show it."""
        for client in self.ids:
            done = self.engine.stores[client].committed(round)
            if done is not None and done.terms:
                self.participation.add(round, client, "trained")

    def _reject(
        self, round: int, client: str, outcome: Outcome, reason: str, what: str = "", trace: str = ""
    ) -> None:
        self.participation.add(round, client, outcome, line(reason))
        self._emit(Rejected(round, client, what + reason, trace))

    def _failed(
        self, round: int, clients: Sequence[str], found: Mapping[str, object], outcome: Outcome, what: str = ""
    ) -> dict[str, str]:
        """Report who failed and why. If all clients did, the cause is probably not theirs: the run stops."""
        nothing = Fault("", "no reply came")
        faults = {c: fault for c in clients if isinstance(fault := found.get(c, nothing), Fault)}
        for client, fault in faults.items():
            self._reject(round, client, outcome, fault.reason, what, fault.trace)
        if clients and len(faults) == len(clients):
            client, fault = next(iter(faults.items()))
            blame = self.merger.blame(faults.values())
            raise RunError(f"round {round}: every client failed; {client}: {what}{fault.reason}{blame}") from fault
        return {client: fault.reason for client, fault in faults.items()}

    def _check_length(self, reply: Message) -> None:
        """Refuse a reply that is far too long, whatever it holds."""
        if reply.nbytes > self.longest:
            raise Refused(f"its reply has {reply.nbytes} bytes; the most is {self.longest}")

    def _briefs(self, round: int, clients: Sequence[str]) -> dict[str, Message | None]:
        brief = self.job.method.brief
        with on_server("brief"):
            return {client: check_message("brief", brief(self.server, round, client)) for client in clients}

    def _evaluate(self, round: int) -> None:
        found = self._evaluation(round)
        if self._spoilt(round, found.clients):
            found = self._evaluation(round)
        self._measured(round, found)

    def _evaluation(self, round: int, last: bool = False) -> Evaluation:
        shared = self.server.state.get("global")
        if self.federation.partial or self.federation.test is None or not self.job.method.needs_global:
            shared = None
        # After the last round the clients have finished: their last work counts as one more round.
        at = round + 1 if last else round
        with signals.allowed():
            found = self.engine.evaluate(at, self._briefs(at + 1, self.ids), shared)
        self._retried(round)
        return found

    def _measured(self, round: int, found: Evaluation, last: bool = False) -> None:
        """Add an evaluation to the history."""
        if found.shared is not None:
            self.history.measured(round, "global", "global", "test", found.shared, last)
        self._failed(round, self.ids, found.clients, "unevaluated", "its evaluation failed: ")
        for client, models in found.clients.items():
            if not isinstance(models, Fault):
                for (model, split), metrics in models.items():
                    self.history.measured(round, client, model, split, metrics, last)
        self._leave_out()

    def _leave_out(self) -> None:
        """Tell the history whose own models have not trained."""
        stores, took_part = self.engine.stores, self.participation.of
        self.history.leave_out([c for c in self.ids if not took_part(c).trained and stores[c].keeps])

    def _retried(self, round: int) -> None:
        for client, reason in self.engine.mishaps():
            self._emit(Retried(round, client, reason))

    def _emit(self, event: Event) -> None:
        for callback in self.callbacks:
            callback(event)
