"""What holds for every method that the papers compare with: one table, one row for each method and set of options.

Each row runs on a tiny model and on one with batch-norm and dropout: on clients whose samples are no multiple of
the batch, with a class missing, with a client that is never drawn, and more.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import mutua
from conftest import assert_repeatable
from mutua import Client, Federation, InputError, Samples, methods
from mutua.data.public import Public
from mutua.federation.module_pool import Modules
from mutua.learning.evaluation import measure
from mutua.methods import EarlyStopping, Hub, Method, Participant
from mutua.methods.promises import promised
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]


@dataclass(frozen=True)
class Row:
    """A method with options, and what is not as usual about it."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    shared: tuple[str, ...] = ()
    """Groups of a client's store whose numbers may leave; all others must not."""
    adapts: bool = False
    """Whether who takes the global as it is serves with something else that its own data has made of it."""

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])

    @property
    def method(self) -> Method:
        return methods.of({"name": self.name, **self.options})


ROWS = [
    Row("ditto"),
    Row("ditto", {"weights": "uniform", "init": "global"}),
    Row("apfl"),
    Row("apfl", {"alpha": 0.9, "adaptive": False, "init": "global"}),
    Row("l2gd", shared=("personal",)),
    Row("l2gd", {"coin": 0.4, "theta": 0.5, "init": "global"}, shared=("personal",)),
    Row("perfedavg", adapts=True),
    Row("perfedavg", {"hessian": "difference", "alpha": 0.05}, adapts=True),
    Row("perfedavg", {"hessian": "exact", "alpha": 0.05}, adapts=True),
    Row("fedper"),
    Row("fedbn"),
    Row("finetuned", {"tune": "freeze-body", "tune_epochs": 2}),
    Row("finetuned", {"tune": "ewc", "tune_epochs": 2}),
    Row("finetuned", {"tune": "kd", "tune_epochs": 2}),
    Row("datasharing", {"warm_up": 3}),
    Row("datasharing", {"alpha": 0.3, "warm_up": 0, "weights": "uniform"}),
    Row("fedala", shared=("ala.local",)),
    Row("fedala", {"layers": 3, "sample": 1.0, "eta": 5.0, "first_passes": 2}, shared=("ala.local",)),
    Row("fd"),
    Row("mocha", shared=("personal",)),
    Row("mocha", {"relation": "mean", "lam": 0.1}, shared=("personal",)),
]
ROWS += [
    Row("fedrep", {"head_epochs": 2}),
    Row("lgfedavg", shared=("personal",)),
    Row("fedproto"),
    Row("fedproto", {"weights": "samples", "serve": "head"}),
    Row("afl"),
    Row("afl", {"weights": "samples", "serve": "mean"}),
    Row("fedopt", {"server": "yogi"}),
    Row("reptile", {"local_steps": 2}, adapts=True),
    Row("feddf", {"distil_steps": 3, "distil_batch": 4}),
]
ROWS += [
    Row("fedrod", shared=("generic",)),
    Row("fedrod", {"gamma": 0.5, "weights": "uniform"}, shared=("generic",)),
    Row("scaffold"),
    Row("scaffold", {"strength": 0.5, "server_lr": 0.7}),
    Row("fedbabu", {"tune_epochs": 2}),
    Row("fedbabu", {"tune_epochs": 1, "tune": "head"}),
    Row("moon", shared=("before",)),
    Row("moon", {"mu": 5.0, "weights": "uniform", "serve": "local"}, shared=("before", "local")),
    Row("fedsem"),
    Row("fedsem", {"k": 3, "assign": "loss", "weights": "uniform"}),
    # A sample whose features are all 0 has the head's bias as its scores.
    Row("fedgkt", {"labels_leave": True}, shared=("personal",)),
    Row("fedgkt", {"labels_leave": True, "serve": "joint", "server_epochs": 2}, shared=("personal",)),
    Row("pfedbayes"),
    Row("pfedbayes", {"zeta": 0.1, "noise": 0.5, "weights": "uniform"}),
    Row("fedrolex"),
    Row("fedrolex", {"window": "random", "weights": "samples"}),
    Row("cfl", {"eps1": 10.0, "eps2": 0.01, "after": 0}),
]
ROWS += [
    Row("fedkd", {"energy": 0.6}),
    Row("fedkd", {"hidden": 0, "adaptive": False, "energy": 1}),
]
NETS = ("plain", "normed")
EVERY = pytest.mark.parametrize("row", ROWS, ids=str)
BOTH = pytest.mark.parametrize("net", NETS)
PLAN: dict[str, Any] = {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}, "evaluate_every": 4}
PAGES = Path(__file__).parents[2] / "docs" / "methods"
SIZES = (9, 13, 5)
"""In batches of four each client's last batch is a single sample."""


