"""FML against NumPy by hand, against FedAvg and Independent at its limits, and with a partial global."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax  # type: ignore[import-untyped]

from conftest import work
from mutua import Architecture, Client, Federation, InputError, Message, Plan, Samples
from mutua.federation.model_checks import check_models
from mutua.federation.module_pool import Modules
from mutua.federation.store import Store
from mutua.learning.evaluation import measure
from mutua.methods import FML, FedAvg, Independent, Participant, weights
from mutua.methods.base import Job
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]


# Eqs. (5) and (6) of fml-2023 in NumPy


def by_hand(own: np.ndarray, other: np.ndarray, y: np.ndarray, share: float, T: float) -> tuple[float, np.ndarray]:
    """share·CE + (1 − share)·T²·KL(other ‖ own) and its derivative by own's logits; `other` is a constant."""
    n = len(y)
    p, pt, qt = softmax(own, axis=1), softmax(own / T, axis=1), softmax(other / T, axis=1)
    ce = -np.log(p[np.arange(n), y]).mean()
    kl = (qt * (np.log(qt) - np.log(pt))).sum(1).mean()
    d_ce = (p - np.eye(p.shape[1])[y]) / n
    d_kl = (pt - qt) / T / n
    return share * ce + (1 - share) * T**2 * kl, share * d_ce + (1 - share) * T**2 * d_kl


class OneHidden:
    """Linear, tanh, linear: forward and backward by hand."""

    def __init__(self, state: Tensors) -> None:
        self.w = {name: array.double().numpy().copy() for name, array in state.items()}

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x, self.h = x, np.tanh(x @ self.w["body.weight"].T + self.w["body.bias"])
        logits: np.ndarray = self.h @ self.w["head.weight"].T + self.w["head.bias"]
        return logits

    def step(self, d: np.ndarray, lr: float) -> None:
        hidden = (d @ self.w["head.weight"]) * (1 - self.h**2)
        gradients = {
            "head.weight": d.T @ self.h,
            "head.bias": d.sum(0),
            "body.weight": hidden.T @ self.x,
            "body.bias": hidden.sum(0),
        }
        for name, gradient in gradients.items():
            self.w[name] -= lr * gradient


class Softmax:
    """One linear layer: forward and backward by hand."""

    def __init__(self, state: Tensors) -> None:
        self.w = {name: array.double().numpy().copy() for name, array in state.items()}

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        logits: np.ndarray = x @ self.w["head.weight"].T + self.w["head.bias"]
        return logits

    def step(self, d: np.ndarray, lr: float) -> None:
        self.w["head.weight"] -= lr * d.T @ self.x
        self.w["head.bias"] -= lr * d.sum(0)


def close(found: Tensors, expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].numpy() == pytest.approx(array, abs=1e-5), name


