"""FedGKT: without α training alone, two rounds in NumPy, teacher rows by sample, and what it asks for first."""

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
from mutua import Federation, InputError
from mutua.methods import FedGKT, Independent, Kind, Message, Part
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


class Agreed(FedGKT):
    labels_leave: bool = True


@pytest.mark.parametrize("net", ["plain", "normed", "dropping"])
def test_without_alpha_each_client_is_alone_to_the_bit(
    net: str, nets: SimpleNamespace, federate: Federate, identical: Identical
) -> None:
    federation = federate((9, 13, 5), models=getattr(nets, net), global_model="mlp")
    free, taught, alone = (mutua.run(m, federation, **PLAN) for m in (Agreed(alpha=0), Agreed(), Independent()))
    for one, other, third in zip(free.clients, taught.clients, alone.clients, strict=True):
        assert identical(one.state["personal"], third.state["personal"])
        assert not identical(other.state["personal"], third.state["personal"])
    assert set(free.ledger.kinds("up")) == {"features: features", "scores: scores", "labels: labels"}


def test_three_rounds_equal_numpy(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, double: None
) -> None:
    T, alpha, rate, server_rate = 3.0, 0.7, 0.2, 0.4
    federation = federate((5, 8, 4), models=nets.plain, global_model=nets.linear)
    method = Agreed(
        alpha=alpha, temperature=T, server_optimizer={"name": "sgd", "lr": server_rate, "momentum": 0.5}
    )
    settings = {"steps": 2, "batch_size": 40, "optimizer": {"lr": rate}}
    run = simulate(method, federation, rounds=3, **settings)

    def grown(z: np.ndarray) -> np.ndarray:
        return np.hstack([z, np.ones((len(z), 1))])

    def slope(scores: np.ndarray, truth: np.ndarray, said: np.ndarray | None) -> np.ndarray:
        """Of CE + α·T²·KL(softmax(said/T) ‖ softmax(scores/T)), means over samples, by the scores."""
        found = softmax(scores, axis=1) - truth
        if said is not None:
            found = found + alpha * T * (softmax(scores / T, axis=1) - softmax(said / T, axis=1))
        return np.asarray(found / len(scores))

    def joined(state: Tensors, part: str) -> np.ndarray:
        return np.hstack([state[f"{part}.weight"].numpy(), state[f"{part}.bias"].numpy()[:, None]])

    edges = {c: [joined(run.engine.kept[0, c]["personal"], part) for part in ("body", "head")] for c in "abc"}
    data = {c: federation[c].train for c in "abc"}
    x = {c: grown(data[c].x.double().numpy()) for c in "abc"}
    truth = {c: np.eye(3)[data[c].y.numpy()] for c in "abc"}
    said: dict[str, np.ndarray] = {}
    w, pace = joined(server_start(run), "head"), 0.0
    for round in (1, 2, 3):
        told = {}
        for c in "abc":
            body, head = edges[c]
            for _ in range(2):
                z = np.tanh(x[c] @ body.T)
                by_scores = slope(grown(z) @ head.T, truth[c], said.get(c))
                by_body = ((by_scores @ head[:, :-1]) * (1 - z**2)).T @ x[c]
                head, body = head - rate * by_scores.T @ grown(z), body - rate * by_body
            edges[c] = [body, head]
            z = np.tanh(x[c] @ body.T)
            told[c] = z, grown(z) @ head.T
            message = run.engine.replies[round, c].message
            assert message.arrays("features")[""].numpy() == pytest.approx(z, abs=1e-9)
            assert message.arrays("scores")[""].numpy() == pytest.approx(told[c][1], abs=1e-9)
            assert torch.equal(message.arrays("labels")[""], data[c].y)
        z, edge = (np.vstack([told[c][i] for c in "abc"]) for i in (0, 1))
        by_server = slope(grown(z) @ w.T, np.vstack([truth[c] for c in "abc"]), edge).T @ grown(z)
        pace = 0.5 * pace + by_server  # momentum lasts from round to round
        w = w - server_rate * pace
        said = {c: grown(told[c][0]) @ w.T for c in "abc"}
        for c in "abc":
            rows = run.engine.briefs[round + 1, c].arrays("said")[""].numpy()
            assert rows == pytest.approx(said[c], abs=1e-9)
    for c in "abc":
        for part, by_hand in zip(("body", "head"), edges[c], strict=True):
            assert joined(run.engine.kept[3, c]["personal"], part) == pytest.approx(by_hand, abs=1e-9)


def server_start(run: Any) -> Tensors:
    from mutua.data.model_input import ModelInput

    return dict(run.server.build(input=ModelInput.of(6, 1)).state_dict())


