"""Example-level privacy: gradients by example, the noised step, Poisson batches and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mutua
from mutua import SGD, Architecture, InputError, Plan, Privacy, Recipe, Task
from mutua.federation.privacy_accounting import Uses, epsilon
from mutua.learning.private_training import PoissonLoader, PrivateTrainer
from mutua.learning.trainer import Batch, Numbers, own_streams
from mutua.methods import FML, FedAvg, FedProx, FineTuned, Independent, Participant
from mutua.methods.base import Job
from mutua.rounds.preparation import prepare

TASK = Task(("ape", "bee", "cat"))
EXAMPLE = {"level": "example", "clip": 0.5, "noise": 1.5, "randomness": "seeded"}


def stream(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(n: int, shape: tuple[int, ...] = (4,), classes: int = 3) -> Batch:
    task = Task(tuple(map(str, range(classes))))
    y = torch.randint(classes, (n,), generator=stream(1))
    return Batch(torch.randn(n, *shape, generator=stream()), y, task, torch.arange(n))


def trainer(
    models: dict[str, nn.Module], privacy: dict[str, Any], batch_size: int, lr: float = 0.1
) -> PrivateTrainer:
    optimizers = {"meme": SGD().build(models["meme"].parameters(), lr)}
    given = Privacy(**{**EXAMPLE, **privacy})
    return PrivateTrainer(models, optimizers, Numbers(mu=0.3), given.clip, given.noise, batch_size, stream(5))


def by_hand(model: nn.Module, data: Batch, loss: Callable[..., torch.Tensor]) -> np.ndarray:
    """Each example's gradient by an ordinary backward of its own."""
    rows = []
    for i in range(len(data.y)):
        model.zero_grad()
        loss(model, data.x[i : i + 1], data.y[i : i + 1]).backward()
        rows.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]).double().numpy())
    model.zero_grad()
    return np.stack(rows)


def cross_entropy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


# Gradients by example


@pytest.mark.parametrize("name", ["mlp", "lenet5", "cnn1", "cnn-5x5"])
def test_gradients_by_example_are_those_of_opacus_and_of_one_backward_each(name: str) -> None:
    from opacus import GradSampleModule

    model = Architecture.of({"name": name, "width": 0.2}).build(channels=1, size=28, classes=10, seed=0)
    data = batch(5, (1, 28, 28), classes=10)
    ours, terms = trainer({"meme": model}, {}, 5)._by_example(FedAvg().objective, data)
    assert ours.numpy() == pytest.approx(by_hand(model, data, cross_entropy), abs=1e-5)
    assert terms["meme"].tolist() == pytest.approx(
        F.cross_entropy(model(data.x), data.y, reduction="none").tolist(), abs=1e-5
    )
    wrapped = GradSampleModule(model)
    F.cross_entropy(wrapped(data.x.requires_grad_()), data.y).backward()
    theirs = torch.cat([p.grad_sample.flatten(1) for p in wrapped.parameters()], 1)
    assert ours.numpy() == pytest.approx(theirs.detach().numpy(), abs=1e-5)


def test_a_proximal_term_counts_in_every_examples_gradient(nets: SimpleNamespace) -> None:
    meme, anchor = nets.plain(4, 3), nets.plain(4, 3)
    for parameter in anchor.parameters():
        parameter.requires_grad_(False)

    def near(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        distance = sum(
            (w - g).square().sum() for w, g in zip(model.parameters(), anchor.parameters(), strict=True)
        )
        return cross_entropy(model, x, y) + 0.15 * distance

    data = batch(6)
    ours, _ = trainer({"meme": meme, "global": anchor}, {}, 6)._by_example(FedProx().objective, data)
    assert ours.numpy() == pytest.approx(by_hand(meme, data, near), abs=1e-5)


def test_dropout_is_drawn_for_each_example_from_the_models_own_stream(nets: SimpleNamespace) -> None:
    torch.manual_seed(0)
    meme = nets.dropping(4, 3).train()
    data = batch(1)
    data = Batch(data.x.repeat(40, 1), data.y.repeat(40), data.task, torch.arange(40))
    found = []
    for _ in range(2):
        state = torch.get_rng_state()
        with own_streams({"meme": meme}, {"meme": 11}):
            found.append(trainer({"meme": meme}, {}, 40)._by_example(FedAvg().objective, data)[0])
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*found)
    assert len({tuple(row.tolist()) for row in found[0]}) > 5


# The step


