"""Which runs and studies lie below the watched folder, and how far each has come."""

from __future__ import annotations

import fcntl
import os
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mutua.errors import InputError
from mutua.learning.headline import Headline
from mutua.support.configuration import PathLike, local_path
from mutua.support.files import reason
from mutua.watch.happened import Happened
from mutua.watch.inside import json_inside, open_inside

DEEPEST = 4
"""How far below the watched folder runs are looked for."""
MOST_FOLDERS = 20_000
MOST_RUNS = 2_000
_RUN_FILES = ("recipe.yaml", "events.jsonl")
_STUDY_FILES = ("comparison.json", "results.csv")
_HEAD, _TAIL = 2**20, 2**15
_FURTHER, _ENDS = 2**21, 11
_ENDED = b'{"event": "ended"'
_RECORD = 2**21


@dataclass(frozen=True)
class Found:
    """A run's folder below the watched one."""

    parts: tuple[str, ...]
    place: Path
    """As it is typed."""
    study: str | None = None
    """The folder of runs that belong together, if it is in one."""

    @property
    def id(self) -> str:
        """What the page calls it."""
        return "/".join(self.parts)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.parts[-1]

    @property
    def resume(self) -> str | None:
        """What to type to go on with it; None if the name could not be typed as it is shown."""
        text = str(self.place)
        if not text.isprintable():
            return None
        return f"mutua run --resume {shlex.quote(f'./{text}' if text.startswith('-') else text)}"


