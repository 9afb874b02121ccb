"""What is opted out reaches nothing shared: no byte that leaves, not the global, no number that selects."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from typer.testing import CliRunner

from mutua import Federation, InputError, Recipe, Samples, partitions, run
from mutua.cli.app import app
from mutua.methods import FedAvg
from mutua.recipe.public_set import PublicSet, with_public_set
from mutua.rounds.events import Event, Reached
from mutua.rounds.history import History
from mutua.rounds.state import RunState

Blobs = Callable[..., Samples]
Federate = Callable[..., Federation]
Simulate = Callable[..., Any]


# A mask that goes with the data, and what is shown of it


@pytest.fixture
def sites(tmp_path: Path) -> dict[str, Any]:
    """Three clients: arrays, a folder with a list, and arrays that are wholly opted out."""
    rng = np.random.default_rng(0)

    def pixels(n: int) -> np.ndarray:
        return rng.integers(0, 256, (n, 5, 5)).astype(np.uint8)

    y = np.arange(40) % 2
    np.savez(tmp_path / "north.npz", x=pixels(40), y=y, withheld=np.arange(40) % 4 == 0)
    np.savez(tmp_path / "west.npz", x=pixels(40), y=y, withheld=np.ones(40, dtype=bool))
    for k, image in enumerate(pixels(40)):
        (tmp_path / "south" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "south" / "ab"[k % 2] / f"{k:02d}.png")
    (tmp_path / "south" / "withheld.txt").write_text("a/00.png\nb/01.png\n\na/02.png\n")
    places = {"north": "north.npz", "south": "south", "west": "west.npz"}
    kinds = {"north": "arrays", "south": "folder", "west": "arrays"}
    return {
        "clients": [
            {
                "id": name,
                "data": {"name": kinds[name], "path": str(tmp_path / path), "classes": ["a", "b"]},
                "model": {"name": "mlp", "width": 0.05},
            }
            for name, path in places.items()
        ],
        "models": {"global": {"name": "mlp", "width": 0.05}},
        "method": {"name": "mixture", "mixture_epochs": 1},
        "opt_out": {"mask": "withheld"},
        "rounds": 1,
        "device": "cpu",
    }


def written(tmp_path: Path, tree: dict[str, Any]) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    return str(path)


def test_masks_of_arrays_and_folders_on_the_command_line(
    sites: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`data show`, the table of a run and both JSONs tell each client's number of opted-out training samples."""
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, sites)
    federation = Recipe.load(path).federation()
    assert federation.classes == ("a", "b")
    assert [client.opted_out for client in federation.clients] == [7, 2, 28]
    assert [len(client.train) for client in federation.clients] == [28, 28, 28]
    assert federation.test is not None and len(federation.test) == len(
        federation["north"].opted_in_of("test")
    ) + len(federation["south"].opted_in_of("test"))
    assert str(federation).splitlines()[1].split()[-2:] == ["opted", "out"]

    def said(*words: str) -> str:
        done = CliRunner().invoke(app, [*words], env={"COLUMNS": "120"})
        assert done.exit_code == 0, done.output
        return done.stdout

    counts = json.loads(said("data", "show", path, "--json"))
    assert [client["opted_out"] for client in counts["clients"]] == [7, 2, 28]
    assert "opted out" in said("data", "show", path)
    table = said("run", path, "--out", "run", "--workers", "1")
    rows = {line.split()[0]: line.split() for line in table.splitlines() if line.split()}
    assert "opted out" in table and [rows[name][3] for name in ("north", "south", "west")] == ["7", "2", "28"]
    summary = json.loads(said("run", path, "--out", "again", "--workers", "1", "--json"))
    assert [client["opted_out"] for client in summary["clients"]] == [7, 2, 28]


def test_a_mask_that_is_not_there_or_does_not_fit_opts_nobody_in(sites: dict[str, Any], tmp_path: Path) -> None:
    listed, x, y = tmp_path / "south" / "withheld.txt", np.zeros((4, 5, 5), np.uint8), np.arange(4) % 2

    def refused(reason: str, **changes: Any) -> None:
        with pytest.raises(InputError, match=reason):
            Recipe.of(sites | changes).federation()

    refused("clients.north.data: opt_out.mask: .*has no array 'secret'", opt_out={"mask": "secret"})
    listed.write_text("a/00.png\na/99.png\n")
    refused("withheld.txt: .*line 2: there is no image 'a/99.png'")
    listed.unlink()
    refused("clients.south.data: opt_out.mask: .*has no list file 'withheld' or 'withheld.txt'")
    (tmp_path / "withheld").write_text("a/00.png")  # one level up
    assert Recipe.of(sites).federation()["south"].opted_out <= 1
    for mask in (np.zeros(3, dtype=bool), np.zeros(4)):
        np.savez(tmp_path / "north.npz", x=x, y=y, withheld=mask)
        refused(
            r"opt_out.mask: 'withheld' of .*north.npz is .*; it must be one true or false for each of 4 samples"
        )
    known = {"data": "mnist5k", "partition": {"kind": "iid", "clients": 2}, "clients": None}
    refused("data: opt_out.mask: 'withheld', but mnist5k is neither", **known)
    with pytest.raises(
        InputError, match=r"data.opted_out: bool \(3,\); it must be one true or false for each of 4"
    ):
        Samples.of(x, y, opted_out=[True, False, True])


