from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from mutua import InputError, Samples, Split
from mutua.data.partitions import (
    IID,
    Deal,
    Dirichlet,
    Domains,
    LogNormal,
    Majority,
    Partition,
    Rotated,
    Shards,
    apportion,
)
from mutua.data.splits import split_and_deal

quick = settings(max_examples=60, deadline=5000)


def labelled(counts: list[int] | np.ndarray, domains: int = 0) -> Samples:
    """Tiny images, `counts[c]` of class c, in shuffled order; domains in turn."""
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    return Samples(
        torch.arange(len(y)).float()[:, None, None, None],
        torch.tensor(y),
        tuple(f"class {c}" for c in range(len(counts))),
        domain=torch.arange(len(y)) % domains if domains else None,
        domains=tuple(f"domain {d}" for d in range(domains)),
    )


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def table(deal: Deal, samples: Samples) -> np.ndarray:
    """How many samples of each class each client got."""
    return np.stack([np.bincount(samples.y.numpy()[part], minlength=len(samples.classes)) for part in deal.parts])


def same(a: Deal, b: Deal) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a.parts, b.parts, strict=True))


class_counts = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any)
partitions = st.one_of(
    st.builds(IID, clients=st.integers(1, 12)),
    st.builds(LogNormal, clients=st.integers(1, 12), sigma=st.floats(0, 5)),
    st.builds(Shards, clients=st.integers(1, 12), shards_per_client=st.integers(1, 5)),
    st.builds(
        Dirichlet, clients=st.integers(1, 6), alpha=st.sampled_from([0.1, 1.0, 100.0]), min_size=st.integers(1, 5)
    ),
    st.builds(Majority, clients=st.integers(1, 8), p=st.floats(0, 1), majority_classes=st.integers(1, 4)),
    st.just(Domains()),
)


@example([1], 2, Domains(), 0)
@given(class_counts, st.integers(1, 4), partitions, st.integers(0, 2**32))
@settings(max_examples=300, deadline=5000)
def test_every_partition_is_disjoint_seeded_and_leaves_nobody_empty_or_says_why(counts, domains, partition, seed):
    samples = labelled(counts, domains)
    try:
        deal = partition.deal(samples, rng(seed))
    except InputError:
        with pytest.raises(InputError, match=r"^partition\.\w+: [^\n]*; [^\n]*$"):
            partition.deal(samples, rng(seed))
        return
    assert len(deal.parts) == len(deal.ids) == len(set(deal.ids)) == getattr(partition, "clients", domains)
    everything = np.concatenate(deal.parts)
    assert len(np.unique(everything)) == len(everything)
    assert len(everything) == len(samples) or "left over" in deal.note
    assert all(np.all(np.diff(part) > 0) for part in deal.parts)
    # A domain without a sample is a client without one; the split refuses it, unless it is opted out whole.
    missing = max(0, domains - len(samples)) if isinstance(partition, Domains) else 0
    assert sum(not len(part) for part in deal.parts) == missing
    assert 0 <= everything.min() <= everything.max() < len(samples)
    assert same(deal, partition.deal(samples, rng(seed)))


@pytest.mark.parametrize(
    "partition",
    [
        IID(clients=4),
        LogNormal(clients=4, sigma=1),
        Shards(clients=5, shards_per_client=2),
        Shards(clients=3, shards_per_client=3),
        Dirichlet(clients=4, alpha=1),
        Majority(clients=5, p=0.7),
    ],
)
def test_another_seed_deals_otherwise(partition):
    samples = labelled([30] * 10)
    assert not same(partition.deal(samples, rng(1)), partition.deal(samples, rng(2)))


@given(class_counts, st.integers(1, 12), st.floats(0, 20), st.integers(0, 99))
@quick
def test_iid_and_lognormal_refuse_only_more_clients_than_samples(counts, clients, sigma, seed):
    samples = labelled(counts)
    for partition in (IID(clients=clients), LogNormal(clients=clients, sigma=sigma)):
        if clients > sum(counts):
            with pytest.raises(InputError, match=rf"^partition\.clients: {clients} .*at most {sum(counts)}"):
                partition.deal(samples, rng(seed))
        else:
            assert partition.deal(samples, rng(seed)).note == ""


