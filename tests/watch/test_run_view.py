"""What the page shows of a run is what its files say, beside the history and the ledger that mutua reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mutua.runs.folder import RunFolder
from mutua.support.files import to_json
from mutua.watch import measured
from mutua.watch.catalogue import Catalogue
from mutua.watch.happened import Happened, round_picture
from mutua.watch.measured import MeasuredRun, SeriesKey
from mutua.watch.run_view import RunView

FAULTS = {
    "corruption": [
        {"kind": "raise", "clients": ["c0"], "rounds": [2]},
        {"kind": "nan", "clients": ["c1"], "rounds": [3]},
    ]
}


def viewed(place: Path, id: str | None = None, **given: Any) -> dict[str, Any]:
    """All parts of a run's page, once everything is read."""
    catalogue = Catalogue(place)
    catalogue.look()
    [run] = [run for run in catalogue.runs.values() if id in (None, run.id)]
    view = RunView(catalogue.root, run, lambda: catalogue.of_study(run.study or ""))
    while view.advance(1.0):
        pass
    found = view.parts(**given)
    text = json.dumps(found, allow_nan=False)
    assert text == to_json(found, indent=None)  # nothing that is not finite
    return dict(json.loads(text))


def rows_of(clients: dict[str, Any]) -> list[dict[str, Any]]:
    """The grid of clients."""
    return [dict(zip(clients["columns"], row, strict=True)) for row in clients["rows"]]


def near(found: Any, expected: Any) -> bool:
    return bool(found == pytest.approx(expected, rel=1e-4, abs=1e-6))


def test_all_numbers_are_those_of_the_folder(finished: Callable[..., tuple[Path, Any]]) -> None:
    place, result = finished("fml", rounds=4, faults=FAULTS)
    parts = viewed(place)
    history, ledger = RunFolder(place).rows()
    head = parts["head"]
    assert (head["state"], head["method"], head["round"], head["rounds"]) == ("finished", "fml", 4, 4)
    assert head["resume"] == f"mutua run --resume {place}"
    lines = {line["key"]: line for line in parts["curves"]["lines"]}
    for key, curve in (("global", history.global_curve()), ("predictor", history.curve("predictor"))):
        assert lines[key]["rounds"] == [round for round, _ in curve]
        assert near(lines[key]["values"], [value for _, value in curve])
    own = {
        client.id: [
            row.value
            for row in history.select(client=client.id, model="predictor", split="test", metric="accuracy")
        ]
        for client in result.clients
    }
    assert all(near(parts["lines"]["of"][client], values) for client, values in own.items())
    columns = np.array(list(own.values()))
    assert near(parts["curves"]["band"]["tenth"], np.quantile(columns, 0.1, axis=0).tolist())
    assert near(parts["curves"]["band"]["high"], columns.max(0).tolist())
    terms = {term["key"]: term["values"] for term in parts["terms"]}
    rows = history.select(model="meme", split="train", metric="objective")
    means = [np.mean([row.value for row in rows if row.round == round]) for round in (1, 2, 3, 4)]
    assert near(terms["meme"], means)
    clients = parts["clients"]
    assert clients["kinds"] == ["weights: meme"]
    assert clients["sent"] == [ledger.kinds("up")["weights: meme"]]
    assert clients["sent"][0] + clients["envelope"] == ledger.bytes("up")
    assert clients["received"] == ledger.bytes("down")
    for row, client in zip(rows_of(clients), result.clients, strict=True):
        assert (row["id"], row["samples"]) == (client.id, len(client.client.train))
        assert near(row["personal"], client.accuracy()) and near(row["global"], client.accuracy("global"))
        assert (row["asked"], row["answered"]) == (client.attendance.asked, client.attendance.answered)
        assert row["sent"] == [ledger.kinds("up", client.id)["weights: meme"]]
        assert (row["round"], row["now"]) == (4, "merged")
    told = {(fault["client"], fault["what"], fault["rounds"]) for fault in parts["faults"]}
    assert told == {("c0", "failed", "2"), ("c1", "refused", "3")}


def test_a_round_shows_who_was_merged_with_which_weight_and_who_was_left_out(
    finished: Callable[..., tuple[Path, Any]],
) -> None:
    place, _ = finished("fml", rounds=4, faults=FAULTS)
    newest, second, third = (viewed(place, round=round)["round"] for round in (None, 2, 3))
    assert newest["round"] == 4 and set(newest["merged"]) == set(newest["asked"]) == set(newest["answered"])
    assert sum(newest["merged"].values()) == pytest.approx(1, abs=1e-5)
    assert list(second["refused"]) == ["c0"] and "c0" not in second["merged"] and "c0" not in second["answered"]
    assert list(third["refused"]) == ["c1"] and "c1" in third["answered"] and "NaN" in third["refused"]["c1"]
    assert viewed(place, round=99)["round"] is None