def arranged(federation: Federation, row: Row) -> Federation:
    """With a public set where the method needs one."""
    if not row.method.needs_public:
        return federation
    return replace(federation, public=Public({client.id: client.test for client in federation.clients}))


def everything(run: Any) -> dict[str, Any]:
    """All that crossed and was kept, as bytes."""
    sent = {f"up {key}": r.message.encode() for key, r in run.engine.replies.items() if r.message is not None}
    briefs = {f"down {key}": brief.encode() for key, brief in run.engine.briefs.items()}
    kept = {
        f"kept {key} {group} {name}": array.contiguous().numpy().tobytes()
        for key, state in run.engine.kept.items()
        for group, arrays in state.items()
        for name, array in arrays.items()
    }
    return {**sent, **briefs, **kept}


def assert_sound(run: Any, clients: str) -> None:
    """Every client was evaluated with finite numbers, and nothing that was kept or sent is not finite."""
    for client in clients:
        for metric in ("accuracy", "loss"):
            found = run.history.last(client, "predictor", "test", metric)
            assert found is not None and torch.tensor(found).isfinite(), (client, metric)
    last = max(round for round, _ in run.engine.kept)
    for client in clients:
        for group, arrays in run.engine.kept[last, client].items():
            assert all(bool(array.isfinite().all()) for array in arrays.values()), (client, group)
    for part in (part for reply in run.engine.replies.values() for part in (reply.message or {}).values()):
        assert all(bool(array.isfinite().all()) for array in part.arrays.values())


