"""Folders of images, read into plain arrays."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mutua import InputError
from mutua.data import image_folders


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def paint(
    path: Path, colour: int | tuple[int, int, int], size: tuple[int, int] = (8, 8), mode: str = "RGB"
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def test_class_folders_in_name_order(tmp_path: Path) -> None:
    paint(tmp_path / "dog" / "b.png", (1, 2, 3))
    paint(tmp_path / "dog" / "a.PNG", (4, 5, 6))
    paint(tmp_path / "cat" / "z.bmp", (7, 8, 9))
    paint(tmp_path / "cat" / ".hidden.png", (0, 0, 0))
    paint(tmp_path / "__MACOSX" / "cat" / "z.bmp", (0, 0, 0))
    (tmp_path / "info.csv").write_text("not an image")
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    a = image_folders.images(tmp_path)
    assert a.classes == ("cat", "dog")
    assert a.y.tolist() == [0, 1, 1]
    assert a.x.shape == (3, 3, 8, 8)
    assert a.x[:, :, 0, 0].tolist() == [[7, 8, 9], [4, 5, 6], [1, 2, 3]]
    assert a.domain is None
    assert a.domains == ()


def test_domain_folders_share_classes_by_name(tmp_path: Path) -> None:
    paint(tmp_path / "sketch" / "dog" / "1.png", (10, 0, 0))
    paint(tmp_path / "photo" / "dog" / "1.png", (20, 0, 0))
    paint(tmp_path / "photo" / "cat" / "1.png", (30, 0, 0))
    a = image_folders.images(tmp_path)
    assert a.classes == ("cat", "dog")
    assert a.domains == ("photo", "sketch")
    assert a.domain is not None
    assert a.x[:, 0, 0, 0].tolist() == [30, 20, 10]
    assert a.y.tolist() == [0, 1, 1]
    assert a.domain.tolist() == [0, 0, 1]


def test_grey_stays_grey_only_if_all_are(tmp_path: Path) -> None:
    paint(tmp_path / "a" / "1.png", 77, mode="L")
    paint(tmp_path / "b" / "1.png", 88, mode="L")
    assert image_folders.images(tmp_path).x.shape == (2, 1, 8, 8)
    paint(tmp_path / "b" / "2.png", (1, 2, 3))
    a = image_folders.images(tmp_path)
    assert a.x[:, :, 3, 3].tolist() == [[77, 77, 77], [88, 88, 88], [1, 2, 3]]


def test_sizes_that_differ_need_image_size(tmp_path: Path) -> None:
    paint(tmp_path / "a" / "1.png", (200, 100, 0), (8, 6))
    paint(tmp_path / "a" / "2.png", (200, 100, 0), (8, 6))
    paint(tmp_path / "b" / "1.jpg", (200, 100, 0), (640, 480))
    with pytest.raises(InputError, match=r"2 sizes, 8x6 \(2\), 640x480 \(1\) .*give image_size"):
        image_folders.images(tmp_path)
    a = image_folders.images(tmp_path, 5)
    assert a.x.shape == (3, 3, 5, 5)
    assert np.abs(a.x.astype(int) - np.array([200, 100, 0])[:, None, None]).max() <= 3  # JPEG is not exact
    (tmp_path / "b" / "1.jpg").unlink()
    paint(tmp_path / "b" / "1.png", (200, 100, 0), (8, 6))
    assert image_folders.images(tmp_path).x.shape == (3, 3, 6, 8)


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_resizing_is_bilinear_with_antialias(tmp_path: Path, rng: np.random.Generator, ending: str) -> None:
    smooth = torch.from_numpy(rng.random((1, 3, 6, 6))).float() * 255
    large = torch.nn.functional.interpolate(smooth, (96, 96), mode="bicubic").clamp(0, 255).byte()
    (tmp_path / "a").mkdir()
    Image.fromarray(large[0].permute(1, 2, 0).numpy()).save(
        tmp_path / "a" / f"1.{ending}", quality=100, subsampling=0
    )
    got = image_folders.images(tmp_path, 12).x[0].astype(float)
    expected = torch.nn.functional.interpolate(large.float(), (12, 12), mode="bilinear", antialias=True)[0].numpy()
    assert np.abs(got - expected).mean() < (0.6 if ending == "png" else 3)


def test_broken_images_are_named(tmp_path: Path, rng: np.random.Generator) -> None:
    noise = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
    (tmp_path / "a").mkdir()
    broken = tmp_path / "a" / "1.png"
    Image.fromarray(noise).save(broken)
    broken.write_bytes(broken.read_bytes()[:1500])
    with pytest.raises(InputError, match=r"1\.png: not a whole image"):
        image_folders.images(tmp_path)
    broken.write_text("no image")
    with pytest.raises(InputError, match=r"1\.png: not an image") as error:
        image_folders.images(tmp_path)
    assert "\n" not in str(error.value)
    Image.fromarray(np.full((4, 4), 40000, np.uint16)).save(broken)
    with pytest.raises(InputError, match=r"1\.png: .* more than 8 bits per channel"):
        image_folders.images(tmp_path)


def test_other_layouts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder"):
        image_folders.images(tmp_path / "none")
    with pytest.raises(InputError, match="0 images beside 0 folders"):
        image_folders.images(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=f"no image in {tmp_path / 'empty'}"):
        image_folders.images(tmp_path)
    paint(tmp_path / "a" / "1.png", (1, 2, 3))
    with pytest.raises(InputError, match=f"no image in {tmp_path / 'empty'}"):
        image_folders.images(tmp_path)
    paint(tmp_path / "1.png", (1, 2, 3))
    with pytest.raises(InputError, match="1 images beside 2 folders"):
        image_folders.images(tmp_path)
