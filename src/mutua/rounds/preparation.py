"""Before a run: refuse what cannot run, note what may be a mistake, and limit the rounds to the budgets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mutua.errors import InputError
from mutua.federation.client import build
from mutua.federation.federation import Federation
from mutua.federation.message import Kind
from mutua.federation.model_checks import check_models
from mutua.federation.module_pool import batch_normed
from mutua.federation.plan import Plan
from mutua.methods.base import Job, Method
from mutua.rounds.privacy_guarantee import check_privacy, within_epsilon


@dataclass(frozen=True)
class Prepared:
    """A run before its first round: checked, and with all that was found on the way."""

    given: Federation
    """As it was before the method arranged it."""
    job: Job
    """What is run: its plan is within its budgets."""
    federation: Federation
    """As the method sees it; its notes say what may be a mistake."""
    reply_bytes: int
    """The most bytes of a reply; 0 if nothing leaves or the method does not say."""
    store_bytes: int = 0
    """About how much all clients' stores take: two commits each of a personal model and a reply."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know before it runs."""
        return self.federation.notes


def prepare(method: Method, federation: Federation, plan: Plan) -> Prepared:
    """Prepare a run; what cannot run is refused here, before anything has started."""
    for name, kind in method.shares.items():
        if not isinstance(kind, Kind):
            raise InputError(
                f"{type(method).__name__}.shares: {name!r} is declared as {kind!r}; give each name a kind, "
                "such as {'meme': Kind.WEIGHTS}"
            )
    arranged = method.arrange(federation)
    models = check_models(arranged, method.needs_global)
    notes = [*models.notes]
    if plan.privacy is not None:
        shared = arranged.global_model if method.needs_global else None
        normed = shared is not None and batch_normed(build(shared, arranged.clients[0], 0))
        check_privacy(plan.privacy, method, normed)
        if plan.privacy.level == "example" and getattr(arranged.aim, "class_weights", None) == "balanced":
            raise InputError(
                "task.class_weights: balanced, with privacy.level: example: weights that are counted over a "
                "client's samples let each of them change what the others do; declare numbers instead"
            )
    able = len(arranged.drawable(method.needs_global))
    reply_bytes = method.reply_bytes(arranged, plan)
    cut = within_epsilon(plan.within_budget(reply_bytes, able), method, arranged)
    drawn = plan.drawn(able)
    if method.shares and drawn < plan.min_replies:
        raise InputError(
            f"min_replies: {plan.min_replies}, but a round draws {drawn} of {len(arranged.clients)} clients; "
            f"give at most {drawn}"
        )
    if plan.privacy is not None and plan.privacy.budget is not None and cut.rounds < plan.rounds:
        paid = f"privacy.budget: ε = {plan.privacy.budget:g} pays for {cut.rounds} of {plan.rounds} rounds"
        notes.append(f"{paid}; the run ends with round {cut.rounds}")
    unjudged = [client.id for client in arranged.clients if not len(client.val)]
    nobody_judges = len(unjudged) == len(arranged.clients)
    if plan.selection == "best" and nobody_judges:
        raise InputError("selection: best, but no client has val samples to select by; use 'last' or 'last5'")
    if plan.selection == "best" and unjudged:
        notes.append(f"selection: best leaves out {', '.join(unjudged)}, without val samples to select by")
    if method.stops_early and unjudged:
        who = "any client" if nobody_judges else ", ".join(unjudged)
        notes.append(
            f"no val sample for {who} to stop {method.name} early by: it trains for one round's work instead"
        )
    arranged = replace(arranged, notes=(*arranged.notes, *notes)) if notes else arranged
    job = Job(method, cut, arranged.global_model, arranged.public)
    store_bytes = 2 * (models.personal_bytes + len(arranged.clients) * reply_bytes)
    return Prepared(federation, job, arranged, reply_bytes, store_bytes)


def lengthened(plan: Plan, method: Method, rounds: int, done: int) -> Plan:
    """The plan with more rounds; refused if that would have changed the first `done` of them."""
    if rounds < plan.rounds:
        raise InputError(f"rounds: {rounds}, but the run has {plan.rounds} already; give more")
    longer = plan.model_copy(update={"rounds": rounds})
    if rounds == plan.rounds:
        return longer
    if plan.budget is not None or (plan.privacy is not None and plan.privacy.budget is not None):
        raise InputError(f"rounds: {rounds}, but a budget has set how many rounds there are; begin a new run")

    def numbers(of: Plan, round: int) -> dict[str, Any]:
        found = {f"method.{name}": value for name, value in vars(method.numbers(round, of.rounds)).items()}
        return {"optimizer.lr": of.optimizer.rate(round, of.rounds), **found}

    for round in range(1, min(done, plan.rounds) + 1):
        before, after = numbers(plan, round), numbers(longer, round)
        for name in (name for name in before if before[name] != after[name]):
            raise InputError(
                f"rounds: {rounds}, but {name} is a schedule over all rounds: in round {round} it was "
                f"{before[name]:g}, and of {rounds} rounds it would have been {after[name]:g}; begin a new run"
            )
    return longer
