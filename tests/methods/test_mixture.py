"""The mixture of experts against NumPy and plain torch, and the guarantee for opted-out samples, on bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load
from scipy.special import log_softmax, logsumexp, softmax
from torch import Tensor, nn
from torch.nn import functional as F

from conftest import assert_repeatable, work
from method_needs import method_named
from mutua import Architecture, Client, Federation, InputError, Kind, Message, Samples, methods
from mutua.data.public import Public
from mutua.federation.module_pool import Modules
from mutua.federation.store import Store
from mutua.learning.evaluation import measure
from mutua.methods import (
    EarlyStopping,
    FedAvg,
    FedProx,
    FineTuned,
    Independent,
    MixtureOfExperts,
    Participant,
    count,
    supervised,
)
from mutua.models.composite import Composite, Gate
from mutua.rounds.events import RoundStarted
from mutua.seeds import private, torch_stream
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]

SHORT = {"patience": 2, "mixture_epochs": 6}


def mask(n: int, out: Sequence[int]) -> Tensor:
    """All in but these."""
    chosen = torch.ones(n, dtype=torch.bool)
    chosen[list(out)] = False
    return chosen


def opted(federation: Federation, **out: Sequence[int]) -> Federation:
    """The federation with these training samples of these clients opted out."""
    clients = (replace(c, opt_in=mask(len(c.train), out[c.id])) if c.id in out else c for c in federation.clients)
    return replace(federation, clients=tuple(clients))


# ŷ = h·p_l + (1−h)·p_g, Eq. (5)


def by_hand(x: np.ndarray, w: dict[str, np.ndarray], mix: str) -> np.ndarray:
    """Log-probabilities of linear experts and a linear gate."""
    score = x @ w["gate"][:, :4].T + w["gate"][:, 4]
    h = 1 / (1 + np.exp(-score))
    local, shared = (x @ w[name][:, :4].T + w[name][:, 4] for name in ("personal", "expert"))
    if mix == "probabilities":
        return np.asarray(np.log(h * softmax(local, axis=1) + (1 - h) * softmax(shared, axis=1)))
    mixed = h * log_softmax(local, axis=1) + (1 - h) * log_softmax(shared, axis=1)
    return np.asarray(mixed - logsumexp(mixed, axis=1, keepdims=True))


def linear_mixture(w: dict[str, np.ndarray], mix: str) -> Composite:
    layers = {}
    for name, both in w.items():
        layers[name] = nn.Linear(4, len(both))
        with torch.no_grad():
            layers[name].weight.copy_(torch.from_numpy(both[:, :4]))
            layers[name].bias.copy_(torch.from_numpy(both[:, 4]))
    return Composite(Gate(mix), layers)


def drawn_weights(seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {n: scale * rng.normal(size=(k, 5)) for n, k in (("expert", 3), ("personal", 3), ("gate", 1))}


MIXES = ["probabilities", "log-probabilities"]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("mix", MIXES)
def test_the_forward_equals_numpy(mix: str) -> None:
    for seed in range(5):
        w, x = drawn_weights(seed), np.random.default_rng(100 + seed).normal(size=(11, 4))
        with torch.no_grad():
            found = linear_mixture(w, mix)(torch.from_numpy(x)).numpy()
        assert found == pytest.approx(by_hand(x, w, mix), abs=1e-12)
        assert np.exp(found).sum(1) == pytest.approx(np.ones(11))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("mix", MIXES)
def test_its_gradient_equals_finite_differences_of_numpy(mix: str) -> None:
    """−log ŷ_y by both experts' and the gate's weights, each moved by hand."""
    w, rng = drawn_weights(3), np.random.default_rng(7)
    x, y = rng.normal(size=(6, 4)), rng.integers(3, size=6)
    model = linear_mixture(w, mix)
    F.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    layers: dict[str, Any] = {"expert": model.expert, "personal": model.personal, "gate": model.gate}
    for name, layer in layers.items():
        found = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], dim=1).numpy()
        expected = np.zeros_like(w[name])
        for at in np.ndindex(*w[name].shape):
            losses = []
            for step in (1e-5, -1e-5):
                moved = {key: value.copy() for key, value in w.items()}
                moved[name][at] += step
                losses.append(-by_hand(x, moved, mix)[np.arange(6), y].mean())
            expected[at] = (losses[0] - losses[1]) / 2e-5
        assert np.abs(expected).max() > 1e-3
        assert found == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("mix", MIXES)
def test_a_gate_or_expert_that_is_sure_makes_no_nan(mix: str) -> None:
    x = torch.ones(2, 4)
    for scale in (1e3, 1e6):
        model = linear_mixture(drawn_weights(1, scale), mix)
        loss = F.cross_entropy(model(x), torch.tensor([0, 1]))
        loss.backward()
        assert torch.isfinite(loss)
        assert not any(p.grad.isnan().any() for p in model.parameters() if p.grad is not None)


# Stages 2 and 3


def early(net: nn.Module, trained: list[Tensor], client: Client, stream: Any, patience: int, epochs: int) -> int:
    """Adam on all data in batches of four till validation says stop; the best weights are put back."""
    adam = torch.optim.Adam(trained, lr=0.3)

    def val_loss() -> float:
        net.eval()
        with torch.no_grad():
            return float(F.cross_entropy(net(client.val.x), client.val.y))

    best, kept, worse, at = val_loss(), copy.deepcopy(net.state_dict()), 0, 0
    for epoch in range(1, epochs + 1):
        net.train()
        for chosen in torch.randperm(len(client.train), generator=stream).split(4):
            adam.zero_grad()
            F.cross_entropy(net(client.train.x[chosen]), client.train.y[chosen]).backward()
            adam.step()
        loss = val_loss()
        if loss < best:
            best, kept, worse, at = loss, copy.deepcopy(net.state_dict()), 0, epoch
        else:
            worse += 1
        if worse == patience:
            break
    net.load_state_dict(kept)
    return at


class Reference(nn.Module):
    """Eq. (5) as it is printed; cross-entropy of its logarithm is −log ŷ_y."""

    def __init__(self, expert: nn.Module, personal: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.expert, self.personal, self.gate = expert, personal, gate

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sigmoid(self.gate(x))
        return torch.log(h * torch.softmax(self.personal(x), 1) + (1 - h) * torch.softmax(self.expert(x), 1))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("freeze", [False, True])
def test_the_local_stages_are_those_of_algorithm_1(
    freeze: bool, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """Local expert on all data, then experts and gate together (or the gate alone), each to its best epoch."""
    federation = opted(
        federate([13, 10, 9], models=[nets.wide, nets.plain, nets.linear], global_model=nets.plain, held=12),
        a=[0, 3, 4],
        b=range(10),
    )
    method = MixtureOfExperts(freeze_experts=freeze, patience=3, mixture_epochs=12, gate=nets.wide)
    adam = {"name": "adam", "lr": 0.3}
    run = simulate(method, federation, rounds=2, seed=3, optimizer=adam, evaluate_every=1000)
    stops = set()
    for client in federation.clients:
        fresh = Participant(run.job, client, {}, 3, Modules(torch.device("cpu")))
        fresh.initialise("personal")
        gate_start = fresh.scorer("gate", Architecture.of(nets.wide)).state_dict()
        personal = client.model.build(channels=4, size=1, classes=3, seed=0)
        personal.load_state_dict(fresh.state["personal"])
        expert, gate = nets.plain(4, 3), nets.wide(4, 1)
        expert.load_state_dict(run.globals[-1])
        gate.load_state_dict(gate_start)
        for net in (personal, Reference(expert, personal, gate)):
            trained = list((gate if freeze and net is not personal else net).parameters())
            stream = torch_stream(private(3, client.id), 3, "batches")
            stops.add(early(net, trained, client, stream, 3, 12))
        kept = run.engine.kept[3, client.id]
        for name, net in (("expert", expert), ("personal", personal), ("gate", gate)):
            for key, array in net.state_dict().items():
                assert torch.allclose(kept[name][key], array, rtol=0, atol=1e-9), (client.id, name, key)
        rows = run.history.select(round=2, client=client.id, model="predictor", split="test", metric="loss")
        with torch.no_grad():
            loss = float(F.cross_entropy(Reference(expert, personal, gate)(client.test.x), client.test.y))
        assert [row.value for row in rows] == pytest.approx([loss], abs=1e-9)
    assert any(0 < best < 9 for best in stops)  # some stopped early, and went back to an epoch in between


def test_training_that_only_makes_it_worse_leaves_epoch_0(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    """A rate at which everything blows up: expert, local expert and gate stay what they were, to the bit."""
    federation = opted(federate([12, 9, 8], held=30), a=[1, 2])
    wild = {"name": "adam", "lr": 300.0}
    run = simulate(MixtureOfExperts(**SHORT), federation, rounds=1, optimizer=wild, evaluate_every=1000)
    for client in federation.clients:
        fresh = Participant(run.job, client, {}, 2, Modules(torch.device("cpu")))
        fresh.initialise("personal")
        fresh.scorer("gate", run.job.global_architecture)
        kept = run.engine.kept[2, client.id]
        assert identical(kept["personal"], fresh.state["personal"])
        assert identical(kept["gate"], fresh.state["gate"])
        assert identical(kept["expert"], run.globals[1])


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("lr", [0.05, 2.0])
def test_the_mixture_is_never_worse_on_validation_than_its_start(
    lr: float, mix: Any, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    method = MixtureOfExperts(mix=mix, **SHORT)
    federation = federate([12, 9, 8], models=nets.dropping, global_model=nets.normed, held=15)
    plan = {"rounds": 1, "optimizer": {"name": "sgd", "lr": lr}, "evaluate_every": 1000}
    run = simulate(method, federation, **plan)
    for client in federation.clients:
        start = Participant(run.job, client, {}, 2, Modules(torch.device("cpu")))
        start.initialise("personal")
        stop = EarlyStopping("personal", method.patience, method.mixture_epochs)
        start.fit(supervised, {"personal": start.model("personal")}, until=stop)
        start.keep("expert", start.fork(run.engine.briefs[2, client.id]))
        start.scorer("gate", run.job.global_architecture)
        before = measure(method.predictor(start, None), client.val, client.task)["loss"]
        (row,) = run.history.select(round=1, client=client.id, model="predictor", split="val", metric="loss")
        assert before is not None and row.value is not None
        assert row.value <= before


def test_frozen_experts_keep_their_bytes_running_statistics_and_all(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = opted(federate([12, 9, 8], models=nets.normed, global_model=nets.normed, held=12), a=[1, 2])
    method = MixtureOfExperts(freeze_experts=True, **SHORT)
    plan = {"rounds": 1, "optimizer": {"name": "adam", "lr": 0.05}, "evaluate_every": 1000}
    run = simulate(method, federation, **plan)
    moved = 0
    for client in federation.clients:
        alone = Participant(run.job, client, {}, 2, Modules(torch.device("cpu")))
        alone.initialise("personal")
        stop = EarlyStopping("personal", method.patience, method.mixture_epochs)
        alone.fit(supervised, {"personal": alone.model("personal")}, until=stop)
        alone.scorer("gate", run.job.global_architecture)
        kept = run.engine.kept[2, client.id]
        assert identical(kept["expert"], run.globals[1])
        assert identical(kept["personal"], alone.state["personal"])
        moved += not identical(kept["gate"], alone.state["gate"])
    assert moved
    loose = simulate(MixtureOfExperts(**SHORT), federation, **plan)
    assert not all(identical(loose.engine.kept[2, c]["expert"], loose.globals[1]) for c in "abc")
    # Freezing is over when the work is: the modules are shared by all clients of an engine.
    built = run.engine.pool.worker.modules.built.values()
    assert all(p.requires_grad for module in built for p in module.parameters())


def test_any_three_models_and_a_gate_with_batch_norm_sees_no_batch_of_one(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """Nine samples in batches of four: the last one would be alone."""
    federation = federate([9, 9, 1], models=[nets.linear, nets.wide, nets.dropping], global_model=nets.plain)
    run = simulate(MixtureOfExperts(gate=nets.normed, **SHORT), federation, rounds=1)
    for client in "abc":
        assert run.engine.kept[2, client]["gate"]["head.weight"].shape == (1, 6)
        assert run.history.last(client, "predictor", "test", "accuracy") is not None


def test_a_client_without_validation_samples_does_a_rounds_work(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    run = simulate(MixtureOfExperts(**SHORT), federate([9, 6], held=0), rounds=1)
    assert not identical(run.engine.kept[2, "a"]["expert"], run.globals[1])
    assert run.history.last("a", "predictor", "test", "accuracy") is None


def test_the_predictor_is_the_global_before_the_end_then_the_mixture(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = opted(federate(held=25), c=range(7))
    run = simulate(MixtureOfExperts(**SHORT), federation, rounds=3)
    for client in "abc":
        values = {
            (row.round, row.model): row.value
            for row in run.history.select(client=client, split="test", metric="loss")
        }
        assert all(values[round, "predictor"] == values[round, "global"] for round in (0, 1, 2))
        assert values[3, "predictor"] != values[3, "global"]
        assert set(run.engine.kept[3, client]) == set()
        assert set(run.engine.kept[4, client]) == {"expert", "personal", "gate"}


# Stage 1


def test_the_global_is_fedavgs_on_opted_in_samples_alone(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    """As if the opted-out samples were not there, and clients that have opted out whole neither."""
    federation = federate([9, 12, 7, 6], models=nets.wide, global_model=nets.normed)
    out = {"a": [0, 5, 8], "c": range(7)}
    run = simulate(MixtureOfExperts(**SHORT), opted(federation, **out), rounds=3)
    without = (
        replace(c, train=c.train.take(mask(len(c.train), out.get(c.id, ())).nonzero()[:, 0]))
        for c in federation.clients
        if c.id != "c"
    )
    plain = simulate(FedAvg(), replace(federation, clients=tuple(without)), rounds=3)
    assert all(map(identical, run.globals, plain.globals))
    whole = simulate(FedAvg(), federation, rounds=3)
    assert not identical(run.globals[-1], whole.globals[-1])


def test_the_merge_is_weighted_by_the_number_opted_in(federate: Federate, simulate: Simulate) -> None:
    federation = opted(federate([9, 12, 7]), a=[0, 1, 2, 3], b=range(1, 12))
    run = simulate(MixtureOfExperts(**SHORT), federation, rounds=2, evaluate_every=1000)
    for round in (1, 2):
        replies = [run.engine.replies[round, client].message for client in "abc"]
        assert [reply.number("samples") for reply in replies] == [5, 1, 7]
        for name, merged in run.globals[round].items():
            memes = [reply.arrays("meme")[name].double().numpy() for reply in replies]
            mean = (5 * memes[0] + 1 * memes[1] + 7 * memes[2]) / 13
            assert merged.numpy() == pytest.approx(mean, abs=1e-6)


def test_a_client_that_has_opted_out_whole_sends_nothing_but_gets_the_global_and_a_mixture(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = opted(federate([9, 12, 7]), b=range(12))
    run = simulate(MixtureOfExperts(**SHORT), federation, rounds=3)
    assert {client for _, client in run.engine.replies} == {"a", "c"}
    assert run.ledger.bytes("up", "b") == 0
    assert run.ledger.bytes("down", "b") > 0
    assert identical(run.engine.briefs[4, "b"].arrays("global"), run.globals[-1])
    assert {"expert", "personal", "gate"} <= set(run.engine.kept[4, "b"])
    assert run.history.last("b", "predictor", "test", "accuracy") is not None
    # Asked all the same, as by a server that does not know, it answers nothing.
    reply = work(
        run.job, federation["b"], Store(), "train", 1, run.engine.briefs[1, "a"], Modules(torch.device("cpu"))
    )
    assert reply.message is None


@pytest.mark.parametrize("method", [MixtureOfExperts(**SHORT), FedAvg()], ids=lambda m: str(m.name))
def test_clients_are_drawn_among_those_that_have_something_to_send(
    method: Any, federate: Federate, simulate: Simulate
) -> None:
    federation = opted(federate([5, 5, 5, 5, 5, 5]), b=range(5), e=range(5))
    run = simulate(method, federation, rounds=5, client_fraction=0.5, seed=1, evaluate_every=1000)
    drawn = [event.clients for event in run.events if isinstance(event, RoundStarted)]
    assert all(len(clients) == 2 for clients in drawn)
    assert {client for clients in drawn for client in clients} == set("acdf")
    # As if those who have opted out were no clients at all: the same draws.
    there = replace(federation, clients=tuple(c for c in federation.clients if c.takes_part))
    again = simulate(method, there, rounds=5, client_fraction=0.5, seed=1, evaluate_every=1000)
    assert drawn == [event.clients for event in again.events if isinstance(event, RoundStarted)]


def test_weights_and_a_count_leave_and_nothing_else(federate: Federate, simulate: Simulate) -> None:
    federation = opted(federate([9, 12, 7]), a=[0, 3], b=range(12))
    run = simulate(MixtureOfExperts(**SHORT), federation, rounds=2)
    assert MixtureOfExperts().shares == {"meme": Kind.WEIGHTS, "samples": Kind.COUNT}
    names = {f"weights/meme/{name}" for name in run.globals[0]} | {"count/samples/"}
    crossed = [brief.encode() for brief in run.engine.briefs.values()]
    for reply in run.engine.replies.values():
        assert set(load(reply.message.encode())) == names
        crossed.append(reply.message.encode())
    kept = run.engine.kept[3, "a"]
    secrets = [array for name in ("personal", "gate", "expert") for array in kept[name].values()]
    secrets += [row for client in federation.clients for row in client.train.x]
    raw = [secret.numpy().tobytes() for secret in secrets]
    moved = [r for r in raw if r not in {a.numpy().tobytes() for a in run.globals[-1].values()}]
    assert len(moved) >= 8 + 28
    assert not any(secret in message for secret in moved for message in crossed)


# The guarantee: no byte that leaves, and no byte of the global, depends on an opted-out sample

CLASSES = ("ape", "bee", "cat")
METHODS = {
    "mixture": MixtureOfExperts(patience=1, mixture_epochs=1),
    "fedavg": FedAvg(),
    "fedprox": FedProx(mu=0.5),
    "finetuned": FineTuned(patience=1, tune_epochs=1),
}

Out = tuple[int, int]
"""How many samples are opted out, and the seed of their values, labels and places."""


def samples(n: int, seed: int, scale: float = 1.0) -> Samples:
    stream = torch_stream(seed, "samples")
    x = scale * torch.randn(n, 3, generator=stream)
    made = Samples.of(torch.zeros(1, 3), [0], classes=CLASSES).take([0] * n)
    return replace(made, x=x, y=torch.randint(3, (n,), generator=stream))


def member(name: str, opted_in: Samples, out: Out) -> Client:
    """Opted-in samples in their order, with opted-out ones of wild values strewn among them."""
    number, seed = out
    other = samples(number, seed, scale=100.0)
    n = len(opted_in) + number
    places = torch.randperm(n, generator=torch_stream(seed, "places"))[: len(opted_in)].sort().values
    chosen = torch.zeros(n, dtype=torch.bool)
    chosen[places] = True
    x, y = torch.empty(n, 3), torch.empty(n, dtype=torch.long)
    x[chosen], y[chosen], x[~chosen], y[~chosen] = opted_in.x, opted_in.y, other.x, other.y
    train = replace(opted_in, x=x, y=y)
    held = samples(3, 1000 + ord(name))
    return Client(name, train, held, held, MODEL, opt_in=chosen if number else None)


def small(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(channels, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Dropout(0.3), nn.Linear(3, classes)
    )


MODEL = Architecture.of(small)


def everything_that_left(run: Any) -> dict[Any, Any]:
    """All replies and briefs as bytes, the ledger, the server's state, and who was drawn."""
    crossed = {("up", key): r.message and r.message.encode() for key, r in run.engine.replies.items()}
    crossed |= {("down", key): brief.encode() for key, brief in run.engine.briefs.items()}
    state = {name: array.numpy().tobytes() for name, array in run.server.state["global"].items()}
    drawn = [event.clients for event in run.events if isinstance(event, RoundStarted)]
    return {**crossed, "ledger": list(run.ledger), "global": state, "drawn": drawn}


