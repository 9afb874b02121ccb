"""No-regret against FedAvg, `independent` and DML on bytes, its mixture by hand, and what leaves a client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from torch import Tensor

import mutua
from conftest import assert_repeatable, make_blobs, make_federation, make_simulation, plain, wide
from mutua import Architecture, Federation, InputError
from mutua.federation.module_pool import Modules
from mutua.learning.expert_weights import fitted_shift, label_prior, smoothed, weigh
from mutua.learning.losses import kl
from mutua.learning.trainer import between
from mutua.methods import DML, FedAvg, Independent, Method, NoRegret, Participant, supervised
from mutua.models.composite import Composite, Weighted
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]

MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}
QUICK = {"tune_epochs": 2}
MU = (0.5, 0.25, 0.25)


def opted(federation: Federation, **out: range) -> Federation:
    """The federation with these training samples of these clients opted out."""

    def mask(n: int, gone: range) -> Tensor:
        chosen = torch.ones(n, dtype=torch.bool)
        chosen[list(gone)] = False
        return chosen

    clients = (replace(c, opt_in=mask(len(c.train), out[c.id])) if c.id in out else c for c in federation.clients)
    return replace(federation, clients=tuple(clients))


def personals(run: Any) -> dict[str, Tensors]:
    return {client: store.state["personal"] for client, store in run.engine.stores.items()}


# Without teaching it is FedAvg and `independent` side by side


@pytest.mark.parametrize("fraction", [1.0, 0.4])
@pytest.mark.parametrize("share", ["all", "body"])
def test_the_global_is_fedavgs_and_the_personal_models_are_independents(
    fraction: float,
    share: str,
    nets: SimpleNamespace,
    federate: Federate,
    simulate: Simulate,
    identical: Identical,
) -> None:
    """With models of other designs, batch-norm, dropout, momentum and sampled clients; the same bytes leave."""
    net = {"name": nets.normed, "share": share}
    federation = federate([9, 12, 7], models=[nets.wide, nets.dropping, nets.normed], global_model=net)
    plan: dict[str, Any] = {"rounds": 4, "optimizer": MOMENTUM, "client_fraction": fraction}
    ours, fedavg, alone = (simulate(m, federation, **plan) for m in (NoRegret(**QUICK), FedAvg(), Independent()))
    assert len(ours.globals) == len(fedavg.globals) > 4
    assert all(map(identical, ours.globals, fedavg.globals))
    sent = {at: reply.message.encode() for at, reply in ours.engine.replies.items()}
    assert sent == {at: reply.message.encode() for at, reply in fedavg.engine.replies.items()}
    assert ours.ledger.bytes("up") == fedavg.ledger.bytes("up") > 0
    for client, weights in personals(alone).items():
        assert identical(personals(ours)[client], weights), client


def test_a_personal_model_learns_at_home_whoever_is_drawn_or_has_opted_out(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = opted(federate([9, 12, 7, 8]), a=range(3), b=range(12))
    plan: dict[str, Any] = {"rounds": 5, "client_fraction": 0.34, "optimizer": {"name": "adam", "lr": 0.05}}
    ours, fedavg, alone = (simulate(m, federation, **plan) for m in (NoRegret(**QUICK), FedAvg(), Independent()))
    assert "b" not in {client for _, client in ours.engine.replies}
    assert all(map(identical, ours.globals, fedavg.globals))
    assert all(identical(personals(ours)[c], weights) for c, weights in personals(alone).items())


@pytest.mark.parametrize("net", ["plain", "dropping", "normed"])
def test_with_teaching_of_one_and_uniform_weights_it_is_dml(
    net: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate(models=[nets.wide, nets.dropping, nets.normed], global_model=getattr(nets, net))
    method = NoRegret(teach=1.0, weights="uniform", **QUICK)
    ours, dml = (simulate(m, federation, rounds=3, optimizer=MOMENTUM) for m in (method, DML()))
    assert all(map(identical, ours.globals, dml.globals))
    assert all(identical(personals(ours)[c], weights) for c, weights in personals(dml).items())
    assert not identical(ours.globals[-1], simulate(FedAvg(weights="uniform"), federation, rounds=3).globals[-1])


def test_whoever_teaches_makes_up_for_other_rounds_alone(federate: Federate, simulate: Simulate) -> None:
    """A client that is never drawn has had nobody to teach or to be taught by: it learned alone in every round."""
    federation, plan = federate([9, 12, 7]), {"rounds": 3, "client_fraction": 0.34, "seed": 5}
    run = simulate(NoRegret(teach=1.0, **QUICK), federation, **plan)
    alone = personals(simulate(Independent(), federation, **plan))
    drawn = {client for _, client in run.engine.replies}
    assert 0 < len(drawn) < 3
    same = {c for c, w in personals(run).items() if all(torch.equal(a, w[n]) for n, a in alone[c].items())}
    assert same == set("abc") - drawn


# The mixture


def forward(state: Tensors, x: Tensor) -> np.ndarray:
    """A `plain` or `wide` model in NumPy."""
    act = np.tanh if state["body.weight"].shape[0] == 6 else lambda z: np.maximum(z, 0)
    w = {name: array.double().numpy() for name, array in state.items()}
    return (
        np.asarray(act(x.double().numpy() @ w["body.weight"].T + w["body.bias"]) @ w["head.weight"].T)
        + w["head.bias"]
    )


def experts_by_hand(state: dict[str, Tensors], counts: np.ndarray, x: Tensor) -> list[np.ndarray]:
    corrected = forward(state["global"], x) + np.log(len(counts) * label_prior(counts))
    return [softmax(z, 1) for z in (corrected, forward(state["tuned"], x), forward(state["personal"], x))]


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_what_is_served_is_the_rule_client_by_client(
    fraction: float, nets: SimpleNamespace, federate: Federate
) -> None:
    """From kept weights, in NumPy: correction, likelihoods, weights, mixture."""
    federation = federate([30, 22, 7], models=[nets.wide, nets.plain, nets.wide], held=25)
    result = mutua.run(
        NoRegret(),
        federation,
        rounds=3,
        batch_size=4,
        client_fraction=fraction,
        optimizer=mutua.SGD(lr=0.1),
        progress=False,
    )
    assert result.global_state is not None
    for client in result.clients:
        state, data = client.state, client.client
        assert all(torch.equal(a, state["global"][n]) for n, a in result.global_state.items())
        counts, y = data.train.counts(), data.val.y.numpy()
        p = np.stack([said[np.arange(len(y)), y] for said in experts_by_hand(state, counts, data.val.x)], 1)
        w = weigh(smoothed(p, 3), MU)
        assert state["no-regret.mixture"]["weights"].numpy() == pytest.approx(w, abs=1e-5)
        assert abs(w - MU).max() > 0.02
        mixed = sum(a * said for a, said in zip(w, experts_by_hand(state, counts, data.test.x), strict=True))
        assert client.predictor(data.test.x).numpy() == pytest.approx(0.99 * mixed + 0.01 / 3, abs=1e-5)
        right = (mixed.argmax(1) == data.test.y.numpy()).mean()
        assert client.accuracy() == pytest.approx(right)


def test_the_tuned_model_is_twenty_epochs_of_the_last_global(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    run = simulate(NoRegret(), federate([9, 12, 7]), rounds=2, optimizer=MOMENTUM)
    for client in run.federation.clients:
        again = Participant(run.job, client, {}, 3, Modules(torch.device("cpu")))
        again.keep("tuned", again.fork(run.engine.briefs[3, client.id]))
        again.fit(supervised, {"tuned": again.model("tuned")}, epochs=20)
        assert identical(run.engine.kept[3, client.id]["tuned"], again.state["tuned"])


def test_one_expert_serves_its_bytes() -> None:
    torch.manual_seed(0)
    model, x = plain(4, 3), torch.randn(9, 4)
    weights = torch.from_numpy(weigh(np.full((5, 1), 0.3), (1.0,)))
    with torch.no_grad():
        served = Composite(Weighted(weights), {"one": model})(x)
        assert torch.equal(served, torch.log_softmax(model(x), 1))


def test_without_validation_samples_the_weights_are_the_priors(federate: Federate, simulate: Simulate) -> None:
    run = simulate(NoRegret(**QUICK), federate([9, 12], held=0), rounds=1)
    for client in "ab":
        assert run.engine.kept[2, client]["no-regret.mixture"]["weights"].tolist() == list(MU)


def test_permuted_validation_samples_give_the_same_weights(federate: Federate, simulate: Simulate) -> None:
    federation = federate([9, 12], held=30)
    turned = [replace(c, val=c.val.take(list(range(29, -1, -1)))) for c in federation.clients]
    kept = [
        simulate(NoRegret(**QUICK), f, rounds=1).engine.kept[2, "a"]["no-regret.mixture"]["weights"]
        for f in (federation, replace(federation, clients=tuple(turned)))
    ]
    assert kept[0].numpy() == pytest.approx(kept[1].numpy(), abs=1e-12)


def skewed(federation: Federation, but: int = 0) -> Federation:
    """Every client has samples of the last class only, but for the first few."""

    def last(y: Tensor) -> Tensor:
        return torch.where(torch.arange(len(y)) < but, y, 2)

    clients = (replace(c, train=replace(c.train, y=last(c.train.y))) for c in federation.clients)
    return replace(federation, clients=tuple(clients))


def test_equal_counts_shift_nothing(federate: Federate, simulate: Simulate) -> None:
    federation = federate([12, 9])
    a = federation["a"]
    even = replace(a, train=replace(a.train, y=torch.arange(12) % 3))
    run = simulate(NoRegret(**QUICK), replace(federation, clients=(even, skewed(federation)["b"])), rounds=1)
    assert run.engine.kept[2, "a"]["no-regret.mixture"]["shift"].abs().max() < 1e-4
    assert run.engine.kept[2, "b"]["no-regret.mixture"]["shift"].abs().max() > 0.5


def test_a_head_of_its_own_is_not_corrected(nets: SimpleNamespace, federate: Federate, simulate: Simulate) -> None:
    for share, corrected in (("body", False), ("head", True), (["body", "head"], True), (["body"], False)):
        federation = skewed(federate([12, 9], global_model={"name": nets.plain, "share": share}))
        kept = simulate(NoRegret(**QUICK), federation, rounds=1).engine.kept[2, "b"]
        assert (float(kept["no-regret.mixture"]["shift"].abs().max()) > 0.5) is corrected


def test_the_fitted_correction_is_of_the_global_on_own_training_samples(federate: Federate) -> None:
    federation, moved = skewed(federate([60, 55, 50], held=15), but=20), []
    result = mutua.run(NoRegret(correction="fitted", **QUICK), federation, rounds=2, batch_size=4, progress=False)
    for client in result.clients:
        data = client.client.train
        p = softmax(forward(client.state["global"], data.x), 1)
        shift = np.log(3 * label_prior(data.counts()))
        kept = client.state["no-regret.mixture"]["shift"].numpy()
        assert kept == pytest.approx(fitted_shift(p, data.y.numpy(), shift), abs=1e-4)
        moved.append(abs(kept - shift).max())
    assert max(moved) > 0.01


def test_clients_with_different_classes_mix_experts_of_their_own(
    nets: SimpleNamespace, federate: Federate
) -> None:
    names = [("ape", "bee"), ("bee", "cat", "dog"), ("ape", "cat")]
    shared = {"name": nets.plain, "share": "body"}
    federation = federate([20, 20, 20], classes=names, global_model=shared, models=nets.wide, held=20)
    result = mutua.run(NoRegret(), federation, rounds=2, batch_size=4, progress=False)
    for client, classes in zip(result.clients, names, strict=True):
        assert client.predictor.classes == classes
        assert (client.accuracy() or 0) > 0.4


def test_a_client_alone_with_its_store_repeats_its_work(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical, modules: Modules
) -> None:
    """So nothing of the others' data comes to it but by the global."""
    federation = federate([9, 12, 7], models=nets.dropping, global_model=nets.normed)
    for method in (NoRegret(**QUICK), NoRegret(teach=0.5, one_model=True, distil_epochs=2, **QUICK)):
        assert_repeatable(simulate(method, federation, rounds=3), identical, modules)


