"""The zoo against numbers and layers written out by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mutua import Architecture, InputError
from mutua.models import describe, head_of, names, shared_names

SMALL = ["mlp", "lenet5", "cnn1", "cnn2", "cnn-5x5", "fmlu-cnn"]
LARGE = [
    "alexnet",
    "vgg11",
    "vgg19",
    "resnet18",
    "resnet34",
    "resnet50",
    "mobilenetv2",
    "shufflenetv2",
]
ALL = SMALL + LARGE


@pytest.fixture(autouse=True)
def one_thread():
    """Threads cost more than they give on models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny(name, **changes):
    """A model that is quick to run: heavy nets at an eighth of their width."""
    width = 1.0 if name in SMALL else 0.125
    given = {"channels": 1, "size": 28, "classes": 10, "seed": 0} | changes
    return Architecture(name=name, width=width).build(**given)


def meta(name, *, channels=1, size=28, classes=10):
    with torch.device("meta"):
        return Architecture.of(name).build(channels=channels, size=size, classes=classes, seed=0)


def count(name, **given):
    return sum(p.numel() for p in meta(name, **given).parameters())


def conv(inputs, outputs, kernel):
    return outputs * (inputs * kernel * kernel + 1)


def fc(inputs, outputs):
    return outputs * (inputs + 1)


def normed(inputs, outputs, kernel):
    """A convolution without bias and a batch-norm with two numbers a channel."""
    return outputs * inputs * kernel * kernel + 2 * outputs


def vgg(*outputs):
    return sum(normed(i, o, 3) for i, o in zip((3, *outputs), outputs, strict=False))


def test_every_model_of_the_specification_is_there():
    assert set(ALL) <= set(names())
    assert names() == sorted(names())


@pytest.mark.parametrize("name", ALL)
def test_each_is_described_in_one_line(name):
    assert 10 < len(describe(name)) < 110
    assert "\n" not in describe(name)


COUNTS = [
    ("linear", 1, 28, fc(784, 10)),
    ("linear", 30, 1, fc(30, 10)),
    ("mlp", 1, 28, fc(784, 200) + fc(200, 200) + fc(200, 10)),
    ("mlp", 30, 1, fc(30, 200) + fc(200, 200) + fc(200, 10)),
    ("lenet5", 1, 28, 61_706),
    ("lenet5", 1, 28, conv(1, 6, 5) + conv(6, 16, 5) + fc(16 * 5 * 5, 120) + fc(120, 84) + fc(84, 10)),
    ("lenet5", 3, 32, conv(3, 6, 5) + conv(6, 16, 5) + fc(16 * 6 * 6, 120) + fc(120, 84) + fc(84, 10)),
    ("cnn1", 1, 28, conv(1, 6, 3) + conv(6, 16, 3) + fc(16 * 7 * 7, 120) + fc(120, 10)),
    ("cnn1", 3, 32, conv(3, 6, 3) + conv(6, 16, 3) + fc(16 * 8 * 8, 120) + fc(120, 10)),
    ("cnn2", 1, 28, conv(1, 128, 3) + 2 * conv(128, 128, 3) + fc(128 * 3 * 3, 10)),
    ("cnn2", 3, 32, conv(3, 128, 3) + 2 * conv(128, 128, 3) + fc(128 * 4 * 4, 10)),
    ("cnn-5x5", 1, 28, conv(1, 32, 5) + conv(32, 64, 5) + fc(64 * 4 * 4, 512) + fc(512, 10)),
    ("cnn-5x5", 3, 32, conv(3, 32, 5) + conv(32, 64, 5) + fc(64 * 5 * 5, 512) + fc(512, 10)),
    ("fmlu-cnn", 1, 28, conv(1, 32, 3) + conv(32, 64, 3) + fc(64 * 5 * 5, 128) + fc(128, 10)),
    ("fmlu-cnn", 3, 64, conv(3, 32, 3) + conv(32, 64, 3) + fc(64 * 14 * 14, 128) + fc(128, 10)),
    # Published counts: CIFAR ResNets; MobileNetV2 and ShuffleNetV2 with the head of 1000 made one of 10.
    ("resnet18", 3, 32, 11_173_962),
    ("resnet34", 3, 32, 21_282_122),
    ("resnet50", 3, 32, 23_520_842),
    ("mobilenetv2", 3, 32, 3_504_872 - 990 * 1281),
    ("shufflenetv2", 3, 32, 2_278_604 - 990 * 1025),
    # VGG's published counts have convolution biases, which batch-norm makes idle: ours has none.
    ("vgg11", 3, 32, 9_231_114 - (64 + 128 + 2 * 256 + 4 * 512)),
    ("vgg11", 3, 32, vgg(64, 128, 256, 256, 512, 512, 512, 512) + fc(512, 10)),
    ("vgg19", 3, 32, 20_040_522 - (2 * 64 + 2 * 128 + 4 * 256 + 8 * 512)),
    (
        "alexnet",
        3,
        32,
        conv(3, 64, 11)
        + conv(64, 192, 5)
        + conv(192, 384, 3)
        + conv(384, 256, 3)
        + conv(256, 256, 3)
        + fc(256, 10),
    ),
]


