"""A public set: samples that every client knows beforehand, each owned by one client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mutua.data.samples import Encoding, Samples, concatenate
from mutua.data.splits import stratified
from mutua.errors import InputError
from mutua.seeds import numpy_stream, public, torch_stream
from mutua.support.text import some


@dataclass(frozen=True, repr=False)
class Public:
    """Samples by owner. Without labels, clients can learn only from what models predict for them."""

    parts: Mapping[str, Samples]
    labelled: bool = True

    def __post_init__(self) -> None:
        empty = [owner for owner, part in sorted(self.parts.items()) if not len(part)]
        if empty or not self.parts:
            whose = f"of client {empty[0]}" if empty else "at all"
            raise InputError(f"public: no samples {whose}; a part needs at least one, or is left out")

    def __repr__(self) -> str:
        return (
            f"Public({len(self)} samples of {some(sorted(self.parts))}, {'' if self.labelled else 'not '}labelled)"
        )

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts.values())

    def fits(self, who: str, samples: Samples) -> None:
        """Refuse a client whose inputs or classes are not those of every part."""
        for owner, part in sorted(self.parts.items()):
            found, wanted = ((s.model_input, s.classes) for s in (part, samples))
            if found != wanted:
                shapes = [tuple(s.x.shape[1:]) for s in (part, samples)]
                raise InputError(
                    f"public: {owner}'s part has inputs {shapes[0]} and {len(found[1])} classes, client {who} "
                    f"{shapes[1]} and {len(wanted[1])}; all must have the same inputs and classes"
                )

    @property
    def scaled_by_itself(self) -> Public:
        """The set as a server sees it, which has no rows of its own: tables are scaled by the public rows."""
        whole = self.whole
        return self if whole.preprocess.fitted else self.seen_by(whole.preprocess.fit(whole.x))

    def seen_by(self, encoding: Encoding) -> Public:
        """The set as a client sees it, who scales tables as it does its own; what is known to all stays."""
        if all(part.preprocess.fitted for part in self.parts.values()):
            return self
        parts = {o: p if p.preprocess.fitted else replace(p, preprocess=encoding) for o, p in self.parts.items()}
        return replace(self, parts=parts)

    @property
    def whole(self) -> Samples:
        """All owners' samples, in the order of their ids."""
        return concatenate([self.parts[owner] for owner in sorted(self.parts)])

    def batch(self, owner: str, size: int, seed: int, round: int) -> Samples:
        """The owner's public batch of a round: a public draw, so its peers recompute it and no index is sent."""
        part = self.parts[owner]
        order = torch.randperm(len(part), generator=torch_stream(seed, owner, round, "public batch"))
        return part.take(order[:size]).in_memory()

    def subset(self, size: int, seed: int, round: int) -> Samples:
        """A round's part of the whole set: a public draw too."""
        whole = self.whole
        order = torch.randperm(len(whole), generator=torch_stream(seed, round, "public subset"))
        return whole.take(order[:size]).in_memory()


def dealt(samples: Samples, owners: Sequence[str], seed: int, labelled: bool, name: str = "public") -> Public:
    """A public set whose samples are given to owners in turn, by a public draw."""
    ids = sorted(owners)
    if len(samples) < len(ids):
        raise InputError(f"{name}: {len(samples)} samples for {len(ids)} clients; each must own one")
    order = numpy_stream(public(seed), "public owners").permutation(len(samples))
    return Public({owner: samples.take(order[k :: len(ids)]) for k, owner in enumerate(ids)}, labelled)


def carve(samples: Samples, number: int, seed: int, who: str) -> tuple[Samples, Samples]:
    """Split a client's samples into those it keeps and `number` public ones, class by class.

    The draw does not depend on the client: domains that show the same images make the same ones public.
    """
    if not 1 <= number < len(samples):
        raise InputError(
            f"public.share: client {who} would give {number} of {len(samples)} samples; "
            "it must give at least one and keep at least one"
        )
    y = samples.strata
    (chosen,) = stratified(y, [number / len(y)], numpy_stream(seed, "public"))
    kept = np.setdiff1d(np.arange(len(y)), chosen)
    return samples.take(kept), samples.take(chosen)