class Catalogue:
    """The runs below a folder; or the one run, or the study, that the folder is."""

    def __init__(self, given: PathLike) -> None:
        typed = local_path(given, "RUNS")
        if not typed.is_dir():
            raise InputError(f"RUNS: {typed} is not a folder; give one that holds runs, or a run's own")
        whole = typed.resolve()
        only = _kind(whole) is not None
        self.typed = typed
        self.root = whole.parent if only else whole
        self._only = (whole.name,) if only else ()
        self._rows: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self.runs: dict[str, Found] = {}
        self.studies: dict[str, Found] = {}
        self.left_out = 0
        """Folders that are too many, too deep or have names that are no text."""
        self.looked = 0.0
        self._lock = threading.Lock()

    def look(self) -> None:
        """Find what is there now; threads that ask at the same time look one after the other."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        runs: dict[str, Found] = {}
        studies: dict[str, Found] = {}
        self.left_out = 0
        begin = self._place(self._only)
        for one, kind in self._walk(self.root.joinpath(*self._only), self._only, begin, None):
            if kind == "study":
                studies[one.id] = one
            elif len(runs) < MOST_RUNS:
                runs[one.id] = one
            else:
                self.left_out += 1
        self.runs, self.studies, self.looked = runs, studies, time.monotonic()
        for gone in self._rows.keys() - runs.keys():
            self._rows.pop(gone, None)

    def _place(self, parts: tuple[str, ...]) -> Path:
        return self.typed if self._only else self.typed.joinpath(*parts)

    def _walk(
        self, folder: Path, parts: tuple[str, ...], typed: Path, study: str | None
    ) -> Iterator[tuple[Found, str]]:
        kind = _kind(folder) if parts else None
        if kind == "run":
            yield Found(parts, typed, study), kind
            return
        inner = study
        if kind == "study":
            yield Found(parts, typed), kind
            inner = "/".join(parts)
        if len(parts) >= DEEPEST + len(self._only):
            return
        try:
            with os.scandir(folder) as entries:
                first = islice(entries, MOST_FOLDERS)
                names = sorted(entry.name for entry in first if entry.is_dir(follow_symlinks=False))
        except OSError:
            return
        for name in names:
            if name.startswith("."):
                continue
            try:
                name.encode()
            except UnicodeEncodeError:
                self.left_out += 1
                continue
            yield from self._walk(folder / name, (*parts, name), typed / name, inner)

    def run(self, id: str) -> Found | None:
        """A run by what the page calls it."""
        if id not in self.runs:
            self.look()
        return self.runs.get(id)

    def of_study(self, id: str) -> list[Found]:
        """The runs of a study."""
        return [run for run in self.runs.values() if run.study == id]

    def alone_in(self, id: str | None) -> list[Found]:
        """The runs of a study in which every client trains alone."""
        mine = self.of_study(id) if id is not None else []
        return [run for run in mine if self._row(run)["method"] == "independent"]

    def rows(self, idle: bool = True) -> list[dict[str, Any]]:
        """A row for each run; those that are not at work as they were, unless `idle` ones are looked at too."""
        found = []
        for run in self.runs.values():
            known = self._rows.get(run.id)
            if not idle and known is not None and known[1]["state"] != "running":
                found.append(known[1])
            else:
                found.append(self._row(run))
        return found

    def _row(self, run: Found) -> dict[str, Any]:
        state = state_of(self.root, run.parts)
        try:
            with open_inside(self.root, (*run.parts, "events.jsonl")) as file:
                found = os.fstat(file.fileno())
                stamp = state, found.st_ino, found.st_size, found.st_mtime_ns
                known = self._rows.get(run.id)
                if known is not None and known[0] == stamp:
                    return known[1]
                row = self._told(run, state, _glance(file.fileno(), found.st_size))
                row["changed"] = round(found.st_mtime, 1)
        except (OSError, ValueError) as error:
            return {**self._told(run, state, Happened()), "wrong": reason(error)}
        self._rows[run.id] = stamp, row
        return row

    def _told(self, run: Found, state: str, events: Happened) -> dict[str, Any]:
        newest = max((at for at, told in events.ended.items() if told.own is not None), default=None)
        score: dict[str, Any] = {"global": None, "clients": None}
        if newest is not None:
            score = {"global": events.ended[newest].shared, "clients": events.ended[newest].own}
        elif state == "finished":
            score = self._recorded(run)
        headline = Headline(events.metric or "accuracy")
        return {
            "id": run.id,
            "name": run.name,
            "study": run.study,
            "state": state,
            "stopped": events.stopped,
            "method": events.method,
            "seed": events.seed,
            "round": max(events.round, 0),
            "rounds": events.rounds,
            "clients": len(events.clients),
            "metric": {"name": headline.name[:80], "percent": headline.in_percent},
            "score": score,
            "began": events.began,
            "left": events.seconds_left() if state == "running" else None,
            "last": events.last_time,
        }

    def _recorded(self, run: Found) -> dict[str, Any]:
        """Of a run that was saved from Python, which has no events of its rounds."""
        summary = json_inside(self.root, (*run.parts, "run.json"), _RECORD).get("summary")
        with suppress(TypeError, KeyError, AttributeError):
            metric = Headline.of(summary).metric
            own = summary["mean"]["predictor"][metric]  # type: ignore[index]
            shared = (summary["global"] or {}).get(metric)  # type: ignore[index]
            return {"global": shared, "clients": own}
        return {"global": None, "clients": None}


def state_of(root: Path, parts: Sequence[str]) -> str:
    """finished, running or stopped: a run's lock ends with its process."""
    with suppress(OSError, ValueError), open_inside(root, (*parts, "run.json")):
        return "finished"
    with suppress(OSError, ValueError), open_inside(root, (*parts, "lock")) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return "running"
    return "stopped"


def _kind(folder: Path) -> str | None:
    """Whether a folder is a run's, a study's or neither."""
    if any((folder / name).is_file() for name in _RUN_FILES):
        return "run"
    return "study" if any((folder / name).is_file() for name in _STUDY_FILES) else None


def _glance(file: int, size: int) -> Happened:
    """The beginning and the end of a run's events."""
    events = Happened()
    first = os.pread(file, _HEAD, 0).partition(b"\n")[0]
    events.head(first)
    start = max(0, size - _TAIL)
    tail = os.pread(file, _TAIL, start)
    begin = tail.find(b"\n") + 1 if start else 0
    events.take(tail[begin : tail.rfind(b"\n") + 1], start + begin, False)
    if len(events.ended) < _ENDS and start:
        _ends_before(file, start, events)
    return events


def _ends_before(file: int, end: int, events: Happened) -> None:
    """The last rounds that ended before there: with many clients there is much between one end and the next."""
    start = max(0, end - _FURTHER)
    text = os.pread(file, end - start, start)
    at = len(text)
    for _ in range(_ENDS):
        if (at := text.rfind(_ENDED, 0, at)) < 0:
            return
        events.take(text[at:].partition(b"\n")[0] + b"\n", start + at, True)
