"""The run folder, as it is read: recipe, events, history, ledger, checkpoints, and every model with its card.

recipe.yaml     the full recipe, defaults filled in
run.json        method, plan, versions and a summary of the results; written last
events.jsonl    one line per event      checkpoints/    what the run needs to go on
history.csv     one row per number      ledger.csv      one row per part of a message
participation.csv   one row for every client and round: what came of it
global/         weights.safetensors, card.json
clients/ID/     personal.safetensors, ..., card.json: a folder for each client
newcomers/ID/   the same for clients that joined later

Every file but those that grow is written aside, synced and renamed. What is read from a folder is checked as if a
stranger had sent it. `recording.py` writes the folder while the run is at work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from mutua.errors import InputError, suggest
from mutua.federation.ledger import Direction, Entry, Ledger
from mutua.federation.plan import Plan
from mutua.learning.headline import ACCURACY, Headline
from mutua.methods import base
from mutua.recipe.recipe import Recipe
from mutua.rounds.history import History, Row
from mutua.rounds.participation import OUTCOMES, Participation, ParticipationRow
from mutua.runs.checkpoints import CheckpointFolder
from mutua.runs.inputs import Inputs, recipe_of
from mutua.runs.saved_models import SavedModel, StoredJson, read_json
from mutua.runs.summary import reported
from mutua.support import safe_reading
from mutua.support.configuration import PathLike, local_path, similar_path
from mutua.support.files import reason, write_file
from mutua.support.folders import refuse_links
from mutua.support.growing_files import EventLog, GrowingTable
from mutua.support.importing import reading_untrusted_file
from mutua.support.row_log import Log
from mutua.support.text import some

R = TypeVar("R", bound=tuple[Any, ...])


class RunRecord(StoredJson):
    """What run.json holds."""

    versions: dict[str, str]
    method: dict[str, Any]
    plan: Plan
    recipe: str | None = None
    """As it was executed, in YAML."""
    notes: tuple[str, ...] = ()
    summary: dict[str, Any]


class RunFolder:
    """A run's folder, finished or not."""

    def __init__(self, path: PathLike) -> None:
        self.path = local_path(path, "RUN")
        refuse_links(self.path)
        self.events = EventLog(self.path / "events.jsonl")
        self.checkpoints = CheckpointFolder(self.path / "checkpoints")
        self._history = GrowingTable(self.path / "history.csv", Row._fields, _row)
        self._ledger = GrowingTable(self.path / "ledger.csv", Entry._fields, _entry)
        self._participation = GrowingTable(self.path / "participation.csv", ParticipationRow._fields, _turn)

    @classmethod
    def open(cls, path: PathLike) -> RunFolder:
        """The folder of a finished run."""
        path = local_path(path, "RUN")
        if not (path / "run.json").is_file():
            if (path / "recipe.yaml").is_file():
                raise InputError(f"RUN: {path}: the run is not finished; to go on: mutua run --resume {path}")
            raise no_run(path, "has no run.json: it is not a finished run's folder")
        return cls(path)

    @staticmethod
    def begun(path: Path) -> bool:
        """Whether a run has begun there: it has written its recipe, which a checkpoint also holds."""
        return (path / "recipe.yaml").is_file() or any(path.glob("checkpoints/*.json"))

    @property
    def finished(self) -> bool:
        """Whether the run is over: run.json is written last."""
        return (self.path / "run.json").is_file()

    @property
    def tables(self) -> tuple[GrowingTable[Row], GrowingTable[Entry], GrowingTable[ParticipationRow]]:
        """The files that grow by rows: history, ledger and participation."""
        return self._history, self._ledger, self._participation

    @property
    def record(self) -> RunRecord:
        """What run.json holds."""
        return read_json(self.path / "run.json", RunRecord)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run, as it was executed."""
        return self.read_recipe(self.recorded)

    def read_recipe(self, text: str | None = None) -> Recipe:
        """The recipe in this text, or in recipe.yaml; others may have written it."""
        path = self.path / "recipe.yaml"
        with reading_untrusted_file(path):
            return Recipe.load(path) if text is None else recipe_of(text)

    @property
    def recorded(self) -> str | None:
        """The recipe as it was executed, from run.json or the newest checkpoint: recipe.yaml may be edited."""
        told = self.record.recipe if self.finished else None
        return told or (None if self.made_of is None else self.made_of.recipe)

    def restore_recipe(self) -> list[str]:
        """Write recipe.yaml again where it is missing; what to tell the user about it."""
        path, told = self.path / "recipe.yaml", None
        if path.is_file() or (told := self.recorded) is None:
            return []
        write_file(path, told)
        return ["recipe.yaml was not there; it is written again from the run's record"]

    @property
    def made_of(self) -> Inputs | None:
        """What the run was made of when it was saved."""
        return None if self.checkpoints.newest is None else self.checkpoints.newest.inputs

    @property
    def headline(self) -> Headline:
        """The metric by which the run's models are shown and selected."""
        if self.finished:
            return Headline.of(self.record.summary)
        try:
            return Headline.of(safe_reading.from_yaml(safe_reading.read_text(self.path / "recipe.yaml")))
        except (OSError, ValueError, AttributeError):  # who reads the recipe says what is wrong with it
            return ACCURACY

    def rows(self) -> tuple[History, Ledger]:
        """What was measured and what crossed, as far as the run has come."""
        history, ledger = History(self.headline), Ledger()
        self._read_into(history, self._history)
        self._read_into(ledger, self._ledger)
        return history, ledger

    def finished_rows(self) -> tuple[History, Ledger]:
        """The same of a finished run: they must agree with its summary, which says since when clients serve."""
        history, ledger = self.rows()
        summary = self.record.summary
        for way, told in summary["bytes"].items():  # nobody must be told that less was sent than was
            if (found := ledger.bytes(way)) != told:
                raise InputError(
                    f"RUN: {self.path}: ledger.csv is damaged: {found} bytes {way}, {told} by run.json; "
                    "repeat the run by its recipe.yaml"
                )
        history.serves_since(
            summary["rounds"], {client["id"]: client.get("serves_since", 1) for client in summary["clients"]}
        )
        history.leave_out({client["id"] for client in summary["clients"] if not client.get("trained", True)})
        return history, ledger

    def participation(self) -> Participation:
        """Who was asked in which round, and what came of it."""
        turns = Participation()
        self._read_into(turns, self._participation)
        return turns

    def _read_into(self, log: Log[R], table: GrowingTable[R]) -> None:
        try:
            log.extend(table.rows())
        except (OSError, ValueError) as error:
            raise InputError(f"RUN: {self.path}: {reason(error)}") from None

    def report(self) -> dict[str, Any]:
        """What `mutua run --json` printed."""
        return reported(self.record.summary)

    @property
    def method(self) -> base.Method:
        """The method of the run."""
        try:
            with reading_untrusted_file(self.path / "run.json"):
                return base.method_of(self.record.method)
        except InputError as error:
            raise InputError(f"RUN: {self.path / 'run.json'}: {error}") from None

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self.record.plan

    def clients(self) -> dict[str, Path]:
        """The folders of the clients and of newcomers, by id."""
        places = sorted([*self.path.glob("clients/*/card.json"), *self.path.glob("newcomers/*/card.json")])
        return {card.parent.name: card.parent for card in places}

    def client(self, client_id: str, field: str = "--client") -> SavedModel:
        """The model that this client serves with."""
        known = self.clients()
        if client_id not in known:
            raise InputError(f"{field}: '{client_id}' is not in {self.path}; {suggest(client_id, known)}")
        return SavedModel(known[client_id])

    def shared(self) -> SavedModel:
        """The global."""
        if not (self.path / "global").is_dir():
            raise InputError(
                f"RUN: {self.path} has no global model, because method {self.record.method.get('name')} has none; "
                "a newcomer needs a run of a method that shares one, such as fml or fedavg"
            )
        return SavedModel(self.path / "global")


