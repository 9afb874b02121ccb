"""pFedBayes: without ζ and noise training alone, KL and draws in closed form, and a round in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax  # type: ignore[import-untyped]
from torch import nn
from torch.distributions import Normal, kl_divergence

import mutua
from mutua import Architecture, Federation, InputError
from mutua.methods import Independent, PFedBayes
from mutua.models.gaussian import Gaussian, gaussian_kl
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
def test_without_zeta_and_noise_each_client_is_alone_to_the_bit(
    net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    federation = federate((9, 13, 5), models=getattr(nets, net), global_model=getattr(nets, net))
    methods = PFedBayes(zeta=0, noise=0), PFedBayes(zeta=0), Independent()
    free, noisy, alone = (mutua.run(m, federation, **PLAN) for m in methods)
    for one, other, third in zip(free.clients, noisy.clients, alone.clients, strict=True):
        found, drawn = (
            {n.removeprefix("mean."): a for n, a in c.state["personal"].items() if n.startswith("mean.")}
            for c in (one, other)
        )
        assert identical(found, third.state["personal"])
        assert not identical(drawn, third.state["personal"])
        assert one.accuracy() == third.accuracy()
        rhos = [a for n, a in one.state["personal"].items() if n.startswith("rho.")]
        assert all(bool((rho == -2.5).all()) for rho in rhos)


def uncertain(rho: float, seed: int, spread: float = 0.0) -> Gaussian:
    stream = torch.Generator().manual_seed(seed)
    made = Gaussian(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)), rho)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += spread * torch.randn(parameter.shape, generator=stream)
    return made


def test_the_divergence_is_that_of_normal_distributions() -> None:
    q, p = uncertain(-2.0, 0, 0.3), uncertain(-1.0, 1, 0.5)
    by_torch = 0.0
    for (name, mu), (_, other) in zip(q.mean.named_parameters(), p.mean.named_parameters(), strict=True):
        one, two = Normal(mu, q.deviations()[name]), Normal(other, p.deviations()[name])
        by_torch += float(kl_divergence(one, two).sum())
    assert float(gaussian_kl(q, p)) == pytest.approx(by_torch, rel=1e-5)
    assert float(gaussian_kl(p, q)) != pytest.approx(by_torch, rel=1e-2)
    assert float(gaussian_kl(q, q)) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("noise", [1.0, 0.5])
def test_draws_have_the_mean_and_the_variance_of_the_weights(noise: float) -> None:
    model = Gaussian(nn.Linear(50, 40, bias=False), -0.5)
    model.noise = noise
    with torch.no_grad():
        model.mean.weight.fill_(0.3)  # type: ignore[operator,union-attr]
    model.train()
    torch.manual_seed(0)
    with torch.no_grad():
        drawn = torch.stack([model(torch.eye(50)) for _ in range(60)])  # each forward shows all of its weights
    sigma = noise * float(np.log1p(np.exp(-0.5)))
    assert float(drawn.mean()) == pytest.approx(0.3, abs=4 * sigma / np.sqrt(drawn.numel()))
    assert float(drawn.var()) == pytest.approx(sigma**2, rel=0.02)
    assert float(drawn.var(0).mean()) == pytest.approx(sigma**2, rel=0.02)
    with torch.no_grad():
        assert torch.equal(model.eval()(torch.eye(50)), torch.full((50, 40), 0.3))


def test_two_rounds_equal_numpy(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """With the noise off the likelihood is that of μ; the prior is the global as received, the meme follows q."""
    zeta, lr = 0.02, 0.01
    federation = federate([6, 8, 7], models=nets.linear, global_model=nets.linear)
    method = PFedBayes(zeta=zeta, noise=0, optimizer={"name": "sgd", "lr": lr})
    run = simulate(method, federation, rounds=2, steps=3, batch_size=20)

    def joined(state: Tensors, part: str) -> np.ndarray:
        return np.hstack([state[f"{part}.head.weight"].numpy(), state[f"{part}.head.bias"].numpy()[:, None]])

    def slopes(m: np.ndarray, r: np.ndarray, M: np.ndarray, R: np.ndarray) -> list[np.ndarray]:
        """Of KL(N(m, softplus(r)²) ‖ N(M, softplus(R)²)), by all four."""
        s, S = np.log1p(np.exp(r)), np.log1p(np.exp(R))
        ds, dS = 1 / (1 + np.exp(-r)), 1 / (1 + np.exp(-R))
        gap = m - M
        return [gap / S**2, (s / S**2 - 1 / s) * ds, -gap / S**2, (1 / S - (s**2 + gap**2) / S**3) * dS]

    kept = {c: [joined(run.engine.kept[0, c]["personal"], part) for part in ("mean", "rho")] for c in "abc"}
    G, P = (joined(run.engine.briefs[1, "a"].arrays("global"), part) for part in ("mean", "rho"))
    assert all(np.array_equal(kept[c][0], G) and np.array_equal(kept[c][1], P) for c in "abc")
    for round in (1, 2):
        memes = {}
        for c in "abc":
            data = federation[c].train
            x, truth = np.hstack([data.x.double().numpy(), np.ones((len(data), 1))]), np.eye(3)[data.y.numpy()]
            (m, r), M, R = kept[c], G, P
            for _ in range(3):
                by_m, by_r, _, _ = slopes(m, r, G, P)
                share = zeta / (1 * len(data))  # one batch makes an epoch
                by_label = (softmax(x @ m.T, axis=1) - truth).T @ x / len(x)
                m, r = m - lr * (by_label + share * by_m), r - lr * share * by_r
                _, _, by_M, by_R = slopes(m, r, M, R)
                M, R = M - lr * by_M, R - lr * by_R
            kept[c], memes[c] = [m, r], (M, R)
            own = run.engine.kept[round, c]["personal"]
            assert joined(own, "mean") == pytest.approx(m, abs=1e-9)
            assert joined(own, "rho") == pytest.approx(r, abs=1e-9)
            sent = run.engine.replies[round, c].message.arrays("meme")
            assert joined(sent, "mean") == pytest.approx(M, abs=1e-9)
            assert joined(sent, "rho") == pytest.approx(R, abs=1e-9)
        n = {"a": 6, "b": 8, "c": 7}
        G, P = (sum(n[c] * memes[c][i] for c in "abc") / 21 for i in (0, 1))


def test_a_client_serves_with_the_means_and_they_come_back_from_a_folder(
    federate: Federate, tmp_path: Any
) -> None:
    from mutua.runs.folder import RunFolder

    federation = federate()
    result = mutua.run(PFedBayes(), federation, **PLAN)
    folder = RunFolder.open(result.save(tmp_path / "run"))
    for client in result.clients:
        x, own = client.client.test.x, client.state["personal"]
        z = torch.tanh(x @ own["mean.body.weight"].T + own["mean.body.bias"])
        by_hand = torch.softmax(z @ own["mean.head.weight"].T + own["mean.head.bias"], 1)
        assert torch.allclose(client.predictor(x), by_hand, atol=1e-6)
        assert torch.equal(folder.client(client.id).predictor()(x), client.predictor(x))
    assert result.global_state is not None and {n.partition(".")[0] for n in result.global_state} == {
        "mean",
        "rho",
    }
    assert result.ledger.kinds("up").keys() == {"weights: meme", "count: samples"}


def test_only_q_learns_from_labels_and_opted_in_ones_alone(federate: Federate, simulate: Simulate) -> None:
    run = simulate(PFedBayes(), federate((9, 6, 5, 8)), client_fraction=0.5, rounds=2, seed=1)
    drawn = {client for _, client in run.engine.replies}
    for client in set("abcd") - drawn:
        assert run.engine.kept[0, client] == run.engine.kept[2, client]
    for (round, client), reply in run.engine.replies.items():
        assert set(reply.terms) == {"personal", "meme"}
        assert set(run.engine.kept[round, client]) == {"personal", "personal.optimizer"}


def test_what_it_cannot_do_is_refused_by_name(nets: SimpleNamespace, federate: Federate) -> None:
    with pytest.raises(InputError, match=r"client a: its model is .* but pfedbayes needs the global's design"):
        PFedBayes().arrange(federate(models=nets.wide, global_model=nets.plain))
    with pytest.raises(InputError, match=r"models.global.share: a part, but pfedbayes compares whole models"):
        PFedBayes().arrange(federate(models=nets.plain, global_model={"name": nets.plain, "share": "body"}))
    with pytest.raises(InputError, match=r"models.gaussian: 'wide'; give a number from -50 to 50"):
        Architecture.of({"name": "mlp", "gaussian": "wide"})
