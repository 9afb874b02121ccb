"""What a run gives: history, ledger, the global and a predictor for every client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mutua.errors import InputError
from mutua.federation.client import build
from mutua.federation.federation import Federation
from mutua.federation.ledger import Ledger
from mutua.federation.plan import Plan
from mutua.learning.tasks import plain, settings
from mutua.methods.base import Job, Method, shown_name
from mutua.rounds.history import History
from mutua.rounds.participation import Participation
from mutua.rounds.privacy_guarantee import Guarantee, guarantee
from mutua.runs.client_result import ClientResult
from mutua.runs.finished_run import FinishedRun, mean_of_known
from mutua.runs.predictor import Predictor
from mutua.support.configuration import PathLike, local_path, whole_number
from mutua.support.tensor_files import Tensors

if TYPE_CHECKING:
    from mutua.recipe.recipe import Recipe
    from mutua.runs.recording import Recorder


@dataclass(frozen=True, repr=False)
class Result(FinishedRun[ClientResult]):
    """A finished run."""

    job: Job
    federation: Federation
    history: History
    ledger: Ledger
    global_state: Tensors | None
    clients: list[ClientResult]
    seconds: float
    participation: Participation = field(default_factory=Participation)
    longer: Callable[..., Result] | None = field(default=None, repr=False, compare=False)
    offered: Mapping[str, Tensors] = field(default_factory=dict)
    """Of several globals all: a newcomer takes the one that fits it."""

    def __post_init__(self) -> None:
        since = {client.id: client.serves_since for client in self.clients}
        self.history.serves_since(self.job.plan.rounds, since)

    @property
    def shared(self) -> dict[str, Tensors]:
        """All weights that are shared, by the names of their files: the global and, of several, all."""
        return {} if self.global_state is None else {"weights": self.global_state, **self.offered}

    @property
    def method(self) -> Method:
        """Its method."""
        return self.job.method

    @property
    def plan(self) -> Plan:
        """How long, how fast and with which seed."""
        return self.job.plan

    def extend(self, rounds: int, **given: Any) -> Result:
        """The result of the same run with so many rounds in all; only what is new is run.

        It equals, to the last byte, a run that was planned so long; where a schedule over all rounds or a budget
        would have made that another run, it is refused. `given` may be `callbacks` and `progress`, as for `run`.
        """
        if self.longer is None:
            raise InputError("extend: the state of this run is not known; use 'mutua run --resume DIR --rounds N'")
        whole_number(rounds, "rounds")
        return self.longer(rounds, **given)

    def global_predictor(self) -> Predictor:
        """The global, ready for raw inputs, if it is a whole model."""
        shared, first = self.job.global_model, self.clients[0].client
        if self.global_state is None or shared is None or shared.share != "all":
            raise InputError(
                f"global: method {self.job.method.name} has no global that predicts alone in this run"
            )
        module = build(shared, first, seed=0)
        module.load_state_dict(self.global_state)
        return Predictor(module.eval(), first.train.take([]), first.aim)

    def _client_summaries(self) -> list[Mapping[str, Any]]:
        return [client.summary() for client in self.clients]

    def _domains(self) -> dict[str, float | None] | None:
        """FedH2L's metrics, mean over clients, if clients have domains."""
        if all(client.client.domain is None for client in self.clients):
            return None

        def value(client: ClientResult, metric: str) -> float | None:
            return client.measured(metric, "predictor", self.job.plan.selection)

        return {
            metric: mean_of_known([value(c, metric) for c in self.counted()]) for metric in ("wdp", "cdp", "acc")
        }

    @cached_property
    def guarantee(self) -> Guarantee | None:
        """The differential privacy of what left the clients; None if none was asked for."""
        return guarantee(self.job, self.federation.clients, self.ledger, self.participation)

    def save(self, path: PathLike, recipe: Recipe | None = None) -> Path:
        """Save it as a run's folder: for `mutua.load_run`, and for the command line's report, predict and join.

        `recipe` is the one that made it, if any: with it the folder says how to repeat the run.
        """
        # Imported here: a run in Python that is not saved needs no recipes.
        from mutua.runs.recording import Recorder
        from mutua.runs.saving import describe

        job = self.job
        if recipe is not None and (recipe.method, recipe.seed) != (job.method, job.plan.seed):
            raise InputError(
                f"recipe: {recipe.name} has another method or seed; give the one that made this result"
            )
        name = local_path(path, "path").name
        text = describe(job, self.federation, name) if recipe is None else recipe.dump()
        recorder = Recorder.create("run", job.plan.seed, path, field="path")
        with recorder.saving():
            recorder.begin_saved(text, job, [client.id for client in self.clients])
            recorder.extend(self.history, self.ledger, self.participation)
            write_result(self, recorder)
        return recorder.path

    def summary(self) -> dict[str, Any]:
        """The numbers of a run. Accuracies are on test data, of the evaluation that the plan selects.

        A task with another headline metric has that metric's name where others have "accuracy".
        """
        plan, selection = self.job.plan, self.job.plan.selection
        headline = self.history.headline.metric
        aim = self.federation.aim
        sizes = {c.id: len(c.client.test) for c in self.clients}
        return {
            "method": shown_name(self.job.method),
            **({} if plain(aim) else {"task": settings(aim)}),
            "seed": plan.seed,
            "rounds": plan.rounds,
            "selection": selection,
            "global": {
                metric: self.history.selected(selection, "global", "global", "test", metric)
                for metric in (headline, "loss")
            },
            "clients": [client.summary() for client in self.clients],
            "mean": {
                model: {
                    headline: self.mean_score(model, selection),
                    f"{headline}_by_samples": mean_of_known(
                        [client.score(model, selection) for client in self.counted(model)],
                        [sizes[client.id] for client in self.counted(model)],
                    ),
                }
                for model in ("predictor", "global")
            },
            "domains": self._domains(),
            "bytes": {"up": self.ledger.bytes("up"), "down": self.ledger.bytes("down")},
            "privacy": None if self.guarantee is None else self.guarantee.summary(),
            "seconds": round(self.seconds, 3),
        }


def write_result(result: Result, recorder: Recorder) -> None:
    """Write the models of a run and, last, run.json: a folder that has it is complete."""
    from mutua.runs.saving import write_models

    write_models(recorder.path, result.job, result.federation, result.shared, result.clients)
    recorder.finish(result.job, result.federation.notes, result.summary(), result.seconds)
