"""Workers: every byte as with one, a tail that shares the cores, and deaths that are said."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mutua
from mutua import Federation, InputError, RunError
from mutua.data.samples import concatenate
from mutua.engines.client_worker import ClientWorker
from mutua.engines.scheduling import WorkItem
from mutua.engines.workers import Workers
from mutua.errors import Fault, MachineFault
from mutua.learning import evaluation
from mutua.methods import FML, FMLU, FedAvg, FedH2L, FedMD, FineTuned, Independent, Method, MixtureOfExperts
from mutua.models import convolution
from mutua.support.profiling import Span
from mutua.support.shared_memory import Parcel
from watching_runs import keys

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
Federate = Callable[..., Federation]


@pytest.mark.parametrize(
    "method",
    [FML(), FMLU(), FedAvg(), FineTuned(), MixtureOfExperts(), Independent(patience=2)],
    ids=lambda m: m.name,
)
def test_any_number_of_workers_gives_the_same_bytes(nets: Any, federate: Federate, method: Method) -> None:
    models = [nets.dropping, nets.normed, nets.wide, nets.plain, nets.dropping]
    federation = federate([9, 12, 7, 5, 11], models=models, global_model=nets.normed, common=30)
    settings = {"rounds": 3, "batch_size": 4, "device": "cpu", "client_fraction": 0.8, "seed": 3}
    one, two, three = (keys(mutua.run(method, federation, workers=n, **settings)) for n in (1, 2, 3))
    assert one == two == three
    assert one["history"]


@pytest.mark.parametrize("method", [FedH2L(), FedMD()], ids=lambda m: m.name)
def test_peers_and_scores_too(method: Method) -> None:
    recipe = mutua.Recipe.model_validate(
        {
            "data": {"name": "mnist5k", "samples_per_client": 60, "image_size": 12},
            "partition": {"kind": "rotated", "angles": [0, 20, 40]},
            "public": {"share": 0.1},
            "models": {"global": "mlp"},
            "method": method.name,
        }
    )
    federation = recipe.federation()
    settings = {"rounds": 2, "batch_size": 16, "device": "cpu", "evaluate_every": 2}
    one, two = (keys(mutua.run(method, federation, workers=n, **settings)) for n in (1, 2))
    assert one == two


def test_wide_convolutions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose weights' gradients are sums of products, here one an image."""
    monkeypatch.setattr(convolution, "PATCHES", 1)
    recipe = mutua.Recipe.model_validate(
        {
            "data": {"name": "mnist5k", "samples_per_client": 40, "image_size": 16},
            "partition": {"kind": "iid", "clients": 3},
            "models": {"global": {"name": "cnn2", "width": 0.5}},
            "method": "fml",
        }
    )
    federation = recipe.federation()
    settings = {"rounds": 2, "batch_size": 16, "device": "cpu", "evaluate_every": 2}
    one, two = (keys(mutua.run(FML(), federation, workers=n, **settings)) for n in (1, 2))
    assert one == two


def test_the_common_test_set_is_shared_out_by_batches(
    nets: Any, federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "BATCH", 7)
    federation = federate([9, 12, 7], common=30)
    one, two = (keys(mutua.run(FML(), federation, workers=n, rounds=1, device="cpu")) for n in (1, 2))
    assert one == two
    monkeypatch.setattr(evaluation, "BATCH", 500)
    whole = mutua.run(FML(), federation, workers=2, rounds=1, device="cpu")
    accuracy = {"client": "global", "metric": "accuracy"}
    assert whole.history.select(**accuracy) == [
        row for row in one["history"] if row in whole.history.select(**accuracy)
    ]