@EVERY
@BOTH
def test_samples_that_are_no_multiple_of_the_batch(
    net: str, row: Row, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    model = getattr(nets, net)
    run = simulate(row.method, arranged(federate(SIZES, models=model, global_model=model), row), **PLAN)
    assert_sound(run, "abc")
    assert len(run.engine.replies) == 2 * 3
    assert all(reply.message is not None for reply in run.engine.replies.values()) or not row.method.shares


@EVERY
@BOTH
def test_a_class_missing_at_a_client(
    net: str, row: Row, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    model = getattr(nets, net)
    federation = federate((15, 9, 8), models=model, global_model=model)
    a = federation["a"]
    poorer = replace(a, train=a.train.take((a.train.y != 2).nonzero()[:, 0]))
    assert 2 not in poorer.train.y and len(poorer.train) > 3
    others = replace(federation, clients=(poorer, *federation.clients[1:]))
    assert_sound(simulate(row.method, arranged(others, row), **PLAN), "abc")


@EVERY
@BOTH
def test_half_of_the_clients_are_drawn_and_one_never_is(
    net: str, row: Row, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    model = getattr(nets, net)
    federation = arranged(federate((9, 6, 5, 8), models=model, global_model=model), row)
    run = simulate(row.method, federation, client_fraction=0.5, seed=1, **PLAN)
    drawn = {client for _, client in run.engine.replies}
    assert drawn < set("abcd") and len(run.engine.replies) == 2 * 2
    assert_sound(run, "abcd")
    for client in set("abcd") - drawn:  # its own last work may come, but no round has changed what it keeps
        assert everything(run).keys() & {f"up {(round, client)}" for round in (1, 2)} == set()
        assert run.engine.kept[0, client] == run.engine.kept[2, client]


@EVERY
def test_clients_in_another_order_give_the_same_bytes(
    row: Row, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = arranged(federate(SIZES, models=nets.normed, global_model=nets.normed), row)
    mixed = replace(federation, clients=tuple(federation[client] for client in "cab"))
    one, other = (simulate(row.method, each, **PLAN) for each in (federation, mixed))
    assert everything(one) == everything(other)


@EVERY
def test_a_brief_that_comes_twice_is_answered_once(
    row: Row, nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical, modules: Modules
) -> None:
    run = simulate(row.method, arranged(federate(models=nets.normed, global_model=nets.normed), row), **PLAN)
    assert_repeatable(run, identical, modules)


@EVERY
def test_stopped_and_resumed_or_with_two_workers_the_bytes_are_the_same(
    row: Row, nets: SimpleNamespace, federate: Federate
) -> None:
    federation = arranged(federate((9, 6, 5, 8), models=nets.normed, global_model=nets.normed), row)
    given = {"batch_size": 4, "device": "cpu", "client_fraction": 0.5, "seed": 3, "progress": False, **PLAN}

    def left(result: mutua.Result) -> list[Any]:
        states = [(client.id, group, client.state[group]) for client in result.clients for group in client.state]
        shared = [("global", "", result.global_state or {})]
        served = [(c.id, "serves", dict(c.predictor.model.state_dict())) for c in result.clients]
        return [
            (who, what, name, array.dtype, array.contiguous().numpy().tobytes())
            for who, what, arrays in [*states, *shared, *served]
            for name, array in arrays.items()
        ]

    whole = mutua.run(row.method, federation, rounds=4, workers=1, **given)
    assert left(mutua.run(row.method, federation, rounds=4, workers=2, **given)) == left(whole)
    longer = mutua.run(row.method, federation, rounds=1, workers=1, **given)
    for rounds in (2, 4):
        longer = longer.extend(rounds, progress=False)
    assert left(longer) == left(whole)
    assert longer.ledger.kinds("up") == whole.ledger.kinds("up")


@EVERY
def test_what_leaves_is_what_is_declared_and_nothing_of_the_store(
    row: Row, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = arranged(federate(SIZES, models=nets.normed, global_model=nets.normed), row)
    run = simulate(row.method, federation, rounds=3, **PLAN)
    declared = {f"{kind}: {name}" for name, kind in row.method.shares.items()}
    assert set(run.ledger.kinds("up")) == declared
    messages = [reply.message.encode() for reply in run.engine.replies.values() if reply.message is not None]
    # After the last round: at first a personal model that starts as the global did may be what the meme is. What
    # does not learn, such as a bias before batch-norm, is as it was in the first brief.
    first = run.engine.briefs.get((1, "a"), {})
    known = {array.numpy().tobytes() for part in first.values() for array in part.arrays.values()}
    for client in "abc":
        for group, arrays in run.engine.kept[3, client].items():
            telling = [a for a in arrays.values() if a.is_floating_point() and a.unique().numel() >= 2]
            for raw in {array.contiguous().numpy().tobytes() for array in telling} - known:
                assert group in row.shared or not any(raw in message for message in messages), group


@EVERY
def test_what_is_reported_is_of_the_model_that_is_served(
    row: Row, nets: SimpleNamespace, federate: Federate
) -> None:
    federation = arranged(federate(SIZES, models=nets.normed, global_model=nets.normed), row)
    result = mutua.run(
        row.method, federation, rounds=2, batch_size=4, device="cpu", workers=1, progress=False, **PLAN
    )
    for client in result.clients:
        found = measure(client.predictor.model, client.client.test, client.client.task)
        for metric in ("accuracy", "loss"):
            assert result.history.last(client.id, "predictor", "test", metric) == found[metric], metric


FIRST = pytest.mark.parametrize("row", {row.name: row for row in ROWS[::-1]}.values(), ids=str)
"""One row of each method."""


@FIRST
def test_clients_may_have_other_designs_where_the_method_says_so(
    row: Row, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """Else they are refused by name, or the clients' own designs change nothing."""
    kind, several, shared = type(row.method), [nets.wide, nets.plain, nets.dropping], {"name": nets.wide}
    if row.name == "fedrolex":  # parts of the global
        several = [nets.wide, nets.plain, nets.plain]
    if kind.needs_features:
        several, shared = [{"name": net, "features": 3} for net in several], {"name": nets.wide, "features": 3}
    if row.name == "fedgkt":  # its server's model is on features
        shared = {"name": "linear"}
    mixed = arranged(federate(SIZES, models=several, global_model=shared), row)
    if kind.same_models:
        with pytest.raises(
            InputError, match=rf"client b: its model is .*, but {row.name} needs the global's design"
        ):
            simulate(row.method, mixed, **PLAN)
        return
    run = simulate(row.method, mixed, **PLAN)
    assert_sound(run, "abc")
    if not kind.own_models:
        alike = simulate(row.method, arranged(federate(SIZES, models=nets.wide, global_model=shared), row), **PLAN)
        assert everything(run) == everything(alike)
        return
    parts = [part for (_, c), reply in run.engine.replies.items() if c == "b" for part in reply.message.values()]
    own = [run.engine.kept[2, "b"].get("personal", {}), *(part.arrays for part in parts)]
    bodies = [arrays[name] for arrays in own for name in ("body.weight", "body.body.weight") if name in arrays]
    assert 6 in {len(body) for body in bodies}, "a plain body of 6 units learns at b"


class Headless(nn.Module):
    """A model without a head, and so without features."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.ones(channels, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores."""
        return x @ self.matrix


PRIVATE = {"clip": 1.0, "noise": 1.0, "randomness": "seeded"}


@FIRST
def test_what_it_cannot_do_is_refused_by_name_before_anything_runs(
    row: Row, nets: SimpleNamespace, federate: Federate
) -> None:
    """A partial global, a model without a head, and noise: what is not refused goes through all of a run."""
    plain, body = {"name": nets.plain}, {"name": nets.plain, "share": "body"}
    cases: list[tuple[Any, dict[str, Any]]] = [(body, {}), (Headless, {}), (plain, {"privacy": PRIVATE})]
    cases += [(plain, {"privacy": {**PRIVATE, "level": "example"}})]
    for shared, given in cases:
        own = Headless if shared is Headless else nets.plain
        federation = arranged(federate((9, 5), models=own, global_model=shared), row)
        plan = {"rounds": 1, "batch_size": 4, "device": "cpu", "workers": 1, "progress": False, **PLAN}
        said = None
        try:
            result = mutua.run(row.method, federation, **{**plan, **given})
        except InputError as refused:
            said = str(refused)
        if said is None:
            assert all(client.accuracy() is not None for client in result.clients)
        else:
            assert row.name in said or "has no head" in said


@pytest.mark.parametrize("name", sorted({row.name for row in ROWS}))
def test_a_method_is_short_and_its_file_and_its_page_cite_the_paper(name: str) -> None:
    file = Path(inspect.getfile(type(methods.of({"name": name}))))
    text = file.read_text()
    assert len(text.splitlines()) < 120
    page = (PAGES / f"{name}.md").read_text()
    paper = re.search(r"^Papers?: (\w+)", page, re.MULTILINE)
    assert paper is not None and paper[1] in (ast.get_docstring(ast.parse(text)) or ""), "the paper's first author"
    assert all(part in page for part in ("**Objective", "**When.**", "**Serving", "Opting out"))


# What is opted out


def other_values(samples: Samples, out: list[int]) -> Samples:
    """The same samples but for these, which get other inputs and other labels."""
    x, y = samples.x.clone(), samples.y.clone()
    x[out], y[out] = 7 - 3 * x[out], (y[out] + 1) % len(samples.classes)
    return replace(samples, x=x, y=y)


@EVERY
def test_opted_out_samples_change_nothing_that_leaves_or_the_method_is_refused(
    row: Row, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = federate((9, 13, 5, 6), models=nets.normed, global_model=nets.normed)
    out = {"a": [0, 4, 8], "b": [3], "c": list(range(5))}

    def opted(change: bool) -> Federation:
        clients = []
        for client in federation.clients:
            kept = torch.ones(len(client.train), dtype=torch.bool)
            kept[out.get(client.id, [])] = False
            train = other_values(client.train, out.get(client.id, [])) if change else client.train
            clients.append(replace(client, train=train, opt_in=kept))
        return arranged(replace(federation, clients=tuple(clients)), row)

    if not promised(type(row.method), "honours_opt_out"):
        with pytest.raises(InputError, match=f"opt_out: method {row.name} would let opted-out samples leave"):
            row.method.arrange(opted(False))
        return
    one, other = (simulate(row.method, opted(change), rounds=3, **PLAN) for change in (False, True))
    crossed = [{k: v for k, v in everything(run).items() if k[:2] in ("up", "do")} for run in (one, other)]
    assert crossed[0] == crossed[1]
    assert one.server.state.keys() == other.server.state.keys()
    assert {client for key in one.engine.replies for client in key[1] if one.engine.replies[key].message} == set(
        "abd"
    )
    assert_sound(one, "abd")


# Who comes later, and what else merges


@EVERY
@pytest.mark.parametrize("how", ["global", "finetune"])
def test_a_newcomer_joins_where_there_is_a_global(
    how: Any, row: Row, nets: SimpleNamespace, federate: Federate, simulate: Simulate, blobs: Any, modules: Modules
) -> None:
    run = simulate(row.method, arranged(federate(models=nets.plain, global_model=nets.plain), row), **PLAN)
    brief = run.engine.briefs.get((3, "a"))
    parts = (blobs(n, seed=900 + n) for n in (14, 0, 30))  # without val: a round's work, not early stopping
    client = Client("new", *parts, mutua.Architecture.of(nets.plain))
    newcomer = Participant(run.job, client, {}, 3, modules)
    if not isinstance(row.method, Hub):
        with pytest.raises(
            InputError, match=f"method {row.name}: it has no global model that a newcomer could join"
        ):
            row.method.personalise(newcomer, brief, how)
        return
    shared = {name: array.clone() for name, array in newcomer.fork(brief).state_dict().items()}
    if how == "finetune":
        row.method.adapt(newcomer, brief, EarlyStopping("tuned"))
    served = row.method.predictor(newcomer, brief).state_dict()
    same = all(torch.equal(array, served[name]) for name, array in shared.items())
    assert same == (how == "global" and not row.adapts)


@EVERY
@pytest.mark.parametrize("combine", ["median", "krum"])
def test_memes_are_merged_robustly_too(
    combine: str, row: Row, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    if "combine" not in type(row.method).model_fields:
        assert not isinstance(row.method, Hub)
        return
    federation = arranged(federate((9, 13, 5, 6, 8), models=nets.normed, global_model=nets.normed), row)
    method = methods.of({"name": row.name, **row.options, "combine": combine})
    assert_sound(simulate(method, federation, **PLAN), "abcde")
