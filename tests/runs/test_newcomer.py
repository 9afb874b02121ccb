"""Newcomers: three ways to join, against plain torch; and a run that stays as it was."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from mutua import InputError, Samples, load
from mutua.engines.alone import train_alone_until
from mutua.federation.module_pool import Modules
from mutua.methods import FML, EarlyStopping, Independent, Participant
from mutua.methods.base import Job
from mutua.runs import newcomer
from mutua.runs.folder import RunFolder
from mutua.runs.newcomer import Joined, join

Finished = Callable[..., tuple[Path, Any]]
BODY = {"global": {"name": "mlp", "width": 0.1, "share": "body"}}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty digits that nobody need have seen: 42 to train, 6 to validate, 12 to test."""
    source = load("mnist5k").train
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(path, x=source.x[4000:4060, 0].numpy(), y=source.y[4000:4060].numpy())
    return path


@pytest.fixture(scope="module")
def joined(finished: Finished, digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Joined]:
    """Each way to join, done once."""
    known: dict[str, Joined] = {}

    def make(how: str, again: bool = False, **given: Any) -> Joined:
        key = f"{how} {again} {given}"
        if key not in known:
            run = given.pop("run", None) or finished()[0]
            out = tmp_path_factory.mktemp("joined") / "n"
            known[key] = join(RunFolder.open(run), digits, how=how, out=out, **given)  # type: ignore[arg-type]
        return known[key]

    return make


def by_hand(weights: dict[str, Tensor], samples: Samples) -> Tensor:
    """The logits of mutua's mlp, written out."""
    x = ((samples.x.float() / 255 - 0.1307) / 0.3081).flatten(1)
    for layer in ("fc1", "fc2"):
        x = F.relu(F.linear(x, weights[f"{layer}.weight"], weights[f"{layer}.bias"]))
    return F.linear(x, weights["head.weight"], weights["head.bias"])


def accuracy(weights: dict[str, Tensor], samples: Samples) -> float:
    return float((by_hand(weights, samples).argmax(1) == samples.y).float().mean())


def loss(weights: dict[str, Tensor], samples: Samples) -> float:
    return float(F.cross_entropy(by_hand(weights, samples), samples.y))


def kept(joined: Joined) -> dict[str, Tensor]:
    return load_file(joined.folder / "predictor.safetensors")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# The three ways


def test_its_data_is_split_like_everybodys(joined: Callable[..., Joined]) -> None:
    assert joined("global").summary()["samples"] == {"train": 42, "val": 6, "test": 12}


def test_global_is_the_global(joined: Callable[..., Joined], finished: Finished) -> None:
    result = joined("global")
    shared = load_file(finished()[0] / "global" / "weights.safetensors")
    assert all(torch.equal(value, shared[name]) for name, value in kept(result).items())
    expected = accuracy(shared, result.client.test)
    assert result.accuracy["global"] == result.accuracy["predictor"] == pytest.approx(expected)


def test_finetune_goes_on_from_the_global(joined: Callable[..., Joined], finished: Finished) -> None:
    result = joined("finetune")
    shared, tuned, client = (
        load_file(finished()[0] / "global" / "weights.safetensors"),
        kept(result),
        result.client,
    )
    assert tuned.keys() == shared.keys() and not torch.equal(tuned["head.weight"], shared["head.weight"])
    assert loss(tuned, client.val) < loss(shared, client.val)
    assert result.accuracy["predictor"] == pytest.approx(accuracy(tuned, client.test))
    assert result.accuracy["global"] == pytest.approx(accuracy(shared, client.test))


def test_mutual_gives_a_model_of_its_own_design(joined: Callable[..., Joined]) -> None:
    result = joined("mutual", model={"name": "mlp", "width": 0.2})
    own, client = kept(result), result.client
    assert own["fc1.weight"].shape == (40, 784)
    assert result.accuracy["predictor"] == pytest.approx(accuracy(own, client.test))
    card = json.loads((result.folder / "card.json").read_text())
    assert card["architecture"] == {"name": "mlp", "width": 0.2}


