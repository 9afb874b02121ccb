"""Which evaluation a reported number is of: last, last five, or best on validation; never best on test."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mutua import Federation, InputError, Recipe, Samples, methods, run
from mutua.rounds.history import History, Row
from mutua.studies.measures import RunNumbers
from mutua.support.row_log import LogPrefix

Federate = Callable[..., Federation]
Blobs = Callable[..., Samples]


def made(**numbers: list[float | None]) -> History:
    """Of client a's predictor, by "split_metric", one number an evaluation: rounds 0, 10, 20, ..."""
    history = History()
    for name, values in numbers.items():
        split, metric = name.split("_")
        for k, value in enumerate(values):
            history.add(10 * k, "a", "predictor", split, metric, value)
    return history


def test_every_selection_of_a_history_by_hand() -> None:
    test: list[float | None] = [0.1, 0.9, 0.3, 0.4, 0.5, 0.6, 0.7]
    history = made(val_accuracy=[0.1, 0.2, 0.3, 0.8, 0.5, 0.8, 0.1], test_accuracy=test)
    at = ("a", "predictor", "test", "accuracy")
    assert history.last(*at) == history.selected("last", *at) == 0.7
    assert history.selected("last5", *at) == pytest.approx(np.mean([0.3, 0.4, 0.5, 0.6, 0.7]))
    assert history.best_rounds() == {("a", "predictor"): 30}  # the first of two that are as good
    assert history.selected("best", *at) == 0.4
    assert history.selected("best", "b", "predictor", "test", "accuracy") is None


def test_with_domains_the_best_round_is_by_accuracy_over_all_of_them() -> None:
    on_test: dict[str, list[float | None]] = {"test_wdp": [1, 2, 3], "test_cdp": [4, 5, 6], "test_acc": [7, 8, 9]}
    history = made(val_accuracy=[0.3, 0.1, 0.9], val_acc=[0.3, 0.5, 0.4], **on_test)
    found = [history.selected("best", "a", "predictor", "test", metric) for metric in ("wdp", "cdp", "acc")]
    assert found == [2, 5, 8]


def test_missing_numbers() -> None:
    history = made(val_accuracy=[None, 0.2, None, None], test_accuracy=[0.9, None, 0.5, 0.25])
    assert history.selected("best", "a", "predictor", "test", "accuracy") is None
    assert history.selected("last5", "a", "predictor", "test", "accuracy") == 0.375
    assert made(val_accuracy=[0.1, None], test_accuracy=[0.5, 0.5]).best_rounds() == {}


def test_the_global_is_selected_by_its_mean_over_the_clients_validation_data() -> None:
    history = History()
    for k, (a, b, common) in enumerate([(1.0, 1.0, 0.7), (0.9, 0.0, 0.1), (0.5, 0.6, 0.2), (0.6, 0.3, 0.9)]):
        history.add(k, "a", "global", "val", "accuracy", a)
        history.add(k, "b", "global", "val", "accuracy", b)
        history.add(k, "global", "global", "test", "accuracy", common)
    assert history.selected("best", "global", "global", "test", "accuracy") == 0.2
    assert history.best_rounds() == {("global", "global"): 2, ("a", "global"): 1, ("b", "global"): 2}


def test_only_evaluations_of_what_is_served_count_and_round_0_never_does() -> None:
    history = made(val_accuracy=[1.0, 0.9, 0.2, 0.3], test_accuracy=[1.0, 0.8, 0.5, 0.25])
    at = ("a", "predictor", "test", "accuracy")
    assert history.selected("best", *at) == 0.8 and history.selected("last5", *at) == (0.8 + 0.5 + 0.25) / 3
    history.serves_since(1, {"a": 20})
    assert history.selected("best", *at) == 0.25 and history.selected("last5", *at) == 0.375
    history.serves_since(0, {"a": 0})  # a run without rounds
    assert history.selected("best", *at) == 1.0


