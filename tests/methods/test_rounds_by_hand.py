"""Rounds in NumPy of methods whose own tests look at single steps: FedPer, LG-FedAvg, FedProto, CFL and Reptile.

The model is `plain`, a linear layer, tanh and a linear head; all of a client's samples are one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mutua import Federation, Samples
from mutua.methods import CFL, FedPer, FedProto, LGFedAvg, Reptile
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Arrays = dict[str, np.ndarray]
LR = 0.5
WHOLE: dict[str, Any] = {"batch_size": 50, "optimizer": {"name": "sgd", "lr": LR}}
SIZES = (7, 12, 9, 10)
BODY, HEAD = ("body.weight", "body.bias"), ("head.weight", "head.bias")


def doubles(arrays: Tensors) -> Arrays:
    return {name: array.double().numpy() for name, array in arrays.items()}


def features(s: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    return np.tanh(x @ s["body.weight"].T + s["body.bias"])


def stepped(s: Arrays, data: Samples, pulled: Callable[[np.ndarray], np.ndarray] | None = None) -> Arrays:
    """One step along the gradient of CE and, if given, of a term whose gradient by the features is `pulled`."""
    x, y = data.x.double().numpy(), np.eye(3)[data.y.numpy()]
    z = features(s, x)
    p = np.exp(z @ s["head.weight"].T + s["head.bias"])
    d = (p / p.sum(1, keepdims=True) - y) / len(y)
    dz = d @ s["head.weight"] + (0 if pulled is None else pulled(z))
    a = dz * (1 - z**2)
    slopes = {"body.weight": a.T @ x, "body.bias": a.sum(0), "head.weight": d.T @ z, "head.bias": d.sum(0)}
    return {name: s[name] - LR * slopes[name] for name in s}


def mean(states: list[Arrays], names: tuple[str, ...], counts: list[int] | None = None) -> Arrays:
    return {name: np.average([s[name] for s in states], axis=0, weights=counts) for name in names}


def assert_close(found: Tensors, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].numpy() == pytest.approx(array, abs=2e-5), name


def test_two_rounds_of_fedper(nets: SimpleNamespace, federate: Federate, simulate: Simulate) -> None:
    federation = federate((7, 12), models=nets.plain, global_model=nets.plain)
    run = simulate(FedPer(), federation, **WHOLE)
    still = simulate(FedPer(), federation, rounds=1, batch_size=50, optimizer={"name": "sgd", "lr": 0.0})
    G = doubles(run.globals[0])
    heads = {c: doubles(still.engine.kept[1, c]["adaptor"]) for c in "ab"}
    assert not np.allclose(heads["a"]["head.weight"], heads["b"]["head.weight"]), "each has a head of its own"
    for round in (1, 2):
        memes = [stepped({**G, **heads[c]}, federation[c].train) for c in "ab"]
        heads = {c: {name: meme[name] for name in HEAD} for c, meme in zip("ab", memes, strict=True)}
        G = mean(memes, BODY, [7, 12])
        assert_close(run.globals[round], G)
        for c in "ab":
            assert_close(run.engine.kept[round, c]["adaptor"], heads[c])


def test_two_rounds_of_lgfedavg(nets: SimpleNamespace, federate: Federate, simulate: Simulate) -> None:
    federation = federate((7, 12), models=nets.plain, global_model=nets.plain)
    run = simulate(LGFedAvg(), federation, **WHOLE)
    own = {c: doubles(run.engine.kept[0, c]["personal"]) for c in "ab"}
    head = doubles(run.globals[0])
    assert head.keys() == {*HEAD}
    for round in (1, 2):
        own = {c: stepped({**own[c], **head}, federation[c].train) for c in "ab"}
        head = mean(list(own.values()), HEAD)
        assert_close(run.globals[round], head)
        for c in "ab":
            assert_close(run.engine.kept[round, c]["personal"], own[c])


def test_three_rounds_of_fedproto(nets: SimpleNamespace, federate: Federate, simulate: Simulate) -> None:
    federation = federate((7, 12), models=nets.plain, global_model=None)
    run = simulate(FedProto(lam=3.0), federation, rounds=3, **WHOLE)
    own = {c: doubles(run.engine.kept[0, c]["personal"]) for c in "ab"}
    P: dict[int, np.ndarray] = {}
    for round in (1, 2, 3):
        sent: dict[int, list[np.ndarray]] = {}
        for c in "ab":
            data, known = federation[c].train, dict(P)
            y = data.y.numpy()

            def pulled(z: np.ndarray, y: np.ndarray = y, known: dict[int, np.ndarray] = known) -> np.ndarray:
                far = [z[i] - known[label] if label in known else 0 * z[i] for i, label in enumerate(y)]
                return 3.0 * 2 * np.stack(far) / z.size

            own[c] = stepped(own[c], data, pulled)
            z = features(own[c], data.x.double().numpy())
            for label in set(y.tolist()):
                sent.setdefault(label, []).append(z[y == label].mean(0))
            assert_close(run.engine.kept[round, c]["personal"], own[c])
        P = {**P, **{label: np.mean(vectors, axis=0) for label, vectors in sent.items()}}
        brief = run.engine.briefs[round + 1, "a"].arrays("prototypes")
        assert_close(brief, {federation.classes[label]: vector for label, vector in P.items()})


def test_a_round_of_cfl_divides_its_clients_and_merges_each_group_by_itself(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = federate(SIZES, models=nets.plain, global_model=nets.plain)
    run = simulate(CFL(eps1=10.0, eps2=1e-3, after=0), federation, **WHOLE)
    G = doubles(run.globals[0])
    memes = {c: stepped(G, federation[c].train) for c in "abcd"}
    far = {c: np.concatenate([(m[n] - G[n]).ravel() for n in G]) for c, m in memes.items()}
    unit = {c: u / np.linalg.norm(u) for c, u in far.items()}
    cuts = [{"a", *more} for size in (0, 1, 2) for more in combinations("bcd", size)]
    cut = min(cuts, key=lambda one: max(unit[i] @ unit[j] for i in one for j in set("abcd") - one))
    centres = {}
    for group in (cut, set("abcd") - cut):
        members = sorted(group)
        counts = [len(federation[c].train) for c in members]
        centres |= dict.fromkeys(members, mean([memes[c] for c in members], (*BODY, *HEAD), counts))
    for c in "abcd":
        assert_close(run.engine.briefs[2, c].arrays("global"), centres[c])


def test_two_rounds_of_reptile(nets: SimpleNamespace, federate: Federate, simulate: Simulate) -> None:
    """The first is FedAvg's with two steps; in the second each takes one, and the server steps by half."""
    federation = federate((7, 12), models=nets.plain, global_model=nets.plain)
    method = Reptile(reptile_rounds=1, local_steps=1, server={"name": "sgd", "lr": 0.5, "momentum": 0.0})
    run = simulate(method, federation, epochs=2, **WHOLE)
    first = doubles(run.globals[0])
    G = mean([stepped(stepped(first, federation[c].train), federation[c].train) for c in "ab"], (*BODY, *HEAD))
    assert_close(run.globals[1], G)
    merged = mean([stepped(G, federation[c].train) for c in "ab"], (*BODY, *HEAD))
    G = {name: G[name] - 0.5 * (G[name] - merged[name]) for name in G}
    assert_close(run.globals[2], G)
    for c in "ab":
        assert_close(run.engine.kept[3, c]["tuned"], stepped(G, federation[c].train))
