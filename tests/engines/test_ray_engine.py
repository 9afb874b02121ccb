"""The Ray engine on this machine: every byte as with the local engine, also where a worker is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mutua
from method_needs import method_named, needs_one_design
from mutua import Federation, InputError, MutuaError, methods
from mutua.engines import ray_pool
from mutua.engines.choice import EngineChoice
from mutua.engines.ray_engine import RayEngine
from mutua.engines.ray_worker import Hello
from mutua.engines.scheduling import WorkItem
from mutua.errors import LeftOut, RunError
from mutua.methods import FML, Batch, FedAvg, Independent, Models, Participant
from mutua.rounds.events import Event, Retried, RoundEnded
from watching_runs import descendants, keys

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'mutua[ray]')")
Federate = Callable[..., Federation]


@pytest.fixture(scope="module")
def on_ray() -> Iterator[dict[str, Any]]:
    """Settings of a run on a Ray that all tests share: its start takes seconds."""
    from mutua.engines.ray_cluster import connect, disconnect

    assert connect(None, 2)
    yield {"engine": "ray", "workers": 2}
    disconnect()


def rotated(**models: Any) -> Federation:
    """Three clients with a public set, on which every method can learn whose models these may be."""
    recipe = {
        "data": {"name": "mnist5k", "samples_per_client": 40, "image_size": 12},
        "partition": {"kind": "rotated", "angles": [0, 20, 40]},
        "public": {"share": 0.1},
        "models": models,
        "method": "fedmd",
    }
    return mutua.Recipe.model_validate(recipe).federation()


@pytest.fixture(scope="module")
def images() -> Federation:
    """A federation of different models."""
    return rotated(**{"global": "mlp", "clients": ["mlp", "cnn1", "mlp"]})


SETTINGS: dict[str, Any] = {"rounds": 2, "batch_size": 16, "device": "cpu", "evaluate_every": 2, "seed": 5}


OURS = [name for name in methods.names() if type(methods.of({"name": name})).__module__.startswith("mutua.")]


@pytest.mark.parametrize("name", OURS)
def test_every_method_gives_the_local_engines_bytes(name: str, images: Federation, on_ray: dict[str, Any]) -> None:
    method = method_named(name)
    images = rotated(**{"global": "mlp" if name == "fedgkt" else "cnn1"}) if needs_one_design(name) else images
    # One worker is enough to cross over: the others' start would take most of the time. Elsewhere there are two.
    engines = {"workers": 1}, on_ray | {"workers": 1}
    here, there = (mutua.run(method, images, **SETTINGS, **given) for given in engines)
    assert keys(here) == keys(there)
    assert here.history.rows


@pytest.mark.parametrize("place", ["disk", "url"])
def test_stores_elsewhere_too(place: str, images: Federation, on_ray: dict[str, Any], tmp_path: Path) -> None:
    stores = f"file://{tmp_path}/stores" if place == "url" else place
    settings = SETTINGS | {"rounds": 3, "client_fraction": 0.7}
    here = mutua.run(FML(), images, workers=1, **settings)
    there = mutua.run(FML(), images, stores=stores, **settings, **on_ray)
    assert keys(here) == keys(there)


class _Perilous(FedAvg):
    """Its first client's process is killed where a file says so, and the file goes."""

    sign: str

    def train(self, client: Participant, brief: Any) -> Any:
        """As FedAvg does."""
        sign = Path(self.sign)
        if client.id == "a" and sign.exists():
            sign.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(client, brief)


def test_a_killed_worker_changes_no_byte(federate: Federate, on_ray: dict[str, Any], tmp_path: Path) -> None:
    check_a_killed_worker(federate([9, 12, 7, 5]), on_ray, tmp_path)


@pytest.mark.long
def test_ten_killed_workers_change_no_byte(federate: Federate, on_ray: dict[str, Any], tmp_path: Path) -> None:
    for number in range(10):
        check_a_killed_worker(federate([9, 12, 7, 5], seed=number), on_ray, tmp_path)


def check_a_killed_worker(federation: Federation, on_ray: dict[str, Any], tmp_path: Path) -> None:
    sign, retried = tmp_path / "kill", list[Retried]()
    method = _Perilous(sign=str(sign))

    def watch(event: Event) -> None:
        if isinstance(event, RoundEnded) and event.round == 1:
            sign.touch()
        if isinstance(event, Retried):
            retried.append(event)

    settings = {"rounds": 3, "batch_size": 4, "device": "cpu", "progress": False}
    here = mutua.run(method, federation, workers=1, **settings)
    there = mutua.run(method, federation, callbacks=[watch], **settings, **on_ray)
    assert [event.client for event in retried] == ["a"] and not sign.exists()
    assert keys(here) == keys(there)


