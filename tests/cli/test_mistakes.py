"""A user's likeliest mistakes through the command line: one clear line, an exit code, nothing left behind."""

import json
import resource
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import mutua
from mutua import InputError

NETS = '''
from torch import nn

def good(channels, size, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))

def raises(channels, size, classes):
    raise RuntimeError("no luck\\ntoday")

def narrow(channels, size, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, 3))

def number(channels, size, classes):
    return 3

def greedy(channels, size, classes, depth):
    return nn.Flatten()

def headless(channels, size, classes):
    return nn.Sequential(nn.Conv2d(channels, classes, size), nn.Flatten())

class Late(nn.Module):
    """Works until it is trained."""
    def __init__(self, channels, size, classes):
        super().__init__()
        self.head = nn.Linear(channels * size * size, classes)
    def forward(self, x):
        if self.training:
            raise ValueError("not in the mood")
        return self.head(x.flatten(1))

thing = 3
'''


@pytest.fixture
def desk(command: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """A folder with everything that the mistakes below need; then `mutua`, run there."""
    x = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    y = np.arange(60) % 3
    holes = x.astype(np.float32)
    holes[7, 1, 1] = np.nan
    wild = np.where(np.arange(60) == 5, 9, y)
    names = np.array(["ant", "bee", "cat"])
    files: dict[str, dict[str, Any]] = {
        "good": {"x": x, "y": y},
        "nan": {"x": holes, "y": y},
        "range": {"x": x, "y": wild, "classes": names},
        "negative": {"x": x, "y": y - 1},
        "cube": {"x": x.reshape(60, 2, 2, 4, 4), "y": y},
        "short": {"x": x, "y": y[:50]},
        "keys": {"images": x, "labels": y},
        "words": {"x": x, "y": names[y]},
        "halves": {"x": x, "y": y + 0.5},
        "empty": {"x": x[:0], "y": y[:0]},
        "objects": {"x": np.array([{}], dtype=object), "y": y[:1]},
        "digits": {"x": np.zeros((9, 28, 28), np.uint8), "y": y[:9]},
        "strange": {"x": np.zeros((9, 28, 28), np.uint8), "y": y[:9] % 2, "classes": np.array(["hot", "dog"])},
    }
    for name, arrays in files.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "broken.yaml").write_text("name: [tiny\nrounds: 3")
    (tmp_path / "list.yaml").write_text("- a\n- b")
    (tmp_path / "blank.yaml").write_text("")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    (tmp_path / "desk_nets.py").write_text(NETS)
    (tmp_path / "desk_unreadable.py").write_text("def x(:")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "precious").write_text("mine")
    for name in ("desk_nets", "desk_unreadable"):  # of another test's folder
        sys.modules.pop(name, None)
    (tmp_path / "flat").mkdir()
    Image.fromarray(x[0]).save(tmp_path / "flat" / "a.png")
    return command