def test_history_has_every_expert_beside_the_predictor(federate: Federate) -> None:
    result = mutua.run(NoRegret(**QUICK), federate(held=20), rounds=2, batch_size=4, progress=False)
    for client in result.clients:
        for model in ("global", "corrected", "tuned", "personal", "predictor"):
            assert client.accuracy(model) is not None
        rounds = {r.round for r in result.history.select(client=client.id, model="personal", metric="accuracy")}
        assert rounds == {0, 1, 2}
        assert client.serves_since == 2


# What leaves


@settings(max_examples=12)
@given(st.integers(0, 2**32 - 1))
def test_no_byte_that_leaves_depends_on_validation_samples_label_counts_or_experts(seed: int) -> None:
    """Whatever the labels, the validation samples and the personal designs: FedAvg's messages, byte for byte."""
    rng = np.random.default_rng(seed)
    federation = make_federation([9, 7], held=6)
    skewed = []
    for client in federation.clients:
        y = torch.from_numpy(rng.choice(3, size=len(client.train), p=rng.dirichlet([0.3] * 3)))
        skewed.append(replace(client, train=replace(client.train, y=y)))
    other = [
        replace(
            client,
            val=make_blobs(int(rng.integers(0, 9)), seed=int(rng.integers(99))),
            model=Architecture.of(wide if rng.random() < 0.5 else plain),
        )
        for client in skewed
    ]
    option: dict[str, Any] = {"one_model": bool(rng.random() < 0.3), "distil_epochs": 1, "tune_epochs": 1}
    fraction = float(rng.choice([0.5, 1.0]))

    def crossed(method: Method, clients: list[Any]) -> dict[Any, bytes]:
        run = make_simulation(
            method, replace(federation, clients=tuple(clients)), rounds=2, client_fraction=fraction
        )
        return {at: reply.message.encode() for at, reply in run.engine.replies.items()}

    plainly = crossed(FedAvg(), skewed)
    assert plainly == crossed(NoRegret(**option), skewed) == crossed(NoRegret(**option), other)
    assert all(
        {name.split("/")[1] for name in _names(message)} == {"meme", "samples"} for message in plainly.values()
    )