@st.composite
def federations(draw: Any) -> tuple[list[int], list[Out], list[Out]]:
    """Numbers opted in, and twice what is opted out: either part of a client may be empty, but not both."""
    opted_in = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any))
    seeds = st.integers(0, 10**6)
    twice = [[(draw(st.integers(0 if n else 1, 5)), draw(seeds)) for n in opted_in] for _ in range(2)]
    return opted_in, twice[0], twice[1]


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=8, deadline=None)
@given(drawn=federations(), fraction=st.sampled_from([0.5, 1.0]), work=st.sampled_from(["epochs", "steps"]))
def test_no_byte_that_leaves_depends_on_an_opted_out_sample(
    name: str, drawn: Any, fraction: float, work: str, simulate: Simulate
) -> None:
    opted_in, *twice = drawn
    left = []
    for outs in twice:
        each = enumerate(zip(opted_in, outs, strict=True))
        members = [member("abcd"[k], samples(n, 50 + k), out) for k, (n, out) in each]
        run = simulate(
            METHODS[name],
            Federation(tuple(members), MODEL),
            rounds=2,
            batch_size=2,
            client_fraction=fraction,
            evaluate_every=1000,
            optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9},
            **{work: 3 if work == "steps" else 1},
        )
        left.append(everything_that_left(run))
    assert left[0] == left[1]


