"""Robust combiners of FedMD's scores and of FedH2L's gradients, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mutua import Federation, Kind, Message
from mutua.data.public import Public, carve
from mutua.methods import FedH2L, FedMD, Part
from mutua.seeds import public

Array = np.ndarray[Any, Any]
NAMES = [
    "mean",
    "median",
    {"name": "trimmed-mean", "share": 0.2},
    "clip",
    {"name": "clip", "norm": 0.5},
    {"name": "krum", "share": 0.2},
    {"name": "krum", "share": 0.2, "keep": 2},
]


def by_hand(combine: Any, rows: Array) -> Array:
    """What the combiner makes of vectors, one in a row."""
    spec = {"name": combine} if isinstance(combine, str) else combine
    k = len(rows)
    bad = int(np.ceil(spec.get("share", 0) * k - 1e-9))
    match spec["name"]:
        case "median":
            return np.median(rows, axis=0)
        case "trimmed-mean":
            return np.sort(rows, axis=0)[bad : k - bad].mean(0)
        case "clip":
            norms = np.linalg.norm(rows, axis=1)
            most = spec.get("norm", np.sort(norms)[(k - 1) // 2])
            return (rows * np.minimum(1, most / norms)[:, None]).mean(0)
        case "krum":
            apart = ((rows[:, None] - rows[None]) ** 2).sum(-1)
            near = [np.sort(np.delete(apart[i], i))[: max(1, k - bad - 2)].sum() for i in range(k)]
            return rows[np.argsort(near, kind="stable")[: spec.get("keep", 1)]].mean(0)
    return rows.mean(0)


def with_public(federation: Federation) -> Federation:
    split = {client.id: carve(client.train, 5, 0, client.id) for client in federation.clients}
    clients = tuple(replace(client, train=split[client.id][0]) for client in federation.clients)
    return replace(federation, clients=clients, public=Public({k: v for k, (_, v) in split.items()}))


@pytest.mark.parametrize("combine", NAMES, ids=str)
def test_fedmds_consensus(combine: Any) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(5, 7, 3)).astype(np.float32)
    scores[3] *= 40  # a liar
    replies = {f"c{i}": Message(public=Part(Kind.SCORES, {"": torch.tensor(s)})) for i, s in enumerate(scores)}
    server = SimpleNamespace(state={})
    FedMD(combine=combine).merge(server, replies)  # type: ignore[arg-type]
    found = server.state["consensus"][""].double().numpy().reshape(-1)
    assert found == pytest.approx(by_hand(combine, scores.astype(float).reshape(5, -1)), abs=1e-5)


@pytest.mark.parametrize("combine", NAMES, ids=str)
def test_fedh2ls_step_from_peers(
    combine: Any, federate: Callable[..., Federation], simulate: Callable[..., Any], nets: SimpleNamespace
) -> None:
    """A linear model, whose gradients are a formula: CE and Acc·KL on each of five peers' public batches."""
    federation = with_public(federate([17, 20, 15, 18, 16, 14], models=nets.linear, global_model=None))
    method = FedH2L(combine=combine, projection="none")
    run = simulate(method, federation, rounds=1, steps=1, evaluate_every=1000)
    brief = run.engine.briefs[2, "a"]
    before, after = (run.engine.kept[round, "a"]["personal"] for round in (1, 2))
    w, b = (before[f"head.{part}"].double().numpy() for part in ("weight", "bias"))
    rows = []
    for peer, said in brief.arrays("public").items():
        batch = run.federation.public.batch(peer, 4, public(0), 1)
        x, y, n = batch.preprocess(batch.x).double().numpy(), batch.y.numpy(), len(batch.y)
        logits = x @ w.T + b
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        sure = float(brief.arrays("public_accuracy")[peer])
        change = ((p - np.eye(3)[y]) + sure * (p - said.double().numpy())) / n
        rows.append(np.concatenate([(change.T @ x).reshape(-1), change.sum(0)]))
    assert len(rows) == 5
    step = np.concatenate(
        [(before[n] - after[n]).double().numpy().reshape(-1) for n in ("head.weight", "head.bias")]
    )
    assert step == pytest.approx(0.1 * by_hand(combine, np.array(rows)), abs=1e-5)
