"""Reproductions: runs, tables, claims and their verdicts, by items of our own."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file
from scipy import stats as scipy_stats

from mutua import InputError, Recipe
from mutua.learning.headline import ACCURACY
from mutua.studies.measures import Measure, RunNumbers
from mutua.studies.papers import items
from mutua.studies.reproduction import Reproduction

Command = Callable[..., Any]
OUT = ("--out", "out", "--workers", "2")


def item(tiny: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"title": "Two clients", "where": "Table 9", "recipe": {**tiny, "rounds": 30}, **more}


@pytest.fixture
def reproduced(command: Command, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, and items ours/table-1, ours/no-data, ours/newcomer."""
    folder = tmp_path / "items" / "ours"
    folder.mkdir(parents=True)
    monkeypatch.setattr(items, "FOLDER", folder.parent)

    def claim(text: str, measure: str, **more: Any) -> dict[str, Any]:
        sides = {"better": {"method": "alone"}, "than": {"method": "FedAvg"}}
        return {"text": text, "measure": measure, **sides, **more}

    table = item(
        tiny,
        grid={
            "method": {"FedAvg": {"method": "fedavg"}, "alone": {"method": "independent"}, "FML": {}},
            "size": {"small": {}, "large": {"models.global.width": 0.2}},
        },
        laptop={"set": {"rounds": 1}, "keep": {"method": ["FedAvg", "alone"]}, "cut": ["1 round, no FML"]},
        published={
            "selection": "best on test",
            "doubt": "one run",
            "values": [
                {
                    "cell": {"method": "FedAvg", "size": "small"},
                    "measure": "predictor",
                    "value": 12.5,
                    "spread": 0.5,
                },
                {"cell": {"method": "alone"}, "measure": "predictor", "value": 99.9},
                {"cell": {"method": "FML"}, "measure": "predictor", "value": 77.7},
            ],
        },
        claims=[
            claim("alone is better", "predictor"),
            claim("alone is not worse by 200", "predictor", margin=200),
            claim("alone is worse by 200", "predictor", margin=-200),
            claim("alone sends less", "bytes_up", lower=True),
            claim("the predictor is the global", "predictor(c0)", better={"method": "FedAvg"}, than=None)
            | {"than_measure": "global_own(c0)"},
            claim("FedAvg sends less than thrice as much", "bytes_up", lower=True, times=3)
            | {"better": {"method": "FedAvg"}},
            claim("FML is better", "predictor", better={"method": "FML"}, control=True),
        ],
    )
    newcomer = item(
        tiny,
        kind="newcomer",
        grid={"how": {"mutual": {}, "global": {}, "alone": {}}},
        laptop={"set": {"rounds": 1, "partition.clients": 3}},
        claims=[
            {
                "text": "a newcomer gains",
                "measure": "predictor",
                "better": {"how": "mutual"},
                "than": {"how": "alone"},
            }
        ],
    )
    absent = item({**tiny, "data": "cifar10"})
    for name, tree in {"table-1": table, "newcomer": newcomer, "no-data": absent}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    return command


