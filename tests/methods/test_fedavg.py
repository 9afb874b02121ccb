"""FedAvg, FedProx and fine-tuning: weights and proximal gradients by hand, early stopping step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax  # type: ignore[import-untyped]

from mutua import SGD, Architecture, Client, Federation, InputError, Kind, Message, Samples
from mutua.federation.module_pool import Modules
from mutua.learning.evaluation import measure
from mutua.methods import FedAvg, FedProx, FineTuned, Part, Participant, count, participant
from mutua.rounds.events import Rejected
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]


def arrays_of(data: Samples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs with a constant for the bias, labels as one-hot rows and as numbers."""
    x = np.hstack([data.x.double().numpy(), np.ones((len(data), 1))])
    return x, np.eye(3)[data.y.numpy()], data.y.numpy()


def joined(state: Tensors) -> np.ndarray:
    return np.hstack([state["head.weight"].double().numpy(), state["head.bias"].double().numpy()[:, None]])


# The merge


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_merge_is_weighted_by_samples_or_uniform(
    weighting: Any, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    sizes = [3, 20, 9]
    run = simulate(FedAvg(weights=weighting), federate(sizes, global_model=nets.normed), rounds=2)
    for round in (1, 2):
        memes = [run.engine.replies[round, client].message.arrays("meme") for client in "abc"]
        for name, merged in run.globals[round].items():
            if merged.dtype == torch.int64:
                assert int(merged) == int(memes[0][name]), "batch counters are the first client's"
                continue
            shares = np.array(sizes) / sum(sizes) if weighting == "samples" else np.ones(3) / 3
            by_hand = sum(w * meme[name].double().numpy() for w, meme in zip(shares, memes, strict=True))
            assert merged.numpy() == pytest.approx(by_hand, abs=1e-6), name
    assert {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"} <= set(run.globals[2])


def test_one_round_of_fedavg_equals_numpy(nets: SimpleNamespace, federate: Federate, simulate: Simulate) -> None:
    """Full batches, two epochs, linear models: n_k/n-weighted by hand from the data alone."""
    federation = federate([4, 11], global_model=nets.linear)
    run = simulate(FedAvg(), federation, rounds=2, epochs=2, batch_size=20, optimizer={"name": "sgd", "lr": 0.4})
    shared = joined(run.globals[0])
    for round in (1, 2):
        memes = []
        for client in "ab":
            x, truth, _ = arrays_of(federation[client].train)
            w = shared
            for _ in range(2):
                w = w - 0.4 * (softmax(x @ w.T, axis=1) - truth).T @ x / len(x)
            memes.append(w)
        shared = 4 / 15 * memes[0] + 11 / 15 * memes[1]
        assert joined(run.globals[round]) == pytest.approx(shared, abs=1e-5)


def test_n_k_is_sent_only_where_the_merge_needs_it(federate: Federate, simulate: Simulate) -> None:
    by_samples, uniform = (simulate(FedAvg(weights=w), federate([5, 8]), rounds=1) for w in ("samples", "uniform"))
    replies = [by_samples.engine.replies[1, client].message for client in "ab"]
    assert [set(reply) for reply in replies] == [{"meme", "samples"}] * 2
    assert [reply.number("samples") for reply in replies] == [5, 8]
    assert all(reply["samples"].kind is Kind.COUNT for reply in replies)
    assert set(uniform.engine.replies[1, "a"].message) == {"meme"}
    assert set(by_samples.ledger.kinds("up")) == {"weights: meme", "count: samples"}
    assert set(uniform.ledger.kinds("up")) == {"weights: meme"}


@pytest.mark.parametrize(
    "samples",
    [
        count(0),
        count(-5),
        Part(Kind.COUNT, {"": torch.tensor(float("nan"))}),
        Part(Kind.COUNT, {"": torch.tensor(float("inf"))}),
        Part(Kind.COUNT, {"": torch.tensor([3, 4])}),
        Part(Kind.COUNT, {"n": torch.tensor(3)}),
        None,
    ],
    ids=["zero", "negative", "nan", "infinite", "two", "named", "missing"],
)
def test_a_count_that_is_none_is_refused_and_the_round_goes_on(
    samples: Part | None, federate: Federate, simulate: Simulate
) -> None:
    def tamper(round: int, client: str, message: Message) -> Message:
        if client != "b":
            return message
        return Message(meme=message["meme"], **({"samples": samples} if samples else {}))

    run = simulate(FedAvg(), federate([5, 6, 7]), tamper=tamper, rounds=1)
    rejected = [event for event in run.events if isinstance(event, Rejected)]
    assert [(event.round, event.client) for event in rejected] == [(1, "b")]
    memes = [run.engine.replies[1, client].message.arrays("meme")["head.bias"].numpy() for client in "ac"]
    assert run.globals[1]["head.bias"].numpy() == pytest.approx(5 / 12 * memes[0] + 7 / 12 * memes[1], abs=1e-6)


# FedProx


def test_the_proximal_gradient_by_hand(nets: SimpleNamespace, federate: Federate, simulate: Simulate) -> None:
    federation = federate([8], global_model=nets.linear)
    settings = {"steps": 3, "batch_size": 8, "optimizer": {"name": "sgd", "lr": 0.5}}
    run = simulate(FedProx(mu=0.7), federation, rounds=2, **settings)
    x, truth, y = arrays_of(federation["a"].train)
    w = joined(run.globals[0])
    for round in (1, 2):
        start, losses = w, []
        for _ in range(3):
            p = softmax(x @ w.T, axis=1)
            losses.append(-np.log(p[np.arange(8), y]).mean() + 0.35 * np.square(w - start).sum())
            w = w - 0.5 * ((p - truth).T @ x / 8 + 0.7 * (w - start))
        assert joined(run.globals[round]) == pytest.approx(w, abs=1e-5)
        assert run.engine.replies[round, "a"].terms["meme"] == pytest.approx(np.mean(losses), abs=1e-5)


@pytest.mark.parametrize("share", ["all", "body"])
def test_fedprox_with_mu_0_is_fedavg_to_the_bit(
    share: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate(global_model={"name": nets.normed, "share": share})
    settings = {"rounds": 3, "optimizer": {"name": "sgd", "lr": 0.2, "momentum": 0.9}}
    fedavg, fedprox, held = (simulate(m, federation, **settings) for m in (FedAvg(), FedProx(mu=0), FedProx(mu=1)))
    assert all(identical(a, b) for a, b in zip(fedavg.globals, fedprox.globals, strict=True))
    assert not identical(fedavg.globals[-1], held.globals[-1])


def test_mu_by_round_and_by_default(federate: Federate, simulate: Simulate, identical: Identical) -> None:
    assert FedProx().mu == 0.01
    with pytest.raises(InputError):
        FedProx(mu=-1)
    scheduled = simulate(FedProx(mu=[0, 2]), federate(), rounds=2)
    plain, held = (simulate(FedProx(mu=mu), federate(), rounds=2) for mu in (0, 2))
    assert identical(scheduled.globals[1], plain.globals[1])
    assert not identical(scheduled.globals[2], plain.globals[2])
    assert not identical(scheduled.globals[2], held.globals[2])


# Serving


def test_fedavg_serves_with_the_global_or_by_option_with_the_last_local_copy(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical, modules: Modules
) -> None:
    federation = federate(global_model=nets.normed)
    assert federation.global_model is not None
    runs = {serve: simulate(FedAvg(serve=serve), federation, rounds=3) for serve in ("global", "local")}
    assert identical(runs["global"].globals[3], runs["local"].globals[3])
    for serve, run in runs.items():
        for client in "abc":
            state = run.engine.kept[4, client]
            at = Participant(run.job, federation[client], state, 4, modules)
            served = dict(run.job.method.predictor(at, run.engine.briefs[4, client]).state_dict())
            last = run.engine.replies[3, client].message.arrays("meme")
            if serve == "global":
                assert identical(served, run.globals[3])
            else:  # all but the counter of batches, which did not leave
                counter = {"norm.num_batches_tracked": served["norm.num_batches_tracked"]}
                assert identical(served, {**last, **counter})
                assert int(counter["norm.num_batches_tracked"]) > 0
            module = federation.global_model.build(channels=4, size=1, classes=3, seed=0)
            module.load_state_dict(served)
            expected = measure(module, federation[client].test, federation[client].task)
            for metric in ("accuracy", "loss"):
                assert run.history.last(client, "predictor", "test", metric) == expected[metric]
    # Before its first training a client has no local copy and serves with the global.
    first = runs["local"].history.select(round=0, client="a", model="predictor", metric="loss")
    shared = runs["local"].history.select(round=0, client="a", model="global", metric="loss")
    assert [row.value for row in first] == [row.value for row in shared]


# Fine-tuning


@pytest.mark.parametrize("lr", [0.05, 3.0, 500.0])
@pytest.mark.parametrize("net", ["plain", "normed"])
def test_fine_tuning_never_ends_worse_on_validation_loss_than_the_global(
    net: str, lr: float, nets: SimpleNamespace, federate: Federate, simulate: Simulate, modules: Modules
) -> None:
    """A rate that may destroy the model included: epoch 0 counts."""
    federation = federate([4, 4], global_model=getattr(nets, net), held=12)
    run = simulate(FedAvg(), federation, rounds=3)
    method = FineTuned(patience=3, tune_epochs=12)
    plan = run.job.plan.model_copy(update={"optimizer": SGD(lr=lr)})
    for client in "ab":
        at = Participant(replace(run.job, method=method, plan=plan), federation[client], {}, 4, modules)
        method.finish(at, run.engine.briefs[4, client])
        served = method.predictor(at, run.engine.briefs[4, client])
        loss = measure(served, federation[client].val, federation[client].task)["loss"]
        before = run.history.last(client, "global", "val", "loss")
        assert loss <= before


@pytest.mark.parametrize(
    ("losses", "best", "evaluations"),
    [
        ([1.0, 0.8, 0.9, 0.7, 0.75, 0.71], 3, 6),  # the best is neither the last nor the first
        ([0.5, 0.6, 0.7], 0, 3),  # epoch 0 counts
        ([0.5, 0.5, 0.5], 0, 3),  # as good is not better
        ([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3], 7, 8),  # no more than tune_epochs
    ],
)
def test_the_best_epoch_is_put_back_and_patience_ends_it(
    losses: list[float],
    best: int,
    evaluations: int,
    nets: SimpleNamespace,
    federate: Federate,
    simulate: Simulate,
    identical: Identical,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Validation losses are scripted; what the model was at each is kept."""
    run = simulate(FineTuned(patience=2, tune_epochs=7), federate([6], global_model=nets.normed), go=False)
    seen: list[Tensors] = []

    def scripted(model: Any, samples: Samples, task: Any, device: Any) -> dict[str, float | None]:
        if not fitting:
            return measure(model, samples, task, device)
        assert torch.equal(samples.x, run.federation["a"].val.x)
        seen.append({name: array.clone() for name, array in model.state_dict().items()})
        return {"loss": losses[len(seen) - 1]}

    fitting = False
    finish = run.engine.finish

    def watched(round: int, briefs: Any) -> Any:
        nonlocal fitting
        fitting = True
        done = finish(round, briefs)
        fitting = False
        return done

    monkeypatch.setattr(participant, "measure", scripted)
    monkeypatch.setattr(run.engine, "finish", watched)
    run.run()
    assert len(seen) == evaluations
    assert identical(seen[0], run.globals[2])
    assert identical(run.engine.kept[3, "a"]["tuned"], seen[best])
    assert all(not identical(a, b) for a, b in pairwise(seen))


def test_fine_tuning_changes_nothing_before_the_end_and_serves_with_the_tuned_copy(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate()
    fedavg, tuned = (simulate(method, federation, rounds=2) for method in (FedAvg(), FineTuned(tune_epochs=3)))
    assert all(identical(a, b) for a, b in zip(fedavg.globals, tuned.globals, strict=True))
    assert len(fedavg.engine.replies) == len(tuned.engine.replies)
    for round in (0, 1):
        rows = [run.history.select(round=round, model="predictor") for run in (fedavg, tuned)]
        assert rows[0] == rows[1]
    assert not identical(tuned.engine.kept[3, "a"]["tuned"], tuned.globals[2])
    losses = [run.history.last("a", "predictor", "val", "loss") for run in (fedavg, tuned)]
    assert losses[0] > losses[1]


def test_a_client_without_validation_data_is_tuned_for_a_rounds_work(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate(held=0)
    run = simulate(FineTuned(), federation, rounds=1, epochs=2)
    steps = simulate(FineTuned(), federation, rounds=1, epochs=2)
    assert identical(run.engine.kept[2, "a"]["tuned"], steps.engine.kept[2, "a"]["tuned"])
    assert not identical(run.engine.kept[2, "a"]["tuned"], run.globals[1])
    assert run.history.last("a", "predictor", "val", "loss") is None


def test_fine_tuning_wins_over_serving_the_local_copy(
    federate: Federate, simulate: Simulate, identical: Identical, modules: Modules
) -> None:
    run = simulate(FineTuned(serve="local", tune_epochs=2), federate(), rounds=2)
    state = run.engine.kept[3, "a"]
    at = Participant(run.job, run.federation["a"], state, 3, modules)
    served = run.job.method.predictor(at, run.engine.briefs[3, "a"])
    assert identical(dict(served.state_dict()), state["tuned"])


def test_a_partial_global_is_tuned_with_its_adaptor(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = federate(
        [8, 8], classes=[("ape", "bee"), ("bee", "cat", "dog")], global_model={"name": nets.plain, "share": "body"}
    )
    run = simulate(FineTuned(tune_epochs=4), federation, rounds=2)
    assert run.engine.kept[3, "b"]["tuned"]["head.weight"].shape == (3, 6)
    for client in "ab":
        tuned, shared = (run.history.last(client, model, "val", "loss") for model in ("predictor", "global"))
        assert tuned <= shared


# Newcomers


def newcomer(blobs: Callable[..., Samples], model: Any) -> Client:
    train, val, test = (blobs(n, seed=900 + n) for n in (14, 8, 30))
    return Client("new", train, val, test, Architecture.of(model))


@pytest.mark.parametrize("how", ["global", "finetune"])
@pytest.mark.parametrize(
    "method", [FedAvg(), FedProx(), FineTuned(tune_epochs=3), FedAvg(serve="local")], ids=repr
)
def test_a_newcomer_uses_or_tunes_the_global(
    method: Any,
    how: Any,
    nets: SimpleNamespace,
    federate: Federate,
    simulate: Simulate,
    identical: Identical,
    blobs: Callable[..., Samples],
    modules: Modules,
) -> None:
    run = simulate(method, federate(), rounds=2)
    client, brief = newcomer(blobs, nets.wide), run.engine.briefs[3, "a"]
    before = {name: array.clone() for name, array in brief.arrays("global").items()}
    at = Participant(run.job, client, {}, 3, modules)
    method.personalise(at, brief, how)
    served = method.predictor(at, brief)
    assert identical(run.server.state["global"], before)
    assert identical(dict(served.state_dict()), before) == (how == "global")
    loss = measure(served, client.val, client.task)["loss"]
    assert loss is not None
    module = run.federation.global_model.build(channels=4, size=1, classes=3, seed=0)
    module.load_state_dict(before)
    assert loss <= measure(module, client.val, client.task)["loss"]  # type: ignore[operator]


@pytest.mark.parametrize("method", [FedAvg(), FedProx(), FineTuned(tune_epochs=3)], ids=lambda m: str(m.name))
def test_fedavg_does_no_mutual_learning_with_a_newcomer(
    method: Any,
    nets: SimpleNamespace,
    federate: Federate,
    simulate: Simulate,
    blobs: Callable[..., Samples],
    modules: Modules,
) -> None:
    run = simulate(method, federate(), rounds=1)
    at = Participant(run.job, newcomer(blobs, nets.plain), {}, 2, modules)
    with pytest.raises(InputError, match=rf"'mutual'.*{method.name}.*'global' or 'finetune'"):
        method.personalise(at, run.engine.briefs[2, "a"], "mutual")
