"""A deployed run without a network: the organiser's and the sites' folders, and requests that go by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from conftest import Done
from mutua import RunError
from mutua.deploy.conduct import conduct, deployed_summary
from mutua.deploy.organiser import Organiser
from mutua.deploy.site_folder import SiteFolder
from mutua.engines.network import NetworkEngine
from mutua.engines.site import Site
from mutua.engines.site_requests import SiteAnswer, SiteRequest
from mutua.rounds.events import RoundStarted

pytest.importorskip("flwr", reason="Flower is not installed")

Command = Callable[..., Done]

RECIPES: dict[str, dict[str, Any]] = {
    "fml": {"method": "fml", "models": {"global": "linear", "clients": ["linear", "mlp", "lenet5"]}},
    "fedavg": {"method": "fedavg", "models": {"global": "linear"}},
    "fmlu": {"method": "fmlu", "models": {"global": "linear"}},
    "partial": {"method": "fml", "models": {"global": {"name": "mlp", "share": "body"}, "clients": "linear"}},
    "mixture": {"method": "mixture", "models": {"global": "linear"}, "opt_out": {"fraction": 0.4}},
    "fedmd": {"method": {"name": "fedmd", "public_epochs": 1, "private_epochs": 1}, "public": {"share": 0.2}},
    "fedh2l": {"method": "fedh2l", "public": {"share": 0.2}},
}
CLIENTS = ("c0", "c1", "c2")


@dataclass
class ByHand:
    """A line to sites in this process."""

    sites: Mapping[str, Site]
    before: Callable[[str, SiteRequest], None] = lambda client, request: None
    away: set[str] = field(default_factory=set)

    def here(self) -> set[str]:
        return set(self.sites) - self.away

    def ask(self, requests: Mapping[str, SiteRequest], wait: float) -> dict[str, SiteAnswer]:
        found = {}
        for client, request in requests.items():
            if client not in self.away:
                self.before(client, request)
                answer = self.sites[client].answer(SiteRequest.of(request.header, request.body))
                found[client] = SiteAnswer.of(answer.header, answer.body)
        return found


@pytest.fixture
def deploy(command: Command, tmp_path: Path) -> Callable[..., tuple[Organiser, ByHand]]:
    """Run a recipe here into `local`, and make a deployment of it with three sites."""

    def make(name: str = "fml", **more: Any) -> tuple[Organiser, ByHand]:
        recipe = {
            "data": {"name": "mnist5k", "samples_per_client": 30},
            "partition": {"kind": "iid", "clients": 3},
            "models": {"clients": "linear"},
            "rounds": 2,
            "batch_size": 10,
            "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
            **RECIPES[name],
            **more,
        }
        (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe))
        assert (done := command("run", "r.yaml", "--out", "local", "--workers", "1", "--json")).code == 0, done.err
        given = ("--recipe", "r.yaml", "--clients", ",".join(CLIENTS), "--simulate", "--wait", "0")
        assert (done := command("deploy", "init", "d", *given)).code == 0, done.err
        organiser = Organiser.open(tmp_path / "d")
        return organiser, ByHand({c: SiteFolder.open(organiser.path / "hand-out" / c).site() for c in CLIENTS})

    return make


def go(organiser: Organiser, line: ByHand, folder: Path, **more: Any) -> Any:
    agreed = organiser.agreed
    engine = NetworkEngine(line, organiser.run_id(folder), agreed.checksum, 0)
    return conduct(agreed, engine, folder, **more)


def raw(arrays: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: array.numpy().tobytes() for name, array in arrays.items()}


def assert_same_bytes(organiser: Organiser, line: ByHand, folder: Path, local: Path) -> None:
    assert (folder / "ledger.csv").read_bytes() == (local / "ledger.csv").read_bytes()
    if (local / "global").exists():
        mine, theirs = (load_file(run / "global" / "weights.safetensors") for run in (folder, local))
        assert {n: a.numpy().tobytes() for n, a in mine.items()} == {
            n: a.numpy().tobytes() for n, a in theirs.items()
        }
    for client, site in line.sites.items():
        state = site.store(organiser.run_id(folder)).state
        kept = {group: arrays for group, arrays in state.items() if group.isidentifier() and arrays}
        for group, arrays in kept.items():
            own = load_file(local / "clients" / client / f"{group}.safetensors")
            assert {n: a.numpy().tobytes() for n, a in arrays.items()} == {
                n: a.numpy().tobytes() for n, a in own.items()
            }
        there = {path.stem for path in (local / "clients" / client).glob("*.safetensors")} - {"predictor"}
        assert set(kept) == there


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
    with pytest.raises(RunError, match="the machine has stopped"):
        go(organiser, line, folder)
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