def test_adding_the_first_and_removing_the_last_opted_out_sample_change_nothing(simulate: Simulate) -> None:
    """No mask, a mask of all, and a mask with some out; and a whole client's data replaced by one sample."""
    kept = samples(4, 1)
    a = member("a", kept, (0, 0))
    all_in = replace(a, opt_in=torch.ones(4, dtype=torch.bool))
    ways = [a, all_in, member("a", kept, (1, 2)), member("a", kept, (9, 3))]
    c = member("c", samples(3, 7), (0, 0))
    whole = [member("b", samples(0, 0), out) for out in ((1, 5), (8, 6), (2, 5), (1, 7))]
    for name, method in METHODS.items():
        federations = [Federation((*both, c), MODEL) for both in zip(ways, whole, strict=True)]
        runs = [simulate(method, federation, rounds=1) for federation in federations]
        left = [everything_that_left(run) for run in runs]
        assert all(other == left[0] for other in left), name


class Leaky(FedAvg):
    """Trains on everything, though it says that it does not."""

    honours_opt_out: ClassVar[bool] = True

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        models = self.models(client, brief)
        client.fit(self.objective, models)
        return self.reply(client, models["meme"])


class Counting(FedAvg):
    """Tells how many samples there are in all."""

    honours_opt_out: ClassVar[bool] = True

    def reply(self, client: Participant, meme: nn.Module) -> Message:
        return Message(**{**super().reply(client, meme), "samples": count(len(client.train))})


