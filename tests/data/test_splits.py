from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mutua import InputError, Samples, Split
from mutua.data.partitions import IID, Dirichlet, Domains, LogNormal, Majority, Rotated, Shards
from mutua.data.splits import DealtSamples, deal_like, draw, split_and_deal, stratified
from mutua.data.transforms import rotate

quick = settings(max_examples=80, deadline=5000)
class_counts = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels(counts) -> np.ndarray:
    return rng().permutation(np.repeat(np.arange(len(counts)), counts))


def labelled(counts, domains: int = 0, first: int = 0) -> Samples:
    """Samples whose one feature is their number, so that each can be traced."""
    y = labels(counts)
    return Samples(
        torch.arange(first, first + len(y)).float()[:, None],
        torch.tensor(y),
        tuple(f"class {c}" for c in range(len(counts))),
        domain=torch.arange(len(y)) % domains if domains else None,
        domains=tuple(f"domain {d}" for d in range(domains)),
    )


def pictures(counts, side: int = 6) -> Samples:
    y = labels(counts)
    x = torch.tensor(rng(1).integers(0, 256, (len(y), 1, side, side)), dtype=torch.uint8)
    return Samples(x, torch.tensor(y), tuple(f"class {c}" for c in range(len(counts))))


def numbers(samples: Samples) -> list[int]:
    return samples.x[:, 0].int().tolist()


def table(dealt: DealtSamples, part: str) -> np.ndarray:
    return np.stack([getattr(client, part).counts() for client in dealt.clients])


# The split model


def test_the_default_split_is_70_10_20():
    assert Split() == Split(val=0.1, test=0.2, val_from="train")


@pytest.mark.parametrize(
    "wrong",
    [{"val": -0.1}, {"val": 1}, {"test": 1.2}, {"val": 0.5, "test": 0.5}, {"val_from": "x"}, {"valid": 0.1}],
)
def test_impossible_splits_are_refused(wrong):
    with pytest.raises(InputError):
        Split(**wrong)


# Stratified draws


@given(class_counts, st.lists(st.floats(0, 0.33), min_size=2, max_size=2), st.integers(0, 99))
@settings(max_examples=200, deadline=5000)
def test_stratified_sets_are_disjoint_and_right_by_class_and_in_total(counts, small, seed):
    y = labels(counts)
    fractions = [1 - sum(small), *small]
    parts = stratified(y, fractions, rng(seed))
    assert sorted(np.concatenate(parts)) == list(range(len(y)))
    for part, fraction in zip(parts, fractions, strict=True):
        by_class = np.bincount(y[part], minlength=len(counts))
        assert np.all(np.abs(by_class - fraction * np.array(counts)) < 1 + 1e-6)
        assert abs(len(part) - fraction * len(y)) < 1 + 1e-6
    again = stratified(y, fractions, rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_stratified_by_hand():
    y = labels([100, 50, 10])
    sizes = [np.bincount(y[part]).tolist() for part in stratified(y, [0.7, 0.1, 0.2], rng())]
    assert sizes == [[70, 35, 7], [10, 5, 1], [20, 10, 2]]


def test_stratified_may_leave_a_rest():
    y = labels([40, 20])
    (part,) = stratified(y, [0.25], rng())
    assert np.bincount(y[part]).tolist() == [10, 5]


@pytest.mark.parametrize("fractions", [[0.7, 0.4], [1.2, -0.2]])
def test_fractions_that_cannot_be_are_refused(fractions):
    with pytest.raises(InputError, match=r"^fractions: .*sum to at most 1"):
        stratified(labels([10]), fractions, rng())


@given(class_counts, st.floats(0, 1), st.integers(0, 99))
@quick
def test_a_draw_has_the_number_asked_and_the_mix_of_all(counts, fraction, seed):
    y = labels(counts)
    n = int(fraction * len(y))
    drawn = draw(y, n, rng(seed))
    assert len(np.unique(drawn)) == len(drawn) == n
    assert np.all(np.abs(np.bincount(y[drawn], minlength=len(counts)) - n * np.array(counts) / len(y)) < 1 + 1e-6)


def test_a_draw_of_more_than_there_is_is_refused():
    with pytest.raises(InputError, match=r"^n: 11 samples asked of 10; give 0 to 10$"):
        draw(labels([5, 5]), 11, rng())


# Dealing like the training data


@given(
    st.integers(1, 6).flatmap(
        lambda C: st.tuples(
            st.lists(st.lists(st.integers(0, 20), min_size=C, max_size=C), min_size=1, max_size=6),
            st.lists(st.integers(0, 30), min_size=C, max_size=C),
        )
    ),
    st.integers(0, 99),
)
@settings(max_examples=200, deadline=5000)
def test_like_deals_each_class_in_proportion(case, seed):
    counts, supply = np.array(case[0]), np.array(case[1])
    y = labels(supply)
    parts = deal_like(counts, y, rng(seed))
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)
    dealt = np.stack([np.bincount(y[part], minlength=len(supply)) for part in parts])
    held = counts.sum(axis=0)
    assert np.array_equal(dealt.sum(axis=0), np.where(held > 0, supply, 0))
    exact = counts / np.maximum(held, 1) * supply
    assert np.all(np.abs(dealt - exact) < 1 + 1e-6)
    assert not dealt[counts == 0].any()