ROWS = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.sampled_from(["a", "b", "c", "global"]),
        st.sampled_from(["global", "predictor"]),
        st.sampled_from(["val", "test", "train"]),
        st.sampled_from(["accuracy", "loss", "acc"]),
        st.none() | st.floats(0, 1) | st.just(float("nan")),
    ).map(lambda row: Row(*row)),
    max_size=60,
)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(0, 60), st.integers(0, 60))
def test_rows_come_back_as_they_went_in_from_memory_or_from_a_file(rows: list[Row], cut: int, kept: int) -> None:
    """The columns, the index and what is read again, against a plain list of the same rows."""
    plain, history = repr(rows), History()
    for row in rows[:cut]:
        history.add(*row)
    upto = LogPrefix(history)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mutua.support.row_log.ROWS_IN_MEMORY", kept)
        upto.read_from_file(lambda: iter(rows))
        history.extend(rows[cut:])
    assert repr(history.rows) == plain and len(history) == len(rows)
    assert repr([history[i] for i in range(-len(rows), len(rows))]) == repr(rows + rows)
    assert repr(list(history[cut:])) == repr(rows[cut:]) and repr(list(upto)) == repr(rows[:cut])
    assert repr(list(reversed(history))) == repr(rows[::-1])
    some = {"client": "a"}, {"model": "global", "round": 3}, {"client": "d"}, {"split": "val", "metric": "acc"}
    for wanted in some:
        by_hand = [row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]
        assert repr(history.select(**wanted)) == repr(by_hand)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from(["a", "b", "global"]),
            st.sampled_from(["global", "predictor"]),
            st.sampled_from(["val", "test"]),
            st.sampled_from(["accuracy", "loss"]),
            st.none() | st.floats(0, 1),
        )
    )
)
def test_the_newest_point_is_the_last_one_of_its_curve(
    rows: list[tuple[int, str, str, str, str, float | None]],
) -> None:
    history = History()
    for row in sorted(rows, key=lambda row: row[0]):
        if not history.select(**dict(zip(Row._fields[:5], row[:5], strict=True))):  # a number is measured once
            history.add(*row)
    assert history.newest("predictor") == (history.curve("predictor") or [None])[-1]
    assert history.newest("global") == (history.global_curve() or [None])[-1]
    history.leave_out(("a",))
    assert history.newest("predictor") == pytest.approx((history.curve("predictor") or [None])[-1])


def test_a_curve_is_without_predictors_that_never_trained_unless_none_has() -> None:
    history = History()
    for round, values in enumerate([(0.1, 0.2, 0.6), (0.3, 0.2, None), (None, 0.2, None)]):
        for client, value in zip("abc", values, strict=True):
            history.add(round, client, "predictor", "test", "accuracy", value)
    assert dict(history.curve("predictor")) == pytest.approx({0: 0.3, 1: 0.25, 2: 0.2})
    history.leave_out(("b",))
    assert dict(history.curve("predictor")) == pytest.approx({0: 0.35, 1: 0.3, 2: 0.2})
    assert dict(history.curve("predictor", without="ab")) == pytest.approx({0: 0.6, 1: 0.25, 2: 0.2})
    assert history.served_curve("ab") == history.curve("predictor", without="ab")
    assert history.curve("global") == history.global_curve() == []


# Of runs


@pytest.fixture
def wild(federate: Federate, blobs: Blobs) -> Federation:
    """Three domains, learned at a rate at which accuracies go up and down."""
    federation = federate([9, 12, 7], held=15)
    clients = []
    for k, client in enumerate(federation.clients):
        val, test = blobs(15 + k, seed=50 + k, spread=3.0), blobs(16, seed=90 + k, spread=3.0)
        clients.append(replace(client, domain=client.id, val=val, test=test))
    return replace(federation, clients=tuple(clients))


def test_a_run_that_selects_the_best_reports_what_a_run_up_to_there_reports(wild: Federation) -> None:
    """Per client: the round whose accuracy on everybody's validation data is highest, and its test numbers."""
    plan: dict[str, Any] = {"batch_size": 4, "optimizer": {"name": "sgd", "lr": 1.5}, "device": "cpu"}
    method = methods.of({"name": "independent"})
    result = run(method, wild, rounds=5, selection="best", **plan)
    upto = [run(method, wild, rounds=rounds, **plan) for rounds in range(6)]
    chosen, found = [], []
    for client in result.clients:

        def accuracy(rounds: int, splits: str, who: str = client.id) -> float:
            one = next(c for c in upto[rounds].clients if c.id == who)
            right = total = 0
            for c in wild.clients:
                samples: Samples = getattr(c, splits)
                right += int((one.predictor(samples.x).argmax(1) == samples.y).sum())
                total += len(samples)
            return right / total

        on_val = [accuracy(rounds, "val") for rounds in range(1, 6)]  # what was not trained is not chosen
        chosen.append(1 + on_val.index(max(on_val)))
        found.append(accuracy(chosen[-1], "test"))
        own = next(c for c in upto[chosen[-1]].clients if c.id == client.id)
        assert client.accuracy(selection="best") == own.accuracy()
        assert client.accuracy() == upto[5].history.last(client.id, "predictor", "test", "accuracy")
    assert min(chosen) < 5 and len(set(chosen)) > 1  # else the last round would do
    summary = result.summary()
    assert summary["selection"] == "best"
    assert summary["domains"]["acc"] == pytest.approx(np.mean(found))
    assert [c["accuracy"]["predictor"] for c in summary["clients"]] == [
        c.accuracy(selection="best") for c in result.clients
    ]
    assert result.summary()["mean"]["predictor"]["accuracy"] == result.mean_accuracy(selection="best")
    assert "selection" not in upto[5].report() and result.report()["selection"] == "best"


