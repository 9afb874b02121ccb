"""Reports: their numbers are those of the folder, names stay text, nothing is loaded from elsewhere or trained."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.colors import to_hex
from typer.testing import CliRunner

from mutua import InputError, Recipe
from mutua.cli.app import app
from mutua.reports import charts, projections
from mutua.reports.document import Code, Report
from mutua.reports.figures import COLOURS
from mutua.reports.html import html_page
from mutua.reports.pdf import pdf_file
from mutua.reports.report import compose as report
from mutua.reports.study import read_study
from mutua.reports.tables import Bytes, PercentagePoints, Table, cell_text
from mutua.runs.saved_models import SavedModel
from mutua.studies.statistics import Spread
from mutua.support import safe_reading
from mutua.support.files import to_json
from mutua.support.text import percent, size

Runs = Callable[..., tuple[Path, Any]]
ODD = "<b>$x_{&\\"
SEEDS = (0, 1)
METHODS = ("fml", "fedavg", "fedprox:mu=0.1", "independent")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, tiny: dict[str, Any]) -> Path:
    """A comparison of four methods over two seeds."""
    place = tmp_path_factory.mktemp("compared")
    # Three digits each, so that clients differ; enough learning for accuracies to differ too.
    harder = {"partition": {"kind": "shards", "clients": 3, "shards_per_client": 3}, "rounds": 3}
    data = {"name": "mnist5k", "samples_per_client": 60}
    optimizer = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
    recipe = {**tiny, **harder, "data": data, "models": {"global": "mlp"}, "optimizer": optimizer}
    (place / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    words = ["compare", place / "recipe.yaml", "--methods", ",".join(METHODS), "--seeds", "0,1", "--workers", 1]
    CliRunner().invoke(app, [*map(str, words), "--out", str(place / "out"), "--json"], catch_exceptions=False)
    return place / "out"


@pytest.fixture(scope="module")
def made(compared: Path) -> Report:
    return report(read_study(compared))


@pytest.fixture(scope="module")
def text(made: Report) -> str:
    """The page of the comparison."""
    return html_page(made)


@pytest.fixture
def copied(compared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compared, tmp_path / "copy"))


# Reading what was written


class Page(HTMLParser):
    """Tables by the id of their titles, images, every attribute that could load something, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.images: list[dict[str, str]] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        held = {key: value or "" for key, value in attrs}
        self.tags.append(tag)
        self.loads += [held[key] for key in ("src", "href", "srcset", "data", "action") if key in held]
        if tag == "table":
            self._rows = self.tables.setdefault(held["aria-labelledby"].removeprefix("table-"), [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
            self._cell = True
        elif tag == "img":
            self.images.append(held)

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._cell:
            self._rows[-1][-1] += data


def markdown_rows(text: str) -> list[list[str]]:
    lines = [line[2:-2] for line in text.splitlines() if line.startswith("|")]
    found = [re.split(r" (?<!\\)\| ", line) for line in lines]
    return [[re.sub(r"\\(.)", r"\1", cell) for cell in row] for row in [found[0], *found[2:]]]


def latex_rows(text: str) -> list[list[str]]:
    words = {r"\textless{}": "<", r"\textgreater{}": ">", r"$\pm$": "±", r"\textbackslash{}": "\\", "--": "–"}
    found = []
    for line in text.splitlines():
        if line.endswith(r" \\"):
            cells = re.split(r" (?<!\\)& ", line[:-3])
            for tex, plain in words.items():
                cells = [cell.replace(tex, plain) for cell in cells]
            found.append([re.sub(r"\\([&%$#_{}])", r"\1", cell) for cell in cells])
    return found


def said(made: Report) -> str:
    """All paragraphs."""
    return " ".join(block for section in made.sections for block in section.blocks if isinstance(block, str))


# The numbers


def by_hand(compared: Path) -> dict[str, dict[str, Any]]:
    """The results again, from the files of the runs and NumPy alone."""
    found: dict[str, dict[str, Any]] = {}
    summaries = {
        (method, seed): json.loads((compared / f"{method.replace(':', '-')}-{seed}" / "run.json").read_text())[
            "summary"
        ]
        for method in METHODS
        for seed in SEEDS
    }
    for method in METHODS:
        mine = [summaries[method, seed] for seed in SEEDS]
        own = np.array([[c["accuracy"]["predictor"] for c in one["clients"]] for one in mine])
        alone = np.array(
            [[c["accuracy"]["predictor"] for c in summaries["independent", seed]["clients"]] for seed in SEEDS]
        )
        sent = []
        for seed in SEEDS:
            with (compared / f"{method.replace(':', '-')}-{seed}" / "ledger.csv").open(newline="") as file:
                sent.append(sum(int(r["bytes"]) for r in csv.DictReader(file) if r["direction"] == "up"))
        found[method] = {
            "global": None if method == "independent" else [one["global"]["accuracy"] for one in mine],
            "predictor": own.mean(1),
            "worst": own.min(1),
            "spread": own.std(1),
            "better off": None if method == "independent" else (own > alone).mean(1),
            "sent": np.mean(sent),
        }
    return found


def told(value: Any) -> str:
    return "–" if value is None else f"{100 * np.mean(value):.1f} ± {100 * np.std(value, ddof=1):.1f}"


def test_results_are_those_of_the_folder_in_every_form(made: Report, text: str, compared: Path) -> None:
    expected = by_hand(compared)
    [table] = [table for table in made.tables if table.name == "accuracies"]
    rows = [["method", "seeds", "global", "predictor", "worst", "spread", "better off", "sent"]]
    for method, numbers in expected.items():
        *accuracies, sent = numbers.values()
        rows.append([method, "2", *map(told, accuracies), size(sent)])
    assert Page(text).tables["accuracies"] == rows
    assert markdown_rows(table.markdown()) == rows
    assert latex_rows(table.latex()) == rows
    for row in csv.DictReader(io.StringIO(table.csv())):
        for name, values in expected[row["method"]].items():
            if values is None:
                assert row[name] == row[f"{name} sd"] == ""
            elif name == "sent":
                assert float(row[name]) == pytest.approx(values)
            else:
                assert float(row[name]) == pytest.approx(np.mean(values))
                assert float(row[f"{name} sd"]) == pytest.approx(np.std(values, ddof=1), abs=1e-12)
    assert len({str(row) for row in rows}) == 5  # methods do differ


@pytest.mark.filterwarnings("ignore:Precision loss")
def test_differences_to_the_first_have_scipys_intervals(made: Report, compared: Path) -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = by_hand(compared)
    [table] = [table for table in made.tables if table.name == "differences"]
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert [(row["method"], row["measure"]) for row in rows] == [
        (method, name)
        for method in METHODS[1:]
        for name in ("global", "predictor")
        if expected[method][name] is not None
    ]
    for row in rows:
        ours, first = expected[row["method"]][row["measure"]], expected["fml"][row["measure"]]
        interval = stats.ttest_rel(ours, first).confidence_interval(0.95)
        assert int(row["seeds"]) == len(ours)
        assert float(row["difference"]) == pytest.approx(np.subtract(ours, first).mean())
        possible = np.clip((interval.low, interval.high), -1, 1)  # of two seeds it is wider than any difference
        assert (float(row["from"]), float(row["to"])) == pytest.approx(tuple(possible))
        assert row["is"] == ("better" if interval.low > 0 else "worse" if interval.high < 0 else "cannot tell")


def test_clients_have_their_own_numbers(made: Report, compared: Path) -> None:
    [table] = [table for table in made.tables if table.name == "clients"]
    for k, row in enumerate(csv.DictReader(io.StringIO(table.csv()))):
        for column, method, model in (
            ("fml", "fml", "predictor"),
            ("fml, global", "fml", "global"),
            ("independent", "independent", "predictor"),
        ):
            held = [json.loads((compared / f"{method}-{seed}" / "run.json").read_text()) for seed in SEEDS]
            values = [one["summary"]["clients"][k]["accuracy"][model] for one in held]
            assert float(row[column]) == pytest.approx(np.mean(values))
    assert "fedavg, global" not in table.heads  # which is what FedAvg's clients serve with


def test_what_left_adds_up_to_the_ledger(made: Report, text: str, compared: Path) -> None:
    [table] = [table for table in made.tables if table.name == "left"]
    found = list(csv.DictReader(io.StringIO(table.csv())))
    for method, numbers in by_hand(compared).items():
        mine = [row for row in found if row["method"] == method]
        total = sum(float(row["bytes"]) * len(row["clients"].split(", ")) for row in mine)
        assert total == pytest.approx(numbers["sent"])
    kinds = {(row["method"], row["kind"], row["name"]) for row in found}
    assert ("fedavg", "count", "samples") in kinds
    assert ("independent", "nothing", "") in kinds
    assert not any(method == "fml" and kind == "count" for method, kind, _ in kinds)
    assert "Differential privacy: none." in Page(text).text


def test_what_was_run_is_said(text: str) -> None:
    page = Page(text)
    said = " ".join(page.text.split())
    for words in (
        "fml, fedavg, fedprox:mu=0.1 and independent were compared over seeds 0 and 1.",
        "The 3 clients (c0, c1 and c2) learned from mnist5k (60 samples per client), dealt by shards",
        "Their own models: mlp; the global: mlp.",
        "With fedavg and fedprox:mu=0.1 every client serves with the global.",
        "3 rounds of 1 epoch, batches of 7, optimizer sgd (lr 0.1, momentum 0.9).",
        "after the last round; nothing was selected on test data",
        "fml-0/recipe.yaml",
        "torch ",
    ):
        assert words in said
    settings = dict(page.tables["settings"])
    assert "method.mu 0.1" in settings["fedprox:mu=0.1"]
    assert "rounds" not in "".join(settings.values())  # which are the same for all


def test_the_command_is_told_as_it_was_typed_and_notes_are_not_lost(command: Callable[..., Any]) -> None:
    words = ("compare", "tiny.yaml", "--methods", "fml,fedavg", "--seeds", "0", "--workers", "1", "--out", "a b")
    odd = ("--set", "partition={kind: shards, clients: 2, shards_per_client: 3}")
    assert command(*words, *odd).code == 0
    [repeat] = [section for section in report(read_study(Path("a b"))).sections if section.title == "To repeat it"]
    codes = [block.text for block in repeat.blocks if isinstance(block, Code) and not block.folded]
    assert codes[0] == shlex.join(["mutua", *words, *odd])
    text = html_page(report(read_study(Path("a b"))))
    assert "mutua run &#x27;a b/fml-0/recipe.yaml&#x27;" in text
    notes = json.loads(Path("a b/fml-0/run.json").read_text())["notes"]
    assert notes and all(f"<p>Note: {escape(note)}.</p>" in text for note in notes)


@pytest.mark.filterwarnings("ignore:Precision loss")
def test_a_report_opens_with_a_verdict_for_every_client(made: Report, compared: Path) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert made.sections[0].title == "Is each client better off than alone?"
    [table] = [block for block in made.sections[0].blocks if isinstance(block, Table)]
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert [(row["method"], row["client"]) for row in rows] == [
        (method, client) for method in METHODS[:3] for client in ("c0", "c1", "c2")
    ]

    def own(method: str, client: str) -> list[float]:
        folders = [compared / f"{method.replace(':', '-')}-{seed}" for seed in SEEDS]
        held = [json.loads((folder / "run.json").read_text())["summary"]["clients"] for folder in folders]
        return [next(c["accuracy"]["predictor"] for c in one if c["id"] == client) for one in held]

    for row in rows:
        joined, alone = own(row["method"], row["client"]), own("independent", row["client"])
        difference = np.subtract(joined, alone)
        interval = (difference.mean(),) * 2
        if difference.std():
            found = stats.ttest_rel(joined, alone).confidence_interval(0.95)
            interval = tuple(np.clip((found.low, found.high), -1, 1))
        assert float(row["difference"]) == pytest.approx(difference.mean())
        assert (float(row["from"]), float(row["to"])) == pytest.approx(interval)
        below, above = interval[1] < 0, interval[0] > 0
        assert row["is"] == ("better off" if above else "worse off" if below else "cannot tell")
    for method in METHODS[:3]:
        words = [row["is"] for row in rows if row["method"] == method]
        counted = {word: words.count(word) for word in ("better off", "worse off", "cannot tell")}
        told = ", ".join(f"{n} {word}" for word, n in counted.items() if n)
        assert f"{method}: of 3 clients {told}." in made.sections[0].blocks


def test_with_one_seed_a_verdict_rests_on_the_test_samples(copied: Path) -> None:
    for folder in copied.glob("*-1"):
        shutil.rmtree(folder)
    made = report(read_study(copied))
    [table] = [table for table in made.tables if table.name == "verdicts"]
    row = next(csv.DictReader(io.StringIO(table.csv())))
    held = {
        method: json.loads((copied / f"{method}-0" / "run.json").read_text())["summary"]["clients"][0]
        for method in ("fml", "independent")
    }
    n = sum(count for _, _, count in json.loads((copied / "fml-0/clients/c0/confusion.json").read_text())["cells"])
    assert held["fml"]["test_samples"] == n
    a, b = ((one["accuracy"]["predictor"] * n + 1) / (n + 2) for one in held.values())
    half = 1.959964 * np.sqrt((a * (1 - a) + b * (1 - b)) / (n + 2))
    assert (float(row["from"]), float(row["to"])) == pytest.approx((a - b - half, a - b + half), abs=1e-6)
    assert "over test samples" in " ".join(table.remarks)


def test_the_intervals_of_a_method_with_fewer_seeds_are_said_to_be_what_they_are(copied: Path) -> None:
    shutil.rmtree(copied / "fml-1")
    [table] = [table for table in report(read_study(copied)).tables if table.name == "verdicts"]
    assert "Student's t over seeds or, where there is one seed, over test samples" in " ".join(table.remarks)
    for method in METHODS[1:3]:
        for seed in SEEDS[1:]:
            shutil.rmtree(copied / f"{method.replace(':', '-')}-{seed}")
    [table] = [table for table in report(read_study(copied)).tables if table.name == "verdicts"]
    assert "the 95 % interval is over test samples" in " ".join(table.remarks)


def test_a_run_without_one_alone_says_how_to_get_its_verdicts(compared: Path) -> None:
    made = report(read_study(compared / "fml-0"))
    [told] = made.sections[0].blocks
    assert "mutua compare RECIPE --methods fml,independent" in str(told)
    assert made.sections[0].title == "Is each client better off than alone?"


def test_sites_with_data_of_their_own_learn_who_opted_out_and_whether_alone_is_a_fair_rival(
    command: Callable[..., Any],
) -> None:
    rng = np.random.default_rng(0)
    for name in ("north", "south", "west"):
        x, y = rng.normal(size=(30, 5)).astype("float32"), np.arange(30) % 2
        np.savez(f"{name}.npz", x=x, y=y, withheld=np.full(30, name == "west"))
    clients = [
        {"id": name, "data": {"name": "arrays", "path": f"{name}.npz"}, "model": "mlp"}
        for name in ("north", "south", "west")
    ]
    recipe = {"clients": clients, "models": {"global": "mlp"}, "method": "finetuned", "rounds": 1}
    Path("sites.yaml").write_text(yaml.safe_dump({**recipe, "opt_out": {"mask": "withheld"}}))
    for out, alone in (("short", "independent"), ("fair", "independent:patience=10")):
        methods = ("--methods", f"finetuned,{alone}", "--seeds", "0,1")
        assert command("compare", "sites.yaml", *methods, "--out", out).code == 0
        text = html_page(report(read_study(Path(out))))
        assert "each client its own, some opted out (mask withheld)" in text
        assert "Training samples that are opted out, with seed 0: west 21 of 21." in text
        assert "two seeds make it very wide" in text
        assert ("finetuned: trained on after the last round" in text) == (out == "short")


def test_other_metrics_are_those_of_scikit_learn(compared: Path) -> None:
    of = pytest.importorskip("sklearn.metrics")
    made = report(read_study(compared / "fml-0"))
    recipe = Recipe.load(compared / "fml-0" / "recipe.yaml")
    tables = {table.name: list(csv.DictReader(io.StringIO(table.csv()))) for table in made.tables}
    balanced = []
    for client, row in zip(recipe.federation().clients, tables["metrics-clients"], strict=True):
        p = SavedModel(compared / "fml-0" / "clients" / client.id).predictor()(client.test.x).numpy()
        y = client.test.y.numpy()
        balanced.append(of.balanced_accuracy_score(y, p.argmax(1)))
        areas = [of.roc_auc_score(y == c, p[:, c]) for c in np.unique(y)]
        assert float(row["balanced"]) == pytest.approx(balanced[-1])
        assert float(row["AUROC"]) == pytest.approx(np.mean(areas))
        assert float(row["macro F1"]) == pytest.approx(
            of.f1_score(y, p.argmax(1), labels=np.unique(y), average="macro")
        )
    assert float(tables["metrics"][0]["balanced"]) == pytest.approx(np.mean(balanced))


def test_the_confusion_matrix_is_the_sum_of_the_clients(made: Report, compared: Path) -> None:
    [picture] = [picture for picture in made.pictures if picture.name == "confusion-fml"]
    held = [json.loads(file.read_text()) for file in (compared / "fml-0/clients").glob("*/confusion.json")]
    total = np.zeros((10, 10), int)
    for true, predicted, count in (cell for one in held for cell in one["cells"]):
        total[true, predicted] += count
    axes = picture.figure().axes[0]
    assert np.array_equal(axes.images[0].get_array().filled(0), total)
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("true class", "predicted class")
    assert f"right: {total.trace()} of {total.sum()}" in picture.alt


def test_a_matrix_as_it_was_once_written_is_read_too(compared: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(compared / "fml-0", tmp_path / "run"))
    new = read_study(run).runs[0].confusions
    for file in run.glob("clients/*/confusion.json"):
        held = json.loads(file.read_text())
        whole = np.zeros((len(held["classes"]),) * 2, int)
        for true, predicted, count in held.pop("cells"):
            whole[true, predicted] = count
        file.write_text(json.dumps({**held, "confusion": whole.tolist()}))
    old = read_study(run).runs[0].confusions
    assert new.keys() == old.keys()
    for client, (classes, cells) in new.items():
        assert old[client][0] == classes and np.array_equal(old[client][1], cells)


def test_a_page_has_a_table_of_contents(made: Report, text: str) -> None:
    links = re.findall(r'<a href="#(section-\d+)">([^<]*)</a>', text)
    assert [escape(section.title) for section in made.sections] == [title for _, title in links]
    assert all(f'<h2 id="{at}">{title}</h2>' in text for at, title in links)


def test_the_datas_path_is_named(command: Callable[..., Any]) -> None:
    raw = np.random.default_rng(0)
    np.savez("mine.npz", x=raw.integers(0, 256, (60, 8, 8), np.uint8), y=np.arange(60) % 2)
    data = ("--set", "data={name: arrays, path: mine.npz}", "--set", "partition={kind: iid, clients: 2}")
    assert command("run", "tiny.yaml", *data, "--out", "out").code == 0
    assert "learned from arrays mine.npz, dealt by iid" in said(report(read_study(Path("out"))))


# The pictures


def test_curves_are_means_and_deviations_over_seeds_in_the_methods_colours(made: Report, compared: Path) -> None:
    [picture] = [picture for picture in made.pictures if picture.name == "curve-predictor"]
    [axes] = picture.figure().axes
    for line, band, method in zip(axes.lines, axes.collections, METHODS, strict=True):
        curves = []
        for seed in SEEDS:
            with (compared / f"{method.replace(':', '-')}-{seed}" / "history.csv").open(newline="") as file:
                rows = [r for r in csv.DictReader(file) if (r["split"], r["metric"]) == ("test", "accuracy")]
            own = [r for r in rows if r["model"] == "predictor"]
            curves.append([np.mean([float(r["value"]) for r in own if r["round"] == str(t)]) for t in range(4)])
        mean, std = np.mean(curves, 0), np.std(curves, 0, ddof=1)
        assert np.allclose(line.get_ydata(), mean) and list(line.get_xdata()) == [0, 1, 2, 3]
        edges = band.get_paths()[0].vertices
        assert edges[:, 1].max() == pytest.approx((mean + std).max())
        assert edges[:, 1].min() == pytest.approx((mean - std).min())
        assert line.get_color() == COLOURS[method.partition(":")[0]]


def test_the_trade_off_is_against_bytes_sent_so_far(made: Report, compared: Path) -> None:
    [picture] = [picture for picture in made.pictures if picture.name == "trade-off-predictor"]
    [axes] = picture.figure().axes
    with (compared / "fml-0" / "ledger.csv").open(newline="") as file:
        rows = [(int(r["round"]), int(r["bytes"])) for r in csv.DictReader(file) if r["direction"] == "up"]
    sent = [sum(size for round, size in rows if round <= t) for t in range(4)]  # the same with every seed
    assert list(axes.lines[0].get_xdata()) == sent
    alone = axes.lines[3]
    assert alone.get_linestyle() == "--" and alone.get_color() == COLOURS["independent"]
    assert alone.get_ydata()[0] == pytest.approx(by_hand(compared)["independent"]["predictor"].mean())


def test_bars_are_alone_global_and_personal(made: Report) -> None:
    [picture] = [picture for picture in made.pictures if picture.name == "clients-fml"]
    figure = picture.figure()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["alone", "global", "personal"]
    [table] = [table for table in made.tables if table.name == "clients"]
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    [axes] = figure.axes
    for bars, column in zip(axes.containers, ("independent", "fml, global", "fml"), strict=True):
        assert [bar.get_width() for bar in bars] == pytest.approx([float(row[column]) for row in rows])
    alone, _, own = axes.containers
    assert to_hex(alone[0].get_facecolor()).upper() == COLOURS["alone"]
    assert to_hex(own[0].get_facecolor()).upper() == COLOURS["fml"]


def test_labels_are_those_of_the_test_data(made: Report, compared: Path) -> None:
    [picture] = [picture for picture in made.pictures if picture.name == "labels"]
    shown = picture.figure().axes[0].images[0].get_array().filled(0)
    recipe = Recipe.load(compared / "fml-0" / "recipe.yaml")
    assert np.array_equal(shown, np.stack([client.test.counts() for client in recipe.federation().clients]))
    assert picture.title == "Test samples by client and class, seed 0"


def test_data_that_differ_have_a_picture_each(
    finished: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = SimpleNamespace(fit_transform=lambda x: x[:, :2])
    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=lambda **_: plane))
    few, many = ({"data": {"name": "mnist5k", "samples_per_client": n}} for n in (20, 30))
    for name, method, data in (("a", "fml", few), ("b", "fml", many), ("c", "fedavg", many)):
        shutil.copytree(finished(method, **data)[0], tmp_path / name)
    drawn = {picture.name: picture.title for picture in report(read_study(tmp_path), load_data=True).pictures}
    for name in ("labels", "data"):
        assert [key for key in drawn if key.startswith(name)] == [f"{name}-a", f"{name}-b"]
        assert drawn[f"{name}-b"].endswith("seed 0: b")


def test_second_labels_of_a_method_take_another_colour(compared: Path, copied: Path) -> None:
    told = json.loads((copied / "comparison.json").read_text())
    for one in told["runs"]:
        one["cell"] = {"method": one["method"], "data": "here"}
    (copied / "comparison.json").write_text(json.dumps(told))
    titles = [picture.title for picture in report(read_study(copied)).pictures if picture.name.startswith("curve")]
    assert titles and all(title.endswith(": data here") for title in titles)  # a picture for each of other axes
    for one in told["runs"]:
        one["method"] = one["method"].replace("fedavg", "fedprox:mu=0.2")
    (copied / "comparison.json").write_text(json.dumps(told))
    run = json.loads((copied / "fedavg-0" / "run.json").read_text())
    assert run["summary"]["method"] == "fedavg"
    labels = read_study(copied).labels
    assert labels == ["fml", "fedprox:mu=0.2", "fedprox:mu=0.1", "independent"]


# The page


def test_the_page_needs_nothing_else(made: Report, text: str) -> None:
    page = Page(text)
    assert page.loads and all(value.startswith(("data:", "#section-")) for value in page.loads)
    assert "http:" not in text and "https:" not in text and "url(" not in text and "@import" not in text
    assert "script" not in page.tags
    assert "default-src &#x27;none&#x27;" in text or "default-src 'none'" in text
    assert len(page.images) == len(list(made.pictures)) == 12
    assert all(len(image["alt"]) > 40 for image in page.images)
    assert len({image["alt"] for image in page.images}) == 12
    assert [tag for tag in page.tags if tag == "h1"] == ["h1"] and page.tags.count("h2") >= 8
    assert html_page(made) == text  # the same bytes for the same folder


def test_odd_names_stay_text(copied: Path) -> None:
    run = copied / "fml-0"
    held = json.loads((run / "run.json").read_text())
    held["summary"]["clients"][0]["id"] = ODD
    (run / "run.json").write_text(json.dumps(held))
    for name in ("history.csv", "ledger.csv"):
        with (run / name).open(newline="") as file:
            rows = [[ODD if cell == "c0" else cell for cell in row] for row in csv.reader(file)]
        with (run / name).open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    confusion = run / "clients" / "c0" / "confusion.json"
    counts = json.loads(confusion.read_text())
    counts["classes"][0] = ODD
    confusion.write_text(json.dumps(counts))
    made = report(read_study(run))
    page = Page(html_page(made))
    assert "b" not in page.tags
    assert [row[0] for row in page.tables["clients"]] == ["client", ODD, "c1", "c2"]
    assert any(ODD in image["alt"] for image in page.images)
    tables = {table.name: table for table in made.tables}
    assert markdown_rows(tables["clients"].markdown())[1][0] == ODD
    assert latex_rows(tables["clients"].latex())[1][0] == ODD
    assert next(csv.DictReader(io.StringIO(tables["clients"].csv())))["client"] == ODD
    assert pdf_file(made).startswith(b"%PDF")


def test_one_run_has_a_report_too(finished: Runs) -> None:
    folder, result = finished("fml", rounds=2)
    made = report(read_study(folder))
    page = Page(html_page(made))
    mean = percent(result.summary()["mean"]["predictor"]["accuracy"])
    assert page.tables["accuracies"][1][3] == mean
    rows = {row[0]: row[1:] for row in page.tables["clients"][1:]}
    for client in result.summary()["clients"]:
        assert rows[client["id"]] == [percent(client["accuracy"][m]) for m in ("predictor", "global")]
    assert "fml was run with seed 0." in page.text
    assert "there is no run of method independent" in page.text


def test_newcomers_are_told_over_seeds(copied: Path) -> None:
    given = {0: (0.5, 0.75, 0.25), 1: (0.7, 0.65, 0.35)}
    for seed, accuracy in given.items():
        folder = copied / f"fml-{seed}" / "newcomers" / "late"
        folder.mkdir(parents=True)
        numbers = dict(zip(("global", "predictor", "alone"), accuracy, strict=True))
        (folder / "join.json").write_text(json.dumps({"client": "late", "how": "mutual", "accuracy": numbers}))
        other = folder.parent / "other"
        other.mkdir()
        ways = {"how": ("global", "finetune")[seed], "accuracy": {"global": 0.5}}
        (other / "join.json").write_text(json.dumps(ways))
    rows = Page(html_page(report(read_study(copied)))).tables["newcomers"]
    assert rows[0] == ["method", "newcomer", "how", "global", "joined", "alone"]
    expected = [
        f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}"
        for values in zip(*given.values(), strict=True)
    ]
    assert rows[1:] == [["fml", "late", "mutual", *expected], ["fml", "other", "–", "50.0 ± 0.0", "–", "–"]]


