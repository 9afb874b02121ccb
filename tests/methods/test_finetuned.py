"""Fine-tuning in four ways: without λ all are plain; Fisher by hand; EWC and KD in NumPy; a frozen body."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax  # type: ignore[import-untyped]

from mutua import Client, Federation, InputError, Samples
from mutua.federation.module_pool import Modules
from mutua.learning.trainer import whole_batch
from mutua.methods import EarlyStopping, FineTuned, Participant
from mutua.methods.finetuned import fisher
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]
MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def joined(state: Tensors) -> np.ndarray:
    return np.hstack([state["head.weight"].numpy(), state["head.bias"].numpy()[:, None]])


@pytest.mark.parametrize("net", ["plain", "normed"])
@pytest.mark.parametrize("tune", ["ewc", "kd"])
def test_without_lambda_it_is_plain_to_the_bit(
    tune: Any, net: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate((9, 13, 5), global_model=getattr(nets, net), held=0)
    plain, free, held = (
        simulate(method, federation, rounds=1, optimizer=MOMENTUM)
        for method in (
            FineTuned(tune_epochs=3),
            FineTuned(tune_epochs=3, tune=tune, lam=0),
            FineTuned(tune_epochs=3, tune=tune, lam=50),
        )
    )
    for client in "abc":
        one, other, third = (run.engine.kept[2, client] for run in (plain, free, held))
        assert one.keys() == other.keys() == {"tuned"}
        assert identical(one["tuned"], other["tuned"])
        # c takes a single step, from G, where Σ F_i·(w_i − G_i)² has no gradient.
        assert identical(one["tuned"], third["tuned"]) == ((client, net, tune) == ("c", "normed", "ewc"))
    assert all(identical(a, b) for a, b in zip(plain.globals, held.globals, strict=True))


def test_the_fisher_diagonal_is_of_single_samples(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None, modules: Modules
) -> None:
    """Softmax regression by hand: the mean of squares, which is not the square of the mean."""
    federation = federate([11], models=nets.linear, global_model=nets.linear)
    run = simulate(FineTuned(tune_epochs=1), federation, rounds=1)
    at = Participant(run.job, federation["a"], {}, 2, modules)
    model = at.fork(run.engine.briefs[2, "a"])
    w, data = joined(run.globals[1]), federation["a"].train
    x, truth = np.hstack([data.x.double().numpy(), np.ones((11, 1))]), np.eye(3)[data.y.numpy()]
    slopes = [np.outer(p - t, row) for p, t, row in zip(softmax(x @ w.T, axis=1), truth, x, strict=True)]
    found = joined(fisher(at, model))
    assert found == pytest.approx(np.mean(np.square(slopes), axis=0), abs=1e-12)
    assert found != pytest.approx(np.square(np.mean(slopes, axis=0)), rel=0.1)


@pytest.mark.parametrize("tune", ["ewc", "kd"])
def test_three_steps_equal_numpy(
    tune: Any, nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """Without validation samples a client is tuned for one round's work."""
    federation = federate([8], models=nets.linear, global_model=nets.linear, held=0)
    settings = {"steps": 3, "batch_size": 20, "optimizer": {"name": "sgd", "lr": 0.2}}
    run = simulate(FineTuned(tune=tune, lam=0.7), federation, rounds=1, **settings)
    data = federation["a"].train
    x, truth = np.hstack([data.x.double().numpy(), np.ones((8, 1))]), np.eye(3)[data.y.numpy()]
    G = w = joined(run.globals[1])
    q = softmax(x @ G.T, axis=1)
    F = np.mean([np.square(np.outer(p - t, row)) for p, t, row in zip(q, truth, x, strict=True)], axis=0)
    for _ in range(3):
        p = softmax(x @ w.T, axis=1)
        held = 0.7 * F * (w - G) if tune == "ewc" else 0.7 * (p - q).T @ x / 8
        w = w - 0.2 * ((p - truth).T @ x / 8 + held)
    assert joined(run.engine.kept[2, "a"]["tuned"]) == pytest.approx(w, abs=1e-9)


def test_the_teacher_of_kd_is_in_evaluation_mode(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, modules: Modules
) -> None:
    """Neither its dropout nor the batch changes what it says, and its statistics do not move."""
    federation = federate([9], models=nets.normed, global_model=nets.normed)
    run = simulate(FineTuned(tune="kd", tune_epochs=1), federation, rounds=1)
    at = Participant(run.job, federation["a"], {}, 2, modules)
    teacher, data = at.frozen(run.engine.briefs[2, "a"]).train(), federation["a"].train
    before = {name: buffer.clone() for name, buffer in teacher.named_buffers()}
    at.numbers.lam = 1.0
    student = at.fork(run.engine.briefs[2, "a"]).eval()
    batch = whole_batch(data, at.task)
    loss = run.job.method.tuning({"tuned": student, "global": teacher}, batch, at.numbers)["tuned"]
    assert float(loss) == pytest.approx(float(at.task.loss(student(batch.x), batch.y)), abs=1e-6)  # KL(G ‖ G) is 0
    assert all(torch.equal(buffer, before[name]) for name, buffer in teacher.named_buffers())


def test_a_frozen_body_stays_the_globals_and_its_statistics_too(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = federate((9, 13, 5), global_model=nets.normed, held=0)
    run = simulate(FineTuned(tune="freeze-body"), federation, rounds=1, optimizer=MOMENTUM)
    for client in "abc":
        for name, array in run.engine.kept[2, client]["tuned"].items():
            assert torch.equal(array, run.globals[1][name]) != name.startswith("head."), name
    again = simulate(FineTuned(), federation, rounds=1, optimizer=MOMENTUM)
    assert not torch.equal(again.engine.kept[2, "a"]["tuned"]["body.weight"], again.globals[1]["body.weight"])


def test_a_newcomer_is_tuned_in_the_same_way(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, blobs: Callable[..., Samples], modules: Modules
) -> None:
    method = FineTuned(tune="freeze-body", tune_epochs=2)
    run = simulate(method, federate(global_model=nets.plain), rounds=1)
    client = Client("new", *(blobs(n, seed=n) for n in (12, 6, 6)), federate(models=nets.plain)["a"].model)
    newcomer = Participant(run.job, client, {}, 2, modules)
    method.personalise(newcomer, run.engine.briefs[2, "a"], "finetune")
    assert torch.equal(newcomer.state["tuned"]["body.weight"], run.globals[1]["body.weight"])
    assert isinstance(method.stopping("tuned"), EarlyStopping)


def test_lambda_belongs_to_ewc_and_kd() -> None:
    for tune in ("plain", "freeze-body"):
        with pytest.raises(InputError, match=f"lam: 2, but tune '{tune}' has none"):
            FineTuned(tune=tune, lam=2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="lam"):
        FineTuned(tune="kd", lam=-1)
