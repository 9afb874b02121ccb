"""One run as the page shows it: its files are followed, and told in parts, so that only what changed is sent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from mutua.learning.headline import ACCURACY, Headline
from mutua.watch.alone import alone_by_client, keeps_alone, recipe_in
from mutua.watch.catalogue import Found, state_of
from mutua.watch.crossed import ENVELOPE, Crossed, TookPart, Turns
from mutua.watch.happened import Happened, RoundPicture, round_picture
from mutua.watch.inside import json_inside, open_inside
from mutua.watch.measured import TERMS, MeasuredRun, Series, SeriesKey, few_rounds, five_digits
from mutua.watch.newest_first import MOST, NewestFirst
from mutua.watch.stopping import can_stop
from mutua.watch.telling import finite, known_values, line_of, metric_of, outcome

LONGEST_HEAD = 2**22
"""How long the first event may be, which names all clients."""
LONGEST_ROUND = 2**22
"""How many bytes of a round's events are read."""
MOST_LISTED = 2_000
"""How many clients the page lists."""
MOST_LINES = 40
"""Of so many clients each has a line; of more, only those that were chosen."""
MOST_CHOSEN = 12
COLUMNS_OF_CLIENTS = (
    *("id", "model", "samples", "alone", "global", "personal", "round", "time"),
    *("asked", "answered", "faults", "retried", "now", "sent"),
)
"""What a row of the grid holds; names in every row would double what is sent after every round."""
MOST_NOTES = 12
SPARK = 60
"""How many points the small curve of a client has."""
RUN_JSON = 2**24


