"""FedKD: stripped it is DML; two rounds by its formulas; what leaves is the main part of a change."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import mutua
from mutua import Federation, InputError
from mutua.errors import Refused
from mutua.federation.message import may_leave
from mutua.learning.low_rank import factors, restored, thinned
from mutua.methods import DML, FedKD, Kind, Message, Part, weights
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
STRIPPED: dict[str, Any] = {"adaptive": False, "hidden": 0, "energy": 1}


@pytest.mark.parametrize("net", ["plain", "normed", "dropping"])
def test_stripped_of_what_is_its_own_it_is_dml_to_the_bit(
    net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    federation = federate((9, 13, 5), models=nets.wide, global_model=getattr(nets, net))
    kd, dml = (mutua.run(m, federation, **PLAN) for m in (FedKD(**STRIPPED), DML()))
    assert identical(kd.global_state, dml.global_state)  # type: ignore[arg-type]
    for one, other in zip(kd.clients, dml.clients, strict=True):
        assert identical(one.state["personal"], other.state["personal"])
    assert kd.ledger.kinds("up") == dml.ledger.kinds("up")
    for option in STRIPPED:
        rest = {name: value for name, value in STRIPPED.items() if name != option}
        assert not identical(mutua.run(FedKD(**rest), federation, **PLAN).global_state, dml.global_state)  # type: ignore[arg-type]


def test_two_rounds_are_as_the_formulas_say(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """Losses by hand; a term's gradient reaches its own model alone, the hidden loss's both; W is trained too."""
    federation = federate([7, 12], models=nets.wide, global_model=nets.plain)
    given = {"rounds": 2, "epochs": 1, "batch_size": 20, "optimizer": {"name": "sgd", "lr": 0.3}}
    run = simulate(FedKD(energy=1, hidden=0.5), federation, **given)
    for round in (1, 2):
        memes = []
        for client in "ab":
            data, kept = federation[client].train, run.engine.kept
            x, y = data.x.double(), torch.eye(3)[data.y]
            own = {n: a.clone().requires_grad_() for n, a in kept[round - 1, client]["personal"].items()}
            meme = {n: a.clone().requires_grad_() for n, a in run.globals[round - 1].items()}
            last = kept[round, client]["hidden"]["weight"]
            before = kept[round - 1, client]["hidden"]["weight"] if round == 2 else None

            def forward(w: Tensors, act: Any, x: torch.Tensor = x) -> tuple[torch.Tensor, torch.Tensor]:
                z = act(x @ w["body.weight"].T + w["body.bias"])
                return z, (z @ w["head.weight"].T + w["head.bias"]).log_softmax(1)

            (z, p), (zm, q) = forward(own, torch.relu), forward(meme, torch.tanh)
            ce, cem = (-(y * said).sum(1).mean() for said in (p, q))
            d = (ce + cem).item()
            taught = (q.exp() * (q - p)).sum(1).mean(), (p.exp() * (p - q)).sum(1).mean()
            told = run.engine.replies[round, client].terms
            assert told["personal"] == pytest.approx(ce.item() + taught[0].item() / d, abs=1e-10)
            assert told["meme"] == pytest.approx(cem.item() + taught[1].item() / d, abs=1e-10)
            if before is None:  # the first W is not in the store: it is what a step has made of the last
                before = W = solve_first(last, z.detach(), zm.detach(), 0.3 * 0.5 / d)
            W = before.clone().requires_grad_()
            hidden = 0.5 * (z - zm @ W.T).square().mean() / d
            assert told["hidden"] == pytest.approx(hidden.item(), abs=1e-10)
            kl = (
                (q.detach().exp() * (q.detach() - p)).sum(1).mean(),
                (p.detach().exp() * (p.detach() - q)).sum(1).mean(),
            )
            (ce + cem + (kl[0] + kl[1]) / d + hidden).backward()
            for name, array in own.items():
                expected = array.detach() - 0.3 * array.grad  # type: ignore[operator]
                assert torch.allclose(kept[round, client]["personal"][name], expected, atol=1e-10), name
            assert torch.allclose(last, before - 0.3 * W.grad, atol=1e-10)
            memes.append({name: array.detach() - 0.3 * array.grad for name, array in meme.items()})  # type: ignore[operator]
        for name, array in run.globals[round].items():
            assert torch.allclose(array, (memes[0][name] + memes[1][name]) / 2, atol=1e-10), name


def solve_first(last: torch.Tensor, z: torch.Tensor, zm: torch.Tensor, rate: float) -> torch.Tensor:
    """The W before a step of gradient descent on the hidden loss: the step is linear in W."""
    scale = 2 * rate / z.numel()
    return (last - scale * z.T @ zm) @ torch.linalg.inv(torch.eye(zm.shape[1]) - scale * zm.T @ zm)


# What leaves


def test_a_change_leaves_as_numpys_largest_singular_values(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """Of M − G, not of M; the fewest that hold the energy; the server's mean is of what was sent."""
    federation = federate((9, 12), models=nets.wide, global_model=nets.plain)
    whole, thin = (simulate(FedKD(energy=energy), federation, rounds=1) for energy in (1, 0.7))
    G, memes = whole.globals[0], []
    for client in "ab":
        meme = whole.engine.replies[1, client].message.arrays("meme")
        sent = thin.engine.replies[1, client].message
        found = dict(sent.arrays("meme"))
        for name in ("body.weight", "head.weight"):
            u, s, v = np.linalg.svd((meme[name] - G[name]).numpy(), full_matrices=False)
            rank = next(k for k in range(1, 9) if (s[:k] ** 2).sum() >= 0.7 * (s**2).sum())
            if rank * (len(u) + v.shape[1]) >= G[name].numel():
                assert torch.equal(sent.arrays("meme")[name], meme[name])
                continue
            assert name not in sent.arrays("meme")
            assert sent.arrays("change")[f"{name}.left"].shape == (len(u), rank)
            found[name] = G[name] + torch.from_numpy(u[:, :rank] * s[:rank] @ v[:rank])
        assert "change" in sent and sent.nbytes <= FedKD().reply_bytes(federation, thin.job.plan)
        memes.append(found)
    for name, array in thin.globals[1].items():
        assert torch.allclose(array, (memes[0][name] + memes[1][name]) / 2, atol=1e-10), name


