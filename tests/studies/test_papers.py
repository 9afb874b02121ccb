"""The papers' tables and figures as data: all there, plausible, and in agreement with themselves."""

import re
from collections.abc import Iterator
from itertools import groupby
from statistics import fmean
from typing import get_args

import pytest
import torch

from mutua import Recipe, Samples
from mutua.data.sources import KNOWN
from mutua.data.splits import split_and_deal
from mutua.recipe.grid import Cell
from mutua.rounds.preparation import prepare
from mutua.studies.measures import Measure
from mutua.studies.papers import items
from mutua.studies.papers.items import Claim, Item, Scale

ITEMS = {
    "fml-2020": "table-1 table-2 figure-5a figure-5b claim-newcomer claim-bad-client",
    "fml-2023": "table-1 table-1-cifar100 figure-3 figure-4 figure-5 figure-6 "
    "claim-catfish claim-dynamic-alpha-beta",
    "mixture": "table-2 figure-2 figure-3 figure-4 figure-5",
    "fedh2l": "table-2 table-3 table-4 table-5 table-6 table-7 table-8 figure-1 figure-2 "
    "claim-bandwidth claim-bandwidth-growth",
    "flamby": "heart-disease",
    "related": "personalised heterogeneous clustered",
    "no-regret": "confirmation heart-disease pacs",
    "fmlu": "table-1 table-2 table-3 table-4 figure-2 figure-3",
}
SCALES: tuple[Scale, ...] = get_args(Scale)
DOMAINS = {
    "heart-disease": {"cleveland", "hungarian", "switzerland", "va"},
    "pacs": {"photo", "art_painting", "cartoon", "sketch"},
    "office-home": {"Art", "Clipart", "Product", "Real_World"},
}
SIZES = {"cifar10": (10, 5000, 1000), "cifar100": (100, 500, 100), "fashion-mnist": (10, 6000, 1000)}
"""Classes, and the training and test samples of each."""
every_item = pytest.mark.parametrize("name", items.item_names())


def test_every_table_and_figure_is_there() -> None:
    assert set(items.item_names()) == {f"{paper}/{item}" for paper, held in ITEMS.items() for item in held.split()}


@every_item
def test_recipes_are_complete_and_of_known_data(name: str) -> None:
    item = items.load_item(name)
    for scale in SCALES:
        for cell, recipe in item.cells(scale):
            datas = [recipe.data] if recipe.data else [client.data for client in recipe.clients or []]
            assert datas and all(data.name in KNOWN for data in datas), cell.name
    assert item.laptop.cut, "what the laptop leaves out is said"


@every_item
def test_a_laptop_does_less(name: str) -> None:
    item = items.load_item(name)
    paper = {tuple(cell.labels.values()): recipe for cell, recipe in item.cells("paper")}
    for cell, recipe in item.cells("laptop"):
        whole = paper[tuple(cell.labels.values())]
        assert recipe.rounds <= whole.rounds
        assert (recipe.epochs or 0) <= (whole.epochs or 0)


@pytest.mark.parametrize("name", [name for name in items.item_names() if name.startswith("mixture/")])
def test_a_laptops_clients_have_as_many_samples_as_it_says(name: str) -> None:
    """A mix that the classes cannot supply makes fewer."""
    item = items.load_item(name)
    words = {"train": r"(\d+) samples to train on", "val": r"(\d+) val", "test": r"(\d+) test samples per client"}
    said = {split: re.search(pattern, "; ".join(item.laptop.cut)) for split, pattern in words.items()}
    assert said["val"] and said["test"]
    for cell, recipe in item.cells("laptop"):
        data, partition = recipe.data, recipe.partition
        assert data is not None and partition is not None
        classes, *each = SIZES[data.name]
        train, test = (_of_each_class(classes, many) for many in each)
        drawn = {"samples_per_client": data.samples_per_client, "test_samples": data.test_samples}
        dealt = split_and_deal(train, test, partition, data.split, **drawn, seed=0)
        for split, number in said.items():
            found = {len(getattr(client, split)) for client in dealt.clients}
            assert number is None or found == {int(number[1])}, cell.name


def _of_each_class(classes: int, many: int) -> Samples:
    y = torch.arange(classes).repeat(many)
    return Samples(torch.zeros(len(y), 1), y, tuple(map(str, range(classes))))


def test_every_method_that_the_papers_name_is_in_a_study_of_ours() -> None:
    named = [
        "fedper",
        "fedrep",
        "lgfedavg",
        "fedrod",
        "fedproto",
        "afl",
        "fedsem",
        "cfl",
        "mocha",
        "feddf",
        "fedgkt",
        "fedrolex",
        "pfedbayes",
        "apfl",
        "l2gd",
        "perfedavg",
        "fedopt",
        "reptile",
        "datasharing",
        "fd",
        "finetuned",
        "ditto",
        "fedbn",
        "fedbabu",
        "fedala",
        "scaffold",
        "fedkd",
        "moon",
    ]
    tunes, assigns, windows, seen = set(), set(), set(), set()
    for name in items.item_names():
        for _, recipe in items.load_item(name).cells("laptop") if name.startswith("related/") else ():
            method = recipe.method
            seen.add(method.name)
            if method.name == "finetuned":
                tunes.add(getattr(method, "tune", None))
            assigns.add(getattr(method, "assign", None))
            windows.add(getattr(method, "window", None))
    assert seen >= set(named)
    assert tunes == {"plain", "freeze-body", "ewc", "kd"}
    assert assigns >= {"distance", "loss"} and windows >= {"rolling", "static"}


