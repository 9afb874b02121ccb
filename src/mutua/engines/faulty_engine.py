"""An engine around another one, whose clients fail on purpose: neither that engine nor the method knows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from mutua.engines.faults import CorruptionKind, Faults
from mutua.engines.protocol import TOO_LONG, Engine, Evaluation
from mutua.engines.work import Briefs, Replies, Reply
from mutua.errors import RunError
from mutua.federation.commit_files import CommitFiles
from mutua.federation.federation import Federation
from mutua.federation.message import Message, Part
from mutua.federation.store import Store
from mutua.methods.base import Job, Method
from mutua.methods.participant import Participant
from mutua.support.tensor_files import Tensors


@dataclass
class FaultyEngine:
    """Keeps briefs from absent clients, and corrupts replies on their way."""

    engine: Engine
    faults: Faults

    @property
    def stores(self) -> Mapping[str, Store]:
        """What each client keeps, which is never corrupted."""
        return self.engine.stores

    def open(
        self,
        job: Job,
        federation: Federation,
        stores: Mapping[str, Store] | None = None,
        files: CommitFiles | None = None,
    ) -> None:
        """Take the job, with a method that comes late or raises."""
        self.seed, self.alone = job.plan.seed, job.method.works_alone
        self.engine.open(replace(job, method=_failing(job.method, self.faults)), federation, stores, files)

    def start(self) -> None:
        """Every client's `start`."""
        self.engine.start()

    def train(self, round: int, briefs: Briefs) -> Replies:
        """Train the clients that are present, and corrupt some of their replies."""
        there = dict(briefs)
        if not self.alone:  # a client that works alone needs no connection
            there = {c: brief for c, brief in there.items() if not self.faults.absent(self.seed, c, round)}
        replies = dict(self.engine.train(round, there))
        for client, reply in replies.items():
            if isinstance(reply, Reply) and reply.message is not None:
                message = reply.message
                for kind in self.faults.corruptions(self.seed, client, round):
                    message = corrupted(message, kind, briefs[client])
                replies[client] = replace(reply, message=message)
        return replies

    def finish(self, round: int, briefs: Briefs) -> Replies:
        """Every client's `finish`."""
        return self.engine.finish(round, briefs)

    def evaluate(self, round: int, briefs: Briefs, shared: Tensors | None) -> Evaluation:
        """The clients' models on their own data, and the global on the common test set."""
        return self.engine.evaluate(round, briefs, shared)

    def mishaps(self) -> Sequence[tuple[str, str]]:
        """By client, what the machine failed in and did again: not on purpose."""
        return self.engine.mishaps()

    def close(self) -> None:
        """Give back what the engine holds."""
        self.engine.close()


def _failing(method: Method, faults: Faults) -> Method:
    """The method, except that some clients come late or raise, which must happen where they work."""

    class Failing(type(method)):  # type: ignore[misc]
        def train(self, client: Participant, brief: Message | None) -> Message | None:
            who = client.plan.seed, client.id, client.round
            time.sleep(min(faults.delay(*who), 1e9))  # the longest that the system can sleep
            if "raise" in faults.corruptions(*who):
                raise RunError("it broke down, as it was told to")
            return super().train(client, brief)  # type: ignore[no-any-return]

    failing: Method = Failing.model_construct(**{f: getattr(method, f) for f in type(method).model_fields})
    return failing


def corrupted(message: Message, kind: CorruptionKind, brief: Message | None) -> Message:
    """The message with its first array of real numbers corrupted, or (norm) with a thousand times its update."""
    parts = {name: dict(part.arrays) for name, part in message.items()}
    real = [(n, key) for n, arrays in parts.items() for key, array in arrays.items() if array.is_floating_point()]
    if kind == "norm":
        sent = {key: array for part in (brief or {}).values() for key, array in part.arrays.items()}
        for name, key in real:
            array = parts[name][key]
            before = sent.get(key, torch.zeros(()))
            parts[name][key] = before + 1000 * (array - before)
    else:
        for name, key in real[:1]:
            _corrupt(parts[name], key, kind, message.nbytes)
    return Message(**{name: Part(message[name].kind, arrays) for name, arrays in parts.items()})


def _corrupt(arrays: Tensors, key: str, kind: CorruptionKind, length: int) -> None:
    array = arrays.pop(key)
    if kind in ("nan", "inf"):
        array = array.clone(memory_format=torch.contiguous_format)
        array.view(-1)[:1] = float(kind)
    elif kind == "shape":
        array = array[None]
    elif kind == "dtype":
        array = array.float() if array.dtype == torch.float64 else array.double()
    elif kind == "bytes":  # the same memory again and again, so that it costs none
        array = array.expand(1 + TOO_LONG * length // max(1, array.nbytes), *array.shape)
    arrays["misnamed" if kind == "name" else key] = array
