"""MOON: without μ, and in every client's first round, it is FedAvg; the contrast in NumPy; nothing else moves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import mutua
from mutua import Federation, InputError
from mutua.methods import FedAvg, Moon
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]

PLAN: dict[str, Any] = {
    "rounds": 3,
    "batch_size": 4,
    "device": "cpu",
    "workers": 1,
    "progress": False,
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
}


@pytest.mark.parametrize("net", ["plain", "normed", "dropping"])
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_without_mu_and_in_the_first_round_it_is_fedavg_to_the_bit(
    weights: Any, net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    model = getattr(nets, net)
    federation = federate((9, 13, 5), models=model, global_model=model)
    for mu, rounds, alike in ((0, 3, True), (1, 1, True), (1, 2, False)):
        given = {**PLAN, "rounds": rounds}
        moon, fedavg = (
            mutua.run(m, federation, **given) for m in (Moon(mu=mu, weights=weights), FedAvg(weights=weights))
        )
        assert identical(moon.global_state, fedavg.global_state) == alike  # type: ignore[arg-type]
        assert moon.ledger.kinds("up") == fedavg.ledger.kinds("up")


def test_the_second_round_is_as_numpy_and_plain_torch_have_it(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """ℓ_con by its formula of exponentials, z of the global as received and of the own meme before."""
    federation = federate([5, 8], models=nets.plain, global_model=nets.plain)
    given = {"rounds": 2, "epochs": 1, "batch_size": 20, "optimizer": {"name": "sgd", "lr": 0.5}}
    run = simulate(Moon(mu=2.0, temperature=0.3, weights="uniform"), federation, **given)
    memes = []
    for client in "ab":
        data, received = federation[client].train, run.globals[1]
        before = run.engine.replies[1, client].message.arrays("meme")
        w = {name: array.clone().requires_grad_() for name, array in received.items()}

        def z(of: Tensors, x: torch.Tensor = data.x.double()) -> torch.Tensor:
            return torch.tanh(x @ of["body.weight"].T + of["body.bias"])

        def cosine(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return (one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1))

        near, far = torch.exp(cosine(z(w), z(received)) / 0.3), torch.exp(cosine(z(w), z(before)) / 0.3)
        contrast = -torch.log(near / (near + far)).mean()
        scores = z(w) @ w["head.weight"].T + w["head.bias"]
        loss = torch.nn.functional.cross_entropy(scores, data.y) + 2 * contrast
        assert run.engine.replies[2, client].terms["meme"] == pytest.approx(loss.item(), abs=1e-10)
        loss.backward()
        memes.append({name: array.detach() - 0.5 * array.grad for name, array in w.items()})  # type: ignore[operator]
    for name, array in run.globals[2].items():
        assert array.numpy() == pytest.approx(np.mean([m[name].numpy() for m in memes], 0), abs=1e-10), name


def test_the_models_it_is_compared_with_do_not_move_and_do_not_drop(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical, monkeypatch: Any
) -> None:
    """In evaluation mode: no statistics of theirs move, no dropout is drawn, no gradient reaches them."""
    seen: list[tuple[bool, bool, Tensors]] = []
    contrast = Moon.contrast

    def watched(self: Moon, z: Any, received: Any, before: Any, *rest: Any) -> Any:
        found = contrast(self, z, received, before, *rest)
        for model in (received, before):
            learns = any(p.requires_grad for p in model.parameters())
            seen.append((model.training, learns, {n: a.clone() for n, a in model.state_dict().items()}))
        return found

    monkeypatch.setattr(Moon, "contrast", watched)
    run = simulate(Moon(), federate([13], models=nets.normed, global_model=nets.normed), rounds=2)
    assert seen and not any(training or learns for training, learns, _ in seen)
    kept = run.engine.kept[1, "a"]["before"]
    assert all(identical(state, run.globals[1]) for _, _, state in seen[::2])
    assert all(identical(state, kept) for _, _, state in seen[1::2])


def test_the_meme_that_is_kept_is_the_clients_own_last_one(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    run = simulate(Moon(), federate((9, 6, 5, 8), models=nets.plain), rounds=5, client_fraction=0.5, seed=1)
    last: dict[str, Tensors] = {}
    for round in range(1, 6):
        last |= {c: reply.message.arrays("meme") for (at, c), reply in run.engine.replies.items() if at == round}
        for client in "abcd":
            kept = run.engine.kept[round, client].get("before")
            assert (kept is None) == (client not in last)
            assert kept is None or identical(kept, last[client])


def test_a_partial_global_is_compared_with_the_clients_own_head_and_classes_may_differ(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    names = [("ape", "bee"), ("bee", "cat", "dog")]
    federation = federate([8, 9], classes=names, global_model={"name": nets.plain, "share": "body"})
    run = simulate(Moon(), federation, rounds=3)
    assert set(run.engine.replies[1, "a"].message.arrays("meme")) == {"body.weight", "body.bias"}
    assert run.engine.kept[3, "b"]["before"]["head.weight"].shape == (3, 6)


def test_a_model_without_features_is_refused_by_name(federate: Federate) -> None:
    class Headless(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(4, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    with pytest.raises(InputError, match=r"model Headless has no head.*moon needs features"):
        Moon().arrange(federate(models=Headless(), global_model=Headless()))
