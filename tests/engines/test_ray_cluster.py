"""Ray clusters in processes of their own: nodes, workers and heads that go; Ray's failures in one line each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mutua.engines.ray_cluster import how_it_died, meaning
from watching_runs import descendants

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'mutua[ray]')")
HERE = Path(__file__).parent
RECIPE = """
name: cluster
data: {name: mnist5k, samples_per_client: 40, image_size: 12}
partition: {kind: iid, clients: 4}
models: {global: mlp}
method: fml
rounds: 4
steps: 4
batch_size: 8
seed: 3
"""


@contextmanager
def cluster() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A cluster's address and its process."""
    words = [sys.executable, str(HERE / "ray_head.py")]
    given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process: subprocess.Popen[str] = subprocess.Popen(words, text=True, **given)  # type: ignore[call-overload]
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process
    finally:
        if process.poll() is None:
            process.communicate(timeout=30)


def kill(process: subprocess.Popen[str]) -> None:
    """End a cluster as a power cut does."""
    for pid in descendants(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def mutua(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mutua", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def results(run: Path) -> dict[str, bytes]:
    """All that must be the same, byte by byte."""
    files = [run / "history.csv", run / "ledger.csv", *run.glob("global/*"), *run.glob("clients/*/*")]
    return {str(file.relative_to(run)): file.read_bytes() for file in files if file.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(RECIPE)
    return tmp_path


def cut(folder: Path) -> None:
    """A run whose cluster loses its head in mid-run: one line says what is wrong and how to go on."""
    with cluster() as (address, process):
        words = ["run", "cluster.yaml", "--out", "cut", "--engine", "ray", "--ray-address", address]
        command = [sys.executable, "-m", "mutua", *words]
        run = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        history = folder / "cut" / "history.csv"
        while run.poll() is None and (not history.exists() or history.read_text().count("\n") < 10):
            time.sleep(0.01)
        kill(process)
        _, told = run.communicate(timeout=60)
    last = told.strip().splitlines()[-1]
    assert run.returncode == 1
    gone = f"mutua: engine: ray at {address}: the head of the cluster is gone"
    # Killed while a driver is still connecting, the head is told as one that cannot be reached.
    assert last.startswith((gone, "mutua: engine: ray: cannot connect"))
    assert last.endswith("to go on: mutua run --resume cut")
    assert "Traceback" not in told


def test_a_run_whose_cluster_is_gone_can_go_on_without_it(folder: Path) -> None:
    cut(folder)
    assert mutua("run", "--resume", "cut", folder=folder).returncode == 0
    assert mutua("run", "cluster.yaml", "--out", "whole", folder=folder).returncode == 0
    assert results(folder / "cut") == results(folder / "whole")


@pytest.mark.long
def test_a_run_whose_cluster_is_gone_goes_on_in_another_one(folder: Path) -> None:
    cut(folder)
    with cluster() as (address, _):
        done = mutua("run", "--resume", "cut", "--engine", "ray", "--ray-address", address, folder=folder)
    assert done.returncode == 0, done.stderr
    assert mutua("run", "cluster.yaml", "--out", "whole", folder=folder).returncode == 0
    assert results(folder / "cut") == results(folder / "whole")


def test_a_node_that_goes_in_mid_round(tmp_path: Path) -> None:
    assert removed(tmp_path, 1) == ["same"]


@pytest.mark.long
def test_ten_nodes_that_go_in_mid_round(tmp_path: Path) -> None:
    assert removed(tmp_path, 10) == ["same"] * 10


def removed(folder: Path, times: int) -> list[str]:
    command = [sys.executable, str(HERE / "removed_node.py"), str(folder), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 120 * times, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_sweeps_on_a_cluster(folder: Path) -> None:
    """Whole runs are spread over it; one whose process is killed goes on; the bytes are those of this machine."""
    words = ["compare", "cluster.yaml", "--methods", "fml,fedavg", "--seeds", "0,1"]
    assert mutua(*words, "--out", "here", folder=folder).returncode == 0
    with cluster() as (address, process):
        there = [*words, "--out", "there", "--engine", "ray", "--ray-address", address]
        command = [sys.executable, "-m", "mutua", *there]
        sweep = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        killed = False
        while not killed and sweep.poll() is None:
            for pid in descendants(process.pid):
                name = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
                if name.startswith(b"ray::_do_run"):
                    os.kill(pid, signal.SIGKILL)
                    killed = True
                    break
            time.sleep(0.01)
        out, told = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, told
    assert killed and "it goes on" in told
    assert "fedavg" in out
    runs = sorted(path.parent.relative_to(folder / "here") for path in (folder / "here").rglob("run.json"))
    assert len(runs) == 4
    for name in runs:
        assert results(folder / "here" / name) == results(folder / "there" / name)


def test_a_sweep_that_is_stopped_goes_on(folder: Path) -> None:
    words = ["compare", "cluster.yaml", "--methods", "fml", "--seeds", "0", "--set", "rounds=300"]
    command = [sys.executable, "-m", "mutua", *words, "--out", "cut", "--engine", "ray", "--workers", "1"]
    sweep = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while sweep.poll() is None and not list((folder / "cut").rglob("history.csv")):
        time.sleep(0.05)
    sweep.send_signal(signal.SIGINT)
    _, told = sweep.communicate(timeout=60)
    assert sweep.returncode != 0
    assert "0 of 1 runs are finished; to go on: the same command with --out cut" in told.splitlines()[-1]
    begun = [path.read_text() for path in (folder / "cut").rglob("events.jsonl")]
    assert any('"stopped"' in text for text in begun), begun


def test_fractions_of_a_gpu(folder: Path) -> None:
    """Ray is told of a GPU that is not there; half of it per worker makes two workers."""
    code = (
        "import sys; from mutua.engines.ray_engine import RayEngine; from mutua.engines import ray_cluster as c;"
        "c.connect(sys.argv[1], None); e = RayEngine(gpus_per_worker=0.25); e.stores = dict.fromkeys('abcdefg');"
        "print(e._number()); e.workers = 3; print(e._number())"
    )
    with cluster() as (address, _):
        done = subprocess.run([sys.executable, "-c", code, address], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["4", "3"], done.stderr


@pytest.mark.parametrize(
    ("error", "way_out"),
    [
        (
            ModuleNotFoundError("No module named 'mine'"),
            "the package 'mine' is missing on a node; install",
        ),
        (
            RuntimeError("Version mismatch: The cluster was started with:\n  Ray: 2.40\n"),
            "install the same versions",
        ),
        (ray.exceptions.ObjectStoreFullError("full"), "object store is full: .* larger --object-store-memory"),
        (ray.exceptions.OutOfMemoryError("dead"), "a node had no memory left; use fewer --workers"),
        (ConnectionError("Could not find any running Ray instance"), "cannot connect .*ray start --head"),
        (
            Exception("The current node timed out during startup. This could happen because ..."),
            "Ray did not start in time: is this machine overloaded",
        ),
        (
            RuntimeError("No node info found matching node_ip_address"),
            "not a node of that cluster; run mutua on one",
        ),
    ],
)
def test_rays_failures_in_one_line_with_the_way_out(error: Exception, way_out: str) -> None:
    import re

    told = meaning(error)
    assert re.search(way_out, told) and "\n" not in told


def test_how_a_process_was_lost() -> None:
    assert how_it_died(ray.exceptions.OutOfMemoryError("x")).endswith("(use fewer workers)")
    assert how_it_died(ray.exceptions.NodeDiedError("The node died")).endswith("the node of its worker was lost")
    assert how_it_died(ray.exceptions.WorkerCrashedError()) == "its worker process ended"


def test_an_object_store_that_is_full(folder: Path) -> None:
    """Data of 200 MB, and a store of 80 MB whose overflow finds no place on disk."""
    code = """
import torch, ray, mutua
from mutua import Architecture, Client, Federation, Samples
from mutua.methods import FedAvg
ray.init(num_cpus=1, object_store_memory=80_000_000, include_dashboard=False, log_to_driver=False,
    _node_ip_address="127.0.0.1", _system_config={"local_fs_capacity_threshold": 0.0})
x, y = torch.zeros(2500, 1, 100, 200), torch.zeros(2500, dtype=torch.int64)
samples = Samples(x, y, ("a", "b"))
few = Samples(x[:4], y[:4], ("a", "b"))
net = Architecture.of(lambda channels, classes: torch.nn.Sequential(
    torch.nn.Flatten(), torch.nn.Linear(20000, classes)))
clients = (Client("a", samples, few, few, net),)
mutua.run(FedAvg(), Federation(clients, net, None), rounds=1, engine="ray", device="cpu")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert "object store is full: it holds all clients' data once per node" in done.stderr, done.stderr
