from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage

from mutua import InputError
from mutua.data.transforms import augment, rotate


def images(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    values = np.random.default_rng(0).integers(0, 256, shape)
    return torch.tensor(values).to(dtype)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("degrees", [20, 40, 60, -33.3, 135, 200, 359])
@pytest.mark.parametrize("shape", [(3, 1, 28, 28), (2, 3, 9, 14), (1, 2, 7, 7)])
def test_rotation_is_scipys_turned_the_other_way(degrees, shape):
    # SciPy turns counter-clockwise; "grid-constant" is zero outside, with interpolation over the edge.
    x = images(*shape)
    expected = ndimage.rotate(
        x.double().numpy(), -degrees, axes=(3, 2), reshape=False, order=1, mode="grid-constant"
    )
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 0.01), (torch.uint8, 0.51)):
        turned = rotate(x.to(dtype), degrees)
        assert turned.dtype == dtype
        assert turned.shape == x.shape
        assert np.abs(turned.double().numpy() - expected).max() <= tolerance


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_quarter_turns_are_exact_and_clockwise(dtype):
    x = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]], dtype=dtype)[None, None]
    right = torch.tensor([[7, 4, 1], [8, 5, 2], [9, 6, 3]], dtype=dtype)[None, None]
    assert torch.equal(rotate(x, 0), x)
    assert torch.equal(rotate(x, 360), x)
    assert torch.equal(rotate(x, 90), right)
    assert torch.equal(rotate(x, -270), right)
    assert torch.equal(rotate(x, 180), x.flip(-1, -2))
    assert torch.equal(rotate(x, 270), right.flip(-1, -2))


def test_a_small_turn_moves_the_top_to_the_right():
    x = torch.zeros(1, 1, 21, 21)
    x[0, 0, 2, 10] = 1
    row, column = divmod(int(rotate(x, 30).argmax()), 21)
    # radius 8 at 30 degrees from the top: 4 to the right, 6.9 up
    assert (row, column) == (3, 14)


def test_an_image_that_is_not_square_keeps_its_shape():
    x = images(2, 1, 4, 6)
    assert torch.equal(rotate(x, 180), x.flip(-1, -2))
    turned = rotate(x, 90)
    assert turned.shape == x.shape
    # the middle 4 × 4 turned; the columns beside it come from outside the image
    assert torch.equal(turned[..., 1:5], torch.rot90(x[..., 1:5], -1, (-2, -1)))
    assert not turned[..., 0].any()


def test_no_images_are_no_trouble():
    assert rotate(images(0, 1, 5, 5), 20).shape == (0, 1, 5, 5)
    assert augment(images(0, 1, 5, 5), ["crop", "flip"], generator()).shape == (0, 1, 5, 5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_crop_is_a_window_of_the_padded_image_and_every_window_comes(dtype):
    x = (images(1, 2, 6, 5, dtype=torch.int64).clamp(min=1)).to(dtype).expand(1500, 2, 6, 5)
    padded = torch.zeros(2, 14, 13, dtype=dtype)
    padded[:, 4:10, 4:9] = x[0]
    windows = {padded[:, i : i + 6, j : j + 5].numpy().tobytes(): (i, j) for i in range(9) for j in range(9)}
    cropped = augment(x, ["crop"], generator())
    assert cropped.dtype == dtype
    seen = [windows[image.numpy().tobytes()] for image in cropped]
    assert len(set(seen)) == 81


def test_a_flip_swaps_left_and_right_in_half_of_the_images():
    x = images(1000, 3, 4, 5)
    flipped = augment(x, ["flip"], generator())
    changed = (flipped != x).flatten(1).any(1)
    assert torch.equal(flipped[changed], x[changed].flip(-1))
    assert 440 < int(changed.sum()) < 560


def test_augmentation_depends_on_the_generator_alone_and_leaves_its_input():
    x = images(20, 1, 8, 8)
    before = x.clone()
    first = augment(x, ["crop", "flip"], generator(1))
    assert torch.equal(first, augment(x, ["crop", "flip"], generator(1)))
    assert not torch.equal(first, augment(x, ["crop", "flip"], generator(2)))
    by_hand = generator(1)
    assert torch.equal(first, augment(augment(x, ["crop"], by_hand), ["flip"], by_hand))
    assert torch.equal(x, before)
    assert augment(x, [], generator()) is x


def test_augmentation_refuses_an_unknown_name_and_what_is_no_image():
    with pytest.raises(InputError, match=r"^augment: 'flop' is unknown; did you mean 'flip'\? known: crop, flip$"):
        augment(images(2, 1, 4, 4), ["flop"], generator())  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"^augment: 'crop' needs images, but a sample has shape \(4,\)"):
        augment(images(2, 4), ["crop"], generator())
