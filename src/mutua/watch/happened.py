"""What events.jsonl says about a run: how it began, how far it is, and what happened in a round."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mutua.errors import line
from mutua.support.safe_reading import Unreadable, from_json

MAX_ROUNDS = 100_000
"""Of more rounds only the newest are kept."""
MAX_CLIENTS = 20_000
MAX_NOTED = 100
"""How many notes and refusals are kept."""
LONGEST_NAME, LONGEST_REASON = 120, 400
_TRAINED = re.compile(
    rb'\{"event": "trained", "time": "([^"\\]{1,40})", "round": (\d{1,9}), '
    rb'"client": "([^"\\]{1,200})", "seconds": ([\d.e+-]{1,30}), "bytes": (\d{1,18})\}'
)
_ROUND = re.compile(rb'\{"event": "round", "time": "([^"\\]{1,40})", "round": (\d{1,9}), ')
_CHECKPOINT = b'{"event": "checkpoint"'
_MERGED = b'{"event": "merged"'


@dataclass(frozen=True)
class Measurement:
    """What the end of a round says: means, if it was evaluated."""

    time: float | None
    shared: float | None
    own: float | None


@dataclass(frozen=True)
class Seen:
    """A client's newest work."""

    round: int
    time: float | None
    seconds: float


@dataclass
class Happened:
    """The events of a run, taken in block by block, newest first."""

    method: str = ""
    seed: int | None = None
    rounds: int | None = None
    began: float | None = None
    command: str = ""
    clients: list[str] = field(default_factory=list)
    models: dict[str, str] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    metric: str | None = None
    ended: dict[int, Measurement] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)
    retried: dict[str, int] = field(default_factory=dict)
    noted: list[dict[str, Any]] = field(default_factory=list)
    """Notes, refusals and repetitions, in the order in which they were read."""
    last: str = ""
    """The newest event that says what the run is doing."""
    last_time: float | None = None
    round: int = -1
    """The newest round that began or ended."""
    stopped: str = ""
    seconds: float | None = None
    session: float | None = None
    """When the newest session began."""
    session_round: int = -1
    _places: dict[int, int] = field(default_factory=dict)
    _void_above: int = 2**31
    """Going back beyond a `resumed`: rounds above this were made again."""

    def head(self, first: bytes) -> None:
        """The first line: who takes part."""
        event = _event(first)
        if event.get("event") != "begun":
            return
        self.method = line(str(event.get("method", "")), LONGEST_NAME)
        self.seed, self.command = _whole(event.get("seed")), line(str(event.get("command") or ""), 1000)
        if self.rounds is None:
            self.rounds = _whole(event.get("rounds"))
        self.began = moment(event.get("time"))
        if self.session is None:
            self.session = self.began
        ids = event.get("clients")
        self.clients = [str(name) for name in ids[:MAX_CLIENTS]] if isinstance(ids, list) else []
        models, samples = event.get("models"), event.get("samples")
        if isinstance(models, Mapping):
            self.models = {str(name): line(str(model), LONGEST_NAME) for name, model in models.items()}
        if isinstance(samples, Mapping):
            found = {str(name): _whole(number) for name, number in samples.items()}
            self.samples = {name: number for name, number in found.items() if number is not None}

    def take(self, block: bytes, offset: int, older: bool) -> None:
        """Take in whole lines."""
        lines = []
        for text in block.split(b"\n"):
            lines.append((offset, text))
            offset += len(text) + 1
        for at, text in reversed(lines) if older else lines:
            if text:
                self._line(text, at, older)

    def _line(self, text: bytes, at: int, older: bool) -> None:
        if (found := _TRAINED.fullmatch(text)) is not None:
            time, round, client, seconds, _ = found.groups()
            self._work(client.decode(errors="replace"), int(round), time, seconds, older)
        elif (found := _ROUND.match(text)) is not None:
            self._round_begins(int(found[2]), at, found[1].decode(errors="replace"), older)
        elif not text.startswith((_MERGED, _CHECKPOINT)):
            self._other(_event(text), at, older)

    def _work(self, client: str, round: int, time: bytes, seconds: bytes, older: bool) -> None:
        if older and (client in self.seen or round > self._void_above):
            return
        if len(self.seen) >= MAX_CLIENTS and client not in self.seen:
            return
        try:
            took = float(seconds)
        except ValueError:
            return
        self.round = max(self.round, round)
        self._say("trained", time.decode(errors="replace"), older)
        self.seen[client] = Seen(round, moment(time.decode(errors="replace")), took)

    def _round_begins(self, round: int, at: int, time: str, older: bool) -> None:
        if not older or (round <= self._void_above and round not in self._places):
            _keep(self._places, round, at, older)
        self._say("round", time, older)
        if not older:
            self.round = round
        elif round <= self._void_above:
            self.round = max(self.round, round)

    def _other(self, event: dict[str, Any], at: int, older: bool) -> None:
        round = _whole(event.get("round"))
        match event.get("event"):
            case "ended" if round is not None:
                self._ends(event, round, older)
            case "resumed":
                self._goes_on(event, -1 if round is None else round, older)
            case "rejected" | "retried" | "note" as kind:
                if round is None or not older or round <= self._void_above:
                    self._note(kind, event, older)
            case "stopped" if not older or not self.last:
                self.stopped = line(str(event.get("reason", "")), LONGEST_REASON)
                self._say("stopped", event.get("time"), older)
            case "finished" if not older or not self.last:
                self.seconds = _number(event.get("seconds"))
                self._say("finished", event.get("time"), older)

    def _ends(self, event: dict[str, Any], round: int, older: bool) -> None:
        if older and (round > self._void_above or round in self.ended):
            return
        metric = next((key for key, value in event.items() if isinstance(value, Mapping)), None)
        told = event.get(metric) if metric else {}
        if metric is not None and (self.metric is None or not older):
            self.metric = line(metric, LONGEST_NAME)
        means = told if isinstance(told, Mapping) else {}
        found = Measurement(moment(event.get("time")), _number(means.get("global")), _number(means.get("clients")))
        _keep(self.ended, round, found, older)
        self._say("ended", event.get("time"), older)
        self.round = max(self.round, round) if older else round

    def _goes_on(self, event: dict[str, Any], round: int, older: bool) -> None:
        rounds = _whole(event.get("rounds"))
        if older:
            if self._void_above == 2**31:  # the newest one
                self.session, self.session_round = moment(event.get("time")), round
                self.rounds = rounds if rounds is not None else self.rounds
            self._void_above = min(self._void_above, round)
            self.round = max(self.round, round)
            return
        self.session, self.session_round, self.stopped = moment(event.get("time")), round, ""
        self._void_above = min(self._void_above, round)
        self.rounds, self.round, self.seconds = rounds if rounds is not None else self.rounds, round, None
        for kept in (self.ended, self._places):
            for gone in [known for known in kept if known > round]:
                del kept[gone]
        self.noted = [note for note in self.noted if (note["round"] or 0) <= round]
        self._say("resumed", event.get("time"), older)

    def _note(self, kind: str, event: dict[str, Any], older: bool) -> None:
        client = line(str(event.get("client", "")), LONGEST_NAME)
        if kind == "retried" and len(self.retried) < MAX_CLIENTS:
            self.retried[client] = self.retried.get(client, 0) + 1
        told = {
            "kind": kind,
            "round": _whole(event.get("round")),
            "client": client,
            "text": line(str(event.get("reason") or event.get("text") or ""), LONGEST_REASON),
            "time": moment(event.get("time")),
        }
        if not older:
            self.noted.insert(0, told)
            del self.noted[MAX_NOTED:]
        elif len(self.noted) < MAX_NOTED:
            self.noted.append(told)

    def _say(self, what: str, time: object, older: bool) -> None:
        if not older or not self.last:
            self.last = what
            self.last_time = moment(time)
        if not older and what != "stopped":
            self.stopped = ""

    def place(self, round: int) -> int | None:
        """Where the events of a round begin."""
        return self._places.get(round)

    @property
    def known_rounds(self) -> list[int]:
        """The rounds whose events can be shown."""
        return sorted(self._places)

    def seconds_left(self) -> float | None:
        """How long the planned rounds that are left take, if they take as long as the last ten of this session."""
        if self.rounds is None or self.last in ("stopped", "finished", ""):
            return None
        times = [
            (round, found.time)
            for round, found in sorted(self.ended.items())[-11:]
            if found.time is not None and round >= self.session_round
        ]
        if len(times) < 2:
            return None
        (first, began), (newest, ended) = times[0], times[-1]
        if ended <= began or newest <= first:  # the clock was put back
            return None
        return max(0.0, (self.rounds - newest) * (ended - began) / (newest - first))


