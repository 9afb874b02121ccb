"""A deployed run without a network: the organiser's and the sites' folders, and requests that go by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import CLIENTS, RECIPES, ByHand, assert_same_bytes, go
from torch import nn

from conftest import Done
from mutua import Architecture, RunError
from mutua.data.samples import Preprocess
from mutua.deploy.conduct import deployed_summary
from mutua.deploy.organiser import Organiser
from mutua.deploy.site_folder import SiteFolder
from mutua.engines.site import FAILED
from mutua.engines.site_requests import SiteRequest
from mutua.rounds.events import RoundStarted

pytest.importorskip("flwr", reason="Flower is not installed")

Command = Callable[..., Done]


@pytest.mark.parametrize("name", RECIPES)
def test_a_deployment_is_the_same_computation(
    deploy: Callable[..., tuple[Organiser, ByHand]], tmp_path: Path, name: str
) -> None:
    organiser, line = deploy(name)
    folder = organiser.path / "runs" / "one"
    go(organiser, line, folder)
    assert_same_bytes(organiser, line, folder, tmp_path / "local")


def test_a_server_that_stops_goes_on_from_its_checkpoint(
    deploy: Callable[..., tuple[Organiser, ByHand]], tmp_path: Path
) -> None:
    """It stops after the sites have trained: they are one round ahead, and answer from what they kept."""
    organiser, line = deploy(rounds=3)
    folder = organiser.path / "runs" / "one"

    def stop(client: str, request: SiteRequest) -> None:
        if (client, request.verb, request.round) == ("c2", "train", 2):
            raise RunError("the machine has stopped")

    line.before = stop
    with pytest.raises(RunError, match=r"the machine has stopped; to go on: mutua deploy run d$"):
        go(organiser, line, folder, goes_on_by="mutua deploy run d")
    line.before = lambda client, request: None
    notes: list[str] = []
    go(organiser, line, folder, note=notes.append)
    assert "going on after round 1" in notes
    assert_same_bytes(organiser, line, folder, tmp_path / "local")


def test_the_folder_of_a_run_holds_nothing_of_the_sites(
    deploy: Callable[..., tuple[Organiser, ByHand]], command: Command
) -> None:
    organiser, line = deploy()
    folder = organiser.path / "runs" / "one"
    seen: list[Any] = []
    result = go(
        organiser, line, folder, callbacks=[lambda e: seen.append(e) if isinstance(e, RoundStarted) else None]
    )
    assert [event.clients for event in seen] == [CLIENTS, CLIENTS]
    assert not (folder / "clients").exists()
    told = json.loads((folder / "run.json").read_text())["summary"]
    assert told == json.loads(json.dumps(deployed_summary(result)))
    assert {client["samples"] for client in told["clients"]} == {None}
    assert (done := command("report", folder)).code == 0, done.err
    assert command("runs", "list", folder.parent).code == 0
    assert command("runs", "show", folder).code == 0


def test_too_few_sites_are_said_by_name(deploy: Callable[..., tuple[Organiser, ByHand]]) -> None:
    organiser, line = deploy()
    path = organiser.path / "deployment.yaml"
    path.write_text(path.read_text().replace("needed: 1", "needed: 3"))
    line.away = {"c1"}
    with pytest.raises(RunError, match=r"2 sites of 3 ready after 0 s, 3 needed; c1: it is not here"):
        go(Organiser.open(organiser.path), line, organiser.path / "runs" / "one")


def test_a_site_with_another_recipe_is_named_and_the_rest_go_on(
    deploy: Callable[..., tuple[Organiser, ByHand]],
) -> None:
    organiser, line = deploy()
    own = organiser.path / "hand-out" / "c1"
    (own / "recipe.yaml").write_text((own / "recipe.yaml").read_text().replace("batch_size: 10", "batch_size: 5"))
    sites = {**line.sites, "c1": SiteFolder.open(own).site()}
    notes: list[str] = []
    result = go(organiser, ByHand(sites), organiser.path / "runs" / "one", note=notes.append)
    assert any(note.startswith("c1: refused: the server runs another recipe") for note in notes)
    assert sum(row.outcome == "merged" for row in result.participation) == 4


class Breaking(nn.Module):
    """A model that cannot be trained, and whose error quotes data."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(channels * size * size, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise ValueError("patient 4711 has a bad value")
        found: torch.Tensor = self.head(x.flatten(1))
        return found


def test_a_site_whose_data_or_model_is_wrong_is_named_and_the_rest_go_on(
    deploy: Callable[..., tuple[Organiser, ByHand]],
) -> None:
    """c1's samples are no numbers, c2's model raises: both in the midst of training."""
    organiser, line = deploy()
    one, two = line.sites["c1"].client, line.sites["c2"].client
    blank = one.train.x.float() * float("nan")
    line.sites["c1"].client = replace(one, train=replace(one.train, x=blank, preprocess=Preprocess()))
    line.sites["c2"].client = replace(two, model=Architecture.of(Breaking))
    result = go(organiser, line, organiser.path / "runs" / "one")
    wrong = {row.client: row.reason for row in result.participation if row.outcome == "failed"}
    assert set(wrong) == {"c1", "c2"}
    assert "not finite" in wrong["c1"] or "diverged" in wrong["c1"]
    assert wrong["c2"] == FAILED
    assert sum(row.outcome == "merged" for row in result.participation) == 2
    log = (organiser.path / "runs" / "one" / "events.jsonl").read_text()
    assert FAILED in log and "4711" not in log


def test_the_epsilon_of_samples_is_not_made_up(
    deploy: Callable[..., tuple[Organiser, ByHand]], command: Command
) -> None:
    """It depends on how many samples a site has, which the server does not know."""
    private = {"level": "example", "noise": 1.0, "clip": 1.0}
    organiser, line = deploy("fedavg", method={"name": "fedavg", "weights": "uniform"}, privacy=private)
    folder = organiser.path / "runs" / "one"
    go(organiser, line, folder)
    told = json.loads((folder / "run.json").read_text())["summary"]["privacy"]
    assert (told["noise"], told["epsilon"]["messages"], told["rdp"]) == (1.0, None, None)
    assert (done := command("report", folder)).code == 0, done.err
    assert "whose ε each client knows alone" in (folder / "report.html").read_text()
