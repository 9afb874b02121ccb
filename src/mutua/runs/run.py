"""`run`: a method over a federation, from the first brief to the result."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mutua.engines.choice import EngineChoice
from mutua.engines.faults import Faults
from mutua.engines.protocol import Engine
from mutua.errors import InputError, LeftOut, line
from mutua.federation.commit_files import CommitFiles
from mutua.federation.federation import Federation
from mutua.federation.plan import Plan
from mutua.federation.store_settings import StoreSettings, temporary_files
from mutua.methods.base import Hub, Method, method_of, shown_name
from mutua.rounds.events import Callback
from mutua.rounds.loop import Rounds
from mutua.rounds.participation import never_drawn
from mutua.rounds.preparation import Prepared, lengthened, prepare
from mutua.rounds.state import RunState
from mutua.runs.client_result import ClientResult
from mutua.runs.result import Result
from mutua.support.configuration import checked

_CLIENTS_LISTED = 5
"""How many clients that were left out a warning lists."""


def run(
    method: Method | str,
    federation: Federation,
    *,
    plan: Plan | None = None,
    engine: str | Mapping[str, Any] | EngineChoice = "local",
    workers: int | None = None,
    callbacks: Sequence[Callback] = (),
    run_state: RunState | None = None,
    faults: Faults | Mapping[str, Any] | None = None,
    stores: StoreSettings | Mapping[str, Any] | str = "auto",
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Run a method over a federation, from its beginning or from a saved state (`run_state`).

    `method` is an object, or a name for one with its defaults: mutua.methods.FML(alpha=0.3), "fml".
    Settings are the fields of `Plan` (rounds, epochs or steps, batch_size, optimizer, client_fraction,
    evaluate_every, seed, ...), given one by one or together as `plan`. `workers` is how many clients work at once:
    if not given, one per core, or one at a time on a GPU. On CPUs it changes no byte of the result. `faults` make
    clients fail on purpose. `stores` says where clients' stores are: "memory", "disk" (a temporary folder),
    a URL, or "auto": on disk if they would take more than a quarter of the memory. A callback is called with every
    event of the run. `progress` shows on stderr how far it has come: a bar in a terminal, else a line for each
    evaluation; the log `mutua` tells the same.
    """
    if isinstance(method, str):
        method = method_of({"name": method})
    if not isinstance(method, Method):
        raise InputError(f"method: {method!r}; give a name or an object, such as mutua.methods.FML(alpha=0.5)")
    if not isinstance(federation, Federation):
        given = type(federation).__name__
        raise InputError(f"federation: a {given}; give a Federation, such as mutua.Federation.from_arrays makes")
    if plan is None:
        plan = checked(Plan, settings)
    elif not isinstance(plan, Plan):
        called = "; it is a function: recipe.plan() with brackets" if callable(plan) else ""
        raise InputError(f"plan: a {type(plan).__name__}, not a Plan, such as mutua.Plan(rounds=20) makes{called}")
    elif settings:
        raise InputError(f"run: give either a plan or single settings, not both ({', '.join(settings)})")
    if not (isinstance(callbacks, Sequence) and all(map(callable, callbacks))):
        raise InputError(f"callbacks: {callbacks!r}; give a list of functions that take an event")
    if faults is not None and not isinstance(faults, Faults):
        faults = checked(Faults, faults, at="faults")
    if not isinstance(stores, StoreSettings):
        stores = checked(StoreSettings, {"place": stores} if isinstance(stores, str) else stores, at="stores")
    prepared = prepare(method, federation, plan)
    return carry_out(
        prepared,
        engine=engine,
        workers=workers,
        callbacks=callbacks,
        run_state=run_state,
        faults=faults,
        files=temporary_files(stores, prepared.store_bytes),
        progress=progress,
    )


def carry_out(
    prepared: Prepared,
    *,
    engine: str | Mapping[str, Any] | EngineChoice = "local",
    workers: int | None = None,
    callbacks: Sequence[Callback] = (),
    run_state: RunState | None = None,
    faults: Faults | None = None,
    files: CommitFiles | None = None,
    progress: bool = False,
    made: Engine | None = None,
) -> Result:
    """Run what is prepared. The options are those of `run`; stores write into `files`, if not into memory.

    `made` is an engine that is there already, such as the one of a deployment, in the place of `engine`.
    """
    from mutua.rounds.progress import watched  # which needs rich, and `import mutua` does not

    job, federation = prepared.job, prepared.federation
    method, plan = job.method, job.plan
    site = EngineChoice.of(engine).make(workers) if made is None else made
    if faults is not None:
        from mutua.engines.faulty_engine import FaultyEngine

        faults.check(federation)
        site = FaultyEngine(site, faults)
    run_state = run_state or RunState()
    began = time.perf_counter() - run_state.seconds
    try:
        with watched(shown_name(method), prepared.notes, progress) as watchers:
            site.open(job, federation, run_state.stores, files)
            rounds = Rounds(prepared, site, [*callbacks, *watchers], run_state)
            rounds.run()
        stores = site.stores
    finally:
        site.close()
    server = rounds.server
    clients = [
        ClientResult(
            client,
            job,
            stores[client.id],
            method.brief(server, plan.rounds + 1, client.id),
            rounds.history,
            rounds.participation.of(client.id),
        )
        for client in federation.clients
    ]
    seconds = time.perf_counter() - began
    shared = server.state.get("global")
    offered = method.offered(server) if isinstance(method, Hub) else {}
    longer = None
    if rounds.before_finish is not None:
        before = replace(rounds.before_finish, stores=stores).unfinished(plan.rounds)
        again: dict[str, Any] = {"engine": engine, "workers": workers, "faults": faults}
        again["stores"] = "memory" if files is None else "disk"
        longer = partial(_longer, method, prepared.given, plan, before, **again)
    result = Result(
        job,
        federation,
        rounds.history,
        rounds.ledger,
        shared,
        clients,
        seconds,
        rounds.participation,
        longer,
        offered,
    )
    if missed := result.left_out():
        many = f"; and {len(missed) - _CLIENTS_LISTED} more" if len(missed) > _CLIENTS_LISTED else ""
        undrawn = sum(never_drawn(client.summary()) for client in clients)
        counted = {"left out of rounds": len(missed) - undrawn, "never drawn": undrawn}
        how = " and ".join(f"{n} of {len(clients)} clients were {what}" for what, n in counted.items() if n)
        said = f"{how}: {'; '.join(missed[:_CLIENTS_LISTED])}{many}"
        warnings.warn(LeftOut(line(said)), stacklevel=3)  # where `run` was called
    return result


def _longer(
    method: Method, federation: Federation, plan: Plan, before: RunState, rounds: int, **given: Any
) -> Result:
    """The rest of a run with more rounds, from its state before the clients' last work."""
    # Stores grow with the run, and the shorter one may be extended again.
    stores = {client: replace(store, commits=[*store.commits]) for client, store in before.stores.items()}
    longer = lengthened(plan, method, rounds, plan.rounds)
    return run(method, federation, plan=longer, run_state=replace(before, stores=stores), **given)
