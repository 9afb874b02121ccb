"""The server's side of a deployed run: the round loop, in the process that Flower starts for its ServerApp.

It leaves an ordinary run folder. The sites' data, models and counts are not known here and not in it.
"""

from __future__ import annotations

import shlex
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mutua.deploy.agreement import Agreement
from mutua.deploy.organiser import Organiser
from mutua.engines.network import NetworkEngine
from mutua.engines.site_requests import SiteLine, SiteRequest
from mutua.errors import LeftOut, MutuaError, RunError
from mutua.federation.message import Message, weights
from mutua.rounds.events import Callback
from mutua.rounds.privacy_guarantee import Epsilon
from mutua.runs.folder import RunFolder
from mutua.runs.recording import Recorder
from mutua.runs.result import Result
from mutua.runs.resuming import ResumedRecorder
from mutua.runs.run import carry_out
from mutua.runs.saving import write_models
from mutua.support.files import reason
from mutua.support.growing_files import EventLog
from mutua.support.text import several

UNKNOWN = ("samples", "opted_out", "test_samples")
"""What a run's summary says of a client and the server of a deployment does not know."""


LineOf = Callable[[Mapping[str, bytes], Callable[[str], None]], SiteLine]
"""Makes the line to the sites: of their public keys by client, and of what is told when one comes or goes."""


def serve(line_of: LineOf, place: Path, folder: Path, newcomer: str | None = None) -> None:
    """Conduct a run, or let a newcomer join one; whatever ends it is in its log, `FOLDER.log`, in one line."""
    log = EventLog(folder.with_name(f"{folder.name}.log"))

    def note(text: str) -> None:
        log.add("note", text=text)

    organiser = Organiser.open(place)
    line = line_of(organiser.keys(), note)
    agreed = organiser.agreed
    engine = NetworkEngine(line, organiser.run_id(folder), agreed.checksum, agreed.file.wait)
    try:
        if newcomer is not None:
            welcome(agreed, engine, folder, newcomer)
        else:
            conduct(agreed, engine, folder, note, goes_on_by=f"mutua deploy run {shlex.quote(str(place))}")
    except MutuaError as error:
        log.add("failed", reason=str(error))
        raise
    except Exception as error:
        log.add("failed", reason=f"{type(error).__name__}: {reason(error)}")
        raise
    log.add("finished")


def conduct(
    agreed: Agreement,
    engine: NetworkEngine,
    folder: Path,
    note: Callable[[str], None] = lambda text: None,
    callbacks: Sequence[Callback] = (),
    goes_on_by: str | None = None,
) -> Result:
    """Run the recipe with the sites that the engine reaches, or go on with the run that is in the folder."""
    _await_sites(agreed, engine, note)
    recipe = agreed.recipe
    federation = agreed.roster(engine.facts)
    if RunFolder.begun(folder):
        recorder: Recorder = ResumedRecorder(folder)
        note(f"going on after round {recorder.resumed.round if recorder.resumed else -1}")
    else:
        recorder = Recorder.create(recipe.name, recipe.seed, folder)
        recorder.deployed = True
    recorder.goes_on_by = goes_on_by
    with recorder.keeping(), warnings.catch_warnings():
        run_state = recorder.begin(recipe, federation)
        warnings.simplefilter("ignore", LeftOut)  # it is in the tables and files
        prepared = agreed.prepared(engine.facts)
        result = carry_out(prepared, made=engine, callbacks=[recorder, *callbacks], run_state=run_state)
        write_models(recorder.path, result.job, result.federation, result.shared, [])
        recorder.finish(result.job, [DEPLOYED], deployed_summary(result), result.seconds)
    return result


def welcome(agreed: Agreement, engine: NetworkEngine, folder: Path, client: str) -> None:
    """Bring a newcomer the last global of a run that is over; it makes a model of it, and sends nothing back."""
    shared = RunFolder.open(folder).shared()
    last = agreed.job.plan.rounds + 1
    brief = Message(**{"global": weights(shared.weights)})
    request = SiteRequest("join", engine.run, agreed.checksum, last, body=brief.encode())
    answer = engine.line.ask({client: request}, engine.wait).get(client)
    if answer is None:
        raise RunError(f"{client}: it is not here")
    if answer.ending != "done":
        raise RunError(f"{client}: {answer.ending}: {answer.reason}")


DEPLOYED = "a deployment: data, models and sample counts are the sites' own and not known here"


def deployed_summary(result: Result) -> dict[str, Any]:
    """A run's summary without what the server does not know."""
    summary = result.summary()
    unknown = dict.fromkeys(UNKNOWN)
    clients = [{**client, **unknown, "model": "its own", "width": 1.0} for client in summary["clients"]]
    if (told := summary["privacy"]) is not None and told["level"] == "example":  # the sites' counts decide their ε
        summary["privacy"] = {**told, "epsilon": Epsilon(None)._asdict(), "rdp": None}
    return {**summary, "clients": clients, "deployed": True}


def _await_sites(agreed: Agreement, engine: NetworkEngine, note: Callable[[str], None]) -> None:
    """Wait until all sites are here and ready, or until enough are and nobody has come for a while."""
    clients, until = list(agreed.file.clients), time.monotonic() + agreed.file.wait
    told: dict[str, str] = {}
    while True:
        ask = [client for client in clients if client not in engine.facts]
        wrong = engine.hello(ask)
        for client in ask:
            if told.get(client) != wrong.get(client, "ready"):
                told[client] = wrong.get(client, "ready")
                note(f"{client}: {told[client]}")
        if not wrong:
            return
        if time.monotonic() > until:
            break
        time.sleep(1.0)
    if len(engine.facts) < agreed.file.needed:
        reasons = "; ".join(f"{client}: {why}" for client, why in wrong.items())
        raise RunError(
            f"{several(len(engine.facts), 'site')} of {len(clients)} ready after {agreed.file.wait:g} s, "
            f"{agreed.file.needed} needed; {reasons}"
        )
