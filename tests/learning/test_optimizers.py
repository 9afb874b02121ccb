"""Optimizers: what they remember, their rates over rounds, and whose memory lasts."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from scipy.special import softmax  # type: ignore[import-untyped]
from torch import nn
from torch.profiler import ProfilerActivity, profile

from mutua import SGD, Adam, Federation, InputError
from mutua.learning.optimizers import Optimizer, Stepper, optimizer_state, restore_optimizer
from mutua.methods import FML

OPTIMIZERS: list[SGD | Adam] = [
    SGD(lr=0.1),
    SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    SGD(lr=0.1, momentum=0.9, nesterov=True),
    Adam(lr=0.1),
    Adam(name="amsgrad", lr=0.1, weight_decay=0.01),
]


def descend(weights: torch.Tensor, optimizer: Stepper, start: int, steps: int) -> None:
    for step in range(start, start + steps):
        weights.grad = None
        (weights * torch.tensor([1.0, -2.0, 0.5]) * (step + 1)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("settings", OPTIMIZERS, ids=repr)
def test_a_restored_optimizer_goes_on_as_if_never_stopped(settings: Any) -> None:
    straight, cut = (nn.Parameter(torch.tensor([1.0, 2.0, 3.0])) for _ in range(2))
    descend(straight, settings.build([straight], 0.1), 0, 6)
    first = settings.build([cut], 0.1)
    descend(cut, first, 0, 3)
    kept = optimizer_state(first)
    again = settings.build([cut], 0.1)
    restore_optimizer(again, kept)
    descend(cut, again, 3, 3)
    assert torch.equal(straight, cut)


def test_what_is_kept_is_a_copy_both_ways() -> None:
    weights = nn.Parameter(torch.ones(3))
    optimizer = OPTIMIZERS[1].build([weights], 0.1)
    descend(weights, optimizer, 0, 1)
    kept = optimizer_state(optimizer)
    before = {name: array.clone() for name, array in kept.items()}
    descend(weights, optimizer, 1, 1)
    restored = OPTIMIZERS[1].build([weights], 0.1)
    restore_optimizer(restored, kept)
    descend(weights, restored, 1, 1)
    assert list(kept) == ["0.momentum_buffer"]
    assert all(torch.equal(kept[name], before[name]) for name in kept)


def test_memory_belongs_to_its_parameter_even_where_some_have_none() -> None:
    unused, used = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    optimizer = SGD(momentum=0.9).build([unused, used], 0.1)
    descend(used, optimizer, 0, 1)
    kept = optimizer_state(optimizer)
    assert list(kept) == ["1.momentum_buffer"]
    again = SGD(momentum=0.9).build([unused, used], 0.1)
    restore_optimizer(again, kept)
    assert torch.equal(again.memory[1]["momentum_buffer"], kept["1.momentum_buffer"])


def test_a_restored_optimizer_has_the_new_rounds_rate() -> None:
    weights = nn.Parameter(torch.zeros(3))
    optimizer = SGD(momentum=0.5).build([weights], 1.0)
    descend(weights, optimizer, 0, 1)
    again = SGD(momentum=0.5).build([weights], 0.25)
    restore_optimizer(again, optimizer_state(optimizer))
    assert again.lr == 0.25


def test_sgd_with_momentum_and_decay_by_hand() -> None:
    weights = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    descend(weights, SGD(momentum=0.9, weight_decay=0.1).build([weights], 0.05), 0, 3)
    w, v = np.array([1.0, 2.0, 3.0]), np.zeros(3)
    for step in range(3):
        v = 0.9 * v + np.array([1.0, -2.0, 0.5]) * (step + 1) + 0.1 * w
        w = w - 0.05 * v
    assert weights.detach().numpy() == pytest.approx(w, rel=1e-12)


@pytest.mark.parametrize("name", ["adam", "amsgrad"])
def test_adam_and_amsgrad_by_hand(name: Any) -> None:
    gradients = [4.0, -1.0, 0.1, 0.1, 0.1]
    weights = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = Adam(name=name, betas=(0.8, 0.5), eps=1e-6).build([weights], 0.1)
    w, m, v, largest = 1.0, 0.0, 0.0, 0.0
    for t, g in enumerate(gradients, start=1):
        weights.grad = None
        (weights * g).sum().backward()
        optimizer.step()
        m, v = 0.8 * m + 0.2 * g, 0.5 * v + 0.5 * g * g
        largest = max(largest, v)
        second = (largest if name == "amsgrad" else v) / (1 - 0.5**t)
        w -= 0.1 * m / (1 - 0.8**t) / (np.sqrt(second) + 1e-6)
    assert weights.item() == pytest.approx(w, rel=1e-9)


@pytest.mark.parametrize("settings", OPTIMIZERS, ids=repr)
def test_weights_with_channels_last_move_as_others_do_and_are_not_copied(settings: Any) -> None:
    first = nn.Parameter(torch.randn(4, 3, 5, 5, dtype=torch.double))
    last = nn.Parameter(first.detach().contiguous(memory_format=torch.channels_last))
    steppers = {weights: settings.build([weights], 0.1) for weights in (first, last)}
    for _ in range(3):
        gradient = torch.randn(4, 3, 5, 5, dtype=torch.double)
        for weights, stepper in steppers.items():  # a gradient in the usual order
            weights.grad = gradient
            stepper.step()
        last.grad = torch.empty_like(last).copy_(gradient)  # and one that lies as the weights do
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            steppers[last].step()
        first.grad = gradient
        steppers[first].step()
        torch.testing.assert_close(last, first)
        called = {event.name for event in seen.events()}
        assert any("_fused_" in name for name in called)
        assert "aten::clone" not in called
    remembered = [optimizer_state(stepper) for stepper in steppers.values()]
    torch.testing.assert_close(*remembered)


def test_rates_by_round() -> None:
    linear = SGD(lr={"schedule": "linear", "start": 0.1, "end": 0.5})
    assert [linear.rate(round, 3) for round in (1, 2, 3)] == pytest.approx([0.1, 0.3, 0.5])
    assert [SGD(lr=[0.1, 0.2]).rate(round, 4) for round in (1, 2, 3, 4)] == [0.1, 0.2, 0.2, 0.2]


def test_optimizers_by_name_and_their_mistakes() -> None:
    read = TypeAdapter(Optimizer).validate_python
    assert read({"name": "sgd"}) == SGD(lr=0.01, momentum=0.0, weight_decay=0.0)
    assert read({"name": "amsgrad"}) == Adam(name="amsgrad", lr=0.001)
    with pytest.raises(ValidationError):
        read({"name": "rmsprop"})
    for wrong in ({"lr": -1}, {"momentum": 1}, {"m": 1}):
        with pytest.raises(ValidationError):
            read({"name": "sgd", **wrong})


# Over rounds: the personal model's momentum lasts, the meme's is new at every fork.


def test_the_personals_momentum_lasts_over_rounds_and_the_memes_does_not(
    nets: SimpleNamespace, federate: Callable[..., Federation], simulate: Callable[..., Any]
) -> None:
    """One client, one full batch a round, linear models: FML over three rounds in NumPy."""
    federation = federate([8], models=nets.linear, global_model=nets.linear)
    optimizer = {"name": "sgd", "lr": 0.3, "momentum": 0.9}
    run = simulate(FML(alpha=0.4, beta=0.7), federation, rounds=3, batch_size=8, optimizer=optimizer)
    data = federation["a"].train
    x = np.hstack([data.x.double().numpy(), np.ones((8, 1))])
    truth = np.eye(3)[data.y.numpy()]

    def joined(arrays: dict[str, torch.Tensor]) -> np.ndarray:
        return np.hstack([arrays["head.weight"].double().numpy(), arrays["head.bias"].double().numpy()[:, None]])

    personal, meme = joined(run.engine.kept[0, "a"]["personal"]), joined(run.globals[0])
    velocity = np.zeros_like(personal)
    for round in (1, 2, 3):
        p, q = softmax(x @ personal.T, axis=1), softmax(x @ meme.T, axis=1)
        to_personal = (0.4 * (p - truth) + 0.6 * (p - q)).T @ x / 8
        to_meme = (0.7 * (q - truth) + 0.3 * (q - p)).T @ x / 8
        velocity = 0.9 * velocity + to_personal
        personal = personal - 0.3 * velocity
        meme = meme - 0.3 * to_meme  # a first step with momentum is a plain one
        kept = run.engine.kept[round, "a"]
        assert joined(kept["personal"]) == pytest.approx(personal, abs=1e-5)
        assert joined(run.globals[round]) == pytest.approx(meme, abs=1e-5)
        assert set(kept) == {"personal", "personal.optimizer"}
        assert kept["personal.optimizer"]["0.momentum_buffer"].numpy() == pytest.approx(velocity[:, :-1], abs=1e-5)


def test_the_memes_optimizer_is_new_every_round_but_lasts_within_it(
    nets: SimpleNamespace, federate: Callable[..., Federation], simulate: Callable[..., Any]
) -> None:
    from mutua.methods import FedAvg

    federation = federate([8], models=nets.linear, global_model=nets.linear)
    optimizer = {"name": "sgd", "lr": 0.3, "momentum": 0.9}
    run = simulate(FedAvg(), federation, rounds=2, epochs=3, batch_size=8, optimizer=optimizer)
    data = federation["a"].train
    x = np.hstack([data.x.double().numpy(), np.ones((8, 1))])
    truth = np.eye(3)[data.y.numpy()]
    w = np.hstack([run.globals[0]["head.weight"], run.globals[0]["head.bias"][:, None]]).astype(float)
    for round in (1, 2):
        velocity = np.zeros_like(w)
        for _ in range(3):
            velocity = 0.9 * velocity + (softmax(x @ w.T, axis=1) - truth).T @ x / 8
            w = w - 0.3 * velocity
        assert run.globals[round]["head.weight"].numpy() == pytest.approx(w[:, :-1], abs=1e-5)
        assert run.globals[round]["head.bias"].numpy() == pytest.approx(w[:, -1], abs=1e-5)


def test_impossible_betas_are_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="betas"):
        Adam(betas=(0.9, 1.0))