def test_like_by_hand():
    y = labels([10, 9, 5])
    parts = deal_like(np.array([[30, 0, 0], [20, 1, 0], [0, 2, 0]]), y, rng())
    assert [np.bincount(y[part], minlength=3).tolist() for part in parts] == [[6, 0, 0], [4, 3, 0], [0, 6, 0]]


def test_like_favours_nobody():
    # One sample a class and equal clients: each gets as many as any other, and who comes first is by lot.
    firsts = []
    for seed in range(100):
        parts = deal_like(np.ones((4, 8), dtype=int), np.arange(8), rng(seed))
        assert [len(part) for part in parts] == [2, 2, 2, 2]
        firsts.append(next(k for k in range(4) if 0 in parts[k]))
    assert np.bincount(firsts, minlength=4).min() > 10


def test_like_gives_a_client_that_is_small_everywhere_its_share():
    # 10 % of each of 100 classes with two samples each: never the largest remainder, yet 20 of 200 are its due.
    counts = np.array([[9] * 100, [1] * 100])
    sizes = [len(part) for part in deal_like(counts, labels([2] * 100), rng())]
    assert sizes == [180, 20]


# Split and deal

partitions = st.one_of(
    st.builds(IID, clients=st.integers(1, 8)),
    st.builds(LogNormal, clients=st.integers(1, 8), sigma=st.floats(0, 3)),
    st.builds(Shards, clients=st.integers(1, 8), shards_per_client=st.integers(1, 4)),
    st.builds(Dirichlet, clients=st.integers(1, 4), alpha=st.just(1.0), min_size=st.integers(1, 3)),
    st.builds(Majority, clients=st.integers(1, 6), p=st.floats(0, 1), majority_classes=st.integers(1, 3)),
    st.just(Domains()),
)
splits = st.builds(
    Split, val=st.floats(0, 0.4), test=st.floats(0, 0.4), val_from=st.sampled_from(["train", "test"])
)


