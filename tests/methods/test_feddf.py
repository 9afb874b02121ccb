"""FedDF: a server that distils on public data, for one design or several; and what a server can learn with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mutua import Federation, InputError
from mutua.data.model_input import ModelInput
from mutua.data.public import Public
from mutua.learning.optimizers import SGD
from mutua.learning.schedules import Listed
from mutua.methods import FedAvg, FedDF, Server, supervised
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]
MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def public(federation: Federation) -> Federation:
    return replace(federation, public=Public({c.id: c.test for c in federation.clients}, labelled=False))


@pytest.mark.parametrize("net", ["plain", "normed"])
def test_without_steps_it_is_fedavg(
    net: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = public(federate((9, 13, 5), models=getattr(nets, net), global_model=getattr(nets, net)))
    for combine in ("mean", "median"):
        runs = [
            simulate(method, federation, rounds=3, optimizer=MOMENTUM)
            for method in (FedDF(distil_steps=0, combine=combine), FedAvg(combine=combine))
        ]
        assert identical(*(run.server.state["global"] for run in runs))


def test_a_step_is_numpys_and_averages_scores_not_losses(federate: Federate, simulate: Simulate) -> None:
    """One full batch of plain SGD from the n_k-mean, towards softmax(mean of logits / T), times T²."""
    federation = public(federate((4, 15, 9)))
    method = FedDF(distil_steps=1, distil_batch=99, distil_optimizer={"name": "sgd", "lr": 0.6}, temperature=2.0)
    run = simulate(method, federation, rounds=1)
    x = federation.public.whole.x.double().numpy()  # type: ignore[union-attr]
    memes = [
        {n: a.double().numpy() for n, a in run.engine.replies[1, c].message.arrays("meme").items()} for c in "abc"
    ]

    def z(s: dict[str, np.ndarray]) -> np.ndarray:
        return np.tanh(x @ s["body.weight"].T + s["body.bias"])

    def soft(scores: np.ndarray) -> np.ndarray:
        p = np.exp(scores / 2.0)
        return p / p.sum(1, keepdims=True)

    teacher = soft(np.mean([z(s) @ s["head.weight"].T + s["head.bias"] for s in memes], 0))
    s = {n: np.average([m[n] for m in memes], axis=0, weights=[4, 15, 9]) for n in memes[0]}
    d = (soft(z(s) @ s["head.weight"].T + s["head.bias"]) - teacher) * 4 / 2 / len(x)
    by_hand = s["head.weight"] - 0.6 * d.T @ z(s)
    assert run.server.state["global"]["head.weight"].numpy() == pytest.approx(by_hand, abs=1e-5)


def test_a_student_for_each_design_all_taught_by_all(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = public(federate((9, 13, 5, 8), models=[nets.plain, nets.wide, nets.plain, nets.wide]))
    settings: dict[str, Any] = {"optimizer": MOMENTUM, "rounds": 2}
    still, taught = (simulate(FedDF(distil_steps=steps), federation, **settings) for steps in (0, 3))
    assert set(taught.server.state) == {"global", "global of b"}
    for client, width in zip("abcd", (6, 9, 6, 9), strict=True):
        assert taught.engine.briefs[1, client].arrays("global")["body.weight"].shape[0] == width
        assert taught.history.last(client, "global", "test", "accuracy") is not None
    for group, (first, second) in {"global": "ac", "global of b": "bd"}.items():
        memes = [still.engine.replies[2, c].message for c in (first, second)]
        sizes = [m.number("samples") for m in memes]
        mean = np.average([m.arrays("meme")["head.bias"].double().numpy() for m in memes], axis=0, weights=sizes)
        assert still.server.state[group]["head.bias"].numpy() == pytest.approx(mean, abs=1e-6)
        assert not identical(still.server.state[group], taught.server.state[group])
    # A meme of another design is a teacher too.
    a = federation["b"]
    other = replace(a, train=replace(a.train, y=(a.train.y + 1) % 3))
    federation = replace(federation, clients=tuple(other if c.id == "b" else c for c in federation.clients))
    changed, unmoved = (simulate(FedDF(distil_steps=n), federation, rounds=1) for n in (3, 0))
    before, alone = (
        simulate(
            FedDF(distil_steps=n), public(federate((9, 13, 5, 8), models=[nets.plain, nets.wide] * 2)), rounds=1
        )
        for n in (3, 0)
    )
    assert not identical(changed.server.state["global"], before.server.state["global"])
    assert identical(unmoved.server.state["global"], alone.server.state["global"])


def test_a_partial_global_is_refused(nets: SimpleNamespace, federate: Federate) -> None:
    with pytest.raises(InputError, match=r"models.global.share: a part, but feddf merges whole models"):
        FedDF().arrange(public(federate(global_model={"name": nets.plain, "share": "body"})))


# What a server learns with


def server(federation: Federation, round: int = 1, seed: int = 0) -> Server:
    assert federation.global_model is not None
    models = {client.id: client.model for client in federation.clients}
    return Server(
        ("a",), seed, federation.global_model, ModelInput.of(4, 1), 3, 4, models=models, round=round, rounds=5
    )


def learned(at: Server, federation: Federation, **more: Any) -> Tensors:
    model = at.build()
    given = {"optimizer": SGD(lr=0.1, momentum=0.9), "steps": 5, **more}
    terms = at.fit(supervised, {"student": model}, federation["a"].train, **given)
    assert set(terms) == {"student"}
    return {name: array.clone() for name, array in model.state_dict().items()}


def test_it_draws_publicly_by_round_and_purpose_and_nothing_else(
    nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    federation = federate(global_model=nets.dropping)
    first = learned(server(federation), federation)
    torch.manual_seed(77)
    before = torch.get_rng_state()
    assert identical(first, learned(server(federation), federation))
    assert torch.equal(before, torch.get_rng_state())
    for other in (
        learned(server(federation, round=2), federation),
        learned(server(federation, seed=1), federation),
        learned(server(federation), federation, purpose="again"),
    ):
        assert not identical(first, other)


def test_it_learns_on_one_thread_as_many_steps_as_asked_at_the_rates_of_the_schedule(
    nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    federation, threads = federate(global_model=nets.plain), []
    torch.set_num_threads(2)
    try:
        at, model = server(federation), server(federation).build()

        def objective(models: Any, batch: Any, hp: Any) -> Any:
            threads.append(torch.get_num_threads())
            return supervised(models, batch, hp)

        still = {name: array.clone() for name, array in model.state_dict().items()}
        rates = SGD(lr=Listed(values=(0.0, 0.0, 0.5)))
        at.fit(objective, {"student": model}, federation["a"].train, optimizer=rates, steps=2)
        assert identical(still, dict(model.state_dict()))
        at.fit(objective, {"student": model}, federation["a"].train, optimizer=rates, steps=3)
        assert not identical(still, dict(model.state_dict()))
        assert threads == [1] * 5 and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_it_knows_the_designs_that_clients_have_declared(nets: SimpleNamespace, federate: Federate) -> None:
    federation = federate(models=[nets.plain, nets.wide, {"name": nets.wide, "features": 3}])
    at = server(federation)
    assert [at.width(client) for client in "abc"] == [6, 9, 3]
    assert at.build(client="b").body.out_features == 9  # type: ignore[union-attr]
    weights = at.build(client="b").state_dict()
    assert torch.equal(at.build(dict(weights), "b").head.weight, weights["head.weight"])  # type: ignore[union-attr]
