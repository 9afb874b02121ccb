"""mutua as a Python library: what people have in hand works, and a mistake is one of ours, never a raw error."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.utils.data import Dataset, TensorDataset

import mutua
from mutua import Architecture, Faults, InputError, Recipe
from mutua.data import array_files
from mutua.reports import study, writing
from mutua.reports.labels import counts_by_client
from mutua.reports.report import compose as report
from mutua.runs.folder import RunFolder
from mutua.runs.inference import export, predict
from mutua.runs.listing import RunOverview, list_runs
from mutua.runs.newcomer import join
from mutua.runs.recording import Recorder
from mutua.runs.resuming import ResumedRecorder
from mutua.runs.saved_models import SavedModel
from mutua.studies.measures import RunNumbers
from mutua.studies.reproduction import Reproduction
from mutua.studies.sweep import Sweep

X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
Y = np.arange(40) % 2
IID = mutua.partitions.IID(clients=2)


def federation(**more: Any) -> mutua.Federation:
    given = {
        "partition": IID,
        "models": {"name": "mlp", "width": 0.05},
        "global_model": {"name": "mlp", "width": 0.05},
    }
    return mutua.Federation.from_arrays(X, Y, **{**given, **more})


# Constructors


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: mutua.methods.FML(alfa=0.5), r"FML\.alfa: unknown key; did you mean 'alpha'\?"),
        (lambda: mutua.SGD(learning_rate=0.1), r"SGD\.learning_rate: unknown key; known: lr,"),
        (lambda: mutua.SGD(0.1), r"SGD: 0\.1 has no name; give fields as name=value: lr,"),
        (lambda: mutua.Adam(lr="quick"), r"Adam\.lr: 'quick'"),
        (lambda: mutua.Plan(rounds=-1), r"Plan\.rounds: -1; it must be at least 0"),
        (lambda: mutua.Plan(optimizer={"name": "sgd", "momentum": 2}), r"Plan\.optimizer\.momentum: 2"),
        (lambda: mutua.Plan(privacy={"clip": 0, "noise": 1}), r"Plan\.privacy\.clip: 0; it must be above 0"),
        (lambda: mutua.partitions.Shards(clients=5), r"Shards\.shards_per_client: missing"),
        (lambda: mutua.partitions.IID(clients=0), r"IID\.clients: 0"),
        (lambda: mutua.Split(val=2), r"Split\.val: 2; it must be below 1"),
        (lambda: mutua.Split(val=0.5, test=0.5), r"Split: val 0\.5 \+ test 0\.5 leave nothing"),
        (lambda: mutua.Privacy(clip=1), r"Privacy\.noise: missing"),
        (lambda: mutua.Faults(dropout=[{}]), r"Faults\.dropout\.0: give clients, rounds or probability"),
        (lambda: mutua.merging.TrimmedMean(share=3), r"TrimmedMean\.share: 3"),
        (lambda: mutua.Architecture(name="mlp", widht=2), r"models\.widht: no such field; did you mean 'width'"),
        (lambda: mutua.Recipe(method={"name": "fml", "alfa": 1}), r"method\.alfa: unknown key"),
        (lambda: setattr(mutua.Plan(), "rounds", 3), r"Plan\.rounds: a Plan is frozen"),
    ],
)
def test_constructors_raise_our_sentence(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        make()


def test_a_constructor_still_says_its_fields_and_nested_places_keep_their_names() -> None:
    import inspect

    assert list(inspect.signature(mutua.Split).parameters) == ["val", "test", "val_from"]
    tree = {"data": {"name": "mnist5k", "split": {"val": 3}}, "partition": {"kind": "iid", "clients": 2}}
    with pytest.raises(InputError, match=r"^data\.split\.val: 3; it must be below 1"):
        Recipe.of({**tree, "models": {"global": "mlp"}, "method": "fml"})


# Paths


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "own.npz", x=X, y=Y, classes=["a", "b"], out=Y == 1)
    return tmp_path


def test_a_recipe_and_its_files_by_text_and_from_home(at_home: Path, tiny: dict[str, Any]) -> None:
    data = {"name": "arrays", "path": "~/own.npz"}
    (at_home / "tiny.yaml").write_text(yaml.safe_dump({**tiny, "data": data, "public": {"path": "~/own.npz"}}))
    (at_home / "faults.yaml").write_text("dropout: [{rounds: [1]}]")
    for path in ("~/tiny.yaml", "tiny.yaml", at_home / "tiny.yaml"):
        federation = Recipe.load(path).federation("~")
        assert len(federation.clients) == 2 and federation.public is not None
    masked = Recipe.of({**tiny, "data": data, "method": "fml", "opt_out": {"mask": "out"}}).federation(
        data_dir="~"
    )
    assert masked.clients[0].opt_in is not None
    assert Faults.load("~/faults.yaml").dropout[0].rounds == (1,)
    assert len(mutua.load("arrays", path="~/own.npz").train) == len(array_files.npz("own.npz").x) == 40
    torch.save(Architecture.of("mlp").build(channels=6, size=1, classes=2, seed=1).state_dict(), "mlp.pt")
    Architecture.of({"name": "mlp", "init": "~/mlp.pt"}).build(channels=6, size=1, classes=2, seed=0)
    (at_home / "edges").write_text("c0 c1\n")
    result = mutua.run(mutua.methods.FedMD(), federation, rounds=1, topology="~/edges")
    counts_by_client(result.federation).draw("labels.png", "labels")


def test_a_runs_folder_by_text(at_home: Path, finished: Callable[..., Any]) -> None:
    path, _ = finished("fml")
    run = RunFolder.open(str(path))
    assert run.path == path and RunOverview.of(str(path)).state == "finished"
    assert RunNumbers(str(path)).summary["method"] == "fml" and list_runs(str(path.parent))[0]
    model = SavedModel(str(path / "clients" / "c0"))
    np.savez(at_home / "x.npz", x=np.zeros((4, 28, 28), np.uint8), y=[0, 1, 0, 1])
    assert len(predict(model, "~/x.npz").labels) == 4
    assert [p.parent for p in export(model, "~/out")] == [at_home / "out"] * 2
    np.savez(at_home / "new.npz", x=np.zeros((40, 28, 28), np.uint8), y=Y, classes=["0", "1"])
    assert join(run, "~/new.npz", how="global", out="~/new").folder == at_home / "new"
    page = report(study.read_study(str(path)), data_dir="~")
    written = list(writing.write_report(page, html="~/page.html", tables="~/tables"))
    assert written[0] == at_home / "page.html" and written[-1].parent == at_home / "tables"
    assert Recorder.create("x", 0, "~/begun").path == at_home / "begun"
    assert Recorder.create("x", 0, under="~/many").path.parent == at_home / "many"
    recipe = Recipe.load(path / "recipe.yaml")
    from mutua.recipe.grid import Cell

    assert Sweep("~/sweep", [(Cell({}, {}), recipe)], [0]).runs[0].path.parent == at_home / "sweep"
    assert Reproduction("fedh2l/table-2", "laptop", [0], "~/again").sweep.place.is_relative_to(at_home)


@pytest.mark.parametrize(
    "use",
    [
        lambda wrong: Recipe.load(wrong),
        lambda wrong: Faults.load(wrong),
        lambda wrong: mutua.load("arrays", path=wrong),
        lambda wrong: mutua.load("mnist", data_dir=wrong),
        lambda wrong: RunFolder.open(wrong),
        lambda wrong: ResumedRecorder(wrong),
        lambda wrong: Recorder.create("x", 0, wrong),
        lambda wrong: study.read_study(wrong),
        lambda wrong: RunOverview.of(wrong),
    ],
)
def test_what_is_no_path_is_said(use: Callable[[Any], Any]) -> None:
    for wrong in (3, ["runs"], "~nobody-of-this-name/x"):
        with pytest.raises(InputError, match="path"):
            use(wrong)


# Data as people have it


class Pairs(Dataset[tuple[Any, int]]):
    classes = ("no", "yes")

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return torch.as_tensor(X[i]), int(Y[i])


def test_a_torch_dataset_is_taken_as_samples() -> None:
    made = mutua.Federation.from_samples(Pairs(), Pairs(), partition=IID, models="mlp")
    assert made.classes == ("no", "yes") and made.test is not None and len(made.test) == 40
    plain = mutua.Federation.from_samples(
        TensorDataset(torch.tensor(X), torch.tensor(Y)), partition=IID, models="mlp"
    )
    own = mutua.Federation.from_arrays(X, Y, partition=IID, models="mlp")
    assert torch.equal(plain.clients[1].train.x, own.clients[1].train.x)


def held(client: mutua.Client) -> set[float]:
    return {value for part in (client.train, client.val, client.test) for value in part.x[:, 0].tolist()}


def test_domains_by_name() -> None:
    names = np.array(["photo", "art"])[(np.arange(40) // 10) % 2]
    made = federation(partition=mutua.partitions.Domains(), domain=names)
    assert {client.id for client in made.clients} == {"art", "photo"}
    by_number = federation(partition=mutua.partitions.Domains(), domain=(names == "photo").astype(int))
    assert held(made["photo"]) == held(by_number["1"]) != held(by_number["0"])
    assert mutua.Samples.of(X, Y, domain=list(names), domains=["photo", "art"]).domains == ("photo", "art")


def test_a_split_as_a_recipe_writes_it() -> None:
    made, own = federation(split={"val": 0.25, "test": 0.25}), federation(split=mutua.Split(val=0.25, test=0.25))
    assert [len(c.val) for c in made.clients] == [len(c.val) for c in own.clients] == [5, 5]


def test_models_and_clients_by_name_in_the_plain_constructors() -> None:
    part = mutua.Samples.of(X, Y)
    made = mutua.Federation([mutua.Client("a", part, part, part, "mlp")], "mlp")
    assert made.clients[0].model == made.global_model == mutua.Architecture.of("mlp")


PART = mutua.Samples.of(X, Y)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: federation(split={"vla": 0.1}), r"split\.vla: unknown key; did you mean 'val'"),
        (lambda: federation(split=0.2), r"split: 0\.2; give mutua\.Split"),
        (lambda: federation(partition={"kind": "iid"}), r"partition: .*give an object"),
        (lambda: federation(partition=mutua.partitions.IID), r"partition: .*give an object"),
        (lambda: federation(domain=np.ones(40) / 2), r"domain: values of type float64"),
        (lambda: federation(domain=["a"] * 39), r"data\.domain: give one index below 1, or a domain's name"),
        (lambda: mutua.Samples.of(X, Y, domain=["c"] * 40, domains=["a"]), r"'c' is not among the domains a"),
        (lambda: federation(test=X), r"test: a ndarray; give two arrays"),
        (lambda: federation(models=3), r"models\.name: 3"),
        (lambda: federation(seed="x"), r"seed: 'x'"),
        (lambda: federation(samples_per_client="many"), r"samples_per_client: 'many'"),
        (lambda: federation(test_samples=0.5), r"test_samples: 0\.5"),
        (lambda: federation(classes=3), r"classes: 3"),
        (lambda: mutua.Federation.from_arrays(Pairs(), partition=IID, models="mlp"), r"y: missing; .*Dataset"),
        (lambda: mutua.Federation.from_arrays(Pairs(), Y, partition=IID, models="mlp"), r"data: x and y must be"),
        (
            lambda: mutua.Federation.from_samples(X, partition=IID, models="mlp"),
            r"train: a ndarray; .*from_arrays",
        ),
        (lambda: mutua.Federation.from_samples(mutua.load("mnist5k"), partition=IID), r"\.train"),
        (lambda: mutua.Federation.from_samples([1], partition=IID), r"train: a list"),
        (
            lambda: mutua.Federation.from_samples({"x": X}, partition=IID),
            r"train: not a dataset of \(input, label\)",
        ),
        (lambda: mutua.Client("a", X, X, X, "mlp"), r"client a: train is a ndarray; give Samples"),
        (lambda: mutua.Client(1, PART, PART, PART, "mlp"), r"client id: 1; give text"),
        (lambda: mutua.Federation(3), r"clients: a int"),
        (lambda: mutua.Federation([PART]), r"clients: a Samples among them"),
        (lambda: mutua.Samples.of("text", Y), r"data: x and y must be"),
        (lambda: mutua.Samples.of(X, None), r"data(\.y)?: "),
        (lambda: mutua.Samples.of_dataset(3), r"data: not a dataset"),
        (lambda: mutua.load("mnist5q"), r"data: 'mnist5q' is not known"),
        (lambda: mutua.load(3), r"data: '?3'? is not known"),
        (lambda: mutua.load("mnist5k", image_size="big"), r"image_size: 'big'"),
        (
            lambda: mutua.run("flm", federation(), rounds=1),
            r"method\.name: 'flm' is not a method; did you mean 'fml'",
        ),
        (lambda: mutua.run(mutua.methods.FML, federation()), r"method: .*give a name or an object"),
        (lambda: mutua.run(mutua.methods.FML(), [PART]), r"federation: a list"),
        (
            lambda: mutua.run(mutua.methods.FML(), federation(), plan=Recipe.plan),
            r"plan: a function.*recipe\.plan\(\)",
        ),
        (lambda: mutua.run(mutua.methods.FML(), federation(), plan={"rounds": 1}), r"plan: a dict, not a Plan"),
        (
            lambda: mutua.run(mutua.methods.FML(), federation(), roundz=1),
            r"roundz: unknown key; did you mean 'rounds'",
        ),
        (lambda: mutua.run(mutua.methods.FML(), federation(), rounds=1, workers="all"), r"workers: 'all'"),
        (lambda: mutua.run(mutua.methods.FML(), federation(), rounds=1, engine=3), r"engine: '?3'?"),
        (lambda: mutua.run(mutua.methods.FML(), federation(), rounds=1, callbacks=print), r"callbacks: "),
        (lambda: mutua.run(mutua.methods.FML(), federation(), rounds=1, callbacks=[3]), r"callbacks: "),
        (lambda: mutua.run(mutua.methods.FML(), federation(), rounds=1, faults={"dropout": 3}), r"faults"),
        (lambda: mutua.run(mutua.methods.FML(), federation(), rounds=1, faults="f.yaml"), r"faults"),
        (lambda: Recipe.of("x"), r"recipe: 'x'"),
        (lambda: Recipe.of({}), r"data is missing"),
        (lambda: Recipe.load("x.yaml", "rounds=1"), r"recipe: x\.yaml"),
    ],
)
def test_a_wrong_type_is_one_clear_line(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert re.search(told, str(caught.value)), str(caught.value)


def test_a_method_may_be_named_as_in_a_recipe() -> None:
    named, made = (mutua.run(of, federation(), rounds=1, progress=False) for of in ("fml", mutua.methods.FML()))
    assert named.job.method == made.job.method and list(named.history) == list(made.history)


def test_paths_may_be_text_everywhere() -> None:
    """No public function or method takes a `Path` alone."""
    found: list[Any] = [getattr(mutua, name) for name in mutua.__all__]
    found += [method for thing in found if inspect.isclass(thing) for method in vars(thing).values()]
    hints = [
        (f"{one.__qualname__}({name})", str(hint))
        for one in found
        if inspect.isfunction(one)
        for name, hint in inspect.get_annotations(one).items()
        if name != "return"
    ]
    assert sum("PathLike" in hint for _, hint in hints) > 10
    assert [where for where, hint in hints if re.search(r"\bPath\b", hint)] == [
        "Privacy.stream(path)"
    ]  # of a seed