def test_newcomers_of_one_run(finished: Runs, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished("fml", rounds=2)[0], tmp_path / "run"))
    for name, how, accuracy in (
        (ODD, "mutual", {"global": None, "predictor": 0.75, "alone": 0.25}),
        ("body", "finetune", {"predictor": 0.5, "alone": 0.6}),  # a partial global predicts nothing by itself
    ):
        folder = run / "newcomers" / name
        folder.mkdir(parents=True)
        (folder / "join.json").write_text(json.dumps({"how": how, "accuracy": accuracy}))
    made = report(read_study(run))
    [table] = [table for table in made.tables if table.name == "newcomers"]
    expected = [
        ["fml", ODD, "mutual", "–", "75.0", "25.0"],
        ["fml", "body", "finetune", "–", "50.0", "60.0"],
    ]
    assert Page(html_page(made)).tables["newcomers"][1:] == expected
    assert markdown_rows(table.markdown())[1:] == latex_rows(table.latex())[1:] == expected


def test_one_runs_options_are_said(finished: Runs) -> None:
    folder, _ = finished({"name": "fml", "beta": {"schedule": "linear", "start": 0.3, "end": 0.7}})
    options = "combine mean, temperature 1.0, init own, alpha 0.5, beta linear (start 0.3, end 0.7)"
    assert f"Its options: {options}." in said(report(read_study(folder)))