@pytest.mark.parametrize("temperature", [1.0, 2.5, 0.5])
@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.3, 0.8), (0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])
def test_losses_and_a_step_of_both_models_equal_numpy(
    alpha: float, beta: float, temperature: float, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """A large rate and four steps, so that a KL of another scale or a moving teacher is far outside 1e-5."""
    federation = federate([9], models=nets.plain, global_model=nets.linear)
    method = FML(alpha=alpha, beta=beta, temperature=temperature)
    run = simulate(method, federation, rounds=1, steps=4, batch_size=9, optimizer={"name": "sgd", "lr": 0.5})
    data = federation["a"].train
    x, y = data.x.double().numpy(), data.y.numpy()
    personal, meme = OneHidden(run.engine.kept[0, "a"]["personal"]), Softmax(run.globals[0])
    losses = []
    for _ in range(4):
        own, other = personal.forward(x), meme.forward(x)
        (local_loss, to_personal), (meme_loss, to_meme) = (
            by_hand(own, other, y, alpha, temperature),
            by_hand(other, own, y, beta, temperature),
        )
        personal.step(to_personal, 0.5)
        meme.step(to_meme, 0.5)
        losses.append((local_loss, meme_loss))
    close(run.engine.kept[1, "a"]["personal"], personal.w)
    close(run.engine.replies[1, "a"].message.arrays("meme"), meme.w)
    close(run.globals[1], meme.w)
    terms = run.engine.replies[1, "a"].terms
    assert [terms["personal"], terms["meme"]] == pytest.approx(np.mean(losses, axis=0), abs=1e-5)
    logged = [run.history.last("a", term, "train", "objective") for term in ("personal", "meme")]
    assert logged == [terms["personal"], terms["meme"]]


def test_the_merge_is_uniform_whatever_the_sizes(federate: Federate, simulate: Simulate) -> None:
    run = simulate(FML(), federate([2, 31, 8]), rounds=2)
    for round in (1, 2):
        memes = [run.engine.replies[round, client].message.arrays("meme") for client in "abc"]
        for name, merged in run.globals[round].items():
            mean = np.mean([meme[name].double().numpy() for meme in memes], axis=0)
            assert merged.numpy() == pytest.approx(mean, abs=1e-6)
    assert set(run.engine.replies[1, "a"].message) == {"meme"}


# At the limits


PARTIAL = [None, {"share": "body"}, {"share": ["body.weight", "head.bias"]}]


@pytest.mark.parametrize("share", PARTIAL, ids=str)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("shared", ["dropping", "normed"])
def test_with_beta_1_the_global_is_fedavgs_to_the_bit(
    shared: str,
    fraction: float,
    share: dict[str, Any] | None,
    nets: SimpleNamespace,
    federate: Federate,
    simulate: Simulate,
    identical: Identical,
) -> None:
    net = getattr(nets, shared)
    federation = federate(
        [9, 12, 7, 5],
        models=[nets.dropping, nets.normed, nets.wide, nets.plain],
        global_model={"name": net, **share} if share else net,
    )
    settings = {
        "rounds": 4,
        "evaluate_every": 9,
        "client_fraction": fraction,
        "optimizer": {"name": "sgd", "lr": [0.3, 0.1], "momentum": 0.9},
    }
    fml = simulate(FML(beta=1), federation, **settings)
    fedavg = simulate(FedAvg(weights="uniform"), federation, **settings)
    assert len(fml.globals) == len(fedavg.globals) == 5
    for ours, theirs in zip(fml.globals, fedavg.globals, strict=True):
        assert identical(ours, theirs)
    assert not identical(fml.globals[0], fml.globals[4])
    for client in "abcd":
        adaptors = [run.engine.kept[5, client].get("adaptor", {}) for run in (fml, fedavg)]
        assert identical(*adaptors)
        drawn = any((round, client) in fml.engine.replies for round in range(5))
        assert bool(adaptors[0]) == (share is not None and drawn)
    mixed = simulate(FML(beta=0.5), federation, **settings)
    assert not identical(mixed.globals[4], fedavg.globals[4])


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
        {"name": "adam", "lr": 0.02},
        {"name": "amsgrad", "lr": 0.02},
    ],
    ids=lambda o: str(o["name"]),
)
@pytest.mark.parametrize("work", [{"epochs": 2}, {"steps": 5, "client_fraction": 0.5}], ids=str)
def test_with_alpha_1_the_personal_models_are_independents_to_the_bit(
    work: dict[str, Any],
    optimizer: dict[str, Any],
    nets: SimpleNamespace,
    federate: Federate,
    simulate: Simulate,
    identical: Identical,
) -> None:
    # Nine and five samples in batches of four: a last batch of one. One sample: a batch of one, alone.
    federation = federate(
        [9, 5, 1, 6], models=[nets.normed, nets.dropping, nets.normed, nets.plain], global_model=nets.normed
    )
    settings = {"rounds": 3, "evaluate_every": 9, "optimizer": optimizer, **work}
    fml = simulate(FML(alpha=1), federation, **settings)
    alone = simulate(Independent(drawn_only="client_fraction" in work), federation, **settings)
    for round in (0, 1, 2, 3, 4):
        for client in "abcd":
            if (round, client) not in fml.engine.kept:  # it was not drawn
                assert (round, client) not in alone.engine.kept
                continue
            ours, theirs = fml.engine.kept[round, client], alone.engine.kept[round, client]
            assert set(ours) == set(theirs)
            assert all(identical(ours[group], theirs[group]) for group in ours)
    assert not identical(alone.engine.kept[0, "a"]["personal"], alone.engine.kept[4, "a"]["personal"])
    mixed = simulate(FML(alpha=0.5), federation, **settings)
    assert not identical(mixed.engine.kept[4, "a"]["personal"], alone.engine.kept[4, "a"]["personal"])


def test_the_personal_model_is_never_overwritten_by_the_global(federate: Federate, simulate: Simulate) -> None:
    """With α = 1 and rate 0 nothing moves a personal model, however often the global comes."""
    run = simulate(FML(alpha=1), federate(), optimizer={"name": "sgd", "lr": 0.0})
    for client in "abc":
        first, last = run.engine.kept[0, client]["personal"], run.engine.kept[3, client]["personal"]
        assert all(torch.equal(first[name], last[name]) for name in first)


