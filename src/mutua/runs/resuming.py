"""A run that was stopped goes on, or a finished one becomes longer: from its newest complete checkpoint."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path

from mutua.errors import InputError
from mutua.federation.federation import Federation
from mutua.federation.ledger import Ledger
from mutua.federation.saved_state import DamagedState
from mutua.recipe.recipe import Recipe
from mutua.rounds.history import History
from mutua.rounds.participation import Participation
from mutua.rounds.preparation import lengthened
from mutua.rounds.state import RunState
from mutua.runs.checkpoints import Manifest, TableEnds
from mutua.runs.folder import RunFolder
from mutua.runs.inputs import HashProgress, changed_fields, first_changes
from mutua.runs.recording import Recorder, only_leftovers, versions
from mutua.support.configuration import PathLike, local_path, similar_path
from mutua.support.files import cannot_write, sync
from mutua.support.folders import FolderLock, refuse_links
from mutua.support.growing_files import SCHEMA, ends_incomplete
from mutua.support.importing import ALLOW_IT


class ResumedRecorder(Recorder):
    """Records a run that goes on: from its newest complete checkpoint, or from its beginning if there is none.

    What the run is made of must be as it was, unless changes are to be accepted. With `rounds` the run gets that
    many, even if it was finished.
    """

    def __init__(self, path: PathLike, accept: bool = False, rounds: int | None = None) -> None:
        place = local_path(path, "--resume")
        _check_begun(place)
        refuse_links(place)
        lock = FolderLock(place, "--resume")
        super().__init__(RunFolder(place), lock)
        self.notes: list[str] = []
        """What the user should know: what was damaged, and what has changed."""
        self._accept, self._accepted = accept, list[str]()
        self._longer = rounds is not None
        self._standing = RunState()
        try:
            self._take_up()
            self.recipe = self._agreed(rounds)
        except OSError as error:
            raise InputError(f"--resume: {cannot_write(place, error)}") from None

    @property
    def resumed(self) -> RunState:
        """The state of the stopped run that goes on here."""
        return self._standing

    def begin(self, recipe: Recipe, federation: Federation, show: HashProgress | None = None) -> RunState:
        """Write down what goes on; the state from which it does. `show` how far hashing has come."""
        self._prepare(recipe, federation, show)
        if (was := self.folder.made_of) is not None:
            self._check_changes(was.changed(self._inputs))
            self._inputs = self._inputs.model_copy(update={"accepted": (*was.accepted, *self._accepted)})
        self.notes += (f"accepted {change}" for change in self._accepted)
        if self._longer:
            self._become_longer(recipe)
        for table in self.folder.tables:  # only now: a folder that is refused stays as it is
            table.cut()
        about = {"round": self._standing.round, "rounds": recipe.rounds}
        self.folder.events.add("resumed", schema=SCHEMA, **about, versions=versions())
        for note in self.notes:
            self.folder.events.add("note", text=note)
        return self._standing

    def _take_up(self) -> None:
        """Find where the run stands. What is damaged is reported and ignored: the run makes it again."""
        checkpoints = self.folder.checkpoints
        for path, why in checkpoints.damaged.items():
            self.notes.append(f"checkpoint {path.name} is damaged ({why}); it is ignored")
        for table in self.folder.tables:
            if table.path.is_file() and ends_incomplete(table.path):
                self.notes.append(f"{table.path.name}: its last line is incomplete; it is ignored")
        if self.folder.events.mend():
            self.notes.append("events.jsonl: its last line is incomplete; it is ignored")
        while (newest := checkpoints.newest) is not None:
            try:
                self._standing, self._ends_before_finish = self._load(newest), newest.unfinished
                break
            except (DamagedState, OSError, ValueError) as error:
                self.notes.append(f"checkpoint of round {newest.round} is damaged ({error}); it is ignored")
                checkpoints.step_over(newest, str(error))
        for table in self.folder.tables:
            # An older mutua kept no participation.
            table.go_back(None if newest is None else getattr(newest, table.path.stem))
        were, now = {} if newest is None else newest.versions, versions()
        for package in sorted(name for name in were.keys() & now if were[name] != now[name]):
            change = f"{were[package]} to {now[package]}"
            self.notes.append(f"{package} has changed from {change}: the bytes may not be the same")

    def _load(self, manifest: Manifest, ends: TableEnds | None = None) -> RunState:
        """The state in a checkpoint; with the rows up to these ends, if given."""
        rows, entries, turns = History(), Ledger(), Participation()
        history, ledger, participation = self.folder.tables
        until = ends or manifest
        rows.extend(history.rows_until(until.history))
        entries.extend(ledger.rows_until(until.ledger))
        if until.participation is not None:
            turns.extend(participation.rows_until(until.participation))
        server, stores = self.folder.checkpoints.load(manifest)
        return RunState(
            round=manifest.round,
            server=server,
            stores=stores,
            history=rows,
            ledger=entries,
            participation=turns,
            validation=manifest.validation,
            lower_is_better=manifest.lower_is_better,
            seconds=manifest.seconds,
        )

    def _agreed(self, rounds: int | None) -> Recipe:
        """The recipe that the run began with, but for `rounds`; if it was edited, that is refused or accepted."""
        was, newest = self.folder.made_of, self.folder.checkpoints.newest
        self.notes += self.folder.restore_recipe()
        try:
            recipe = self.folder.read_recipe()
        except InputError as error:
            if ALLOW_IT in str(error):  # nothing is wrong with the file
                raise InputError(f"--resume: {error}") from None
            file = self.path / "recipe.yaml"
            way_out = "put back the one that the run began with, or begin a new run in another folder"
            if was is not None:
                way_out = f"remove {file}, and the same command writes it again from the checkpoint"
            raise InputError(f"--resume: {file} cannot be used ({error}); {way_out}") from None
        if was is None:
            if rounds is not None and (newest is not None or self.folder.finished):
                why = "an older mutua wrote its checkpoint" if newest else "its checkpoints are gone"
                raise InputError(f"--rounds: {self.path} cannot become longer, because {why}; begin a new run")
            if newest is not None:
                self.notes.append("an older mutua began this run; whether its inputs have changed is not known")
            return recipe if rounds is None else recipe.with_(rounds=rounds)
        began = self.folder.read_recipe(was.recipe)
        if rounds is not None:
            self._lengthen(began, rounds)
            began, recipe = began.with_(rounds=rounds), recipe.with_(rounds=rounds)
        elif recipe.rounds != began.rounds:
            told = f"recipe.yaml: rounds was {began.rounds}, is {recipe.rounds}"
            raise InputError(f"--resume: {told}; give --rounds to say how many the run is to have")
        fields = changed_fields(began.dump(), recipe.dump())
        self._check_changes(f"recipe.yaml: {change}" for change in fields)
        return recipe

    def _check_changes(self, changes: Iterable[str]) -> None:
        """Refuse changes, or go on with them and record that."""
        found = list(changes)
        if found and not self._accept:
            raise InputError(
                f"--resume: {first_changes(found)}; a run goes on with what it began with: undo that (recipe.yaml "
                "is written again if you remove it; a path counts from where you are, a data set's name from "
                "--data-dir), begin a new run, or add --accept-changes"
            )
        self._accepted += (f"since round {self._standing.round}: {change}" for change in found)

    def _lengthen(self, began: Recipe, rounds: int) -> None:
        """Go to the state that a run planned for so many rounds would be in; refused if there is none."""
        newest, run_state = self.folder.checkpoints.newest, self._standing
        assert newest is not None
        done = max([run_state.round, *(store.commits[-1].round for store in run_state.stores.values())])
        try:
            lengthened(began, began.method, rounds, done)
        except InputError as error:
            raise InputError(f"--{error}") from None
        if rounds == began.rounds:  # the same command may have been killed before
            return
        ends = newest.unfinished
        if ends is not None:
            run_state = self._load(newest, ends)
            for table in self.folder.tables:
                table.go_back(getattr(ends, table.path.stem))
        self._standing = run_state.unfinished(began.rounds)

    def _become_longer(self, recipe: Recipe) -> None:
        """Turn the folder into that of a longer run; killed in between, it is either the old or the new."""
        checkpoints = self.folder.checkpoints
        if checkpoints.newest is not None:
            self._write_checkpoint(self._standing, recipe.rounds)
            checkpoints.forget(after=self._standing.round)
        self.write_recipe(recipe)
        (self.path / "run.json").unlink(missing_ok=True)
        sync(self.path)
        for name in ("global", "clients"):  # of the shorter run
            shutil.rmtree(self.path / name, ignore_errors=True)
        if any(self.path.glob("newcomers/*")):
            self.notes.append("newcomers/: they joined the shorter run, and know nothing of the rounds to come")


def _check_begun(path: Path) -> None:
    if RunFolder.begun(path):
        return
    if not path.is_dir():
        way_out = f"{similar_path(path)}give the folder that 'mutua run' named"
        raise InputError(f"--resume: {path} is not a folder; {way_out}")
    way_out = "give the folder that 'mutua run' named"
    if only_leftovers(path):
        way_out = f"begin one there: mutua run RECIPE --out {shlex.quote(str(path))}"
    raise InputError(f"--resume: {path} has no recipe.yaml: no run has begun there; {way_out}")
