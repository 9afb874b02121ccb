"""FD: without γ it is training alone; rounds in NumPy, own rows left out, classes by name, bad rows refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax  # type: ignore[import-untyped]

import mutua
from conftest import PLAN
from mutua import Federation, InputError, Kind, Message
from mutua.methods import FD, Independent, Part
from mutua.rounds.events import Rejected
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]


def test_without_gamma_each_client_is_alone_whatever_its_design(
    nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    federation = federate((9, 13, 5), models=[nets.wide, nets.normed, nets.dropping], global_model=None)
    free, taught, alone = (mutua.run(m, federation, **PLAN) for m in (FD(gamma=0), FD(), Independent()))
    for one, other, third in zip(free.clients, taught.clients, alone.clients, strict=True):
        assert identical(one.state["personal"], third.state["personal"])
        assert not identical(other.state["personal"], third.state["personal"])
    assert free.global_state is None
    assert set(free.ledger.kinds("up")) == {"probabilities: rows"}


def test_two_rounds_equal_numpy(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    """Rows are of the trained model in evaluation mode, of all own samples of a label; own rows stay out."""
    federation = federate([6, 8, 7], models=nets.linear, global_model=None)
    b = federation["b"]
    poorer = replace(b, train=b.train.take((b.train.y != 1).nonzero()[:, 0]))
    federation = replace(federation, clients=(federation["a"], poorer, federation["c"]))
    settings = {"steps": 2, "batch_size": 20, "optimizer": {"name": "sgd", "lr": 0.5}}
    run = simulate(FD(gamma=0.6), federation, rounds=2, **settings)
    names = federation["a"].task.classes
    own = {c: state for (r, c), state in run.engine.kept.items() if r == 0}
    w = {
        c: np.hstack([s["personal"]["head.weight"].numpy(), s["personal"]["head.bias"].numpy()[:, None]])
        for c, s in own.items()
    }
    sent: dict[str, dict[int, np.ndarray]] = {}
    for round in (1, 2):
        before = dict(sent)
        for client in "abc":
            data = federation[client].train
            y = data.y.numpy()
            x, truth = np.hstack([data.x.double().numpy(), np.ones((len(data), 1))]), np.eye(3)[y]
            teachers = np.zeros((3, 3))
            for label in range(3):
                rows = [before[j][label] for j in before if j != client and label in before[j]]
                teachers[label] = np.mean(rows, axis=0) if rows else 0
            target = teachers[y]
            for _ in range(2):
                p = softmax(x @ w[client].T, axis=1)
                d = (p - truth) + 0.6 * (p * target.sum(1, keepdims=True) - target)
                w[client] = w[client] - 0.5 * d.T @ x / len(x)
            p = softmax(x @ w[client].T, axis=1)
            sent[client] = {label: p[y == label].mean(0) for label in set(y.tolist())}
            found = run.engine.replies[round, client].message.arrays("rows")
            assert found.keys() == {names[label] for label in sent[client]}
            for label, row in sent[client].items():
                assert found[names[label]].numpy() == pytest.approx(row, abs=1e-9)
    assert names[1] not in run.engine.replies[2, "b"].message.arrays("rows")


def test_the_brief_is_the_mean_of_the_others_and_keeps_what_undrawn_clients_said(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    run = simulate(FD(), federate((9, 6, 5, 8), global_model=None), rounds=4, client_fraction=0.5, seed=2)
    last: dict[str, Tensors] = {}
    for round in range(1, 6):
        for client in "abcd":
            if (round, client) not in run.engine.briefs:
                continue
            found = run.engine.briefs[round, client].arrays("rows")
            others = [rows for other, rows in sorted(last.items()) if other != client]
            assert found.keys() == {name for rows in others for name in rows}
            for name, row in found.items():
                mean = torch.stack([rows[name] for rows in others if name in rows]).mean(0)
                assert torch.allclose(row, mean, atol=1e-6)
        new = {c: reply.message.arrays("rows") for (r, c), reply in run.engine.replies.items() if r == round}
        last |= new


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({}, "it holds 0 rows of probabilities; from 1 to 3 are wanted"),
        ({"ape": torch.tensor([0.5, 0.5])}, "its row 'ape' is not 3 probabilities that sum to 1"),
        ({"ape": torch.tensor([0.5, 0.9, -0.4])}, "its row 'ape' is not 3 probabilities"),
        ({"bee": torch.tensor([0.5, 0.5, float("nan")])}, "its row 'bee' is not 3 probabilities"),
        ({name: torch.ones(3) / 3 for name in "wxyz"}, "it holds 4 rows of probabilities"),
    ],
)
def test_rows_that_are_none_are_refused(rows: Tensors, said: str, federate: Federate, simulate: Simulate) -> None:
    def tamper(round: int, client: str, message: Message) -> Message:
        return message if client != "b" else Message(rows=Part(Kind.PROBABILITIES, rows))

    run = simulate(FD(), federate([5, 6, 7], global_model=None), tamper=tamper, rounds=1)
    (event,) = (event for event in run.events if isinstance(event, Rejected))
    assert event.client == "b" and said in event.reason
    assert set(run.server.state) == {"rows a", "rows c"}


def test_a_name_that_a_client_does_not_know_teaches_it_nothing(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    def tamper(round: int, client: str, message: Message) -> Message:
        rows = {f"{name}!": row for name, row in message.arrays("rows").items()}
        return Message(rows=Part(Kind.PROBABILITIES, rows))

    federation = federate([9, 6], global_model=None)
    lied, free = (simulate(FD(gamma=g), federation, tamper=t) for g, t in ((1, tamper), (0, None)))
    assert identical(lied.engine.kept[2, "a"]["personal"], free.engine.kept[2, "a"]["personal"])


def test_different_classes_are_refused_by_name(nets: SimpleNamespace, federate: Federate) -> None:
    names = [("ape", "bee"), ("bee", "cat", "dog")]
    federation = federate([8, 8], classes=names, global_model={"name": nets.plain, "share": "body"})
    with pytest.raises(InputError, match="clients have different classes, but fd needs one list for all"):
        FD().arrange(federation)