def test_it_follows_a_run_that_is_resumed(finished: Callable[..., tuple[Path, Any]], tmp_path: Path) -> None:
    """Tables are cut and grow again, and rounds come a second time."""
    place = shutil.copytree(finished("fml", rounds=4)[0], tmp_path / "run")
    catalogue = Catalogue(place)
    catalogue.look()
    view = RunView(catalogue.root, next(iter(catalogue.runs.values())))
    while view.advance(1.0):
        pass
    whole = view.parts()
    lines = (place / "events.jsonl").read_text().splitlines(keepends=True)
    rows = (place / "history.csv").read_text().splitlines(keepends=True)
    (place / "run.json").rename(tmp_path / "run.json")
    with (place / "events.jsonl").open("a") as file:
        file.write(
            '{"event": "resumed", "time": "2026-01-01T00:00:00+00:00", "schema": 1, "round": 2, "rounds": 4}\n'
        )
    (place / "history.csv").write_text("".join(row for row in rows if not row.startswith(("3,", "4,"))))
    view._looked = 0.0
    while view.advance(1.0):
        pass
    head, curves = (view.parts()[name] for name in ("head", "curves"))
    assert (head["state"], head["round"]) == ("stopped", 2)
    assert {line["key"]: line["rounds"][-1] for line in curves["lines"]} == {
        "global": 2,
        "predictor": 2,
        "own-global": 2,
    }
    again = [line for line in lines if '"round": 3,' in line or '"round": 4,' in line or '"finished"' in line]
    with (place / "events.jsonl").open("a") as file:
        file.write("".join(again))
    (place / "history.csv").write_text("".join(rows))
    (tmp_path / "run.json").rename(place / "run.json")
    view._looked = 0.0
    while view.advance(1.0):
        pass
    once_more = view.parts()
    for name in ("curves", "lines", "terms", "clients", "faults", "round"):
        assert once_more[name] == whole[name], name
    assert viewed(place)["curves"] == whole["curves"]  # and for one who looks only now


def test_events_say_the_same_wherever_reading_begins() -> None:
    def line(event: str, **facts: Any) -> bytes:
        return json.dumps({"event": event, "time": "2026-01-01T00:00:00.000+00:00", **facts}).encode() + b"\n"

    def a_round(n: int, score: float) -> list[bytes]:
        trained = [line("trained", round=n, client=c, seconds=0.5, bytes=10) for c in ("a", "b")]
        return [
            line("round", round=n, clients=["a", "b"]),
            *trained,
            line("ended", round=n, rmse={"global": score, "clients": None}),
        ]

    lines = [line("begun", schema=1, method="fml", seed=3, rounds=9, clients=["a", "b"])]
    lines += [one for n in (1, 2, 3) for one in a_round(n, n / 10)]
    lines += [line("rejected", round=3, client="b", reason="gone"), line("stopped", reason="Ctrl-C")]
    lines += [line("resumed", round=1, rounds=4), line("note", text="mended"), *a_round(2, 0.25)]
    lines += [line("rejected", round=2, client="a", reason="late"), b'{"torn'[:3] + b"\n", b"\xff\xfe\n"]
    read = []
    for cut in range(
        len(lines) + 1
    ):  # newest first, as the page reads: from here on forwards, then what was before
        found, offset = Happened(), sum(map(len, lines[:cut]))
        found.take(b"".join(lines[cut:]), offset, False)
        for one in reversed(lines[:cut]):
            offset -= len(one)
            found.take(one, offset, True)
        read.append(found)
    for found in read:
        found.head(lines[0])
        assert (found.method, found.seed, found.rounds, found.metric, found.round) == ("fml", 3, 4, "rmse", 2)
        assert {n: told.shared for n, told in found.ended.items()} == {1: 0.1, 2: 0.25}
        assert found.known_rounds == [1, 2]
        assert [(note["kind"], note["round"]) for note in found.noted] == [("rejected", 2), ("note", None)]
        assert found.stopped == "" and found.last == "ended"
        assert found.seen["b"].round == 2
    assert len({found.place(2) for found in read}) == 1