def test_the_comparison_finds_a_method_that_leaks(simulate: Simulate) -> None:
    def left(method: FedAvg, seed: int, out: Out) -> dict[Any, Any]:
        federation = Federation((member("a", samples(4, seed), out),), MODEL)
        return everything_that_left(simulate(method, federation, rounds=1))

    for method in (Leaky(), Counting()):
        assert left(method, 1, (2, 3)) != left(method, 1, (3, 4))
    assert left(FedAvg(), 1, (2, 3)) != left(FedAvg(), 2, (2, 3))
    assert left(FedAvg(), 1, (2, 3)) == left(FedAvg(), 1, (3, 4))


def test_opted_out_samples_are_learned_from_at_home(simulate: Simulate, identical: Identical) -> None:
    """The guarantee is not kept by throwing them away."""
    gentle = {"name": "sgd", "lr": 0.01}
    clients = [member("a", samples(6, 1), out) for out in ((0, 0), (6, 3))]
    runs = [simulate(METHODS["mixture"], Federation((c,), MODEL), rounds=1, optimizer=gentle) for c in clients]
    one, other = (run.engine.kept[2, "a"] for run in runs)
    assert not identical(one["personal"], other["personal"]) or not identical(one["gate"], other["gate"])


HONOUR = {"mixture", "fedavg", "fedprox", "finetuned", "independent", "aggregated"} | {
    *("ditto", "apfl", "l2gd", "perfedavg", "fedper", "fedbn", "fedala", "fd", "mocha", "datasharing"),
    *("fedrep", "lgfedavg", "afl", "fedopt", "reptile", "feddf", "fedrod", "fedbabu", "scaffold", "moon"),
    *("fedsem", "cfl", "fedrolex", "fedgkt", "pfedbayes", "no-regret", "alone-again"),
}