class _Slow(Independent):
    """Client b never ends."""

    def train(self, client: Participant, brief: Any) -> Any:
        """Wait, if it is b."""
        if client.id == "b":
            import time

            time.sleep(60)
        return super().train(client, brief)


def test_a_deadline_ends_a_client_and_not_the_run(federate: Federate, on_ray: dict[str, Any]) -> None:
    federation = federate([9, 12, 7])
    with pytest.warns(LeftOut, match="b"):
        result = mutua.run(_Slow(), federation, rounds=1, deadline=1.0, device="cpu", **on_ray)
    assert {row.client for row in result.history.rows} >= {"a", "c"}


class _Wrong(FedAvg):
    def objective(self, models: Models, batch: Batch, client: Participant) -> Any:
        """A mistake of an author's."""
        raise ZeroDivisionError("no such thing")


def test_an_authors_mistake_is_told_as_it_is_elsewhere(federate: Federate, on_ray: dict[str, Any]) -> None:
    federation, told = federate(), list[str]()
    for given in ({"workers": 1}, on_ray):
        with pytest.raises(MutuaError) as caught:
            mutua.run(_Wrong(), federation, rounds=1, device="cpu", **given)
        told.append(str(caught.value))
    assert told[0] == told[1] and "no such thing" in told[0]