def test_a_table_beside_the_papers(reproduced: Command, tmp_path: Path) -> None:
    done = reproduced("reproduce", "ours/table-1", "--seeds", "2", *OUT)
    assert done.code == 0, done.err
    runs = sorted(path.parent.name for path in (tmp_path / "out/ours/table-1").glob("*/run.json"))
    assert runs == [
        f"{m}-{size}-{seed}" for m in ("FedAvg", "alone") for size in ("large", "small") for seed in (0, 1)
    ]

    def own(method: str, size: str, seed: int) -> float:
        summary = json.loads((tmp_path / f"out/ours/table-1/{method}-{size}-{seed}/run.json").read_text())[
            "summary"
        ]
        return 100 * fmean(client["accuracy"]["predictor"] for client in summary["clients"])

    record = json.loads((tmp_path / "out/ours/table-1/reproduction.json").read_text())
    small, alone, *_ = record["values"]
    mine = [own("FedAvg", "small", seed) for seed in (0, 1)]
    assert (small["paper"], small["paper_spread"], small["seeds"]) == (12.5, 0.5, 2)
    assert (small["ours"], small["ours_sd"]) == (pytest.approx(fmean(mine)), pytest.approx(stdev(mine)))
    # A cell that names one axis is the mean over the others, seed by seed.
    by_seed = {
        m: [fmean(own(m, size, s) for size in ("small", "large")) for s in (0, 1)] for m in ("FedAvg", "alone")
    }
    assert (alone["cell"], alone["ours"]) == ("alone", pytest.approx(fmean(by_seed["alone"])))
    assert all(row["cell"] != "FML" for row in record["values"])

    better, little, much, bytes_up, same, thrice, control = record["claims"]
    interval = scipy_stats.ttest_rel(by_seed["alone"], by_seed["FedAvg"]).confidence_interval(0.95)
    if math.isfinite(interval.low):  # SciPy has none where all differences are the same
        assert (better["low"], better["high"]) == pytest.approx(tuple(interval))
    assert better["difference"] == pytest.approx(fmean(by_seed["alone"]) - fmean(by_seed["FedAvg"]))
    # A margin moves the verdict; what is printed is the difference itself.
    assert little["difference"] == much["difference"] == better["difference"]
    assert (little["verdict"], much["verdict"]) == ("holds", "does not hold")
    assert (bytes_up["verdict"], bytes_up["ours"][0]) == ("holds", [0, 0])
    assert (same["verdict"], same["difference"]) == ("cannot tell", 0)
    [once, _] = thrice["ours"][0]
    assert once > 0 and (thrice["verdict"], thrice["difference"]) == ("holds", pytest.approx(3 * once - once))
    assert (control["control"], control["verdict"], control["difference"]) == (True, "not at this scale", None)
    assert control["paper"] == [77.7, 12.5]
    assert better["paper"] == [99.9, 12.5]

    for said in (
        "ours/table-1 (Table 9): Two clients",
        "scale laptop, 2 seeds; cut: 1 round, no FML",
        "paper (not comparable in level)",
        "selection: the paper's: best on test; ours: last",
        "doubt: one run",
        "1 printed numbers are of cells that this scale leaves out",
        "control: FML is better",
        "8 of 8 runs",
        "worst client",
        "better off",
    ):
        assert said in done.out
    assert re.search(rf"^FedAvg, small +predictor +12\.50 ± 0\.50 +{fmean(mine):.2f} ±", done.out, re.MULTILINE)
    again = reproduced("reproduce", "ours/table-1", "--seeds", "2", *OUT)
    assert again.code == 0 and "seed 0" not in again.err
    kept = json.loads((tmp_path / "out/ours/table-1/reproduction.json").read_text())
    assert kept["minutes"] >= record["minutes"] and kept["claims"] == record["claims"]