@pytest.mark.parametrize("name", methods.names())
def test_methods_that_do_not_honour_opt_out_are_refused_by_name(name: str, federate: Federate) -> None:
    federation = federate([5, 6])
    federation = replace(federation, public=Public({c.id: c.test for c in federation.clients}))
    method = method_named(name)
    method.arrange(federation)
    out = opted(federation, b=[2])
    if name in HONOUR:
        method.arrange(out)
    else:
        with pytest.raises(InputError, match=rf"opt_out: method {name} .*fedavg.*mixture"):
            method.arrange(out)


def test_a_federation_that_has_opted_out_whole_is_refused(federate: Federate) -> None:
    out = opted(federate([5, 6]), a=range(5), b=range(6))
    for name in ("mixture", "fedavg", "fedprox", "finetuned"):
        with pytest.raises(InputError, match=r"opt_out: every client.*at least one"):
            methods.of({"name": name}).arrange(out)
    methods.of({"name": "independent"}).arrange(out)


def test_a_mask_of_another_length_or_type_is_refused(federate: Federate) -> None:
    a = federate([5])["a"]
    for wrong in (torch.ones(4, dtype=torch.bool), torch.ones(5), torch.ones(5, 1, dtype=torch.bool)):
        with pytest.raises(InputError, match="client a: opt_in"):
            replace(a, opt_in=wrong)