@pytest.mark.parametrize("noise", [0.0, 1.5])
def test_a_step_by_hand(noise: float, nets: SimpleNamespace) -> None:
    torch.manual_seed(0)
    model, data = nets.plain(4, 3), batch(7)
    rows = by_hand(model, data, cross_entropy)
    norms = np.linalg.norm(rows, axis=1)
    clip = float(np.median(norms))
    before = nn.utils.parameters_to_vector(model.parameters()).detach().double().numpy()
    trainer({"meme": model}, {"clip": clip, "noise": noise}, 4).step(FedAvg().objective, data)
    total = (rows * np.minimum(1, clip / norms)[:, None]).sum(0)
    total += noise * clip * torch.randn(len(before), generator=stream(5)).numpy()
    after = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    assert after == pytest.approx(before - 0.1 * total / 4, abs=1e-5)


def test_no_example_moves_the_meme_by_more_than_the_clip(nets: SimpleNamespace) -> None:
    """Whatever it is: even one that no number can hold."""
    torch.manual_seed(0)
    start = nets.plain(4, 3).state_dict()
    ends = []
    wild = torch.tensor([[1e4] * 4, [1e38] * 4, [math.nan] * 4])
    for extra in (None, *wild):
        model = nets.plain(4, 3)
        model.load_state_dict(start)
        data = batch(6)
        if extra is not None:
            data = Batch(
                torch.cat([data.x, extra[None]]), torch.cat([data.y, data.y[:1]]), data.task, torch.arange(7)
            )
        trainer({"meme": model}, {"clip": 0.5, "noise": 0.0}, 6, lr=1.0).step(FedAvg().objective, data)
        ends.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    for end in ends[1:]:
        assert 0 <= float((end - ends[0]).norm()) <= 0.5 / 6 + 1e-6
    assert float((ends[1] - ends[0]).norm()) == pytest.approx(0.5 / 6, rel=1e-3)


def test_an_empty_batch_is_noise_alone(nets: SimpleNamespace) -> None:
    model = nets.plain(4, 3)
    before = nn.utils.parameters_to_vector(model.parameters()).detach()
    empty = Batch(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), TASK, torch.zeros(0, dtype=torch.long))
    teaching = trainer({"meme": model}, {"clip": 2.0, "noise": 3.0}, 5, lr=1.0)
    teaching.step(FedAvg().objective, empty)
    moved = before - nn.utils.parameters_to_vector(model.parameters()).detach()
    assert moved.numpy() == pytest.approx(
        (6 / 5 * torch.randn(len(before), generator=stream(5))).numpy(), abs=1e-6
    )
    assert teaching.terms() == {}


# Batches


def test_poisson_batches_hold_each_sample_on_its_own_with_one_probability(blobs: Any) -> None:
    samples = blobs(50)
    loader = PoissonLoader(samples, TASK, 12, stream())
    drawn = torch.zeros(4000, 50)
    for row, one in zip(drawn, loader.steps(4000), strict=True):
        assert len(one.y) == len(one.x) == len(one.index)
        row[one.index] = 1
    assert drawn.mean(0).numpy() == pytest.approx(np.full(50, 0.24), abs=0.03)
    assert drawn.sum(1).var().item() == pytest.approx(50 * 0.24 * 0.76, rel=0.1)
    pairs = np.corrcoef(drawn.T.numpy()) - np.eye(50)
    assert np.abs(pairs).max() < 0.08
    assert len(list(loader.epochs(2))) == 2 * 5
    everybody = list(PoissonLoader(samples, TASK, 64, stream()).epochs(3))
    assert [len(one.y) for one in everybody] == [50, 50, 50]


# Runs


def test_with_neither_noise_nor_clipping_it_is_fedavg(federate: Any, simulate: Any) -> None:
    settings = {
        "rounds": 2,
        "epochs": 3,
        "batch_size": 9,
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.5},
    }
    method, federation = FedAvg(weights="uniform"), federate([9, 9])
    privacy = {"level": "example", "clip": 1e6, "noise": 0}
    plain, hidden = (simulate(method, federation, privacy=p, **settings).globals[-1] for p in (None, privacy))
    for name, array in plain.items():
        assert array.numpy() == pytest.approx(hidden[name].numpy(), abs=1e-5)


