"""Partitions: how training samples are dealt to clients.

A partition is a small model, written in a recipe (`partition: {kind: shards, clients: 5, ...}`) or in
Python (`Shards(clients=5, ...)`). Almost all of them come down to one table, how many samples of each class
each client gets; `cut` then draws the samples.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, FiniteFloat, model_validator

from mutua.data.samples import Samples
from mutua.data.shifts import Shift
from mutua.errors import InputError
from mutua.support.configuration import Spec

TRIES = 1000
EPS = 1e-9


@dataclass(frozen=True)
class Deal:
    """What each client gets: positions in the samples (ascending), ids, and what a reader should know."""

    parts: list[np.ndarray]
    ids: list[str]
    note: str = ""
    angles: tuple[float, ...] = ()


def apportion(
    n: int, weights: np.ndarray, rng: np.random.Generator, carry: np.ndarray | float = 0.0
) -> np.ndarray:
    """`n` in whole numbers in proportion to `weights`: largest remainder (plus `carry`), ties at random."""
    exact = n * weights / weights.sum()
    sizes: np.ndarray = np.floor(exact + EPS).astype(np.int64)
    rest = exact - sizes
    order = np.lexsort((rng.random(len(weights)), -np.round(rest + carry, 9), rest <= EPS))
    sizes[order[: n - sizes.sum()]] += 1
    return sizes


def cut(y: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """For each row of `counts` (clients × classes), that many random samples of each class; no sample twice."""
    ends = np.cumsum(counts, axis=0)
    columns = range(counts.shape[1])
    members = [rng.permutation(np.flatnonzero(y == c)) for c in columns]
    return [
        np.sort(np.concatenate([members[c][ends[k, c] - counts[k, c] : ends[k, c]] for c in columns]))
        for k in range(len(counts))
    ]


class _Seeded(Spec):
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Who gets which samples; None is the run's own seed."""
    shift: Shift | None = None
    """What else makes clients differ."""


def dealing_seed(partition: object, seed: int) -> int:
    """The seed by which data is dealt in a run of this seed: the partition's own, if it has one."""
    own = getattr(partition, "seed", None)  # a user's own partition may have none
    return seed if own is None else int(own)


class _Counted(_Seeded):
    clients: Annotated[int, Field(ge=1)]

    def _ids(self) -> list[str]:
        width = len(str(self.clients - 1))
        return [f"c{k:0{width}d}" for k in range(self.clients)]

    def _classes(self, samples: Samples) -> np.ndarray:
        """Every sample's class; refused where samples have labels of another kind."""
        if samples.kind != "classification":
            raise InputError(
                f"partition.kind: '{getattr(self, 'kind', '')}' deals by class, and {samples.kind} has no one "
                "class per sample; use iid or lognormal, or give each client data of its own"
            )
        return np.asarray(samples.y.numpy())

    def _enough(self, samples: Samples) -> None:
        if len(samples) < self.clients:
            raise InputError(
                f"partition.clients: {self.clients} clients for {len(samples)} training samples; "
                f"give at most {len(samples)} clients"
            )


class IID(_Counted):
    """Every client gets a random part of the same size (sizes differ by at most 1)."""

    kind: Literal["iid"] = "iid"

    def deal(self, samples: Samples, rng: np.random.Generator) -> Deal:
        """The shuffled samples cut in equal parts."""
        self._enough(samples)
        parts = np.array_split(rng.permutation(len(samples)), self.clients)
        return Deal([np.sort(part) for part in parts], self._ids())


class LogNormal(_Counted):
    """Every client gets a random part of log-normal size: the larger `sigma`, the more sizes differ."""

    kind: Literal["lognormal"] = "lognormal"
    sigma: Annotated[FiniteFloat, Field(ge=0)]

    def deal(self, samples: Samples, rng: np.random.Generator) -> Deal:
        """The shuffled samples cut in parts of log-normal sizes, each at least 1."""
        self._enough(samples)
        z = rng.standard_normal(self.clients)
        weights = np.exp(self.sigma * (z - z.max()))  # the maximum is subtracted so that nothing overflows
        sizes = 1 + apportion(len(samples) - self.clients, weights, rng)
        parts = np.split(rng.permutation(len(samples)), np.cumsum(sizes)[:-1])
        return Deal([np.sort(part) for part in parts], self._ids())