def test_iid_sizes_differ_by_at_most_one_and_the_mix_is_everybodys():
    samples = labelled([2000, 1000])
    counts = table(IID(clients=7).deal(samples, rng()), samples)
    assert np.ptp(counts.sum(axis=1)) <= 1
    # 428 draws with probability 2/3: standard deviation 9.8
    assert np.all(np.abs(counts[:, 0] - 428.6 * 2 / 3) < 50)


def test_ids_are_padded_so_that_they_sort():
    assert IID(clients=3).deal(labelled([9]), rng()).ids == ["c0", "c1", "c2"]
    ids = IID(clients=11).deal(labelled([20]), rng()).ids
    assert ids[0] == "c00"
    assert ids == sorted(ids)


def test_lognormal_sizes_spread_with_sigma():
    samples = labelled([100_000])
    even = LogNormal(clients=200, sigma=0).deal(samples, rng())
    assert np.ptp([len(part) for part in even.parts]) <= 1
    for sigma in (0.3, 1.0):
        logs = np.log([len(part) for part in LogNormal(clients=200, sigma=sigma).deal(samples, rng()).parts])
        assert np.std(logs) == pytest.approx(sigma, rel=0.15)


# Shards


@pytest.mark.parametrize(
    ("classes", "per_client", "holders"),
    [(10, 6, 3), (10, 4, 2), (10, 2, 1), (100, 60, 3), (100, 40, 2), (100, 20, 1)],
)
@pytest.mark.parametrize("seed", range(3))
def test_shards_of_the_papers_are_single_classes(classes, per_client, holders, seed):
    samples = labelled([50] * classes)
    deal = Shards(clients=5, shards_per_client=per_client).deal(samples, rng(seed))
    counts = table(deal, samples)
    assert deal.note == ""
    assert np.all((counts > 0).sum(axis=1) == per_client)
    assert np.all((counts > 0).sum(axis=0) == holders)
    assert counts.sum() == 50 * classes
    sizes = {3: [16, 17, 17], 2: [25, 25], 1: [50]}[holders]
    for column in counts.T:
        assert sorted(column[column > 0]) == sizes


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(1, 10), st.integers(1, 7), st.integers(0, 99)
)
@settings(max_examples=150, deadline=5000)
def test_shards_keep_the_rule_or_say_which_rule_they_keep(counts, K, p, seed):
    samples, C = labelled(counts), len(counts)
    partition = Shards(clients=K, shards_per_client=p)
    if p > C:
        with pytest.raises(InputError, match=rf"shards_per_client: {p}, but .* {C} classes; give at most {C}"):
            partition.deal(samples, rng(seed))
    elif K * p > sum(counts):
        with pytest.raises(InputError, match=rf"makes {K * p} shards, but there are {sum(counts)} "):
            partition.deal(samples, rng(seed))
    elif K * p % C == 0 and min(counts) < K * p // C:
        scarce = int(np.argmin(counts))
        with pytest.raises(InputError, match=f"into {K * p // C} shards, but class 'class {scarce}' has"):
            partition.deal(samples, rng(seed))
    else:
        deal = partition.deal(samples, rng(seed))
        dealt = table(deal, samples)
        assert dealt.sum() == sum(counts)
        if K * p % C == 0:
            assert deal.note == ""
            assert np.all((dealt > 0).sum(axis=1) == p)
            assert np.all((dealt > 0).sum(axis=0) == K * p // C)
            assert all(np.ptp(column[column > 0]) <= 1 for column in dealt.T)
        else:
            assert f"{K * p} is not a multiple of {C} classes" in deal.note
            smallest = sum(counts) // (K * p)
            assert all(p * smallest <= size <= p * (smallest + 1) for size in dealt.sum(axis=1))


def test_shards_across_classes_are_cut_from_the_sorted_labels():
    # 3 shards of 4 from labels 000000 111111: 0000 | 0011 | 1111
    samples = labelled([6, 6])
    dealt = table(Shards(clients=3, shards_per_client=1).deal(samples, rng(3)), samples)
    assert sorted(dealt.tolist()) == [[0, 4], [2, 2], [4, 0]]


def test_classes_without_a_sample_do_not_count():
    samples = labelled([30, 0, 30])
    with pytest.raises(InputError, match="2 classes; give at most 2"):
        Shards(clients=2, shards_per_client=3).deal(samples, rng())
    assert (table(Shards(clients=2, shards_per_client=1).deal(samples, rng()), samples) > 0).sum() == 2
    dealt = table(Majority(clients=2, p=1, majority_classes=1).deal(samples, rng()), samples)
    assert sorted(dealt.tolist()) == [[0, 0, 30], [30, 0, 0]]


# Dirichlet


def test_dirichlet_shares_have_the_variance_of_the_distribution():
    samples = labelled([400] * 10)
    partition = Dirichlet(clients=4, alpha=1, min_size=1)
    shares = np.stack([table(partition.deal(samples, rng(seed)), samples) for seed in range(100)]) / 400
    # Dirichlet(1, 1, 1, 1): mean 1/4, variance (1/4)(3/4)/(4 + 1), the same for every client
    assert shares.mean(axis=(0, 2)) == pytest.approx(0.25, abs=0.03)
    assert shares.var(axis=(0, 2)) == pytest.approx(0.0375, rel=0.15)


def test_dirichlet_with_large_alpha_is_even():
    samples = labelled([100] * 5)
    assert np.all(np.abs(table(Dirichlet(clients=5, alpha=1e6).deal(samples, rng()), samples) - 20) <= 1)


@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_of_fmlu_gives_everybody_enough(seed):
    samples = labelled([200] * 10)
    deal = Dirichlet(clients=20, alpha=0.1).deal(samples, rng(seed))
    sizes = [len(part) for part in deal.parts]
    assert min(sizes) >= 10
    assert sum(sizes) == 2000


def test_dirichlet_that_cannot_be_is_refused_at_once():
    with pytest.raises(InputError, match=r"^partition\.min_size: 10 for each of 20 clients needs 200 .*are 199"):
        Dirichlet(clients=20, alpha=0.1).deal(labelled([199]), rng())


def test_dirichlet_that_never_comes_is_given_up():
    # One class and a tiny alpha: one client gets everything, always.
    start = time.perf_counter()
    with pytest.raises(InputError, match=r"^partition\.alpha: 0\.0001 gave no draw in 1000 .*raise alpha"):
        Dirichlet(clients=50, alpha=1e-4).deal(labelled([1000]), rng())
    assert time.perf_counter() - start < 5


# Majority


@pytest.mark.parametrize("p", [0.2, 0.5, 0.7, 0.75, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_majority_of_the_paper_is_exact_and_uses_everything(p, seed):
    # K = 5 with two of ten classes each: every class is one client's majority, and nothing is left over.
    samples = labelled([50] * 10)
    deal = Majority(clients=5, p=p).deal(samples, rng(seed))
    counts = table(deal, samples)
    assert deal.note == ""
    assert np.all(counts.sum(axis=1) == 100)
    assert np.all(counts.sum(axis=0) == 50)
    if p > 0.2:
        majorities = np.argsort(-counts, axis=1)[:, :2]
        assert sorted(majorities.ravel()) == list(range(10))
        for k, major in enumerate(majorities):
            assert counts[k, major].sum() == round(100 * p)
            assert np.ptp(counts[k, major]) <= 1
            assert np.ptp(np.delete(counts[k], major)) <= 1


def test_majority_classes_are_reused_evenly_when_they_must_be():
    samples = labelled([40] * 10)
    counts = table(Majority(clients=20, p=1).deal(samples, rng()), samples)
    assert np.all((counts > 0).sum(axis=1) == 2)
    assert np.all((counts > 0).sum(axis=0) == 4)


def test_majority_says_what_is_left_over():
    # Three clients whose majority classes hold all their data: 2 × 10 samples each, four classes unused.
    samples = labelled([10] * 10)
    deal = Majority(clients=3, p=1).deal(samples, rng())
    assert [len(part) for part in deal.parts] == [20, 20, 20]
    assert deal.note == "40 of 100 training samples left over: this mix allows 20 per client"


def test_majority_below_an_even_share_says_so():
    note = Majority(clients=2, p=0.1).deal(labelled([20] * 5), rng()).note
    assert "p = 0.1 is below an even share (0.4)" in note


@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=5),
    st.integers(1, 5),
    st.floats(0, 1),
    st.integers(1, 4),
    st.integers(0, 99),
)
@settings(max_examples=100, deadline=5000)
def test_majority_finds_a_mix_exactly_when_there_is_one(supply, K, p, m, seed):
    C = len(supply)
    m = min(m, C - 1)
    major = np.zeros((K, C), dtype=bool)
    for k in range(K):
        major[k, rng(seed + k).permutation(C)[:m]] = True
    partition = Majority(clients=K, p=p, majority_classes=m)
    for size in range(1, sum(supply) // K + 1):
        counts = partition._counts(size, np.array(supply), major, rng(seed))
        assert (counts is not None) == feasible(supply, major, size, p), size
        if counts is not None:
            assert np.all(counts.sum(axis=1) == size)
            assert np.all(counts.sum(axis=0) <= supply)
            for k in range(K):
                assert abs(counts[k, major[k]].sum() - p * size) <= 0.5 + 1e-6
                assert np.ptp(counts[k, major[k]]) <= 1
                assert np.ptp(counts[k, ~major[k]]) <= 1


def feasible(supply: list[int], major: np.ndarray, size: int, p: float) -> bool:
    """By maximum flow: source, a node for each client's majority and one for its others, classes, sink."""
    K, C = major.shape
    in_major = int(np.floor(p * size + 0.5 + 1e-9))
    groups = [(mask, in_major) for mask in major] + [(~mask, size - in_major) for mask in major]
    left = np.array(supply) - sum(mask * (total // mask.sum()) for mask, total in groups)
    if left.min() < 0:
        return False
    graph = np.zeros((2 + 2 * K + C,) * 2, dtype=np.int32)
    for i, (mask, total) in enumerate(groups):
        graph[0, 2 + i] = total % mask.sum()
        graph[2 + i, 2 + 2 * K :] = mask
    graph[2 + 2 * K :, 1] = left
    return bool(maximum_flow(csr_array(graph), 0, 1).flow_value == graph[0].sum())


@pytest.mark.parametrize(("m", "p"), [(4, 1.0), (3, 0.9)])
def test_majority_refuses_more_majority_classes_than_it_can_have(m, p):
    with pytest.raises(InputError, match=rf"majority_classes: {m}, .* 3 classes; give fewer than 3, or 3 with"):
        Majority(clients=2, p=p, majority_classes=m).deal(labelled([9] * 3), rng())


def test_majority_refuses_a_mix_that_no_size_allows():
    # Four clients with one class each, so two for the class that has a single sample.
    with pytest.raises(InputError, match=r"^partition\.p: 1 with 4 clients asks more of a class"):
        Majority(clients=4, p=1, majority_classes=1).deal(labelled([1, 9]), rng())


# Domains, rotated


def test_domains_are_the_clients_by_names_that_ids_can_have():
    samples = labelled([7, 5], domains=3)
    deal = Domains().deal(samples, rng())
    assert deal.ids == ["domain_0", "domain_1", "domain_2"]
    assert [part.tolist() for part in deal.parts] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


def test_domains_refuse_data_without_them_and_a_domain_without_data():
    with pytest.raises(InputError, match=r"^partition\.kind: domains, but the data has no domains"):
        Domains().deal(labelled([5]), rng())
    with pytest.raises(InputError, match="'domain 2' has no training sample"):
        split_and_deal(labelled([2], domains=3), None, Domains(), Split(val=0, test=0), seed=0)


def test_rotated_deals_all_images_to_all():
    deal = Rotated(angles=[0, 20, 22.5]).deal(labelled([3, 2]), rng())
    assert deal.ids == ["0deg", "20deg", "22.5deg"]
    assert deal.angles == (0, 20, 22.5)
    assert [part.tolist() for part in deal.parts] == [[0, 1, 2, 3, 4]] * 3
    assert "same images" in deal.note


def test_rotated_refuses_what_is_no_image():
    flat = Samples(torch.zeros(3, 8), torch.zeros(3, dtype=torch.long), ("a",))
    with pytest.raises(InputError, match=r"rotated needs images, but a sample has shape \(8,\)"):
        Rotated(angles=[0, 20]).deal(flat, rng())
    with pytest.raises(InputError, match="no training sample"):
        Rotated(angles=[0]).deal(labelled([1]).take([]), rng())


# What is written in a recipe


@pytest.mark.parametrize(
    ("written", "partition"),
    [
        ({"kind": "iid", "clients": 5}, IID(clients=5)),
        ({"kind": "shards", "clients": 5, "shards_per_client": 2}, Shards(clients=5, shards_per_client=2)),
        ({"kind": "dirichlet", "clients": 20, "alpha": 0.1}, Dirichlet(clients=20, alpha=0.1, min_size=10)),
        ({"kind": "majority", "clients": 5, "p": 0.8}, Majority(clients=5, p=0.8, majority_classes=2)),
        ({"kind": "lognormal", "clients": 5, "sigma": 1}, LogNormal(clients=5, sigma=1.0)),
        ({"kind": "domains"}, Domains()),
        ({"kind": "rotated", "angles": [0, 20]}, Rotated(angles=(0.0, 20.0))),
    ],
)
def test_a_recipe_and_python_say_the_same(written, partition):
    adapter: TypeAdapter[Partition] = TypeAdapter(Partition)
    assert adapter.validate_python(written) == partition
    assert adapter.validate_json(adapter.dump_json(partition)) == partition
    with pytest.raises(InputError, match="frozen"):
        partition.kind = "iid"


@pytest.mark.parametrize(
    ("written", "field"),
    [
        ({"kind": "iid", "clients": 0}, "clients"),
        ({"kind": "iid", "clients": 5, "client": 5}, "client"),
        ({"kind": "shards", "clients": 5, "shards_per_client": 0}, "shards_per_client"),
        ({"kind": "dirichlet", "clients": 5, "alpha": 0}, "alpha"),
        ({"kind": "dirichlet", "clients": 5, "alpha": float("inf")}, "alpha"),
        ({"kind": "dirichlet", "clients": 5, "alpha": 1, "min_size": 0}, "min_size"),
        ({"kind": "majority", "clients": 5, "p": 1.1}, "p"),
        ({"kind": "majority", "clients": 5, "p": 1, "majority_classes": 0}, "majority_classes"),
        ({"kind": "lognormal", "clients": 5, "sigma": -1}, "sigma"),
        ({"kind": "rotated", "angles": []}, "angles"),
        ({"kind": "rotated", "angles": [float("nan")]}, "angles"),
    ],
)
def test_impossible_values_are_refused_by_field(written, field):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Partition).validate_python(written)
    assert field in caught.value.errors()[0]["loc"]


def test_the_same_angle_twice_is_refused():
    with pytest.raises(InputError, match="20deg is given twice"):
        Rotated(angles=[20, 0, 20.0])


@given(st.integers(0, 500), st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(any), st.integers(0, 99))
@quick
def test_apportion_is_exact_in_total_and_within_one_of_each_share(n, weights, seed):
    sizes = apportion(n, np.array(weights), rng(seed))
    exact = n * np.array(weights) / sum(weights)
    assert sizes.sum() == n
    assert np.all(np.abs(sizes - exact) < 1 + 1e-6)


def test_apportion_gives_the_largest_remainders_and_breaks_ties_by_lot():
    assert apportion(10, np.array([1.26, 5.4, 3.34]), rng()).tolist() == [1, 6, 3]
    winners = [int(apportion(1, np.ones(4), rng(seed)).argmax()) for seed in range(400)]
    assert np.bincount(winners, minlength=4).min() > 60
