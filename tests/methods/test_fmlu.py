"""FMLU and its control against NumPy by hand, against FML with its halves off, and in company."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load
from scipy.special import softmax

from conftest import work
from mutua import Federation, InputError, Kind, Message, Refused
from mutua.federation.module_pool import Modules
from mutua.federation.store import Store
from mutua.methods import DML, FML, FMLU, Batch, Method, Part, number, of
from mutua.rounds.events import Rejected
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]


def label(value: Any) -> str:
    """A short name for a case."""
    if not isinstance(value, Method):
        return str(value)
    return "-".join([value.name, *(f"{k}={v}" for k, v in value.model_dump(exclude_defaults=True).items())])


# Eqs. (3) and (4) in NumPy


def entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(p)).sum(1)


class Softmax:
    """One linear layer: forward and backward by hand."""

    def __init__(self, state: Tensors) -> None:
        self.w = {name: array.numpy().copy() for name, array in state.items()}

    def forward(self, x: np.ndarray) -> np.ndarray:
        logits: np.ndarray = x @ self.w["head.weight"].T + self.w["head.bias"]
        return logits

    def step(self, x: np.ndarray, d: np.ndarray, lr: float) -> None:
        self.w["head.weight"] -= lr * d.T @ x
        self.w["head.bias"] -= lr * d.sum(0)


def taught(
    student: np.ndarray, teacher: np.ndarray, y: np.ndarray, kind: str, T: float
) -> tuple[float, np.ndarray]:
    """CE + trust·T²·KL(teacher ‖ student), its derivative by the student's logits; the teacher is a constant."""
    n = len(y)
    p, pt, qt = softmax(student, axis=1), softmax(student / T, axis=1), softmax(teacher / T, axis=1)
    uncertain = entropy(softmax(teacher, axis=1))
    trust = {
        "batch": np.full(n, math.exp(-uncertain.mean())),
        "sample": np.exp(-uncertain),
        "none": np.ones(n),
    }[kind]
    kl = (qt * (np.log(qt) - np.log(pt))).sum(1)
    loss = -np.log(p[np.arange(n), y]).mean() + (trust * T**2 * kl).mean()
    return loss, (p - np.eye(p.shape[1])[y]) / n + trust[:, None] * T * (pt - qt) / n