class Shards(_Counted):
    """Every client gets `shards_per_client` shards; a shard is of one class if the numbers allow it."""

    kind: Literal["shards"] = "shards"
    shards_per_client: Annotated[int, Field(ge=1)]

    def deal(self, samples: Samples, rng: np.random.Generator) -> Deal:
        """Shards of one class if clients × shards is a multiple of the classes, otherwise of sorted labels."""
        names, y = np.unique(self._classes(samples), return_inverse=True)
        K, p, C, N = self.clients, self.shards_per_client, len(names), len(samples)
        if p > C:
            raise InputError(
                f"partition.shards_per_client: {p}, but the training data has {C} classes; give at most {C}"
            )
        if K * p > N:
            raise InputError(
                f"partition.shards_per_client: {p} for {K} clients makes {K * p} shards, but there are {N} "
                "training samples; lower clients or shards_per_client, or give more samples"
            )
        if K * p % C:
            by_label = np.lexsort((rng.random(N), y))
            shards = np.array_split(by_label, K * p)
            order = rng.permutation(K * p).reshape(K, p)
            note = (
                f"shards cut across classes, because {K} clients × {p} shards = {K * p} is not a multiple of "
                f"{C} classes: a client may hold more than {p}"
            )
            parts = [np.sort(np.concatenate([shards[s] for s in row])) for row in order]
            return Deal(parts, self._ids(), note)

        copies, supply = K * p // C, np.bincount(y)
        if supply.min() < copies:
            scarce = int(supply.argmin())
            raise InputError(
                f"partition.shards_per_client: {p} for {K} clients cuts each class into {copies} shards, but "
                f"class '{samples.classes[names[scarce]]}' has {supply[scarce]} training samples; "
                "lower clients or shards_per_client, or give more samples"
            )
        counts = np.zeros((K, C), dtype=np.int64)
        left = np.full(C, copies)
        for k in rng.permutation(K):
            # Taking the classes with the most shards left always leaves different ones for the next client.
            mine = np.lexsort((rng.random(C), -left))[:p]
            counts[k, mine] = (supply[mine] + left[mine] - 1) // copies
            left[mine] -= 1
        return Deal(cut(y, counts, rng), self._ids())


