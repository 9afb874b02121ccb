"""Which vectors belong together: k-means, and the cut of a group in two by the cosines between its members.

Arthur and Vassilvitskii 2007, "k-means++: the advantages of careful seeding"; Sattler et al. 2020, "Clustered
federated learning: model-agnostic distributed multitask optimization under privacy constraints" (Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from mutua.support.tensor_files import Tensors

Linkage = Literal["single", "complete"]
RESTARTS = 10
"""How often k-means begins anew: one draw of seeds may have two of them in one group."""
ALIKE = 1e-12
"""Points are one whose squared distance is no more than this share of the longest one's square: it is rounding."""


def points_of(states: Sequence[Tensors], names: Sequence[str], before: Tensors) -> Tensor:
    """States, seen as points from `before`: one row of coordinates each, with the same lengths and angles.

    There are no more coordinates than states, however many numbers a state has in the arrays of these names.
    """
    products = torch.zeros(len(states), len(states), dtype=torch.float64)
    for name in names:
        # Differences, and in double precision: what all have in common would hide how they differ.
        points = torch.stack([(state[name].double() - before[name].double()).reshape(-1) for state in states])
        products += points @ points.T
    values, vectors = torch.linalg.eigh(products)
    coordinates: Tensor = vectors * values.clamp_min(0).sqrt()
    return coordinates


def nearest(points: Tensor, centres: Tensor) -> list[int]:
    """For each point the centre at the least distance; of equals the first."""
    found: list[int] = _squared_distances(points, centres).argmin(1).tolist()
    return found


def k_means(points: Tensor, k: int, weights: Sequence[float], stream: torch.Generator) -> list[int]:
    """The group of each point, of at most k: the best of several k-means from seeds of k-means++.

    Groups are numbered in the order of their first members. `weights` say how much one counts in its mean.
    """
    mass = torch.tensor(weights, dtype=points.dtype).unsqueeze(1)
    found: list[tuple[float, list[int]]] = []
    for _ in range(RESTARTS):
        centres, groups = _seeds(points, k, stream), None
        while groups != (groups := nearest(points, centres)):
            of = torch.tensor(groups)
            centres = torch.stack([_mean(points, mass, of == i, centres[i]) for i in range(len(centres))])
        spread = float((mass * (points - centres[groups]).square()).sum())
        found.append((spread, groups))
    best = min(found, key=lambda each: each[0])[1]
    order = {group: i for i, group in enumerate(dict.fromkeys(best))}
    return [order[group] for group in best]


def _seeds(points: Tensor, k: int, stream: torch.Generator) -> Tensor:
    """Points, drawn by their squared distances to the nearest of those before; fewer than k if all are taken."""
    centres = points[torch.randint(len(points), (1,), generator=stream)]
    alike = ALIKE * float(points.square().sum(1).max())
    while len(centres) < k:
        far = _squared_distances(points, centres).min(1).values
        if float(far.max()) <= alike:
            break
        centres = torch.cat([centres, points[torch.multinomial(far, 1, generator=stream)]])
    return centres


def _mean(points: Tensor, mass: Tensor, chosen: Tensor, otherwise: Tensor) -> Tensor:
    return (mass[chosen] * points[chosen]).sum(0) / mass[chosen].sum() if bool(chosen.any()) else otherwise


def _squared_distances(points: Tensor, centres: Tensor) -> Tensor:
    return torch.stack([(points - centre).square().sum(1) for centre in centres], 1)


def cut_in_two(similarities: Tensor, linkage: Linkage) -> tuple[list[int], list[int]]:
    """Two groups, by position, made by joining again and again the two groups that are most alike.

    `single`: two groups are as alike as their most similar members. This is the cut whose largest similarity
    across it is the least that any cut has. `complete`: as alike as their least similar ones.
    """
    join, groups = torch.maximum if linkage == "single" else torch.minimum, [[i] for i in range(len(similarities))]
    alike = similarities.clone().fill_diagonal_(-torch.inf)
    while len(groups) > 2:
        i, j = sorted(divmod(int(alike.argmax()), len(groups)))
        groups[i] = sorted(groups[i] + groups.pop(j))
        alike[i] = alike[:, i] = join(alike[i], alike[j])
        alike[i, i] = -torch.inf
        rest = [k for k in range(len(alike)) if k != j]
        alike = alike[rest][:, rest]
    one, other = sorted(groups)
    return one, other
