"""`mutua.compare` in Python: paired differences, tables, what it saves, and mistakes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mutua
from conftest import federation, quick
from mutua import InputError, Recipe
from mutua.methods import FML, FedAvg, Independent
from mutua.rounds.history import History, Row


@pytest.fixture(scope="module")
def compared() -> mutua.Comparison:
    methods = [FML(), FedAvg(), Independent()]
    return mutua.compare(methods, federation, seeds=[0, 1], rounds=2, batch_size=8, progress=False, workers=1)


def test_differences_are_paired_by_seed(compared: mutua.Comparison) -> None:
    assert list(compared.summary) == ["fml", "fedavg", "independent"]
    by_hand = [
        float(np.mean([c.accuracy() for c in avg.clients]) - np.mean([c.accuracy() for c in own.clients]))
        for own, avg in zip(compared["fml"], compared["fedavg"], strict=True)
    ]
    found = compared.difference("fedavg")
    assert found["values"] == pytest.approx(by_hand)
    assert found["mean"] == pytest.approx(np.mean(by_hand)) and found["std"] == pytest.approx(
        np.std(by_hand, ddof=1)
    )
    better = [
        [own.accuracy() > alone.accuracy() for own, alone in zip(a.clients, b.clients, strict=True)]  # type: ignore[operator]
        for a, b in zip(compared["fml"], compared["independent"], strict=True)
    ]
    assert compared.summary["fml"]["clients"]["better_off"]["values"] == pytest.approx(
        [np.mean(b) for b in better]
    )


def test_a_comparison_prints_as_a_table(compared: mutua.Comparison) -> None:
    lines = str(compared).splitlines()
    assert lines[0].startswith("accuracy (%) after the last round: mean ± standard deviation over 2 seeds")
    assert [line.split()[0] for line in lines[2:7]] == ["fml", "fedavg", "minus", "independent", "minus"]
    assert "over clients: predictors' accuracy (%) on own test data" in lines
    [verdict] = [line.split() for line in lines if line.split()[:3] == ["fedavg", "fml", "predictor"]]
    found = compared.difference("fedavg")
    interval = [f"{100 * found['low']:+.1f}", "to", f"{100 * found['high']:+.1f}"]
    assert verdict[3:7] == [f"{100 * found['mean']:+.1f}", *interval]
    assert verdict[7:] in (["better"], ["worse"], ["cannot", "tell"])
    page = compared._repr_html_()
    assert page.count("<tr>") == 6 + 4 + 4  # the differences of two predictors and a global
    ends = [
        f"{name} {100 * compared.summary[name]['accuracy']['predictor']['mean']:.1f}" for name in compared.summary
    ]
    assert f"at the end: {', '.join(ends)}" in page


@pytest.mark.filterwarnings("ignore::mutua.errors.LeftOut")
def test_a_comparison_makes_the_same_remarks_as_the_command_line(command: Callable[..., Any]) -> None:
    methods = "fml,finetuned,independent"
    settings = "client_fraction=0.5", "partition.clients=3"
    recipe = Recipe.load("tiny.yaml", settings)
    told = str(mutua.compare(methods, recipe, seeds=[0, 1], progress=False, workers=1))
    sets = [word for setting in settings for word in ("--set", setting)]
    printed = command("compare", "tiny.yaml", "--methods", methods, "--seeds", "0,1", *sets).out

    def remarks(text: str) -> list[str]:
        return [line for line in text.splitlines() if " never trained: " in line or "alone did not" in line]

    assert remarks(told) == remarks(printed)
    who = [line.partition(":")[0] for line in remarks(told)]
    assert who == ["finetuned", "fml, seed 0", "fml, seed 1"]
    cells = [line.split() for line in told.splitlines()], [line.split() for line in printed.splitlines()]
    for name in ("fml", "finetuned", "independent", "minus"):  # and the same numbers
        assert [row for row in cells[0] if row[:1] == [name]] == [row for row in cells[1] if row[:1] == [name]]


def test_each_run_of_a_comparison_is_an_ordinary_run(compared: mutua.Comparison) -> None:
    alone = quick(FedAvg(), federation(1), rounds=2, seed=1)
    assert list(compared["fedavg"][1].history) == list(alone.history)


def test_a_saved_comparison_is_what_the_command_line_leaves(
    compared: mutua.Comparison, tmp_path: Path, command: Callable[..., Any]
) -> None:
    path = compared.save(tmp_path / "both")
    held = json.loads((path / "comparison.json").read_text())
    assert held["summary"] == json.loads(json.dumps(compared.summary))
    assert (path / "results.csv").read_text().startswith("method,seed,client,model,split,metric,value\nfml,0,")
    [page] = mutua.report(path)
    assert "better off" in page.read_text() and "cannot be read" not in page.read_text()
    assert mutua.load_run(path / "fml-1").plan.seed == 1
    with pytest.raises(InputError, match=r"is a comparison; give one of its runs \(fedavg-0, fedavg-1, fml-0"):
        mutua.load_run(path)
    for words in (["runs", "show"], ["export", "--client", "c0"]):
        assert "is a comparison; give one of its runs (fedavg-0" in command(*words, str(path)).err
    with pytest.raises(InputError, match=r"path: .* not empty"):
        compared.save(path)
    with pytest.raises(InputError, match=r"path: .* not empty"):
        compared["fml"][0].save(path)
    with pytest.raises(InputError, match=r"^client: 'c9' is not in "):
        mutua.load_run(path / "fml-1").predictor("c9")


def test_methods_by_name_label_and_option(tiny: dict[str, Any]) -> None:
    more = {"seeds": [0], "rounds": 0, "progress": False, "workers": 1}
    twins = mutua.compare([FML(alpha=0.3), FML(), "fedprox:mu=0.1"], federation(), **more)
    assert list(twins.summary) == ["fml:alpha=0.3", "fml:alpha=0.5", "fedprox:mu=0.1"]
    named = mutua.compare({"mine": FML(), "theirs": "fedavg"}, federation(), **more)
    assert list(named.summary) == ["mine", "theirs"]
    recipe = Recipe.of({**tiny, "method": {"name": "fml", "alpha": 0.2}})
    of_recipe = mutua.compare("fml,fedavg", recipe, seeds=[5], progress=False)
    [result] = of_recipe["fml"]
    assert (result.job.method, result.job.plan.seed, result.job.plan.batch_size) == (FML(alpha=0.2), 5, 7)


@pytest.mark.parametrize(
    ("methods", "given", "more", "told"),
    [
        ([], federation(), {}, r"methods: \[\]; give a list"),
        (FML(), federation(), {}, "methods: .*give a list"),
        ([3], federation(), {}, "methods: 3; give objects or names"),
        (["fmll"], federation(), {}, "'fmll' is not a method; did you mean 'fml'"),
        ([FML(), FML()], federation(), {}, "methods: 'fml' is there twice"),
        (["fml"], 3, {}, "federation: a int; give a Federation, a Recipe or a function"),
        (["fml"], lambda seed: seed, {}, "made a int, not a Federation"),
        (["fml"], federation(), {"seeds": []}, r"seeds: \[\]"),
        (["fml"], federation(), {"seeds": "0,1"}, "seeds: '0,1'"),
        (["fml"], federation(), {"seeds": [0, 0]}, "a seed is there twice"),
        (["fml"], federation(), {"seed": 1}, "seed: a comparison is over several"),
        (["fml"], federation(), {"plan": {}}, "plan: a dict"),
        (["fml"], federation(), {"roundz": 1}, "roundz: unknown key"),
        (["fml", "fedmd"], federation(), {}, "methods: 'fedmd': public: missing"),
    ],
)
def test_mistakes_in_a_comparison(methods: Any, given: Any, more: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        mutua.compare(methods, given, progress=False, **more)


def test_a_comparison_says_on_stderr_how_far_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    mutua.compare([FML()], federation(), seeds=[0, 1], rounds=1, batch_size=8, workers=1)
    out, err = capfd.readouterr()
    assert out == "" and [line.split(":")[0] for line in err.splitlines()] == ["fml, seed 0", "fml, seed 1"]


# Tables for pandas


def test_tables_for_pandas(compared: mutua.Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    result = compared["fml"][0]
    for log in (result.history, result.ledger, result.participation):
        table = log.to_pandas()
        assert isinstance(table, pandas.DataFrame) and len(table) == len(log)
        assert list(table.columns) == list(type(log[0])._fields)
    found = result.history.to_pandas().query("client == 'c0' and model == 'predictor' and metric == 'accuracy'")
    assert found[found.split == "test"].value.iloc[-1] == result.clients[0].accuracy()
    means = compared.to_pandas().query("model == 'predictor'").groupby("method").accuracy.mean()
    assert means["fml"] == pytest.approx(compared.summary["fml"]["accuracy"]["predictor"]["mean"])
    monkeypatch.setitem(sys.modules, "pandas", None)
    for one in (result.history, compared):
        with pytest.raises(InputError, match="to_pandas: pandas is not installed; pip install pandas"):
            one.to_pandas()


def test_tables_for_polars(compared: mutua.Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    polars = pytest.importorskip("polars")
    result = compared["fml"][0]
    for log in (result.history, result.ledger, result.participation, compared):
        ours, theirs = log.to_polars(), log.to_pandas()
        assert isinstance(ours, polars.DataFrame) and ours.columns == list(theirs.columns)
        assert ours.rows() == list(
            theirs.astype(object).where(theirs.notna(), None).itertuples(index=False, name=None)
        )
    # A column may begin with missing or with whole numbers.
    late = History()
    late.extend([Row(0, "a", "meme", "val", "loss", None), Row(1, "a", "meme", "val", "loss", 0.5)])
    assert late.to_polars()["value"].to_list() == [None, 0.5] and len(History().to_polars()) == 0
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InputError, match="to_polars: polars is not installed; pip install polars"):
        compared.to_polars()