# What people type, and what they are told.
MISTAKES = r"""
# the command
$ mutua runn tiny.yaml
No such command 'runn'; did you mean 'run' or 'runs'? see 'mutua --help'
$ mutua run
RECIPE: missing; give a YAML file, or --resume with the folder of a run
$ mutua run tiny.yaml --sed 1
No such option: --sed; did you mean '--seed' or '--set'?
$ mutua run tiny.yaml --seed
Option '--seed' requires an argument
$ mutua run tiny.yaml --seed one
Invalid value for '--seed'
$ mutua run tiny.yaml --seed -1
Invalid value for '--seed'
$ mutua run tiny.yaml --device gpu
Invalid value for '--device': 'gpu'; did you mean 'cpu'? known: auto, cpu, cuda, mps
$ mutua run tiny.yaml --device cuda
device: 'cuda' is not on this machine
$ mutua run tiny.yaml --engine rya
engine: 'rya' is not an engine; did you mean 'ray'?
$ mutua run tiny.yaml --ray-address 10.0.0.1:6379
address: 10.0.0.1:6379: engine 'local' has no such option; choose 'ray' or leave it out

# the file
$ mutua run none.yaml
recipe: none.yaml: No such file or directory; give a YAML file
$ mutua run taken
recipe: taken: Is a directory; give a YAML file
$ mutua run broken.yaml
recipe: broken.yaml: not YAML: line 2, column 7: expected ',' or ']'
$ mutua run list.yaml
recipe: list.yaml holds a list; it must hold keys and values
$ mutua run blank.yaml
recipe: blank.yaml holds nothing; it must hold keys and values
$ mutua run binary.yaml
recipe: binary.yaml: it is not a text file; give a YAML file

# the recipe
$ mutua run tiny.yaml --set round=3
tiny.yaml: round: unknown key; did you mean 'rounds'?
$ mutua run tiny.yaml --set rounds
--set rounds: write it as key.key=value
$ mutua run tiny.yaml --set rounds=many
rounds: 'many'; it must be a whole number
$ mutua run tiny.yaml --set epochs=1 --set steps=1
epochs and steps are both given
$ mutua run tiny.yaml --set models.global=lenet
models.global: 'lenet' is not a model; did you mean 'lenet5'?
$ mutua run tiny.yaml --set method=fmll
method.name: 'fmll' is not a method; did you mean 'fml'?
$ mutua run tiny.yaml --set method.alhpa=0.2
method.alhpa: unknown key; did you mean 'alpha'?
$ mutua run tiny.yaml --set method.alpha=1.5
method.alpha: 1.5 is out of range; give a value from 0 to 1
$ mutua run tiny.yaml --set 'method.beta={schedule: lineer}'
method.beta: schedule: 'lineer' is unknown; did you mean 'linear'?
$ mutua run tiny.yaml --set optimizer.lr=-0.1
optimizer.lr: -0.1 is out of range; give a value from 0
$ mutua run tiny.yaml --set optimizer.name=sdg
optimizer.name: 'sdg'; did you mean 'sgd'?
$ mutua run tiny.yaml --set partition.kind=idd
partition.kind: 'idd'; did you mean 'iid'?
$ mutua run tiny.yaml --set partition.clients=0
partition.clients: 0; it must be at least 1
$ mutua run tiny.yaml --set 'data={name: arrays, path: good.npz}' --set partition.clients=100
partition.clients: 100 clients for 42 training samples; give at most 42
$ mutua run tiny.yaml --set 'partition={kind: shards, clients: 2, shards_per_client: 11}'
partition.shards_per_client: 11, but the training data has
$ mutua run tiny.yaml --set 'models.clients=[mlp, mlp, mlp]'
models: 3 for 2 clients; give one for all or one per client
$ mutua run tiny.yaml --set 'models.global={name: "desk_nets:headless", share: body}' --set models.clients=mlp
has no head; name its last layer 'head' or share 'all'
$ mutua run tiny.yaml --set 'models={clients: mlp}'
models.global: missing; this method shares a global model
$ mutua run tiny.yaml --set 'data={name: arrays, path: good.npz}' --set models.clients=cnn-5x5
images of 8×8 pixels are too small; use 16 or more per side
$ mutua run tiny.yaml --set name=a/b
name: 'a/b'; it must be letters, digits

# a model of one's own
$ mutua run tiny.yaml --set models.clients=no_such_nets:build
'no_such_nets:build' cannot be imported: No module named 'no_such_nets'
$ mutua run tiny.yaml --set models.clients=desk_nets:godo
module desk_nets has no 'godo'
$ mutua run tiny.yaml --set models.clients=desk_unreadable:build
cannot be imported: SyntaxError: invalid syntax
$ mutua run tiny.yaml --set models.clients=desk_nets:raises
client c0: model desk_nets:raises cannot be built: RuntimeError: no luck today
$ mutua run tiny.yaml --set models.clients=desk_nets:narrow
gives (2, 3) for two samples; it must give (2, 10), one score per class
$ mutua run tiny.yaml --set models.clients=desk_nets:number
made a int; it must make an nn.Module
$ mutua run tiny.yaml --set models.clients=desk_nets:greedy
missing a required argument: 'depth'
$ mutua run tiny.yaml --set models.clients=desk_nets:thing
is a int; give a factory, class or nn.Module

# the data
$ mutua run tiny.yaml --set data=mnist5
data: 'mnist5' is not known; did you mean 'mnist5k'?
$ mutua run tiny.yaml --set data=fashion-mnist
no-data (looked for fashion-mnist.npz, fashion-mnist,
$ mutua run tiny.yaml --set data=cifar10
to get it: mutua data get cifar10
$ mutua run tiny.yaml --set 'data={name: arrays}'
data: path: missing; data 'arrays' needs the path of its array file (.npz)
$ mutua run tiny.yaml --set 'data={name: arrays, path: none.npz}'
data: none.npz: not found; check the path, which counts from the folder where you are
$ mutua run tiny.yaml --set 'data={name: arrays, path: text.npz}'
data: text.npz: not a readable array file (.npz)
$ mutua run tiny.yaml --set 'data={name: arrays, path: objects.npz}'
data: objects.npz: an array of Python objects is not read; save texts as numpy.array(values, dtype=str)
$ mutua run tiny.yaml --set 'data={name: arrays, path: keys.npz}'
data: keys.npz: holds images, labels; give x and y
$ mutua run tiny.yaml --set 'data={name: arrays, path: nan.npz}'
data: arrays.x: NaN or infinity in 1 of 60 samples; clean or drop them
$ mutua run tiny.yaml --set 'data={name: arrays, path: range.npz}'
data: arrays.y: label 9 is out of range; 3 classes allow 0 to 2
$ mutua run tiny.yaml --set 'data={name: arrays, path: negative.npz}'
data: arrays.y: label -1; labels count from 0
$ mutua run tiny.yaml --set 'data={name: arrays, path: words.npz}'
data: arrays.y: labels are text; give whole numbers
$ mutua run tiny.yaml --set 'data={name: arrays, path: halves.npz}'
data: arrays.y: labels must be whole numbers
$ mutua run tiny.yaml --set 'data={name: arrays, path: cube.npz}'
data: arrays.x: shape (60, 2, 2, 4, 4); give (N, H, W)
$ mutua run tiny.yaml --set 'data={name: arrays, path: short.npz}'
data: arrays.y: shape (50,) for 60 inputs; give one label per sample
$ mutua run tiny.yaml --set 'data={name: arrays, path: empty.npz}'
data: arrays: no samples; it needs at least one
$ mutua run tiny.yaml --set 'data={name: folder, path: none}'
data: none: not a folder; give one with images as class/*.jpg
$ mutua run tiny.yaml --set 'data={name: folder, path: flat}'
data: flat: give images as class/*.jpg or domain/class/*.jpg

# the output
$ mutua run tiny.yaml --out taken
--out: taken is there already and not empty; name another or remove it
$ mutua run tiny.yaml --out good.npz
--out: good.npz is a file; name a folder
$ mutua run tiny.yaml --out good.npz/run
--out: cannot write to good.npz/run: Not a directory; name another place

$ mutua run tiny.yaml --set grid.rounds=[1,2]
grid: a grid is many runs; use 'mutua compare', or leave it out by --set grid=null

# compare
$ mutua compare tiny.yaml
--methods: missing; name them as fml,fedavg,independent, or give the recipe a grid
$ mutua compare tiny.yaml --methods fml,fedvag
--methods: 'fedvag': method.name: 'fedvag' is not a method; did you mean 'fedavg'?
$ mutua compare tiny.yaml --methods fedprox:nu=1
--methods: 'fedprox:nu=1': method.nu: unknown key
$ mutua compare tiny.yaml --methods fml --seeds a,b
--seeds: 'a,b'; give whole numbers such as 0,1,2
$ mutua compare tiny.yaml --methods fml,fedmd --seeds 0
--methods: 'fedmd': public: missing; fedmd learns from a public set
$ mutua compare tiny.yaml --methods fml --out taken
--out: taken is there already and not empty

# data
$ mutua data get mnits
'mnits' is not known
$ mutua data get pacs
mutua does not download pacs: download it by hand from https://
$ mutua data show tiny.yaml --out good.npz/x.png
good.npz/x.png: cannot be written

# using a result
$ mutua predict none --client c0 --data good.npz
RUN: none is not a folder; give the folder that 'mutua run' named
$ mutua export taken --client c0
RUN: taken has no run.json: it is not a finished run's folder
$ mutua predict RUN --data digits.npz
Missing option '--client'; see 'mutua predict --help'
$ mutua predict RUN --client c9 --data digits.npz
--client: 'c9' is not in
$ mutua export RUN --client ../c0
--client: '../c0' is not in
$ mutua predict RUN --client c0 --data good.npz
--data: samples are (1, 8, 8) bytes (0 to 255); the model takes (1, 28, 28) bytes
$ mutua predict RUN --client c0 --data keys.npz
--data: keys.npz has no array 'x' or 'x_test' (it has images, labels)
$ mutua predict RUN --client c0 --data digits.npz --out good.npz/x
--out: cannot write to good.npz/x: Not a directory; name another file
$ mutua join RUN --data good.npz
--data: samples are (1, 8, 8) bytes
$ mutua join RUN --data strange.npz
--data: classes: hot, dog in the data, but not among
$ mutua join RUN --data digits.npz --name c0
--name: 'c0' is in
$ mutua join RUN --data digits.npz --model lenet
'lenet' is not a model; did you mean 'lenet5'?
$ mutua join RUN --data digits.npz --how magic
Invalid value for '--how': 'magic'; known: global, finetune, mutual
$ mutua join FEDAVG --data digits.npz --how mutual
how: 'mutual', but fedavg does no mutual learning; use 'global' or 'finetune'
$ mutua join INDEPENDENT --data digits.npz
has no global model, because method independent has none
"""

