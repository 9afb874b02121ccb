"""k-means against scikit-learn, the cut against all cuts and SciPy, points against the arrays they stand for."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage  # type: ignore[import-untyped]
from scipy.spatial.distance import squareform  # type: ignore[import-untyped]
from sklearn.cluster import KMeans  # type: ignore[import-untyped]
from torch import Tensor

from mutua.learning.clustering import cut_in_two, k_means, nearest, points_of
from mutua.seeds import torch_stream


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_points_have_the_lengths_and_angles_of_the_arrays() -> None:
    before = {"w": numbers(30, 7).float(), "b": numbers(30).float(), "counted": torch.tensor(3.0)}
    states = [{n: a + 1e-3 * numbers(*a.shape, seed=i + 1) for n, a in before.items()} for i in range(5)]
    points = points_of(states, ["w", "b"], before)
    flat = torch.stack(
        [torch.cat([(s[n].double() - before[n].double()).reshape(-1) for n in "wb"]) for s in states]
    )
    assert points.shape == (5, 5)
    assert points.numpy() @ points.numpy().T == pytest.approx((flat @ flat.T).numpy(), rel=1e-9)
    only_w = points_of(states, ["w"], before)
    assert float(only_w.norm()) < float(points.norm())


@pytest.mark.parametrize("seed", range(5))
def test_k_means_finds_groups_as_scikit_learn_does(seed: int) -> None:
    truth = [0, 0, 1, 2, 1, 0, 2, 2, 1]
    points = 4 * numbers(3, 6, seed=seed)[truth] + 0.3 * numbers(9, 6, seed=50 + seed)
    weights = [float(n) for n in range(1, 10)]
    assert k_means(points, 3, weights, torch_stream(seed, "test")) == truth
    blurred = numbers(12, 4, seed=seed)
    ours = k_means(blurred, 3, [1.0] * 12, torch_stream(seed, "test"))
    theirs = KMeans(3, n_init=20, random_state=0).fit(blurred.numpy())
    centres = torch.stack([blurred[[i for i, g in enumerate(ours) if g == k]].mean(0) for k in range(3)])
    spread = float((blurred - centres[ours]).square().sum())
    assert spread <= 1.05 * theirs.inertia_
    assert nearest(blurred, centres) == ours


def test_k_means_of_fewer_points_than_groups_and_of_equal_ones() -> None:
    stream = torch_stream(0, "test")
    assert k_means(numbers(2, 2), 4, [1.0, 1.0], stream) == [0, 1]
    assert k_means(torch.zeros(3, 3, dtype=torch.float64), 2, [1.0] * 3, stream) == [0, 0, 0]
    same = points_of([{"w": torch.full((50,), 0.1)}] * 4, ["w"], {"w": torch.zeros(50)})
    assert k_means(same, 2, [1.0] * 4, stream) == [0, 0, 0, 0]
    assert k_means(numbers(5, 5), 1, [1.0] * 5, stream) == [0] * 5


@pytest.mark.parametrize("seed", range(6))
def test_the_cut_has_the_least_similarity_across_it_and_is_scipys(seed: int) -> None:
    rows = torch.nn.functional.normalize(numbers(7, 4, seed=seed))
    alike = rows @ rows.T
    one, other = cut_in_two(alike, "single")
    assert sorted(one + other) == list(range(7)) and one[0] == 0
    sides = [set(some) for n in range(1, 4) for some in combinations(range(7), n)]
    across = [float(alike[list(s)][:, [i for i in range(7) if i not in s]].max()) for s in sides]
    assert float(alike[one][:, other].max()) == pytest.approx(min(across))
    for name in ("single", "complete"):
        ours = cut_in_two(alike, name)  # type: ignore[arg-type]
        theirs = fcluster(linkage(squareform(1 - alike.numpy(), checks=False), name), 2, "maxclust")
        assert {frozenset(part) for part in ours} == {
            frozenset(np.flatnonzero(theirs == k).tolist()) for k in (1, 2)
        }