def test_privacy_is_told_with_its_guarantee(finished: Runs) -> None:
    pytest.importorskip("opacus")
    folder, result = finished("fml", privacy={"clip": 1.0, "noise": 2.0})
    assert f"Differential privacy: {result.guarantee}." in said(report(read_study(folder)))


def test_nothing_is_loaded_unless_asked(compared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recipe, "federation", lambda *_: pytest.fail("data was loaded"))
    report(read_study(compared))


# What is missing


def test_an_unfinished_run_tells_what_it_has(finished: Runs, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished("fml", rounds=2)[0], tmp_path / "run"))
    (folder / "run.json").unlink()
    with (folder / "history.csv").open("a") as file:
        file.write("2,c0,pre")  # torn
    made = report(read_study(folder))
    assert [table.name for table in made.tables] == ["left"]
    assert "stopped after round 2 of 2; its tables come when it is finished" in said(made)
    assert next(made.pictures).alt.startswith("Mean accuracy")


def test_what_a_comparison_lacks_is_left_out_and_said(copied: Path) -> None:
    (copied / "fedavg-1" / "run.json").unlink()
    (copied / "comparison.json").unlink()
    made = report(read_study(copied))
    assert "comparison.json is not there: runs are named by their methods" in said(made)
    assert "fedavg-1: stopped after round 3 of 3; it is left out" in said(made)
    [table] = [table for table in made.tables if table.name == "accuracies"]
    assert {row[0]: row[1] for row in table.rows} == {"fedavg": 1, "fedprox": 2, "fml": 2, "independent": 2}


