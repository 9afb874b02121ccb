"""CFL: without divisions FedAvg, when and how a group is divided, and that it finds who disagrees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mutua
from mutua import Federation, InputError, Samples
from mutua.methods import CFL, FedAvg, Message, count, weights
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]
MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def groups(server: Any) -> dict[str, int]:
    return {client: int(group) for client, group in server.state["group"].items()}


@pytest.mark.parametrize("net", ["plain", "normed"])
@pytest.mark.parametrize(
    "options", [{"eps1": 0.0, "after": 0}, {"eps1": 1e9, "eps2": 1e9, "after": 0}, {"after": 3}]
)
def test_without_divisions_it_is_fedavg(
    options: dict[str, Any],
    net: str,
    nets: SimpleNamespace,
    federate: Federate,
    simulate: Simulate,
    identical: Identical,
) -> None:
    federation = federate((9, 13, 5, 6), models=getattr(nets, net), global_model=getattr(nets, net))
    runs = [simulate(m, federation, rounds=3, optimizer=MOMENTUM) for m in (CFL(**options), FedAvg())]
    assert identical(*(run.server.state["global"] for run in runs))
    kept = [{k: v.message.encode() for k, v in run.engine.replies.items()} for run in runs]
    assert kept[0] == kept[1]


@pytest.fixture
def serve(federate: Federate, simulate: Simulate, nets: SimpleNamespace) -> Callable[..., Any]:
    """A server of CFL that merges by client how far its meme is from its centre, in two weights."""

    def make(method: CFL, sizes: tuple[int, ...]) -> Any:
        run = simulate(method, federate(sizes, models=nets.linear, global_model=nets.linear), go=False)
        method.open(run.server)

        def merge(updates: Mapping[str, tuple[float, float]]) -> dict[str, int]:
            run.server.round += 1
            replies = {}
            for client, (x, y) in sorted(updates.items()):
                centre = method.global_for(run.server, client)
                meme = {name: array.clone() for name, array in centre.items()}
                meme["head.bias"][0] += x
                meme["head.weight"][1, 1] += y
                replies[client] = Message(meme=weights(meme), samples=count(1))
            method.merge(run.server, replies)
            return groups(run.server)

        return run.server, merge

    return make


EAST, NORTH = (5.0, 0.0), (0.0, 5.0)
WEST, SOUTH = (-5.0, 0.0), (0.0, -5.0)


def test_a_second_division_of_a_group_that_lacks_the_first_ids(serve: Any) -> None:
    """Positions in the group's own matrix are no client ids."""
    _, merge = serve(CFL(after=0), (5,) * 7)
    first = merge(
        dict.fromkeys("abc", EAST) | {"d": (-3.75, 0.5), "e": (-3.75, -0.5), "f": (-3.75, 0.5), "g": (-3.75, -0.5)}
    )
    assert first == dict.fromkeys("abc", 0) | dict.fromkeys("defg", 1)
    second = merge(dict.fromkeys("abc", (0.0, 0.0)) | {"d": NORTH, "e": SOUTH, "f": NORTH, "g": SOUTH})
    assert second == dict.fromkeys("abc", 0) | {"d": 1, "f": 1, "e": 2, "g": 2}


def test_the_new_groups_have_the_means_of_their_own_members(serve: Any) -> None:
    server, merge = serve(CFL(after=0), (5,) * 4)
    before = server.state["global"]["head.bias"][0].clone()
    assert merge({"a": (4.0, 0.0), "b": WEST, "c": (6.0, 0.0), "d": WEST}) == {"a": 0, "c": 0, "b": 1, "d": 1}
    assert float(server.state["centre-0"]["head.bias"][0] - before) == pytest.approx(5)
    assert float(server.state["centre-1"]["head.bias"][0] - before) == pytest.approx(-5)


@pytest.mark.parametrize(
    ("options", "updates"),
    [
        ({"after": 1}, {"a": EAST, "b": WEST, "c": EAST, "d": WEST}),  # too early
        ({"after": 0}, {"a": EAST, "b": NORTH, "c": EAST, "d": NORTH}),  # the mean still moves
        ({"after": 0, "eps2": 5.1}, {"a": EAST, "b": WEST, "c": EAST, "d": WEST}),  # nobody moves far
        ({"after": 0, "eps1": 0.0}, {"a": EAST, "b": WEST, "c": EAST, "d": WEST}),
    ],
)
def test_a_group_is_not_divided_before_it_is_time(
    options: dict[str, Any], updates: dict[str, Any], serve: Any
) -> None:
    _, merge = serve(CFL(**options), (5,) * 4)
    assert set(merge(updates).values()) == {0}


def test_two_members_stay_together_and_all_must_have_replied(serve: Any) -> None:
    _, merge = serve(CFL(after=0), (5, 5))
    assert merge({"a": EAST, "b": WEST}) == {"a": 0, "b": 0}
    _, merge = serve(CFL(after=1), (5,) * 4)
    merge({"a": EAST, "b": WEST, "c": EAST, "d": WEST})
    assert set(merge({"a": EAST, "b": WEST, "d": (0.0, 0.0)}).values()) == {0}
    assert merge({"a": EAST, "b": WEST, "c": EAST, "d": WEST}) == {"a": 0, "c": 0, "b": 1, "d": 1}


def test_the_linkage(serve: Any) -> None:
    """A chain of directions and a pair: single linkage follows the chain, complete linkage cuts it."""
    import math

    def at(degrees: float) -> tuple[float, float]:
        return 5 * math.cos(math.radians(degrees)), 5 * math.sin(math.radians(degrees))

    angles = {"a": 0, "b": 48, "c": 98, "d": 150, "e": 205, "f": 300}
    for linkage, apart in (("single", {"f"}), ("complete", {"e", "f"})):
        _, merge = serve(CFL(after=0, eps1=100, linkage=linkage), (5,) * 6)
        found = merge({client: at(angle) for client, angle in angles.items()})
        assert {client for client in angles if found[client] != found["a"]} == apart


def swapped(samples: Samples) -> Samples:
    """The first two classes' names changed over."""
    return replace(samples, y=torch.tensor([1, 0, 2])[samples.y])


def test_clients_that_disagree_on_labels_are_found_in_a_run(federate: Federate) -> None:
    federation = federate((40, 40, 40, 40, 40, 40), held=30)
    clients = [
        replace(c, train=swapped(c.train), val=swapped(c.val), test=swapped(c.test)) if c.id in "bdf" else c
        for c in federation.clients
    ]
    mixed = replace(federation, clients=tuple(clients), test=None)
    plan = {
        "rounds": 15,
        "batch_size": 40,
        "device": "cpu",
        "workers": 1,
        "progress": False,
        "optimizer": {"lr": 0.3},
    }
    result = mutua.run(CFL(eps1=0.1, eps2=0.15, after=5), mixed, **plan)
    one = mutua.run(FedAvg(), mixed, **plan)
    served = {c.id: c.predictor.model.state_dict()["head.bias"].tolist() for c in result.clients}
    assert served["a"] == served["c"] == served["e"] != served["b"] == served["d"] == served["f"]
    assert result.mean_accuracy() > one.mean_accuracy() + 0.15


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="linkage"):
        mutua.methods.of({"name": "cfl", "linkage": "average"})
