"""What a site finds out about joining, alone: models against runs on one machine, and that nothing leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from by_hand import ByHand, go, raw
from safetensors.torch import load_file

import mutua
from conftest import Done, csv_rows
from mutua import RunError
from mutua.deploy.conduct import welcome
from mutua.deploy.organiser import Organiser
from mutua.deploy.site_folder import SiteFolder
from mutua.engines.network import NetworkEngine
from mutua.federation.site_ledger import entries
from mutua.runs.folder import RunFolder
from mutua.runs.newcomer import join_client

pytest.importorskip("flwr", reason="Flower is not installed")

Command = Callable[..., Done]
Deploy = Callable[..., tuple[Any, Any]]


def model_bytes(path: Path) -> dict[str, bytes]:
    return raw(load_file(path))


def test_a_site_compares_what_it_has_with_what_it_would_have_alone(
    deploy: Deploy, command: Command, tmp_path: Path
) -> None:
    """Alone has the bytes of `independent`, personal and global those of the run; their numbers are the run's."""
    organiser, line = deploy("fml", epochs=2)
    go(organiser, line, organiser.path / "runs" / "one")
    alone = ("run", "r.yaml", "--out", "alone", "--set", "method=independent", "--workers", "1", "--json")
    assert (done := command(*alone)).code == 0, done.err
    site = organiser.path / "hand-out" / "c2"
    ledger = (site / "ledger.jsonl").read_bytes()
    done = command("deploy", "benefit", site, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    models = site / "models"
    assert model_bytes(models / "alone" / "alone.safetensors") == model_bytes(
        tmp_path / "alone" / "clients" / "c2" / "personal.safetensors"
    )
    assert model_bytes(models / "personal" / "personal.safetensors") == model_bytes(
        tmp_path / "local" / "clients" / "c2" / "personal.safetensors"
    )
    assert model_bytes(models / "global" / "global.safetensors") == model_bytes(
        tmp_path / "local" / "global" / "weights.safetensors"
    )
    for name, run, model in (("alone", "alone", "predictor"), ("personal", "local", "predictor")):
        rows = csv_rows(tmp_path / run / "history.csv")
        last = [
            row["value"]
            for row in rows
            if (row["round"], row["client"], row["model"], row["split"], row["metric"])
            == ("2", "c2", model, "test", "accuracy")
        ]
        assert [float(value) for value in last] == [pytest.approx(told["models"][name]["value"])]
    assert (told["joined"], told["rounds"], told["finished"]) == ("personal", [1, 2], True)
    assert set(told["gains"]) == {"global", "personal"}
    assert (site / "ledger.jsonl").read_bytes() == ledger  # nothing has left
    assert not any("benefit" in json.dumps(entry) for entry in map(json.loads, ledger.splitlines()))


def test_the_words_say_which_model_to_serve_and_it_is_exported(
    deploy: Deploy, command: Command, tmp_path: Path
) -> None:
    organiser, line = deploy("fml")
    go(organiser, line, organiser.path / "runs" / "one")
    site = organiser.path / "hand-out" / "c0"
    assert "first: mutua deploy benefit" in command("export", site).err
    done = command("deploy", "benefit", site, "--noun", "patients")
    assert done.code == 0, done.err
    assert "test patients of your own" in done.out
    assert "nothing of this left this machine" in done.out
    assert "against alone" in done.out
    [serve] = [line.removeprefix("serve: ") for line in done.out.splitlines() if line.startswith("serve: ")]
    assert command("export", site, "--out", "mine").code == 0
    assert model_bytes(tmp_path / "mine" / "model.safetensors") == model_bytes(
        site / "models" / serve / f"{serve}.safetensors"
    )
    card = json.loads((tmp_path / "mine" / "card.json").read_text())
    assert (card["client"], card["weights"]) == ("c0", "model.safetensors")
    assert command("export", site, "--client", "alone", "--out", "other").code == 0
    assert "known: alone, global, personal" in command("export", site, "--client", "x", "--out", "z").err


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("fedavg", {"alone", "global"}),
        ("labels", {"alone", "global", "personal"}),
        ("mixture", {"alone", "global", "served"}),
        ("fedmd", {"alone", "personal"}),
        ("fedh2l", {"alone", "personal"}),
    ],
)
def test_every_method_has_what_its_sites_can_serve(
    deploy: Deploy, command: Command, name: str, models: set[str]
) -> None:
    organiser, line = deploy(name)
    go(organiser, line, organiser.path / "runs" / "one")
    done = command("deploy", "benefit", organiser.path / "hand-out" / "c1", "--json")
    assert done.code == 0, done.err
    assert set(json.loads(done.out)["models"]) == models


