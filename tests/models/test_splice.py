"""Which names cross when a part of a model is shared."""

from typing import ClassVar

import pytest
import torch
from torch import nn

from mutua import Architecture, InputError
from mutua.models import features, head_of, shared_names


class Headed(nn.Module):
    """A head that is not the last layer and not linear."""

    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2))
        self.stem = nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.ones(1))


class Normed(nn.Module):
    """No attribute `head`; buffers, one of which is not persistent."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)
        self.register_buffer("cache", torch.zeros(1), persistent=False)


def test_the_attribute_head_comes_first():
    name, head = head_of(Headed())
    assert name == "head"
    assert isinstance(head, nn.Sequential)
    assert shared_names(Headed(), "head") == [
        "head.0.weight",
        "head.0.bias",
        "head.1.weight",
        "head.1.bias",
    ]
    assert shared_names(Headed(), "body") == ["scale", "stem.weight", "stem.bias"]


def test_else_the_last_linear():
    module = Normed()
    assert head_of(module) == ("last", module.last)
    nested = nn.Sequential(nn.Linear(1, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert head_of(nested) == ("1.0", nested[1][0])


def test_a_head_that_is_no_module_is_not_one():
    class Odd(Normed):
        head: ClassVar[str] = "not a module"

    assert head_of(Odd())[0] == "last"


def test_body_carries_buffers_in_state_dict_order():
    module = Normed()
    assert shared_names(module, "all") == list(module.state_dict())
    assert shared_names(module, "body") == [
        "conv.weight",
        "conv.bias",
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
        "first.weight",
        "first.bias",
    ]
    assert shared_names(module, "head") == ["last.weight", "last.bias"]


def test_a_list_takes_parts_and_names_in_state_dict_order():
    module = Architecture.of("cnn1").build(channels=1, size=28, classes=10, seed=0)
    assert shared_names(module, ["head.bias", "conv2"]) == ["conv2.weight", "conv2.bias", "head.bias"]
    assert shared_names(module, ["conv1", "conv1.weight"]) == ["conv1.weight", "conv1.bias"]


def test_a_prefix_ends_at_a_dot():
    module = nn.ModuleDict({"conv1": nn.Linear(1, 1), "conv10": nn.Linear(1, 1)})
    assert shared_names(module, ["conv1"]) == ["conv1.weight", "conv1.bias"]


def test_a_head_without_weights_leaves_all_to_the_body():
    module = nn.Sequential()
    module.add_module("stem", nn.Linear(1, 1))
    module.add_module("head", nn.Identity())
    assert shared_names(module, "body") == ["stem.weight", "stem.bias"]
    with pytest.raises(InputError, match="a head without anything in it"):
        shared_names(module, "head")


def test_cnn2_body_is_its_convolutions():
    module = Architecture.of("cnn2").build(channels=3, size=32, classes=10, seed=0)
    assert shared_names(module, "body") == shared_names(module, ["conv1", "conv2", "conv3"])


@pytest.mark.parametrize(
    ("module", "share", "message"),
    [
        (Normed(), ["conv9"], "'conv9' is no part of the model; did you mean 'conv'\\? known: conv, norm, "),
        (Normed(), ["con"], "'con' is no part of the model"),
        (Normed(), "conv", "'conv'; give all, body, head or a list"),
        (Normed(), [], "a list without anything in it"),
        (nn.Linear(2, 2), "body", "a body without anything in it"),
        (nn.Sequential(nn.ReLU()), "all", "a model without anything in it"),
        (nn.Conv2d(1, 1, 1), "body", "model Conv2d has no head"),
        (nn.Conv2d(1, 1, 1), "head", "model Conv2d has no head"),
        (nn.Sequential(nn.Linear(1, 1)).append(nn.Identity()), "body", "a body without anything in it"),
    ],
)
def test_mistakes(module, share, message):
    with pytest.raises(InputError, match=message):
        shared_names(module, share)


# Features


@pytest.mark.parametrize("name", ["mlp", "lenet5", "cnn1", "vgg11"])
def test_features_are_the_heads_input_and_scores_the_models(name: str) -> None:
    model = Architecture.of(name).build(channels=1, size=32, classes=5, seed=0).eval()
    x = torch.randn(3, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    z, scores = features(model, x)
    _, head = head_of(model)
    assert z.dim() == 2 and torch.equal(scores, model(x))
    assert torch.allclose(head(z), scores, atol=1e-6)
    assert not head._forward_pre_hooks


def test_features_of_different_designs_are_pooled_to_one_width() -> None:
    x = torch.randn(2, 1, 28, 28)
    for name in ("mlp", "lenet5", "cnn1"):
        sizes = {"channels": 1, "size": 28, "classes": 5, "seed": 3}
        model = Architecture(name=name, features=4).build(**sizes).eval()
        again = Architecture(name=name, features=4).build(**sizes)
        assert torch.equal(model.head.weight, again.head.weight)
        z, scores = features(model, x)
        wide = features(Architecture.of(name).build(**sizes).eval(), x)[0]
        assert torch.allclose(z, wide.view(2, 4, -1).mean(2), atol=1e-6)
        assert torch.allclose(scores, z @ model.head.weight.T + model.head.bias, atol=1e-6)
        assert shared_names(model, "head") == ["head.weight", "head.bias"]
    assert Architecture(name="lenet5", features=16).spec() == {"name": "lenet5", "width": 1.0, "features": 16}


def test_features_that_cannot_be() -> None:
    with pytest.raises(
        InputError, match=r"models.features: 200, but its head takes only 84 numbers; give at most 84"
    ):
        Architecture(name="lenet5", features=200).build(channels=1, size=28, classes=5, seed=0)
    with pytest.raises(InputError, match=r"models.features: 0"):
        Architecture(name="lenet5", features=0)

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.head.weight.T

    with pytest.raises(InputError, match="does not call 'head'"):
        features(Own(), torch.zeros(1, 4))
