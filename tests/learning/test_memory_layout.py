"""Channels last: faster, the same numbers, and never forced on a model that cannot take it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mutua
from mutua import SGD, Adam, Architecture, InputError
from mutua.federation.module_pool import Modules
from mutua.learning.memory_layout import channels_last, lay_channels_last
from mutua.learning.optimizers import optimizer_state, restore_optimizer

IMAGES = torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(40) % 3


class Viewing(nn.Module):
    """A user's network that flattens with `view`, which channels-last activations cannot do."""

    def __init__(self, channels: int = 3, classes: int = 3) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(channels, 5, 3), nn.Linear(5 * 36, classes)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.head(self.conv(x).relu().view(len(x), -1))
        return h


class Flattening(Viewing):
    """The same without `view`."""

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.head(self.conv(x).relu().flatten(1))
        return h


def test_a_model_that_can_is_laid_channels_last_and_gives_the_same() -> None:
    torch.manual_seed(0)
    model, x = Flattening(), torch.randn(4, 3, 8, 8)
    before, random = model(x), torch.get_rng_state()
    lay_channels_last(model, x)
    assert channels_last(model)
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model(x), before)
    assert model.training and torch.equal(torch.get_rng_state(), random)


def test_a_model_that_cannot_stays_as_it_was() -> None:
    model, x = Viewing(), torch.randn(4, 3, 8, 8)
    before = model(x)
    lay_channels_last(model, x)
    assert not channels_last(model)
    assert torch.equal(model(x), before)


def test_plain_features_have_no_channels_to_lay() -> None:
    model = nn.Linear(4, 2)
    lay_channels_last(model, torch.randn(2, 4))
    assert not channels_last(model)


