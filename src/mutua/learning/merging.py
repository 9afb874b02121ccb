"""Merging: one model out of many of the same shape. A method gives weights, a combiner combines.

Yin et al. 2018, "Byzantine-robust distributed learning: towards optimal statistical rates" (trimmed mean, median);
Sun et al. 2019, "Can you really backdoor federated learning?" (norm clipping); Blanchard et al. 2017, "Machine
learning with adversaries: Byzantine tolerant gradient descent" (Krum).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from mutua.errors import Refused
from mutua.support.configuration import Spec
from mutua.support.tensor_files import Tensors

COMPARABLE = 3
"""With fewer replies none is refused for being longer than the others: there is no majority."""

Weights = Sequence[float]
BadShare = Annotated[float, Field(ge=0, lt=0.5)]


class Mean(Spec):
    """The weighted mean: fast, but a single bad client can move it anywhere."""

    name: Literal["mean"] = "mean"

    def __call__(self, states: Sequence[Tensors], weights: Weights, before: Tensors) -> Tensors:
        """One state of many in client-id order; `before` is the global that they were forked from."""
        return mean(states, weights, before)


class TrimmedMean(Spec):
    """Number by number: without the `share` of clients at either end, the weighted mean of the rest."""

    name: Literal["trimmed-mean"] = "trimmed-mean"
    share: BadShare = 0.2

    def __call__(self, states: Sequence[Tensors], weights: Weights, before: Tensors) -> Tensors:
        """As Yin et al., Definition 2."""
        return _by_number(states, weights, min(_bad(self.share, states), (len(states) - 1) // 2), before)


class Median(Spec):
    """Number by number: the median, in which every client counts the same."""

    name: Literal["median"] = "median"

    def __call__(self, states: Sequence[Tensors], weights: Weights, before: Tensors) -> Tensors:
        """As Yin et al., Definition 1."""
        return _by_number(states, [1.0] * len(states), (len(states) - 1) // 2, before)


class Clip(Spec):
    """The weighted mean of updates no longer than `norm`, or than the round's median norm where none is given."""

    name: Literal["clip"] = "clip"
    norm: float | None = Field(None, gt=0)

    def __call__(self, states: Sequence[Tensors], weights: Weights, before: Tensors) -> Tensors:
        """G + Σ w_k·s_k·(M_k − G): the mean of the memes and of G, which gets the weight that clipping frees."""
        norms = update_norms(states, before)
        most = median_low(norms) if self.norm is None else self.norm
        total = sum(weights)
        clipped = [w / total * (most / n if n > most else 1.0) for w, n in zip(weights, norms, strict=True)]
        return mean([*states, before], [*clipped, max(0.0, 1 - sum(clipped))], before)


class Krum(Spec):
    """The weighted mean of the `keep` states (Krum: one) that lie nearest to the others."""

    name: Literal["krum"] = "krum"
    share: BadShare = 0.2
    keep: int = Field(1, ge=1)

    def __call__(self, states: Sequence[Tensors], weights: Weights, before: Tensors) -> Tensors:
        """Blanchard et al., Section 4: a state's score sums its squared distances to the K − f − 2 nearest."""
        near = max(1, len(states) - _bad(self.share, states) - 2)
        scores = _squared_distances(states, before).sort(dim=1).values[:, :near].sum(dim=1)
        chosen = sorted(scores.argsort(stable=True)[: self.keep].tolist())
        # At least a tiny weight, in case only clients without weight are chosen.
        return mean([states[i] for i in chosen], [max(weights[i], 1e-30) for i in chosen], before)


def _named(given: object) -> object:
    """`median` is short for {name: median}."""
    return {"name": given} if isinstance(given, str) else given


Combiner = Annotated[
    Mean | TrimmedMean | Median | Clip | Krum, Field(discriminator="name"), BeforeValidator(_named)
]


def mean(states: Sequence[Tensors], weights: Weights, before: Tensors | None = None) -> Tensors:
    """Weighted mean of floating parameters *and* buffers; whole numbers are `before`'s, or the first state's.

    Running statistics of batch-norm are part of a model: leaving them out would merge half of it.
    """
    total, before = sum(weights), states[0] if before is None else before
    names = _floating(before)
    sums = [torch.zeros_like(states[0][name]) for name in names]
    for state, weight in zip(states, weights, strict=True) if names else ():
        torch._foreach_add_(sums, [state[name] for name in names], alpha=weight / total)
    return _with_counters(before, dict(zip(names, sums, strict=True)))