def test_bytes_of_an_ordinary_model_fall_and_more_energy_is_nearer(blobs: Any) -> None:
    """What the ledger counts is what is sent: fewer bytes, of an update that has a few main directions."""
    mlp = {"name": "mlp", "width": 0.2}
    federation = mutua.Federation.from_samples(
        mutua.load("mnist5k").train,
        partition=mutua.partitions.IID(clients=2),
        samples_per_client=40,
        models=mlp,
        global_model=mlp,
    )
    given = {**PLAN, "rounds": 1, "batch_size": 20}
    sent = {e: mutua.run(FedKD(energy=e), federation, **given) for e in (1, 0.98, 0.8)}
    up = {energy: result.ledger.bytes("up") for energy, result in sent.items()}
    assert up[0.8] < up[0.98] < 0.6 * up[1]

    def apart(energy: float) -> float:
        pairs = zip((sent[energy].global_state or {}).values(), (sent[1].global_state or {}).values(), strict=True)
        return sum(float((a - b).norm()) for a, b in pairs)

    assert 0 < apart(0.98) < apart(0.8)


@pytest.mark.parametrize("shape", [(4, 6), (9, 2, 3, 3), (5, 30)])
def test_factors_hold_the_energy_and_one_value_less_does_not(shape: tuple[int, ...], double: None) -> None:
    array = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    values = np.linalg.svd(array.reshape(len(array), -1).numpy())[1] ** 2
    for energy in (0.3, 0.6, 0.9):
        found = factors(array, energy)
        rank = next(k for k in range(1, 10) if values[:k].sum() >= energy * values.sum())
        assert (found is None) == (rank * (len(array) + array[0].numel()) >= array.numel())
        if found is not None:
            left = array.reshape(len(array), -1) - found[0] @ found[1]
            assert float(left.square().sum()) == pytest.approx(values[rank:].sum(), abs=1e-10)
    assert factors(torch.zeros(9, 9), 0.9)[1].shape == (1, 9)  # type: ignore[index]
    assert factors(torch.full((9, 9), float("nan")), 0.9) is None and factors(torch.ones(9), 0.9) is None


def test_thinned_and_restored_again() -> None:
    torch.manual_seed(0)
    before = {"w": torch.randn(8, 8), "b": torch.randn(8), "n": torch.tensor(3)}
    after = {
        "w": before["w"] + torch.outer(torch.randn(8), torch.randn(8)),
        "b": torch.randn(8),
        "n": torch.tensor(3),
    }
    whole, thin = thinned(after, before, 0.99)
    assert set(whole) == {"b", "n"} and set(thin) == {"w.left", "w.right"}
    again = restored(whole, thin, before)
    assert all(torch.allclose(again[name].double(), array.double(), atol=1e-5) for name, array in after.items())
    assert thinned(after, before, 1.0) == (after, {})


def test_factors_that_do_not_fit_may_not_leave() -> None:
    brief = Message(**{"global": weights({"w": torch.zeros(4, 6), "n": torch.tensor(1)})})
    shares = {"change": Kind.FACTORS}

    def said(**arrays: torch.Tensor) -> str:
        named = {name.replace("_", "."): array for name, array in arrays.items()}
        with pytest.raises(Refused) as error:
            may_leave(Message(change=Part(Kind.FACTORS, named)), shares, brief)
        return str(error.value)

    thin = torch.zeros(4, 2), torch.zeros(2, 6)
    may_leave(Message(change=Part(Kind.FACTORS, {"w.left": thin[0], "w.right": thin[1]})), shares, brief)
    assert "not a NAME.left and a NAME.right" in said(w_left=thin[0])
    assert "not a NAME.left and a NAME.right" in said(w=thin[0], w_right=thin[1])
    assert "the global has no such name" in said(head_left=thin[0], head_right=thin[1])
    assert "factors 'w' are (4, 2) and (3, 6)" in said(w_left=thin[0], w_right=torch.zeros(3, 6))
    assert "factors 'w' are (4, 2) and (2, 5)" in said(w_left=thin[0], w_right=torch.zeros(2, 5))
    assert "factors 'n'" in said(n_left=thin[0], n_right=thin[1])
    assert "factors 'w' are" in said(w_left=thin[0].double(), w_right=thin[1].double())


def test_what_it_cannot_do_is_refused_by_name(nets: SimpleNamespace, federate: Federate) -> None:
    class Headless(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(4, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    private = {"clip": 1.0, "noise": 1.0}
    with pytest.raises(InputError, match=r"privacy: fedkd sends 'change' \(factors\).*set energy: 1"):
        mutua.run(FedKD(), federate(), **PLAN, privacy=private)
    with pytest.raises(InputError, match=r"model Headless has no head.*fedkd needs features"):
        FedKD().arrange(federate(models=Headless(), global_model=nets.plain))
    FedKD(hidden=0).arrange(federate(models=Headless(), global_model=nets.plain))
    with pytest.raises(InputError, match="energy"):
        FedKD(energy=0)