def _names(message: bytes) -> set[str]:
    from safetensors.torch import load

    return set(load(message))


def test_opted_out_samples_reach_the_experts_and_not_the_global(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = opted(federate([9, 12, 7]), a=range(4), c=range(7))
    run = simulate(NoRegret(**QUICK), federation, rounds=2)
    kept = tuple(replace(c, train=c.opted_in, opt_in=None) for c in federation.clients if c.id != "c")
    without = simulate(FedAvg(), replace(federation, clients=kept), rounds=2)
    assert all(map(identical, run.globals, without.globals))
    whole = simulate(Independent(), federation, rounds=2)
    assert all(identical(personals(run)[c], w) for c, w in personals(whole).items())


def test_promises_do_not_hold_with_teaching(federate: Federate) -> None:
    federation = opted(federate([9, 12, 7]), a=range(4))
    with pytest.raises(InputError, match=r"opt_out: method no-regret would let .* leave: with teach the meme"):
        mutua.run(NoRegret(teach=0.5), federation, rounds=1)
    assert NoRegret().arrange(federation)
    private = {"level": "example", "clip": 1.0, "noise": 1.0}
    with pytest.raises(InputError, match=r"privacy\.level: 'example', but no-regret: with teach the meme learns"):
        mutua.run(NoRegret(teach=0.5, weights="uniform"), federate(), rounds=1, privacy=private)


@pytest.mark.parametrize("level", ["client", "example"])
def test_private_memes_and_experts_without_noise(
    level: str, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    """What leaves is FedAvg's, noise and all; what stays home is trained without."""
    private = {"level": level, "clip": 1.0, "noise": 0.5, "randomness": "seeded"}
    methods = NoRegret(weights="uniform", **QUICK), FedAvg(weights="uniform"), Independent()
    federation = federate([9, 12, 7])
    ours, fedavg, alone = (simulate(method, federation, rounds=2, privacy=private) for method in methods)
    assert all(map(identical, ours.globals, fedavg.globals))
    assert all(identical(personals(ours)[c], w) for c, w in personals(alone).items())


# One model


@pytest.mark.parametrize("own", ["plain", "wide"])
def test_one_model_of_the_clients_own_design_is_taught_by_the_mixture(
    own: str, nets: SimpleNamespace, federate: Federate
) -> None:
    federation = federate([40, 30], models=getattr(nets, own), held=20)
    plan: dict[str, Any] = {"rounds": 3, "batch_size": 8, "optimizer": mutua.SGD(lr=0.1), "progress": False}
    mixed = mutua.run(NoRegret(), federation, **plan)
    taught = mutua.run(NoRegret(one_model=True), federation, **plan)
    for one, other in zip(taught.clients, mixed.clients, strict=True):
        student, x = one.predictor.model, one.client.train.x
        assert not isinstance(student, Composite)
        assert student.body.weight.shape[0] == (6 if own == "plain" else 9)
        assert all(torch.equal(a, one.state["personal"][n]) for n, a in other.state["personal"].items())
        start = getattr(nets, own)(4, 3)
        start.load_state_dict(other.state["tuned" if own == "plain" else "personal"])
        with torch.no_grad():
            teacher = other.predictor.model(x)
            assert kl(teacher, student(x)) < 0.5 * kl(teacher, start(x))


def test_inputs_in_between() -> None:
    x = torch.arange(12.0).view(6, 2)
    stream = torch.Generator().manual_seed(4)
    share, other = float(torch.rand((), generator=stream)), torch.randperm(6, generator=stream)
    found = between(x, torch.Generator().manual_seed(4))
    assert found.numpy() == pytest.approx((share * x + (1 - share) * x[other]).numpy(), abs=1e-5)
    assert 0 < share < 1 and other.tolist() != list(range(6))
    words = torch.arange(12).view(6, 2)
    assert between(words, stream) is words


# Who cannot use it


@pytest.mark.parametrize("kind", ["multi-label", "regression"])
def test_other_tasks_are_refused_by_name(kind: str) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.random.default_rng(1).integers(2, size=(40, 2))
    task: Any = kind if kind == "multi-label" else mutua.tasks.Regression(mean=0, std=1)
    federation = mutua.Federation.from_arrays(
        x,
        y if kind == "multi-label" else y[:, 0] * 1.0,
        task=task,
        partition=mutua.partitions.IID(clients=2),
        models="linear",
        global_model="linear",
    )
    with pytest.raises(InputError, match=f"task: {kind}, but no-regret weighs experts by the probabilities"):
        mutua.run(NoRegret(), federation, rounds=1)
