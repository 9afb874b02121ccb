"""Is a site better off for having joined? It finds out by itself, on its own machine; nothing of it leaves.

FOLDER/models/benefit.json    what was found
FOLDER/models/NAME/           alone, global, personal or served: weights and a card
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mutua.deploy.site_folder import SiteFolder
from mutua.engines.alone import OwnedModel, benefit, train_alone, train_alone_until
from mutua.engines.client_worker import device
from mutua.engines.site import LEDGER, last_brief
from mutua.engines.site_store import SiteStore
from mutua.engines.work import as_fault
from mutua.errors import InputError, suggest
from mutua.federation.module_pool import Modules, weights_of
from mutua.federation.site_ledger import entries
from mutua.learning.benefit import Benefit
from mutua.runs.saved_models import ModelCard, SavedModel, put_model, scored
from mutua.support.files import atomic_files, to_json
from mutua.support.processes import one_thread

MODELS = "models"
SAYS = "benefit.json"


@dataclass(frozen=True)
class SiteBenefit:
    """What a site has found out."""

    run: str
    rounds: tuple[int, ...]
    """Those in which it took part."""
    finished: bool
    """Whether the run's last global has come."""
    found: Benefit
    folder: Path
    """Where the models are."""

    def summary(self) -> dict[str, Any]:
        """What `mutua deploy benefit --json` prints."""
        return {
            "run": self.run,
            "rounds": list(self.rounds),
            "finished": self.finished,
            **self.found.summary(),
            "folder": str(self.folder),
        }


def benefit_of(
    folder: SiteFolder, say: Callable[[str], None], run: str | None = None, noun: str = "samples"
) -> SiteBenefit:
    """Train the site's model alone, and compare it with what it has for having joined, on its own test data."""
    client = folder.client
    if not len(client.test):
        raise InputError("FOLDER: no test samples, so no model can be judged; give some: data.test in client.yaml")
    job, place = folder.agreed.job, device(folder.settings.device or folder.agreed.recipe.device)
    run = _run(folder.path, run)
    store, brief = SiteStore(folder=folder.path / "state" / run, client=client.id), last_brief(folder.path, run)
    sent = [entry for entry in entries(folder.path / LEDGER) if (entry.run, entry.verb) == (run, "train")]
    rounds = tuple(sorted({entry.round for entry in sent if '"ending": "done"' in entry.told}))
    newcomer = not rounds and store.committed(job.plan.rounds + 1) is not None
    if not rounds and not newcomer:
        raise InputError(f"FOLDER: this site has completed no round of run {run} yet; there is nothing to compare")
    if brief is None and job.method.needs_global:
        raise InputError(f"FOLDER: the global of run {run} is not here; take part in another round")
    modules = Modules(place)
    with one_thread(), as_fault(client, job.plan.rounds + 1):
        if newcomer:
            say("training your model alone, until your validation samples say stop")
            until = job.method.stopping("personal")
            alone = train_alone_until(job, client, modules, until).state
        else:
            begins = partial(_tell_round, say, rounds)
            alone = train_alone(job, client, rounds, modules, begins)
        kept = {}

        def keep(model: OwnedModel) -> None:
            kept[model.name] = weights_of(model.module), model.made_of

        found = benefit(job, client, store.state, brief, alone, modules, noun, keep)
    made = SiteBenefit(run, rounds, store.committed(job.plan.rounds + 1) is not None, found, folder.path / MODELS)
    with atomic_files() as files:
        for score in found.scores:
            weights, made_of = kept[score.model]
            told = scored(client.aim, score.value)
            card = ModelCard.of(
                made_of, client.train, weights=f"{score.model}.safetensors", client=client.id, **told
            )
            put_model(files, made.folder / score.model, {score.model: weights}, card)
        files.write(made.folder / SAYS, to_json(made.summary()) + "\n")
    return made


def _tell_round(say: Callable[[str], None], rounds: tuple[int, ...], at: int) -> None:
    say(f"training your model alone: round {at} of {rounds[-1]}")


def model_to_export(folder: Path, name: str | None) -> SavedModel:
    """One of the models that `benefit_of` has left; by default the one to serve."""
    from mutua.support import safe_reading

    path = folder / MODELS / SAYS
    if not path.is_file():
        raise InputError(f"RUN: {folder} has no models to export yet; first: mutua deploy benefit {folder}")
    try:
        told = safe_reading.from_json(safe_reading.read_text(path))
        there, serve = list(told["models"]), str(told["serve"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"RUN: {path} is damaged; write it anew: mutua deploy benefit {folder}") from None
    if (chosen := name or serve) not in there:
        raise InputError(f"--client: '{chosen}' is no model of this site; {suggest(chosen, there)}")
    return SavedModel(folder / MODELS / chosen)


def _run(folder: Path, given: str | None) -> str:
    """The id of the run: the one that was given, or the newest that this site has taken part in."""
    there = [path for path in (folder / "state").glob("*") if (path / "commits.json").is_file()]
    if not there:
        raise InputError("FOLDER: this site has taken part in no run yet; first: mutua deploy client")
    by_id = {path.name: path for path in there}
    if given is not None and given not in by_id:
        raise InputError(f"--run: '{given}' is not here; {suggest(given, sorted(by_id))}")
    newest = max(there, key=lambda path: (path / "commits.json").stat().st_mtime_ns)
    return given or newest.name


def words_of(made: SiteBenefit, folder: Path) -> list[str]:
    """What people read."""
    lines = [] if made.finished else ["the run is not finished: these are the models after the last round here"]
    lines += [*made.found.lines("your"), "nothing of this left this machine"]
    return [*lines, f"next: mutua export {folder}"]