@pytest.mark.parametrize("name", [name for name in items.item_names() if name.startswith("related/")])
def test_all_methods_of_a_study_of_ours_have_the_same_settings_steps_and_rates(name: str) -> None:
    item = items.load_item(name)
    assert set(item.grid["setting"]) == {"IID", "shards 2", "Dirichlet 0.1", "rotated"}
    assert (item.choose, len(item.grid["lr"])) == ("lr", 3)
    assert {"predictor", "worst", "better_off", "bytes_up", "cpu_seconds"} == set(item.measures)
    for scale in SCALES:
        steps = {(recipe.rounds, recipe.steps, recipe.epochs) for _, recipe in item.cells(scale)}
        assert len(steps) == 1


@every_item
def test_stability_is_of_runs_that_are_long_enough(name: str) -> None:
    item = items.load_item(name)
    if any(Measure.of(claim.measure).name == "spread_last_20" for claim in item.claims):
        for scale in SCALES:
            assert all(recipe.rounds // recipe.evaluate_every > 20 for _, recipe in item.cells(scale))


@every_item
def test_a_published_number_is_of_one_cell(name: str) -> None:
    item = items.load_item(name)
    cells = [cell for cell, _ in item.cells("paper")]
    found = [(tuple(sorted(value.cell.items())), value.measure) for value in item.published.values]
    assert len(set(found)) == len(found)
    for value in item.published.values:
        assert sum(cell.agrees(value.cell) for cell in cells) == 1
        assert 15 < value.value <= 100, "an accuracy in percent, better than chance"
        assert value.spread is None or 0 < value.spread < 10


@every_item
def test_claims_compare_cells_that_run(name: str) -> None:
    item = items.load_item(name)
    texts = [claim.text for claim in item.claims]
    assert len(set(texts)) == len(texts)
    for scale in SCALES:
        cells = [cell for cell, _ in item.cells(scale)]
        judged = [claim for claim in item.claims if _sides(claim, cells)]
        assert scale == "laptop" or len(judged) == len(item.claims)
        assert judged or not item.claims
        for claim in judged:
            better, than = _sides(claim, cells)
            assert len(better) == len(than), f"{claim.text}: cell by cell"
            assert (claim.better, claim.measure) != (claim.than, claim.than_measure or claim.measure)


@every_item
def test_measures_name_clients_that_are_there(name: str) -> None:
    item = items.load_item(name)
    texts = [value.measure for value in item.published.values] + [claim.measure for claim in item.claims]
    named = {client for text in texts for client in Measure.of(text).clients}
    for scale in SCALES:
        for _, recipe in item.cells(scale) if named else ():
            assert named <= _clients(recipe)


def test_a_federated_mean_is_the_mean_over_domains() -> None:
    """FedH2L prints domains and their mean: a slip of the pen in either would show."""
    checked = 0
    for name in items.item_names():
        for row in _rows(items.load_item(name)):
            for metric in ("acc", "wdp", "cdp"):
                of_domains = [value for text, value in row.items() if text.startswith(f"{metric}(")]
                if of_domains:
                    assert row[metric] == pytest.approx(fmean(of_domains), abs=0.011), (name, metric)
                    checked += 1
    assert checked == 3 * (13 + 4 + 4 + 9 + 8)


def test_over_all_domains_lies_between_within_and_across() -> None:
    for name in items.item_names():
        for row in _rows(items.load_item(name)):
            for text, acc in row.items():
                if text.startswith("acc("):
                    within, across = row[text.replace("acc", "wdp")], row[text.replace("acc", "cdp")]
                    assert min(within, across) - 0.01 <= acc <= max(within, across) + 0.01, (name, text)


@pytest.mark.parametrize("scale", SCALES)
def test_fedavg_may_send_what_fedh2l_sends(scale: Scale) -> None:
    """Table II compares them at the same bytes: the number that is written there is the one that is counted."""
    cells = {cell.labels["method"]: recipe for cell, recipe in items.load_item("fedh2l/table-2").cells(scale)}
    ours = cells["FedH2L (α=10%)"]
    federation = prepare(ours.method, ours.federation(), ours).federation
    sent = ours.rounds * len(federation.clients) * ours.method.reply_bytes(federation, ours)
    for other in {"FedAvg", "FedProx"} & cells.keys():
        recipe = cells[other]
        assert recipe.budget is not None and recipe.budget.bytes_up == sent
        assert recipe.rounds * (recipe.steps or 0) == ours.rounds * (ours.steps or 0)


def _sides(claim: Claim, cells: list[Cell]) -> tuple[list[Cell], list[Cell]] | tuple[()]:
    """The cells on either side; nothing where one side has none."""
    better = [cell for cell in cells if cell.agrees(claim.better)]
    than = [cell for cell in cells if cell.agrees(claim.better if claim.than is None else claim.than)]
    return (better, than) if better and than else ()


def _clients(recipe: Recipe) -> set[str]:
    if recipe.clients is not None:
        return {client.id for client in recipe.clients}
    assert recipe.data is not None and recipe.partition is not None
    ids = getattr(recipe.partition, "_ids", None)
    return set(ids()) if ids else DOMAINS[recipe.data.name]


def _rows(item: Item) -> Iterator[dict[str, float]]:
    """By row of FedH2L's tables, the numbers by measure."""
    for _, values in groupby(item.published.values, key=lambda value: value.cell):
        row = {value.measure: value.value for value in values}
        if "wdp" in row:
            yield row