def test_data_travels_once_and_a_warm_state_never(
    federate: Federate, on_ray: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that go with tasks: no data at all; after the start, no state of a client that its worker has."""
    sent = list[int]()
    put = ray_pool.bundled

    def counted(arrays: Any) -> Any:
        sent.append(sum(array.nbytes for array in arrays))
        return put(arrays)

    monkeypatch.setattr(ray_pool, "bundled", counted)
    federation = federate([4000, 5000])
    assert federation.clients[0].train.x.nbytes > 60_000
    mutua.run(Independent(), federation, rounds=3, epochs=1, device="cpu", engine="ray", workers=1)
    assert sum(sent) == 0  # a state is made by `start` there, and stays there; there are no briefs
    sent.clear()
    result = mutua.run(FedAvg(), federation, rounds=3, epochs=1, device="cpu", engine="ray", workers=1)
    assert result.global_state is not None
    weights = sum(array.nbytes for array in result.global_state.values())
    assert 0 < sum(sent) <= weights * len(sent)


def item(client: str, cost: float) -> WorkItem:
    return WorkItem("train", client, (), cost, None)


def test_a_client_goes_only_to_a_node_that_has_its_files() -> None:
    pool = object.__new__(ray_pool.RayPool)
    pool.stores_on_disk, pool._files = False, {"a": frozenset({"1.npz"}), "b": frozenset({"2.npz"})}
    greetings = [
        Hello(f"node {n}", frozenset(missing), True, "") for n, missing in enumerate([{"2.npz"}, {"1.npz"}])
    ]
    greetings.append(Hello("node 2", frozenset({"1.npz", "2.npz"}), True, ""))
    pool._workers = [ray_pool._Worker(n, None, None, hello) for n, hello in enumerate(greetings)]
    waiting = [(item("a", 2.0), 1), (item("b", 1.0), 1)]
    assert [pool._choose(worker, waiting) for worker in pool._workers] == [0, 1, None]
    assert pool._choose(pool._workers[2], [*waiting, (item("c", 1.0), 1)]) == 2  # its data have travelled


def test_the_longest_goes_first_and_a_warm_one_where_that_costs_nothing() -> None:
    waiting = [item("resnet", 40.0), item("a", 1.0), item("b", 0.9), item("c", 0.1)]
    assert ray_pool.next_item(waiting, here={"a", "b"}, elsewhere=set()) == 0
    assert ray_pool.next_item(waiting[1:], here={"b"}, elsewhere=set()) == 1
    assert ray_pool.next_item(waiting[1:], here={"c"}, elsewhere=set()) == 0  # c is much shorter
    assert ray_pool.next_item(waiting[1:], here=set(), elsewhere={"a"}) == 1  # a is warm elsewhere
    assert ray_pool.next_item(waiting[1:], here=set(), elsewhere={"a", "b"}) == 0
    assert ray_pool.next_item([], here={"a"}, elsewhere=set()) is None


def test_one_long_client_does_not_hold_up_forty_short_ones(
    federate: Federate, on_ray: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its cost is known it is begun first, though it is the last of all."""
    order = list[tuple[str, str]]()
    send = ray_pool.RayPool._send

    def noted(pool: ray_pool.RayPool, worker: Any, item: WorkItem, *rest: Any) -> None:
        order.append((item.what, item.client))
        send(pool, worker, item, *rest)

    monkeypatch.setattr(ray_pool.RayPool, "_send", noted)
    federation = federate([4] * 9 + [3000])
    settings = {"rounds": 2, "epochs": 2, "batch_size": 2, "device": "cpu", "evaluate_every": 2}
    mutua.run(Independent(), federation, **settings, **on_ray)
    trained = [client for what, client in order if what == "train"]
    assert sorted(trained) == sorted(2 * "abcdefghij")
    assert trained[10] == "j"


def test_data_that_stays_in_files_is_read_where_the_files_are(
    on_ray: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    draw = np.random.default_rng(1)
    np.savez(tmp_path / "set.npz", x=draw.random((120, 1, 8, 8), np.float32), y=draw.integers(0, 3, 120))
    recipe = mutua.Recipe.model_validate(
        {
            "data": {"name": "arrays", "path": str(tmp_path / "set.npz"), "mapped": True},
            "partition": {"kind": "iid", "clients": 3},
            "models": {"global": "mlp"},
            "method": "fedavg",
        }
    )
    federation = recipe.federation()
    settings = {"rounds": 2, "batch_size": 8, "device": "cpu"}
    here = mutua.run(FedAvg(), federation, workers=1, **settings)
    assert keys(here) == keys(mutua.run(FedAvg(), federation, **settings, **on_ray))
    # Nodes that have another file there.
    monkeypatch.setattr("mutua.engines.ray_engine._files", lambda given: {str(tmp_path / "set.npz"): (1, 2)})
    with pytest.raises(RunError, match=r"no node has .*set\.npz as it is here; copy it there"):
        mutua.run(FedAvg(), federation, **settings, **on_ray)


def test_it_listens_on_loopback_only(on_ray: dict[str, Any]) -> None:
    """All listening sockets of all processes that this one began."""
    ours, sockets = descendants(os.getpid()), set[str]()
    for pid in ours:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = descriptor.readlink().name
            except OSError:
                continue
            if target.startswith("socket:"):
                sockets.add(target.removeprefix("socket:[").removesuffix("]"))
    listening = []
    for name in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and fields[9] in sockets:
                listening.append(fields[1].rpartition(":")[0])
    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    assert len(listening) > 3
    assert set(listening) <= loopback


def test_workers_have_the_priority_of_this_process(on_ray: dict[str, Any]) -> None:
    nice = ray.get(ray.remote(lambda: os.nice(0)).options(num_cpus=0).remote())
    assert nice == os.nice(0)


def test_no_statistics_leave() -> None:
    from mutua.engines.ray_cluster import installed_ray

    installed_ray()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"name": "ray", "address": "127.0.0.1:1"},
            r"ray at 127.0.0.1:1: cannot connect \(Connection",
        ),
        ({"name": "ray", "address": "nowhere"}, "engine: ray at nowhere: give HOST:PORT"),
        ({"name": "ray", "address": "http://a:1"}, "engine: ray at http://a:1: give HOST:PORT"),
        ({"name": "ray", "address": "127.0.0.1:99999999"}, "cannot connect"),
        ({"name": "local", "address": "a:1"}, "address: a:1: engine 'local' has no such option; choose 'ray'"),
        ({"name": "ray", "gpus_per_worker": -1}, "gpus_per_worker: -1; give a number such as 0.5"),
        ({"name": "ray", "gpus_per_worker": True}, "gpus_per_worker: True; give a number"),
        ({"name": "rya"}, "engine: 'rya' is not an engine; did you mean 'ray'"),
        ({"nam": "ray"}, r"engine: {'nam': 'ray'}; give local or ray, or name, address and gpus_per_worker"),
        (7, "engine: 7; give local or ray"),
    ],
)
def test_a_wrong_engine(given: Any, told: str, federate: Federate) -> None:
    with pytest.raises(InputError, match=told):
        mutua.run(FedAvg(), federate(), rounds=1, engine=given)


def test_more_gpus_than_there_are(on_ray: dict[str, Any], federate: Federate) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match=r"gpus_per_worker: 0.5; the cluster has 0 GPUs"):
        mutua.run(FedAvg(), federate(), rounds=1, engine={"name": "ray", "gpus_per_worker": 0.5})


def test_ray_is_optional(federate: Federate, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"engine: 'ray' needs the package ray; pip install 'mutua\[ray\]'"):
        mutua.run(FedAvg(), federate(), rounds=1, engine="ray")


def test_an_engine_is_a_choice() -> None:
    made = EngineChoice.of({"name": "ray", "gpus_per_worker": 0.5}).make(3)
    assert isinstance(made, RayEngine)
    assert made.workers == 3 and made.gpus_per_worker == 0.5 and made.address is None
