"""Predictions and exports, against plain torch modules written by hand."""

import csv
import io
import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import mutua
from conftest import X, Y, federation, quick
from mutua import InputError, load
from mutua.methods import FedAvg, Message, Participant, Shifted, Weighted
from mutua.runs.folder import RunFolder
from mutua.runs.inference import export, predict
from mutua.runs.saved_models import SavedModel

Finished = Callable[..., tuple[Path, Any]]


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    source = load("mnist5k").train
    return source.x[4500:4530, 0].numpy(), source.y[4500:4530].numpy()


@pytest.fixture(scope="module")
def model(finished: Finished) -> SavedModel:
    return RunFolder.open(finished()[0]).client("c0")


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


# Plain torch, as somebody without mutua would write it: the card says what to build, the file fills it.


def plain_mlp(channels: int, side: int, classes: int, width: float) -> nn.Module:
    hidden = round(200 * width)
    names = OrderedDict(
        flatten=nn.Flatten(),
        fc1=nn.Linear(channels * side * side, hidden),
        relu1=nn.ReLU(),
        fc2=nn.Linear(hidden, hidden),
        relu2=nn.ReLU(),
        head=nn.Linear(hidden, classes),
    )
    return nn.Sequential(names)


def plain_lenet5(channels: int, side: int, classes: int, width: float) -> nn.Module:
    assert (side, width) == (28, 1.0)
    names = OrderedDict(
        conv1=nn.Conv2d(channels, 6, 5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(16 * 5 * 5, 120),
        relu3=nn.ReLU(),
        fc2=nn.Linear(120, 84),
        relu4=nn.ReLU(),
        head=nn.Linear(84, classes),
    )
    return nn.Sequential(names)


def by_hand(folder: Path, x: np.ndarray) -> tuple[Tensor, list[str]]:
    """Probabilities and class names of an exported model, with torch, safetensors and the card alone."""
    card = json.loads((folder / "card.json").read_text())
    channels, side, _ = card["input"]
    build = {"mlp": plain_mlp, "lenet5": plain_lenet5}[card["architecture"]["name"]]
    made = build(channels, side, len(card["classes"]), card["architecture"]["width"])
    made.load_state_dict(load_file(folder / card["weights"]))
    how = card["preprocess"]
    assert card["formula"] == "(x * scale - mean) / std, by channel" and card["dtype"] == "uint8"
    mean, std = (torch.tensor(how[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        scores = made.eval()((torch.tensor(x).view(-1, channels, side, side) * how["scale"] - mean) / std)
    return scores.softmax(1), card["classes"]


@pytest.mark.parametrize(
    ("method", "models"),
    [
        ("fml", {"global": "mlp", "clients": "lenet5"}),
        ("fml", {"global": "mlp"}),
        ("fedavg", {"global": "lenet5"}),
    ],
)
def test_an_export_predicts_the_same_in_plain_torch(
    finished: Finished, digits: tuple[np.ndarray, np.ndarray], tmp_path: Path, method: str, models: Any
) -> None:
    x, y = digits
    run = RunFolder.open(finished(method, models=models)[0])
    weights, card = export(run.client("c1"), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["card.json", "model.safetensors"]
    assert (weights.name, card.name) == ("model.safetensors", "card.json")
    expected, classes = by_hand(tmp_path / "out", x)
    found = predict(run.client("c1"), npz(tmp_path / "d.npz", x=x, y=y))
    torch.testing.assert_close(found.probabilities, expected, atol=1e-6, rtol=1e-5)
    assert list(found.classes) == classes
    assert found.labels == [classes[i] for i in expected.argmax(1).tolist()]
    assert found.accuracy == pytest.approx(float((expected.argmax(1).numpy() == y).mean()))


def test_an_export_overwrites_nothing_and_refuses_damage(finished: Finished, tmp_path: Path) -> None:
    run = RunFolder.open(finished()[0])
    export(run.client("c0"), tmp_path / "out")
    with pytest.raises(InputError, match=r"--out: .*out is there already and not empty"):
        export(run.client("c1"), tmp_path / "out")
    broken = SavedModel(tmp_path / "out")
    (tmp_path / "out" / "model.safetensors").write_bytes(b"x" * 50)
    with pytest.raises(InputError, match=r"model\.safetensors cannot be read"):
        export(broken, tmp_path / "again")
    assert not (tmp_path / "again").exists()


# What can be predicted


def test_an_array_file_without_labels(model: SavedModel, digits: Any, tmp_path: Path) -> None:
    found = predict(model, npz(tmp_path / "d.npz", x=digits[0]))
    assert found.accuracy is None and found.samples == [str(i) for i in range(30)]
    assert found.summary()["accuracy"] is None and len(found.summary()["probabilities"]) == 30


def test_a_test_set_stands_in_where_there_is_no_x(model: SavedModel, digits: Any, tmp_path: Path) -> None:
    x, y = digits
    whole = predict(model, npz(tmp_path / "a.npz", x=x, y=y))
    part = predict(model, npz(tmp_path / "b.npz", x_train=x[:5], y_train=y[:5], x_test=x, y_test=y))
    assert torch.equal(whole.probabilities, part.probabilities) and whole.accuracy == part.accuracy


def test_labels_are_compared_by_name(model: SavedModel, digits: Any, tmp_path: Path) -> None:
    """The same digits under another numbering of the same names; and under names the model does not know."""
    x, y = digits
    straight = predict(model, npz(tmp_path / "a.npz", x=x, y=y)).accuracy
    turned = npz(tmp_path / "b.npz", x=x, y=9 - y, classes=np.array(list("9876543210")))
    assert predict(model, turned).accuracy == straight
    strange = npz(tmp_path / "c.npz", x=x, y=y, classes=np.array([f"digit {i}" for i in range(10)]))
    assert predict(model, strange).accuracy is None


def pictures(folder: Path, x: np.ndarray, names: list[str], side: int = 28) -> Path:
    for image, name in zip(x, names, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).resize((side, side)).save(folder / name)
    return folder


def test_a_folder_with_classes_and_a_flat_one(model: SavedModel, digits: Any, tmp_path: Path) -> None:
    x, y = digits[0][:6], digits[1][:6]
    names = [f"{label}/{k:02}.png" for k, label in enumerate(y)]
    order = sorted(range(6), key=lambda k: names[k])
    expected = predict(model, npz(tmp_path / "d.npz", x=x[order], y=y[order]))
    sorted_out = predict(model, pictures(tmp_path / "classes", x, names))
    assert sorted_out.samples == sorted(names)
    assert torch.equal(sorted_out.probabilities, expected.probabilities)
    assert sorted_out.accuracy == expected.accuracy
    flat = predict(model, pictures(tmp_path / "flat", x[order], [f"{k}.png" for k in range(6)]))
    assert flat.samples == [f"{k}.png" for k in range(6)] and flat.accuracy is None
    assert torch.equal(flat.probabilities, expected.probabilities)


def test_images_of_any_size_are_resized_to_the_models_input(
    model: SavedModel, digits: Any, tmp_path: Path
) -> None:
    x = np.repeat(np.repeat(digits[0][:4], 2, 1), 2, 2)  # each pixel four times: resizing gives it back
    folder = pictures(tmp_path / "large", x, [f"{k}.png" for k in range(4)], side=56)
    pictures(folder, digits[0][4:5], ["4.png"])
    found = predict(model, folder)
    expected = predict(model, npz(tmp_path / "d.npz", x=digits[0][:5]))
    torch.testing.assert_close(found.probabilities, expected.probabilities, atol=0.02, rtol=0)
    assert torch.equal(found.probabilities[4], expected.probabilities[4])


def test_the_csv_is_readable_by_others(model: SavedModel, digits: Any, tmp_path: Path) -> None:
    found = predict(model, npz(tmp_path / "d.npz", x=digits[0][:3]))
    text = io.StringIO()
    found.write(text)
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert list(rows[0]) == ["sample", "predicted", *"0123456789"]
    for row, label, probabilities in zip(rows, found.labels, found.probabilities, strict=True):
        assert row["predicted"] == label
        told = [float(row[name]) for name in "0123456789"]
        assert sum(told) == pytest.approx(1, abs=1e-5)
        assert told == pytest.approx(probabilities.tolist(), abs=1e-6)


# What cannot


def test_what_cannot_be_predicted_is_one_line(model: SavedModel, digits: Any, tmp_path: Path) -> None:
    x, y = digits
    (tmp_path / "empty").mkdir()
    colours = np.repeat(x[:2, :, :, None], 3, 3)
    colours[..., 1] = 7
    cases = [
        (tmp_path / "none", r"--data: .*none: not found"),
        (npz(tmp_path / "a.npz", images=x), r"--data: .*a\.npz has no array 'x' or 'x_test' \(it has images\)"),
        (npz(tmp_path / "b.npz", x=x[:, :9]), r"--data: samples are \(1, 9, 28\) bytes"),
        (npz(tmp_path / "c.npz", x=x / 255.0), r"--data: samples are \(1, 28, 28\) floating numbers"),
        (npz(tmp_path / "d.npz", x=x, y=y[:4]), r"--data: .*\.y: shape \(4,\) for 30 inputs"),
        (npz(tmp_path / "e.npz", x=np.float32(3)), r"--data: .*\.x: shape \(\)"),
        (npz(tmp_path / "f.npz", x=x[:0]), r"--data: .*no samples"),
        (tmp_path / "empty", r"--data: .*empty: give images as class"),
        (pictures(tmp_path / "colour", colours, ["a.png", "b.png"]), r"--data: samples are \(3, 28, 28\)"),
    ]
    for path, said in cases:
        with pytest.raises(InputError, match=said) as caught:
            predict(model, path)
        assert "\n" not in str(caught.value)


# Predictors of several models


class Both(FedAvg):
    """The corrected global and a model of the client's own, with fixed weights: a composite in a composite."""

    name: ClassVar[str] = "both"

    def start(self, client: Participant) -> None:
        client.initialise("personal")
        client.initialise("second")

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        shift = torch.arange(float(len(client.task.classes)))
        shared = client.composite(Shifted(shift), model=client.fork(brief))
        if "personal" not in client.state:
            return shared
        own = {name: client.model(name) for name in ("personal", "second")}
        return client.composite(Weighted(torch.tensor([0.5, 0.3, 0.2]), 0.01), shared=shared, **own)


def test_a_composite_is_saved_opened_predicted_with_exported_and_joined(tmp_path: Path) -> None:
    result = quick(Both(), federation(), rounds=2)
    result.save(tmp_path / "run")
    opened = mutua.load_run(tmp_path / "run")
    for client in result.clients:
        assert torch.equal(opened.predictor(client.id)(X), client.predictor(X))
    card = json.loads((tmp_path / "run" / "clients" / "c0" / "card.json").read_text())
    assert list(card["architecture"]["parts"]) == ["shared", "personal", "second"]
    assert card["architecture"]["parts"]["shared"]["rule"]["name"] == "shifted"
    assert "weights[m]" in card["architecture"]["rule"]["formula"]
    weights, described = export(opened.folder.client("c0"), tmp_path / "exported")
    assert "parts" in json.loads(described.read_text())["architecture"]
    held = load_file(weights)
    scores = [held[f"{n}.head.weight"].shape[0] for n in ("shared.model", "personal", "second")]
    assert scores == [3, 3, 3] and torch.equal(held["rule.weights"], torch.tensor([0.5, 0.3, 0.2]))
    np.savez(tmp_path / "new.npz", x=X, y=Y)
    joined = opened.join(tmp_path / "new.npz", how="global", name="newcomer")
    served = mutua.load_run(tmp_path / "run").predictor("newcomer")
    shift = served.model.get_submodule("rule").get_buffer("shift")
    assert joined.accuracy["predictor"] is not None and shift.tolist() == [0, 1, 2]