def test_missing_data_is_said_the_others_go_on_and_the_page_has_all(reproduced: Command, tmp_path: Path) -> None:
    reproduced("reproduce", "--write", "before.md", "--out", "out")
    assert (tmp_path / "before.md").read_text().count("| not run |") == 3
    done = reproduced("reproduce", "ours/no-data", "ours/newcomer", "--seeds", "2", *OUT)
    assert done.code == 1
    said = f"ours/no-data: data: cifar10 is not in {tmp_path / 'no-data'} (looked for "
    assert said in done.err and "to get it: mutua data get cifar10" in done.err
    assert "mutua: 1 of 2 items are not whole: ours/no-data: " in done.err
    assert not list((tmp_path / "out").glob("ours/no-data"))

    # The newcomer is the last client: the others have trained without it.
    for seed in (0, 1):
        run = tmp_path / f"out/ours/newcomer/all-{seed}"
        assert {path.name for path in (run / "clients").iterdir()} == {"c0", "c1"}
        assert {path.name for path in (run / "newcomers").iterdir()} == {"global", "finetune", "mutual"}
    joins = {
        how: [
            json.loads((tmp_path / f"out/ours/newcomer/all-{seed}/newcomers/{how}/join.json").read_text())
            for seed in (0, 1)
        ]
        for how in ("mutual", "global")
    }
    assert all(join["client"] == "c2" for both in joins.values() for join in both)
    record = json.loads((tmp_path / "out/ours/newcomer/reproduction.json").read_text())
    ours = {row["cell"]: row["ours"] for row in record["values"]}
    assert ours == {
        "mutual": pytest.approx(100 * fmean(join["accuracy"]["predictor"] for join in joins["mutual"])),
        "global": pytest.approx(100 * fmean(join["accuracy"]["global"] for join in joins["global"])),
        "alone": pytest.approx(100 * fmean(join["accuracy"]["alone"] for join in joins["mutual"])),
    }

    assert reproduced("reproduce", "--write", "page.md", "--out", "out").code == 0
    page = (tmp_path / "page.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    verdicts = [row[5] for row in rows if len(row) > 5]
    assert verdicts == ["verdict", record["claims"][0]["verdict"], "not run", "not run"]
    assert [row[1].endswith("; data: cifar10") for row in rows if row[0].startswith("no-data")] == [True]
    [cell] = [row for row in rows if row[:2] == ["newcomer", "all"]]
    assert cell[2].startswith(f"{100 * record['clients']['all']['worst']['mean']:.1f} ±") and cell[4] == "–"
    assert f"1 of 3 items were run, in {record['minutes']:.0f} minutes in all." in page
    assert "## ours" in page and "| paper (not comparable in level) |" in page


def test_a_budget_of_time(reproduced: Command) -> None:
    done = reproduced("reproduce", "ours/table-1", "--minutes", "0", *OUT)
    assert done.code == 1
    assert "1 of 1 items are not whole: ours/table-1: the time budget of 0 minutes is used up" in done.err


def test_what_there_is(reproduced: Command) -> None:
    done = reproduced("reproduce", "--list")
    assert re.search(r"^ours/table-1 +Table 9 +Two clients$", done.out, re.MULTILINE)
    for words, said in {
        ("reproduce",): "ITEM: none given; name some, such as fedh2l/table-2, or give --all; --list shows them",
        ("reproduce", "ours/tabel-1"): "ITEM: 'ours/tabel-1' is not an item; did you mean 'ours/table-1'? "
        "mutua reproduce --list shows all",
        ("reproduce", "--write", "no/page.md"): "--write: cannot write to no/page.md",
    }.items():
        wrong = reproduced(*words)
        assert wrong.code == 2 and said in wrong.err


def test_one_that_never_gets_there_takes_its_whole_length(
    reproduced: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds to an accuracy: reached by one side in rounds 3 and 4 of 30, never by the other."""
    path = items.FOLDER / "ours" / "table-1.yaml"
    tree = yaml.safe_load(path.read_text())
    sides = {"better": {"method": "FedAvg"}, "than": {"method": "alone"}}
    tree["claims"] = [{"text": "quicker", "measure": "rounds_to(50)", "lower": True, **sides}]
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    monkeypatch.setattr("mutua.studies.sweep.PlannedRun.finished", True)
    monkeypatch.setattr(RunNumbers, "whole", lambda self, asked: 30.0)

    def measure(self: RunNumbers, asked: Measure, alone: Any = None, among: Any = None) -> float | None:
        return 3.0 + int(self.path.name[-1]) if self.path.name.startswith("FedAvg") else None

    monkeypatch.setattr(RunNumbers, "measure", measure)
    monkeypatch.setattr(RunNumbers, "summary", {"clients": []})
    [claim] = Reproduction("ours/table-1", "laptop", range(2), Path("nowhere")).claims
    assert (claim.difference, claim.verdict) == (30 - 3.5, "holds")
    assert claim.ours == ((3.5, pytest.approx(math.sqrt(0.5))), (None, None))


def test_a_claim_is_over_the_clients_that_count_on_both_sides(
    reproduced: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c1 has never trained in FedAvg's small run: no claim is about it, also where it is the best of all."""
    monkeypatch.setattr("mutua.studies.sweep.PlannedRun.finished", True)

    def summary(self: RunNumbers) -> dict[str, Any]:
        reached = {"c0": 0.5, "c1": 0.9} if self.path.name.startswith("alone") else {"c0": 0.3, "c1": 0.1}
        idle = self.path.name.startswith("FedAvg-small")
        return {
            "clients": [
                {"id": c, "accuracy": {"predictor": value}, "trained": not (idle and c == "c1")}
                for c, value in reached.items()
            ],
        }

    monkeypatch.setattr(RunNumbers, "summary", property(summary))
    done = Reproduction("ours/table-1", "laptop", range(2), Path("nowhere"))
    claim = done._judged(done.item.claims[0])
    assert claim.difference == pytest.approx(100 * (0.5 - 0.3))
    assert [mean for mean, _ in claim.ours] == pytest.approx([50, 30])
    # A cell's own number is over all that count in it.
    assert done.values({"method": "alone"}, "predictor")[0] == pytest.approx(70)
    assert done.values({"method": "FedAvg"}, "predictor")[0] == pytest.approx((30 + 20) / 2)


def test_the_papers_numbers_are_of_the_cells_that_run(
    reproduced: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = items.FOLDER / "ours" / "table-1.yaml"
    tree = yaml.safe_load(path.read_text())
    tree["laptop"]["keep"]["size"] = ["small"]
    tree["published"]["values"] = [
        {"cell": {"size": size, "method": method}, "measure": "predictor", "value": value}
        for value, (size, method) in enumerate([("small", "FedAvg"), ("large", "FedAvg"), ("small", "alone")])
    ]
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    # Of FedAvg seed 1 is missing, and nobody has bytes_up.
    monkeypatch.setattr(
        "mutua.studies.sweep.PlannedRun.finished", property(lambda run: run.path.name != "FedAvg-small-1")
    )

    def measure(self: RunNumbers, asked: Measure, alone: Any = None, among: Any = None) -> float | None:
        found = int(self.path.name[-1]) ** 2 / 10 + (0.1 if self.path.name.startswith("alone") else 0)
        return found if asked.name in ("predictor", "global_own") else None

    monkeypatch.setattr(RunNumbers, "measure", measure)
    monkeypatch.setattr(RunNumbers, "summary", {"clients": []})
    done = Reproduction("ours/table-1", "laptop", range(3), Path("nowhere"))
    rows = [(row.cell, row.measure, row.paper, row.ours, row.seeds) for row in done.table]
    assert rows[:2] == [
        ("FedAvg, small", "predictor", 0, pytest.approx(20), 2),
        ("alone, small", "predictor", 2, pytest.approx(80 / 3), 3),
    ]
    assert {row[:2] for row in rows[2:]} == {
        (f"{method}, small", f"{name}(c0)")
        for method in ("FedAvg", "alone")
        for name in ("predictor", "global_own")
    }
    first = done.claims[0]
    assert first.paper == (2, 0)
    # Both sides over the same two seeds, as their difference is.
    assert [mean for mean, _ in first.ours] == pytest.approx([30, 20])
    assert (first.seeds, first.difference) == (2, pytest.approx(10))


def test_a_page_is_of_the_items_as_they_are_now(reproduced: Command, tmp_path: Path) -> None:
    assert reproduced("reproduce", "ours/table-1", "--seeds", "2", *OUT).code == 0
    path = items.FOLDER / "ours" / "table-1.yaml"
    tree = yaml.safe_load(path.read_text())
    tree["claims"] = [{**tree["claims"][0], "text": "as it is said now"}]
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    shutil.rmtree(tmp_path / "out/ours/table-1/alone-large-1")
    assert reproduced("reproduce", "--write", "page.md", "--out", "out").code == 0
    [row] = [line for line in (tmp_path / "page.md").read_text().splitlines() if "as it is said now" in line]
    assert "1 of 3 items were run (1 in part), in" in (tmp_path / "page.md").read_text()
    assert "table-1 (Table 9), 7 of 8 runs" in row and "| cannot tell | 1 |" in row

    # Runs of another recipe are none of this item.
    tree["laptop"]["set"]["rounds"] = 2
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    done = reproduced("reproduce", "--write", "page.md", "--out", "out")
    assert done.code == 0 and "ours/table-1: --out: out/ours/table-1/FedAvg-small-0 is of another" in done.err
    assert (tmp_path / "page.md").read_text().count("| not run |") == 3


def test_numbers_of_the_same_data_are_compared_as_they_are(reproduced: Command, tmp_path: Path) -> None:
    """And a client that has all data in one place has a number for each domain."""
    names = ("east", "north", "south")
    tree = item(
        {"data": "hospitals", "partition": {"kind": "domains"}, "models": {"global": "linear"}, "rounds": 2},
        grid={"method": {"pooled": {"method": "centralised"}}},
        laptop={"cut": ["nothing"]},
        published={
            "same_data": True,
            "doubt": "One split.",
            "values": [{"cell": {"method": "pooled"}, "measure": "predictor(north)", "value": 16}],
        },
        measures=[f"predictor({' '.join(names)})", "predictor"],
    )
    (items.FOLDER / "ours" / "same.yaml").write_text(yaml.safe_dump(tree))
    done = reproduced("reproduce", "ours/same", "--seeds", "3", *OUT)
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "out/ours/same/reproduction.json").read_text())
    by_hand: dict[str, list[float]] = {}
    for seed in range(3):
        run = tmp_path / f"out/ours/same/pooled-{seed}"
        weights = load_file(run / "clients/pooled/personal.safetensors")
        for client in Recipe.load(run / "recipe.yaml").federation().clients:  # as they are before they are pooled
            x = client.test.preprocess(client.test.x)
            hits = (x @ weights["head.weight"].T + weights["head.bias"]).argmax(1) == client.test.y
            by_hand.setdefault(client.id, []).append(100 * float(hits.float().mean()))
    rows = {(row["cell"], row["measure"]): row for row in record["values"]}
    north = rows["pooled", "predictor(north)"]
    assert north["ours"] == pytest.approx(fmean(by_hand["north"]))
    wide = stdev(by_hand["north"]) * math.sqrt(1 + 1 / 3)
    ends = scipy_stats.t.interval(0.95, 2, fmean(by_hand["north"]), wide)
    ends = max(ends[0], 0), min(ends[1], 100)
    assert north["interval"] == pytest.approx(list(ends))
    assert north["verdict"] == ("holds" if ends[0] <= 16 <= ends[1] else "does not hold")
    [measured] = [row for row in record["measured"] if row["cell"] == "pooled"]
    over, whole = measured["values"].values()
    assert over[0] == pytest.approx(fmean(fmean(by_hand[name]) for name in names))
    assert whole[0] != pytest.approx(over[0])  # over patients, not over hospitals
    assert reproduced("reproduce", "--write", "page.md", "--out", "out").code == 0
    page = (tmp_path / "page.md").read_text()
    assert f"| pooled | predictor(north) | 16.00 | {north['ours']:.2f} ±" in page
    assert f"{ends[0]:.2f} to {ends[1]:.2f} | {north['verdict']} |" in page and "One split." in page


# Studies of our own: measures of every cell, and what validation chooses


def chosen_item(tiny: dict[str, Any]) -> dict[str, Any]:
    return item(
        tiny,
        grid={
            "method": {"FedAvg": {"method": "fedavg"}, "alone": {"method": "independent"}},
            "lr": {"low": {"optimizer.lr": 0.001}, "high": {"optimizer.lr": 0.5}},
        },
        laptop={"set": {"rounds": 4, "data.samples_per_client": 60}, "cut": ["4 rounds"]},
        choose="lr",
        measures=["predictor", "worst", "better_off", "bytes_up", "cpu_seconds"],
        claims=[
            {"text": "better", "measure": "predictor", "better": {"method": "FedAvg"}, "than": {"method": "alone"}}
        ],
    )


def test_validation_chooses_and_measures_are_of_what_it_has_chosen(
    reproduced: Command, tmp_path: Path, tiny: dict[str, Any]
) -> None:
    (items.FOLDER / "ours" / "study.yaml").write_text(yaml.safe_dump(chosen_item(tiny), sort_keys=False))
    done = reproduced("reproduce", "ours/study", "--seeds", "2", *OUT)
    assert done.code == 0, done.err

    def clients(method: str, lr: str, seed: int, split: str) -> list[float]:
        with (tmp_path / f"out/ours/study/{method}-{lr}-{seed}/history.csv").open() as file:
            rows = [line.strip().split(",") for line in file]
        return [
            float(r[5])
            for r in rows
            if r[0] == "4" and r[1] != "global" and r[2:5] == ["predictor", split, "accuracy"]
        ]

    record = json.loads((tmp_path / "out/ours/study/reproduction.json").read_text())
    assert [row["cell"] for row in record["measured"]] == ["FedAvg", "alone"]
    best = {}
    for row in record["measured"]:
        method = row["cell"]
        means = {lr: fmean(fmean(clients(method, lr, s, "val")) for s in (0, 1)) for lr in ("low", "high")}
        best[method] = row["chosen"]
        assert means[row["chosen"]] == max(means.values())
        tested = [clients(method, row["chosen"], s, "test") for s in (0, 1)]
        assert row["values"]["predictor"][0] == pytest.approx(100 * fmean(map(fmean, tested)))
        assert row["values"]["worst"][0] == pytest.approx(100 * fmean(map(min, tested)))
        assert 0 < row["values"]["cpu_seconds"][0] < 60
    fedavg, alone = record["measured"]
    pairs = [
        own > other
        for s in (0, 1)
        for own, other in zip(
            clients("FedAvg", best["FedAvg"], s, "test"), clients("alone", best["alone"], s, "test"), strict=True
        )
    ]
    assert fedavg["values"]["better_off"][0] == pytest.approx(100 * fmean(pairs))
    assert alone["values"]["better_off"] == [None, None] and alone["values"]["bytes_up"][0] == 0
    [claim] = record["claims"]
    assert claim["ours"][0][0] == pytest.approx(fedavg["values"]["predictor"][0])
    assert record["clients"] == {} and record["values"] == []
    served = f"{fedavg['values']['predictor'][0]:.2f}"
    assert re.search(rf"^FedAvg +{best['FedAvg']} +{served} ±", done.out, re.MULTILINE)
    assert "lr: the best on validation data" in done.out and "8 of 8 runs" in done.out

    assert reproduced("reproduce", "--write", "page.md", "--out", "out").code == 0
    page = (tmp_path / "page.md").read_text()
    assert "study, mean and deviation over 2 seeds:" in page
    assert "| cell | lr | predictor | worst | better_off | bytes_up | cpu_seconds |" in page
    assert re.search(rf"^\| alone \| {best['alone']} \| [\d.]+ ± [\d.]+ \|", page, re.MULTILINE)


def test_nothing_is_chosen_before_all_rivals_have_run(
    reproduced: Command, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (items.FOLDER / "ours" / "study.yaml").write_text(yaml.safe_dump(chosen_item(tiny), sort_keys=False))
    monkeypatch.setattr(
        "mutua.studies.sweep.PlannedRun.finished", property(lambda run: run.path.name != "FedAvg-high-0")
    )
    monkeypatch.setattr(RunNumbers, "validated", property(lambda run: float("low" in run.path.name)))
    monkeypatch.setattr(RunNumbers, "headline", ACCURACY)
    done = Reproduction("ours/study", "laptop", range(2), Path("nowhere"))
    assert done.chosen == {(("method", "alone"),): "low"}
    assert done.values({"method": "FedAvg"}, "predictor") == {}


def test_what_is_chosen_cannot_be_named_elsewhere(tiny: dict[str, Any]) -> None:
    tree = chosen_item(tiny)
    tree["claims"][0]["better"] = {"method": "FedAvg", "lr": "low"}
    with pytest.raises(InputError, match=r"'lr' is chosen by validation; name no label of it elsewhere"):
        items.Item.of(tree)
    with pytest.raises(InputError, match=r"choose: 'rate' is not an axis of grid"):
        items.Item.of({**chosen_item(tiny), "choose": "rate"})