def test_a_comparison_is_read_however_many_clients_its_runs_have(copied: Path) -> None:
    """Its file repeats what its runs say: together they may be longer than the limit for one."""
    told = json.loads((copied / "comparison.json").read_text())
    for folder in sorted(copied.glob("*/run.json")):
        record = json.loads(folder.read_text())
        for client in record["summary"]["clients"]:
            client["participation"]["failed"] = {"x" * 10**6: "1"}
        folder.write_text(to_json(record))
        mine = record["summary"]
        for run in told["runs"]:  # as `mutua compare` would have written it
            if (run["seed"], run["bytes"], run["seconds"]) == (mine["seed"], mine["bytes"], mine["seconds"]):
                run["clients"] = mine["clients"]
    (copied / "comparison.json").write_text(to_json(told))
    assert (copied / "comparison.json").stat().st_size > safe_reading.MAX_TEXT_BYTES
    assert read_study(copied).labels == list(METHODS)


def test_a_ledger_that_is_not_whole_never_says_that_less_has_left(finished: Runs, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished("fml", rounds=2)[0], tmp_path / "run"))
    ledger = folder / "ledger.csv"
    whole = ledger.read_text()
    for text in (None, "", "x,y\n", "".join(whole.splitlines(keepends=True)[:-1]), whole.rstrip("\n")):
        ledger.unlink() if text is None else ledger.write_text(text)
        with pytest.raises(InputError, match=r"^RUN: .*ledger\.csv"):
            report(read_study(folder))
        ledger.touch()