@pytest.mark.parametrize("method", [FML(), FedAvg(), Independent()], ids=lambda m: m.name)
def test_a_common_test_set_that_is_everybodys_is_scored_once(
    federate: Federate, monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    """With the clients' own: the same numbers as in a second pass through the global."""
    apart = federate([9, 12, 7], common=0)
    federation = replace(apart, test=concatenate([client.test for client in apart.clients]))
    settings = {"rounds": 2, "batch_size": 4, "device": "cpu"}
    once = mutua.run(method, federation, workers=2, **settings)
    scored: list[object] = []
    monkeypatch.setattr(ClientWorker, "_score", lambda *args: scored.append(args))
    assert keys(mutua.run(method, federation, workers=1, **settings)) == keys(once)
    assert not scored
    monkeypatch.undo()
    monkeypatch.setattr("mutua.engines.simulation.is_union", lambda *_: False)
    twice = mutua.run(method, federation, workers=1, **settings)
    for row, other in zip(once.history.rows, twice.history.rows, strict=True):
        assert row[:-1] == other[:-1]
        assert row.value == pytest.approx(other.value, rel=1e-5)
    if method.needs_global:
        assert once.history.select(client="global", metric="accuracy")


def test_a_result_does_not_hold_on_to_shared_memory(federate: Federate) -> None:
    federation = federate()
    result = mutua.run(FML(), federation, workers=2, rounds=1, device="cpu")
    for client in result.clients:
        for group in client.state.values():
            for array in group.values():
                array.add_(1)  # its own memory: may be written
    assert result.clients[0].predictor(federation.clients[0].test.x).shape[1] == 3


# The pool by itself


class Done:
    """Collects what is done."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.spans: list[Span] = []

    def __call__(self, item: WorkItem, found: Any, span: Span) -> None:
        self.found[item.client] = found
        self.spans.append(span)


def double(item: WorkItem) -> Any:
    return 2 * item.given[0]


def items(number: int) -> list[WorkItem]:
    return [WorkItem("double", str(i), (torch.full((1000,), float(i)),)) for i in range(number)]


def test_results_come_to_their_own_tasks_again_and_again() -> None:
    workers = Workers(double, 2, 10)
    assert len(workers.processes) == 3
    for _ in range(3):
        done = Done()
        workers.do(items(10), done)
        assert {k: float(v[0]) for k, v in done.found.items()} == {str(i): 2.0 * i for i in range(10)}
        assert {span.process for span in done.spans} <= {1, 2, 3}
    workers.close()
    assert all(process.exitcode is not None for process in workers.processes)


def meeting(item: WorkItem) -> int:
    """Wait until as many are in as the task says; how many came."""
    folder, wanted = item.given
    (folder / item.client).touch()
    deadline = time.monotonic() + 20
    while len(list(folder.iterdir())) < wanted:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return len(list(folder.iterdir()))


def test_the_last_three_of_five_on_two_cores_run_at_once(tmp_path: Path) -> None:
    """The third to fifth task only end when all three have begun: one after the other they never would."""
    workers, done = Workers(meeting, 2, 5), Done()
    (tmp_path / "early").mkdir()
    (tmp_path / "late").mkdir()
    early = [WorkItem("meet", f"e{i}", (tmp_path / "early", 2)) for i in range(2)]
    late = [WorkItem("meet", f"l{i}", (tmp_path / "late", 3)) for i in range(3)]
    workers.do([*early, *late], done)
    assert sorted(done.found) == ["e0", "e1", "l0", "l1", "l2"]
    workers.close()


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_each_core_has_one_worker_where_all_cores_are_at_work(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a task too few, or a worker too many, all may be anywhere; so may those that have nothing to do."""
    cores, settle, settled = os.sched_getaffinity(0), os.sched_setaffinity, list[set[int]]()

    def noted(pid: int, at: set[int]) -> None:
        settled.append(at)
        settle(pid, at)

    monkeypatch.setattr(os, "sched_setaffinity", noted)
    number, at_once = len(cores) + max(more, 0), len(cores) + more
    if not at_once:
        pytest.skip("a single core")
    together = multiprocessing.get_context("fork").Barrier(at_once)

    def allowed(item: WorkItem) -> set[int]:
        together.wait(20)
        found = os.sched_getaffinity(0)
        together.wait(20)  # whoever is left alone may be anywhere
        return found

    workers, done = Workers(allowed, number, at_once), Done()
    for _ in range(3):
        workers.do(items(at_once), done)
        found = sorted(map(sorted, done.found.values()))
        assert found == (sorted([core] for core in cores) if more == 0 else [sorted(cores)] * at_once)
        assert all(os.sched_getaffinity(process.pid or 0) == cores for process in workers.processes)
    assert bool(settled) == (more == 0)
    workers.close()


def test_who_takes_a_dead_workers_place_takes_its_core() -> None:
    cores = os.sched_getaffinity(0)

    def settled(item: WorkItem) -> set[int]:
        deadline = time.monotonic() + 20
        while len(os.sched_getaffinity(0)) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return os.sched_getaffinity(0)

    together = multiprocessing.get_context("fork").Barrier(len(cores))
    workers, done = Workers(lambda item: (settled(item), together.wait(20))[0], len(cores), len(cores)), Done()
    for process in workers.processes:
        process.kill()
        process.join()
    workers.do(items(len(cores)), done)
    assert sorted(map(sorted, done.found.values())) == sorted([core] for core in cores)
    workers.close()


def test_a_paused_worker_dies_with_the_process_that_forked_it() -> None:
    code = (
        "import os, signal\n"
        "from mutua.engines.workers import Workers\n"
        "workers = Workers(print, 2, 3)\n"
        "for p in workers.processes: os.kill(p.pid, signal.SIGSTOP)\n"
        "print(*[p.pid for p in workers.processes], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    gone([int(pid) for pid in done.stdout.split()])


def test_no_more_than_the_number_run_at_once_before_the_tail(tmp_path: Path) -> None:
    workers, done = Workers(lambda item: len(list(tmp_path.iterdir())), 2, 50), Done()
    workers.do([WorkItem("look", str(i), ()) for i in range(50)], done)
    by_start = sorted(done.spans, key=lambda span: span.began)[:40]
    for span in by_start:
        assert sum(other.began < span.began < other.ended for other in by_start) <= 2
    workers.close()


def broken(item: WorkItem) -> Any:
    if item.client == "2":
        raise RunError("client 2: its data is bad")
    if item.client == "3":
        os.kill(os.getpid(), signal.SIGKILL)
    if item.client == "4":

        class Odd(Exception):
            def __init__(self, one: int, two: int) -> None:
                super().__init__("odd")

        raise Odd(1, 2)
    if item.client == "5":
        return 1 // 0
    return item.client


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        ("2", RunError, "client 2: its data is bad"),
        ("4", RunError, "Odd: odd"),
        ("5", ZeroDivisionError, "division"),
    ],
)
def test_a_failing_task_is_raised_here_and_what_had_begun_is_done(bad: str, error: Any, says: str) -> None:
    workers, done = Workers(broken, 2, 3), Done()
    with pytest.raises(error, match=says) as raised:
        workers.do([WorkItem("go", "1", ()), WorkItem("go", bad, ())], done)
    assert done.found == {"1": "1"}
    if bad == "5":
        assert "in broken" in "".join(raised.value.__notes__)  # where in the worker it was
    workers.close()