class Dirichlet(_Counted):
    """Each class is spread over clients by Dirichlet(`alpha`), with at least `min_size` samples per client."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: Annotated[FiniteFloat, Field(gt=0)]
    min_size: Annotated[int, Field(ge=1)] = 10

    def deal(self, samples: Samples, rng: np.random.Generator) -> Deal:
        """Draw proportions until every client has enough, a limited number of times."""
        if self.clients * self.min_size > len(samples):
            raise InputError(
                f"partition.min_size: {self.min_size} for each of {self.clients} clients needs "
                f"{self.clients * self.min_size} training samples, and there are {len(samples)}; "
                "lower min_size or clients"
            )
        y = self._classes(samples)
        supply = samples.counts()[:, None]
        for _ in range(TRIES):
            shares = rng.dirichlet(np.full(self.clients, self.alpha), size=len(supply))
            ends = np.rint(np.cumsum(shares, axis=1) * supply).astype(np.int64)
            ends[:, -1] = supply[:, 0]
            counts = np.diff(ends, axis=1, prepend=0).T
            if counts.sum(axis=1).min() >= self.min_size:
                return Deal(cut(y, counts, rng), self._ids())
        raise InputError(
            f"partition.alpha: {self.alpha:g} gave no draw in {TRIES} in which each of {self.clients} clients "
            f"has at least {self.min_size} of {len(samples)} training samples; raise alpha, or lower min_size "
            "or clients"
        )


class Majority(_Counted):
    """Every client gets the same number of samples, a fraction `p` of them in its own few majority classes."""

    kind: Literal["majority"] = "majority"
    p: Annotated[FiniteFloat, Field(ge=0, le=1)]
    majority_classes: Annotated[int, Field(ge=1)] = 2

    def deal(self, samples: Samples, rng: np.random.Generator) -> Deal:
        """The largest equal size that the classes can supply; clients share majority classes only if they must."""
        self._enough(samples)
        y = np.unique(self._classes(samples), return_inverse=True)[1]
        supply = np.bincount(y)
        K, m, C, N = self.clients, self.majority_classes, len(supply), len(samples)
        if m > C or (m == C and self.p < 1):
            raise InputError(
                f"partition.majority_classes: {m}, but the training data has {C} classes; "
                f"give fewer than {C}, or {C} with p = 1"
            )
        major = np.zeros((K, C), dtype=bool)
        major[np.arange(K).repeat(m), np.resize(rng.permutation(C), K * m)] = True
        size, counts = N // K, None
        while size and (counts := self._counts(size, supply, major, rng)) is None:
            size -= 1
        if counts is None:
            raise InputError(
                f"partition.p: {self.p:g} with {K} clients asks more of a class than it has (the rarest has "
                f"{supply.min()} training samples); lower clients or give more samples"
            )
        notes = []
        if K * size < N:
            notes.append(f"{N - K * size} of {N} training samples left over: this mix allows {size} per client")
        if self.p < m / C:
            notes.append(f"p = {self.p:g} is below an even share ({m / C:g}): the majority is a minority")
        return Deal(cut(y, counts, rng), self._ids(), "; ".join(notes))

    def _counts(
        self, size: int, supply: np.ndarray, major: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray | None:
        """How many samples of each class each client gets at this size; None if a class has too few."""
        in_major = int(np.floor(self.p * size + 0.5 + EPS))
        m, others = self.majority_classes, major.shape[1] - self.majority_classes
        base_major, more_major = divmod(in_major, m)
        base_other, more_other = divmod(size - in_major, others) if others else (0, 0)
        counts = np.where(major, base_major, base_other)
        left = supply - counts.sum(axis=0)
        if left.min() < 0:
            return None
        # The remainder is taken from the classes with the most samples left, one sample per class.
        extra = np.zeros_like(major)
        for k in rng.permutation(len(major)):
            order = np.lexsort((rng.random(len(left)), -left))
            mine = major[k, order]
            takes = np.concatenate([order[mine][:more_major], order[~mine][:more_other]])
            extra[k, takes] = True
            left[takes] -= 1
        while left.min() < 0:
            if not _relieve(int(left.argmin()), extra, left, major):
                return None
        return np.asarray(counts + extra)


def _relieve(scarce: int, extra: np.ndarray, left: np.ndarray, major: np.ndarray) -> bool:
    """Move one sample from an overdrawn class to one with some left, by a chain of clients, if there is one."""

    def movable(c: int) -> np.ndarray:
        """Which clients can give up their extra sample of class c for one of which other class."""
        return np.asarray(extra[:, c, None] & ~extra & (major == major[:, c, None]))

    came_from, queue = {scarce: scarce}, [scarce]
    for c in queue:
        if left[c] > 0:
            left[c] -= 1
            left[scarce] += 1
            while c != scarce:
                previous = came_from[c]
                k = movable(previous)[:, c].argmax()
                extra[k, previous], extra[k, c] = False, True
                c = previous
            return True
        for other in np.flatnonzero(movable(c).any(axis=0)).tolist():
            if other not in came_from:
                came_from[other] = c
                queue.append(other)
    return False


class Domains(_Seeded):
    """One client per domain of the source."""

    kind: Literal["domains"] = "domains"

    def deal(self, samples: Samples, rng: np.random.Generator) -> Deal:
        """Give every sample to the client of its domain, which has none if all of its samples are opted out."""
        if samples.domain is None:
            raise InputError(
                "partition.kind: domains, but the data has no domains; use a source that has, or another kind"
            )
        domain = samples.domain.numpy()
        parts = [np.flatnonzero(domain == d) for d in range(len(samples.domains))]
        # A domain's name may hold spaces, as Office-Home's "Real World" does; a client's id may not.
        return Deal(parts, [name.replace(" ", "_") for name in samples.domains])


class ByColumn(Domains):
    """One client per value of a table's column, such as the hospital that a row came from."""

    kind: Literal["column"] = "column"  # type: ignore[assignment]
    column: str

    def deal(self, samples: Samples, rng: np.random.Generator) -> Deal:
        """Give every row to the client that its column names."""
        if samples.domain is None:
            raise InputError(
                f"partition.kind: column, but the data has no column '{self.column}'; it is for tables and texts"
            )
        parts = super().deal(samples, rng).parts
        return Deal(parts, [re.sub(r"[^\w.+-]", "_", name, flags=re.ASCII) for name in samples.domains])


class Rotated(_Seeded):
    """One client per angle (degrees clockwise): all have the same images, each client turns them by its own."""

    kind: Literal["rotated"] = "rotated"
    angles: Annotated[tuple[FiniteFloat, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _different(self) -> Self:
        ids = self._ids()
        twice = [name for name in ids if ids.count(name) > 1]
        if twice:
            raise ValueError(f"{twice[0]} is given twice; angles must differ because they name the clients")
        return self

    def _ids(self) -> list[str]:
        return [f"{angle:g}deg" for angle in self.angles]

    def deal(self, samples: Samples, rng: np.random.Generator) -> Deal:
        """Give every image to every client."""
        if samples.x.dim() != 4:
            raise InputError(
                f"partition.kind: rotated needs images, but a sample has shape {tuple(samples.x.shape[1:])}; "
                "use an image source or another kind"
            )
        if not len(samples):
            raise InputError("partition.kind: rotated, but there is no training sample; give more samples")
        parts = [np.arange(len(samples)) for _ in self.angles]
        note = "all clients have the same images, each at its own angle"
        return Deal(parts, self._ids(), note, self.angles)


Partition = Annotated[
    IID | Shards | Dirichlet | Majority | LogNormal | Domains | ByColumn | Rotated, Field(discriminator="kind")
]