def test_runs_that_a_name_does_not_tell_apart_go_by_their_folders(copied: Path) -> None:
    (copied / "comparison.json").unlink()
    shutil.copytree(copied / "fml-0", copied / "again")
    (copied / "inner").mkdir()
    shutil.copytree(copied / "fml-0", copied / "inner" / "again")
    study = read_study(copied)
    seeds = {label: [run.seed for run in study.of(label)] for label in study.labels}
    assert seeds.pop("again") == seeds.pop("inner/again") == [0]
    assert seeds == {label: [0, 1] for label in ("fml", "fedavg", "fedprox", "independent")}


def test_runs_of_different_recipes_are_never_taken_for_seeds_of_one(finished: Runs, tmp_path: Path) -> None:
    shutil.copytree(finished("fml", rounds=2)[0], tmp_path / "long-0")
    shutil.copytree(finished("fml", rounds=2, seed=1)[0], tmp_path / "long-1")
    assert read_study(tmp_path).labels == ["fml"]
    shutil.copytree(finished("fml", rounds=1, seed=2)[0], tmp_path / "short")
    assert read_study(tmp_path).labels == ["long", "short"]


def test_a_damaged_run_is_left_out_of_a_comparison_and_said(copied: Path) -> None:
    (copied / "fml-0" / "run.json").write_text("{")
    (copied / "fml-1" / "ledger.csv").unlink()
    (copied / "fedavg-0" / "recipe.yaml").write_text("[")
    late = copied / "fedavg-1" / "newcomers" / "late"
    late.mkdir(parents=True)
    (late / "join.json").write_text("{}")
    made = report(read_study(copied))
    for name in (
        "fml-0/run.json cannot be read",
        "fml-1: ledger.csv is damaged",
        "fedavg-0 has no readable",
        "late/join.json: how: missing",
    ):
        assert re.search(rf"{name}.*; it is left out", said(made))
    (copied / "comparison.json").write_text("{")
    with pytest.raises(InputError, match=r"comparison\.json cannot be read .*; remove it, and runs are named"):
        read_study(copied)


