"""The page's server: what it answers to whom, over its own protocol, without a browser."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mutua import InputError
from mutua.watch import pages as pages_module
from mutua.watch.catalogue import Catalogue, state_of
from mutua.watch.comparing import CompareView, band_over
from mutua.watch.guard import Gatekeeper, is_loopback
from mutua.watch.happened import Happened
from mutua.watch.pages import Pages, catalogue_of, page_files
from mutua.watch.stopping import can_stop, stop

STATIC = Path(pages_module.__file__).parent / "static"


class Answer:
    def __init__(self) -> None:
        self.status, self.headers, self.body = 0, dict[str, str](), b""

    def events(self) -> dict[str, Any]:
        """The newest of each part of a stream."""
        found = re.findall(rb"event: (\w+)\ndata: (.*)\n\n", self.body)
        return {name.decode(): json.loads(data) for name, data in found}


def ask(app: Any, path: str, method: str = "GET", body: bytes = b"", until: str = "", **headers: str) -> Answer:
    """One request; of a stream all until this part has come."""
    answer = Answer()
    at, _, query = path.partition("?")
    named = {"host": "127.0.0.1:8765", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http",
        "method": method,
        "path": at,
        "raw_path": at.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        "scheme": "http",
        "http_version": "1.1",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8765),
    }
    gone = asyncio.Event()
    first = True

    async def receive() -> dict[str, Any]:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message.get("body", b"")
            if until and b"event: %s\n" % until.encode() in answer.body:
                gone.set()

    async def whole() -> None:
        await asyncio.wait_for(app(scope, receive, send), 20)

    asyncio.run(whole())
    return answer


@pytest.fixture
def place(finished: Callable[..., tuple[Path, Any]], tmp_path: Path) -> Path:
    shutil.copytree(finished("fml", rounds=2)[0], tmp_path / "runs" / "one")
    return tmp_path / "runs"


@pytest.fixture
def app(place: Path) -> Any:
    return Gatekeeper(Pages(catalogue_of(place)).app(), "127.0.0.1", 8765)


def test_the_page_and_its_files(app: Any) -> None:
    page = ask(app, "/")
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self'" in policy
    assert page.headers["x-content-type-options"] == "nosniff" and page.headers["x-frame-options"] == "DENY"
    asked = re.findall(r'(?:src|href)="(/static/[^"]+)"', page.body.decode())
    assert len(asked) == 3 and all(ask(app, path).status == 200 for path in asked)
    assert re.search(r"<script(?! type=\"module\" src=)|<style| on\w+=| style=", page.body.decode()) is None
    for path in ("/static/../pages.py", "/static/%2e%2e/pages.py", "/static/nothing.js", "/etc/passwd", "/api"):
        assert ask(app, path).status == 404, path
    assert ask(app, "/", "DELETE").status == 405


def test_no_file_of_the_page_makes_html_of_text_or_asks_another_server() -> None:
    for name, (_, data) in page_files().items():
        text = data.decode()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text
        ), name
        assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}, name
    assert sorted(page_files()) == sorted(path.name for path in STATIC.iterdir())


def test_the_list_and_a_run_are_streams(app: Any) -> None:
    told = ask(app, "/api/list", until="list").events()["list"]
    [row] = told["runs"]
    assert (row["id"], row["state"], row["method"], row["round"], row["rounds"]) == (
        "one",
        "finished",
        "fml",
        2,
        2,
    )
    parts = ask(app, "/api/run?id=one&metric=loss&client=c0&round=1", until="round").events()
    assert parts["head"]["state"] == "finished" and parts["curves"]["metric"]["key"] == "loss"
    assert parts["round"]["round"] == 1 and set(parts) == {
        "head",
        "curves",
        "lines",
        "terms",
        "clients",
        "faults",
        "round",
    }
    for path in (
        "/api/run?id=none",
        "/api/run",
        "/api/run?id=../runs/one",
        "/api/study?id=one",
        "/api/compare?id=none",
    ):
        assert ask(app, path).status == 404, path


def test_only_its_own_name_and_its_own_page_are_answered(app: Any) -> None:
    for host in ("127.0.0.1:8765", "localhost:8765", "[::1]:8765", "LOCALHOST:8765"):
        assert ask(app, "/", host=host).status == 200, host
    for host in (
        "evil.example:8765",
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:80",
        "127.0.0.1.evil.example:8765",
        "",
    ):
        assert ask(app, "/", host=host).status == 421, host
    own = {"origin": "http://127.0.0.1:8765"}
    refused = [{}, {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:9999"}]
    refused += [{"origin": "https://127.0.0.1:8765"}, {**own, "sec-fetch-site": "cross-site"}]
    for headers in refused:
        assert ask(app, "/api/stop", "POST", b'{"id": "one"}', **headers).status == 403, headers
    assert ask(app, "/api/stop", "POST", b'{"id": "one"}', **own).status == 409  # it is over
    assert ask(app, "/api/stop", **own).status == 405
    for body in (b"", b"[]", b'{"id": 1}', b'{"id": "none"}', b"\xff"):
        assert ask(app, "/api/stop", "POST", body, **own).status == 404, body
    assert ask(app, "/api/stop", "POST", b"x" * 5000, **own).status == 413


def test_elsewhere_only_with_the_token(place: Path) -> None:
    app = Gatekeeper(Pages(catalogue_of(place)).app(), "0.0.0.0", 8765, "right")
    assert ask(app, "/", host="10.0.0.7:8765").status == 401
    assert ask(app, "/?token=wrong", host="10.0.0.7:8765").status == 401
    assert ask(app, "/api/list?token=right", host="10.0.0.7:8765").status == 401  # only the page takes it
    assert ask(app, "/?token=right", host="evil.example:8765").status == 421
    answer = ask(app, "/?token=right", host="10.0.0.7:8765")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    for given, status in ((cookie.partition(";")[0], 200), ("mutua-watch-8765=wrong", 401), ("=;;\x00", 401)):
        assert ask(app, "/", host="10.0.0.7:8765", cookie=given).status == status, given
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("10.0.0.7") and not is_loopback("evil.example")


# Which runs there are


def test_runs_and_studies_are_found_and_nothing_behind_links(place: Path, tmp_path: Path) -> None:
    (place / "study").mkdir()
    (place / "study" / "results.csv").write_text("seed,client,model,split,metric,value\n")
    shutil.copytree(place / "one", place / "study" / "fml-0")
    (tmp_path / "outside").mkdir()
    shutil.copytree(place / "one", tmp_path / "outside" / "secret")
    (place / "linked").symlink_to(tmp_path / "outside" / "secret")
    (place / os.fsdecode(b"not-text-\xff")).mkdir()
    (place / "a" / "b" / "c" / "d" / "e").mkdir(parents=True)
    shutil.copytree(place / "one", place / "a" / "b" / "c" / "deep")
    shutil.copytree(place / "one", place / "a" / "b" / "c" / "d" / "e" / "too-deep")
    found = catalogue_of(place)
    assert sorted(found.runs) == ["a/b/c/deep", "one", "study/fml-0"]
    assert list(found.studies) == ["study"] and found.runs["study/fml-0"].study == "study" and found.left_out == 1
    assert found.runs["one"].resume == f"mutua run --resume {place}/one"
    assert list(catalogue_of(place / "one").runs) == ["one"]  # one run's own folder
    alone = catalogue_of(place / "study")
    assert list(alone.runs) == ["study/fml-0"] and list(alone.studies) == ["study"]
    assert alone.runs["study/fml-0"].resume == f"mutua run --resume {place}/study/fml-0"
    with pytest.raises(InputError, match=r"^RUNS: .*nothing is not a folder; give one that holds runs"):
        Catalogue(tmp_path / "nothing")


def test_two_hundred_runs_are_looked_at_again_only_when_they_change(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = (place / "one" / "events.jsonl").read_bytes()
    for n in range(199):
        (place / f"run-{n}").mkdir()
        (place / f"run-{n}" / "events.jsonl").write_bytes(events)
    found = catalogue_of(place)
    assert len(found.rows()) == 200
    looked = []
    real = pages_module.Catalogue._told
    monkeypatch.setattr(Catalogue, "_told", lambda *given: looked.append(given[1].id) or real(*given))
    found.look()
    assert len(found.rows()) == 200 and looked == []
    with (place / "run-7" / "events.jsonl").open("a") as file:
        file.write('{"event": "note", "time": "x", "text": "y"}\n')
    found.rows()
    assert looked == ["run-7"]


def test_the_list_knows_how_far_a_run_with_many_clients_is(tmp_path: Path) -> None:
    """Between two ends of rounds there is more than the end of the file that is looked at first."""
    ids = [f"client-{n}" for n in range(600)]
    time = "2026-01-01T00:00:{:02}.000+00:00"
    lines = [{"event": "begun", "time": time.format(0), "method": "fml", "rounds": 20, "clients": ids}]
    for n in range(1, 5):
        trained = {"event": "trained", "time": time.format(9 * n), "round": n}
        lines += [{"event": "round", "time": time.format(9 * n), "round": n, "clients": ids}]
        lines += [{**trained, "client": client, "seconds": 1.5, "bytes": 10} for client in ids]
        if n < 4:
            ended = {"event": "ended", "time": time.format(9 * n), "round": n}
            lines += [{**ended, "accuracy": {"global": None, "clients": n / 10}}]
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    [row] = catalogue_of(tmp_path).rows()
    assert (row["round"], row["rounds"], row["clients"], row["score"]["clients"]) == (4, 20, 600, 0.3)
    assert Happened().seconds_left() is None and row["left"] is None  # nobody works there


# Comparing


def test_bands_are_over_seeds_in_the_rounds_that_all_have() -> None:
    found = band_over([{0: 0.1, 1: 0.2, 2: 0.9}, {0: 0.3, 1: 0.4}, {}])
    assert found == {"rounds": [0, 1], "mean": [0.2, 0.3], "sd": [0.14142, 0.14142], "seeds": 2}
    assert band_over([{3: 1.0}])["sd"] == [None] and band_over([])["rounds"] == []


def test_a_study_has_its_verdicts_and_a_band_for_every_method(compared: Path) -> None:
    catalogue = catalogue_of(compared)
    [study] = catalogue.studies.values()
    view = CompareView(catalogue.root, catalogue.of_study(study.id), study)
    while view.advance(1.0):
        pass
    parts = view.parts()
    told = json.loads((compared / "comparison.json").read_text())
    groups = {group["label"]: group for group in parts["compare"]["groups"]}
    assert set(groups) == set(told["summary"])
    for label, row in told["summary"].items():
        newest = groups[label]["clients"]["mean"][-1]
        assert newest == pytest.approx(row["accuracy"]["predictor"]["mean"], rel=1e-4)
        assert groups[label]["clients"]["sd"][-1] == pytest.approx(row["accuracy"]["predictor"]["std"], rel=1e-3)
    assert any("differences in the same seeds" in table["title"] for table in parts["tables"])
    assert {row[-1] for row in parts["tables"][0]["rows"]} <= {"better", "worse", "equal", "cannot tell"}


# Stopping


SLEEPER = """
import fcntl, os, sys, time
file = open(sys.argv[1], "a+")
fcntl.flock(file, fcntl.LOCK_EX)
file.truncate(0); file.write(str(os.getpid())); file.flush()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of a run's folder, as a run does."""
    words = [sys.executable, "-S", "-c", SLEEPER, str(place / "one" / "lock")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def test_the_process_that_holds_the_lock_is_stopped(place: Path, holder: subprocess.Popen[str]) -> None:
    assert can_stop(place, ("one",))
    (place / "one" / "run.json").unlink()
    assert state_of(place, ("one",)) == "running"
    app = Gatekeeper(Pages(catalogue_of(place)).app(), "127.0.0.1", 8765)
    answer = ask(app, "/api/stop", "POST", b'{"id": "one"}', origin="http://127.0.0.1:8765")
    assert answer.status == 200
    assert holder.wait(10) == -signal.SIGTERM
    assert state_of(place, ("one",)) == "stopped" and not can_stop(place, ("one",))


READER = "import sys, time; file = open(sys.argv[1]); print('ready', flush=True); time.sleep(60)"


def test_no_process_is_stopped_that_a_lock_file_only_names(place: Path, holder: subprocess.Popen[str]) -> None:
    """The number in the file is of a process that only reads it, of ours, of the first one, or is no number."""
    lock = place / "one" / "lock"
    words = [sys.executable, "-S", "-c", READER, str(lock)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as innocent:
        try:
            assert innocent.stdout is not None and innocent.stdout.readline() == "ready\n"
            for number in (innocent.pid, os.getpid(), 1, 0, -1, 2**40, "x"):
                lock.write_text(str(number))
                assert not can_stop(place, ("one",)), number
                with pytest.raises(InputError, match="no process of this machine is at work"):
                    stop(place, ("one",))
            other = place / "another-lock"  # one that holds the lock of another file
            busy = [sys.executable, "-S", "-c", SLEEPER, str(other)]
            with subprocess.Popen(busy, stdout=subprocess.PIPE, text=True) as elsewhere:
                assert elsewhere.stdout is not None and elsewhere.stdout.readline() == "ready\n"
                lock.write_text(str(elsewhere.pid))
                assert not can_stop(place, ("one",))
                elsewhere.kill()
            lock.write_text(str(holder.pid))
            assert can_stop(place, ("one",))
            assert innocent.poll() is None and holder.poll() is None
        finally:
            innocent.kill()


# Folders of others


def test_a_hostile_folder_neither_runs_nor_breaks_anything(place: Path, tmp_path: Path) -> None:
    evil = "<script>alert(1)<script>\u202e"
    one = place / "one"
    begun = {
        "event": "begun",
        "time": "9" * 50,
        "method": evil,
        "seed": 10**30,
        "rounds": -5,
        "clients": [evil, 3, None],
    }
    lines = [json.dumps({**begun, "models": {evil: evil}, "samples": {evil: 1e99}, "command": evil})]
    lines += [
        json.dumps({"event": kind, "round": 1, "client": evil, "reason": evil * 1000})
        for kind in ("rejected", "retried")
    ]
    lines += ["[" * 100_000, "{" * 500, '{"event": "ended", "round": 1e400}', '{"event": ["round"], "round": {}}']
    lines += ['{"event": "ended", "round": 1, "accuracy": {"global": NaN, "clients": 1e308}}', "\0" * 1000]
    lines += [json.dumps({"event": "round", "time": "x", "round": 1, "clients": evil})]
    lines += [json.dumps({"event": "merged", "round": 1, "weights": [1]}), '{"event": "trained"}', "x" * 2**20]
    (one / "events.jsonl").write_text("\n".join(lines) + '\n{"event": "round", "time": "x", "round": 2, "cli')
    rows = [
        f'{n},"{evil}, {n}",predictor,test,accuracy,{value}'
        for n, value in enumerate(["NaN", "-inf", "1e308", "0x1", "", "1_0"])
    ]
    (one / "history.csv").write_text(
        "round,client\n" + "\n".join([*rows, "1,2", '"', "9" * 5000 + ",a,b,test,c,1"])
    )
    (one / "ledger.csv").write_text(
        "\n".join(
            [f"1,{evil},up,weights,{evil},1,1,{10**17}", "1,a,up", "x,y,sideways,,,,,", "1,a,down,k,n,1,1,-4", ""]
        )
    )
    (one / "participation.csv").write_text(
        "\n".join(["1,a,exploded,why", f"1,{evil},failed,{evil}", "1,a", '1,"a', ""])
    )
    (one / "run.json").write_text('{"summary": {"task": [], "global": 3, "mean": null, "clients": {}}}')
    (place / evil).mkdir()
    (place / evil / "recipe.yaml").write_text("method: &a [*a, *a]")
    (place / "linked").mkdir()
    for name in ("events.jsonl", "history.csv", "lock", "recipe.yaml"):
        (tmp_path / name).write_text("secret")
    (place / "linked" / "recipe.yaml").write_text("a: 1")
    (place / "linked" / "events.jsonl").symlink_to(tmp_path / "events.jsonl")
    os.mkfifo(place / "linked" / "lock")
    (place / "study").mkdir()
    shutil.copytree(one, place / "study" / "x-0")
    for name, text in (
        ("results.csv", "x"),
        ("comparison.json", '{"summary": {"a": {"minus": 1}}, "runs": [{"selection": "last"}]}'),
        ("reproduction.json", '{"claims": [1, {"low": 1e400}, {"low": "x"}]}'),
    ):
        (place / "study" / name).write_text(text)
    app = Gatekeeper(Pages(catalogue_of(place)).app(), "127.0.0.1", 8765)
    listed = ask(app, "/api/list", until="list").events()["list"]
    assert len(listed["runs"]) == 4
    for row in listed["runs"]:
        answer = ask(app, f"/api/run?id={row['id'].replace('<', '%3C').encode().decode('latin-1')}", until="round")
        assert answer.status in (200, 404) and b"secret" not in answer.body
    parts = ask(app, "/api/run?id=one", until="round").events()
    assert {client[0] for client in parts["clients"]["rows"]} >= {evil}
    assert any("damaged" in text for text in parts["head"]["limits"])
    told = ask(app, "/api/study?id=study", until="tables").events()["tables"]
    assert "damaged" in told[0]["title"]
    assert ask(app, "/api/compare?id=one&id=linked", until="compare").status == 200