@pytest.mark.parametrize(("name", "channels", "size", "parameters"), COUNTS)
def test_parameters_are_as_counted_by_hand(name, channels, size, parameters):
    assert count(name, channels=channels, size=size) == parameters


@pytest.mark.parametrize("name", LARGE)
def test_pooled_models_have_the_same_parameters_at_every_size(name):
    assert count(name, size=28) == count(name, size=64) == count(name, size=(32, 96))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("channels", "size"), [(1, 28), (3, 28), (1, 32), (3, 32), (1, 64), (3, 64), (2, (28, 40))]
)
def test_scores_for_every_class_at_every_size(name, channels, size):
    height, width = (size, size) if isinstance(size, int) else size
    model = tiny(name, channels=channels, size=size, classes=7).eval()
    with torch.no_grad():
        scores = model(torch.randn(2, channels, height, width))
    assert scores.shape == (2, 7)
    assert scores.isfinite().all()


@pytest.mark.parametrize("name", ALL)
def test_96_pixels_and_channels_last(name):
    model = tiny(name, channels=3, size=96).eval()
    x = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        plain = model(x)
        last = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, plain, rtol=1e-4, atol=1e-5)


def test_mlp_takes_plain_features():
    model = tiny("mlp", channels=13, size=1, classes=3)
    assert model(torch.randn(5, 13)).shape == (5, 3)


@pytest.mark.parametrize("name", ALL)
def test_body_and_head_make_the_whole(name):
    model = meta(name)
    part, head = head_of(model)
    assert part == "head"
    assert isinstance(head, nn.Linear)
    assert head.out_features == 10
    body, tip = shared_names(model, "body"), shared_names(model, "head")
    assert tip == ["head.weight", "head.bias"]
    assert body + tip == list(model.state_dict())


@pytest.mark.parametrize("name", ALL)
def test_other_classes_change_the_head_alone(name):
    ten, seven = meta(name).state_dict(), meta(name, classes=7).state_dict()
    assert list(ten) == list(seven)
    assert [k for k in ten if ten[k].shape != seven[k].shape] == ["head.weight", "head.bias"]


@pytest.mark.parametrize("name", ALL)
def test_the_body_starts_the_same_whatever_the_classes(name):
    body = shared_names(tiny(name), "body")
    ten, seven = tiny(name).state_dict(), tiny(name, classes=7).state_dict()
    assert all(torch.equal(ten[key], seven[key]) for key in body)


@pytest.mark.parametrize("name", ALL)
def test_one_step_trains_every_parameter(name):
    model = tiny(name)
    before = {k: v.clone() for k, v in model.named_parameters()}
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(8, 1, 28, 28, generator=generator), torch.arange(8)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert loss.isfinite()
    assert [k for k, v in model.named_parameters() if torch.equal(v, before[k])] == []
    assert all(v.isfinite().all() for v in model.parameters())


@pytest.mark.parametrize("name", ALL)
def test_width_scales_every_hidden_layer(name):
    full = meta(name)
    with torch.device("meta"):
        half = Architecture(name=name, width=0.5).build(channels=1, size=28, classes=10, seed=0)
    wide, narrow = full.state_dict(), half.state_dict()
    assert list(wide) == list(narrow)
    for key, tensor in wide.items():
        if tensor.dim() and not key.startswith("head."):
            assert narrow[key].shape[0] * 2 == tensor.shape[0], key
    assert narrow["head.bias"].shape == (10,)