def test_a_worker_that_dies_again_and_again_is_a_fault_of_its_task_and_is_replaced() -> None:
    workers = Workers(broken, 2, 3)
    why = "its worker process ended by signal 9 (was memory short? use fewer workers)"
    for _ in range(2):
        done = Done()
        workers.do([WorkItem("go", "1", ()), WorkItem("go", "3", ()), WorkItem("go", "6", ())], done)
        fault = done.found.pop("3")
        assert done.found == {"1": "1", "6": "6"}
        assert isinstance(fault, MachineFault)
        assert str(fault) == f"client 3, go: {why}, 3 times: this machine's failure, not the client's own"
        assert workers.mishaps == [("3", why)] * 2
        workers.mishaps.clear()
    os.kill(workers.processes[0].pid or 0, signal.SIGKILL)  # while it has nothing to do: nobody's fault
    workers.processes[0].join()
    done = Done()
    workers.do([WorkItem("go", str(i), ()) for i in (1, 6, 7)], done)
    assert done.found == {"1": "1", "6": "6", "7": "7"}
    pids = [process.pid for process in workers.processes]
    workers.close()
    assert len(pids) == 3 and not any(_alive(pid or 0) for pid in pids)


def once(item: WorkItem) -> Any:
    """Dies, or runs out of memory, the first time; then says who was at work beside it."""
    mark = Path(item.given[0]) / item.client
    (Path(item.given[0]) / "at work" / item.client).touch()
    beside = sorted(path.name for path in (Path(item.given[0]) / "at work").iterdir())
    if not mark.exists():
        mark.touch()
        if item.client in ("2", "4"):
            (Path(item.given[0]) / "at work" / item.client).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if item.client == "3":
            (Path(item.given[0]) / "at work" / item.client).unlink()
            raise MachineFault("client 3", "there was no memory left")
        beside = []
        time.sleep(0.05)
    (Path(item.given[0]) / "at work" / item.client).unlink()
    return beside


