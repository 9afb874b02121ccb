"""Before a run: what could not run is refused, what may be a mistake is told, and budgets cut the rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mutua.errors import InputError
from mutua.federation.client import build
from mutua.federation.federation import Federation
from mutua.federation.model_checks import check_models
from mutua.federation.module_pool import batch_normed
from mutua.federation.plan import Plan
from mutua.methods.base import Method
from mutua.runs.guarantee import check_privacy, within_epsilon


def prepared(method: Method, federation: Federation, plan: Plan) -> Federation:
    """The federation as the method sees it; what could not run is refused here, before anything has."""
    federation = method.arrange(federation)
    remarks = check_models(federation, method.needs_global)
    federation = replace(federation, notes=(*federation.notes, *remarks)) if remarks else federation
    if plan.privacy is not None:
        shared = federation.global_model if method.needs_global else None
        check_privacy(
            plan.privacy, method, shared is not None and batch_normed(build(shared, federation.clients[0], 0))
        )
    cut = affordable(method, federation, plan)
    drawn = plan.drawn(len(federation.drawable(method.needs_global)))
    if method.shares and drawn < plan.min_replies:
        raise InputError(
            f"min_replies: {plan.min_replies}, but a round draws {drawn} of {len(federation.clients)} clients; "
            f"give at most {drawn}"
        )
    if plan.privacy is not None and plan.privacy.budget is not None and cut.rounds < plan.rounds:
        note = f"privacy.budget: ε = {plan.privacy.budget:g} pays for {cut.rounds} of {plan.rounds} rounds"
        federation = replace(
            federation, notes=(*federation.notes, f"{note}; the run ends with round {cut.rounds}")
        )
    unjudged = [client.id for client in federation.clients if not len(client.val)]
    if plan.selection == "best" and len(unjudged) == len(federation.clients):
        raise InputError("selection: best, but no client has val samples to select by; use 'last' or 'last5'")
    if plan.selection == "best" and unjudged:
        note = f"selection: best leaves out {', '.join(unjudged)}, without val samples to select by"
        federation = replace(federation, notes=(*federation.notes, note))
    if not method.stops_early or not unjudged:
        return federation
    who = "any client" if len(unjudged) == len(federation.clients) else ", ".join(unjudged)
    note = f"no val sample for {who} to stop {method.name} early by: it trains for one round's work instead"
    return replace(federation, notes=(*federation.notes, note))


def affordable(method: Method, federation: Federation, plan: Plan) -> Plan:
    """The plan within its budgets: of bytes, and of ε."""
    sending = len(federation.drawable(method.needs_global))
    plan = plan.within_budget(method.reply_bytes(federation, plan), sending)
    return within_epsilon(plan, method, federation)


def lengthened(plan: Plan, method: Method, rounds: int, done: int) -> Plan:
    """The plan with more rounds; refused where that would have changed the first `done` of them."""
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