@pytest.mark.parametrize("optimizer", [mutua.SGD(lr=0.05, momentum=0.9), mutua.Adam(lr=0.01)], ids=["sgd", "adam"])
def test_layout_does_not_change_what_is_learned(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds of FML, personal optimizer kept between them: channels last against the usual layout."""

    def weights() -> dict[str, Tensor]:
        fed = mutua.Federation.from_arrays(
            IMAGES, LABELS, partition=mutua.partitions.IID(clients=2), models=[Flattening, Viewing],
            global_model=Flattening,
        )  # fmt: skip
        settings = {"rounds": 3, "epochs": 2, "batch_size": 4, "device": "cpu"}
        result = mutua.run(mutua.methods.FML(), fed, optimizer=optimizer, **settings)
        personal = {f"{c.id}.{name}": array for c in result.clients for name, array in c.state["personal"].items()}
        assert result.global_state is not None
        return result.global_state | personal

    laid = weights()
    monkeypatch.setattr("mutua.federation.module_pool.lay_channels_last", lambda *_: None)
    usual = weights()
    assert all(array.is_contiguous() for array in laid.values())
    for name, array in usual.items():
        torch.testing.assert_close(laid[name], array, rtol=1e-4, atol=1e-6)
        assert float(array.std()) > 0


def test_the_cache_of_modules_lays_them() -> None:
    fed = mutua.Federation.from_arrays(
        IMAGES, LABELS, partition=mutua.partitions.IID(clients=1), models=Flattening
    )
    client = fed.clients[0]
    state = OrderedDict((k, v.clone()) for k, v in Flattening().state_dict().items())
    module = Modules(torch.device("cpu")).get("personal", client.model, client, state)
    assert channels_last(module)
    for name, array in module.state_dict().items():
        assert torch.equal(array, state[name])


def test_a_layer_that_would_end_the_process_keeps_the_usual_order() -> None:
    """The narrow ResNet's shortcuts: with channels last the process died in the backward."""
    model = Architecture(name="resnet18", width=0.0625).build(channels=3, size=32, classes=10, seed=0)
    lay_channels_last(model, torch.zeros(2, 3, 32, 32))
    assert not channels_last(model)
    model(torch.randn(8, 3, 32, 32)).sum().backward()
    wide = Architecture(name="resnet18", width=0.125).build(channels=3, size=32, classes=10, seed=0)
    lay_channels_last(wide, torch.zeros(2, 3, 32, 32))
    assert channels_last(wide)


class Doubling(Flattening):
    """Doubles whatever it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(self._double)

    def _double(self, _: object, state: dict[str, torch.Tensor], *rest: object) -> None:
        state |= {name: 2 * array for name, array in state.items()}


def test_the_cache_loads_as_the_module_says_and_refuses_what_it_would_refuse() -> None:
    partition = mutua.partitions.IID(clients=1)
    fed = mutua.Federation.from_arrays(IMAGES, LABELS, partition=partition, models=Doubling)
    state = {name: array.clone() for name, array in Flattening().state_dict().items()}
    modules = Modules(torch.device("cpu"))
    module = modules.get("personal", fed.clients[0].model, fed.clients[0], dict(state))
    assert all(torch.equal(array, 2 * state[name]) for name, array in module.state_dict().items())

    fed = mutua.Federation.from_arrays(IMAGES, LABELS, partition=partition, models=Flattening)
    (client,) = fed.clients
    name, first = next(iter(state.items()))
    for wrong in ({**state, name: first[..., :-1]}, {**state, "more": first}, {n: state[n] for n in [*state][1:]}):
        with pytest.raises(RuntimeError, match="state_dict"):
            modules.get("personal", client.model, client, wrong)


# The fused optimizers' trap


def convolution(seed: int) -> nn.Conv2d:
    torch.manual_seed(seed)
    return nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("spec", [SGD(lr=0.1, momentum=0.9), Adam(lr=0.1), Adam(name="amsgrad", lr=0.1)])
def test_a_gradient_that_lies_otherwise_is_stepped_rightly(spec: Any) -> None:
    """Against the same optimizer without fusion; torch's fused one alone gets this silently wrong."""
    mine, other = convolution(0), convolution(0)
    fused = spec.build(mine.parameters(), spec.rate(1, 1))
    kinds = {"lr": 0.1, "fused": False, "foreach": False}
    plain: torch.optim.Optimizer
    if isinstance(spec, SGD):
        plain = torch.optim.SGD(other.parameters(), momentum=0.9, **kinds)
    else:
        plain = torch.optim.Adam(other.parameters(), amsgrad=spec.name == "amsgrad", **kinds)
    for step in range(4):
        gradient = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(step))
        for model in (mine, other):
            model.weight.grad, model.bias.grad = gradient.clone(), torch.ones(4)  # type: ignore[union-attr]
        assert mine.weight.grad is not None and mine.weight.grad.stride() != mine.weight.stride()
        fused.step()
        plain.step()
        if step == 1:  # what was kept goes on rightly too
            kept = optimizer_state(fused)
            assert all(array.is_contiguous() for array in kept.values())
            fused = spec.build(mine.parameters(), spec.rate(1, 1))
            restore_optimizer(fused, kept)
    torch.testing.assert_close(mine.weight, other.weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(mine.bias, other.bias, rtol=1e-5, atol=1e-6)


def test_a_parameter_that_is_a_view_is_refused() -> None:
    """The kernels would walk on into the memory beside it."""
    beside = nn.Parameter(torch.zeros(2, 4)[:, :2])
    with pytest.raises(InputError, match="a parameter is a view into other memory"):
        SGD(lr=1.0).build([beside], 1.0)


class Both(nn.Module):
    """A model of a part that can take channels last and one that cannot."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other


def test_a_model_is_fed_as_its_least_able_part_wants() -> None:
    able, unable = Flattening(), Viewing()
    for model in (able, unable):
        lay_channels_last(model, torch.randn(2, 3, 8, 8))
    assert channels_last(able) and channels_last(Both(able, Flattening()))
    assert not channels_last(Both(able, unable))
    crashing = nn.Conv2d(3, 4, 1, stride=2)
    lay_channels_last(crashing, torch.randn(2, 3, 8, 8))
    assert not channels_last(Both(able, crashing))


class Deep(Flattening):
    """Has weights of five dimensions, which no layout of images fits."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Parameter(torch.ones(2, 2, 2, 2, 2))


class Strict(Flattening):
    """Insists on the usual order."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.is_contiguous()
        return super().forward(x)


@pytest.mark.parametrize("kind", [Deep, Strict])
def test_whatever_a_model_says_against_it_leaves_it_as_it_was(kind: type[Flattening]) -> None:
    model = kind()
    lay_channels_last(model, torch.randn(2, 3, 8, 8))
    assert not channels_last(model) and model.conv.weight.is_contiguous()
