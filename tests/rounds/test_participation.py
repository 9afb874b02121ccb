"""Who took part: in the result, the final table, the report, JSON and run.json, and after resuming."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mutua
from mutua import Federation, Recipe
from mutua.errors import LeftOut
from mutua.methods import FML, FedAvg, FineTuned, Independent
from mutua.reports.report import compose as report
from mutua.reports.study import read_study
from mutua.reports.tables import cell_text
from mutua.rounds.events import Event, RoundEnded, RoundStarted
from mutua.rounds.participation import REASONS, Participation, spans
from mutua.runs.execute import execute
from mutua.runs.recording import Recorder
from mutua.runs.resuming import ResumedRecorder
from mutua.studies.measures import RunNumbers

Federate = Callable[..., Federation]
PLAN: dict[str, Any] = {"rounds": 4, "batch_size": 4, "device": "cpu"}
# b is never there; c is away once, sends NaN twice and breaks down once.
FAULTS = {
    "dropout": [{"clients": ["b"], "probability": 1}, {"clients": ["c"], "rounds": [1]}],
    "corruption": [
        {"kind": "nan", "clients": ["c"], "rounds": [2, 3]},
        {"kind": "raise", "clients": ["c"], "rounds": [4]},
    ],
}


def test_a_client_that_never_trained_is_told_of_and_out_of_the_mean(federate: Federate) -> None:
    with pytest.warns(LeftOut, match=r"2 of 3 clients were left out of rounds: b: answered 0 of 4 rounds; failed"):
        result = mutua.run(FML(), federate([9, 8, 7]), faults=FAULTS, **PLAN)
    a, b, c = result.clients
    assert (a.attendance.asked, a.attendance.answered, a.attendance.flawless) == (4, 4, True)
    assert b.attendance.failed == {"no reply came": [1, 2, 3, 4]} and b.attendance.answered == 0
    assert list(c.attendance.refused.values()) == [[2, 3]] and "NaN" in next(iter(c.attendance.refused))
    assert c.attendance.failed == {"no reply came": [1], "it broke down, as it was told to": [4]}
    assert (a.trained, b.trained, c.trained) == (True, False, True)  # c's own model was, though nothing was merged
    known = [client.accuracy() for client in (a, c)]
    assert result.mean_accuracy() == pytest.approx(np.mean([value for value in known if value is not None]))
    assert result.mean_accuracy("global") == pytest.approx(
        np.mean([client.accuracy("global") or 0.0 for client in result.clients])
    )
    assert dict(result.participation.merged) == {1: 1, 2: 1, 3: 1, 4: 1}
    summary = result.summary()
    assert summary["mean"]["predictor"]["accuracy"] == result.mean_accuracy()
    assert [client["trained"] for client in summary["clients"]] == [True, False, True]
    assert summary["clients"][1]["participation"] == {
        "asked": 4,
        "answered": 0,
        "refused": {},
        "failed": {"no reply came": "1-4"},
        "unfinished": {},
        "unevaluated": {},
    }


def test_who_serves_with_the_global_counts_though_it_never_trained(federate: Federate) -> None:
    faults = {"dropout": [{"clients": ["b"], "probability": 1}]}
    with pytest.warns(LeftOut, match="1 of 3 clients"):
        result = mutua.run(FedAvg(), federate([9, 8, 7]), faults=faults, **PLAN)
    assert all(client.trained for client in result.clients)
    accuracies = [client.accuracy() or 0.0 for client in result.clients]
    assert result.mean_accuracy() == pytest.approx(np.mean(accuracies))


def test_a_run_in_which_all_goes_well_warns_of_nothing(federate: Federate) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method in (FML(), FedAvg(), FineTuned(tune_epochs=1), Independent(patience=1, most_epochs=2)):
            result = mutua.run(method, federate([9, 8, 7]), **PLAN)
            assert result.left_out() == [] and all(client.trained for client in result.clients)
        mutua.run(FML(), federate([9, 8, 7]), **PLAN | {"rounds": 0})


class Stumbles(FineTuned):
    """Its last work fails at b."""

    def finish(self, client: Any, brief: Any) -> None:
        if client.id == "b":
            raise ValueError("out of luck")
        super().finish(client, brief)


class Alone(Independent):
    """The same, with nothing else that has trained."""

    def finish(self, client: Any, brief: Any) -> None:
        if client.id == "b":
            raise ValueError("out of luck")
        super().finish(client, brief)


def test_last_work_that_failed(federate: Federate) -> None:
    """Fine-tuned: b goes on with the global. Alone with patience: b has a model that nobody trained."""
    for method, trained in ((Stumbles(tune_epochs=1), True), (Alone(patience=1, most_epochs=2), False)):
        with pytest.warns(
            LeftOut, match=r"b: answered 4 of 4 rounds; unfinished \(round 5\): ValueError: out of luck"
        ):
            result = mutua.run(method, federate([9, 8, 7]), selection="last5", **PLAN)
        b = result.clients[1]
        assert b.trained is trained and list(b.attendance.unfinished.values()) == [[5]]
        assert [client.serves_since for client in result.clients] == [4, 1, 4]


@given(st.sets(st.integers(1, 30)))
def test_rounds_in_few_words(rounds: set[int]) -> None:
    found: set[int] = set()
    for span in filter(None, spans(sorted(rounds)).split(", ")):
        first, _, last = span.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == rounds


def test_a_client_with_very_many_reasons_is_told_of_in_a_few() -> None:
    participation = Participation()
    for round in range(1, 200):
        participation.add(round, "a", "refused", f"its norm is {round}")
    told = participation.of("a").summary()
    assert len(told["refused"]) == REASONS + 1 and told["refused"]["other reasons"] == "11-199"
    assert participation.of("b").asked == 0


# In files and on the terminal


def recipe(tiny: dict[str, Any]) -> Recipe:
    """Three clients, of which c1 is never there and c2 sends NaN in the second round."""
    faults = {
        "dropout": [{"clients": ["c1"], "probability": 1}],
        "corruption": [{"kind": "nan", "clients": ["c2"], "rounds": [2]}],
    }
    partition = {"kind": "iid", "clients": 3}
    return Recipe.of({**tiny, "partition": partition, "rounds": 3, "faults": faults, "selection": "last5"})


def test_run_json_report_and_measures_tell_it(tiny: dict[str, Any], tmp_path: Path) -> None:
    asked = recipe(tiny)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # who runs recipes reads it in tables and files
        result = execute(asked, asked.federation(), Recorder.create("x", 0, tmp_path / "x"))
    summary = json.loads((tmp_path / "x" / "run.json").read_text())["summary"]
    assert [client["participation"]["answered"] for client in summary["clients"]] == [3, 0, 2]
    assert summary["clients"] == json.loads(json.dumps(result.summary()["clients"]))
    read_again = RunNumbers(tmp_path / "x")
    mean = {
        of: value for client, *of, value in map(list, read_again.rows) if client == "mean" for of in [tuple(of)]
    }
    assert mean["predictor", "test", "accuracy"] == pytest.approx(summary["mean"]["predictor"]["accuracy"])
    assert read_again.by_client("predictor").keys() == {"c0", "c2"}
    with (tmp_path / "x" / "participation.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["outcome"] for r in rows if r["client"] == "c1"] == ["failed"] * 3
    assert [r["outcome"] for r in rows if r["client"] == "c2"] == ["merged", "refused", "merged"]
    made = report(read_study(tmp_path / "x"))
    table = next(table for table in made.tables if table.name == "attendance")
    assert [cell_text(row[0]) for row in table.rows] == ["c1", "c2"]
    assert "failed in 1-3: no reply came; never trained" in cell_text(table.rows[0][2])


def test_the_final_table_and_json_tell_it(
    command: Callable[..., Any], tiny: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "r.yaml").write_text(recipe(tiny).dump())
    done = command("run", "r.yaml", "--out", "x")
    assert done.code == 0 and "0/3" in done.out and "2/3" in done.out
    assert "c1: answered 0 of 3 rounds; failed (rounds 1-3): no reply came; never trained" in done.out
    assert "LeftOut" not in done.err
    told = json.loads(command("run", "r.yaml", "--out", "y", "--json").out)
    assert told["clients"][1]["participation"]["failed"] == {"no reply came": "1-3"}
    assert told["clients"][1]["trained"] is False


def test_it_is_the_same_after_resuming(tiny: dict[str, Any], tmp_path: Path) -> None:
    asked = recipe(tiny)
    once = Recorder.create("x", 0, tmp_path / "once")
    execute(asked, asked.federation(), once)
    for at in (1, 2, 3):

        def stop(event: Event, at: int = at) -> None:
            if isinstance(event, RoundStarted) and event.round == at:
                raise KeyboardInterrupt

        place = tmp_path / f"stopped-{at}"
        with pytest.raises(mutua.RunError, match="to go on"):
            execute(asked, asked.federation(), Recorder.create("x", 0, place), callbacks=[stop])
        execute(asked, asked.federation(), ResumedRecorder(place))
        for name in ("participation.csv", "history.csv", "ledger.csv"):
            assert (place / name).read_bytes() == (once.path / name).read_bytes()
        runs = [json.loads((path / "run.json").read_text())["summary"] for path in (place, once.path)]
        assert runs[0]["clients"] == runs[1]["clients"]


def test_a_client_that_was_never_drawn_is_not_called_left_out_nor_in_any_mean(federate: Federate) -> None:
    shown: list[float] = []

    def watch(event: Event) -> None:
        if isinstance(event, RoundEnded) and (newest := event.history.newest("predictor")):
            shown.append(newest[1])

    plan = {**PLAN, "rounds": 1, "client_fraction": 0.5}
    with pytest.warns(LeftOut, match=r"^2 of 4 clients were never drawn: .: never drawn, so .*") as caught:
        result = mutua.run(FML(), federate([9, 8, 7, 6]), callbacks=[watch], **plan)
    [told] = [str(one.message) for one in caught if one.category is LeftOut]
    assert "left out" not in told and "0 of 0" not in told
    drawn = [client for client in result.clients if client.attendance.asked]
    every = [client.accuracy() for client in result.clients]
    by_hand = sum(client.accuracy() or 0 for client in drawn) / 2
    assert by_hand != pytest.approx(sum(value or 0 for value in every) / 4)
    assert shown[-1] == pytest.approx(by_hand) == pytest.approx(result.mean_accuracy())
    assert len(shown) == 2  # nobody has trained in round 0: all count
    start = result.history.select(round=0, model="predictor", split="test", metric="accuracy")
    assert shown[0] == pytest.approx(sum(row.value or 0 for row in start) / 4)
    assert result.history.newest("predictor") == (1, shown[-1])


def test_tables_say_who_was_never_drawn(command: Callable[..., Any], tmp_path: Path) -> None:
    words = ("run", "tiny.yaml", "--set", "client_fraction=0.5", "--set", "rounds=1", "--set", "method=fml")
    done = command(*words, "--out", "x")
    assert done.code == 0 and "never drawn, so its own model is out of the mean" in done.out, done.err
    assert "0 of 0" not in done.out
    table = next(table for table in report(read_study(tmp_path / "x")).tables if table.name == "attendance")
    assert cell_text(table.rows[0][2]) == "never drawn, so its own model is out of all means"
    mean = next(line for line in done.out.splitlines() if line.strip().startswith("mean"))
    [last] = [line for line in done.err.splitlines() if "round 1/1" in line]
    assert last.split("clients ")[1].split(" %")[0] in mean.split()