def test_a_run_that_was_broken_off_is_judged_by_what_is_there(deploy: Deploy, command: Command) -> None:
    organiser, line = deploy("fedavg", rounds=3)
    site = organiser.path / "hand-out" / "c0"
    assert "has taken part in no run yet" in command("deploy", "benefit", site).err

    def stop(client: str, request: Any) -> None:
        if (client, request.verb, request.round) == ("c2", "train", 2):
            raise RunError("stopped")

    line.before = stop
    with pytest.raises(RunError):
        go(organiser, line, organiser.path / "runs" / "one")
    done = command("deploy", "benefit", site)
    assert done.code == 0, done.err
    assert "the run is not finished" in done.out
    assert "--run: 'x' is not here" in command("deploy", "benefit", site, "--run", "x").err


def test_without_test_samples_nobody_can_say(deploy: Deploy, command: Command) -> None:
    organiser, _ = deploy("fml")
    site = organiser.path / "hand-out" / "c0"
    told = yaml.safe_load((site / "client.yaml").read_text())
    told["data"] = {"path": "train.npz", "split": {"val": 0.2, "test": 0.0}}
    (site / "client.yaml").write_text(yaml.safe_dump(told))
    assert "no test samples" in command("deploy", "benefit", site).err


@pytest.mark.parametrize(("name", "serves"), [("fml", "personal"), ("fedavg", "served")])
def test_a_newcomer_makes_the_model_that_it_makes_on_one_machine(
    deploy: Deploy, command: Command, tmp_path: Path, name: str, serves: str
) -> None:
    """A site that is added after a run gets the last global; nothing comes back."""
    organiser, line = deploy(name)
    folder = organiser.path / "runs" / "one"
    go(organiser, line, folder)
    assert command("deploy", "add", organiser.path, "late").code == 0
    place = organiser.path / "hand-out" / "late"
    source = mutua.load("mnist5k").train.take(range(60))
    np.savez(place / "data.npz", x=source.inputs.numpy(), y=source.y.numpy(), classes=np.array(source.classes))
    with (place / "client.yaml").open("a") as file:
        file.write("\nseed: 5\n")
    site = SiteFolder.open(place).site()
    organiser = Organiser.open(organiser.path)
    engine = NetworkEngine(ByHand({"late": site}), organiser.run_id(folder), organiser.agreed.checksum, 0)
    welcome(organiser.agreed, engine, folder, "late")
    [entry] = entries(place / "ledger.jsonl")
    assert (entry.verb, entry.bytes) == ("join", 0)

    how = "mutual" if name == "fml" else "finetune"
    join_client(RunFolder.open(tmp_path / "local"), site.client, how=how, seed=0, out=tmp_path / "joined")
    done = command("deploy", "benefit", place, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert set(told["models"]) == {"alone", "global", serves}
    assert model_bytes(place / "models" / serves / f"{serves}.safetensors") == model_bytes(
        tmp_path / "joined" / "predictor.safetensors"
    )
    alone = json.loads((tmp_path / "joined" / "join.json").read_text())["accuracy"]["alone"]
    assert told["models"]["alone"]["value"] == pytest.approx(alone)


def test_who_took_part_is_no_newcomer(deploy: Deploy) -> None:
    organiser, line = deploy("fml")
    folder = organiser.path / "runs" / "one"
    go(organiser, line, folder)
    engine = NetworkEngine(line, organiser.run_id(folder), organiser.agreed.checksum, 0)
    with pytest.raises(RunError, match="c0: refused: it took part in this run"):
        welcome(organiser.agreed, engine, folder, "c0")
    line.away = {"c0"}
    with pytest.raises(RunError, match="c0: it is not here"):
        welcome(organiser.agreed, engine, folder, "c0")
