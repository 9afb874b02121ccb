"""A server that optimizes, and Reptile."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mutua import Federation, InputError
from mutua.methods import FedAvg, FedOpt, Reptile
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]
MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


@pytest.mark.parametrize("net", ["plain", "normed"])
def test_special_cases(
    net: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate((9, 13, 5), models=getattr(nets, net), global_model=getattr(nets, net))

    def run(method: Any, **more: Any) -> Tensors:
        found: Tensors = simulate(method, federation, rounds=3, optimizer=MOMENTUM, **more).server.state["global"]
        return found

    fedavg, uniform, mean = run(FedAvg()), run(FedAvg(weights="uniform")), {"name": "sgd", "momentum": 0}
    assert near(fedavg, run(FedOpt(server=mean)))
    assert identical(uniform, run(Reptile(reptile_rounds=0)))
    assert near(run(FedAvg(weights="uniform"), steps=2), run(Reptile(server=mean, local_steps=2), steps=2))
    assert not near(fedavg, run(FedOpt()))


def near(a: Tensors, b: Tensors) -> bool:
    return all(torch.allclose(a[name].double(), b[name].double(), atol=1e-6) for name in a)


@pytest.mark.parametrize("name", ["sgd", "adam", "yogi", "adagrad"])
def test_the_servers_step_is_numpys(
    name: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """Three rounds, of the memes as they were sent. Running statistics are the mean's, whatever the step."""
    options = {"name": name, "lr": [0.5, 0.1, 0.2]} | (
        {"momentum": 0.8} if name == "sgd" else {"betas": [0.7, 0.9]}
    )
    federation = federate((9, 13, 5), models=nets.normed, global_model=nets.normed)
    run = simulate(FedOpt(weights="uniform", server=options), federation, rounds=3)
    g = {n: a.double().numpy() for n, a in run.globals[0].items()}
    m, v = ({n: np.full_like(a, start) for n, a in g.items()} for start in (0.0, 0.0 if name == "sgd" else 1e-6))
    for round, lr in ((1, 0.5), (2, 0.1), (3, 0.2)):
        for n in g:
            sent = [run.engine.replies[round, c].message.arrays("meme")[n].double().numpy() for c in "abc"]
            d = g[n] - np.mean(sent, 0)
            if n.startswith("norm.running") or n.endswith("tracked"):
                g[n] = np.mean(sent, 0)
            elif name == "sgd":
                v[n] = 0.8 * v[n] + d
                g[n] = g[n] - lr * v[n]
            else:
                squares = {"adam": 0.9 * v[n] + 0.1 * d**2, "adagrad": v[n] + d**2}
                squares["yogi"] = v[n] - 0.1 * d**2 * np.sign(v[n] - d**2)
                m[n], v[n] = 0.7 * m[n] + 0.3 * d, squares[name]
                g[n] = g[n] - lr * m[n] / (np.sqrt(v[n]) + 1e-3)
        for n, array in run.globals[round].items():
            assert array.double().numpy() == pytest.approx(g[n], abs=1e-8), (round, n)


def test_reptile_takes_few_steps_in_its_last_rounds_only(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    given: dict[str, Any] = {"rounds": 3, "optimizer": MOMENTUM}
    fedavg, few = (simulate(FedAvg(weights="uniform"), federate(), **given, **more) for more in ({}, {"steps": 1}))
    run = simulate(Reptile(reptile_rounds=2, local_steps=1, server={"momentum": 0}), federate(), **given)
    assert identical(run.globals[1], fedavg.globals[1]) and not identical(run.globals[2], fedavg.globals[2])
    only = simulate(Reptile(reptile_rounds=3, local_steps=1, server={"momentum": 0}), federate(), **given)
    assert near(only.globals[3], few.globals[3])


def test_a_client_serves_after_its_own_steps_also_before_the_end(federate: Federate, simulate: Simulate) -> None:
    run = simulate(Reptile(reptile_rounds=1, local_steps=3), federate(), rounds=2, optimizer=MOMENTUM)
    for round in (1, 2):
        losses = [run.history.last("a", m, "test", "loss") for m in ("global", "predictor")]
        assert losses[0] != losses[1], round
    assert not torch.equal(run.engine.kept[3, "a"]["tuned"]["head.weight"], run.globals[-1]["head.weight"])


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"name": "adma"}, "server"),
        ({"name": "adam", "tau": 0}, "tau"),
        ({"name": "sgd", "betas": [0.9, 0.9]}, "betas"),
    ],
)
def test_a_server_that_cannot_be(server: Any, said: str) -> None:
    from mutua import methods

    with pytest.raises(InputError, match=said):
        methods.of({"name": "fedopt", "server": server})