def test_the_time_left_is_that_of_the_last_rounds() -> None:
    events = Happened(rounds=20)
    for n in range(1, 13):
        text = json.dumps(
            {"event": "ended", "time": f"2026-01-01T00:00:{3 * n:02}+00:00", "round": n, "accuracy": {}}
        )
        events.take(text.encode() + b"\n", 0, False)
    assert events.seconds_left() == pytest.approx(8 * 3)
    events.take(b'{"event": "stopped", "reason": "x"}\n', 0, False)
    assert events.seconds_left() is None


def test_numbers_that_are_none_and_lines_that_are_damaged_do_not_count() -> None:
    found = MeasuredRun(["a"])
    rows = [
        b"round,client,model,split,metric,value",
        b"1,a,predictor,test,accuracy,nan",
        b"2,a,predictor,test,accuracy,1e999",
        b"3,a,predictor,test,accuracy,",
        b"4,a,predictor,test,accuracy,0.5",
        b"5,a,predictor,test,accuracy,half",
        b"-6,a,predictor,test,accuracy,0.5",
        b"77777777777,a,predictor,test,accuracy,0.5",
        b"4,a,predictor,val,accuracy,0.9",
        b'8,"b,""c""",predictor,test,accuracy,0.25',
        b"\xff\xff,\xff",
        b"",
    ]
    found.take(b"\n".join(rows), 0, False)
    series = found.series[SeriesKey("predictor", "test", "accuracy")]
    assert series.of(0, [1, 2, 3, 4]) == [None, None, None, 0.5]
    assert found.ids == ["a", 'b,"c"'] and series.last(1) == 0.25
    assert series.band(1) is None and series.band(4) == (0.5,) * 5
    assert found.damaged == 3  # half, and two rounds; what is no row of a known kind is not looked at


def test_too_many_numbers_are_thinned() -> None:
    found = MeasuredRun(["a", "b"], most=400)
    for n in range(1, 2001):
        found.take(
            b"%d,a,predictor,test,accuracy,%f\n%d,b,predictor,test,accuracy,0.5\n" % (n, n / 2000, n), 0, False
        )
    series = found.series[SeriesKey("predictor", "test", "accuracy")]
    assert sum(map(len, series.rows.values())) <= 400 and found.stride in (16, 32)
    assert all(n % found.stride == 0 for n in series.rows)
    assert series.of(0, [1600]) == [0.8] and series.last(0) == 1.0  # the newest is there all the same


def test_curves_have_as_many_points_as_a_page_can_show() -> None:
    assert measured.few_rounds(range(5), 10) == [0, 1, 2, 3, 4]
    found = measured.few_rounds(range(100_001), 600)
    assert len(found) <= 601 and (found[0], found[-1]) == (0, 100_000)


def test_a_round_ends_where_the_next_begins() -> None:
    lines = b'{"event": "round", "round": 1, "clients": ["a"]}\n{"event": "round", "round": 2, "clients": ["b"]}\n'
    found = round_picture(1, lines, whole=True)
    assert (found.asked, found.over, found.merged) == (["a"], True, None)


@pytest.mark.parametrize("method", ["no-regret"])
def test_what_clients_have_alone_is_shown_while_the_run_is_at_work(
    method: str, finished: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    place, result = finished(method, rounds=2)
    copy = shutil.copytree(place, tmp_path / "run")
    (copy / "run.json").unlink()
    for folder in (place, copy):
        rows = rows_of(viewed(folder)["clients"])
        expected = [client.benefit().summary()["models"]["alone"]["value"] for client in result.clients]
        assert near([row["alone"] for row in rows], expected)


def test_what_clients_have_alone_is_taken_from_the_study(compared: Path) -> None:
    """From the run of independent with the same data and seed; not from one that is longer."""
    for seed in (0, 1):
        rows = rows_of(viewed(compared, f"{compared.name}/fml-{seed}")["clients"])
        told = json.loads((compared / f"independent-{seed}" / "run.json").read_text())["summary"]["clients"]
        assert near([row["alone"] for row in rows], [client["accuracy"]["predictor"] for client in told])


def test_a_longer_run_alone_is_not_compared(compared_copy: Path) -> None:
    for seed in (0, 1):
        recipe = compared_copy / f"independent-{seed}" / "recipe.yaml"
        recipe.write_text(recipe.read_text().replace("rounds: 3", "rounds: 4"))
    rows = rows_of(viewed(compared_copy, f"{compared_copy.name}/fml-0")["clients"])
    assert [row["alone"] for row in rows] == [None] * 3
