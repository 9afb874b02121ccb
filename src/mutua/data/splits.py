"""Splits: which samples train, validate and test, and how all three are dealt to clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from mutua.data.mapped_rows import joined, transformed
from mutua.data.partitions import Deal, Domains, Partition, Rotated, apportion, cut, dealing_seed
from mutua.data.samples import Samples, with_known_classes
from mutua.data.transforms import rotate
from mutua.errors import InputError
from mutua.seeds import numpy_stream
from mutua.support.configuration import Spec


class Split(Spec):
    """Fractions for validation and test; each counts only where the source has none of its own."""

    val: Annotated[float, Field(ge=0, lt=1)] = 0.1
    test: Annotated[float, Field(ge=0, lt=1)] = 0.2
    val_from: Literal["train", "test"] = "train"

    @model_validator(mode="after")
    def _leaves_training_data(self) -> Self:
        if self.val + self.test >= 1:
            raise ValueError(f"val {self.val:g} + test {self.test:g} leave nothing to train on; keep below 1")
        return self


@dataclass(frozen=True)
class ClientData:
    """One client's samples; val and test may be empty."""

    id: str
    train: Samples
    val: Samples
    test: Samples
    domain: str | None = None

    def opted_out(self, which: torch.Tensor | None = None) -> ClientData:
        """The same with these training samples marked as opted out, or all of them."""
        marks = torch.ones(len(self.train), dtype=torch.bool) if which is None else which
        return replace(self, train=replace(self.train, opted_out=marks))


@dataclass(frozen=True)
class DealtSamples:
    """All clients' samples, the common test set, and what a reader should know about them."""

    clients: list[ClientData]
    test: Samples
    notes: list[str]
    given_test: bool = False
    """Whether the common test set came with the data: then it is nobody's."""