def test_a_tiny_width_leaves_one_unit():
    model = Architecture(name="lenet5", width=1e-3).build(channels=1, size=28, classes=10, seed=0)
    assert model(torch.zeros(1, 1, 28, 28)).shape == (1, 10)
    assert model.conv1.out_channels == 1


def test_lenet5_is_the_classic_one():
    model = tiny("lenet5").eval()
    x = torch.randn(4, 1, 28, 28)
    w = model.state_dict()
    h = F.max_pool2d(F.relu(F.conv2d(x, w["conv1.weight"], w["conv1.bias"], padding=2)), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, w["conv2.weight"], w["conv2.bias"])), 2)
    h = F.relu(F.linear(h.reshape(4, 400), w["fc1.weight"], w["fc1.bias"]))
    h = F.relu(F.linear(h, w["fc2.weight"], w["fc2.bias"]))
    expected = F.linear(h, w["head.weight"], w["head.bias"])
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize(
    ("name", "side", "at"),
    [
        ("resnet18", 4, 32),
        ("resnet50", 12, 96),
        ("mobilenetv2", 4, 32),
        ("shufflenetv2", 4, 32),
        ("vgg11", 1, 32),
        ("vgg19", 1, 28),
        ("alexnet", 1, 32),
        ("alexnet", 2, 64),
    ],
)
def test_the_image_shrinks_as_in_the_small_image_forms(name, side, at):
    model = tiny(name, size=at).eval()
    seen = []
    model.pool.register_forward_hook(lambda _, inputs, __: seen.append(tuple(inputs[0].shape[2:])))
    with torch.no_grad():
        model(torch.zeros(1, 1, at, at))
    assert seen == [(side, side)]


def test_a_resnet_block_adds_its_projected_input():
    model = tiny("resnet18").eval()
    w = {k.removeprefix("layer2.0."): v for k, v in model.state_dict().items() if k.startswith("layer2.0.")}
    x = torch.randn(2, 8, 14, 14)
    h = F.relu(F.conv2d(x, w["branch.conv1.conv.weight"], stride=2, padding=1) / (1 + 1e-5) ** 0.5)
    h = F.conv2d(h, w["branch.conv2.conv.weight"], padding=1) / (1 + 1e-5) ** 0.5
    s = F.conv2d(x, w["shortcut.conv.weight"], stride=2) / (1 + 1e-5) ** 0.5
    torch.testing.assert_close(model.layer2[0](x), F.relu(h + s), rtol=1e-4, atol=1e-5)


def test_mobilenet_adds_where_the_shape_stays():
    model = tiny("mobilenetv2")
    blocks = [block.residual for i in range(1, 8) for block in getattr(model, f"stage{i}")]
    added = [block for depth in (1, 2, 3, 4, 3, 3, 1) for block in [False] + [True] * (depth - 1)]
    assert blocks == added
    block, x = model.eval().stage2[1], torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(block(x), x + block.branch(x))


def test_a_shuffle_unit_passes_half_of_its_channels():
    unit = tiny("shufflenetv2").eval().stage1[1]
    x = torch.randn(2, 14, 8, 8)
    y = unit(x)
    assert torch.equal(y[:, 0::2], x[:, :7])
    torch.testing.assert_close(y[:, 1::2], unit.branch(x[:, 7:]))


LEAST = [("lenet5", 12), ("cnn1", 4), ("cnn2", 8), ("cnn-5x5", 16), ("fmlu-cnn", 10)] + [(n, 8) for n in LARGE]


@pytest.mark.parametrize(("name", "least"), LEAST)
def test_too_small_an_image_is_refused_by_model_and_size(name, least):
    assert tiny(name, size=least).eval()(torch.zeros(1, 1, least, least)).shape == (1, 10)
    with pytest.raises(InputError) as error:
        tiny(name, size=(96, least - 1))
    assert str(error.value) == (
        f"models: '{name}': images of 96×{least - 1} pixels are too small; use {least} or more per side, or 'mlp'"
    )