def test_what_the_machine_failed_in_is_done_again_alone(tmp_path: Path) -> None:
    (tmp_path / "at work").mkdir()
    workers, done = Workers(once, 2, 3), Done()
    workers.do([WorkItem("go", str(i), (str(tmp_path),)) for i in range(6)], done)
    workers.close()
    assert done.found == {"0": [], "1": [], "2": ["2"], "3": ["3"], "4": ["4"], "5": []}
    assert sorted(client for client, _ in workers.mishaps) == ["2", "3", "4"]


def test_a_process_that_the_system_refuses_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, refused = os.fork, []

    def seldom() -> int:
        if len(refused) < 3:
            refused.append(1)
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        refused.clear()
        return fork()

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(os, "fork", seldom)
    workers, done = Workers(broken, 2, 3), Done()
    workers.do([WorkItem("go", "1", ()), WorkItem("go", "3", ()), WorkItem("go", "6", ())], done)
    workers.close()
    assert {client for client, found in done.found.items() if isinstance(found, Fault)} == {"3"}

    def never() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", never)
    with pytest.raises(RunError, match=r"^workers: Resource temporarily unavailable; use fewer, with --workers$"):
        Workers(broken, 2, 3)


def hang(item: WorkItem) -> Any:
    while item.client == "hangs":
        signal.pause()
    return 2 * item.given[0]


@pytest.mark.parametrize("number", [1, 2])
def test_what_takes_longer_than_its_deadline_is_ended_and_the_rest_is_done(number: int) -> None:
    workers, done = Workers(hang, number, 5), Done()
    some = [WorkItem("go", str(i), (torch.full((1000,), float(i)),), deadline=60) for i in range(4)]
    workers.do([WorkItem("go", "hangs", (), deadline=0.3), *some], done)
    fault = done.found.pop("hangs")
    assert isinstance(fault, Fault) and fault.reason == "it took longer than the deadline of 0.3 s"
    assert {k: float(v[0]) for k, v in done.found.items()} == {str(i): 2.0 * i for i in range(4)}
    again = Done()
    workers.do(items(5), again)
    assert {k: float(v[0]) for k, v in again.found.items()} == {str(i): 2.0 * i for i in range(5)}
    workers.close()


