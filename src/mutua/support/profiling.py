"""Where a run's time went, from training to idling, and a trace of what each process did when."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from mutua.errors import RunError
from mutua.support.configuration import PathLike, local_path
from mutua.support.files import cannot_write, write_file

_KINDS = {"start": "train", "finish": "train", "assess": "evaluate", "score": "evaluate"}
"""What the engines' work items count as; any other name counts as itself."""
SHOWN = ("train", "evaluate", "merge", "data", "checkpoint")


class Span(NamedTuple):
    """What a process did for which client: when, by a clock that all processes share, and its CPU time."""

    process: int
    what: str
    client: str
    began: float
    ended: float
    cpu: float


@dataclass
class Profile:
    """Everything that was timed while the profile was active, on so many workers."""

    workers: int = 1
    spans: list[Span] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    ended: float = 0.0
    other: float = 0.0
    """CPU seconds of this process that no span covers: imports, forking workers, packing, progress bars."""

    @contextmanager
    def active(self) -> Iterator[Profile]:
        """Record everything that is timed in this block."""
        global _active
        before, _active = _active, self
        cpu = time.process_time()
        try:
            yield self
        finally:
            _active = before
            self.ended = time.perf_counter()
            own = sum(span.cpu for span in self.spans if span.process == 0)
            self.other = time.process_time() - cpu - own

    def seconds(self) -> dict[str, float]:
        """CPU seconds by purpose; "idle" is what was left of the workers' cores."""
        found = dict.fromkeys(SHOWN, 0.0)
        for span in self.spans:
            kind = _KINDS.get(span.what, span.what)
            found[kind] = found.get(kind, 0.0) + span.cpu
        found["other"] = self.other
        whole = (self.ended - self.began) * self.workers
        return found | {"idle": max(0.0, whole - sum(found.values()))}

    def write(self, path: PathLike) -> None:
        """Write the trace, for chrome://tracing or ui.perfetto.dev."""
        events = [
            {
                "name": f"{span.what} {span.client}".strip(),
                "cat": _KINDS.get(span.what, span.what),
                "ph": "X",
                "ts": round(1e6 * (span.began - self.began), 1),
                "dur": round(1e6 * (span.ended - span.began), 1),
                "pid": 0,
                "tid": span.process,
                "args": {"cpu_seconds": round(span.cpu, 6)},
            }
            for span in self.spans
        ]
        try:
            write_file(
                local_path(path, "path"), json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n"
            )
        except OSError as error:
            raise RunError(cannot_write(path, error)) from None


_active: Profile | None = None


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Record how long this block takes, if a profile is active."""
    if _active is None:
        yield
        return
    began, cpu = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        _active.spans.append(Span(0, what, "", began, time.perf_counter(), time.process_time() - cpu))


def record_span(span: Span) -> None:
    """Record what was timed elsewhere, as in a worker."""
    if _active is not None:
        _active.spans.append(span)