@given(class_counts, partitions, splits, st.booleans(), st.none() | st.integers(1, 20), st.integers(0, 99))
@settings(max_examples=300, deadline=5000)
def test_no_sample_is_used_twice_and_nothing_crashes(counts, partition, split, given_test, each, seed):
    train = labelled(counts, domains=2)
    test = labelled([n // 2 + 1 for n in counts], domains=2, first=len(train)) if given_test else None

    def deal(seed: int) -> DealtSamples:
        return split_and_deal(train, test, partition, split, samples_per_client=each, seed=seed)

    try:
        dealt = deal(seed)
    except InputError:
        with pytest.raises(InputError, match=r"^[\w.]+: [^\n]*; [^\n]*$"):
            deal(seed)
        return
    clients = dealt.clients
    trained = [i for c in clients for i in numbers(c.train)]
    validated = [i for c in clients for i in numbers(c.val)]
    tested = [i for c in clients for i in numbers(c.test)]
    assert all(len(c.train) for c in clients)
    assert len({c.id for c in clients}) == len(clients)
    for several in (trained, validated, tested, numbers(dealt.test)):
        assert len(set(several)) == len(several)
    assert not set(trained) & {*validated, *tested, *numbers(dealt.test)}
    assert set(tested) <= set(numbers(dealt.test))
    if split.val_from == "test":
        assert validated == tested
        assert any("val_from: test" in note for note in dealt.notes)
    else:
        assert not set(validated) & {*tested, *numbers(dealt.test)}
    if test is not None:
        assert numbers(dealt.test) == numbers(test)
    else:
        assert set(tested) == set(numbers(dealt.test))
    for part in ("val", "test"):
        if not all(len(getattr(c, part)) for c in clients):
            assert any(f"no {part} sample for" in note for note in dealt.notes)
    again = deal(seed)
    assert [numbers(c.train) for c in again.clients] == [numbers(c.train) for c in clients]
    assert [numbers(c.test) for c in again.clients] == [numbers(c.test) for c in clients]


def test_without_a_given_test_the_split_is_70_10_20_and_the_common_test_the_union():
    dealt = split_and_deal(labelled([100] * 10), None, IID(clients=5), Split(), seed=0)
    assert table(dealt, "train").sum(axis=0).tolist() == [70] * 10
    assert table(dealt, "val").sum(axis=0).tolist() == [10] * 10
    assert table(dealt, "test").sum(axis=0).tolist() == [20] * 10
    assert len(dealt.test) == 200
    assert dealt.notes == []
    assert [c.id for c in dealt.clients] == ["c0", "c1", "c2", "c3", "c4"]
    assert {c.domain for c in dealt.clients} == {None}


def test_a_given_test_is_the_common_test_and_val_comes_from_train():
    test = labelled([30] * 10, first=10_000)
    dealt = split_and_deal(labelled([100] * 10), test, IID(clients=5), Split(), seed=0)
    assert table(dealt, "train").sum(axis=0).tolist() == [90] * 10
    assert table(dealt, "val").sum(axis=0).tolist() == [10] * 10
    assert dealt.test is test
    assert sorted(i for c in dealt.clients for i in numbers(c.test)) == numbers(test)


@pytest.mark.parametrize("given_test", [True, False])
def test_val_and_test_follow_the_shards(given_test):
    test = labelled([20] * 10, first=10_000) if given_test else None
    dealt = split_and_deal(labelled([100] * 10), test, Shards(clients=5, shards_per_client=2), Split(), seed=1)
    for part in ("val", "test"):
        assert np.array_equal(table(dealt, part) > 0, table(dealt, "train") > 0)
        assert np.all((table(dealt, part) > 0).sum(axis=0) == 1)


def test_val_and_test_follow_the_dirichlet_mix():
    dealt = split_and_deal(labelled([200] * 10), None, Dirichlet(clients=6, alpha=0.3), Split(), seed=1)
    train = table(dealt, "train")
    for part, supply in (("val", 20), ("test", 40)):
        assert np.all(np.abs(table(dealt, part) - train / 140 * supply) < 1 + 1e-6)


def test_val_and_test_follow_the_majority_mix_also_when_training_samples_are_left_over():
    # Three clients, ten classes: the four classes that are nobody's majority have most to spare.
    dealt = split_and_deal(labelled([1000] * 10), None, Majority(clients=3, p=0.8), Split(), seed=1)
    train = table(dealt, "train")
    assert "left over" in dealt.notes[0]
    assert any("test samples dealt to nobody: no client's training mix has room" in n for n in dealt.notes)
    for part, fraction in (("val", 1 / 7), ("test", 2 / 7)):
        assert np.all(np.abs(table(dealt, part) - train * fraction) < 1 + 1e-6)


def test_fml_2023_takes_val_from_the_test_set_and_says_so():
    test = labelled([50] * 10, first=10_000)
    split = Split(val_from="test")
    dealt = split_and_deal(labelled([100] * 10), test, Shards(clients=5, shards_per_client=2), split, seed=0)
    assert [len(c.train) for c in dealt.clients] == [200] * 5
    assert [len(c.val) for c in dealt.clients] == [100] * 5  # 1/5 of the test set
    assert all(numbers(c.val) == numbers(c.test) for c in dealt.clients)
    assert len(dealt.notes) == 1
    assert "part of the common test set" in dealt.notes[0]


def test_samples_per_client_are_drawn_first_and_stratified():
    dealt = split_and_deal(labelled([600, 300, 100]), None, IID(clients=4), Split(), samples_per_client=50, seed=0)
    whole = table(dealt, "train").sum(0) + table(dealt, "val").sum(0) + table(dealt, "test").sum(0)
    assert whole.tolist() == [120, 60, 20]
    assert len(dealt.test) == 40


def test_the_test_set_is_reduced_stratified():
    test = labelled([60, 30, 10], first=10_000)
    dealt = split_and_deal(labelled([60, 30, 10]), test, IID(clients=2), Split(), test_samples=20, seed=0)
    assert dealt.test.counts().tolist() == [12, 6, 2]
    assert table(dealt, "test").sum() == 20


def test_another_partition_leaves_the_split_alone_and_another_seed_does_not():
    def trained(partition, seed):
        dealt = split_and_deal(labelled([50] * 4), None, partition, Split(), seed=seed)
        return {i for c in dealt.clients for i in numbers(c.train)}

    assert trained(IID(clients=5), 0) == trained(Shards(clients=2, shards_per_client=2), 0)
    assert trained(IID(clients=5), 0) != trained(IID(clients=5), 1)


def test_labels_of_a_given_test_are_matched_by_name():
    train = labelled([20, 20])
    test = Samples(torch.tensor([[100.0], [101.0]]), torch.tensor([0, 1]), ("class 1", "class 0"))
    dealt = split_and_deal(train, test, IID(clients=1), Split(), seed=0)
    assert dealt.test.classes == train.classes
    assert dealt.test.y.tolist() == [1, 0]


def test_clients_without_val_or_test_are_empty_not_broken():
    dealt = split_and_deal(labelled([10]), None, IID(clients=7), Split(), seed=0)
    assert [len(c.train) for c in dealt.clients] == [1] * 7
    assert sorted(len(c.val) for c in dealt.clients) == [0] * 6 + [1]
    empty = next(c for c in dealt.clients if not len(c.val))
    assert empty.val.x.shape == (0, 1)
    assert any(note.startswith("no val sample for c") for note in dealt.notes)
    none = split_and_deal(labelled([10]), None, IID(clients=2), Split(test=0), seed=0)
    assert "no test sample for any client" in none.notes
    assert len(none.test) == 0


# Domains


def test_domains_are_drawn_and_split_each_on_its_own():
    samples = labelled([400, 200], domains=3)
    dealt = split_and_deal(samples, None, Domains(), Split(), samples_per_client=100, seed=0)
    assert [(c.id, c.domain) for c in dealt.clients] == [(f"domain_{d}", f"domain_{d}") for d in range(3)]
    for d, client in enumerate(dealt.clients):
        assert (len(client.train), len(client.val), len(client.test)) == (70, 10, 20)
        for part in (client.train, client.val, client.test):
            assert set(part.domain.tolist()) == {d}
        # the domain's own mix of classes, not everybody's
        share = samples.y[d::3].float().mean().item()
        assert client.train.y.float().mean().item() == pytest.approx(share, abs=0.02)
    assert len(dealt.test) == 60


def test_a_domain_is_drawn_the_same_whoever_else_is_there():
    both = labelled([40, 40], domains=2)
    dealt = split_and_deal(both, None, Domains(), Split(), samples_per_client=20, seed=0)
    only = both.take(np.arange(1, 80, 2))
    alone = Samples(only.x, only.y, only.classes, domain=torch.zeros(40).long(), domains=("domain 1",))
    client = split_and_deal(alone, None, Domains(), Split(), samples_per_client=20, seed=0).clients[0]
    assert numbers(client.train) == numbers(dealt.clients[1].train)
    assert numbers(client.test) == numbers(dealt.clients[1].test)


def test_a_given_test_goes_to_its_domains():
    test = labelled([30, 30], domains=2, first=10_000)
    dealt = split_and_deal(labelled([50, 50], domains=2), test, Domains(), Split(), test_samples=20, seed=0)
    assert [set(c.test.domain.tolist()) for c in dealt.clients] == [{0}, {1}]
    assert [len(c.test) for c in dealt.clients] == [10, 10]


def test_a_test_with_other_domains_is_refused():
    with pytest.raises(InputError, match=r"^partition\.kind: domains, but the test set's domains are .*the same"):
        split_and_deal(labelled([9], domains=2), labelled([9], domains=3), Domains(), Split(), seed=0)


# Rotated


def test_rotations_of_an_image_are_in_one_split():
    # FedH2L: a number of images of each digit, the same for every angle
    samples = pictures([60] * 4)
    dealt = split_and_deal(samples, None, Rotated(angles=[0, 20, 90]), Split(), samples_per_client=100, seed=0)
    first = dealt.clients[0]
    assert [c.id for c in dealt.clients] == [c.domain for c in dealt.clients] == ["0deg", "20deg", "90deg"]
    assert sorted(first.train.counts()) == [17, 17, 18, 18]
    for client, angle in zip(dealt.clients, [0, 20, 90], strict=True):
        for part in ("train", "val", "test"):
            mine, upright = getattr(client, part), getattr(first, part)
            assert torch.equal(mine.x, rotate(upright.x, angle))
            assert torch.equal(mine.y, upright.y)
    upright = {image.numpy().tobytes() for part in (first.train, first.val, first.test) for image in part.x}
    assert len(upright) == 100
    assert len(dealt.test) == 60
    assert dealt.test.domains == ("0deg", "20deg", "90deg")
    assert dealt.test.domain.tolist() == [0] * 20 + [1] * 20 + [2] * 20


def test_a_given_test_is_rotated_too():
    test = pictures([10, 10])
    dealt = split_and_deal(pictures([20, 20]), test, Rotated(angles=[0, 180]), Split(), test_samples=6, seed=0)
    assert len(dealt.test) == 12
    assert torch.equal(dealt.clients[1].test.x, dealt.clients[0].test.x.flip(-1, -2))
    assert len(dealt.clients[0].train) == 36


def test_rotated_clients_without_val_are_empty_not_broken():
    dealt = split_and_deal(pictures([6]), None, Rotated(angles=[0, 20]), Split(val=0), seed=0)
    assert [c.val.x.shape for c in dealt.clients] == [(0, 1, 6, 6)] * 2
    assert "no val sample for any client" in dealt.notes


# What is refused


@pytest.mark.parametrize(
    ("partition", "asked", "message"),
    [
        (
            IID(clients=5),
            {"samples_per_client": 21},
            "^samples_per_client: 21 for 5 clients needs 105, .*100 .*most 20$",
        ),
        (IID(clients=101), {"samples_per_client": 1}, "^samples_per_client: 1 for 101 .*lower clients$"),
        (IID(clients=5), {"samples_per_client": 0}, "^samples_per_client: 0; give at least 1$"),
        (
            Domains(),
            {"samples_per_client": 51},
            "^samples_per_client: 51, but domain 'domain 0' has 50 .*most 50$",
        ),
        (IID(clients=5), {"test_samples": 9}, "^test_samples: 9, but the source has no test set to reduce"),
        (IID(clients=90), {}, r"^partition\.clients: 90 clients for 70 training samples; give at most 70"),
    ],
)
def test_what_is_not_there_is_refused(partition, asked, message):
    with pytest.raises(InputError, match=message):
        split_and_deal(labelled([60, 40], domains=2), None, partition, Split(), seed=0, **asked)


def test_a_larger_test_than_there_is_is_refused():
    with pytest.raises(InputError, match=r"^test_samples: 11, but the test set has 10; give 1 to 10$"):
        split_and_deal(labelled([9]), labelled([10]), IID(clients=1), Split(), test_samples=11, seed=0)


def test_a_split_that_leaves_nothing_to_train_on_is_refused():
    with pytest.raises(InputError, match=r"^split: val 0\.45, test 0\.45 leave none of 1 samples to train on"):
        split_and_deal(labelled([1]), None, IID(clients=1), Split(val=0.45, test=0.45), seed=0)