@pytest.mark.parametrize("value", [None, "x", [1], pytest.param(10**400, id="too large")])
def test_a_folder_of_a_stranger_gives_a_report_or_a_line(copied: Path, value: Any) -> None:
    def spoil(file: Path, load: Callable[[str], Any]) -> None:
        whole = file.read_text()
        for key in load(whole):
            for inner in [None, *(load(whole)[key] if isinstance(load(whole)[key], dict) else [])]:
                tree = load(whole)
                if inner is None:
                    tree[key] = value
                else:
                    tree[key][inner] = value
                file.write_text(json.dumps(tree))
                try:
                    made = report(read_study(copied / "fml-0"))
                    for table in made.tables:
                        table.markdown()
                except InputError as error:
                    lines.append(str(error))
        file.write_text(whole)

    lines: list[str] = []
    spoil(copied / "fml-0" / "run.json", json.loads)
    spoil(copied / "fml-0" / "recipe.yaml", yaml.safe_load)
    late = copied / "fml-0" / "newcomers" / "late"
    late.mkdir(parents=True)
    (late / "join.json").write_text(json.dumps({"how": "mutual", "accuracy": {"predictor": 0.5, "alone": None}}))
    spoil(late / "join.json", json.loads)
    assert lines and not any("\n" in line for line in lines)