FAILURES = r"""
$ mutua run tiny.yaml --json --out x --set models.clients=desk_nets:Late
desk_nets.py:29); to go on: mutua run --resume x
$ mutua run tiny.yaml --json --out x --set optimizer.lr=1e6 --set rounds=9
of the replies merged before, none is far longer than the median; to go on: mutua run --resume x
"""


def told(text: str) -> list[tuple[str, str]]:
    """Each command with the line below it."""
    lines = [line for line in text.splitlines() if line and not line.startswith("# ")]
    return list(zip(lines[::2], lines[1::2], strict=True))


@pytest.fixture
def one_line(
    desk: Callable[..., Any], finished: Callable[..., tuple[Path, Any]]
) -> Callable[[str, str, int], None]:
    """Run a command and see that it says this and nothing more."""
    runs = {"RUN": "fml", "FEDAVG": "fedavg", "INDEPENDENT": "independent"}

    def check(line: str, said: str, code: int) -> None:
        _, mutua, *words = shlex.split(line)
        assert mutua == "mutua"
        done = desk(*(finished(runs[word])[0] if word in runs else word for word in words))
        assert said in done.err
        assert (done.code, done.out) == (code, "")
        assert done.err.startswith("mutua: ") and done.err.count("\n") == 1, done.err

    return check