CASES = [
    (FMLU(), "batch", 1.0),
    (FMLU(entropy="sample"), "sample", 1.0),
    (FMLU(temperature=2.5), "batch", 2.5),
    (FMLU(entropy="sample", temperature=0.5), "sample", 0.5),
    (FMLU(uncertain_merge=False), "batch", 1.0),
    (DML(), "none", 1.0),
    (DML(temperature=2.0), "none", 2.0),
]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("method", "kind", "temperature"), CASES, ids=label)
def test_losses_and_steps_of_both_models_equal_numpy(
    method: Any, kind: str, temperature: float, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """Four large steps: a weight that moved the teacher, another logarithm or another mean would be far off."""
    federation = federate([9], models=nets.linear, global_model=nets.linear)
    run = simulate(method, federation, rounds=1, steps=4, batch_size=9, optimizer={"name": "sgd", "lr": 0.5})
    x, y = federation["a"].train.x.numpy(), federation["a"].train.y.numpy()
    personal, meme = Softmax(run.engine.kept[0, "a"]["personal"]), Softmax(run.globals[0])
    losses = []
    for _ in range(4):
        own, other = personal.forward(x), meme.forward(x)
        (local, to_personal), (shared, to_meme) = (
            taught(own, other, y, kind, temperature),
            taught(other, own, y, kind, temperature),
        )
        personal.step(x, to_personal, 0.5)
        meme.step(x, to_meme, 0.5)
        losses.append((local, shared))
    sent = run.engine.replies[1, "a"].message.arrays("meme")
    for name in ("head.weight", "head.bias"):
        assert run.engine.kept[1, "a"]["personal"][name].numpy() == pytest.approx(personal.w[name], abs=1e-12)
        assert sent[name].numpy() == pytest.approx(meme.w[name], abs=1e-12)
    terms = run.engine.replies[1, "a"].terms
    assert [terms["personal"], terms["meme"]] == pytest.approx(np.mean(losses, axis=0), abs=1e-12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("method", [FMLU(), FMLU(entropy="sample"), DML()], ids=label)
def test_no_gradient_reaches_the_teacher_or_goes_through_its_entropy(
    method: Any, nets: SimpleNamespace, federate: Federate
) -> None:
    data = federate([7]).clients[0]
    models = {"personal": nets.plain(4, 3), "meme": nets.wide(4, 3)}
    batch = Batch(data.train.x, data.train.y, data.task, torch.arange(7))
    terms = method.objective(models, batch, method.numbers(1, 1))
    for student, teacher in (("personal", "meme"), ("meme", "personal")):
        parameters = list(models[teacher].parameters())
        found = torch.autograd.grad(terms[student], parameters, retain_graph=True, allow_unused=True)
        assert all(gradient is None for gradient in found)
    # And to the student it is the gradient of CE + constant·KL: the constant taken from outside.
    logits = {name: model(batch.x) for name, model in models.items()}
    for student, teacher in (("personal", "meme"), ("meme", "personal")):
        kind = "none" if isinstance(method, DML) else method.entropy
        own, other = (logits[name].detach().numpy() for name in (student, teacher))
        loss, by_logits = taught(own, other, data.train.y.numpy(), kind, 1.0)
        parameters = list(models[student].parameters())
        expected = torch.autograd.grad(logits[student], parameters, torch.from_numpy(by_logits))
        found = torch.autograd.grad(terms[student], parameters)
        assert float(terms[student].detach()) == pytest.approx(loss, abs=1e-12)
        assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(found, expected, strict=True))


def test_a_batch_of_one_is_a_sample(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    runs = [simulate(FMLU(entropy=entropy), federate(), rounds=1, batch_size=1) for entropy in ("batch", "sample")]
    for ours, theirs in zip(runs[0].globals, runs[1].globals, strict=True):
        assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in ours)
    apart = [simulate(FMLU(entropy=entropy), federate(), rounds=1) for entropy in ("batch", "sample")]
    assert not identical(apart[0].globals[-1], apart[1].globals[-1])


# The merge


def hand_entropy(federation: Federation, client: str, meme: Tensors, build: Any, training: bool = False) -> float:
    """H_k: the mean entropy of this meme over the client's training data."""
    samples = federation[client].train
    model = build(samples.channels, len(samples.classes))
    model.load_state_dict(meme)
    model.train(training)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)  # in training a model may draw
        logits = model(samples.x).numpy()
    return float(entropy(softmax(logits, axis=1)).mean())


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("net", ["plain", "normed", "dropping"])
def test_the_merge_is_a_softmax_of_minus_the_trained_memes_entropy_in_evaluation_mode(
    net: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    build = getattr(nets, net)
    federation = federate([9, 12, 7], models=nets.wide, global_model=build)
    run = simulate(FMLU(), federation, rounds=3, epochs=2, optimizer={"name": "sgd", "lr": 0.3})
    for round in (1, 2, 3):
        replies = {client: run.engine.replies[round, client].message for client in "abc"}
        by_hand = {c: hand_entropy(federation, c, replies[c].arrays("meme"), build) for c in "abc"}
        for client, reply in replies.items():
            assert reply.number("meme_entropy") == pytest.approx(by_hand[client], abs=1e-12)
        exponentials = np.exp([-by_hand[client] for client in "abc"])
        weights = exponentials / exponentials.sum()
        assert weights.max() - weights.min() > 1e-3
        for name, merged in run.globals[round].items():
            memes = [replies[client].arrays("meme")[name] for client in "abc"]
            if merged.dtype.is_floating_point:
                mean = sum(w * m.numpy() for w, m in zip(weights, memes, strict=True))
                assert merged.numpy() == pytest.approx(mean, abs=1e-12)
            else:
                assert torch.equal(merged, memes[0])
    if net == "normed":
        meme = run.engine.replies[3, "a"].message.arrays("meme")
        assert hand_entropy(federation, "a", meme, build, training=True) != pytest.approx(
            run.engine.replies[3, "a"].message.number("meme_entropy"), abs=1e-3
        )


def with_entropy(value: Any) -> Callable[[int, str, Message], Message]:
    """What client b says of its entropy in round 1."""

    def tamper(round: int, client: str, message: Message) -> Message:
        if (round, client) != (1, "b"):
            return message
        parts = {name: part for name, part in message.items() if name != "meme_entropy"}
        return Message(**parts, **({} if value is None else {"meme_entropy": value}))

    return tamper


IMPOSSIBLE = [-0.01, math.inf, -math.inf, math.nan, None, "two"]
TOO_MUCH = {"all": [math.log(3) + 0.01, 1e30], "body": [45.0, 1e30]}
"""For three classes; how many a partial global's clients have nobody knows, but not over 2⁶⁴."""


@pytest.mark.parametrize("share", ["all", "body"])
def test_an_entropy_that_cannot_be_is_refused(
    share: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    run = simulate(FMLU(), federate(global_model={"name": nets.plain, "share": share}), rounds=1)
    honest = run.engine.replies[1, "b"].message
    run.job.method.check(run.server, "b", honest)
    for value in [*IMPOSSIBLE, *TOO_MUCH[share]]:
        part = number(Kind.ENTROPY, value) if isinstance(value, float) else None
        if value == "two":
            part = Part(Kind.ENTROPY, {"": torch.tensor([0.5, 0.5])})
        with pytest.raises(Refused, match="entropy"):
            run.job.method.check(run.server, "b", with_entropy(part)(1, "b", honest))


def test_krum_may_choose_who_has_next_to_no_weight(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """With a partial global any entropy of up to 2⁶⁴ classes passes, and Krum merges whom it chooses alone."""
    federation = federate([6] * 3, global_model={"name": nets.plain, "share": "body"})
    for value in (1000.0, 44.0):

        def unsure(round: int, client: str, message: Message, value: float = value) -> Message:
            said = {} if client == "a" else {"meme_entropy": number(Kind.ENTROPY, value)}
            return Message(**{**message, **said})

        run = simulate(FMLU(combine="krum"), federation, rounds=1, tamper=unsure)
        refused = [event.client for event in run.events if isinstance(event, Rejected)]
        assert refused == (["b", "c"] if value == 1000 else [])
        assert all(torch.isfinite(array).all() for array in run.globals[1].values())


def test_the_round_goes_on_without_a_refused_reply(federate: Federate, simulate: Simulate) -> None:
    run = simulate(FMLU(), federate(), tamper=with_entropy(number(Kind.ENTROPY, -0.01)), rounds=2)
    (refused,) = (event for event in run.events if isinstance(event, Rejected))
    assert (refused.round, refused.client) == (1, "b")
    assert "entropy" in refused.reason
    kept = [run.engine.replies[1, client].message for client in "ac"]
    weights = softmax([-reply.number("meme_entropy") for reply in kept])
    for name, merged in run.globals[1].items():
        mean = sum(w * reply.arrays("meme")[name].numpy() for w, reply in zip(weights, kept, strict=True))
        assert merged.numpy() == pytest.approx(mean, abs=1e-6)
    assert set(run.engine.replies) >= {(2, client) for client in "abc"}


@pytest.mark.parametrize("value", [0.0, math.log(3)], ids=str)
def test_the_ends_of_the_range_are_entropies(value: float, federate: Federate, simulate: Simulate) -> None:
    run = simulate(FMLU(), federate(), tamper=with_entropy(number(Kind.ENTROPY, value)), rounds=1)
    assert not [event for event in run.events if isinstance(event, Rejected)]


def test_a_model_that_knows_nothing_is_not_refused(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """All weights zero: the entropy is ln 3 up to rounding, on whichever side of it."""

    def blank(channels: int, classes: int) -> torch.nn.Module:
        model: torch.nn.Module = nets.linear(channels, classes)
        model.load_state_dict({name: torch.zeros_like(array) for name, array in model.state_dict().items()})
        return model

    run = simulate(FMLU(), federate(global_model=blank), optimizer={"name": "sgd", "lr": 0.0})
    assert run.engine.replies[1, "a"].message.number("meme_entropy") == pytest.approx(math.log(3), abs=1e-5)
    assert not [event for event in run.events if isinstance(event, Rejected)]


# What leaves


def test_one_number_besides_the_meme_leaves(federate: Federate, simulate: Simulate) -> None:
    run = simulate(FMLU(), federate())
    weights = {f"weights/meme/{name}" for name in run.globals[0]}
    for reply in run.engine.replies.values():
        entries = load(reply.message.encode())
        assert set(entries) == weights | {"entropy/meme_entropy/"}
        assert entries["entropy/meme_entropy/"].shape == ()
        assert b"__metadata__" not in reply.message.encode()
    assert FMLU().shares == {"meme": Kind.WEIGHTS, "meme_entropy": Kind.ENTROPY}
    up = [(e.kind, e.values) for e in run.ledger if (e.round, e.client, e.direction) == (1, "a", "up")]
    assert ("entropy", 1) in up
    for brief in run.engine.briefs.values():
        assert all(name.startswith("weights/global/") for name in load(brief.encode()))


# Its halves


def same_everything(ours: Any, theirs: Any, identical: Identical) -> bool:
    """Every message and every store of two runs, to the bit."""
    messages = all(
        a.message.encode() == b.message.encode()
        for a, b in zip(ours.engine.replies.values(), theirs.engine.replies.values(), strict=True)
    )
    stores = all(
        ours.engine.kept[key].keys() == theirs.engine.kept[key].keys()
        and all(identical(ours.engine.kept[key][group], theirs.engine.kept[key][group]) for group in state)
        for key, state in theirs.engine.kept.items()
    )
    return messages and stores and all(map(identical, ours.globals, theirs.globals))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"alpha": 0.3, "beta": [0.9, 0.2], "temperature": 2.0},
    {"schedule": "early-alpha-late-beta", "init": "global"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("share", ["all", "body"])
def test_with_both_halves_off_it_is_fml_to_the_bit(
    share: str,
    options: dict[str, Any],
    nets: SimpleNamespace,
    federate: Federate,
    simulate: Simulate,
    identical: Identical,
) -> None:
    models = [nets.dropping, nets.normed, nets.wide]
    federation = federate([9, 12, 5], models=models, global_model={"name": nets.normed, "share": share})
    settings = {"rounds": 3, "client_fraction": 0.7, "optimizer": {"name": "sgd", "lr": 0.2, "momentum": 0.9}}
    off = FMLU(uncertain_update=False, uncertain_merge=False, **options)
    ours, theirs = simulate(off, federation, **settings), simulate(FML(**options), federation, **settings)
    assert same_everything(ours, theirs, identical)
    assert off.shares == FML().shares


def test_the_update_alone_merges_as_fml_and_sends_no_number(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate([2, 31, 8])
    half, whole = simulate(FMLU(uncertain_merge=False), federation), simulate(FMLU(), federation)
    for client in "abc":
        ours, theirs = (run.engine.replies[1, client].message for run in (half, whole))
        assert set(ours) == {"meme"}
        assert identical(ours.arrays("meme"), theirs.arrays("meme"))
    memes = [half.engine.replies[1, client].message.arrays("meme") for client in "abc"]
    for name, merged in half.globals[1].items():
        assert merged.numpy() == pytest.approx(np.mean([m[name].numpy() for m in memes], axis=0), abs=1e-6)
    assert not identical(half.globals[1], whole.globals[1])


def test_the_merge_alone_trains_as_fml(federate: Federate, simulate: Simulate, identical: Identical) -> None:
    federation = federate([2, 31, 8])
    options = {"alpha": 0.3, "beta": 0.8}
    half = simulate(FMLU(uncertain_update=False, **options), federation)
    fml = simulate(FML(**options), federation)
    for client in "abc":
        ours, theirs = (run.engine.replies[1, client].message for run in (half, fml))
        assert identical(ours.arrays("meme"), theirs.arrays("meme"))
        assert set(ours) == {"meme", "meme_entropy"}
    entropies = [half.engine.replies[1, client].message.number("meme_entropy") for client in "abc"]
    for name, merged in half.globals[1].items():
        memes = [half.engine.replies[1, client].message.arrays("meme")[name].numpy() for client in "abc"]
        mean = sum(w * m for w, m in zip(softmax(-np.array(entropies)), memes, strict=True))
        assert merged.numpy() == pytest.approx(mean, abs=1e-6)


def test_the_control_merges_as_fml(federate: Federate, simulate: Simulate) -> None:
    run = simulate(DML(), federate([2, 31, 8]))
    assert set(run.engine.replies[1, "a"].message) == {"meme"}
    memes = [run.engine.replies[1, client].message.arrays("meme") for client in "abc"]
    for name, merged in run.globals[1].items():
        assert merged.numpy() == pytest.approx(np.mean([m[name].numpy() for m in memes], axis=0), abs=1e-6)


def test_alpha_and_beta_have_no_place_beside_uncertainty() -> None:
    for wrong in ({"alpha": 0.3}, {"beta": [0.5, 0.6]}, {"schedule": "early-alpha-late-beta"}):
        with pytest.raises(InputError, match="alpha and beta"):
            FMLU(**wrong)
        with pytest.raises(InputError, match="unknown key"):  # it has no weights at all
            DML(**wrong)
        FMLU(uncertain_update=False, **wrong)
    with pytest.raises(InputError, match=r"uncertain_update: false"):
        of({"name": "fmlu", "alpha": 0.3})
    assert isinstance(of({"name": "dml"}), DML)
    assert isinstance(of({"name": "fmlu", "entropy": "sample"}), FMLU)


# In company


TASKS = [("ape", "bee", "cat"), ("dog", "elk"), ("cat", "dog", "eel", "fox")]


@pytest.mark.parametrize("method", [FMLU(), FMLU(entropy="sample"), DML()], ids=label)
def test_clients_with_models_and_label_spaces_of_their_own_share_a_body(
    method: Any, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = federate(
        [9, 12, 7],
        models=[nets.wide, nets.dropping, nets.normed],
        classes=TASKS,
        global_model={"name": nets.plain, "share": "body"},
    )
    run = simulate(
        method.model_copy(update={"temperature": 2.0}), federation, rounds=3, client_fraction=0.7, seed=2
    )
    assert set(run.globals[-1]) == {"body.weight", "body.bias"}
    assert not [event for event in run.events if isinstance(event, Rejected)]
    for round in (1, 2, 3):
        replies = {c: run.engine.replies[round, c].message for c in "abc" if (round, c) in run.engine.replies}
        assert len(replies) == 2
        entropies = []
        for client, reply in replies.items():
            assert set(reply.arrays("meme")) == {"body.weight", "body.bias"}
            meme = {**run.engine.kept[round, client]["adaptor"], **reply.arrays("meme")}
            entropies.append(hand_entropy(federation, client, meme, nets.plain))
        if isinstance(method, FMLU):
            sent = [reply.number("meme_entropy") for reply in replies.values()]
            assert sent == pytest.approx(entropies, abs=1e-5)
        weights = softmax(-np.array(entropies)) if isinstance(method, FMLU) else [0.5, 0.5]
        for name, merged in run.globals[round].items():
            parts = [reply.arrays("meme")[name].numpy() for reply in replies.values()]
            assert merged.numpy() == pytest.approx(weights[0] * parts[0] + weights[1] * parts[1], abs=1e-5)


@pytest.mark.parametrize("method", [FMLU(), DML()], ids=label)
def test_same_seed_same_bytes_another_seed_others(
    method: Any, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    one, two, other = (simulate(method, federate(), seed=seed) for seed in (5, 5, 6))
    assert same_everything(one, two, identical)
    assert not identical(one.globals[-1], other.globals[-1])


@pytest.mark.parametrize("method", [FMLU(), DML()], ids=label)
def test_the_reply_to_a_brief_is_the_same_whoever_else_takes_part_and_however_often_it_comes(
    method: Any, federate: Federate, simulate: Simulate, identical: Identical, modules: Modules
) -> None:
    run = simulate(method, federate([9, 12, 7]), rounds=2)
    alone = replace(run.federation, clients=(run.federation["b"],))
    store = Store()
    work(run.job, alone["b"], store, "start", 0, None, modules)
    for round in (1, 2):
        brief = run.engine.briefs[round, "b"]
        first = work(run.job, alone["b"], store, "train", round, brief, modules)
        state = store.state
        again = work(run.job, alone["b"], store, "train", round, brief, modules)
        assert first.message is not None and again.message is not None
        assert first.message.encode() == again.message.encode()
        assert first.message.encode() == run.engine.replies[round, "b"].message.encode()
        assert store.state is state and again.terms == first.terms and again.seconds == 0
        assert identical(state["personal"], run.engine.kept[round, "b"]["personal"])


def test_who_is_surer_counts_more(federate: Federate, simulate: Simulate) -> None:
    """Two clients, entropies set by hand: the global leans by e^(−0.1) to e^(−1)."""
    said = {"a": 0.1, "b": 1.0}

    def tamper(round: int, client: str, message: Message) -> Message:
        parts = {"meme": message["meme"], "meme_entropy": number(Kind.ENTROPY, said[client])}
        return Message(**parts)

    run = simulate(FMLU(), federate([6, 6]), tamper=tamper, rounds=1)
    a, b = (run.engine.replies[1, client].message.arrays("meme") for client in "ab")
    share = 1 / (1 + math.exp(-0.9))
    for name, merged in run.globals[1].items():
        assert merged.numpy() == pytest.approx(share * a[name].numpy() + (1 - share) * b[name].numpy(), abs=1e-6)