def no_run(path: Path, what: str) -> InputError:
    """Says why this is not a run's folder: there is none, it is a comparison's, or `what`."""
    if not path.is_dir():
        what = "is not a folder"
    elif (path / "comparison.json").is_file():
        runs = some([found.parent.name for found in sorted(path.glob("*/run.json"))])
        return InputError(f"RUN: {path} is a comparison; give one of its runs ({runs})")
    return InputError(f"RUN: {path} {what}; {similar_path(path)}give the folder that 'mutua run' named")


def _round(text: str) -> int:
    if not 0 <= (number := int(text)) < 2**31:
        raise ValueError(f"round {text[:20]}")
    return number


def _row(round: str, client: str, model: str, split: str, metric: str, value: str) -> Row:
    return Row(_round(round), client, model, split, metric, float(value) if value else None)


def _entry(
    round: str, client: str, direction: str, kind: str, name: str, arrays: str, values: str, size: str
) -> Entry:
    way: Direction = "up" if direction == "up" else "down"
    return Entry(_round(round), client, way, kind, name, int(arrays), int(values), int(size))


def _turn(round: str, client: str, outcome: str, reason: str) -> ParticipationRow:
    if outcome not in OUTCOMES:
        raise ValueError(f"'{outcome[:20]}' is no outcome")
    return ParticipationRow(_round(round), client, outcome, reason)