@dataclass(frozen=True)
class RoundPicture:
    """What came of a round: who was asked, who answered, who was merged with which weight, who was left out."""

    round: int
    asked: list[str]
    answered: dict[str, tuple[float, int]]
    """Seconds of work, and bytes of the reply."""
    merged: dict[str, float | None] | None
    refused: dict[str, str]
    over: bool
    whole: bool = True


def round_picture(round: int, lines: bytes, whole: bool) -> RoundPicture:
    """Read the events of a round: the lines begin with its own, and end where another begins."""
    asked: list[str] = []
    answered: dict[str, tuple[float, int]] = {}
    merged: dict[str, float | None] | None = None
    refused: dict[str, str] = {}
    over = False
    for number, text in enumerate(lines.split(b"\n")):
        if (found := _TRAINED.fullmatch(text)) is not None:
            if int(found[2]) == round:
                answered[found[3].decode(errors="replace")] = float(found[4] or 0), int(found[5])
            continue
        event = _event(text)
        kind = event.get("event")
        if (kind == "round" and number) or kind in ("resumed", "finished", "stopped"):
            over = over or kind == "round"
            break
        if event.get("round") != round:
            continue
        if kind == "round" and isinstance(ids := event.get("clients"), list):
            asked = [str(name) for name in ids[:MAX_CLIENTS]]
        elif kind == "merged" and isinstance(weights := event.get("weights"), Mapping):
            merged = {str(name): _number(weight) for name, weight in list(weights.items())[:MAX_CLIENTS]}
        elif kind == "rejected":
            refused[str(event.get("client"))] = line(str(event.get("reason", "")), LONGEST_REASON)
        elif kind == "ended":
            over = True
    return RoundPicture(round, asked, answered, merged, refused, over, whole)


def moment(text: object) -> float | None:
    """Seconds since 1970 of an event's time."""
    try:
        return datetime.fromisoformat(str(text)[:40]).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _event(text: bytes) -> dict[str, Any]:
    try:
        found = from_json(text)
    except Unreadable:
        return {}
    return found if isinstance(found, dict) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 2**31 else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e12 else None


def _keep(kept: dict[int, Any], round: int, value: object, older: bool) -> None:
    """Keep what a round said; of too many rounds the oldest go."""
    if len(kept) >= MAX_ROUNDS and round not in kept:
        if older:
            return
        del kept[min(kept)]
    kept[round] = value