# The data


def test_pca_is_scikit_learns() -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    x = np.random.default_rng(0).normal(size=(50, 8)) * np.arange(1, 9)
    ours, theirs = projections.pca(x), decomposition.PCA(2).fit_transform(x)
    assert np.allclose(ours * np.sign(ours[0]), theirs * np.sign(theirs[0]))


def test_with_the_data_come_training_labels_features_and_umap(
    finished: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    class First:
        def __init__(self, **options: Any) -> None:
            assert options["random_state"] == 0

        def fit_transform(self, x: np.ndarray) -> np.ndarray:
            return x[:, 300:302]

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=First))
    folder, result = finished("fml", rounds=2)
    made = {picture.name: picture for picture in report(read_study(folder), load_data=True).pictures}
    clients = result.federation.clients
    shown = made["labels"].figure().axes[0].images[0].get_array().filled(0)
    assert np.array_equal(shown, np.stack([client.train.counts() for client in clients]))
    assert made["labels"].title.startswith("Training samples")

    model = result.clients[0].predictor.model
    x = np.concatenate([client.test.preprocess(client.test.x).flatten(1).numpy() for client in clients])
    hidden = np.asarray(x, float)
    for layer in [part for part in model.modules() if hasattr(part, "weight")][:-1]:  # an MLP by hand
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        hidden = np.maximum(hidden @ weight.T + bias, 0)
    [panel] = made["features"].figure().axes
    points = np.concatenate([dots.get_offsets() for dots in panel.collections])
    expected = projections.pca(hidden)
    assert np.allclose(sorted(points[:, 0]), sorted(expected[:, 0]), atol=1e-4)
    whole, *each = made["data"].figure().axes[:3]
    assert [axes.get_title(loc="left") for axes in (whole, *each)] == ["all clients", "c0", "c1"]
    coloured = [sum(len(dots.get_offsets()) for dots in axes.collections[1:]) for axes in (whole, *each)]
    assert coloured == [sum(len(c.train) for c in clients), *(len(c.train) for c in clients)]


