"""The page's server: files of the page, and streams of what changes in the run folders."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

from mutua import __version__
from mutua.errors import InputError
from mutua.support.configuration import PathLike
from mutua.support.files import to_json
from mutua.support.safe_reading import Unreadable, from_json
from mutua.watch.catalogue import Catalogue, state_of
from mutua.watch.comparing import MOST_COMPARED, CompareView
from mutua.watch.run_view import MOST_CHOSEN, RunView
from mutua.watch.stopping import stop

FEW, FEW_POLL = 16, 0.05
"""So few runs at work are looked at more often in the list."""
POLL, IDLE_POLL, LIST_POLL = 0.02, 0.5, 1.0
"""Seconds between looks at the files of a run that is at work, at those of other runs, and at all folders."""
BURST, BURST_SECONDS = 3, 0.6
"""So many messages of a stream in so many seconds, so that a run with many events does not flood the browser."""
WORK = 0.08
"""Seconds that are read at a time; as long a pause follows, since the machine has runs to do."""
CATCHING_UP = 0.5
"""Seconds between two messages while older lines are read."""
ALIVE = 10.0
MOST_STREAMS = 48
MOST_VIEWS = 6
"""How many runs are kept in memory; a hostile folder can make one take a third of a GB."""
MOST_BODY = 4096
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

PageParts = dict[str, Any]


@dataclass(frozen=True)
class StreamSource:
    """What a stream tells of."""

    read: Callable[[float], bool]
    """Read on for about so many seconds; whether there is more to read at once."""
    tell: Callable[[], PageParts]
    pause: Callable[[], float]
    """Seconds until the next look."""
    version: Callable[[], object] = object
    """Another one if there may be something new to tell."""


def page_files() -> dict[str, tuple[str, bytes]]:
    """The files of the page by name, with their types: all there are, read once."""
    found = {}
    for file in files("mutua.watch").joinpath("static").iterdir():
        kind = _TYPES.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None:
            found[file.name] = f"{kind}; charset=utf-8", file.read_bytes()
    return found


class Pages:
    """Answers the page's requests about the runs below one folder."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._files = page_files()
        self._views: OrderedDict[str, RunView] = OrderedDict()
        self._streams = 0
        self.closing = False

    def app(self) -> Any:
        """The application."""
        from starlette.applications import Starlette
        from starlette.routing import Route

        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/static/{name}", self._file),
                Route("/api/list", self._list),
                Route("/api/run", self._run),
                Route("/api/compare", self._compare),
                Route("/api/study", self._study),
                Route("/api/stop", self._stop, methods=["POST"]),
            ]
        )

    async def _page(self, _: Any) -> Any:
        return self._answer(*self._files["index.html"])

    async def _file(self, request: Any) -> Any:
        found = self._files.get(request.path_params["name"])
        return self._problem(404, "no such file") if found is None else self._answer(*found)

    async def _list(self, request: Any) -> Any:
        at_work = 0

        def tell() -> PageParts:
            nonlocal at_work
            idle = time.monotonic() - self.catalogue.looked > LIST_POLL
            if idle:
                self.catalogue.look()
            studies = [
                {"id": study.id, "name": study.name, "runs": len(self.catalogue.of_study(study.id))}
                for study in self.catalogue.studies.values()
            ]
            rows = self.catalogue.rows(idle)
            at_work = sum(row["state"] == "running" for row in rows)
            told = {
                "folder": str(self.catalogue.typed),
                "version": __version__,
                "left_out": self.catalogue.left_out,
                "studies": studies,
                "runs": rows,
            }
            return {"list": told}

        def pause() -> float:
            return FEW_POLL if 0 < at_work <= FEW else LIST_POLL

        return self._stream(request, StreamSource(lambda _: False, tell, pause))

    async def _run(self, request: Any) -> Any:
        asked = request.query_params
        view = await asyncio.to_thread(self._view, asked.get("id", ""))
        if view is None:
            return self._problem(404, "there is no such run")
        round = asked.get("round", "")
        parts = partial(
            view.parts,
            asked.get("metric") or None,
            asked.getlist("client")[:MOST_CHOSEN],
            int(round) if round.isdecimal() and len(round) < 10 else None,
        )
        pause = partial(_pause_of, view)
        return self._stream(request, StreamSource(view.advance, parts, pause, lambda: view.version))

    async def _compare(self, request: Any) -> Any:
        wanted = request.query_params.getlist("id")[: MOST_COMPARED + 1]
        found = await asyncio.to_thread(lambda: [self.catalogue.run(id) for id in wanted])
        runs = [run for run in found if run is not None]
        if not runs:
            return self._problem(404, "there is no such run")
        view = await asyncio.to_thread(CompareView, self.catalogue.root, runs)
        return self._stream(request, StreamSource(view.advance, view.parts, lambda: IDLE_POLL))

    async def _study(self, request: Any) -> Any:
        id = request.query_params.get("id", "")
        if id not in self.catalogue.studies:
            await asyncio.to_thread(self.catalogue.look)
        study = self.catalogue.studies.get(id)
        if study is None:
            return self._problem(404, "there is no such study")
        view = await asyncio.to_thread(CompareView, self.catalogue.root, self.catalogue.of_study(id), study)

        def read(seconds: float) -> bool:
            if time.monotonic() - self.catalogue.looked > LIST_POLL:
                self.catalogue.look()
            view.update(self.catalogue.of_study(id))
            return view.advance(seconds)

        def tell() -> PageParts:
            rows = {row["id"]: row for row in self.catalogue.rows()}
            mine = [rows[run.id] for run in self.catalogue.of_study(id) if run.id in rows]
            return {**view.parts(), "runs": mine}

        return self._stream(request, StreamSource(read, tell, lambda: IDLE_POLL))

    async def _stop(self, request: Any) -> Any:
        """Stop a run of this machine."""
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BODY:
                return self._problem(413, "too long")
        try:
            told = from_json(body)
        except Unreadable:
            told = None
        id = told.get("id") if isinstance(told, dict) else None
        run = self.catalogue.run(id) if isinstance(id, str) else None
        if run is None:
            return self._problem(404, "there is no such run")
        view = await asyncio.to_thread(self._view, run.id)
        if view is not None and view.deployed:
            return self._problem(409, "a deployment is stopped by its organiser, where it was started")
        if state_of(self.catalogue.root, run.parts) != "running":
            return self._problem(409, "the run is not at work")
        try:
            await asyncio.to_thread(stop, self.catalogue.root, run.parts)
        except InputError as error:
            return self._problem(409, str(error).removeprefix("RUN: "))
        return self._answer("application/json", b'{"stopping": true}')

    def _view(self, id: str) -> RunView | None:
        """The run's view; the last few are kept, so that a page that is opened again need not wait."""
        found = self.catalogue.run(id)
        if found is None:
            return None
        view = self._views.get(id)
        if view is None:
            others = partial(self.catalogue.alone_in, found.study)
            view = self._views[id] = RunView(self.catalogue.root, found, others)
        self._views.move_to_end(id)
        while len(self._views) > MOST_VIEWS:
            self._views.popitem(last=False)
        return view

    def _stream(self, request: Any, source: StreamSource) -> Any:
        from starlette.responses import StreamingResponse

        if self._streams >= MOST_STREAMS:
            return self._problem(503, "too many pages are open")
        return StreamingResponse(self._messages(request.is_disconnected, source), media_type="text/event-stream")

    async def _messages(self, gone: Callable[[], Awaitable[bool]], source: StreamSource) -> AsyncIterator[bytes]:
        """Server-sent events: each part when it has changed, and now and then a sign of life."""
        self._streams += 1
        sent: dict[str, bytes] = {}
        told: object = None
        alive = time.monotonic()
        recent = deque([0.0] * BURST, maxlen=BURST)

        def work() -> tuple[object, bool, bytes]:
            """Read, and say what has changed unless enough was said just now: in one turn of a thread."""
            more, now = source.read(WORK), time.monotonic()
            enough = now - recent[0] < BURST_SECONDS or (more and now - recent[-1] < CATCHING_UP)
            version = told if enough else source.version()
            return version, more, b"" if version == told else _changed(source.tell(), sent)

        try:
            yield b"retry: 1000\n\n"
            while not self.closing and not await gone():
                began = time.monotonic()
                told, more, message = await asyncio.to_thread(work)
                if message:
                    alive = time.monotonic()
                    recent.append(alive)
                    yield message
                if time.monotonic() - alive > ALIVE:
                    alive = time.monotonic()
                    yield b": alive\n\n"
                await self._rest(max(time.monotonic() - began, 0.01) if more else source.pause())
        finally:
            self._streams -= 1

    async def _rest(self, seconds: float) -> None:
        """Wait, but not for long when the server is to end."""
        until = time.monotonic() + seconds
        while not self.closing and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.1))

    def _answer(self, kind: str, body: bytes, status: int = 200) -> Any:
        from starlette.responses import Response

        return Response(body, status, headers={"content-type": kind})

    def _problem(self, status: int, text: str) -> Any:
        return self._answer("application/json", to_json({"error": text}, indent=None).encode(), status)


def _pause_of(view: RunView) -> float:
    return POLL if view.running else IDLE_POLL


def _changed(parts: PageParts, sent: dict[str, bytes]) -> bytes:
    """The parts that are not as they were sent last."""
    message = b""
    for name, part in parts.items():
        text = to_json(part, indent=None).encode()
        checksum = hashlib.blake2b(text, digest_size=16).digest()
        if sent.get(name) != checksum:
            sent[name] = checksum
            message += b"event: " + name.encode() + b"\ndata: " + text + b"\n\n"
    return message


def catalogue_of(given: PathLike) -> Catalogue:
    """The catalogue of a folder, with what is in it now."""
    found = Catalogue(given)
    found.look()
    return found
