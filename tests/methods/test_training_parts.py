"""Training a part of a model, and what a client's models, streams and optimizers are called by."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mutua import Federation, InputError, Plan
from mutua.federation.module_pool import Modules
from mutua.methods import FedAvg, Independent, Message, Participant, supervised, weights
from mutua.methods.base import Job
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Identical = Callable[[Tensors, Tensors], bool]
MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def at_work(federation: Federation, modules: Modules, state: Any = None, **plan: Any) -> Participant:
    job = Job(
        FedAvg(),
        Plan(**{"batch_size": 4, "device": "cpu", "optimizer": MOMENTUM, **plan}),
        federation.global_model,
    )
    return Participant(job, federation["a"], {} if state is None else state, 1, modules)


def briefed(federation: Federation) -> Message:
    assert federation.global_model is not None
    model = federation.global_model.build(channels=4, size=(1, 1), classes=3, seed=0)
    return Message(**{"global": weights(model.state_dict())})


def test_only_the_part_moves_statistics_included(
    nets: SimpleNamespace, federate: Federate, modules: Modules
) -> None:
    client = at_work(federate(models=nets.normed), modules)
    client.initialise()
    before = client.state["personal"]
    for part in ("head", "body", ["norm"], ["body.bias", "head"]):
        client.state["personal"] = before
        client.fit(supervised, {"personal": client.model()}, only=part)
        moved = {name for name, array in client.state["personal"].items() if not torch.equal(array, before[name])}
        in_part = {
            "head": {"head.weight", "head.bias"},
            "body": {n for n in before if not n.startswith("head")},
            "['norm']": {n for n in before if n.startswith("norm")},
            "['body.bias', 'head']": {"body.bias", "head.weight", "head.bias"},
        }[str(part)]
        assert moved <= in_part, part
        assert in_part - moved <= {"body.bias"}, part  # which batch-norm takes off again: it has no gradient


def test_the_head_learns_as_logistic_regression_on_frozen_features(
    nets: SimpleNamespace, federate: Federate, modules: Modules
) -> None:
    """By hand: one full batch, plain SGD; dropout and batch-norm before the head are in evaluation mode."""
    federation = federate(models=nets.normed)
    client = at_work(federation, modules, batch_size=100, optimizer={"name": "sgd", "lr": 0.3})
    client.initialise()
    model = client.model().eval()
    data = federation["a"].train
    with torch.no_grad():
        z = nn.Sequential(*list(model.children())[:-1])(data.x)
        p = torch.softmax(model(data.x), 1) - nn.functional.one_hot(data.y, 3)
        expected = model.head.weight - 0.3 * p.T @ z / len(z)  # type: ignore[union-attr,operator]
    client.fit(supervised, {"personal": client.model()}, only="head")
    assert torch.allclose(client.state["personal"]["head.weight"], expected, atol=1e-6)


def test_an_optimizers_memory_is_of_the_whole_model_whatever_part_it_stepped(
    nets: SimpleNamespace, federate: Federate, modules: Modules
) -> None:
    client = at_work(federate(models=nets.plain), modules)
    client.initialise()
    for part, remembered in (("head", {"2", "3"}), ("body", {"0", "1", "2", "3"})):
        head = {k: v for k, v in client.state.get("personal.optimizer", {}).items() if k[0] in "23"}
        client.fit(supervised, {"personal": client.model()}, only=part)
        memory = client.state["personal.optimizer"]
        assert {name.partition(".")[0] for name in memory} == remembered
        assert all(torch.equal(memory[name], array) for name, array in head.items())


def test_nothing_frozen_is_left_behind(nets: SimpleNamespace, federate: Federate, modules: Modules) -> None:
    """By `only`, also where training fails, and by an author's own hand: modules go from client to client."""
    federation = federate(models=nets.normed)
    client = at_work(federation, modules)
    client.initialise()

    def fails(*_: Any) -> Any:
        raise KeyError("no")

    with pytest.raises(KeyError):
        client.fit(fails, {"personal": client.model()}, only="head")
    client.model().requires_grad_(False)
    client.fork(briefed(federation)).requires_grad_(False)
    other = Participant(client._job, federation["b"], {}, 1, modules)
    other.initialise()
    for model in (other.model(), other.fork(briefed(federation))):
        assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(part.training for part in other.model().train().modules())


def test_dropout_in_the_part_draws_from_the_models_stream(
    federate: Federate, modules: Modules, identical: Identical
) -> None:
    def dropping_head(channels: int, classes: int) -> nn.Module:
        model = nn.Sequential()
        model.body = nn.Linear(channels, 6)
        model.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, classes))
        return model

    found = []
    for noise in (1, 2):
        torch.manual_seed(noise)  # whatever the process has drawn before
        client = at_work(federate(models=dropping_head), modules)
        client.initialise()
        client.fit(supervised, {"personal": client.model()}, only="head")
        found.append(client.state["personal"])
    assert identical(*found)