def test_without_umap_or_the_data_it_says_how_to_get_them(
    finished: Runs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    folder, _ = finished("fml", rounds=2)
    assert 'pip install "mutua[umap]"' in said(report(read_study(folder), load_data=True))
    gone = Path(shutil.copytree(folder, tmp_path / "run"))
    record = json.loads((gone / "run.json").read_text())
    record["recipe"] = record["recipe"].replace("mnist5k", "fashion-mnist")
    (gone / "run.json").write_text(json.dumps(record))
    text = said(report(read_study(gone), load_data=True, data_dir=tmp_path))
    assert "the data of fml: " in text and "mutua data get fashion-mnist" in text


# The PDF, the files, the command


def test_the_pdf_says_what_the_page_says(made: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    written: list[str] = []
    original = Figure.text

    def text(self: Any, x: float, y: float, words: str, **style: Any) -> Any:
        assert 0.05 < x < 0.97 and 0.05 < y < 0.97  # on the page
        written.append(words)
        return original(self, x, y, words, **style)

    monkeypatch.setattr(Figure, "text", text)
    data = pdf_file(made)
    assert data.startswith(b"%PDF") and data.count(b"/Type /Page ") > 3
    [table] = [table for table in made.tables if table.name == "accuracies"]
    assert {cell_text(cell) for row in table.rows for cell in row} <= set(written)
    whole = " ".join(written)
    assert all(section.title in whole for section in made.sections)


def test_a_wide_table_keeps_within_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    from mutua.reports.pdf import PAGE, _Pages

    paper = _Pages()
    cells = ("word " * 40, *([Spread.of((0.5, 0.25))] * 9))
    heads = tuple(f"FML, optimizer.learning_rate={i}, global" for i in range(9))
    paper.table(Table("t", "A title", ("left",), heads, (cells,) * 120))
    assert len(paper.pages) > 1
    assert min(text.get_size() for page in paper.pages for text in page.texts) > 5  # still to be read
    for page in paper.pages:
        page.draw_without_rendering()
        for text in page.texts:
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= PAGE[0] * page.dpi and box.y0 >= 0


def test_the_command_writes_what_it_is_asked_for(
    finished: Runs, tmp_path: Path, command: Callable[..., Any]
) -> None:
    shutil.copytree(finished("fml", rounds=2)[0], "run")
    done = command("report", "run")
    assert (done.code, done.out, done.err) == (0, "run/report.html\n", "")
    assert Path("run/report.html").read_text().startswith("<!DOCTYPE html>")
    Path("run/report.html").unlink()
    done = command("report", "run", "--tables", "tables", "--figures", "figures", "--pdf", "a/b.pdf")
    files = set(done.out.splitlines())
    assert all(Path(file).stat().st_size > 40 for file in files) and not Path("run/report.html").exists()
    assert {
        f"tables/{name}.{end}" for name in ("accuracies", "clients", "left") for end in ("tex", "md", "csv")
    } <= files
    for name in ("curve-predictor", "clients-fml", "labels", "trade-off-global"):
        assert Path(f"figures/{name}.svg").read_bytes().startswith(b"<?xml")
        assert Path(f"figures/{name}.pdf").read_bytes().startswith(b"%PDF")


def test_tables_and_figures_may_lie_beside_the_runs(copied: Path, command: Callable[..., Any]) -> None:
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    assert command("report", copied, "--tables", copied, "--figures", copied).code == 0
    assert {path: path.read_bytes() for path in before} == before


def test_mistakes_are_one_line(command: Callable[..., Any], finished: Runs, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    folder, _ = finished("fml", rounds=2)
    for words, said in (
        (["nowhere"], "RUN: nowhere is not a folder; give the one that 'mutua run' or 'mutua compare' named"),
        (["empty"], "RUN: empty holds no finished run"),
        ([folder, "--html", "file/a.html"], "--html: cannot write to file/a.html"),
        ([folder, "--tables", "file"], "--tables: cannot write to file/"),
        ([folder, "--figures", "file"], "--figures: cannot write to file/"),
    ):
        done = command("report", *words)
        assert done.code == 2 and done.out == "" and said in done.err and done.err.count("\n") == 1


def test_pooled_data_is_not_called_nothing(finished: Runs) -> None:
    [table] = [table for table in report(read_study(finished("centralised")[0])).tables if table.name == "left"]
    assert table.rows[0][:3] == ("centralised", "all", "all data")


def test_where_nothing_is_sent_there_is_no_trade_off_to_speak_of(finished: Runs) -> None:
    titles = [section.title for section in report(read_study(finished("independent")[0])).sections]
    assert "What left each client" in titles and "Accuracy against bytes sent" not in titles


def test_data_that_was_made_public_is_told_though_no_message_held_it(finished: Runs) -> None:
    aggregated, _ = finished("aggregated", public={"share": 0.2})
    words = "in aggregated a public set, 0.2 of each client's data, with labels, was known to all beforehand."
    assert words in said(report(read_study(aggregated)))
    assert "known to all beforehand" not in said(report(read_study(finished("fml", rounds=2)[0])))


# Small things


def test_cells_as_people_read_them() -> None:
    cells = (
        Spread.of((0.5, None)),
        Spread.of((0.25,)),
        Spread.of((0.25, 0.75)),
        Bytes(1500),
        PercentagePoints(-0.01),
        3,
    )
    assert list(map(cell_text, cells)) == ["–", "25.0", "50.0 ± 35.4", "1.5 kB", "−1.0", "3"]


def test_very_different_amounts_are_drawn_on_a_logarithmic_axis() -> None:
    def line(most: float) -> charts.Line:
        found = charts.Line.of([{0: 0.1, 1: 0.5}], "#000000", [{0: 0, 1: most}])
        assert found is not None
        return found

    for most, scale in ((2e4, "log"), (2e3, "linear")):
        [axes] = charts.trade_off_picture("x", "x", {"a": line(1e3), "b": line(most)}).figure().axes
        assert axes.get_xscale() == scale


def test_many_clients_and_methods_still_fit() -> None:
    ids = [f"client {k}" for k in range(120)]
    bars = {"alone": charts.Bars([0.5] * 120, "#999999"), "personal": charts.Bars([None] * 120, "#0072B2")}
    figure = charts.client_picture("x", "x", ids, bars).figure()
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert sum(box.height for box in boxes) <= figure.axes[0].bbox.height
    found = charts.Line.of([{0: 0.1, 1: 0.5}], "#000000")
    assert found is not None
    figure = charts.curve_picture("x", "x", {f"method number {i}": found for i in range(14)}).figure()
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert legend.x1 <= figure.bbox.x1 and not legend.overlaps(figure.axes[0].get_tightbbox())
