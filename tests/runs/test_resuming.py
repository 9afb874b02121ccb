"""Stopped, killed or starved at any moment, a run goes on to the same bytes."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from killing import PAPERS, Moments, begin, counting, go_on, kill_and_go_on, killed, left, recipe_of
from mutua import Federation, InputError, RunError
from mutua.engines.workers import Workers
from mutua.federation.store import Store
from mutua.methods import base
from mutua.rounds.history import Row
from mutua.runs.folder import RunFolder
from mutua.runs.listing import RunOverview
from mutua.runs.recording import Recorder, versions
from mutua.runs.resuming import ResumedRecorder
from mutua.support.folders import in_use
from mutua.support.growing_files import GrowingTable, TableEnd


def work_in(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mutua.engines.local.cores", lambda: processes)


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested does not depend on workers, except where a test has some; they would only cost time."""
    work_in(1, monkeypatch)


@pytest.mark.parametrize("processes", [1, 2])
def test_these_tests_work_in_as_many_processes_as_they_say(
    processes: int, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crews = []
    monkeypatch.setattr("mutua.engines.local.Workers", lambda *given: crews.append(Workers(*given)) or crews[-1])
    federation, *_ = whole("fml")
    crews.clear()
    work_in(processes, monkeypatch)
    begin(recipe_of("fml"), tmp_path / "run", federation)
    assert [crew.number for crew in crews] == [2] * (processes - 1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Federation, dict[str, Any], Moments]]:
    """`whole("fml")`: the federation, what an uninterrupted run of it leaves, and the moments it is made of."""
    known: dict[tuple[str, str], Any] = {}

    def make(method: str, stores: str = "auto") -> Any:
        if (method, stores) not in known:
            recipe = recipe_of(method, stores=stores)
            federation, place = recipe.federation(), tmp_path_factory.mktemp("whole")
            begin(recipe, place / "run", federation)
            with counting() as moments:  # after torch has loaded what it loads at first use
                begin(recipe, place / "counted", federation)
            known[method, stores] = federation, left(place / "run"), moments
        return known[method, stores]

    return make


# Killed


@pytest.mark.parametrize("method", PAPERS)
def test_killed_at_three_moments(method: str, whole: Any, tmp_path: Path) -> None:
    kill_and_go_on(method, 3, whole, tmp_path)