@pytest.mark.parametrize(
    "method",
    [
        {"name": "finetuned", "patience": 2, "tune_epochs": 5},
        {"name": "mixture", "patience": 2, "mixture_epochs": 5},
        {"name": "independent", "patience": 2},
    ],
    ids=lambda method: method["name"],
)
@pytest.mark.parametrize("selection", ["last5", "best"])
def test_what_is_made_after_the_last_round_is_not_mixed_with_what_was_there_before(
    finished: Callable[..., tuple[Path, Any]], method: dict[str, Any], selection: str
) -> None:
    """By hand from history.csv: the predictor's last evaluation alone; the global's as ever, without round 0."""
    path, result = finished(method, rounds=6, selection=selection)
    with (path / "history.csv").open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["split"] == "test" and r["metric"] == "accuracy"]
    summary, read = result.summary(), RunNumbers(path)
    told = {(client, model): v for client, model, *of, v in read.rows if of == ["test", "accuracy"]}
    for client in summary["clients"]:
        mine = [r for r in rows if (r["client"], r["model"]) == (client["id"], "predictor")]
        assert [int(r["round"]) for r in mine] == [*range(7)]
        assert client["accuracy"]["predictor"] == float(mine[-1]["value"]) == told[client["id"], "predictor"]
        assert client["accuracy"]["global"] == told.get((client["id"], "global"))
    if selection == "last5" and summary["global"]["accuracy"] is not None:
        last = [float(r["value"]) for r in rows if r["client"] == "global"][-5:]
        assert summary["global"]["accuracy"] == pytest.approx(np.mean(last)) == told["global", "global"]


def test_evaluations_before_a_client_first_trained_are_of_another_model(federate: Federate) -> None:
    """A client that was drawn late: what it had before was not trained."""
    plan: dict[str, Any] = {"rounds": 8, "client_fraction": 0.4, "batch_size": 4, "device": "cpu", "seed": 2}
    result = run(methods.of({"name": "fml"}), federate([9, 8, 7, 6, 9]), selection="last5", **plan)
    late = 0
    for client in result.clients:
        first = min(row.round for row in result.history.select(client=client.id, split="train"))
        mine = result.history.select(client=client.id, model="predictor", split="test", metric="accuracy")
        counted = [row.value for row in mine if row.round >= first and row.value is not None][-5:]
        assert client.serves_since == first
        assert client.accuracy(selection="last5") == pytest.approx(np.mean(counted))
        late += first > 4
    assert late  # else the last five would do


def test_best_without_validation_data_or_on_test_data_is_refused(federate: Federate, tiny: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^selection: best, but no client has val samples"):
        run(methods.of({"name": "fml"}), federate(held=0), rounds=1, selection="best")
    run(methods.of({"name": "fml"}), federate(held=0), rounds=0, selection="last5")
    some = federate([5, 6])
    a, b = some.clients
    some = replace(some, clients=(replace(a, val=a.val.take([])), b))
    found = run(methods.of({"name": "independent"}), some, rounds=1, selection="best", device="cpu").summary()
    assert [c["accuracy"]["predictor"] is None for c in found["clients"]] == [True, False]
    tree = {**tiny, "selection": "best", "data": {**tiny["data"], "split": {"val_from": "test"}}}
    with pytest.raises(InputError, match="selection: best, but with val_from: test that would be best on test"):
        Recipe.of(tree)
    with pytest.raises(InputError, match=r"selection: 'test'; .*known: last, last5, best"):
        Recipe.of({**tiny, "selection": "test"})


def test_the_commands_say_which_selection_their_numbers_are_of(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    best = ["--set", "selection=best", "--set", "rounds=3"]
    done = command("run", "tiny.yaml", *best, "--out", "x")
    assert "fml: accuracy (%) on each client's own test data when best on validation" in done.out
    assert json.loads((tmp_path / "x" / "run.json").read_text())["summary"]["selection"] == "best"
    report = json.loads(command("run", "tiny.yaml", *best, "--out", "y", "--json").out)
    assert report["selection"] == "best"
    done = command("compare", "tiny.yaml", *best, "--methods", "fedprox,fml", "--seeds", "0", "--out", "z")
    assert done.out.startswith("accuracy (%) when best on validation: mean ± ")
    assert re.search("^fedprox: combine mean, weights samples, serve global, mu 0.01$", done.out, re.MULTILINE)
    compared = json.loads((tmp_path / "z" / "comparison.json").read_text())
    assert [one["selection"] for one in compared["runs"]] == ["best", "best"]
    assert compared["runs"][1]["clients"] == report["clients"]
