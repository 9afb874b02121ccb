"""Batches, steps and gradients of the trainer, and random streams of the models it trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mutua import SGD, Adam, Federation, InputError, Message, Preprocess, Samples, Task
from mutua.learning.trainer import Batch, Loader, Numbers, Trainer, own_streams
from mutua.methods import FedAvg, Participant, weights
from mutua.seeds import torch_stream

TASK = Task(("a", "b", "c"))


def numbered(n: int) -> Samples:
    """Samples that say which they are: x holds the sample's number."""
    return Samples(torch.arange(float(n))[:, None], torch.arange(n) % 3, TASK.classes)


def loader(n: int, batch_size: int, seed: int = 0, **options: Any) -> Loader:
    return Loader(numbered(n), TASK, batch_size, torch_stream(seed, "batches"), **options)


def seen(batches: Any) -> list[list[int]]:
    return [[int(x) for x in batch.x[:, 0]] for batch in batches]


# Batches


@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 3))
def test_every_epoch_sees_every_sample_once_in_full_batches_but_the_last(n: int, size: int, epochs: int) -> None:
    batches = seen(loader(n, size).epochs(epochs))
    per_epoch = -(-n // size)
    assert len(batches) == epochs * per_epoch
    for e in range(epochs):
        cut = batches[e * per_epoch : (e + 1) * per_epoch]
        assert sorted(number for batch in cut for number in batch) == list(range(n))
        assert [len(batch) for batch in cut[:-1]] == [size] * (per_epoch - 1)
        assert len(cut[-1]) == (n % size or size)


@given(st.integers(1, 30), st.integers(2, 12))
def test_a_last_batch_of_one_joins_the_batch_before_it(n: int, size: int) -> None:
    plain, joined = (seen(loader(n, size, join_single=join).epochs(1)) for join in (False, True))
    if n == 1:
        assert joined == [[0, 0]]  # nobody to join: seen twice, batch-norm has no variance of one
    elif n % size == 1:
        assert joined == [*plain[:-2], plain[-2] + plain[-1]]
    else:
        assert joined == plain
    assert min(len(batch) for batch in joined) > 1


def test_labels_belong_to_their_inputs() -> None:
    for batch in loader(10, 4).epochs(2):
        assert torch.equal(batch.y, batch.x[:, 0].long() % 3)
        assert torch.equal(batch.index, batch.x[:, 0].long())
        assert batch.task == TASK


def test_epochs_are_shuffled_anew_and_by_the_stream_alone() -> None:
    first, second = seen(loader(20, 20).epochs(2))
    assert first != second
    assert first != list(range(20))
    assert seen(loader(20, 20).epochs(2)) == [first, second]
    assert seen(loader(20, 20, seed=1).epochs(1)) != [first]


@pytest.mark.parametrize("number", [1, 3, 4, 7, 12])
def test_steps_go_on_through_epochs(number: int) -> None:
    assert seen(loader(10, 4).steps(number)) == seen(loader(10, 4).epochs(4))[:number]


def test_one_sample_and_batches_larger_than_the_data() -> None:
    assert seen(loader(1, 8).epochs(2)) == [[0], [0]]
    assert seen(loader(1, 1).steps(3)) == [[0], [0], [0]]
    assert [sorted(batch) for batch in seen(loader(3, 100).steps(2))] == [[0, 1, 2], [0, 1, 2]]


def test_no_epochs_are_no_batches() -> None:
    assert seen(loader(4, 2).epochs(0)) == []


def test_stored_bytes_become_the_models_input_however_many_are_drawn() -> None:
    x = torch.arange(8 * 4, dtype=torch.uint8).view(8, 1, 2, 2)
    samples = Samples(x, torch.arange(8) % 3, TASK.classes, Preprocess(1 / 255, (0.5,), (0.25,)))
    few, many = (list(Loader(samples, TASK, 2, torch_stream(0, "batches")).steps(number)) for number in (1, 8))
    expected = (x.numpy().astype(np.float64) / 255 - 0.5) / 0.25
    order = torch.randperm(8, generator=torch_stream(0, "batches"))
    for batch in (few[0], many[0]):
        assert batch.x.numpy() == pytest.approx(expected[order[:2].numpy()], abs=1e-6)
    assert torch.equal(few[0].x, many[0].x)


@pytest.mark.parametrize("number", [1, 4])
def test_training_leaves_the_clients_data_as_it_was(number: int) -> None:
    samples = Samples(torch.ones(4, 2), torch.zeros(4).long(), TASK.classes, Preprocess(2.0, (1.0,), (3.0,)))
    for batch in Loader(samples, TASK, 2, torch_stream(0, "batches")).steps(number):
        assert batch.x.numpy() == pytest.approx(np.full((2, 2), 1 / 3))
    assert samples.x.tolist() == [[1.0, 1.0]] * 4


def test_augmentation_draws_from_the_clients_stream() -> None:
    x = torch.arange(6 * 16, dtype=torch.uint8).view(6, 1, 4, 4)
    samples = Samples(x, torch.zeros(6).long(), TASK.classes)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, other = (
        torch.cat([b.x for b in Loader(samples, TASK, 3, torch_stream(0, "b"), augmentations=["flip"]).epochs(2)])
        for _ in range(2)
    )
    assert torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)
    left, right = one[..., 0], one[..., -1]
    turned = (left > right).all(-1).squeeze(1)
    assert 0 < int(turned.sum()) < 12


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("colours", [1, 3])
def test_blocks_of_batches_change_nothing(last: bool, colours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randint(256, (11, colours, 4, 4), dtype=torch.uint8, generator=torch_stream(0, "x"))
    means = tuple(0.1 * c for c in range(colours))
    samples = Samples(x, torch.arange(11) % 3, TASK.classes, Preprocess(1 / 255, means, (0.5,) * colours))

    def batches() -> list[Batch]:
        loader = Loader(
            samples, TASK, 2, torch_stream(0, "b"), augmentations=["crop"], channels_last=last, join_single=True
        )
        return [*loader.epochs(2), *loader.steps(7)]

    whole = batches()
    for samples_a_block in (1, 5):
        monkeypatch.setattr("mutua.learning.trainer.BLOCK", samples_a_block * x[0].numel())
        for one, other in zip(whole, batches(), strict=True):
            assert torch.equal(one.x, other.x)
            assert torch.equal(one.y, other.y)
            assert torch.equal(one.index, other.index)
    plain = list(Loader(samples, TASK, 2, torch_stream(0, "b"), channels_last=last).epochs(1))
    for batch in plain:
        by_hand = samples.preprocess(x[batch.index]).numpy()
        assert np.array_equal(batch.x.numpy(), by_hand)
        assert batch.x.stride() == ((16 * colours, 1, 4 * colours, colours) if last else (16 * colours, 16, 4, 1))


def test_a_model_may_change_its_input() -> None:
    """By something that it learns, even: batches are slices of one tensor, which must stay out of its graph."""
    scale = nn.Parameter(torch.tensor(2.0))
    for batch in loader(6, 2).epochs(1):
        expected = 2 * batch.x
        inputs = batch.x
        inputs *= scale
        assert torch.equal(inputs, expected)
        inputs.sum().backward()


# Steps


def problem() -> tuple[nn.Linear, nn.Linear, Batch]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        models = nn.Linear(2, 3).double(), nn.Linear(2, 3).double()
        batch = Batch(torch.randn(5, 2).double(), torch.tensor([0, 1, 2, 0, 1]), TASK, torch.arange(5))
    return *models, batch


def objective(models: Any, batch: Batch, hp: Any) -> dict[str, torch.Tensor]:
    return {
        "one": F.cross_entropy(models["one"](batch.x), batch.y),
        "two": hp.weight * models["two"](batch.x).square().mean(),
    }


def softmax_gradient(w: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z = x @ w.T + b
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    d = (p - np.eye(3)[y]) / len(y)
    return d.T @ x, d.sum(0)


def test_one_step_moves_every_model_along_its_own_gradient() -> None:
    one, two, batch = problem()
    x, y = batch.x.numpy(), batch.y.numpy()
    (w1, b1), (w2, b2) = ([p.detach().numpy().copy() for p in m.parameters()] for m in (one, two))
    trainer = Trainer(
        {"one": one, "two": two},
        {"one": SGD().build(one.parameters(), 0.1), "two": SGD().build(two.parameters(), 0.2)},
        Numbers(weight=3.0),
    )
    trainer.step(objective, batch)
    gw, gb = softmax_gradient(w1, b1, x, y)
    assert one.weight.detach().numpy() == pytest.approx(w1 - 0.1 * gw, rel=1e-9)
    assert one.bias.detach().numpy() == pytest.approx(b1 - 0.1 * gb, rel=1e-9)
    z = x @ w2.T + b2
    d = 3.0 * 2 * z / z.size
    assert two.weight.detach().numpy() == pytest.approx(w2 - 0.2 * d.T @ x, rel=1e-9)
    assert two.bias.detach().numpy() == pytest.approx(b2 - 0.2 * d.sum(0), rel=1e-9)


def test_gradient_is_autograds_as_one_vector_and_moves_nothing() -> None:
    one, two, batch = problem()
    models, hp = {"one": one, "two": two}, Numbers(weight=3.0)
    optimizers = {name: SGD().build(m.parameters(), 0.1) for name, m in models.items()}
    before = [p.detach().clone() for m in models.values() for p in m.parameters()]
    trainer = Trainer(models, optimizers, hp)
    trainer.gradient({"stale": one(batch.x).sum()})  # what an earlier call left behind must not be added
    vector = trainer.gradient(objective(models, batch, hp))
    w, b = one.weight.detach().numpy(), one.bias.detach().numpy()
    gw, gb = softmax_gradient(w, b, batch.x.numpy(), batch.y.numpy())
    z = two(batch.x).detach().numpy()
    d = 3.0 * 2 * z / z.size
    by_hand = np.concatenate([gw.ravel(), gb, (d.T @ batch.x.numpy()).ravel(), d.sum(0)])
    assert vector.numpy() == pytest.approx(by_hand, rel=1e-9)
    after = [p for m in models.values() for p in m.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_apply_steps_along_the_given_vector() -> None:
    one, two, _ = problem()
    models = {"one": one, "two": two}
    optimizers = {
        "one": SGD().build(one.parameters(), 0.1),
        "two": SGD(momentum=0.5).build(two.parameters(), 0.1),
    }
    trainer = Trainer(models, optimizers, Numbers())
    start = torch.cat([p.detach().reshape(-1) for m in models.values() for p in m.parameters()])
    vector = torch.arange(1.0, 19.0).double()
    trainer.apply(vector)
    trainer.apply(vector)
    moved = torch.cat([p.detach().reshape(-1) for m in models.values() for p in m.parameters()])
    # Twice v without momentum; v, then v + v/2 with.
    times = torch.tensor([2.0] * 9 + [2.5] * 9).double()
    assert (start - moved).numpy() == pytest.approx((0.1 * times * vector).numpy(), rel=1e-9)


def test_gradient_then_apply_is_a_step() -> None:
    results = []
    for together in (True, False):
        one, two, batch = problem()
        models, hp = {"one": one, "two": two}, Numbers(weight=2.0)
        trainer = Trainer(models, {n: Adam().build(m.parameters(), 0.1) for n, m in models.items()}, hp)
        for _ in range(3):
            if together:
                trainer.step(objective, batch)
            else:
                trainer.apply(trainer.gradient(objective(models, batch, hp)))
        results.append(torch.cat([p.detach().reshape(-1) for m in models.values() for p in m.parameters()]))
    assert torch.equal(*results)


def test_untrainable_parameters_are_in_no_vector_and_unused_ones_have_gradient_zero() -> None:
    one, two, batch = problem()
    one.bias.requires_grad_(False)
    models = {"one": one, "two": two}
    optimizers = {"one": SGD().build([one.weight], 0.1), "two": SGD().build(two.parameters(), 0.1)}
    vector = Trainer(models, optimizers, Numbers()).gradient({"one": one(batch.x).sum()})
    assert len(vector) == 6 + 9
    assert vector[6:].tolist() == [0.0] * 9


def test_terms_are_means_over_steps() -> None:
    one, two, batch = problem()
    models = {"one": one, "two": two}
    trainer = Trainer(models, {"one": SGD().build(one.parameters(), 0.5)}, Numbers(weight=1.0))
    losses = []
    for _ in range(3):
        losses.append(objective(models, batch, trainer.numbers)["one"].item())
        trainer.step(objective, batch)
    assert losses[0] > losses[2]
    assert trainer.terms()["one"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert trainer.terms() == {}


def test_terms_of_different_steps_are_counted_apart() -> None:
    """FedH2L's local and mutual steps have terms of their own: each is a mean over its own steps."""
    one, two, batch = problem()
    trainer = Trainer({"one": one, "two": two}, {}, Numbers())
    for value in (2.0, 4.0, 6.0):
        trainer.gradient({"local": one(batch.x).sum() * 0 + value})
    trainer.gradient({"mutual": two(batch.x).sum() * 0 + 5.0})
    assert trainer.terms() == {"local": 4.0, "mutual": 5.0}


def test_numbers_say_what_there_is() -> None:
    numbers = Numbers(alpha=0.5, beta=0.25)
    assert numbers.alpha + numbers.beta == 0.75
    with pytest.raises(AttributeError, match=r"'gamma'.*alpha, beta"):
        _ = numbers.gamma


# Streams


def dropped(model: nn.Module) -> torch.Tensor:
    kept: torch.Tensor = model(torch.ones(1, 4)) != 0
    return kept


def dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5))


def test_each_model_draws_from_its_own_stream_whoever_draws_beside_it() -> None:
    seeds = {"personal": 1, "meme": 2}
    alone = dropout()
    with own_streams({"meme": alone}, seeds):
        expected = [dropped(alone).tolist() for _ in range(8)]
    personal, meme = dropout(), dropout()
    with own_streams({"personal": personal, "meme": meme}, seeds):
        found = []
        for _ in range(8):
            dropped(personal)
            torch.rand(3)
            found.append(dropped(meme).tolist())
            dropped(personal)
    assert found == expected
    assert len({str(mask) for mask in found}) > 1


def test_how_often_a_model_is_evaluated_does_not_change_what_it_draws() -> None:
    """Early stopping evaluates between steps, and on as many batches as there happen to be."""

    def masks(evaluations: int) -> list[list[list[bool]]]:
        model, found = dropout(), []
        with own_streams({"m": model}, {"m": 1}):
            for _ in range(4):
                found.append(dropped(model).tolist())
                model.eval()
                for _ in range(evaluations):
                    assert dropped(model).all()
                model.train()
        return found

    assert masks(0) == masks(1) == masks(2)


def test_streams_go_when_they_are_no_longer_wanted_even_after_an_error() -> None:
    model = dropout()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with own_streams({"m": model}, {"m": 1}):
        dropped(model)
        with pytest.raises(AttributeError):
            model(None)
    assert torch.equal(torch.get_rng_state(), before)
    dropped(model)
    assert not torch.equal(torch.get_rng_state(), before)


class Watched(FedAvg):
    """FedAvg that writes down the batches it sees."""

    seen: ClassVar[dict[tuple[int, str], list[list[int]]]] = {}
    now: ClassVar[list[tuple[int, str]]] = []

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        self.now.append((client.round, client.id))
        self.seen[self.now[-1]] = []
        return super().train(client, brief)

    def objective(self, models: Any, batch: Batch, hp: Any) -> dict[str, torch.Tensor]:
        self.seen[self.now[-1]].append(batch.index.tolist())
        return super().objective(models, batch, hp)


def twins(federation: Federation) -> Federation:
    """The same client twice, under two ids."""
    return replace(federation, clients=tuple(replace(federation["a"], id=name) for name in ("a", "z")))


def test_batches_differ_by_round_client_and_seed_and_by_nothing_else(
    federate: Callable[..., Federation], simulate: Callable[..., Any]
) -> None:
    orders = []
    for seed in (0, 0, 1):
        simulate(Watched(), twins(federate([12])), rounds=2, epochs=2, seed=seed)
        orders.append(dict(Watched.seen))
    assert orders[0] == orders[1]
    every = [str(batches) for order in orders[1:] for batches in order.values()]
    assert len(every) == len(set(every)) == 2 * 2 * 2
    assert all(len(batches) == 6 for batches in orders[0].values())


def test_dropout_differs_by_round_client_and_seed(
    nets: SimpleNamespace, federate: Callable[..., Federation], simulate: Callable[..., Any]
) -> None:
    """One sample, so that there is one order only; the same weights in every brief."""
    federation = twins(federate([1], models=nets.dropping, global_model=nets.dropping))
    replies = []
    for seed in (0, 1):
        run = simulate(FedAvg(), federation, rounds=2, steps=12, seed=seed, go=False)
        run.engine.start()
        assert federation.global_model is not None
        first = federation.global_model.build(channels=4, size=1, classes=3, seed=5).state_dict()
        briefs = {client: Message(**{"global": weights(first)}) for client in ("a", "z")}
        for round in (1, 2):
            replies += [reply.message.encode() for reply in run.engine.train(round, briefs).values()]
        run.engine.close()
    assert len(replies) == len(set(replies)) == 2 * 2 * 2


def test_an_objective_without_a_gradient_is_said() -> None:
    model = nn.Linear(2, 2)
    trainer = Trainer({"m": model}, {"m": SGD().build(model.parameters(), 0.1)}, Numbers())
    batch = Batch(torch.ones(1, 2), torch.zeros(1, dtype=torch.long), Task(("a", "b")), torch.zeros(1))
    with pytest.raises(InputError, match=r"objective: no term \(loss\) has a gradient"):
        trainer.step(lambda models, batch, hp: {"loss": models["m"](batch.x).sum().detach()}, batch)


def test_a_model_that_is_not_there_is_told_with_those_that_are() -> None:
    trainer = Trainer({"personal": nn.Linear(1, 1), "meme": nn.Linear(1, 1)}, {}, Numbers())
    with pytest.raises(InputError, match=r"models\['global'\]: no such model .*; known: personal, meme$"):
        _ = trainer.models["global"]
    assert trainer.models.get("global") is None and "global" not in trainer.models