# In company


def test_same_seed_same_bytes_another_seed_others(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = opted(federate(models=nets.dropping, global_model=nets.normed), a=[1])
    one, two, other = (simulate(MixtureOfExperts(**SHORT), federation, seed=seed) for seed in (5, 5, 6))
    assert everything_that_left(one) == everything_that_left(two)
    for client in "abc":
        ours, theirs, others = (run.engine.kept[3, client] for run in (one, two, other))
        assert all(identical(ours[group], theirs[group]) for group in ours)
        assert not identical(ours["gate"], others["gate"])


def test_the_reply_to_a_brief_is_the_same_whoever_else_takes_part_and_however_often_it_comes(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical, modules: Modules
) -> None:
    federation = opted(federate(models=nets.dropping, global_model=nets.normed), b=[1, 7])
    run = simulate(MixtureOfExperts(**SHORT), federation, rounds=2)
    assert_repeatable(run, identical, modules)


def test_a_partial_global_makes_an_expert_with_the_clients_own_adaptor(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    tasks = [("ape", "bee", "cat"), ("dog", "elk")]
    federation = opted(
        federate([9, 8], classes=tasks, global_model={"name": nets.plain, "share": "body"}), b=range(8)
    )
    run = simulate(MixtureOfExperts(**SHORT), federation, rounds=2)
    assert set(run.globals[-1]) == {"body.weight", "body.bias"}
    assert run.engine.kept[3, "b"]["expert"]["head.weight"].shape == (2, 6)
    assert run.history.last("b", "predictor", "test", "accuracy") is not None


class Half(torch.nn.Module):
    """A body that its author has frozen, and a head that learns."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.body = torch.nn.Linear(channels, 6).requires_grad_(False)
        self.head = torch.nn.Linear(6, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("freeze_experts", [False, True])
def test_what_a_user_froze_stays_frozen_in_the_mixture(
    freeze_experts: bool, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    method = MixtureOfExperts(mixture_epochs=2, freeze_experts=freeze_experts)
    run = simulate(method, federate((9, 12), models=Half, global_model=nets.plain))
    for client in "ab":
        built = run.engine.pool.worker.modules.get(
            "personal",
            run.federation[client].model,
            run.federation[client],
            run.engine.stores[client].state["personal"],
        )
        assert [p.requires_grad for p in built.parameters()] == [False, False, True, True]
        begun = simulate(Independent(), federate((9, 12), models=Half), rounds=0).engine.stores[client].state
        assert torch.equal(
            run.engine.stores[client].state["personal"]["body.weight"], begun["personal"]["body.weight"]
        )