def test_killed_while_workers_are_at_work(whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole("fml")
    work_in(2, monkeypatch)
    kill_and_go_on("fml", 2, whole, tmp_path)


# Stores on disk


@pytest.mark.parametrize("method", base.method_names())
def test_every_method_with_stores_on_disk_leaves_what_it_leaves_with_stores_in_memory(
    method: str, whole: Any
) -> None:
    _, memory, _ = whole(method)
    _, disk, _ = whole(method, "disk")
    apart = {"recipe.yaml", "run.json", "state"}
    assert {name: disk[name] for name in disk.keys() - apart} == {
        name: memory[name] for name in memory.keys() - apart
    }
    assert disk["run.json"]["summary"] == memory["run.json"]["summary"]


@pytest.mark.parametrize("method", PAPERS)
def test_killed_with_stores_on_disk(method: str, whole: Any, tmp_path: Path) -> None:
    kill_and_go_on(method, 3, whole, tmp_path, stores="disk")


def test_killed_while_workers_write_stores_to_disk(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole("fmlu", "disk")
    work_in(2, monkeypatch)
    kill_and_go_on("fmlu", 3, whole, tmp_path, stores="disk")


def test_a_checkpoint_names_the_stores_own_files_and_older_ones_are_removed(whole: Any, tmp_path: Path) -> None:
    federation, expected, _ = whole("fmlu", "disk")
    place = tmp_path / "run"
    with pytest.raises(RunError, match="enough"):
        begin(recipe_of("fmlu", stores="disk"), place, federation, callbacks=[stop_after(2)])
    folder = RunFolder(place).checkpoints
    newest = folder.newest
    assert newest is not None and newest.stores == "disk"
    named = {f"{client}/{file.file}" for manifest in folder.kept.values() for client, file in manifest.files}
    there = {f"{path.parent.name}/{path.stem}" for path in place.glob("checkpoints/clients/*/*")}
    assert named <= there and len(there) <= 3 * 3  # of three clients the last two commits, and what the best needs
    # A file is spoilt: the run goes on from the checkpoint before, to the same bytes.
    client, file = next((c, f) for c, f in newest.clients.items() if f.round == 2)
    path = place / "checkpoints" / "clients" / client / f"{file.file}.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    notes = go_on(place, federation)
    assert any(f"clients/{client}/{file.file}.safetensors is not what it was" in note for note in notes)
    assert left(place) == expected


def test_stores_behind_a_url_go_on_too_and_leave_no_more_than_they_need(whole: Any, tmp_path: Path) -> None:
    federation, expected, _ = whole("fmlu", "disk")
    url, place = f"file://{tmp_path}/bucket", tmp_path / "run"
    with pytest.raises(RunError, match="enough"):
        begin(recipe_of("fmlu", stores=url), place, federation, callbacks=[stop_after(2)])
    newest = RunFolder(place).checkpoints.newest
    assert newest is not None and newest.stores is not None and newest.stores.startswith(url)
    assert not (place / "checkpoints" / "clients").exists()
    go_on(place, federation)
    apart = {"recipe.yaml", "run.json", "state"}
    found = left(place)
    assert {name: found[name] for name in found.keys() - apart} == {
        n: expected[n] for n in expected.keys() - apart
    }
    files = [path for path in (tmp_path / "bucket").rglob("*") if path.is_file()]
    manifests = RunFolder(place).checkpoints.kept.values()
    needed = {f"{client}/{file.file}" for manifest in manifests for client, file in manifest.files}
    assert needed <= {f"{path.parent.name}/{path.stem}" for path in files} and len(files) <= 3 * 3


# Stopped


@pytest.mark.parametrize(
    ("method", "cores", "stores"),
    [
        *((name, 1, stores) for name in base.method_names() for stores in ("auto", "disk")),
        *(("fml", 2, "auto"), ("mixture", 2, "auto")),  # on disk workers commit, and cannot be counted here
    ],
)
def test_every_method_stopped_within_a_round_goes_on_to_the_same_bytes(
    method: str, cores: int, stores: str, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, expected, _ = whole(method, stores)
    work_in(cores, monkeypatch)
    commit, commits = Store.commit, 0
    clients = len(expected["state"][2])
    # In the clients' start, in each round but with one client done, and in their finish.
    stops = {1, *(clients + 1 + 2 * k for k in range(3)), clients + 2 * 3 + 1} if clients > 1 else {1, 3}

    def count(*given: Any) -> None:
        nonlocal commits
        commits += 1
        if commits in stops:
            os.kill(os.getpid(), signal.SIGINT)  # in the middle of the client's step, which is finished first
        commit(*given)

    monkeypatch.setattr(Store, "commit", count)
    place = tmp_path / "run"
    said = f"^stopped by Ctrl-C; to go on: mutua run --resume {place}$"
    with pytest.raises(RunError, match=said):
        begin(recipe_of(method, stores=stores), place, federation)
    for _ in range(len(stops) - 1):
        with pytest.raises(RunError, match=said):
            go_on(place, federation)
    go_on(place, federation)
    assert left(place) == expected
    # No client did its work of a round twice: what was committed when the run stopped was saved.
    assert commits == len([e for e in RunFolder(place).events.read() if e["event"] == "trained"]) + 2 * clients


def test_a_second_signal_at_any_moment_of_a_tables_growth_leaves_a_true_mark(tmp_path: Path) -> None:
    rows = [
        Row(1, "c0", "predictor", "test", "accuracy", 0.5),
        Row(1, "c1", "predictor", "test", "accuracy", None),
    ]
    moment, stopped = 0, True
    while stopped:
        moment, stopped = moment + 1, False
        left = moment

        def second(*_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise KeyboardInterrupt

        table = GrowingTable(tmp_path / "history.csv", Row._fields, Row)
        table.begin()
        try:
            sys.setprofile(second)
            table.extend(rows)
            sys.setprofile(None)  # as it is after whatever is raised there
        except KeyboardInterrupt:
            stopped = True
        table.extend(rows)
        data = table.path.read_bytes()
        expected = TableEnd(bytes=len(data), rows=2, sha256=hashlib.sha256(data).hexdigest())
        assert table.end == expected and data.count(b"\n") == 3, moment
    assert moment > 10


@pytest.fixture
def stopped(tmp_path: Path, whole: Any) -> Path:
    """A run of FMLU, stopped after its second round of three, with its last two checkpoints and the best."""
    place = tmp_path / "stopped"
    with pytest.raises(RunError, match="enough"):
        begin(recipe_of("fmlu"), place, whole("fmlu")[0], callbacks=[stop_after(2)])
    assert sorted(RunFolder(place).checkpoints.kept)[-2:] == [1, 2]
    return place


def stop_after(round: int) -> Callable[[Any], None]:
    def stop(event: Any) -> None:
        if type(event).__name__ == "Reached" and event.run_state.round == round:
            raise RunError("enough")

    return stop


def test_a_replys_parts_stay_in_their_order(whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FMLU sends two parts. What a client had sent when the run stopped enters the ledger after it goes on."""
    federation, expected, _ = whole("fmlu")
    commit = Store.commit

    def stop(store: Store, round: int, *rest: Any) -> None:
        commit(store, round, *rest)
        if round == 2:
            monkeypatch.setattr(Store, "commit", commit)
            raise KeyboardInterrupt

    monkeypatch.setattr(Store, "commit", stop)
    with pytest.raises(RunError, match="stopped by Ctrl-C"):
        begin(recipe_of("fmlu"), tmp_path / "run", federation)
    newest = RunFolder(tmp_path / "run").checkpoints.newest
    assert newest is not None and newest.round == 1
    assert sorted(file.round for file in newest.clients.values())[-1] == 2  # one is ahead
    go_on(tmp_path / "run", federation)
    assert left(tmp_path / "run") == expected


def test_a_run_that_is_over_is_left_alone_and_one_that_has_not_begun_is_said(
    stopped: Path, whole: Any, tmp_path: Path
) -> None:
    go_on(stopped, whole("fmlu")[0])
    before = left(stopped)
    assert go_on(stopped) == [] and left(stopped) == before
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"--resume: .*empty has no recipe.yaml: no run has begun there"):
        ResumedRecorder(tmp_path / "empty")
    with pytest.raises(InputError, match=r"--resume: .*nowhere is not a folder"):
        ResumedRecorder(tmp_path / "nowhere")


def test_killed_while_results_are_written(stopped: Path, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rounds are done, but run.json, which comes last, is not there."""
    federation, expected, _ = whole("fmlu")
    monkeypatch.setattr(Recorder, "finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        go_on(stopped, federation)
    monkeypatch.undo()
    assert not RunFolder(stopped).finished
    with (stopped / "history.csv").open("a") as file:
        file.write("3,c0,predictor,te")  # no row comes any more that would write over it
    rounds = len([e for e in RunFolder(stopped).events.read() if e["event"] == "round"])
    go_on(stopped, federation)
    assert left(stopped) == expected
    assert (
        len([e for e in RunFolder(stopped).events.read() if e["event"] == "round"]) == rounds
    )  # none was done again


def test_other_data_is_refused_and_the_folder_stays(stopped: Path, whole: Any) -> None:
    other = recipe_of("fmlu", seed=1).federation()
    with pytest.raises(
        InputError, match=r"--resume: the training data of client c0 has changed; .*; and \d+ more; "
    ):
        go_on(stopped, other)
    go_on(stopped, whole("fmlu")[0])
    assert left(stopped) == whole("fmlu")[1]


def test_another_version_is_said(stopped: Path, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mutua.runs.resuming.versions", lambda: {**versions(), "torch": "99.0"})
    said = go_on(stopped, whole("fmlu")[0])
    assert said == [f"torch has changed from {versions()['torch']} to 99.0: the bytes may not be the same"]


# DamagedState


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


LAST = {
    "manifest": "000002.json",
    "server": "server/000002.safetensors",
    "client": "clients/{client}/000002.safetensors",
}


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink], ids=["cut", "flipped", "gone"])
@pytest.mark.parametrize("what", LAST)
def test_a_damaged_checkpoint_is_said_and_ignored(what: str, harm: Any, stopped: Path, whole: Any) -> None:
    held = RunFolder(stopped).checkpoints
    client = next(c for c, file in held.kept[2].clients.items() if file.round == 2)
    harm(held.path / LAST[what].format(client=client))
    said = go_on(stopped, whole("fmlu")[0])
    if (what, harm) == ("manifest", Path.unlink):
        assert said == []  # then there is none
    else:
        (line,) = said
        assert line.startswith("checkpoint ") and "damaged" in line and line.endswith("it is ignored")
        assert [e["text"] for e in RunFolder(stopped).events.read() if e["event"] == "note"] == said
    rounds = [e["round"] for e in RunFolder(stopped).events.read() if e["event"] == "resumed"]
    assert rounds == [1] and left(stopped) == whole("fmlu")[1]


@pytest.mark.parametrize("name", ["history.csv", "ledger.csv"])
def test_a_checkpoint_needs_the_rows_before_it(name: str, stopped: Path, whole: Any) -> None:
    """The second checkpoint's rows are cut short, the first one's are there."""
    mark = getattr(RunFolder(stopped).checkpoints.kept[2], name.partition(".")[0])
    os.truncate(stopped / name, mark.bytes - 3)
    said = go_on(stopped, whole("fmlu")[0])
    incomplete = f"{name}: its last line is incomplete; it is ignored"
    assert said == [incomplete, f"checkpoint of round 2 is damaged ({name} is shorter than it was); it is ignored"]
    assert left(stopped) == whole("fmlu")[1]


def test_with_no_checkpoint_left_it_begins_anew(stopped: Path, whole: Any) -> None:
    manifests = sorted((stopped / "checkpoints").glob("*.json"))
    for path in manifests:
        path.write_text("{")
    assert len(go_on(stopped, whole("fmlu")[0])) == len(manifests)
    assert left(stopped) == whole("fmlu")[1]
    assert RunFolder(stopped).events.read()[-1]["event"] == "finished"


@pytest.mark.parametrize("end", [b'{"event": "trai', b"\0\0\0\n", b"\xff\n"])
def test_an_incomplete_last_line_is_said_and_ignored(end: bytes, stopped: Path, whole: Any) -> None:
    events = len(RunFolder(stopped).events.read())
    for name, rest in (("history.csv", b"2,c0,predictor,te"), ("ledger.csv", b"3,c1"), ("events.jsonl", end)):
        with (stopped / name).open("ab") as file:
            file.write(rest)
    assert len(RunFolder(stopped).events.read()) == events
    said = go_on(stopped, whole("fmlu")[0])
    names = ("history.csv", "ledger.csv", "events.jsonl")
    assert said == [f"{name}: its last line is incomplete; it is ignored" for name in names]
    lines = (stopped / "events.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["event"] for line in lines[events : events + 2]] == ["resumed", "note"]
    assert left(stopped) == whole("fmlu")[1]


# One at a time


def test_two_runs_in_one_folder_are_refused_while_the_first_lives(stopped: Path, whole: Any) -> None:
    first = ResumedRecorder(stopped)
    said = rf"--resume: {stopped} is in use by another run \(process {os.getpid()}\)"
    with pytest.raises(InputError, match=said):
        ResumedRecorder(stopped)
    assert in_use(stopped)
    # A process that the run started does not hold the folder when the run is dead.
    (read, write), (ready, here) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(here, b"x")
        os.read(read, 1)
        os._exit(0)
    try:
        os.read(ready, 1)
        del first
        assert not in_use(stopped)
        go_on(stopped, whole("fmlu")[0])
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)


def test_who_only_looks_does_not_keep_a_run_from_its_folder(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look whether a folder is in use takes its lock for a moment."""
    looker = (stopped / "lock").open()
    fcntl.flock(looker, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: looker.close())
    assert ResumedRecorder(stopped) and looker.closed


def test_a_run_may_be_looked_at_while_it_removes_files(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest goes just before it is read, and an array file between two looks at it."""
    manifest, arrays = (stopped / "checkpoints" / name for name in ("000002.json", "server/000002.safetensors"))
    read, stat = Path.open, Path.stat

    def read_too_late(path: Path, *given: Any, **more: Any) -> Any:
        if path == manifest:
            path.unlink()
        return read(path, *given, **more)

    def look_once(path: Path, **more: Any) -> Any:
        found = stat(path, **more)
        if path == arrays:
            path.unlink()
        return found

    monkeypatch.setattr(Path, "open", read_too_late)
    seen = RunOverview.of(stopped)
    assert seen.checkpoints() and all(one["whole"] for one in seen.checkpoints())
    monkeypatch.setattr(Path, "stat", look_once)
    assert seen.bytes > 0 and not arrays.exists()


def test_a_killed_run_leaves_no_lock(stopped: Path, whole: Any) -> None:
    killed(10**9, lambda: setattr(sys.modules[__name__], "_held", ResumedRecorder(stopped)))
    assert (stopped / "lock").read_text() not in ("", str(os.getpid()))
    go_on(stopped, whole("fmlu")[0])
    assert left(stopped) == whole("fmlu")[1]


# No room, no right to write, no trust in the clock


@pytest.mark.parametrize("call", ["fsync", "replace", "open", "truncate"])
@pytest.mark.parametrize("after", [0, 3])
def test_a_disk_that_refuses_stops_the_run_in_one_line_and_the_last_checkpoint_is_whole(
    call: str, after: int, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, expected, _ = whole("fmlu")
    place, calls = tmp_path / "run", 0
    owner: Any = {"open": Path, "truncate": Path}.get(call, os)
    name = "open" if call == "truncate" else call
    real = getattr(owner, name)

    def refuse(*given: Any, **more: Any) -> Any:
        nonlocal calls
        writes = call not in ("open", "truncate") or ("wb" in given if call == "open" else "r+b" in given)
        if writes and (place / "checkpoints" / "000001.json").exists():
            calls += 1
            if calls > after:
                raise OSError(errno.ENOSPC, "No space left on device")
        return real(*given, **more)

    monkeypatch.setattr(owner, name, refuse)
    with pytest.raises(RunError, match=f"^cannot write to {place}: No space left on device; fix that; to go on: "):
        begin(recipe_of("fmlu"), place, federation)
    monkeypatch.undo()
    held = RunFolder(place).checkpoints
    assert not held.damaged and 1 in held.kept and held.load(held.kept[max(held.kept)])
    assert call != "fsync" or not list(place.rglob("*.aside"))  # the room is given back
    assert go_on(place, federation) == []
    assert left(place) == expected


def alone(work: Callable[[Callable[..., None]], None]) -> None:
    """Do it in a process with mounts of its own; skip where that is not allowed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        told = "?"
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(0x20000) and libc.unshare(0x20000 | 0x10000000):  # mounts; else with a user of its own
                told = "skip"
            else:

                def mount(kind: str, place: Path, flags: int, options: str) -> None:
                    texts = [text.encode() for text in ("tmpfs", str(place), kind, options)]
                    if libc.mount(texts[0], texts[1], texts[2], flags, texts[3]):
                        raise PermissionError(os.strerror(ctypes.get_errno()))

                libc.mount(b"none", b"/", None, 0x44000, None)  # what is mounted here is seen here only
                work(mount)
                told = ""
        except PermissionError:
            told = "skip"
        except BaseException:
            told = traceback.format_exc()
        finally:
            os.write(write, told.encode() or b" ")
            os._exit(0)
    told = os.read(read, 10**6).decode()
    os.waitpid(child, 0)
    if told == "skip":
        pytest.skip("no right to mount")
    assert told == " ", told


REMOUNT, READ_ONLY = 32, 1


def test_a_full_disk(whole: Any, tmp_path: Path) -> None:
    """A file system that is too small; then there is more room."""
    federation, expected, _ = whole("fmlu")

    def work(mount: Callable[..., None]) -> None:
        mount("tmpfs", tmp_path, 0, "size=700k")
        with pytest.raises(RunError, match=r"^cannot write to .*: No space left on device; fix that; to go on: "):
            begin(recipe_of("fmlu"), tmp_path / "run", federation)
        held = RunFolder(tmp_path / "run").checkpoints
        assert held.kept and not held.damaged and held.load(held.kept[max(held.kept)])
        with pytest.raises((RunError, InputError), match="No space left on device"):
            go_on(tmp_path / "run", federation)
        mount("tmpfs", tmp_path, REMOUNT, "size=9m")
        go_on(tmp_path / "run", federation)
        assert left(tmp_path / "run") == expected

    alone(work)


def test_a_folder_that_may_not_be_written(whole: Any, tmp_path: Path) -> None:
    federation, expected, _ = whole("fmlu")

    def work(mount: Callable[..., None]) -> None:
        mount("tmpfs", tmp_path, 0, "size=9m")
        run = tmp_path / "run"
        with pytest.raises(RunError, match="enough"):
            begin(recipe_of("fmlu"), run, federation, callbacks=[stop_after(1)])
        mount("tmpfs", tmp_path, REMOUNT | READ_ONLY, "")
        with pytest.raises(InputError, match=f"^--resume: cannot write to {run}: Read-only file system$"):
            go_on(run, federation)
        with pytest.raises(InputError, match=r"^--out: cannot write to .*: Read-only file system; "):
            Recorder.create("tiny", 0, tmp_path / "other")
        assert RunFolder(run).checkpoints.newest is not None  # looking is allowed
        mount("tmpfs", tmp_path, REMOUNT, "")
        go_on(run, federation)
        assert left(run) == expected

    alone(work)


def test_a_clock_that_goes_backwards_changes_nothing(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, expected, _ = whole("fmlu")
    now = datetime(2030, 1, 1, tzinfo=UTC)

    class Backwards:
        @staticmethod
        def now(zone: Any = None) -> datetime:
            nonlocal now
            now -= timedelta(hours=1)
            return now

    monkeypatch.setattr("mutua.support.growing_files.datetime", Backwards)
    monkeypatch.setattr("mutua.support.folders.datetime", Backwards)
    monkeypatch.setattr(time, "time", lambda: Backwards.now().timestamp())
    place = tmp_path / "run"
    with pytest.raises(RunError, match="enough"):
        begin(recipe_of("fmlu"), place, federation, callbacks=[stop_after(2)])
    for age, path in enumerate(sorted((place / "checkpoints").rglob("*"))):  # the newest looks oldest
        os.utime(path, (10**9 - age, 10**9 - age))
    go_on(place, federation)
    assert left(place) == expected
    times = [event["time"] for event in RunFolder(place).events.read()]
    assert times == sorted(times, reverse=True)  # told as the clock said; order is the order of lines