def written(item: WorkItem) -> Any:
    """The task's own array again, unless the worker is to die."""
    if item.given[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    return item.given[0] + 0


def test_what_dead_workers_gave_stays_and_their_memory_is_used_again() -> None:
    """Results that are held are never written over; those that are dropped make room for others, deaths or not."""
    workers = Workers(written, 1, 1)
    workers.do([WorkItem("write", str(k), (torch.zeros(50_000) + k, False)) for k in range(3)], Done())
    held: dict[int, torch.Tensor] = {}
    for i in range(60):
        done = Done()
        workers.do([WorkItem("write", "a", (torch.full((50_000,), float(i)), i % 3 == 2))], done)
        if i % 3 != 2:
            held[i] = done.found["a"]
        del done
        held.pop(i - 7, None)
        assert all(bool((array == float(k)).all()) for k, array in held.items())
    places = {workers.arena.place(array) for array in held.values()}
    assert len(places) == len(held)
    assert len(workers.arena._known[1]) <= 8  # as many as were ever held at once, and one
    workers.close()


def test_an_answer_outlives_a_worker_that_dies_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next task is sent before the answer is unpacked; who takes the dead worker's place writes elsewhere."""
    workers, done, send = Workers(written, 1, 3), Done(), Workers._send

    def dies_first(self: Workers, worker: int, parcel: Parcel) -> None:
        self.processes[worker].kill()
        self.processes[worker].join()
        send(self, worker, parcel)

    monkeypatch.setattr(Workers, "_send", dies_first)
    workers.do([WorkItem("write", str(k), (torch.full((50_000,), float(k)), False)) for k in range(3)], done)
    assert all(bool((array == float(k)).all()) for k, array in done.found.items()) and len(done.found) == 3
    workers.close()


def test_workers_die_with_the_process_that_forked_them() -> None:
    """Even if that is killed, they see their line closed and end."""
    code = (
        "import os, signal, sys, torch\n"
        "from mutua.engines.workers import Workers\n"
        "workers = Workers(print, 2, 3)\n"
        "print(*[p.pid for p in workers.processes], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    gone([int(pid) for pid in done.stdout.split()])


def gone(pids: list[int]) -> None:
    """Wait until these processes have ended."""
    assert len(pids) == 3
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_a_signal_to_the_whole_group_ends_no_worker(tmp_path: Path) -> None:
    """As `timeout` and batch systems send it: what has begun is finished, then the forking process stops."""
    code = (
        "import os, signal, time\n"
        "from mutua.engines.scheduling import WorkItem\n"
        "from mutua.engines.workers import Workers\n"
        "from mutua.support.signals import deferred, handled\n"
        "def slow(item):\n"
        "    if item.client == '0': os.killpg(0, signal.SIGTERM)\n"
        "    time.sleep(0.3)\n"
        "done = []\n"
        "workers = Workers(slow, 2, 3)\n"
        "try:\n"
        "    with handled(), deferred():\n"
        "        workers.do([WorkItem('x', i, ()) for i in '01'], lambda item, *_: done.append(item.client))\n"
        "except KeyboardInterrupt as asked:\n"
        "    print(asked, sorted(done))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, start_new_session=True)
    assert (done.stdout, done.returncode) == ("SIGTERM ['0', '1']\n", 0)
    assert done.stderr == "SIGTERM: finishing what has begun, then saving; once more does not wait\n"


def test_workers_that_nobody_closed_do_not_keep_the_program_alive() -> None:
    code = (
        "import os, signal\n"
        "from mutua.engines.workers import Workers\n"
        "workers = Workers(print, 2, 3)\n"
        "for p in workers.processes: os.kill(p.pid, signal.SIGSTOP)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_cause_of_an_error_comes_along(federate: Federate) -> None:
    class Odd(FML):
        def objective(self, models: Any, batch: Any, hp: Any) -> Any:
            raise ValueError("in my own method")

    with pytest.raises(RunError, match="in my own method") as raised:
        mutua.run(Odd(), federate(), workers=2, rounds=1, device="cpu")
    assert "in my own method" in str(raised.value)


def test_more_workers_than_there_can_be_are_one_line(federate: Federate) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 6, hard))
    try:
        with pytest.raises(RunError, match=r"^workers: Too many open files; use fewer, with --workers$"):
            mutua.run(FML(), federate([5] * 10), workers=10, device="cpu")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_number_of_workers_is_checked(federate: Federate) -> None:
    with pytest.raises(InputError, match="workers: 0; give a whole number, at least 1"):
        mutua.run(FML(), federate(), workers=0)