@pytest.mark.parametrize(
    ("part", "said"),
    [("tail", "only: 'tail'; give all, body, head or a list of names"), (["tail"], "only: 'tail' is no part of")],
)
def test_a_part_that_is_not_there(part: Any, said: str, federate: Federate, modules: Modules) -> None:
    client = at_work(federate(), modules)
    client.initialise()
    with pytest.raises(InputError, match=said):
        client.fit(supervised, {"personal": client.model()}, only=part)


# Streams by purpose and by name


def test_every_fit_draws_the_same_batches_unless_it_has_another_purpose(
    nets: SimpleNamespace, federate: Federate, modules: Modules
) -> None:
    client = at_work(federate(models=nets.dropping), modules)
    drawn = {p: [b.index.tolist() for b in client.loader(purpose=p).epochs(1)] for p in ("", "inner", "outer")}
    assert drawn[""] == [b.index.tolist() for b in client.loader().epochs(1)]
    assert len({str(batches) for batches in drawn.values()}) == 3
    learned = []
    for purpose in ("", "", "inner"):
        client.initialise()
        client.state.pop("personal.optimizer", None)
        client.fit(supervised, {"personal": client.model()}, purpose=purpose)
        learned.append(client.state["personal"]["head.weight"])
    assert torch.equal(learned[0], learned[1]) and not torch.equal(learned[0], learned[2])


def test_a_model_may_draw_as_another_one_does(
    nets: SimpleNamespace, federate: Federate, modules: Modules, identical: Identical
) -> None:
    """With it a case that makes one role another holds with dropout too: here alone is U-FedAvg of one client."""
    federation = federate(models=nets.dropping, global_model=nets.dropping)
    client, brief = at_work(federation, modules, optimizer={"name": "sgd", "lr": 0.1}), briefed(federation)
    meme = client.fork(brief)
    client.fit(supervised, {"meme": meme})
    learned = {name: array.clone() for name, array in meme.state_dict().items()}
    for streams, same in ((None, False), ({"personal": "meme"}, True)):
        client.keep("personal", client.fork(brief))
        client.fit(supervised, {"personal": client.model()}, streams=streams)
        assert identical(client.state["personal"], learned) == same


# Models by name


def test_a_second_model_of_the_clients_own_design(
    nets: SimpleNamespace, federate: Federate, modules: Modules, identical: Identical
) -> None:
    federation = federate(models=nets.wide, global_model=nets.plain)
    client = at_work(federation, modules)
    client.initialise()
    client.initialise("second")
    client.keep("copy", client.model())
    client.initialise("shared", like="global")
    client.keep("meme copy", client.fork(briefed(federation)))
    assert client.model("second").body.out_features == client.model("copy").body.out_features == 9  # type: ignore[union-attr]
    assert client.model("shared").body.out_features == client.model("meme copy").body.out_features == 6  # type: ignore[union-attr]
    assert identical(client.state["copy"], client.state["personal"])
    assert not identical(client.state["second"], client.state["personal"])
    client.fit(supervised, {"second": client.model("second")})
    later = at_work(federation, modules, client.state)
    assert later.model("second").body.out_features == 9  # type: ignore[union-attr]
    later.keep("copy", later.model("shared"))
    assert later.model("copy").body.out_features == 6  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["meme", "mine"])
def test_a_forks_adaptor_is_kept_by_whatever_name_it_trains(
    name: str, nets: SimpleNamespace, federate: Federate, modules: Modules
) -> None:
    federation = federate(models=nets.plain, global_model={"name": nets.plain, "share": "body"})
    client = at_work(federation, modules)
    whole = briefed(federation).arrays("global")
    brief = Message(**{"global": weights({n: a for n, a in whole.items() if n.startswith("body")})})
    meme = client.fork(brief)
    first = dict(client.state["adaptor"])
    client.fit(supervised, {name: meme})
    assert not torch.equal(client.state["adaptor"]["head.weight"], first["head.weight"])
    assert torch.equal(client.state["adaptor"]["head.weight"], meme.state_dict()["head.weight"])


def test_independent_and_a_second_model_cross_processes(federate: Federate) -> None:
    import mutua

    class Twice(Independent):
        name = "twice"  # type: ignore[misc]

        def start(self, client: Participant) -> None:
            super().start(client)
            client.initialise("second")

        def train(self, client: Participant, brief: Message | None) -> Message | None:
            client.fit(supervised, {"second": client.model("second")}, only="head", purpose="second")
            return super().train(client, brief)

    runs = [
        mutua.run(Twice(), federate(), rounds=2, batch_size=4, workers=workers, device="cpu", progress=False)
        for workers in (1, 2)
    ]
    states = [run.clients[0].state for run in runs]
    assert (
        states[0].keys()
        == states[1].keys()
        == {"personal", "personal.optimizer", "second", "second.own", "second.optimizer"}
        - {group for group in ("personal.optimizer", "second.optimizer") if group not in states[0]}
    )
    assert all(torch.equal(a, states[1][g][n]) for g, arrays in states[0].items() for n, a in arrays.items())