def test_teacher_rows_are_of_samples_whatever_their_batches(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """Row i is what the server's model says of the client's sample i alone, in evaluation mode."""
    federation = federate((9, 13, 5), models=nets.plain, global_model=nets.normed)
    run = simulate(Agreed(), federation, rounds=2, batch_size=4, client_fraction=1.0)
    from mutua.data.model_input import ModelInput

    model = run.server.build(run.server.state["server"], input=ModelInput.of(6, 1)).eval()
    for client in "abc":
        z = run.engine.replies[2, client].message.arrays("features")[""]
        own = run.engine.kept[2, client]["personal"]
        by_hand = torch.tanh(federation[client].train.x @ own["body.weight"].T + own["body.bias"])
        assert torch.allclose(z, by_hand, atol=1e-6)
        rows = run.engine.briefs[3, client].arrays("said")[""]
        with torch.no_grad():
            each = torch.cat([model(one.unsqueeze(0)) for one in z])
        assert torch.allclose(rows, each, atol=1e-5)


def test_only_training_samples_leave_and_only_those_that_are_opted_in(
    federate: Federate, simulate: Simulate
) -> None:
    federation = federate((9, 6, 5), global_model="linear")
    kept = torch.tensor([True, False, True] * 3)
    clients = [replace(federation.clients[0], opt_in=kept), federation.clients[1]]
    clients.append(replace(federation.clients[2], opt_in=torch.zeros(5, dtype=torch.bool)))
    run = simulate(Agreed(), replace(federation, clients=tuple(clients)))
    sent = run.engine.replies[2, "a"].message
    assert torch.equal(sent.arrays("labels")[""], federation["a"].train.y[kept])
    assert len(sent.arrays("features")[""]) == 6 == len(run.engine.briefs[3, "a"].arrays("said")[""])
    assert run.engine.replies[2, "c"].message is None
    assert len(run.engine.replies[2, "b"].message.arrays("labels")[""]) == 6


def test_a_client_never_drawn_is_left_alone(federate: Federate, simulate: Simulate, identical: Identical) -> None:
    run = simulate(Agreed(serve="joint"), federate((5, 6, 7, 8), global_model="mlp"), client_fraction=0.5, seed=1)
    away = set("abcd") - {client for _, client in run.engine.replies}
    for client in away:
        assert identical(run.engine.kept[0, client]["personal"], run.engine.kept[3, client]["personal"])
        assert "said" not in run.engine.briefs[3, client] and "server" in run.engine.briefs[3, client]


def test_the_joint_model_is_the_servers_on_the_edges_features_and_is_saved(
    federate: Federate, tmp_path: Any
) -> None:
    from mutua.runs.folder import RunFolder

    federation = federate((9, 13, 5), global_model={"name": "mlp", "width": 0.1})
    result = mutua.run(Agreed(serve="joint"), federation, **PLAN)
    edge = mutua.run(Agreed(), federation, **PLAN)
    folder = RunFolder.open(result.save(tmp_path / "run"))
    for client in result.clients:
        x = client.client.test.x
        model = client.predictor.model
        body = client.state["personal"]
        z = torch.tanh(x @ body["body.weight"].T + body["body.bias"])
        assert torch.allclose(model(x), model.get_submodule("server")(z), atol=1e-6)
        assert torch.equal(folder.client(client.id).predictor()(x), client.predictor(x))
        assert not torch.equal(client.predictor(x), edge[client.id].predictor(x))
    assert {row.client for row in result.ledger if row.name == "server"} == {"a", "b", "c"}


@pytest.mark.parametrize("spoil", ["labels", "rows", "width", "nothing", "nan"])
def test_a_reply_that_does_not_fit_is_refused(spoil: str, federate: Federate, simulate: Simulate) -> None:
    def lie(round: int, client: str, message: Message) -> Message:
        if client != "a":
            return message
        z, s, y = (message.arrays(name)[""].clone() for name in ("features", "scores", "labels"))
        if spoil == "labels":
            y[0] = 3
        elif spoil == "rows":
            s = s[1:]
        elif spoil == "width":
            z = z[:, 1:]
        elif spoil == "nan":
            z[0, 0] = torch.nan
        else:
            return Message(scores=message["scores"])
        kinds = ("features", Kind.FEATURES, z), ("scores", Kind.SCORES, s), ("labels", Kind.LABELS, y)
        return Message(**{name: Part(kind, {"": rows}) for name, kind, rows in kinds})

    run = simulate(Agreed(), federate(global_model="linear"), tamper=lie)
    assert {turn.client for turn in run.participation if turn.outcome == "refused"} == {"a"}


def test_designs_may_differ_and_what_it_cannot_do_is_refused(federate: Federate, nets: SimpleNamespace) -> None:
    mixed = [{"name": net, "features": 3} for net in (nets.plain, nets.wide, nets.normed)]
    result = mutua.run(Agreed(), federate((9, 13, 5), models=mixed, global_model="mlp"), **PLAN)
    assert all(client.accuracy() is not None for client in result.clients)
    with pytest.raises(
        InputError, match=r"method.labels_leave: false, but fedgkt sends features, scores and the label"
    ):
        FedGKT().arrange(federate())
    with pytest.raises(InputError, match=r"models.features: missing; fedgkt needs features of one width"):
        Agreed().arrange(federate(models=[nets.plain, nets.wide, nets.plain]))
    for shared in (None, {"name": nets.plain, "share": "body"}):
        with pytest.raises(InputError, match=r"models.global: fedgkt's server trains a whole model on features"):
            Agreed().arrange(federate(global_model=shared))
    with pytest.raises(InputError, match=r"models: 'lenet5' takes images, and the data is plain features"):
        Agreed().arrange(federate(global_model="lenet5"))
    private = {"clip": 1.0, "noise": 1.0, "randomness": "seeded"}
    with pytest.raises(InputError, match=r"privacy: fedgkt sends 'features' \(features\)"):
        mutua.run(Agreed(), federate(), privacy=private, **PLAN)