def update_norms(states: Sequence[Tensors], before: Tensors) -> list[float]:
    """How far each state is from the global, over floating parameters and buffers as one vector."""
    names = _floating(before)

    def norm(state: Tensors) -> float:
        parts = [torch.linalg.vector_norm(state[n] - before[n], dtype=torch.float64) for n in names]
        return float(torch.stack(parts).norm()) if parts else 0.0

    return [norm(state) for state in states]


def overlong_updates(states: Sequence[Tensors], before: Tensors, ratio: float) -> dict[int, str]:
    """By position, why a state is refused: its update is over `ratio` times as long as the round's median.

    The median is the lower of the two in the middle, so two bad clients of four cannot hide behind each other.
    Two alone are not compared: one that sends almost nothing would get the other refused.
    """
    if len(states) < COMPARABLE:
        return {}
    norms = update_norms(states, before)
    usual = median_low(norms)
    return {
        i: f"its update's norm {norm:.4g} is over {ratio:g} times the round's median {usual:.4g}"
        for i, norm in enumerate(norms)
        if usual > 0 and norm > ratio * usual
    }


def check_weights(arrays: Tensors, shared: Tensors) -> None:
    """Refuse weights that are not the shared model's in name, shape, type or are not finite."""
    for name in [*(shared.keys() - arrays.keys()), *(arrays.keys() - shared.keys())]:
        what = "is missing" if name in shared else "is not the global's"
        raise Refused(f"weights '{name}' {what}")
    for name, expected in shared.items():
        found = arrays[name]
        if found.shape != expected.shape or found.dtype != expected.dtype:
            raise Refused(
                f"weights '{name}' are {found.dtype} {tuple(found.shape)}, "
                f"the global's {expected.dtype} {tuple(expected.shape)}"
            )
    # NaN and infinity show in a sum, which is ten times as fast as a look at every number. It may overflow too.
    if not math.isfinite(sum(float(arrays[name].sum()) for name in _floating(shared))):
        for name in shared:
            if not bool(torch.isfinite(arrays[name]).all()):
                raise Refused(f"weights '{name}' hold NaN or infinity")


def _floating(state: Tensors) -> list[str]:
    return [name for name, array in state.items() if array.is_floating_point()]


def _with_counters(before: Tensors, merged: Tensors) -> Tensors:
    """The merged arrays with the server's own whole numbers: clients have no say in them."""
    return {name: merged[name] if name in merged else array.clone() for name, array in before.items()}


def _bad(share: float, states: Sequence[Tensors]) -> int:
    """How many states may be bad: never fewer than the share asks for."""
    return math.ceil(share * len(states) - 1e-9)


def _by_number(states: Sequence[Tensors], weights: Weights, cut: int, before: Tensors) -> Tensors:
    names = _floating(before)
    return _with_counters(before, {n: _trimmed([state[n] for state in states], weights, cut) for n in names})


def _trimmed(arrays: Sequence[Tensor], weights: Weights, cut: int) -> Tensor:
    """For every number the weighted mean without the `cut` smallest and the `cut` largest."""
    dtype = arrays[0].dtype
    wide = dtype if dtype == torch.float64 else torch.float32
    values, kept = torch.stack([array.to(wide) for array in arrays], -1), slice(cut, len(arrays) - cut)
    if len(set(weights)) == 1:  # without weights NumPy can sort the values alone, ten times as fast
        return torch.from_numpy(np.sort(values.numpy(), axis=-1)[..., kept]).mean(-1).to(dtype)
    values, order = values.sort(dim=-1, stable=True)
    # At least a tiny weight, in case only clients without weight are left.
    each = torch.tensor(weights, dtype=wide).clamp_min(1e-30)[order[..., kept]]
    return ((values[..., kept] * each).sum(-1) / each.sum(-1)).to(dtype)


def _squared_distances(states: Sequence[Tensors], before: Tensors) -> Tensor:
    """Between any two states; infinite from a state to itself, which is no neighbour.

    Where squares overflow it is infinite or NaN, and both sort last.
    """
    products = torch.zeros(len(states), len(states), dtype=torch.float64)
    for name in _floating(before):
        # Of updates, not of weights: these have a large part in common, in which small differences would be lost.
        rows = torch.stack([(state[name] - before[name]).reshape(-1) for state in states]).double()
        products += rows @ rows.T
    squares = products.diagonal()
    return (squares[:, None] + squares[None, :] - 2 * products).clamp_min(0).fill_diagonal_(math.inf)