def test_folders_that_are_called_by_large_numbers_are_names(tmp_path: Path) -> None:
    """They are not counted through, as labels are."""
    for k in range(12):
        place = tmp_path / "f" / f"{20240101 + k % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), k, np.uint8)).save(place / f"{k:02d}.png")
    (tmp_path / "f" / "out.txt").write_text("20240101/00.png")
    federation = Recipe.of(
        {
            "data": {"name": "folder", "path": str(tmp_path / "f")},
            "partition": {"kind": "iid", "clients": 1},
            "models": {"global": "mlp"},
            "method": "mixture",
            "opt_out": {"mask": "out"},
        }
    ).federation()
    assert federation.classes == ("20240101", "20240102")


def test_what_is_opted_out_cannot_be_made_public(sites: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="public: samples are opted out"):
        with_public_set(Recipe.of(sites).federation(), PublicSet(share=0.2), 0)


def test_declared_classes_are_matched_by_name_or_by_number(sites: dict[str, Any], tmp_path: Path) -> None:
    """By name where the data names its own; whoever's labels do not fit is told so."""

    def federation(which: int, classes: list[Any]) -> Federation:
        entry = sites["clients"][which]
        data = entry["data"] | {"classes": classes}
        return Recipe.of(
            sites | {"clients": [entry | {"data": data}], "opt_out": None, "method": "fml"}
        ).federation()

    assert federation(1, ["c", "b", "a"]).classes == ("c", "b", "a")
    assert sorted(federation(1, ["c", "b", "a"])["south"].train.y.unique().tolist()) == [1, 2]
    assert federation(0, [5, 6, 7]).classes == ("5", "6", "7")
    with pytest.raises(InputError, match=r"clients.south.data: classes: b in the data, but not among a"):
        federation(1, ["a"])
    with pytest.raises(InputError, match=r"north.*label 1 is out of range; 1 classes"):
        federation(0, ["a"])
    with pytest.raises(InputError, match=r"'a' is named twice"):
        federation(1, ["a", "b", "a"])


# What selects


def opted_out_whole(federation: Federation, *who: str) -> Federation:
    out = {i: torch.zeros(len(federation[i].train), dtype=torch.bool) for i in who}
    return replace(
        federation,
        clients=tuple(replace(c, opt_in=out[c.id]) if c.id in out else c for c in federation.clients),
    )


def test_the_global_is_selected_by_opted_in_validation_samples_alone(federate: Federate, blobs: Blobs) -> None:
    """Against the mean by hand of NumPy accuracies, a client wholly out, another with half of its val out."""
    federation = opted_out_whole(federate([20, 20, 20], held=30), "b")
    marks = torch.arange(30) % 2 == 0
    a = replace(federation["a"], val=replace(federation["a"].val, opted_out=marks))
    federation = replace(federation, clients=(a, *federation.clients[1:]))
    reached: list[RunState] = []

    def watch(event: Event) -> None:
        if isinstance(event, Reached):
            reached.append(event.run_state)

    result = run(FedAvg(), federation, rounds=3, batch_size=5, callbacks=[watch])
    last = result.clients[0].predictor
    by_hand = []
    for client, kept in ((a, ~marks), (federation["c"], torch.ones(30, dtype=torch.bool))):
        said = np.asarray(last(client.val.x[kept]).argmax(1))
        by_hand.append(float((said == client.val.y[kept].numpy()).mean()))
    assert result.history.validation("global", 3) == pytest.approx(np.mean(by_hand))
    assert reached[-1].validation == pytest.approx(np.mean(by_hand))  # by which the best checkpoint is kept
    assert result.history.select(client="b", model="global", split="val", metric="opted_in")[-1].value is None
    assert result.history.last("b", "global", "val", "accuracy") is not None  # its own number, at home


def test_best_is_chosen_without_the_opted_out(federate: Federate) -> None:
    """By hand: the opted-out client's validation would choose another round."""
    history = History()
    for at, (a, b, kept) in enumerate([(0.1, 0.1, 0.1), (0.6, 0.2, 0.6), (0.5, 1.0, 0.4)]):
        history.add(at, "a", "global", "val", "accuracy", a)
        history.add(at, "a", "global", "val", "opted_in", kept)
        history.add(at, "b", "global", "val", "accuracy", b)
        history.add(at, "b", "global", "val", "opted_in", None)
        history.add(at, "global", "global", "test", "accuracy", at / 10)
    assert [history.validation("global", at) for at in range(3)] == [0.1, 0.6, 0.4]
    assert history.best_rounds()["global", "global"] == 1
    assert history.selected("best", "global", "global", "test", "accuracy") == pytest.approx(0.1)
    assert history.best_rounds()["b", "global"] == 2  # a client's own number is selected at home, by its own data


def test_other_domains_opted_out_samples_do_not_judge_a_client(blobs: Blobs, nets: SimpleNamespace) -> None:
    """ACC on val selects a client's round where clients are domains."""
    federation = Federation.from_samples(
        replace(blobs(90), domain=torch.arange(90) % 3, domains=("u", "v", "w")),
        partition=partitions.Domains(),
        models=nets.plain,
    )
    others = opted_out_whole(federation, "v").others("u")
    assert others is not None
    for split in ("val", "test"):
        assert torch.equal(others[split].x, getattr(federation["w"], split).x)