def test_mutual_is_fmls_own_objective(joined: Callable[..., Joined], finished: Finished) -> None:
    """With α = 1 the meme teaches nothing: the newcomer learns as it would alone, to the last bit."""
    taught_by_none = finished(FML(alpha=1.0, beta=1.0).model_dump() | {"name": "fml"})[0]
    result = joined("mutual", run=taught_by_none)
    plan = RunFolder.open(taught_by_none).plan
    job, modules = Job(FML(), plan, None), Modules(torch.device("cpu"))
    alone = (
        train_alone_until(job, result.client, modules, EarlyStopping("personal")).model("personal").state_dict()
    )
    assert all(torch.equal(value, alone[name]) for name, value in kept(result).items())
    assert result.accuracy["predictor"] == result.accuracy["alone"]
    taught = kept(joined("mutual"))
    assert not torch.equal(taught["fc1.weight"], kept(result)["fc1.weight"])


@pytest.mark.parametrize("models", [{"global": {"name": "mlp", "width": 0.1}}, BODY], ids=["whole", "body"])
def test_with_init_global_a_newcomer_starts_as_the_global_is_now(
    models: Any, joined: Callable[..., Joined], finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished({"name": "fml", "init": "global"}, models=models)[0]
    shared = load_file(run / "global" / "weights.safetensors")
    monkeypatch.setattr(FML, "stopping", lambda self, watch: EarlyStopping(watch, patience=1, epochs=0))
    untrained = kept(joined("mutual", again=True, run=run))
    assert shared.keys() <= untrained.keys()
    assert all(torch.equal(untrained[name], value) for name, value in shared.items())
    own = kept(joined("mutual", again=True, run=run, model={"name": "mlp", "width": 0.2}))
    assert own["fc1.weight"].shape == (40, 784)  # of another design it starts on its own


@pytest.mark.parametrize(
    "method",
    [
        {"name": "finetuned", "patience": 1, "tune_epochs": 2},
        {"name": "mixture", "patience": 2, "mixture_epochs": 3},
        "fedavg",
    ],
    ids=lambda method: method if isinstance(method, str) else method["name"],
)
def test_a_newcomer_and_who_trains_alone_beside_it_have_the_runs_patience(
    method: Any, digits: Path, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[EarlyStopping | None] = []
    fit = Participant.fit

    def watched(self: Participant, *given: Any, **more: Any) -> None:
        asked.append(more.get("until"))
        fit(self, *given, **more)

    run = RunFolder.open(finished(method)[0])
    monkeypatch.setattr(Participant, "fit", watched)
    join(run, digits, how="finetune", out=tmp_path / "n")
    patience, epochs = (10, 200) if method == "fedavg" else list(method.values())[1:]
    assert asked == [EarlyStopping("tuned", patience, epochs), EarlyStopping("personal", patience, epochs)]


def test_alone_does_not_depend_on_the_run_or_the_way(joined: Callable[..., Joined], finished: Finished) -> None:
    runs = [joined("global"), joined("finetune"), joined("finetune", run=finished("fedavg")[0])]
    assert len({result.accuracy["alone"] for result in runs}) == 1


def test_fedavgs_newcomers(joined: Callable[..., Joined], finished: Finished) -> None:
    run = finished("fedavg")[0]
    assert joined("global", run=run).accuracy["predictor"] == joined("global", run=run).accuracy["global"]
    assert joined("finetune", run=run).accuracy["predictor"] is not None


# Partial globals and other classes


def test_a_partial_global_takes_other_classes(finished: Finished, digits: Path, tmp_path: Path) -> None:
    held = dict(np.load(digits))
    np.savez(tmp_path / "parity.npz", x=held["x"], y=held["y"] % 2, classes=np.array(["even", "odd"]))
    run = RunFolder.open(finished(models=BODY)[0])
    with pytest.raises(InputError, match="--how: 'global', but the run's global is partial and predicts"):
        join(run, tmp_path / "parity.npz", how="global", out=tmp_path / "n")
    assert not (tmp_path / "n").exists()
    for how in ("finetune", "mutual"):
        result = join(run, tmp_path / "parity.npz", how=how, out=tmp_path / how)  # type: ignore[arg-type]
        assert set(result.accuracy) == {"predictor", "alone"}  # a body alone predicts nothing
        assert kept(result)["head.weight"].shape == (2, 20)
        assert json.loads((tmp_path / how / "card.json").read_text())["classes"] == ["even", "odd"]
    shared = run.shared().weights
    tuned = load_file(tmp_path / "finetune/predictor.safetensors")
    moved = (tuned["fc1.weight"] - shared["fc1.weight"]).norm()
    assert 0 < moved < 0.5 * shared["fc1.weight"].norm()  # it went on from the global's body


def test_some_of_the_classes_are_matched_by_name(finished: Finished, digits: Path, tmp_path: Path) -> None:
    held = dict(np.load(digits))
    few = held["y"] >= 7
    names = np.array(["9", "8", "7"])  # another order than the run's
    np.savez(tmp_path / "few.npz", x=held["x"][few], y=9 - held["y"][few], classes=names)
    result = join(RunFolder.open(finished()[0]), tmp_path / "few.npz", how="global", out=tmp_path / "n")
    assert result.client.task.classes == tuple("0123456789")
    assert set(result.client.train.y.tolist()) == {7, 8, 9}


# The run, the seed, the folder


def test_the_run_stays_as_it_was_and_knows_the_newcomer(finished: Finished, digits: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished(rounds=0)[0], tmp_path / "run"))
    before = contents(folder)
    result = join(RunFolder.open(folder), digits, how="global", name="eve")
    assert result.folder == folder / "newcomers" / "eve"
    after = contents(folder)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {
        f"newcomers/eve/{n}" for n in ("card.json", "join.json", "predictor.safetensors")
    }
    assert json.loads(after["newcomers/eve/join.json"]) == json.loads(json.dumps(result.summary()))
    saved = RunFolder.open(folder).client("eve").predictor()
    assert saved(result.client.test.x).argmax(1).shape == (12,)
    for name in ("eve", "c0"):
        with pytest.raises(
            InputError, match=rf"--name: '{name}' is in .* already; give the newcomer a name of its own"
        ):
            join(RunFolder.open(folder), digits, how="global", name=name)


def test_one_seed_one_newcomer(joined: Callable[..., Joined]) -> None:
    first, same = joined("global"), joined("global", again=True)
    assert first.folder != same.folder and first.accuracy == same.accuracy
    assert torch.equal(first.client.train.x, same.client.train.x)
    first, same = joined("mutual"), joined("mutual", again=True)
    for name in ("predictor.safetensors", "card.json"):
        assert (first.folder / name).read_bytes() == (same.folder / name).read_bytes()
    first = joined("finetune")
    other = joined("finetune", seed=1)
    assert not torch.equal(other.client.test.x, first.client.test.x)
    assert not torch.equal(kept(other)["fc1.weight"], kept(first)["fc1.weight"])


def test_a_test_set_in_the_file_is_the_test_set(finished: Finished, digits: Path, tmp_path: Path) -> None:
    held = dict(np.load(digits))
    x, y = held["x"], held["y"]
    np.savez(tmp_path / "both.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    result = join(RunFolder.open(finished()[0]), tmp_path / "both.npz", how="global", out=tmp_path / "n")
    assert result.summary()["samples"] == {"train": 36, "val": 4, "test": 20}
    assert sorted(map(bytes, result.client.test.x.numpy())) == sorted(map(bytes, x[40:]))


def test_a_folder_of_images_is_resized(finished: Finished, digits: Path, tmp_path: Path) -> None:
    held = dict(np.load(digits))
    for k, (x, y) in enumerate(zip(held["x"], held["y"], strict=True)):
        place = tmp_path / "images" / str(y)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x).resize((56, 56)).save(place / f"{k}.png")
    result = join(RunFolder.open(finished()[0]), tmp_path / "images", how="global", out=tmp_path / "n")
    assert result.client.train.x.shape[1:] == (1, 28, 28)
    assert result.client.train.preprocess == RunFolder.open(finished()[0]).shared().card.preprocess


def test_it_works_on_one_thread_and_gives_the_others_back(
    finished: Finished, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = Independent.objective
    monkeypatch.setattr(
        Independent, "objective", lambda self, *given: seen.append(torch.get_num_threads()) or real(self, *given)
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        join(RunFolder.open(finished()[0]), digits, how="global", out=tmp_path / "n")
        assert torch.get_num_threads() == 2 and set(seen) == {1}
    finally:
        torch.set_num_threads(before)


# Refusing


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_what_cannot_join_is_one_line_and_leaves_nothing(finished: Finished, digits: Path, tmp_path: Path) -> None:
    held = dict(np.load(digits))
    x, y = held["x"], held["y"]
    run, out = RunFolder.open(finished()[0]), tmp_path / "out"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"data": tmp_path / "none.npz"}, r"--data: .*not found"),
        ({"data": npz(tmp_path / "x.npz", x=x)}, r"--data: .*holds x; give x and y"),
        (
            {"data": npz(tmp_path / "small.npz", x=x[:, :20, :20], y=y)},
            r"--data: samples are \(1, 20, 20\) bytes .*; the model takes \(1, 28, 28\) bytes",
        ),
        (
            {"data": npz(tmp_path / "float.npz", x=x / 255.0, y=y)},
            r"--data: samples are \(1, 28, 28\) floating numbers; the model takes \(1, 28, 28\) bytes",
        ),
        (
            {"data": npz(tmp_path / "alien.npz", x=x, y=y % 2, classes=np.array(["hot", "dog"]))},
            "--data: classes: hot, dog in the data, but not among 0, .*; name the classes as the run does",
        ),
        (
            {"data": npz(tmp_path / "three.npz", x=x[:3], y=y[:3]), "how": "mutual"},
            "no validation samples; 'mutual'",
        ),
        ({"data": tmp_path / "three.npz", "how": "finetune"}, "no validation samples; 'finetune' stops early"),
        ({"model": "lenet", "how": "mutual"}, "'lenet' is not a model; did you mean 'lenet5'"),
        ({"model": nn.Linear(3, 3), "how": "mutual"}, "model Linear fails on inputs of shape"),
        (
            {"model": "cnn1"},
            "--model: only a newcomer that joins by --how mutual has a model of its own; by 'global'",
        ),
        ({"model": "cnn1", "how": "finetune"}, "by 'finetune' it takes the global's: leave --model out"),
        ({"how": "magic"}, "how: 'magic' is not a way to join; known: global, finetune, mutual"),
        ({"name": "../evil"}, r"client id '\.\./evil'"),
    ]
    for given, said in cases:
        with pytest.raises(InputError, match=said) as caught:
            join(run, **{"data": digits, "how": "global", "out": out, **given})
        assert "\n" not in str(caught.value)
        assert not out.exists(), given
    with pytest.raises(InputError, match="how: 'mutual', but fedavg does no mutual learning"):
        join(RunFolder.open(finished("fedavg")[0]), digits, how="mutual", out=out)
    with pytest.raises(InputError, match="has no global model, because method independent has none"):
        join(RunFolder.open(finished("independent")[0]), digits, how="global", out=out)
    assert not out.exists()


def test_a_place_that_is_taken_is_known_before_the_work(
    finished: Finished, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("x")
    monkeypatch.setattr(FML, "personalise", lambda *_: pytest.fail("it had begun to work"))
    with pytest.raises(InputError, match=r"--out: .*mine is there already and not empty"):
        join(RunFolder.open(finished()[0]), digits, how="mutual", out=tmp_path / "mine")
    assert (tmp_path / "mine" / "precious").read_text() == "x"


def test_ctrl_c_leaves_nothing_half_done(
    finished: Finished, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(newcomer, "train_alone_until", stop)
    with pytest.raises(KeyboardInterrupt):
        join(RunFolder.open(finished()[0]), digits, how="global", out=tmp_path / "n")
    assert not (tmp_path / "n").exists()


def test_a_newcomer_that_is_refused_leaves_no_folder(finished: Finished, digits: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished("fedavg")[0], tmp_path / "run"))
    before = sorted(run.rglob("*"))
    with pytest.raises(InputError, match="does no mutual learning"):
        join(RunFolder.open(run), digits, how="mutual")
    assert sorted(run.rglob("*")) == before