@pytest.mark.parametrize(("line", "said"), told(MISTAKES), ids=lambda text: text if text.startswith("$") else "")
def test_a_mistake_is_one_clear_line(
    one_line: Callable[[str, str, int], None], tmp_path: Path, line: str, said: str
) -> None:
    def there() -> set[Path]:
        return {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts}

    before = there()
    one_line(line, said, 2)
    assert there() - before <= {tmp_path / "runs"}  # nothing has run: nothing is there that was not before
    assert (tmp_path / "taken" / "precious").read_text() == "mine"


@pytest.mark.parametrize(("line", "said"), told(FAILURES), ids=lambda text: text if text.startswith("$") else "")
def test_a_run_that_fails_is_one_line_and_keeps_what_it_had(
    one_line: Callable[[str, str, int], None], tmp_path: Path, line: str, said: str
) -> None:
    one_line(line, said, 1)
    assert (tmp_path / "x" / "history.csv").read_text().count("\n") > 1
    assert (tmp_path / "x" / "recipe.yaml").is_file() and not (tmp_path / "x" / "run.json").exists()


def test_there_are_more_than_twenty() -> None:
    assert len(told(MISTAKES)) > 60


def test_damage_in_a_run_is_one_line(
    desk: Callable[..., Any], finished: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    """The many kinds of damage are tested beside the folder; here, that the commands pass them on."""
    run = shutil.copytree(finished()[0], tmp_path / "run")
    using = ["--client", "c0", "--data", "digits.npz"]
    (run / "clients" / "c0" / "personal.safetensors").write_bytes(b"x" * 99)
    for words in (["predict", "run", *using], ["export", "run", "--client", "c0"]):
        done = desk(*words)
        assert (done.code, done.err.count("\n")) == (2, 1) and "personal.safetensors cannot be read" in done.err
    (run / "clients" / "c0" / "card.json").write_text("[]")
    done = desk("predict", "run", *using)
    assert (done.code, done.err.count("\n")) == (2, 1) and "card.json" in done.err
    (run / "global" / "card.json").write_text("{")
    (run / "run.json").write_text(json.dumps({"method": {"name": "fml"}}))
    done = desk("join", "run", "--data", "digits.npz")
    assert (done.code, done.err.count("\n")) == (2, 1) and "RUN: run/" in done.err


def test_a_disk_that_is_full_in_mid_run(desk: Callable[..., Any], tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # the weights are larger, all else is smaller
    try:
        done = desk("run", "tiny.yaml", "--json", "--out", "x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.code == 1 and done.err.startswith("mutua: cannot write to x: ") and done.err.count("\n") == 1
    assert (tmp_path / "x" / "history.csv").read_text().count("\n") > 1


def test_a_mistake_of_ours_keeps_its_traceback(desk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from mutua import Recipe

    monkeypatch.setattr(Recipe, "federation", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        desk("run", "tiny.yaml")


def test_several_mistakes_are_told_at_once(desk: Callable[..., Any], tmp_path: Path, tiny: dict[str, Any]) -> None:
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({**tiny, "rounds": -1, "bach_size": 3}))
    done = desk("run", "two.yaml")
    assert done.err.count("\n") == 1
    assert "rounds: -1; it must be at least 0" in done.err and "did you mean 'batch_size'?" in done.err


# In Python


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((40, 6), np.float32), np.arange(40) % 2


def federation(data: tuple[Any, Any], **changes: Any) -> mutua.Federation:
    given: dict[str, Any] = {
        "partition": mutua.partitions.IID(clients=2),
        "models": "mlp",
        "global_model": "mlp",
        **changes,
    }
    return mutua.Federation.from_arrays(*data, **given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"partition": "iid"}, r"partition: 'iid'; give an object, such as mutua\.partitions\.IID\(clients=5\)"),
        ({"partition": mutua.partitions.IID}, "partition: <class .*>; give an object"),
        ({"models": "lenet"}, "models: 'lenet' is not a model; did you mean 'lenet5'"),
        ({"models": ["mlp"] * 3}, "models: 3 for 2 clients"),
        ({"models": None, "global_model": None}, "models: missing"),
        ({"classes": ["one"]}, "label 1 is out of range; 1 classes allow 0 to 0"),
        ({"samples_per_client": 1000}, "samples_per_client: 1000 for 2 clients needs 2000"),
        ({"domain": [0, 1]}, "domain: give one index below 2, or"),
    ],
)
def test_a_federation_that_cannot_be(data: tuple[Any, Any], changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        federation(data, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        (
            mutua.methods.FML,
            {},
            r"method: <class .*>; give a name or an object, such as mutua\.methods\.FML\(alpha=0\.5\)",
        ),
        (mutua.methods.FML(), {"round": 3}, "round: unknown key; did you mean 'rounds'"),
        (mutua.methods.FML(), {"rounds": "many"}, "rounds: 'many'; it must be a whole number"),
        (mutua.methods.FML(), {"epochs": 1, "steps": 1}, "epochs and steps are both given"),
        (mutua.methods.FML(), {"engine": "rya"}, "engine: 'rya' is not an engine; did you mean 'ray'"),
        (mutua.methods.FML(), {"optimizer": torch.optim.SGD}, "optimizer: .*; it must be keys and values"),
        (mutua.methods.FML(), {"device": "cuda:7"}, "device: 'cuda:7'; did you mean 'cuda'"),
        (mutua.methods.FedMD(), {}, "public: missing; fedmd learns from a public set"),
    ],
)
def test_a_run_that_cannot_be(data: tuple[Any, Any], method: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        mutua.run(method, federation(data), **settings)
    assert "\n" not in str(caught.value)


def test_no_federation_at_all(data: tuple[Any, Any]) -> None:
    with pytest.raises(InputError, match="federation: a tuple; give a Federation"):
        mutua.run(mutua.methods.FML(), data)  # type: ignore[arg-type]


def test_specs_complain_as_pydantic_does() -> None:
    for make in (
        lambda: mutua.methods.FML(alpha=2),
        lambda: mutua.partitions.IID(clients=0),
        lambda: mutua.SGD(lr=-1),
    ):
        with pytest.raises(InputError):
            make()


def test_a_predictor_refuses_what_its_model_was_not_made_for(data: tuple[Any, Any]) -> None:
    predictor = mutua.run(mutua.methods.FML(), federation(data), rounds=0).clients[0].predictor
    assert predictor(data[0][:3]).shape == (3, 2)
    with pytest.raises(InputError, match=r"x: samples are \(5,\) floating numbers; the model takes \(6,\)"):
        predictor(np.zeros((3, 5), np.float32))
    with pytest.raises(InputError, match=r"x: samples are \(6,\) bytes"):
        predictor(np.zeros((3, 6), np.uint8))