# Schedules


def test_alpha_beta_and_rate_take_effect_in_their_round(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    """A scheduled run of three rounds against three rounds of constants, played by hand."""
    federation = federate()
    scheduled = simulate(
        FML(alpha=[0.9, 0.5, 0.1], beta={"schedule": "linear", "start": 0.2, "end": 0.8}),
        federation,
        rounds=3,
        optimizer={"name": "sgd", "lr": {"schedule": "linear", "start": 0.3, "end": 0.1}, "momentum": 0.5},
    )
    stores, modules = {client: Store() for client in "abc"}, Modules(torch.device("cpu"))
    shared = scheduled.globals[0]
    constants = [(0.9, 0.2, 0.3), (0.5, 0.5, 0.2), (0.1, 0.8, 0.1)]
    for round, (alpha, beta, lr) in enumerate(constants, start=1):
        # One value for every round: what the method must see in round `round` and in no other way.
        plan = Plan(
            rounds=1, batch_size=4, optimizer={"name": "sgd", "lr": lr, "momentum": 0.5}, device="cpu", epochs=1
        )
        job = Job(FML(alpha=alpha, beta=beta), plan, federation.global_model)
        memes = []
        for client in "abc":
            if round == 1:
                work(job, federation[client], stores[client], "start", 0, None, modules)
            brief = Message(**{"global": weights(shared)})
            reply = work(job, federation[client], stores[client], "train", round, brief, modules)
            assert reply.message is not None
            memes.append(reply.message.arrays("meme"))
        for client, meme in zip("abc", memes, strict=True):
            there = scheduled.engine.replies[round, client].message.arrays("meme")
            assert all(np.allclose(meme[name], there[name], rtol=0, atol=1e-6) for name in meme)
            personal, expected = scheduled.engine.kept[round, client]["personal"], stores[client].state["personal"]
            assert all(np.allclose(personal[name], expected[name], rtol=0, atol=1e-6) for name in expected)
        shared = scheduled.globals[round]


def test_the_named_schedule_lets_alpha_fall_and_beta_rise() -> None:
    method = FML(schedule="early-alpha-late-beta")
    first, last = method.numbers(1, 10), method.numbers(10, 10)
    assert first.alpha > 0.5 > first.beta
    assert last.alpha < 0.5 < last.beta
    alphas = [method.numbers(round, 10).alpha for round in range(1, 11)]
    assert alphas == sorted(alphas, reverse=True)
    with pytest.raises(InputError, match="alpha"):
        FML(schedule="early-alpha-late-beta", alpha=0.2)


def test_defaults_learn_mutually_and_shares_outside_0_to_1_are_refused() -> None:
    assert (FML().alpha, FML().beta, FML().temperature) == (0.5, 0.5, 1.0)
    for wrong in ({"alpha": 1.1}, {"beta": -0.1}, {"alpha": [0.5, 2]}, {"temperature": 0}, {"gamma": 1}):
        with pytest.raises(InputError):
            FML(**wrong)


# Start


def test_init_global_starts_a_personal_model_of_the_same_architecture_as_the_global(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate(models=[nets.plain, nets.wide, nets.plain], global_model=nets.plain)
    run = simulate(FML(init="global"), federation)
    starts = {client: run.engine.kept[0, client]["personal"] for client in "abc"}
    assert identical(starts["a"], run.globals[0])
    assert identical(starts["c"], run.globals[0])
    own = simulate(FML(), federation)
    assert identical(starts["b"], own.engine.kept[0, "b"]["personal"])
    assert not identical(own.engine.kept[0, "a"]["personal"], own.globals[0])


# A partial global

TASKS = [("ape", "bee", "cat"), ("dog", "elk"), ("cat", "dog", "eel", "fox")]


@pytest.mark.parametrize("method", [FML(), FedAvg()], ids=lambda m: str(m.name))
@pytest.mark.parametrize("share", ["body", ["body.weight"], ["body"]], ids=str)
def test_clients_with_different_label_spaces_share_a_body(
    share: Any, method: Any, nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate(classes=TASKS, global_model={"name": nets.plain, "share": share})
    run = simulate(method, federation, rounds=3, client_fraction=0.7)
    names = {"body.weight"} if share == ["body.weight"] else {"body.weight", "body.bias"}
    everything = {"body.weight", "body.bias", "head.weight", "head.bias"}
    assert all(set(state) == names for state in run.globals)
    assert [federation[client].task.classes for client in "abc"] == TASKS
    for (_, client), reply in run.engine.replies.items():
        assert set(reply.message.arrays("meme")) == names, client
    for k, client in enumerate("abc"):
        before = None
        for round in (1, 2, 3):
            drawn = (round, client) in run.engine.replies
            adaptor = run.engine.kept[round, client].get("adaptor")
            if adaptor is None:
                assert before is None
                assert not drawn
                continue
            assert set(adaptor) == everything - names
            assert adaptor["head.weight"].shape == (len(TASKS[k]), 6)
            if before is not None:
                assert identical(before, adaptor) == (not drawn)
            before = adaptor
    # A body has no accuracy of its own; with each client's adaptor it has one.
    assert run.history.select(client="global") == []
    for client in "abc":
        assert run.history.last(client, "global", "test", "accuracy") is not None


def test_the_meme_is_the_globals_body_with_the_clients_own_head(
    nets: SimpleNamespace, federate: Federate, modules: Modules
) -> None:
    federation = federate(classes=TASKS, global_model={"name": nets.plain, "share": "body"})
    job = Job(FML(), Plan(device="cpu"), federation.global_model)
    body = {"body.weight": torch.full((6, 4), 2.0), "body.bias": torch.full((6,), 3.0)}
    heads = {
        client: {"head.weight": torch.full((len(TASKS[k]), 6), float(k)), "head.bias": torch.ones(len(TASKS[k]))}
        for k, client in enumerate("abc")
    }
    brief = Message(**{"global": weights(body)})
    for client in "abc":
        participant = Participant(job, federation[client], {"adaptor": heads[client]}, 1, modules)
        meme = participant.fork(brief).state_dict()
        assert all(torch.equal(meme[name], array) for name, array in {**body, **heads[client]}.items())
        assert set(participant.shared(participant.fork(brief))) == set(body)


def test_an_adaptor_is_trained_by_the_meme_and_goes_on_from_round_to_round(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """One client with a partial global is one client with a complete one, cut in two places."""
    whole = simulate(FedAvg(), federate([8]), rounds=3, seed=3)
    federation = federate([8], global_model={"name": nets.plain, "share": "body"})
    # Started from the same head, the body on the server and the head at home must evolve alike.
    cut = simulate(FedAvg(), federation, rounds=3, seed=3, go=False)
    head = {name: array for name, array in whole.globals[0].items() if name.startswith("head")}
    cut.engine.stores["a"].commit(0, {"adaptor": head}, None)
    cut.run()
    for round in (1, 2, 3):
        parts = {**cut.globals[round], **cut.engine.kept[round, "a"]["adaptor"]}
        assert parts.keys() == whole.globals[round].keys()
        assert all(torch.equal(parts[name], whole.globals[round][name]) for name in parts)


def test_a_shared_head_needs_one_list_of_classes(nets: SimpleNamespace, federate: Federate) -> None:
    """Rows of a shared head are classes: by position they would merge 'dog' with 'cat'."""
    for share in ("head", ["head"], ["head.bias"]):
        federation = federate(
            [5, 5], classes=[("ape", "bee"), ("cat", "dog")], global_model={"name": nets.plain, "share": share}
        )
        with pytest.raises(InputError, match="class"):
            check_models(federation, needs_global=True)


def test_a_shared_head_matches_classes_by_name(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    shared = {"name": nets.plain, "share": "head"}
    one = federate([6, 8], classes=[("ape", "bee", "cat")] * 2, global_model=shared)
    shuffled = one["b"].relabelled(("cat", "ape", "bee"))
    other = Federation((one["a"], shuffled), one.global_model)
    assert identical(simulate(FML(), one).globals[-1], simulate(FML(), other).globals[-1])


# Newcomers


def newcomer(
    blobs: Callable[..., Samples], model: Any, classes: Any = ("ape", "bee", "cat"), val: int = 8
) -> Client:
    train, held, test = (blobs(n, seed=900 + i, classes=classes) for i, n in enumerate((14, val, 30)))
    return Client("new", train, held, test, Architecture.of(model))


@pytest.mark.parametrize("share", ["all", "body"])
@pytest.mark.parametrize("how", ["global", "finetune", "mutual"])
def test_a_newcomer_uses_tunes_or_adapts_and_leaves_the_global_alone(
    how: Any,
    share: str,
    nets: SimpleNamespace,
    federate: Federate,
    simulate: Simulate,
    identical: Identical,
    blobs: Callable[..., Samples],
    modules: Modules,
) -> None:
    federation = federate(models=nets.wide, global_model={"name": nets.normed, "share": share})
    run = simulate(FML(), federation, rounds=3)
    classes = ("ape", "bee", "cat") if share == "all" else ("ape", "cat")
    client = newcomer(blobs, nets.dropping, classes)
    brief = run.engine.briefs[4, "a"]
    before = {name: array.clone() for name, array in brief.arrays("global").items()}
    joined = Participant(run.job, client, {}, 4, modules)
    run.job.method.personalise(joined, brief, how)
    predictor = run.job.method.predictor(joined, brief)
    assert identical(brief.arrays("global"), before)
    assert identical(run.server.state["global"], before)
    state = predictor.state_dict()
    if how == "mutual":
        assert set(state) == set(nets.dropping(4, 3).state_dict())  # a model of its own design
        start = Participant(run.job, client, {}, 4, modules)
        start.initialise("personal")
        assert not identical(start.state["personal"], dict(state))
    else:
        assert set(state) == set(nets.normed(4, 3).state_dict())
        shared = {name: state[name] for name in before}
        assert identical(shared, before) == (how == "global")
    found = measure(predictor, client.test, client.task)["accuracy"]
    assert found is not None
    if how != "global":
        assert found > 1.3 / len(classes)


def test_a_newcomer_without_validation_data_cannot_stop_early(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, blobs: Callable[..., Samples], modules: Modules
) -> None:
    run = simulate(FML(), federate(), rounds=1)
    joined = Participant(run.job, newcomer(blobs, nets.plain, val=0), {}, 2, modules)
    with pytest.raises(InputError, match=r"new.*validation"):
        run.job.method.personalise(joined, run.engine.briefs[2, "a"], "mutual")


def test_a_newcomers_way_that_is_none_is_refused(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, blobs: Callable[..., Samples], modules: Modules
) -> None:
    for method in (FML(), FedAvg()):
        run = simulate(method, federate(), rounds=1)
        joined = Participant(run.job, newcomer(blobs, nets.plain), {}, 2, modules)
        with pytest.raises(InputError, match="'fine-tune'"):
            run.job.method.personalise(joined, run.engine.briefs[2, "a"], "fine-tune")


# Serving


def test_a_participant_serves_with_its_personal_model(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = federate(models=[nets.wide, nets.dropping, nets.normed])
    run = simulate(FML(), federation, rounds=3)
    for client in "abc":
        module = federation[client].model.build(channels=4, size=1, classes=3, seed=0)
        module.load_state_dict(run.engine.kept[4, client]["personal"])
        module.eval()
        with torch.no_grad():
            right = (module(federation[client].test.x).argmax(1) == federation[client].test.y).double().mean()
        assert run.history.last(client, "predictor", "test", "accuracy") == pytest.approx(right.item())


def test_clients_may_have_inputs_of_different_sizes_where_the_shared_part_does_not_depend_on_them(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, blobs: Callable[..., Samples]
) -> None:
    federation = federate([6, 6], models=nets.plain, global_model={"name": nets.plain, "share": "head"})
    train, val, test = (blobs(n, seed=n, features=7) for n in (6, 5, 4))
    broad = Client("b", train, val, test, federation["b"].model)
    run = simulate(FML(), replace(federation, clients=(federation["a"], broad)), rounds=2)
    assert run.engine.kept[3, "b"]["adaptor"]["body.weight"].shape == (6, 7)
    assert set(run.globals[2]) == {"head.weight", "head.bias"}


@pytest.mark.parametrize("share", ["all", "body"])
def test_a_personal_model_may_start_as_the_global_did_where_that_is_partial_too(
    share: str, nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Any
) -> None:
    federation = federate(
        models=[nets.plain, nets.plain, nets.wide], global_model={"name": nets.plain, "share": share}
    )
    run = simulate(FML(init="global"), federation, rounds=0)
    begun = {c: run.engine.kept[0, c]["personal"] for c in "abc"}
    for client in "ab":
        assert identical({name: begun[client][name] for name in run.globals[0]}, run.globals[0])
    assert begun["c"]["body.weight"].shape != begun["a"]["body.weight"].shape
