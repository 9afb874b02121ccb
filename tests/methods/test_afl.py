"""AFL: memes weighted by λ, which follows the losses."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mutua import Federation
from mutua.methods import AFL, FedAvg
from mutua.methods.afl import simplex_projection
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]
MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


@pytest.mark.parametrize("net", ["plain", "normed"])
def test_without_steps_it_is_fedavg(
    net: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate((9, 13, 5), models=getattr(nets, net), global_model=getattr(nets, net))
    for weights, same in (("uniform", identical), ("samples", close)):
        runs = [simulate(m(weights=weights), federation, rounds=3, optimizer=MOMENTUM) for m in (Still, FedAvg)]
        assert same(*(run.server.state["global"] for run in runs)), weights


class Still(AFL):
    step: float = 0.0


def close(a: Tensors, b: Tensors) -> bool:
    return all(torch.allclose(a[name].double(), b[name].double(), atol=1e-6) for name in a)


def test_a_round_is_as_numpy_does_it(federate: Federate, simulate: Simulate) -> None:
    federation = federate((4, 15, 9))
    run = simulate(AFL(step=0.7), federation, rounds=3)
    lam = np.ones(3) / 3
    for round in (1, 2, 3):
        g = {n: a.double().numpy() for n, a in run.globals[round - 1].items()}
        memes = [run.engine.replies[round, c].message for c in "abc"]
        losses = []
        for client, message in zip("abc", memes, strict=True):
            data = federation[client].train
            z = np.tanh(data.x.double().numpy() @ g["body.weight"].T + g["body.bias"])
            scores = z @ g["head.weight"].T + g["head.bias"]
            logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
            losses.append(-logs[np.arange(len(data)), data.y.numpy()].mean())
            assert message.number("loss") == pytest.approx(losses[-1], rel=1e-5)
        for name, merged in run.globals[round].items():
            by_hand = sum(w * m.arrays("meme")[name].double().numpy() for w, m in zip(lam, memes, strict=True))
            assert merged.numpy() == pytest.approx(by_hand / lam.sum(), abs=1e-5)
        lam = nearest(lam + 0.7 * np.array(losses))
    assert [float(run.server.state["lambda"][c]) for c in "abc"] == pytest.approx(3 * lam, abs=1e-5)


def nearest(v: np.ndarray) -> np.ndarray:
    """The nearest point of the simplex, by a solver of quadratic programs."""
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    found = minimize(
        lambda p: ((p - v) ** 2).sum(),
        np.ones(len(v)) / len(v),
        jac=lambda p: 2 * (p - v),
        method="SLSQP",
        bounds=[(0, None)] * len(v),
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        options={"ftol": 1e-14},
    )
    return np.asarray(found.x)


def test_the_projection_is_the_nearest_point_of_the_simplex() -> None:
    stream = np.random.default_rng(0)
    for n in (1, 2, 5, 9):
        v = stream.normal(scale=2, size=n)
        assert simplex_projection(torch.tensor(v)).numpy() == pytest.approx(nearest(v), abs=1e-6)
    assert simplex_projection(torch.tensor([5.0, 0.0, 1.0])).tolist() == [1, 0, 0]


def test_losses_of_all_clients_count_and_who_is_not_heard_falls(federate: Federate, simulate: Simulate) -> None:
    run = simulate(AFL(step=0.5), federate((5, 6, 7, 8)), rounds=1, client_fraction=0.5, seed=1)
    drawn = {client for _, client in run.engine.replies}
    lam = {client: float(value) for client, value in run.server.state["lambda"].items()}
    assert sum(lam.values()) == pytest.approx(4) and set(lam) == set("abcd")
    assert min(lam[c] for c in drawn) > max(lam[c] for c in set("abcd") - drawn)


def test_all_weight_on_a_client_that_is_not_drawn_leaves_the_global(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    def liar(round: int, client: str, message: Any) -> Any:
        from mutua.methods import Kind, Message, number

        return Message(**{**message, "loss": number(Kind.LOSS, 1e5)}) if client == "a" else message

    run = simulate(AFL(step=1.0), federate((5, 6, 7, 8)), rounds=8, client_fraction=0.5, tamper=liar)
    rounds = [{c for r, c in run.engine.replies if r == round} for round in range(1, 9)]
    fooled = next(k for k, drawn in enumerate(rounds) if "a" in drawn)
    later = next(k for k, drawn in enumerate(rounds) if k > fooled and "a" not in drawn)
    assert identical(run.globals[later], run.globals[later + 1])


@pytest.mark.parametrize("loss", [-1.0, 1e7])
def test_a_loss_that_no_model_has_is_refused(loss: float, federate: Federate, simulate: Simulate) -> None:
    from mutua.methods import Kind, Message, number

    def lie(round: int, client: str, message: Any) -> Any:
        return Message(**{**message, "loss": number(Kind.LOSS, loss)}) if client == "a" else message

    run = simulate(AFL(), federate(), tamper=lie)
    assert {turn.client for turn in run.participation if turn.outcome == "refused"} == {"a"}


def test_by_option_the_mean_of_all_iterates_is_served(federate: Federate, simulate: Simulate) -> None:
    last, mean = (simulate(AFL(serve=serve), federate(), rounds=3) for serve in ("last", "mean"))
    for name, array in mean.server.state["global"].items():
        by_hand = torch.stack([shared[name].double() for shared in last.globals[1:]]).mean(0)
        assert torch.allclose(array.double(), by_hand, atol=1e-6)
    sent = [[run.engine.replies[r, "a"].message.encode() for r in (1, 2, 3)] for run in (last, mean)]
    assert sent[0] == sent[1]


def test_a_longer_run_goes_on_from_the_last_iterate(federate: Federate) -> None:
    import mutua

    given: dict[str, Any] = {"batch_size": 4, "device": "cpu", "workers": 1, "progress": False}
    whole = mutua.run(AFL(serve="mean"), federate(), rounds=3, **given)
    longer = mutua.run(AFL(serve="mean"), federate(), rounds=2, **given).extend(3, progress=False)
    assert all(torch.equal(a, longer.global_state[n]) for n, a in whole.global_state.items())
