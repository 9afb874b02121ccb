"""The organiser's folder and the sites': what is in them, who may read it, and mistakes in one line."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from by_hand import write_tables

from conftest import Done
from mutua import InputError, Recipe
from mutua.deploy.agreement import Agreement
from mutua.deploy.organiser import Organiser
from mutua.deploy.site_folder import SiteFolder
from mutua.deploy.site_worker import NOT_READY, LoadedSite
from mutua.engines.site_requests import SiteAnswer, SiteRequest
from mutua.federation.privacy_accounting import Uses, epsilon

pytest.importorskip("flwr", reason="Flower is not installed")

Command = Callable[..., Done]


@pytest.fixture
def made(command: Command, tmp_path: Path) -> Path:
    clients = ",".join(sorted(client.id for client in Recipe.load(tmp_path / "tiny.yaml").federation().clients))
    done = command("deploy", "init", "d", "--recipe", "tiny.yaml", "--clients", clients, "--simulate")
    assert done.code == 0, done.err
    return tmp_path / "d"


def site(made: Path, name: str = "c0") -> Path:
    return made / "hand-out" / name


def test_private_keys_are_for_their_owner_alone(made: Path) -> None:
    secret = [*made.glob("private/*.key"), *made.glob("hand-out/*/client.key")]
    assert len(secret) == 4
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secret)
    assert stat.S_IMODE((made / "private").stat().st_mode) == 0o700
    keys = {path.read_bytes() for path in made.glob("hand-out/*/client.key")}
    others = [path for path in made.rglob("*") if path.is_file() and path.name != "client.key"]
    assert len(keys) == 2
    assert not any(key in path.read_bytes() for key in keys for path in others)


def test_all_sides_have_the_same_agreement(made: Path) -> None:
    own = Agreement.read(made, trusted=True)
    for name in ("c0", "c1"):
        theirs = Agreement.read(site(made, name), trusted=False)
        assert theirs.checksum == own.checksum
        assert theirs.job == own.job


@pytest.mark.parametrize("change", [{"rounds": 7}, {"seed": 3}, {"batch_size": 3}])
def test_another_recipe_is_another_agreement(made: Path, change: dict[str, Any]) -> None:
    own = Agreement.read(made, trusted=True)
    assert replace(own, recipe=own.recipe.with_(**change)).checksum != own.checksum
    assert replace(own, file=own.file.model_copy(update={"wait": 1.0})).checksum == own.checksum


def test_a_site_of_a_simulation_has_the_clients_own_part(made: Path, tmp_path: Path) -> None:
    there = Recipe.load(tmp_path / "tiny.yaml").federation()["c0"]
    client = SiteFolder.open(site(made)).client
    for split in ("train", "val", "test"):
        mine, theirs = getattr(client, split), getattr(there, split)
        assert mine.x.numpy().tobytes() == theirs.x.numpy().tobytes()
        assert mine.y.tolist() == theirs.y.tolist()
        assert (mine.classes, mine.preprocess) == (theirs.classes, theirs.preprocess)


def test_a_site_draws_a_seed_that_nobody_else_knows(made: Path) -> None:
    for name in ("c0", "c1"):
        path = site(made, name) / "client.yaml"
        path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith("seed")))
    seeds = {name: SiteFolder.open(site(made, name)).seed for name in ("c0", "c1")}
    assert len(set(seeds.values())) == 2
    assert {name: SiteFolder.open(site(made, name)).seed for name in seeds} == seeds
    assert stat.S_IMODE((site(made) / "private" / "seed").stat().st_mode) == 0o600


def change(folder: Path, **told: Any) -> None:
    path = folder / "client.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **told}))


MISTAKES = {
    "client: 'x' is not of this deployment; known: c0, c1": {"client": "x"},
    "client.yaml: model: 'lenet6' is not a model; did you mean 'lenet5'?": {"model": "lenet6"},
    "nothing.npz": {"data": "nothing.npz"},
    "data: give val and test, or neither": {"data": {"path": "train.npz", "val": "val.npz"}},
    "policy.may_leave": {"policy": {"may_leave": ["everything"]}},
    "unknown key": {"polcy": {}},
    "policy.partners: at least": {"policy": {"partners": -1}},
}


@pytest.mark.parametrize("said", [said for said in MISTAKES if said != "policy.partners: at least"])
def test_a_mistake_in_a_sites_settings_is_one_line(made: Path, command: Command, said: str) -> None:
    change(site(made), **MISTAKES[said])
    done = command("deploy", "check", site(made))
    assert done.code != 0
    assert said in done.out + done.err
    assert "Traceback" not in done.out + done.err


def test_a_site_that_is_wrong_says_so_to_both_sides_and_is_ready_once_it_is_mended(made: Path) -> None:
    right = yaml.safe_load((site(made) / "client.yaml").read_text())["model"]
    change(site(made), model="lenet6")
    loaded = LoadedSite(str(site(made)))
    assert "lenet6" in loaded.load()
    hello = SiteRequest("hello", "0" * 16, Agreement.read(made, trusted=True).checksum)
    assert loaded.answer(hello) == SiteAnswer("refused", NOT_READY)
    change(site(made), model=right)
    assert loaded.answer(hello).ending == "done"
    assert loaded.load() == ""


def test_a_key_that_others_may_read_is_refused(made: Path, command: Command) -> None:
    (site(made) / "client.key").chmod(0o644)
    assert "chmod 600" in command("deploy", "check", site(made)).err


def test_an_unknown_folder_is_one_line(command: Command) -> None:
    for words in (("server", "x"), ("run", "x"), ("status", "x"), ("check", "x"), ("client", "x")):
        done = command("deploy", *words)
        assert (done.code, done.err.count("\n")) == (2, 1), done.err


def test_what_cannot_be_deployed_is_refused_before_anything_is_made(command: Command, tmp_path: Path) -> None:
    given = ("deploy", "init", "d", "--recipe", "tiny.yaml", "--clients")
    assert "brings all data to one place" in command(*given, "a,b", "--set", "method=centralised").err
    assert "they are the recipe's" in command(*given, "a,b", "--simulate").err
    assert "--input" in command(*given, "a,b", "--input", "big", "--classes", "a,b").err
    assert "--input, --classes: missing" not in command(*given, "a,A").err
    assert not (tmp_path / "d").exists()


def test_a_code_that_the_organiser_names_is_not_imported(made: Path) -> None:
    path = site(made) / "recipe.yaml"
    told = yaml.safe_load(path.read_text())
    told["method"] = {"name": "os_stranger:Method"}
    path.write_text(yaml.safe_dump(told))
    with pytest.raises(InputError, match="code from outside mutua"):
        _ = SiteFolder.open(site(made)).agreed


def test_a_client_can_be_revoked_and_added_again(made: Path, command: Command) -> None:
    before = Organiser.open(made).keys()
    assert "has a key already" in command("deploy", "add", made, "c0").err
    assert command("deploy", "revoke", made, "c0").code == 0
    assert set(Organiser.open(made).keys()) == {"c1"}
    assert "is there already; remove it" in command("deploy", "add", made, "c0").err
    site(made).rename(made.parent / "old")
    assert command("deploy", "add", made, "c0").code == 0
    after = Organiser.open(made).keys()
    assert after.keys() == before.keys()
    assert after["c0"] != before["c0"]
    assert after["c1"] == before["c1"]
    assert "has no key here" in command("deploy", "revoke", made, "x").err


def test_a_recipe_of_a_deployment_needs_no_data(command: Command, tmp_path: Path) -> None:
    """Sites have their own; a public set in a file is enough for a method that needs one."""
    path = tmp_path / "sites.yaml"
    path.write_text(yaml.safe_dump({"method": "fml", "models": {"global": "linear"}, "rounds": 2}))
    given = ("deploy", "init", "s", "--recipe", path, "--clients", "north,south")
    shape = ("--input", "1x8x8", "--classes", "healthy,ill")
    assert "--input, --classes: missing; the recipe has no data" in command(*given).err
    assert "public: missing; method fedmd needs one" in command(*given, *shape, "--set", "method=fedmd").err
    assert not (tmp_path / "s").exists()
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 1, 8, 8), dtype=np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "open.npz", x=x, y=y, classes=np.array(["healthy", "ill"]))
    public = ("--set", f"public.path={tmp_path / 'open.npz'}", "--set", "method=fedmd")
    assert (done := command(*given, *shape, *public)).code == 0, done.err
    own, theirs = (
        Agreement.read(place, trusted=True) for place in (tmp_path / "s", site(tmp_path / "s", "north"))
    )
    assert own.public is not None and theirs.public is not None
    assert own.checksum == theirs.checksum
    assert sorted(own.public.parts) == ["north", "south"]
    held = np.concatenate([part.x.numpy() for part in theirs.public.parts.values()])
    assert sorted(sample.tobytes() for sample in held) == sorted(sample.tobytes() for sample in x)
    np.savez(site(tmp_path / "s", "north") / "data.npz", x=x, y=y, classes=np.array(["healthy", "ill"]))
    assert len(SiteFolder.open(site(tmp_path / "s", "north")).site().client.train) == 28


# Tables and texts

TABLE = {
    "method": "fml",
    "data": {
        "name": "table",
        "path": "patients.npz",
        "target": "sick",
        "infer": False,
        "columns": {"sex": ["f", "m"], "age": "number", "dose": "number"},
    },
    "partition": {"kind": "iid", "clients": 2},
    "models": {"global": "mlp"},
    "rounds": 1,
}


def deployment_of(command: Command, place: Path, *words: str, **changes: Any) -> Path:
    write_tables(place)
    (place / "table.yaml").write_text(yaml.safe_dump({**TABLE, **changes}))
    done = command("deploy", "init", "t", "--recipe", "table.yaml", "--clients", "c0,c1", *words)
    assert done.code == 0, done.err
    return place / "t"


def test_what_a_client_has_fitted_is_in_no_file_of_the_organiser(command: Command, tmp_path: Path) -> None:
    found = Agreement.read(deployment_of(command, tmp_path), trusted=True).file.input.preprocess
    assert [column.name for column in found.columns] == ["sex", "age", "dose"]
    assert found.statistics == ()
    assert not found.fitted


@pytest.mark.parametrize("kind", ["table", "text"])
def test_an_organiser_without_data_says_all_in_the_recipe(command: Command, tmp_path: Path, kind: str) -> None:
    nowhere = {"path": "nowhere.csv"}
    text = {"name": "text", "text": "said", "target": "opinion", "length": 6, **nowhere}
    given = {"table": {**TABLE["data"], **nowhere}, "text": text}[kind]
    models = {"global": "mlp" if kind == "table" else "text-cnn"}
    place = deployment_of(command, tmp_path, "--classes", "no,yes", data=given, models=models)
    shape = Agreement.read(place, trusted=True).file.input
    with_data = {"table": (3,), "text": (6,)}[kind]
    assert (shape.shape, shape.dtype) == (with_data, {"table": "float32", "text": "int32"}[kind])
    own = "patients.npz" if kind == "table" else "mine.jsonl"
    if kind == "text":
        pytest.importorskip("pandas")
        rows = [{"said": f"good {k}", "opinion": "yes" if k % 2 else "no"} for k in range(40)]
        (site(place) / own).write_text("\n".join(map(json.dumps, rows)))
    else:
        (tmp_path / own).rename(site(place) / own)
    change(site(place), data=own, model=models["global"])
    client = SiteFolder.open(site(place)).client
    assert len(client.train) + len(client.val) + len(client.test) == {"table": 120, "text": 40}[kind]
    assert client.train.preprocess.fitted


def test_a_site_is_told_what_its_table_lacks(command: Command, tmp_path: Path) -> None:
    place = deployment_of(command, tmp_path, "--simulate")
    held = dict(np.load(site(place) / "train.npz"))
    np.savez(site(place) / "less.npz", **{name: held[name] for name in ("age", "sex", "sick")})
    change(site(place), data="less.npz")
    assert "has no dose: missing there" in command("deploy", "check", site(place)).out
    np.savez(site(place) / "none.npz", weight=held["age"], sick=held["sick"])
    change(site(place), data="none.npz")
    assert "none of the columns sex, age, dose is there; it has" in command("deploy", "check", site(place)).out
    change(site(place), data={"path": "less.npz", "name": "arrays"})
    assert "name: arrays, but this is table" in command("deploy", "check", site(place)).out


# Privacy, and the server as a site sees it

PRIVATE = {"level": "example", "noise": 1.0, "clip": 1.0}


def test_the_noise_of_a_deployment_is_the_systems(command: Command, tmp_path: Path) -> None:
    given = ("deploy", "init", "p", "--recipe", "tiny.yaml", "--clients", "c0,c1", "--set", "method=fedavg")
    given += ("--set", "method.weights=uniform", "--set", "privacy.noise=1.0", "--set", "privacy.clip=1.0")
    seeded = ("--set", "privacy.randomness=seeded")
    assert "noise is of each site's system" in command(*given, *seeded).err
    budget = ("--set", "privacy.level=example", "--set", "privacy.budget=3")
    assert "depends on how many samples a site has" in command(*given, *budget).err
    assert (done := command(*given, *seeded, "--simulate")).code == 0, done.err
    path = site(tmp_path / "p") / "client.yaml"
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith("seed")))
    with pytest.raises(InputError, match="noise must come from this site's system"):
        SiteFolder.open(path.parent).site()


def test_a_site_is_told_its_own_epsilon(command: Command, tmp_path: Path) -> None:
    """By its own samples, which the organiser does not know; against the accountant."""
    told = [word for name, value in PRIVATE.items() for word in ("--set", f"privacy.{name}={value}")]
    given = ("--clients", "c0,c1", "--set", "method=fedavg", "--set", "method.weights=uniform", "--simulate")
    assert (done := command("deploy", "init", "p", "--recipe", "tiny.yaml", *given, *told)).code == 0, done.err
    folder = SiteFolder.open(site(tmp_path / "p"))
    plan, samples = folder.agreed.job.plan, len(folder.client.train)
    steps = -(-samples // plan.batch_size) * (plan.epochs or 1) * plan.rounds
    rate = min(1.0, plan.batch_size / samples)
    expected = epsilon([Uses(1.0, rate, steps)], 1e-5)
    assert (
        f"for each of your samples that is ε = {expected:.3g} at δ = 1e-05"
        in command("deploy", "check", folder.path).out
    )


class Stub:
    """A server with the deployment's certificate that says what time it is."""

    def __init__(self, made: Path, off: float) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(made / "private" / "server.pem", made / "private" / "server.key")
        self.door = socket.create_server(("127.0.0.1", 0))
        self.date = formatdate(time.time() + off, usegmt=True)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with suppress(OSError), self.context.wrap_socket(self.door.accept()[0], server_side=True) as line:
            line.recv(2**12)
            line.sendall(f"HTTP/1.1 403 Forbidden\r\nDate: {self.date}\r\n\r\n".encode())


@pytest.mark.parametrize(
    ("off", "said"),
    [
        (0, "is there, and its certificate is valid for"),
        (-3600, "this machine's clock is 3600 s ahead of the server's"),
        (3600, "this machine's clock is 3600 s behind the server's"),
    ],
)
def test_a_site_compares_its_clock_with_the_servers(made: Path, command: Command, off: float, said: str) -> None:
    stub = Stub(made, off)
    path = site(made) / "deployment.yaml"
    port = stub.door.getsockname()[1]
    path.write_text(path.read_text().replace(":9092", f":{port}"))
    out = command("deploy", "check", site(made)).out
    stub.door.close()
    assert said in out.replace("3599 s", "3600 s").replace("3601 s", "3600 s"), out
