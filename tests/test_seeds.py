"""Random streams: a name, a stream, whatever else happens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mutua import Federation
from mutua.methods import FML
from mutua.seeds import derive, normals, numpy_stream, private, public, torch_stream, uniforms

paths = st.lists(st.integers(-5, 2**63) | st.text(max_size=6), max_size=4)


@given(st.integers(0, 2**63 - 1), paths)
def test_a_name_gives_one_seed_that_every_generator_takes(root: int, path: list[Any]) -> None:
    seed = derive(root, *path)
    assert seed == derive(root, *path)
    assert 0 <= seed < 2**63
    assert numpy_stream(root, *path).random() == numpy_stream(root, *path).random()
    assert torch_stream(root, *path).initial_seed() == seed


@given(st.tuples(st.integers(0, 99), paths), st.tuples(st.integers(0, 99), paths))
def test_different_names_give_different_seeds(one: tuple[int, list[Any]], other: tuple[int, list[Any]]) -> None:
    assert (derive(one[0], *one[1]) == derive(other[0], *other[1])) == (one == other)


def test_names_do_not_run_together() -> None:
    names: list[tuple[Any, ...]] = [(1,), (1, 1), (11,), (1, "1"), (1, "a", "b"), (1, "ab"), (1, "b", "a")]
    assert all(derive(*a) != derive(*b) for a, b in combinations(names, 2))


def test_seeds_are_the_same_on_every_machine_and_version() -> None:
    digest = hashlib.blake2b(b"(7, 'client', 'a', 3)", digest_size=8).digest()
    assert derive(7, "client", "a", 3) == int.from_bytes(digest, "little") >> 1
    assert derive(0, "public") == public(0)


def test_the_public_root_and_every_clients_own_differ() -> None:
    roots = [public(0), public(1), private(0, "a"), private(0, "b"), private(1, "a"), private(0, "public")]
    assert len(set(roots)) == len(roots)


@pytest.mark.parametrize("seed", [0, 5])
def test_a_run_neither_reads_nor_moves_the_generators_of_its_surroundings(
    seed: int,
    nets: Any,
    federate: Callable[..., Federation],
    simulate: Callable[..., Any],
    identical: Callable[..., bool],
) -> None:
    """Dropout draws from torch's global generator: around every forward it must be the model's own."""
    federation = federate(models=nets.dropping, global_model=nets.dropping)
    runs = []
    for outside in (1, 2):
        torch.manual_seed(outside)
        np.random.seed(outside)
        before = torch.get_rng_state(), np.random.get_state()[1].tobytes()  # type: ignore[index]
        runs.append(simulate(FML(), federation, seed=seed))
        assert torch.equal(torch.get_rng_state(), before[0])
        assert np.random.get_state()[1].tobytes() == before[1]  # type: ignore[index]
    assert identical(runs[0].globals[-1], runs[1].globals[-1])
    assert identical(runs[0].engine.kept[2, "a"]["personal"], runs[1].engine.kept[2, "a"]["personal"])


def test_another_seed_changes_everything_drawn(
    nets: Any, federate: Callable[..., Federation], simulate: Callable[..., Any]
) -> None:
    one, other = (simulate(FML(), federate(), seed=seed, rounds=1) for seed in (0, 1))
    for a, b in (
        (one.globals[0], other.globals[0]),
        (one.globals[1], other.globals[1]),
        (one.engine.kept[0, "a"]["personal"], other.engine.kept[0, "a"]["personal"]),
    ):
        assert not torch.equal(a["body.weight"], b["body.weight"])


def test_personals_and_global_start_apart(
    federate: Callable[..., Federation], simulate: Callable[..., Any]
) -> None:
    run = simulate(FML(), federate(), rounds=1)
    starts = [run.globals[0], *(run.engine.kept[0, client]["personal"] for client in "abc")]
    assert all(not torch.equal(a["body.weight"], b["body.weight"]) for a, b in combinations(starts, 2))
    # Every client forks the same global.
    first = [run.engine.briefs[1, client].encode() for client in "abc"]
    assert first[0] == first[1] == first[2]


def test_numbers_of_the_systems_source_are_normal_and_uniform_and_never_the_same() -> None:
    drawn = normals(100_001, None, torch.float64)
    assert drawn.shape == (100_001,) and drawn.dtype == torch.float64
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-4
    assert abs(np.corrcoef(drawn[:50_000], drawn[50_000:-1])[0, 1]) < 0.02  # the two of each pair
    assert stats.kstest(uniforms(100_000, None).numpy(), "uniform").pvalue > 1e-4
    assert not torch.equal(drawn, normals(100_001, None, torch.float64))
    assert normals(0, None).shape == (0,) and normals(3, None).dtype == torch.float32
    assert torch.equal(normals(5, torch_stream(1)), torch.randn(5, generator=torch_stream(1)))