def draw(y: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Positions of `n` samples with the class proportions of all."""
    if not 0 <= n <= len(y):
        raise InputError(f"n: {n} samples asked of {len(y)}; give 0 to {len(y)}")
    if n == 0:
        return np.empty(0, dtype=np.int64)
    return cut(y, apportion(n, np.bincount(y), rng)[None], rng)[0]


def deal_like(counts: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Samples dealt class by class in proportion to `counts` (clients × classes); unheld classes left out.

    What does not divide goes to those who are furthest behind over the classes so far: a client that
    is small in every class gets its share too.
    """
    supply = np.bincount(y, minlength=counts.shape[1])
    shares = np.zeros(counts.shape, dtype=np.int64)
    behind = np.zeros(len(counts))
    for c in np.flatnonzero(counts.any(axis=0)):
        shares[:, c] = apportion(supply[c], counts[:, c], rng, behind)
        behind += supply[c] * counts[:, c] / counts[:, c].sum() - shares[:, c]
    return cut(y, shares, rng)


def stratified(y: np.ndarray, fractions: Sequence[float], rng: np.random.Generator) -> list[np.ndarray]:
    """Disjoint positions, one set per fraction, each with the class proportions of all."""
    rest = 1 - sum(fractions)
    if rest < -1e-9 or min(fractions) < 0:
        raise InputError(f"fractions: {list(fractions)}; give numbers of at least 0 that sum to at most 1")
    table = np.repeat([[*fractions, max(rest, 0.0)]], y.max(initial=0) + 1, axis=0).T
    return deal_like(table, y, rng)[:-1]


def grouped(
    y: np.ndarray,
    group: np.ndarray,
    fractions: Sequence[float],
    rng: np.random.Generator,
    known: Mapping[int, int] | None = None,
) -> list[np.ndarray]:
    """Disjoint positions, one set per fraction, that keep each group together: groups by their commonest class.

    `known` groups have their set already.
    """
    names, inverse = np.unique(group, return_inverse=True)
    inverse = inverse.reshape(-1)
    votes = np.zeros((len(names), int(y.max(initial=0)) + 1), np.int64)
    np.add.at(votes, (inverse, y), 1)
    side = np.array([(known or {}).get(int(name), -1) for name in names], np.int64)
    free = np.flatnonzero(side < 0)
    for k, part in enumerate(stratified(votes.argmax(axis=1)[free], fractions, rng) if len(free) else []):
        side[free[part]] = k
    return [np.flatnonzero(side[inverse] == k) for k in range(len(fractions))]


def split_and_deal(
    train: Samples,
    test: Samples | None,
    partition: Partition,
    split: Split,
    *,
    val: Samples | None = None,
    samples_per_client: int | None = None,
    test_samples: int | None = None,
    seed: int,
) -> DealtSamples:
    """Draw, split, then deal: train by the partition, val and test by each client's own training mix.

    A `val` or `test` that is given is dealt as it is; the others are split off `train`. Where the partition has a
    seed of its own, that counts.

    Samples that are opted out follow afterwards, to whom the mix of the others sends them: they change nothing
    about the others, nor the common test set.
    """
    seed = dealing_seed(partition, seed)
    given = test is not None
    parts = {"train": train, "val": val, "test": test}
    hidden: dict[str, Samples] = {}
    if any(part is not None and part.opted_out is not None for part in parts.values()):
        known = {name: part for name, part in parts.items() if part is not None}
        known = dict(zip(known, with_known_classes(list(known.values())), strict=True))
        hidden = {n: p.take(p.opted_out.nonzero()[:, 0]) for n, p in known.items() if p.opted_out is not None}
        known = {name: part.opted_in for name, part in known.items()}
        train, val, test = known["train"], known.get("val"), known.get("test")
        if not len(train):
            raise InputError("opt_out: every sample is opted out; at least one must be in")
    if test is not None:
        test = test.relabelled(train.classes)
        if isinstance(partition, Domains) and test.domains != train.domains:
            raise InputError(
                f"partition.kind: domains, but the test set's domains are {list(test.domains)} and the "
                f"training set's {list(train.domains)}; they must be the same"
            )
    test = _reduced(test, test_samples, seed)

    pools = _pools(train, partition)
    if samples_per_client is not None:
        apart = _pools(hidden["train"], partition) if "train" in hidden else {}
        # A domain that is opted out whole has nothing to draw from here, and is drawn from with what is hidden.
        shown = {name: pool for name, pool in pools.items() if len(pool) or not len(apart.get(name, ()))}
        pools |= _drawn(train, shown, partition, samples_per_client, seed)
    val_fraction = split.val if split.val_from == "train" and val is None else 0.0
    test_fraction = 0.0 if given else split.test
    fractions = [1 - val_fraction - test_fraction, val_fraction, test_fraction]
    fit, held_val, held = _split(train, pools, fractions, seed)
    val, test = held_val if val is None else val, held if test is None else test
    if not len(fit):
        raise InputError(
            f"split: val {split.val:g}, test {split.test:g} leave none of {len(held) + len(held_val)} samples to "
            "train on; lower them or give more samples"
        )

    deal = partition.deal(fit, numpy_stream(seed, "partition"))
    test_parts = _follow(partition, deal, fit, test, numpy_stream(seed, "partition", "test"))
    if split.val_from == "test":
        val, val_parts = test, test_parts
    else:
        val_parts = _follow(partition, deal, fit, val, numpy_stream(seed, "partition", "val"))
    shift = getattr(partition, "shift", None)  # a user's own partition may have none

    def seen(samples: Samples, k: int, name: str) -> Samples:
        turned = _seen(samples, deal, k)
        return turned if shift is None else shift.seen(turned, k, seed, name)

    has_domains = isinstance(partition, Domains | Rotated)
    clients = [
        ClientData(
            id=deal.ids[k],
            train=seen(fit.take(deal.parts[k]), k, "train"),
            val=seen(val.take(val_parts[k]), k, "val"),
            test=seen(test.take(test_parts[k]), k, "test"),
            domain=deal.ids[k] if has_domains else None,
        )
        for k in range(len(deal.ids))
    ]
    if deal.angles or shift is not None:
        common = _union([client.test for client in clients])
    else:
        common = test if given else test.take(np.sort(np.concatenate(test_parts)))
    undealt = {"val": _undealt(val, val_parts), "test": _undealt(test, test_parts)}
    lost: list[str] = []
    if "train" in hidden:
        secret = hidden["train"]
        share = sum(map(len, pools.values())) / len(train)
        pools = {f"{name} opted out": pool for name, pool in _pools(secret, partition).items()}
        y = secret.strata
        for name, pool in pools.items():
            pools[name] = pool[draw(y[pool], round(share * len(pool)), numpy_stream(seed, "draw", name))]
        sides = _sides((fit, held_val, held))
        split_off = zip(("train", "val", "test"), _split(secret, pools, fractions, seed, sides), strict=True)
        hidden |= {name: part for name, part in split_off if name == "train" or len(part)}
    for name, samples in hidden.items():
        own = _follow(partition, deal, fit, samples, numpy_stream(seed, "partition", "opted out", name))
        for k, client in enumerate(clients):
            more: Any = {name: _union([getattr(client, name), seen(samples.take(own[k]), k, name)])}
            clients[k] = replace(client, **more)
        if number := _undealt(samples, own):
            lost.append(f"{number} opted-out {name} samples dealt to nobody: no client has their classes")
    if isinstance(partition, Domains):
        for name, client in zip(train.domains, clients, strict=True):
            if not len(client.train):
                raise InputError(
                    f"partition.kind: domains, but '{name}' has no training sample; "
                    "leave that domain out or give more samples"
                )
    return DealtSamples(clients, common, [*_notes(deal, split, clients, undealt), *lost], given)


def _pools(samples: Samples, partition: Partition) -> dict[str, np.ndarray]:
    """What is drawn from and split on its own: each domain under `domains`, else everything."""
    if isinstance(partition, Domains) and samples.domain is not None:
        domain = samples.domain.numpy()
        return {name: np.flatnonzero(domain == d) for d, name in enumerate(samples.domains)}
    return {"": np.arange(len(samples))}


def _split(
    samples: Samples,
    pools: dict[str, np.ndarray],
    fractions: Sequence[float],
    seed: int,
    sides: Mapping[int, int] | None = None,
) -> tuple[Samples, ...]:
    """The samples of all pools, in one set per fraction: each pool is split on its own.

    A group stays in one set: in that of `sides`, or of a pool that was split before.
    """
    y = samples.strata
    group = None if samples.group is None else samples.group.numpy()
    known = dict(sides or {})
    parts = []
    for name, pool in pools.items():
        rng = numpy_stream(seed, "split", name)
        if group is None:
            cuts = stratified(y[pool], fractions, rng)
        else:
            cuts = grouped(y[pool], group[pool], fractions, rng, known)
            known |= {int(g): side for side, cut in enumerate(cuts) for g in np.unique(group[pool[cut]])}
        parts.append([pool[cut] for cut in cuts])
    return tuple(samples.take(np.sort(np.concatenate(part))) for part in zip(*parts, strict=True))


def _sides(sets: Sequence[Samples]) -> dict[int, int]:
    """In which of the sets each group is."""
    return {int(g): k for k, part in enumerate(sets) if part.group is not None for g in part.group.unique()}


def _drawn(
    samples: Samples, pools: dict[str, np.ndarray], partition: Partition, each: int, seed: int
) -> dict[str, np.ndarray]:
    """The pools reduced to `each` samples per client."""
    if each < 1:
        raise InputError(f"samples_per_client: {each}; give at least 1")
    # A domain is one client's own; the images that are rotated are everybody's.
    sharing = 1 if isinstance(partition, Domains | Rotated) else partition.clients
    for name, pool in pools.items():
        if len(pool) < each * sharing:
            whose = f"domain '{name}' has" if name else "the source has"
            wanted = f"{each} for {sharing} clients needs {each * sharing}" if sharing > 1 else f"{each}"
            way_out = f"give at most {len(pool) // sharing}" if len(pool) >= sharing else "lower clients"
            raise InputError(f"samples_per_client: {wanted}, but {whose} {len(pool)} samples; {way_out}")
    y = samples.strata
    n = each * sharing
    return {name: pool[draw(y[pool], n, numpy_stream(seed, "draw", name))] for name, pool in pools.items()}


def _reduced(test: Samples | None, n: int | None, seed: int) -> Samples | None:
    """The given test set reduced to `n` samples, with the same mix of classes (and domains, if any)."""
    if n is None:
        return test
    if test is None:
        raise InputError(
            f"test_samples: {n}, but the source has no test set to reduce; set split.test, or leave this out"
        )
    if not 1 <= n <= len(test):
        raise InputError(f"test_samples: {n}, but the test set has {len(test)}; give 1 to {len(test)}")
    strata = test.strata
    if test.domain is not None:
        strata = strata + test.domain.numpy() * len(test.classes)
    return test.take(draw(strata, n, numpy_stream(seed, "draw", "test set")))


def _follow(
    partition: Partition, deal: Deal, fit: Samples, held: Samples, rng: np.random.Generator
) -> list[np.ndarray]:
    """Val or test samples dealt as the training samples were."""
    if isinstance(partition, Rotated):
        return [np.arange(len(held)) for _ in deal.ids]
    if isinstance(partition, Domains) and held.domain is not None:
        return [np.flatnonzero(held.domain.numpy() == d) for d in range(len(deal.ids))]
    y, C = fit.strata, len(fit.classes)
    # Training samples left over stand as one more client, whose share of val and test nobody gets.
    left_over = np.ones(len(y), bool)
    for part in deal.parts:
        left_over[part] = False
    counts = np.stack([np.bincount(y[part], minlength=C) for part in [*deal.parts, left_over]])
    return deal_like(counts, held.strata, rng)[:-1]


def _seen(samples: Samples, deal: Deal, k: int) -> Samples:
    """The samples as client k has them: turned by its angle, if it has one, which is then its domain."""
    if not deal.angles:
        return samples
    turned = transformed(samples.x, rotate, deal.angles[k])
    return replace(samples, x=turned, domain=torch.full((len(samples),), k), domains=tuple(deal.ids))


def _union(several: list[Samples]) -> Samples:
    """All samples, with the domains that all of them have and the opt-out marks that any has."""
    domains = [s.domain for s in several if s.domain is not None]
    marks = [s.opted_out if s.opted_out is not None else torch.zeros(len(s), dtype=torch.bool) for s in several]
    return replace(
        several[0],
        x=joined([s.x for s in several]),
        y=torch.cat([s.y for s in several]),
        domain=torch.cat(domains) if len(domains) == len(several) else None,
        opted_out=torch.cat(marks) if any(s.opted_out is not None for s in several) else None,
        group=_groups(several),
    )


def _groups(several: list[Samples]) -> torch.Tensor | None:
    held = [s.group for s in several if s.group is not None]
    return torch.cat(held) if len(held) == len(several) else None


def _undealt(pool: Samples, parts: list[np.ndarray]) -> int:
    return len(pool) - len(np.unique(np.concatenate(parts)))


def _notes(deal: Deal, split: Split, clients: list[ClientData], undealt: dict[str, int]) -> list[str]:
    notes = [deal.note] if deal.note else []
    if split.val_from == "test":
        notes.append(
            "val_from: test: a client's val and its test are the same samples, part of the common test set, "
            "so what is selected on val is selected on test"
        )
    for part, number in undealt.items():
        if number:
            notes.append(f"{number} {part} samples dealt to nobody: no client's training mix has room")
        without = [client.id for client in clients if not len(getattr(client, part))]
        if without:
            who = "any client" if len(without) == len(clients) else ", ".join(without)
            notes.append(f"no {part} sample for {who}")
    return notes