class RunView:
    """Follows the files of one run. Its methods may be called from any thread."""

    def __init__(self, root: Path, run: Found, others: Callable[[], Sequence[Found]] = tuple) -> None:
        self.root, self.run, self._others = root, run, others
        self._lock = threading.Lock()
        self.version = 0
        """Rises with everything that was read."""
        self._begin()

    def _begin(self) -> None:
        self.happened = self._with_head(Happened())
        self.measured = MeasuredRun(self.happened.clients)
        self.crossed, self.took_part = Crossed(), TookPart()
        self._events = self._follow("events.jsonl", lambda *lines: self.happened.take(*lines), self._events_again)
        self._history = self._follow("history.csv", lambda *rows: self.measured.take(*rows), self._history_again)
        self._ledger = self._follow("ledger.csv", lambda *rows: self.crossed.take(*rows), self._ledger_again)
        self._turns = self._follow(
            "participation.csv", lambda *rows: self.took_part.take(*rows), self._turns_again
        )
        self._readers = self._events, self._history, self._turns, self._ledger
        self._finished: tuple[dict[str, Any], dict[str, dict[str, float]]] | None = None
        """The run's record, and by metric what clients have alone, which is looked up once."""
        self._state, self._looked = "", 0.0
        self._stoppable = False
        self._pictured: tuple[int | None, int, RoundPicture | None] = (None, -1, None)

    def _follow(
        self, name: str, take: Callable[[bytes, int, bool], None], again: Callable[[], None]
    ) -> NewestFirst:
        return NewestFirst(partial(open_inside, self.root, (*self.run.parts, name)), take, again)

    def _with_head(self, events: Happened) -> Happened:
        """The first event is at the beginning of the file, which is read last."""
        with suppress(OSError, ValueError), open_inside(self.root, (*self.run.parts, "events.jsonl")) as file:
            first = b""
            while b"\n" not in first and len(first) < LONGEST_HEAD:
                piece = os.pread(file.fileno(), 2**18, len(first))
                if not piece:
                    break
                first += piece
            events.head(first.partition(b"\n")[0])
        return events

    def _events_again(self) -> None:
        self.happened = self._with_head(Happened())

    def _history_again(self) -> None:
        self.measured = MeasuredRun(self.happened.clients)

    def _ledger_again(self) -> None:
        self.crossed = Crossed()

    def _turns_again(self) -> None:
        self.took_part = TookPart()

    def advance(self, seconds: float) -> bool:
        """Read on for about so long; whether there is more to read at once."""
        until = time.monotonic() + seconds
        with self._lock:
            more = True
            while more and time.monotonic() < until:
                # What is new in any of them, before what is old in the first.
                more = sum(reader.step() for reader in self._readers) > 0
                self.version += more
            if not self.happened.clients and not self.happened.method:
                self._with_head(self.happened)
            self._look()
            return more

    def _look(self) -> None:
        """Whether the run is at work, which its lock tells; not at every poll."""
        now = time.monotonic()
        if now - self._looked < 0.5:
            return
        self._looked = now
        state = state_of(self.root, self.run.parts)
        if state == "finished" and self._finished is None:
            self._finished = json_inside(self.root, (*self.run.parts, "run.json"), RUN_JSON), {}
            self.version += 1
        elif state != "finished":
            self._finished = None
        stoppable = state == "running" and not self.deployed and can_stop(self.root, self.run.parts)
        if (state, stoppable) != (self._state, self._stoppable):
            self._state, self._stoppable = state, stoppable
            self.version += 1

    # What is sent

    def parts(
        self, metric: str | None = None, chosen: Sequence[str] = (), round: int | None = None
    ) -> dict[str, Any]:
        """The page's parts by name."""
        with self._lock:
            headline = Headline(metric) if metric else self.headline
            return {
                "head": self._head(),
                "curves": self._curves(headline),
                "lines": self._lines(headline, chosen),
                "terms": self._terms(),
                "clients": self._clients(headline),
                "faults": self._faults(),
                "round": self._round(round),
            }

    @property
    def running(self) -> bool:
        """Whether it is at work."""
        return self._state == "running"

    @property
    def deployed(self) -> bool:
        """Whether it is the organiser's: of a simulation the models are known."""
        return bool(self.happened.clients) and not self.happened.models

    @property
    def headline(self) -> Headline:
        """The metric by which this run is judged."""
        if self.happened.metric:
            return Headline(self.happened.metric)
        if self._finished is not None:
            with suppress(AttributeError, TypeError):
                return Headline.of(self._finished[0].get("summary"))
        known = self.measured.metrics
        return ACCURACY if not known or "accuracy" in known else Headline(known[0])

    def _head(self) -> dict[str, Any]:
        events = self.happened
        total = sum(min(reader.size, MOST) for reader in self._readers)
        left = sum(reader.left for reader in self._readers)
        seconds_left = events.seconds_left() if self._state == "running" else None
        return {
            "id": self.run.id,
            "name": self.run.name,
            "study": self.run.study,
            "folder": str(self.root.joinpath(*self.run.parts)),
            "state": self._state,
            "stopped": events.stopped,
            "method": events.method,
            "seed": events.seed,
            "round": max(events.round, 0) if events.rounds is None else min(max(events.round, 0), events.rounds),
            "rounds": events.rounds,
            "clients": len(self.measured.ids),
            "began": events.began,
            "last": events.last_time,
            "seconds": events.seconds,
            "left": None if seconds_left is None or events.last_time is None else round(seconds_left, 1),
            "metric": metric_of(self.headline),
            "metrics": [metric_of(Headline(name)) for name in self.measured.metrics[:12]],
            "models": self.measured.models(self.headline.metric),
            "now": time.time(),
            "known_rounds": few_rounds(events.known_rounds, 2_000),
            "stoppable": self._stoppable,
            "resume": None if self.deployed else self.run.resume,
            "deployed": self.deployed,
            "command": events.command,
            "notes": events.noted[:MOST_NOTES],
            "reading": None if not left or not total else round(1 - left / total, 3),
            "limits": self._limits(),
            "finished": self._means(),
        }

    def _limits(self) -> list[str]:
        """What the page leaves out, in sentences."""
        told = [f"Of {name} only the newest {MOST // 2**20} MiB are read." for name in self._cut_off()]
        if self.measured.stride > 1:
            told.append(f"There are too many numbers: one round in {self.measured.stride} is kept.")
        if self.measured.unknown:
            told.append(f"There are too many clients: only {len(self.measured.ids)} of them are shown.")
        if len(self.measured.ids) > MOST_LISTED:
            told.append(f"The first {MOST_LISTED:,} of {len(self.measured.ids):,} clients are listed.")
        damaged = self.measured.damaged + self.crossed.damaged + self.took_part.damaged
        if damaged:
            told.append(f"{damaged:,} lines of the tables are damaged and left out.")
        return told

    def _cut_off(self) -> list[str]:
        names = "events.jsonl", "history.csv", "participation.csv", "ledger.csv"
        return [name for name, reader in zip(names, self._readers, strict=True) if reader.cut_off]

    def _means(self) -> dict[str, Any] | None:
        """What the run's record says at its end."""
        if self._finished is None:
            return None
        metric = self.headline.metric
        summary = self._finished[0].get("summary")
        try:
            shared, own = summary["global"], summary["mean"]["predictor"]  # type: ignore[index]
            return {"global": finite(shared[metric] if shared else None), "clients": finite(own[metric])}
        except (TypeError, KeyError, AttributeError):
            return None

    def _curves(self, headline: Headline) -> dict[str, Any]:
        """Means over clients by round, the spread of the models that clients serve with, and the global."""
        metric, series = headline.metric, self.measured.series
        own = series.get(SeriesKey("predictor", "test", metric))
        told = metric == self.happened.metric
        ended = self.happened.ended if told else {}
        common = {**self.measured.common.get(metric, {}), **known_values(ended, "shared")}
        means = known_values(ended, "own")
        if own is not None:
            means = _means_of(own) | means
        lines = [line_of("global", "the global on the common test set", common)] if common else []
        if means:
            lines.append(line_of("predictor", "what clients serve with, mean over clients", means))
        for model in self.measured.models(metric):
            one = series[SeriesKey(model, "test", metric)]
            if model == "predictor" or len(one.rows) < 2:
                continue
            found = _means_of(one)
            called = "the global on clients' own test data" if model == "global" else model
            lines.append(line_of(f"own-{model}", f"{called}, mean over clients", found))
        spread: dict[str, Any] | None = None
        if own is not None and len(self.measured.ids) > 1:
            rounds = few_rounds(sorted(own.rows))
            bands = [(round, band) for round in rounds if (band := own.band(round)) is not None]
            spread = {
                "rounds": [round for round, _ in bands],
                "low": [five_digits(band.low) for _, band in bands],
                "tenth": [five_digits(band.tenth) for _, band in bands],
                "ninetieth": [five_digits(band.ninetieth) for _, band in bands],
                "high": [five_digits(band.high) for _, band in bands],
            }
        return {"metric": metric_of(headline), "rounds": self.happened.rounds, "lines": lines, "band": spread}

    def _lines(self, headline: Headline, chosen: Sequence[str]) -> dict[str, Any]:
        """A line per client: of all of them if they are few, and of those that were chosen."""
        own = self.measured.series.get(SeriesKey("predictor", "test", headline.metric))
        known = self.measured.ids
        wanted = known if len(known) <= MOST_LINES else [name for name in chosen[:MOST_CHOSEN] if name in known]
        rounds = few_rounds(sorted(own.rows), SPARK * 3) if own is not None else []
        found = {}
        if own is not None:
            for name in wanted:
                at = self.measured.number(name)
                found[name] = own.of(at, rounds) if at is not None else []
        return {"rounds": rounds, "of": found}

    def _terms(self) -> list[dict[str, Any]]:
        """The objective's terms: means over the clients that trained in a round."""
        found = []
        for term in self.measured.terms:
            one = self.measured.series[SeriesKey(term, *TERMS)]
            found.append(line_of(term, term, _means_of(one)))
        return found

    def _clients(self, headline: Headline) -> dict[str, Any]:
        """The grid: a row per client."""
        series, events = self.measured.series, self.happened
        own, shared = (series.get(SeriesKey(model, "test", headline.metric)) for model in ("predictor", "global"))
        alone = self._alone(headline)
        newest = self._picture(None)
        kinds = [kind for kind in self.crossed.kinds if kind != ENVELOPE]
        places = [self.crossed.kinds[kind] for kind in kinds]
        rows = []
        for at, client in enumerate(self.measured.ids[:MOST_LISTED]):
            seen, turns = events.seen.get(client), self.took_part.of.get(client, Turns())
            sent = self.crossed.up.get(client, [])
            told = (
                client,
                events.models.get(client),
                events.samples.get(client),
                alone.get(client),
                None if shared is None else shared.last(at),
                None if own is None else own.last(at),
                None if seen is None else seen.round,
                None if seen is None else seen.time,
                turns.asked,
                turns.answered,
                sum(turns.wrong.values()),
                events.retried.get(client, 0),
                outcome(newest, client),
                [sent[place] if place < len(sent) else 0 for place in places],
            )
            rows.append(told)
        total = [0] * len(self.crossed.kinds)
        for sizes in self.crossed.up.values():
            for place, size in enumerate(sizes):
                total[place] += size
        return {
            "kinds": kinds,
            "sent": [total[place] for place in places],
            "envelope": total[self.crossed.kinds[ENVELOPE]] if ENVELOPE in self.crossed.kinds else 0,
            "received": sum(self.crossed.down.values()),
            "columns": COLUMNS_OF_CLIENTS,
            "rows": rows,
        }

    def _alone(self, headline: Headline) -> dict[str, float]:
        """What each client has without the federation, if the run or its study knows."""
        live = self.measured.series.get(SeriesKey("personal", "test", headline.metric))
        if live is not None and self._personal_is_alone:
            last = {client: live.last(at) for at, client in enumerate(self.measured.ids)}
            return {client: value for client, value in last.items() if value is not None}
        if self._finished is None:
            return {}
        known = self._finished[1]
        if headline.metric not in known:
            ids = self.measured.ids[:MOST_LISTED]
            known[headline.metric] = alone_by_client(self.root, self.run, ids, headline, self._others())
        return known[headline.metric]

    @cached_property
    def _personal_is_alone(self) -> bool:
        return keeps_alone(recipe_in(self.root, self.run.parts))

    def _faults(self) -> list[dict[str, Any]]:
        """What went wrong with whom, and in which rounds."""
        found = [
            {"client": client, "what": what, "why": why, "rounds": rounds}
            for client, turns in self.took_part.of.items()
            if turns.wrong
            for what, why, rounds in turns.told()
        ]
        return found[:200]

    def _round(self, round: int | None) -> dict[str, Any] | None:
        found = self._picture(round)
        if found is None:
            return None
        return {
            "round": found.round,
            "asked": found.asked[:MOST_LISTED],
            "number": len(found.asked),
            "answered": {name: list(told) for name, told in list(found.answered.items())[:MOST_LISTED]},
            "merged": found.merged,
            "refused": dict(list(found.refused.items())[:200]),
            "over": found.over,
            "whole": found.whole,
        }

    def _picture(self, round: int | None) -> RoundPicture | None:
        """What came of a round, the newest unless another is named; read once for all parts."""
        if self._pictured[:2] != (round, self.version):
            self._pictured = round, self.version, self._read_round(round)
        return self._pictured[2]

    def _read_round(self, round: int | None) -> RoundPicture | None:
        known = self.happened.known_rounds
        wanted = round if round is not None else known[-1] if known else None
        place = None if wanted is None else self.happened.place(wanted)
        if wanted is None or place is None:
            return None
        try:
            with open_inside(self.root, (*self.run.parts, "events.jsonl")) as file:
                data = os.pread(file.fileno(), LONGEST_ROUND, place)
        except (OSError, ValueError):
            return None
        return round_picture(wanted, data, whole=len(data) < LONGEST_ROUND)


def _means_of(series: Series) -> dict[int, float]:
    """By round, the mean over clients."""
    return {round: band.mean for round in few_rounds(sorted(series.rows)) if (band := series.band(round))}