def test_so_it_is_with_images_and_convolutions(tiny: dict[str, Any]) -> None:
    """14 of them in one batch; and batches of about one, where some are empty, can be cropped too."""
    tree = {
        **tiny,
        "models": {"global": "cnn1"},
        "method": {"name": "fedavg", "weights": "uniform"},
        "batch_size": 14,
    }
    recipe = Recipe.of({**tree, "rounds": 2, "epochs": 2})
    federation = recipe.federation()
    privacy = Privacy(level="example", clip=1e6, noise=0)
    plain, hidden = (
        mutua.run(recipe.method, federation, plan=recipe.with_(privacy=p).plan()).global_state
        for p in (None, privacy)
    )
    assert plain is not None and hidden is not None
    for name, array in plain.items():
        assert array.numpy() == pytest.approx(hidden[name].numpy(), abs=1e-4)
    small = recipe.with_(batch_size=1, augment=("crop", "flip"), privacy=Privacy(**EXAMPLE)).plan()
    assert mutua.run(recipe.method, federation, plan=small).global_state is not None


@pytest.mark.parametrize(
    "method",
    [FedAvg(weights="uniform"), FedProx(weights="uniform"), FineTuned(weights="uniform", tune_epochs=1)],
    ids=lambda method: method.name,
)
def test_runs_repeat_to_the_byte_and_their_noise_reaches_what_leaves(
    method: Any, federate: Any, simulate: Any
) -> None:
    quiet, *noisy = (
        simulate(method, federate(), rounds=2, privacy={**EXAMPLE, "noise": noise}) for noise in (0.0, 1.5, 1.5)
    )
    sent = [[r.message.encode() for r in run.engine.replies.values()] for run in (quiet, *noisy)]
    assert sent[1] == sent[2] and not set(sent[0]) & set(sent[1])


def test_what_comes_after_the_last_round_stays_and_is_not_noised(federate: Any, modules: Any) -> None:
    federation = federate()
    plan = Plan(rounds=2, batch_size=4, privacy=EXAMPLE, device="cpu")
    job = Job(FedAvg(weights="uniform"), plan, federation.global_model)
    kinds = {}
    for round in (1, 2, 3):
        participant = Participant(job, federation["a"], {}, round, modules)
        model = modules.get("meme", job.global_architecture, federation["a"], _state(federation, modules))
        for role in ("meme", "tuned"):
            with participant.training({role: model}) as teaching:
                kinds[round, role] = isinstance(teaching, PrivateTrainer)
            assert isinstance(participant.loader(models={role: model}), PoissonLoader) == kinds[round, role]
    assert {key for key, private in kinds.items() if private} == {(1, "meme"), (2, "meme")}


def _state(federation: Any, modules: Any) -> Any:
    return modules._module("meme", federation.global_model, federation["a"]).state_dict()


def test_the_guarantee_is_that_of_the_client_whose_examples_count_most(federate: Any) -> None:
    settings = {"rounds": 3, "epochs": 2, "batch_size": 5, "device": "cpu"}
    run = mutua.run(FedAvg(weights="uniform"), federate([8, 20, 40]), privacy=EXAMPLE, **settings)
    each = [epsilon([Uses(1.5, 5 / n, 3 * 2 * math.ceil(n / 5))], 1e-5) for n in (8, 20, 40)]
    assert run.guarantee.epsilon.messages == max(each) > min(each)
    assert run.guarantee.epsilon.globals is None
    assert str(run.guarantee).startswith(f"of every example, ε = {max(each):.3g} in all messages, at δ = 1e-05")
    settings = {"rounds": 2, "steps": 7, "batch_size": 50, "device": "cpu"}
    run = mutua.run(FedAvg(weights="uniform"), federate([8, 20]), privacy=EXAMPLE, **settings)
    assert run.guarantee.epsilon.messages == epsilon([Uses(1.5, 1.0, 14)], 1e-5)


def test_fml_cannot_hide_an_example_and_batch_norm_cannot_either(federate: Any, nets: SimpleNamespace) -> None:
    plan = Plan(privacy=EXAMPLE)
    with pytest.raises(
        InputError, match=r"privacy.level: 'example', but in fml the meme also learns from a model"
    ):
        prepare(FML(), federate(), plan)
    with pytest.raises(InputError, match=r"mixes the samples of a batch \(batch-norm\)"):
        prepare(FedAvg(weights="uniform"), federate(global_model=nets.normed), plan)
    prepare(FedAvg(weights="uniform"), federate(models=nets.normed), plan)  # a personal model may: it stays
    prepare(Independent(), federate(models=nets.normed, global_model=nets.normed), plan)
