"""Public sets: draws that everybody can repeat, and a carving that takes of every class."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mutua import Architecture, Client, Federation, InputError, Samples
from mutua.data.public import Public, carve
from mutua.seeds import public


def numbered(n: int, *, start: int = 0, classes: int = 3) -> Samples:
    """Samples that tell which they are: x is (number, 0), the label goes round."""
    number = torch.arange(start, start + n, dtype=torch.get_default_dtype())
    x = torch.stack([number, torch.zeros(n)], dim=1)
    return Samples.of(x, torch.arange(n) % classes, classes=[str(c) for c in range(classes)])


def numbers(samples: Samples) -> list[int]:
    return [int(row[0]) for row in samples.x]


PARTS = {"b": numbered(9, start=100), "a": numbered(12), "c": numbered(5, start=200)}


def test_the_whole_is_in_the_order_of_ids_whatever_the_order_given() -> None:
    whole = Public(PARTS).whole
    assert numbers(whole) == [*range(12), *range(100, 109), *range(200, 205)]
    assert len(Public(PARTS)) == 26
    assert numbers(Public(dict(sorted(PARTS.items()))).whole) == numbers(whole)


def test_a_batch_is_of_its_owner_without_repeats_and_differs_by_round_owner_and_seed() -> None:
    given = Public(PARTS)
    drawn = {(owner, round): numbers(given.batch(owner, 4, 7, round)) for owner in "abc" for round in range(1, 9)}
    for (owner, _), batch in drawn.items():
        assert len(batch) == len(set(batch)) == 4
        assert set(batch) <= set(numbers(PARTS[owner]))
    assert len({tuple(batch) for batch in drawn.values()}) > 20
    assert numbers(given.batch("a", 4, 7, 1)) == drawn["a", 1]
    assert numbers(given.batch("a", 4, 8, 1)) != drawn["a", 1]
    # Owners with as many samples do not draw the same positions.
    twins = Public({"a": numbered(40), "b": numbered(40)})
    assert numbers(twins.batch("a", 10, 7, 1)) != numbers(twins.batch("b", 10, 7, 1))


def test_labels_stay_with_their_samples() -> None:
    for drawn in (Public(PARTS).batch("a", 7, 1, 2), Public({"a": PARTS["a"]}).subset(7, 1, 2)):
        assert drawn.y.tolist() == [number % 3 for number in numbers(drawn)]


def test_a_part_smaller_than_the_batch_is_the_batch() -> None:
    given = Public(PARTS)
    assert sorted(numbers(given.batch("c", 32, 7, 1))) == numbers(PARTS["c"])
    assert sorted(numbers(given.subset(1000, 7, 1))) == sorted(numbers(given.whole))


def test_every_sample_is_drawn_as_often_as_any_other() -> None:
    given = Public(PARTS)
    counts = Counter(i for round in range(600) for i in numbers(given.batch("a", 4, 3, round)))
    assert set(counts) == set(range(12))
    # 600 draws of 4 in 12: 200 each, standard deviation about 11.5.
    assert all(140 < count < 260 for count in counts.values())


def test_a_subset_is_of_all_owners_without_repeats_and_differs_by_round() -> None:
    given = Public(PARTS)
    drawn = [numbers(given.subset(13, 7, round)) for round in range(1, 9)]
    for subset in drawn:
        assert len(set(subset)) == 13
        assert set(subset) <= set(numbers(given.whole))
    assert len({tuple(subset) for subset in drawn}) == 8
    assert numbers(given.subset(13, 7, 3)) == drawn[2]
    assert any({n // 100 for n in subset} == {0, 1, 2} for subset in drawn)


def test_draws_depend_on_their_arguments_alone() -> None:
    """Another owner's data, other samples and torch's own stream change nothing: no private seed is in it."""
    given = Public(PARTS)
    expected = numbers(given.batch("a", 4, public(5), 3))
    torch.manual_seed(999)
    state = torch.get_rng_state()
    assert numbers(Public({"a": PARTS["a"]}).batch("a", 4, public(5), 3)) == expected
    assert torch.equal(torch.get_rng_state(), state)
    others = replace(PARTS["a"], x=PARTS["a"].x + 1000, y=PARTS["a"].y.flip(0))
    assert numbers(Public({"a": others}).batch("a", 4, public(5), 3)) == [n + 1000 for n in expected]


def test_a_public_set_without_samples_is_refused() -> None:
    with pytest.raises(InputError, match=r"public.*client b"):
        Public({"a": numbered(3), "b": numbered(3).take([])})
    with pytest.raises(InputError, match="public"):
        Public({})


def client(name: str, train: Samples) -> Client:
    return Client(name, train, train.take([]), train.take([]), Architecture.of("mlp"))


def test_labels_of_a_public_set_are_matched_by_name() -> None:
    one = numbered(6)
    turned = numbered(6).relabelled(("2", "0", "1"))
    federation = Federation((client("a", one),), public=Public({"a": turned}))
    assert federation.public is not None
    part = federation.public.parts["a"]
    assert part.classes == one.classes
    assert part.y.tolist() == one.y.tolist()


def test_a_public_set_of_other_inputs_or_classes_does_not_fit() -> None:
    given = Public({"a": numbered(4), "b": numbered(4)})
    given.fits("a", numbered(9))
    with pytest.raises(InputError, match="client c"):
        given.fits("c", numbered(9, classes=4))
    wide = numbered(9)
    with pytest.raises(InputError, match="client c"):
        given.fits("c", replace(wide, x=torch.zeros(9, 3)))


# Carving


def labelled(counts: list[int], seed: int = 0) -> Samples:
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    x = torch.stack([torch.arange(len(y)).float(), torch.zeros(len(y))], dim=1)
    return Samples.of(x, y, classes=[str(c) for c in range(len(counts))])


@settings(max_examples=150, deadline=None)
@given(
    counts=st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(lambda c: sum(c) >= 2),
    share=st.floats(0, 1),
    seed=st.integers(0, 10**6),
)
def test_a_carving_is_disjoint_complete_of_the_right_size_and_stratified(
    counts: list[int], share: float, seed: int
) -> None:
    train = labelled(counts, seed)
    number = min(max(round(share * len(train)), 1), len(train) - 1)
    private, given = carve(train, number, seed, "a")
    assert len(given) == number
    assert sorted(numbers(private) + numbers(given)) == list(range(len(train)))
    assert private.y.tolist() == train.y[numbers(private)].tolist()
    assert given.y.tolist() == train.y[numbers(given)].tolist()
    exact = np.array(counts) * number / len(train)
    assert np.abs(given.counts() - exact).max() < 1 + 1e-9


def test_equal_labels_give_equal_positions_whoever_the_client_is() -> None:
    """Domains that show the same images make the same ones public: no image is private here and public there."""
    one = labelled([10, 10, 10])
    turned = replace(one, x=one.x + torch.tensor([0.0, 50.0]))
    parts = [carve(train, 6, 3, who)[1] for train, who in ((one, "a"), (turned, "b"))]
    assert numbers(parts[0]) == numbers(parts[1])
    assert parts[0].counts().tolist() == [2, 2, 2]
    assert numbers(carve(one, 6, 4, "a")[1]) != numbers(parts[0])


def test_the_order_of_private_samples_is_kept() -> None:
    private, _ = carve(labelled([10, 10]), 5, 0, "a")
    assert numbers(private) == sorted(numbers(private))


@pytest.mark.parametrize("number", [0, 20, 21, -1])
def test_a_client_gives_at_least_one_and_keeps_at_least_one(number: int) -> None:
    with pytest.raises(InputError, match=rf"public\.share: client ann would give {number} of 20"):
        carve(labelled([10, 10]), number, 0, "ann")
